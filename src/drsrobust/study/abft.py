"""Which single errors a mitigation notices, and whether it is ever alarmed without one.

Claim C6: what checksums find, at what price, against arXiv:2103.00130.

What checksums notice of single errors, and whether they are quiet without any.

Which errors in rows of embedding tables change a pooled value beyond what rounding may."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from drsrobust._environment import progress_bar
from drsrobust.data import Split
from drsrobust.data.synthetic import planted
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorMap, SingleBit, resolve
from drsrobust.introspection.tensors import named_modules
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation import ABFTEmbeddingBag, ABFTLinear, Composed, Mitigation
from drsrobust.mitigation.abft.base import ABFT, run
from drsrobust.mitigation.abft.embedding_checks import BagCheck
from drsrobust.mitigation.abft.rounding_bounds import unit_roundoff
from drsrobust.models import model_name, padded_batches
from drsrobust.statistics.intervals import wilson
from drsrobust.study.mitigations import LARGE, Case, bag_checks, checks, with_int8_tables

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

COLUMNS = ("mitigation", "model", "component", "bit", "injections", "significant", "significant_detected", "detected")
COLUMNS += ("false_alarms", "clean_rows")


def detection(
    model: nn.Module,
    split: Split,
    mitigations: Sequence[Mitigation],
    injections: int = 10_000,
    *,
    targets: Sequence[str] = ("mlp",),
    threshold: float = 1e-2,
    clean: Iterable["Batch"] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """What is found of single errors, one after the other, by component and bit.

    Args:
        model: without errors.
        split: the rows that errors are judged on.
        mitigations: each meets the same errors.
        injections: how many errors, as in `single_errors`.
        targets: what they hit.
        threshold: an error is significant if it moves any row's logit by more than this, or makes one that is not finite. (Not
            a relative change: that has no bound for logits near 0.)
        clean: batches that mitigations are to keep quiet at; None: those of the split.
        seed: of the errors.
        progress: a progress bar.

    Returns:
        a row per mitigation, component and bit, with the columns `COLUMNS`. `false_alarms` counts batches of the clean rows, of
        all components together.
    """
    found = single_errors(model, split, mitigations, injections, targets=targets, seed=seed, progress=progress)
    alarms = false_alarms(model, mitigations, padded_batches(split) if clean is None else clean)
    return by_bit(found, found["moved"] > threshold, alarms)


def single_errors(
    model: nn.Module,
    split: Split,
    mitigations: Sequence[Mitigation],
    injections: int = 10_000,
    *,
    targets: Sequence[str] = ("mlp",),
    seed: int = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Errors of one bit each. Tensors and bits take turns, so that small layers have as many as large ones; the word is random.

    Args:
        as in `detection`.

    Returns:
        a row per mitigation and error: `mitigation`, `model`, `component`, `tensor`, `word`, `bit`, `change` (of the word's
        value; NaN of quantized rows), `rows_reached`, `moved` (the largest change of a logit without mitigation; infinite where
        one is not finite), `detected`, `repaired` (None: nobody tried), `moved_left` (as `moved`, with the mitigation, against
        its own clean scores).
    """
    evaluator, name = Evaluator(model, split), model_name(model)
    maps = list(_drawn(model, injections, targets, seed))
    plain = []
    with progress_bar(len(maps) * (1 + len(mitigations)), "single errors", progress=progress) as bar:
        for error_map in maps:
            with error_map.applied(model):
                result = evaluator.rerun(error_map)
            plain.append(
                _about(error_map, model) | {"rows_reached": result.rows_reached, "moved": _moved(evaluator, result)}
            )
            bar.update()
        rows = []
        for group in _in_one_pass(mitigations):
            with evaluator.under(Composed(group)) as guarded, warnings.catch_warnings():
                # By a check that reads rows itself; it costs time alone.
                warnings.filterwarnings("ignore", ".* are taken to reach every sample")
                for number, (error_map, about) in enumerate(zip(maps, plain, strict=True)):
                    rows += _verdicts(guarded, group, error_map, {"model": name} | about, seed + number)
                    bar.update(len(group))
    return pd.DataFrame(rows)


def _in_one_pass(mitigations: Sequence[Mitigation]) -> list[list[Mitigation]]:
    """Those that only look on see the same numbers together as alone; each other one has a pass of its own."""
    looking = [one for one in mitigations if isinstance(one, ABFT) and one.action == "report" and not one.ordered]
    return ([looking] if looking else []) + [[one] for one in mitigations if one not in looking]


def _verdicts(
    guarded: Evaluator, group: Sequence[Mitigation], error_map: ErrorMap, about: dict[str, Any], seed: int
) -> list[dict[str, Any]]:
    """What each mitigation of a group says of one error."""
    model, left = guarded.model, error_map
    for mitigation in group:
        left = mitigation.screen(left, model, seed=seed)
    with left.applied(model), ExitStack() as stack:
        watches = [stack.enter_context(mitigation.attach(model)) for mitigation in group]
        result = guarded.rerun(left) if len(left) else guarded.golden
    rows, moved = [], _moved(guarded, result)
    for mitigation, watch in zip(group, watches, strict=True):
        noticed = any(one.detected for one in (watch, left) if one.detected is not None)
        verdict = {"detected": noticed, "repaired": watch.repaired, "moved_left": moved}
        rows.append({"mitigation": mitigation.name} | about | verdict)
    return rows


def by_bit(found: pd.DataFrame, significant: "pd.Series", alarms: Mapping[str, tuple[int, int]]) -> pd.DataFrame:
    """Counts by component and bit.

    Args:
        found: of `single_errors`.
        significant: which of its rows are errors that should be noticed, bool.
        alarms: by the mitigation's name, what `false_alarms` gives.

    Returns:
        the columns `COLUMNS`.
    """
    table = found.assign(
        injections=1,
        significant=significant.astype(int),
        significant_detected=(significant & found["detected"]).astype(int),
    )
    table = table.groupby(["mitigation", "model", "component", "bit"], sort=False, as_index=False)[
        ["injections", "significant", "significant_detected", "detected"]
    ].sum()
    table["false_alarms"] = [alarms[name][0] for name in table["mitigation"]]
    table["clean_rows"] = [alarms[name][1] for name in table["mitigation"]]
    order = {name: number for number, name in enumerate(found["mitigation"].unique())}
    table = table.sort_values(
        ["mitigation", "model", "component", "bit"],
        key=lambda column: column.map(order) if column.name == "mitigation" else column,
        ignore_index=True,
    )
    return table[list(COLUMNS)]


def false_alarms(
    model: nn.Module, mitigations: Sequence[Mitigation], batches: Iterable["Batch"]
) -> dict[str, tuple[int, int]]:
    """By the mitigation's name, in how many batches something was noticed, and how many rows there were. For millions of rows
    give a generator.

    Args:
        model: without errors.
        mitigations: those that detect; all are on at a time.
        batches: as `padded_batches(split)`, or generated ones.
    """
    alarms, rows = [0] * len(mitigations), 0
    with evaluating(model), Composed(mitigations).attach(model):
        for batch in batches:
            with ExitStack() as stack:
                watches = [stack.enter_context(mitigation.attach(model)) for mitigation in mitigations]
                model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            alarms = [count + bool(watch.detected) for count, watch in zip(alarms, watches, strict=True)]
            rows += len(batch.labels)
    return {mitigation.name: (count, rows) for mitigation, count in zip(mitigations, alarms, strict=True)}


def generated(table_rows: int, rows: int, batch: int = 2048, *, seed: int = 0) -> Iterator["Batch"]:
    """Batches of generated rows for the DLRM with 26 tables (`planted`), made 65,536 rows at a time: millions for a long check
    by `false_alarms`.

    Args:
        table_rows: of all tables together.
        rows: how many; rounded up to whole batches.
        batch: rows of one.
        seed: of the first 65,536 rows; those that follow have the seeds that follow.
    """
    at_once = -(-65_536 // batch) * batch
    for start in range(0, rows, at_once):
        some = -(-min(at_once, rows - start) // batch) * batch
        _, split, _, _ = planted(table_rows, some, 64, seed=seed + start // at_once)
        yield from split.batches(batch)


def _drawn(model: nn.Module, injections: int, targets: Sequence[str], seed: int) -> Iterable[ErrorMap]:
    """Maps of one error each."""
    tensors = {}
    for target in targets:
        tensors |= {tensor.name: tensor for tensor in resolve(model, target).tensors}
    spaces = {name: resolve(model, name) for name in tensors}
    places = [
        (space, bit)
        for bit, (name, space) in product(range(64), spaces.items())
        if bit < tensors[name].format.width and space.only((bit,)).bits
    ]
    for number in range(injections):
        space, bit = places[number % len(places)]
        yield SingleBit(bit).sample(space, seed=seed + number)


def _about(error_map: ErrorMap, model: nn.Module) -> dict[str, Any]:
    """What a map of one error hits. The model is without it."""
    fingerprint = error_map.fingerprint[int(error_map.tensor[0])]
    word, mask = int(error_map.word[0]), int(error_map.mask[0])
    change = np.nan
    if fingerprint.format == "float32":
        before = model.get_parameter(fingerprint.name).detach().view(-1)[word].numpy()
        after = (before.view(np.uint32) ^ np.uint32(mask)).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            change = float(abs(np.float64(after) - np.float64(before)))
        change = change if np.isfinite(change) else np.inf
    return {
        "component": fingerprint.component,
        "tensor": fingerprint.name,
        "word": word,
        "bit": mask.bit_length() - 1,
        "change": change,
    }


def _moved(evaluator: Evaluator, result: Any) -> float:
    """The largest change of a logit, infinite where one is not finite or the model raised."""
    if result.scores is None:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        moved = float(np.abs(result.scores - evaluator.golden.scores).max())
    return moved if np.isfinite(moved) else np.inf


# Of arXiv:2103.00130, on int8 operators: share of significant errors found, share of clean batches that raise an alarm, per
# cent of the operator's time.
PUBLISHED = {"layers": (0.95, None, 20.0), "tables": (0.99, 0.10, 26.0)}


def noticed_shares(found: "pd.DataFrame") -> "pd.DataFrame":
    """Detection by bit with intervals: the share of all errors that was noticed (`noticed`), and of those that are significant
    (`significant_noticed`, missing where there were none), each with `_low` and `_high` (95 %, Wilson).

    Args:
        found: columns of `detection.COLUMNS`; rows without injections are left out.
    """
    shares = found[found["injections"] > 0].reset_index(drop=True)
    parts = {"noticed": ("detected", "injections"), "significant_noticed": ("significant_detected", "significant")}
    for name, (seen, of) in parts.items():
        shares[[name, f"{name}_low", f"{name}_high"]] = _intervals(shares[seen], shares[of])
    return shares


def alarm_shares(found: "pd.DataFrame", batch: int) -> "pd.DataFrame":
    """False alarms with intervals, one row per mitigation and model: `false_alarms` in so many `batches` of `clean_rows`, their
    `share` with `low` and `high` (95 %, Wilson).

    Args:
        found: columns of `detection.COLUMNS`.
        batch: rows of a clean batch.
    """
    columns = ["mitigation", "model", "false_alarms", "clean_rows"]
    shares = found.drop_duplicates(columns)[columns].reset_index(drop=True)
    shares["batches"] = -(-shares["clean_rows"] // batch)
    shares[["share", "low", "high"]] = _intervals(shares["false_alarms"], shares["batches"])
    return shares


def _intervals(count: "pd.Series", n: "pd.Series") -> np.ndarray:
    ends = [wilson(int(k), int(of)) if of else (np.nan,) * 3 for k, of in zip(count, n, strict=True)]
    return np.array(ends).reshape(-1, 3)


def claims(found: "pd.DataFrame", runs: "pd.DataFrame", batch: int) -> "pd.DataFrame":
    """One row per check and model with errors: `part` (`layers` or `tables`), `mitigation`, `model`, `n` significant errors,
    the share that is `noticed` with `low` and `high` (95 %, Wilson), `alarms` (batches) in `clean_rows`, `alarms_high` (the
    upper end of their share of batches), `time` (per cent of the operator's time; missing where it was not measured),
    `verdict`, and `detail`: the alarms and the time in words.

    `reproduced`: the interval of what is noticed lies over the published share, that of alarms under the published one (none
    at all, where none is published), and the time is under the published one. `partly`: the shares themselves hold, but not
    surely, or not at that price. `not`: else. Two verdicts say why there is no test: there were no significant errors; or the
    shares hold, and the time was not measured.

    Args:
        found: `in_layers` and `in_tables`, one below the other.
        runs: `overhead` of operators, with `mitigation`.
        batch: rows of a clean batch.
    """
    import pandas as pd

    rows = []
    time = runs[runs["scope"] == "operator"].groupby("mitigation")["overhead_percent"].median()
    for (name, model), group in found[found["injections"] > 0].groupby(["mitigation", "model"], sort=False):
        alarms, clean = (int(number) for number in group[["false_alarms", "clean_rows"]].iloc[0])
        part = "layers" if name.startswith("ABFT Linear") else "tables"
        where = ""
        if part == "tables" and (group["bit"] >= 8).any():  # of int8 rows all bits
            share = f"{int(group['significant_detected'].sum()):,} of {int(group['significant'].sum()):,} over all bits"
            group, where = group[group["bit"] >= 23], f" of sign and exponent ({share})"
        n = int(group["significant"].sum())
        noticed, low, high = wilson(int(group["significant_detected"].sum()), n) if n else (float("nan"),) * 3
        alarms_high = wilson(alarms, -(-clean // batch))[2]
        took = float(time.get(name, float("nan")))
        least, most, price = PUBLISHED[part]
        quiet = alarms == 0 if most is None else alarms / -(-clean // batch) < most
        sure = low > least and quiet and (most is None or alarms_high < most)
        unmeasured = "the operator's time was not measured"
        timed = f"{took:.0f} % of the operator's time" if took == took else unmeasured
        word = "not" if not (noticed > least and quiet) else "reproduced" if sure and took < price else "partly"
        if not n and quiet:
            word = "no significant errors to notice"
        elif word == "partly" and took != took:
            word = unmeasured
        detail = f"{n:,} significant errors{where}, {alarms} alarms in {clean:,} rows, {timed}"
        rows.append((part, name, model, n, noticed, low, high, alarms, clean, alarms_high, took, word, detail))
    columns = [
        "part",
        "mitigation",
        "model",
        "n",
        "noticed",
        "low",
        "high",
        "alarms",
        "clean_rows",
        "alarms_high",
        "time",
    ]
    return pd.DataFrame(rows, columns=[*columns, "verdict", "detail"])


MOVED = {"provable": 1e-2, "calibrated": 1e-3}  # of a logit, by an error that a linear layer's check should notice
BATCH = 2048  # clean rows


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
    """Single errors in the first fitted model (`in_layers`, `in_tables`), and clean rows of all models.

    Args:
        as in `mitigation_cost`.

    Returns:
        the columns of `detection.COLUMNS`; a model without injections has one row for each check, of no component and bit -1.
    """
    first, options = fitted[0], {"rows": test_rows, "seed": seed, "progress": progress}
    parts = [
        in_layers(first, injections, **options),
        in_tables(first, injections, **options),
        in_tables(with_int8_tables(first), int8_injections, **options),
    ]
    parts += [_alone(case, _quiet(case, checks(case))) for case in fitted[1:]]
    with progress_bar(-(-generated_rows // BATCH), "generated rows", progress=progress) as bar:
        rows = _counted(big, generated_rows, 1 + seed, bar)  # the seed before made the rows it learnt from
        parts.append(_alone(big, false_alarms(big.model, checks(big), rows)))
    return pd.concat(parts, ignore_index=True)


def in_layers(case: Case, injections: int, *, rows: int, seed: int = 0, progress: bool = True) -> pd.DataFrame:
    """Errors in linear layers, by both thresholds. Significant is one that moves a logit of the rows by more than `MOVED`, or
    makes it not finite.

    Args:
        case: a model with linear layers.
        injections: single errors; bits and tensors take turns.
        rows: of the test rows, on which errors are judged; all of them are to raise no alarm.
        seed: of the errors.
        progress: a progress bar.

    Returns:
        the columns of `detection.COLUMNS`.
    """
    found = [one for one in checks(case) if isinstance(one, ABFTLinear)]
    errors = _errors(case, found, injections, "mlp", rows, seed, progress)
    limit = errors["mitigation"].map({one.name: MOVED[one.mode] for one in found})
    return by_bit(errors, errors["moved"] > limit, _quiet(case, found))


def in_tables(case: Case, injections: int, *, rows: int, seed: int = 0, progress: bool = True) -> pd.DataFrame:
    """Errors in embedding tables. Significant is one that changes a pooled value of the rows beyond rounding
    (`beyond_rounding`); in int8 rows, which are checked by residues, any in a row of a table that is read.

    Args, returns:
        as `in_layers`.
    """
    found = bag_checks(case)[:1]
    errors = _errors(case, found, injections, "embedding", rows, seed, progress)
    significant = errors["rows_reached"] > 0
    if not case.int8:
        significant = beyond_rounding(case.model, _judged(case, rows), errors)
    return by_bit(errors, significant, _quiet(case, found))


def _errors(
    case: Case, found: Sequence[Mitigation], injections: int, target: str, rows: int, seed: int, progress: bool
) -> pd.DataFrame:
    options = {"targets": (target,), "seed": seed, "progress": progress}
    return single_errors(case.model, _judged(case, rows), found, injections, **options).assign(model=case.name)


def _judged(case: Case, rows: int) -> Split:
    return case.test.head(min(rows, len(case.test)))


def _quiet(case: Case, mitigations: Sequence[Mitigation]) -> dict[str, tuple[int, int]]:
    """False alarms on all test rows."""
    return false_alarms(case.model, mitigations, case.test.batches(BATCH))


def _counted(big: Case, rows: int, seed: int, bar) -> Iterator["Batch"]:
    table_rows = sum(tensor.shape[0] for tensor in resolve(big.model, "embedding").tensors)
    for batch in generated(table_rows, rows, BATCH, seed=seed):
        yield batch
        bar.update()


def _alone(case: Case, alarms: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Rows of clean rows alone."""
    nothing = dict.fromkeys(("injections", "significant", "significant_detected", "detected"), 0)
    name = case.name if case.name == LARGE else f"{case.name} on {case.data}"
    about = {"model": name, "component": "", "bit": -1} | nothing
    return pd.DataFrame(
        {"mitigation": one} | about | {"false_alarms": count, "clean_rows": rows}
        for one, (count, rows) in alarms.items()
    )


def beyond_rounding(model: nn.Module, split: Split, found: pd.DataFrame) -> pd.Series:
    """Of each error in a table whether it changes a pooled value of some row of the split by more than the sum of that bag's
    values may be off by rounding: (d + 3 (L + 2) + 3) u sum |T|, with L rows of d values and u the unit roundoff (N. J. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2; each row is pooled once, with weight 1 or as a mean).

    Args:
        model: without errors; tables of floats.
        split: the rows that errors are judged on.
        found: of `single_errors`, errors in tables alone.

    Returns:
        bool, with the index of `found`.
    """
    least = _least(model, split)
    width = {name: model.get_parameter(name).shape[1] for name in found["tensor"].unique()}
    row = found["word"] // found["tensor"].map(width)
    bound = np.array([least[name][number] for name, number in zip(found["tensor"], row, strict=True)])
    return pd.Series(found["change"].to_numpy() > bound, found.index)


def _least(model: nn.Module, split: Split) -> dict[str, np.ndarray]:
    """By table, for each of its rows the smallest rounding bound of a bag that reads it; infinite where none does."""
    checks, modules = ABFTEmbeddingBag.fit(model).checks, dict(named_modules(model))
    bounds, handles = {}, []
    try:
        for name, check in checks.items():
            tables = list(check.memory(modules[name]).values())
            bounds[name] = torch.full((sum(len(table) for table in tables),), torch.inf, dtype=torch.float64)
            looks = _noting(check, tables, bounds[name])
            handles.append(modules[name].register_forward_pre_hook(looks, with_kwargs=True))
        for _ in run(model, split):
            pass
    finally:
        for handle in handles:
            handle.remove()
    found: dict[str, np.ndarray] = {}
    for name, check in checks.items():
        parts = bounds[name].split([table.rows for table in check.tables])
        found |= {table.name: part.numpy() for table, part in zip(check.tables, parts, strict=True)}
    return found


def _noting(check: BagCheck, tables: list[torch.Tensor], bounds: torch.Tensor) -> Callable[..., None]:
    """A hook that lowers the bounds of the rows that a call reads."""
    magnitudes = torch.cat([table.detach().double().abs().sum(1) for table in tables])
    dims = torch.tensor(check.dims, dtype=torch.float64)
    u = unit_roundoff(tables[0].dtype)

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        lookup = check.lookup(module, args, kwargs)
        lengths = torch.ones(lookup.bags, dtype=torch.int64) if lookup.lengths is None else lookup.lengths.long()
        bag, ids = torch.arange(lookup.bags).repeat_interleave(lengths), lookup.ids.long()
        pooled = torch.zeros(lookup.bags, dtype=torch.float64).index_add_(0, bag, magnitudes[ids])
        terms = dims.repeat_interleave(lookup.bags // len(dims)) + 3 * (lengths + 2) + 3
        bounds.scatter_reduce_(0, ids, (terms * u * pooled)[bag], "amin")

    return hook
