"""What mitigations cost and what they are worth: time at inference, memory, detection, repair, clean AUC."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from benchmarks import screening
from benchmarks.common import Result, Verdict, about, at_least, at_most, generated_remark, text, verdict_text
from drsrobust._progress import progress_bar
from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, resolve
from drsrobust.metrics import auc
from drsrobust.metrics.auc import auc_difference
from drsrobust.mitigation import Mitigation, NaNGuard
from drsrobust.models import padded_batches, score
from drsrobust.models.scoring import BATCH
from drsrobust.statistics.intervals import wilson
from drsrobust_extras.data.synthetic import planted
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.zero_space import reserve_bits
from drsrobust_extras.risk.timing import cpu_seconds, overhead
from drsrobust_study.abft import BATCH as CLEAN_BATCH
from drsrobust_study.abft import alarms_on_test_rows, false_alarms, in_layers, in_tables
from drsrobust_study.mitigations import (
    BATCHES,
    COLUMNS,
    INT8,
    LARGE,
    Case,
    checks,
    clipping,
    in_memory,
    large,
    time_cost,
    trained,
    with_int8_tables,
)

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

_AT_ONCE = 1 << 16  # units whose check bits are computed at once


def detected(
    big: Case,
    fitted: Sequence[Case],
    injections: int,
    int8_injections: int,
    test_rows: int,
    generated_rows: int,
    seed: int,
    progress: bool,
) -> pd.DataFrame:
    """Single errors in the first fitted model (`in_layers`, `in_tables`), and false alarms of all models.

    Args:
        big: the large model, scored on generated rows.
        fitted: trained models, scored on their test rows.
        injections, int8_injections: single errors in float and in int8 tables.
        test_rows: on which errors are scored.
        generated_rows: of the large model.
        seed: of errors and rows.
        progress: shows a progress bar.

    Returns:
        the columns of `in_layers`; a model without injections has one row for each check, with no component and bit -1.
    """
    first, options = fitted[0], {"rows": test_rows, "seed": seed, "progress": progress}
    parts = [
        in_layers(first, injections, **options),
        in_tables(first, injections, **options),
        in_tables(with_int8_tables(first), int8_injections, **options),
    ]
    parts += [_alarms_alone(case, alarms_on_test_rows(case, checks(case))) for case in fitted[1:]]
    table_rows = sum(tensor.shape[0] for tensor in resolve(big.model, "embedding").tensors)
    with progress_bar(-(-generated_rows // CLEAN_BATCH), "generated rows", progress=progress) as bar:

        def counted() -> Iterator["Batch"]:
            for batch in generated(
                table_rows, generated_rows, CLEAN_BATCH, seed=1 + seed
            ):  # seed made the rows it learnt from
                yield batch
                bar.update()

        parts.append(_alarms_alone(big, false_alarms(big.model, checks(big), counted())))
    return pd.concat(parts, ignore_index=True)


def _alarms_alone(case: Case, alarms: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Rows of `detected` without injections."""
    nothing = dict.fromkeys(("injections", "significant", "significant_detected", "detected"), 0)
    name = case.name if case.name == LARGE else f"{case.name} on {case.data}"
    return pd.DataFrame(
        {"mitigation": check, "model": name, "component": "", "bit": -1}
        | nothing
        | {"false_alarms": count, "clean_rows": rows}
        for check, (count, rows) in alarms.items()
    )


def generated(table_rows: int, rows: int, batch: int = CLEAN_BATCH, *, seed: int = 0) -> Iterator["Batch"]:
    """Batches of generated rows for the DLRM with 26 tables (`planted`), made 65,536 rows at a time.

    Args:
        table_rows: of all tables together.
        rows: how many; rounded up to whole batches.
        batch: rows of one.
        seed: of the first 65,536 rows; the following ones have the following seeds.
    """
    at_once = -(-65_536 // batch) * batch
    for start in range(0, rows, at_once):
        part = -(-min(at_once, rows - start) // batch) * batch
        _, split, _, _ = planted(table_rows, part, 64, seed=seed + start // at_once)
        yield from split.batches(batch)


def memory_cost(cases: Sequence[Case]) -> pd.DataFrame:
    """One row per mitigation and model: `mitigation`, `model`, `stored_bits_percent` (of the parameters' bits), `scrub_ms`: the
    CPU time of one pass of this library over all words, which makes their checksums (or compares them with their ranges); null
    for what hardware checks at each read. None of them takes time at inference.
    """
    rows = []
    for case in cases:
        bits = resolve(case.model, "all").bits
        for mitigation in in_memory(case):
            stored = 100 * mitigation.cost(case.model).stored_bits / bits
            rows.append((mitigation.name, case.name, stored, _scrub_ms(mitigation, case.model)))
    return pd.DataFrame(rows, columns=["mitigation", "model", "stored_bits_percent", "scrub_ms"])


def _scrub_ms(mitigation: Mitigation, model: nn.Module) -> float | None:
    if hasattr(mitigation, "outside"):
        return 1e3 * cpu_seconds(lambda: mitigation.outside(model))[1]
    if not hasattr(mitigation, "content"):
        return None

    def scrub() -> None:
        for words in mitigation.protected(model):
            units = mitigation.check_bits(words).units
            for start in range(0, units, _AT_ONCE):
                mitigation.content(words, np.arange(start, min(units, start + _AT_ONCE)))

    return 1e3 * cpu_seconds(scrub)[1]


class Twice:
    """A peer of checksums: every linear layer is computed twice and its outputs are compared."""

    name = "peer: linear layers twice"

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[None]:
        self.detected = False

        def again(layer: nn.Linear, inputs: tuple, output: torch.Tensor) -> None:
            self.detected |= not torch.equal(output, functional.linear(inputs[0], layer.weight, layer.bias))

        with _hooks(model, nn.Linear, again):
            yield


class Clamp:
    """A peer of clipping: `nan_to_num` and `clamp` in hooks on linear layers, as the published scripts have it."""

    name = "peer: torch.clamp in hooks"

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[None]:
        with _hooks(model, nn.Linear, lambda layer, inputs, output: output.nan_to_num(0.0).clamp(-6.0, 6.0)):
            yield


@contextmanager
def _hooks(model: nn.Module, kind: type[nn.Module], hook: Callable) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in model.modules() if isinstance(module, kind)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def peer_cost(cases: Sequence[Case], batches: Sequence[int], turns: int) -> pd.DataFrame:
    """Time at inference of the peers, in the columns of `time_cost`."""
    rows = []
    for case in cases:
        for size in batches:
            of_size = [batch for batch in case.test.head(8 * size).batches(size) if len(batch.labels) == size]
            for peer in (Twice(), Clamp()):
                timed = overhead(case.model, of_size, peer, turns=turns)
                rows.append({"mitigation": peer.name, "model": case.name, "stored_bits_percent": 0.0} | timed)
    return pd.DataFrame(rows)[list(COLUMNS)]


REPAIR_COLUMNS = ("mitigation", "model", "error_model", "trials", "auc_golden", "auc_faulty", "auc_repaired")
REPAIR_COLUMNS += ("largest_difference",)


def restoring(case: Case) -> Mitigation:
    """Checksums of linear layers and tables that restore layers and rows from a golden copy."""
    return ABFTLinear.fit(case.model, action="restore") + ABFTEmbeddingBag.fit(case.model, action="restore")


def repair(case: Case, test_rows: int, trials: int, *, seed: int, progress: bool) -> pd.DataFrame:
    """AUC without and with repair, on the same error maps over the whole model: one flip, and a bit error rate of 1e-6.

    Returns:
        the columns `REPAIR_COLUMNS`: means over trials, and the largest |AUC - golden| of any repaired trial.
    """
    evaluator, mitigation = Evaluator(case.model, case.test.head(min(test_rows, len(case.test)))), restoring(case)
    with tempfile.TemporaryDirectory() as folder:
        options = {"targets": ["all"], "mitigations": [None, mitigation], "trials": trials, "seed": seed}
        options |= {"errors": [FixedCount(1), BitFlip(1e-6)], "sampling": "plain", "store": f"{folder}/store"}
        table = Campaign(evaluator, **options).run(progress=progress)
    rows = []
    for (error_model, rate), group in table.groupby(["error_model", "rate"], sort=False, dropna=False):
        error_model = error_model if np.isnan(rate) else f"{error_model}({rate:g})"
        faulty, repaired = (group[group["mitigation"] == name] for name in ("none", mitigation.name))
        means = (faulty["auc_golden"].mean(), faulty["auc"].mean(), repaired["auc"].mean())
        worst = float(repaired["auc_drop"].abs().max()) if (repaired["outcome"] != "raised").all() else np.nan
        rows.append((mitigation.name, case.name, error_model, len(repaired), *means, worst))
    return pd.DataFrame(rows, columns=list(REPAIR_COLUMNS))


def clean_auc(cases: Sequence[Case], *, progress: bool) -> pd.DataFrame:
    """AUC on all test rows without errors, with each mitigation against without.

    int8 rows whose spare bits zero-space ECC needs (`reserve_bits`) are compared with the int8 rows as they were.

    Returns:
        `mitigation`, `model`, `data`, `auc`, `difference` (to the AUC without it) with `low`, `high` (95 %, paired DeLong),
        `bit_equal` (all scores).
    """
    rows = []
    with progress_bar(len(cases), "clean AUC", progress=progress) as bar:
        for number, case in enumerate(cases):
            plain = _scores(case)
            guarding = [*checks(case), *clipping(case), NaNGuard(case.train.prior)]
            rows += [_compared(one.name, case, _scores(case, one), plain) for one in guarding]
            if number == 0:
                rows += _without_room(case)
            bar.update()
    return pd.DataFrame(rows)


def _without_room(case: Case) -> list[dict[str, Any]]:
    small = with_int8_tables(case)
    plain, rows = _scores(small), []
    for how in ("clip", "rescale"):
        changed = Case(small.name, case.data, deepcopy(small.model), case.train, case.test)
        reserve_bits(changed.model, "embedding", how=how)
        rows.append(_compared(f"zero-space SECDED, room by {how}", small, _scores(changed), plain))
    return rows


def _scores(case: Case, mitigation: Mitigation | None = None) -> np.ndarray:
    batches = padded_batches(case.test)
    if mitigation is None:
        return score(case.model, batches, len(case.test))
    with mitigation.attach(case.model):
        return score(case.model, batches, len(case.test))


def _compared(name: str, case: Case, scores: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    difference, low, high, _ = auc_difference(case.test.labels, scores, plain)
    value = auc(case.test.labels, scores)
    equal = bool(np.array_equal(scores.view(np.uint32), plain.view(np.uint32)))
    row = {"mitigation": name, "model": case.name, "data": case.data, "auc": value}
    return row | {"difference": difference, "low": low, "high": high, "bit_equal": equal}


CLEAN = 1e-4  # of AUC, that profiled bounds may cost, and that repair may leave
SLOWEST = {"provable": 10.0, "calibrated": 8.0, "bag": 3.0, "clip": 5.0}  # per cent of the 26-table DLRM's time
DETECTED = {"provable": 1.0, "calibrated": 0.999, "bag": 0.999, "int8": 0.999}  # share of significant errors


def verdicts(tables: Mapping[str, pd.DataFrame]) -> Iterator[Verdict]:
    """The verdict on each target.

    Args:
        tables: as `mitigation_cost` returns them.
    """
    yield from _time(tables["mitigation"])
    yield from _detection(tables["detection"])
    for row in tables["mitigation_repair"].itertuples():
        yield at_most(f"repair, {row.error_model}: |AUC - golden|", row.largest_difference, CLEAN)
    yield from _clean(tables["mitigation_clean"])
    yield from screening.verdicts(tables["mitigation_screening"])


def kind(name: str) -> str | None:
    """Which target a mitigation falls under: a key of `SLOWEST`; None for sums and others."""
    if " + " in name:
        return None
    if name.startswith("ABFT Linear"):
        return "calibrated" if "calibrated" in name else "provable"
    if name.startswith("ABFT EmbeddingBag"):
        return "bag"
    return "clip" if name.startswith("clip") else None


def _time(table: pd.DataFrame) -> Iterator[Verdict]:
    """Times of the 26-table DLRM at batch `BATCH`."""
    large = table["model"].isin([LARGE, LARGE + INT8])
    for row in table[large & (table["batch"] == BATCH) & (table["scope"] == "model")].itertuples():
        if (which := kind(row.mitigation)) is not None:
            yield at_most(f"{row.mitigation}: time", row.overhead_percent, SLOWEST[which], " %")


def _detection(table: pd.DataFrame) -> Iterator[Verdict]:
    """Shares of significant errors that are detected, and false alarms."""
    for (name, model), group in table[table["injections"] > 0].groupby(["mitigation", "model"], sort=False):
        which, bits = kind(name), ""
        if which == "bag":
            int8 = model.endswith(INT8)
            which, bits = ("int8", ", int8 rows") if int8 else ("bag", ", sign and exponent")
            group = group if int8 else group[group["bit"] >= 23]
        n, found = int(group["significant"].sum()), int(group["significant_detected"].sum())
        low = wilson(found, n)[1] if n else float("nan")
        note = f"{found:,} of {n:,} significant, 95 % from {low:.2%}"
        yield at_least(
            f"{name}{bits}: detected", 100 * found / n if n else float("nan"), 100 * DETECTED[which], " %", note
        )
    for name, group in table.drop_duplicates(["mitigation", "model"]).groupby("mitigation", sort=False):
        note = f"batches in {group['clean_rows'].sum():,} rows"
        yield at_most(f"{name}: false alarms", int(group["false_alarms"].sum()), 0, note=note)


def _clean(table: pd.DataFrame) -> Iterator[Verdict]:
    """Clean AUC of profiled bounds; the other mitigations leave all scores as they are. Fixed bounds have no target."""
    for name, group in table.groupby("mitigation", sort=False):
        if name.startswith("clip profiled"):
            worst = group.loc[group["difference"].abs().idxmax()]
            note = f"{worst['model']}, {worst['data']}: {worst['difference']:+.2g} [{worst['low']:.2g}, {worst['high']:.2g}]"
            yield at_most(f"{name}: clean |AUC - golden|", abs(worst["difference"]), CLEAN, note=note)
        elif not name.startswith(("clip", "zero-space")):
            yield at_least(f"{name}: models with bit-equal scores", int(group["bit_equal"].sum()), len(group))


def describe(tables: Mapping[str, pd.DataFrame]) -> str:
    """The tables as text, and the verdict on each target."""
    sections, keys = [about("CPU time, one thread", generated_remark())], ["model", "mitigation"]
    for scope in ("model", "operator"):
        timed = tables["mitigation"][tables["mitigation"]["scope"] == scope]
        if len(timed):
            wide = timed.pivot_table(index=keys, columns="batch", values="overhead_percent", sort=False).sort_index(
                axis=1
            )
            wide["stored bits"] = timed.groupby(keys)["stored_bits_percent"].first()
            title = f"Per cent of the {scope}'s time, by batch; stored bits in per cent of the parameters'"
            sections.append(f"{title}\n{text(wide, '{:,.2f}')}")
    storage = tables["mitigation_storage"].set_index(keys)
    sections.append(
        f"In memory: no time at inference; CPU time of one pass over all words (ms)\n{text(storage, '{:,.2f}')}"
    )
    screened = tables["mitigation_screening"].set_index(keys)
    sections.append(f"Screening of an error map at {screening.RATE:g}, CPU time (ms)\n{text(screened, '{:,.2f}')}")
    repaired = tables["mitigation_repair"].set_index("error_model").drop(columns=["mitigation"])
    sections.append(f"Repair, AUC\n{text(repaired, '{:.6f}')}")
    clean = tables["mitigation_clean"].set_index(keys)[["data", "auc", "difference", "low", "high"]]
    sections.append(f"Clean AUC\n{text(clean, '{:+.2g}')}")
    return "\n\n".join([*sections, f"Every batch checked; times at batch {BATCH}\n{verdict_text(verdicts(tables))}"])


def run() -> Result:
    """The benchmark `mitigation`."""
    tables = mitigation_cost()
    return Result(tables, describe(tables))


def mitigation_cost(
    make_large: Callable[[], Case] = large,
    make_trained: Callable[[], Sequence[Case]] = trained,
    batches: Sequence[int] = BATCHES,
    turns: int = 5,
    injections: int = 10_000,
    int8_injections: int = 2_000,
    test_rows: int = 20_000,
    generated_rows: int = 10_000_000,
    trials: int = 300,
    *,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, pd.DataFrame]:
    """All tables of the benchmark.

    Args:
        make_large: the 26-table DLRM.
        make_trained: trained models; the first is a DLRM, the one that errors are put into.
        batches: sizes at which time is measured.
        turns: of each measurement.
        injections: single errors in the linear layers, and as many in the tables, of the first trained model.
        int8_injections: the same in its tables quantized to int8.
        test_rows: on which errors and repair are scored; clean rows and clean AUC are of all test rows.
        generated_rows: clean rows for the 26-table DLRM.
        trials: error maps of each error model that are repaired.
        seed: of errors.
        progress: progress bars.

    Returns:
        `mitigation` (`COLUMNS`), `detection`, `mitigation_repair`, `mitigation_clean`, `mitigation_storage`,
        `mitigation_screening`.
    """
    big, fitted = make_large(), list(make_trained())
    first = fitted[0]
    timed = [big, with_int8_tables(big), *(case for case in fitted if case.data == first.data)]
    peers = peer_cost([big, first], batches, turns)
    return {
        "mitigation": pd.concat([time_cost(timed, batches, turns, progress=progress), peers], ignore_index=True),
        "detection": detected(big, fitted, injections, int8_injections, test_rows, generated_rows, seed, progress),
        "mitigation_repair": repair(first, test_rows, trials, seed=seed, progress=progress),
        "mitigation_clean": clean_auc(fitted, progress=progress),
        "mitigation_storage": memory_cost([first, big]),
        "mitigation_screening": screening.screening_cost([case for case in fitted if case.data == first.data]),
    }
