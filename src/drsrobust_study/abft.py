"""Single errors that checksums detect, false alarms, and claim C6 against arXiv:2103.00130 (notebook 07)."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from drsrobust._progress import progress_bar
from drsrobust.data import Split
from drsrobust.data.synthetic import planted
from drsrobust.evaluation import Evaluator, ReachWarning
from drsrobust.injection import AddressSpace, ErrorMap, SingleBit, resolve
from drsrobust.introspection.wrappers import evaluating
from drsrobust.mitigation import Composed, Mitigation
from drsrobust.models import model_name
from drsrobust.statistics.columns import NONE
from drsrobust.statistics.intervals import wilson
from drsrobust.statistics.summary import summarise
from drsrobust_study.findings import EXACT, exact_share
from drsrobust_study.mitigations import LARGE, Case, bag_checks, checks, layer_checks, with_int8_tables
from drsrobust_study.rounding import beyond_rounding
from drsrobust_study.thirds import THIRD, by_thirds

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

COLUMNS = (
    "mitigation",
    "model",
    "component",
    "bit",
    "third",
    "injections",
    "significant",
    "significant_detected",
    "detected",
)
COLUMNS += ("false_alarms", "clean_rows")
MOVED = {"provable": 1e-2, "calibrated": 1e-3}  # of a logit, by an error that a linear layer's check should detect
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
        the columns `COLUMNS`; a model without injections has one row for each check, with no component and bit -1.
    """
    first, options = fitted[0], {"rows": test_rows, "seed": seed, "progress": progress}
    parts = [
        in_layers(first, injections, **options),
        in_tables(first, injections, **options),
        in_tables(with_int8_tables(first), int8_injections, **options),
    ]
    parts += [_alarms_alone(case, _test_alarms(case, checks(case))) for case in fitted[1:]]
    table_rows = sum(tensor.shape[0] for tensor in resolve(big.model, "embedding").tensors)
    with progress_bar(-(-generated_rows // BATCH), "generated rows", progress=progress) as bar:

        def counted() -> Iterator["Batch"]:
            for batch in generated(
                table_rows, generated_rows, BATCH, seed=1 + seed
            ):  # seed made the rows it learnt from
                yield batch
                bar.update()

        parts.append(_alarms_alone(big, false_alarms(big.model, checks(big), counted())))
    return pd.concat(parts, ignore_index=True)


def in_layers(case: Case, injections: int, *, rows: int, seed: int = 0, progress: bool = True) -> pd.DataFrame:
    """Single errors in linear layers, by both thresholds. An error is significant if it moves a logit by more than `MOVED`, or
    makes one not finite.

    Args:
        case: a model with linear layers.
        injections: single errors; bits and tensors take turns.
        rows: of the test rows, on which errors are scored; all test rows count for false alarms.
        seed: of the errors.
        progress: shows a progress bar.

    Returns:
        the columns `COLUMNS`.
    """
    mitigations = layer_checks(case)
    errors = _errors(case, mitigations, injections, "mlp", rows, seed, progress)
    limit = errors["mitigation"].map({check.name: MOVED[check.mode] for check in mitigations})
    return by_bit(errors, errors["moved"] > limit, _test_alarms(case, mitigations))


def in_tables(case: Case, injections: int, *, rows: int, seed: int = 0, progress: bool = True) -> pd.DataFrame:
    """Single errors in embedding tables. An error is significant if it changes a pooled value beyond rounding
    (`beyond_rounding`); in int8 rows, which are checked by residues, if its row is read. Arguments and columns as of
    `in_layers`."""
    mitigations = bag_checks(case)[:1]
    errors = _errors(case, mitigations, injections, "embedding", rows, seed, progress)
    significant = errors["rows_reached"] > 0
    if not case.int8:
        significant = beyond_rounding(case.model, _scored(case, rows), errors)
    return by_bit(errors, significant, _test_alarms(case, mitigations))


def _errors(
    case: Case, mitigations: Sequence[Mitigation], injections: int, target: str, rows: int, seed: int, progress: bool
) -> pd.DataFrame:
    options = {"targets": (target,), "seed": seed, "progress": progress}
    return single_errors(case.model, _scored(case, rows), mitigations, injections, **options).assign(model=case.name)


def _scored(case: Case, rows: int) -> Split:
    return case.test.head(min(rows, len(case.test)))


def _test_alarms(case: Case, mitigations: Sequence[Mitigation]) -> dict[str, tuple[int, int]]:
    return false_alarms(case.model, mitigations, case.test.batches(BATCH))


def _alarms_alone(case: Case, alarms: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Rows of `COLUMNS` without injections."""
    nothing = dict.fromkeys(("injections", "significant", "significant_detected", "detected"), 0)
    name = case.name if case.name == LARGE else f"{case.name} on {case.data}"
    return pd.DataFrame(
        {"mitigation": check, "model": name, "component": "", "bit": -1, THIRD: 1}
        | nothing
        | {"false_alarms": count, "clean_rows": rows}
        for check, (count, rows) in alarms.items()
    )


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
        model: without errors.
        split: the rows on which errors are scored.
        mitigations: each meets the same errors.
        injections: how many errors.
        targets: where they fall.
        seed: of the errors.
        progress: shows a progress bar.

    Returns:
        a row per mitigation and error: `mitigation`, `model`, `component`, `tensor`, `word`, `bit`, `change` (of the word's
        value; NaN of quantized rows), `rows_reached`, `moved` (the largest change of a logit without mitigation; infinite where
        one is not finite), `detected`, `repaired` (None: no repair was tried), `moved_left` (as `moved`, with the mitigation,
        against its own clean scores).
    """
    evaluator, name, space = Evaluator(model, split), model_name(model), resolve(model, list(targets))
    maps = list(_single_maps(model, injections, targets, seed))
    plain, rows = [], []
    with progress_bar(len(maps) * (1 + len(mitigations)), "single errors", progress=progress) as bar:
        for error_map in maps:
            with error_map.applied(model):
                result = evaluator.rerun(error_map)
            effect = {"rows_reached": result.rows_reached, "moved": _moved(evaluator, result)}
            plain.append(_about(error_map, model) | effect)
            bar.update()
        for group in _in_one_pass(mitigations):
            with evaluator.under(Composed(group)) as guarded, warnings.catch_warnings():
                warnings.simplefilter("ignore", ReachWarning)  # the embedding check reads rows itself
                for number, (error_map, labels) in enumerate(zip(maps, plain, strict=True)):
                    rows += _detections(guarded, group, error_map, space, {"model": name} | labels, seed + number)
                    bar.update(len(group))
    return pd.DataFrame(rows)


def _single_maps(model: nn.Module, injections: int, targets: Sequence[str], seed: int) -> Iterator[ErrorMap]:
    tensors = {}
    for target in targets:
        tensors |= {tensor.name: tensor for tensor in resolve(model, target).tensors}
    spaces = {name: resolve(model, name) for name in tensors}
    turns = [
        (space, bit)
        for bit, (name, space) in product(range(64), spaces.items())
        if bit < tensors[name].format.width and space.only((bit,)).bits
    ]
    for number in range(injections):
        space, bit = turns[number % len(turns)]
        yield SingleBit(bit).sample(space, seed=seed + number)


def _in_one_pass(mitigations: Sequence[Mitigation]) -> list[list[Mitigation]]:
    """Checks that only report detect the same together as alone; each other mitigation has a pass of its own."""
    reporting = [mitigation for mitigation in mitigations if mitigation.reports_only and not mitigation.ordered]
    return ([reporting] if reporting else []) + [[other] for other in mitigations if other not in reporting]


def _detections(
    guarded: Evaluator,
    group: Sequence[Mitigation],
    error_map: ErrorMap,
    space: AddressSpace,
    labels: dict[str, Any],
    seed: int,
) -> list[dict[str, Any]]:
    """A row of `single_errors` for each mitigation of a group."""
    screened = Composed(group).screen(error_map, space, seed=seed)
    model, remaining = guarded.model, screened.remaining
    with remaining.applied(model), ExitStack() as stack:
        detections = [stack.enter_context(mitigation.attach(model)) for mitigation in group]
        result = guarded.rerun(remaining) if len(remaining) else guarded.golden
    rows, moved = [], _moved(guarded, result)
    for mitigation, detection in zip(group, detections, strict=True):
        noticed = any(
            detection_of.detected for detection_of in (detection, screened) if detection_of.detected is not None
        )
        outcome = {"detected": noticed, "repaired": detection.repaired, "moved_left": moved}
        rows.append({"mitigation": mitigation.name} | labels | outcome)
    return rows


def _about(error_map: ErrorMap, model: nn.Module) -> dict[str, Any]:
    """The word that a map of one error hits, in the model without it."""
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
    """The largest change of a logit; infinite where one is not finite or the model raised."""
    if result.scores is None:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        moved = float(np.abs(result.scores - evaluator.golden.scores).max())
    return moved if np.isfinite(moved) else np.inf


def by_bit(errors: pd.DataFrame, significant: pd.Series, alarms: Mapping[str, tuple[int, int]]) -> pd.DataFrame:
    """Counts by component, bit and third of the errors, in their order.

    Args:
        errors: as `single_errors` returns them.
        significant: which of its rows should be detected, bool.
        alarms: by the mitigation's name, as `false_alarms` returns them.

    Returns:
        the columns `COLUMNS`.
    """
    keys, counts = list(COLUMNS[:5]), ["injections", "significant", "significant_detected"]
    number = errors.groupby("mitigation").cumcount()
    size = errors.groupby("mitigation")["mitigation"].transform("size")
    table = errors.assign(
        **{THIRD: 1 + 3 * number // size},
        injections=1,
        significant=significant.astype(int),
        significant_detected=(significant & errors["detected"]).astype(int),
    )
    table = table.groupby(keys, sort=False, as_index=False)[[*counts, "detected"]].sum()
    table["false_alarms"] = [alarms[name][0] for name in table["mitigation"]]
    table["clean_rows"] = [alarms[name][1] for name in table["mitigation"]]
    order = {name: number for number, name in enumerate(errors["mitigation"].unique())}
    table = table.sort_values(
        keys, key=lambda column: column.map(order) if column.name == "mitigation" else column, ignore_index=True
    )
    return table[list(COLUMNS)]


def false_alarms(
    model: nn.Module, mitigations: Sequence[Mitigation], batches: Iterable["Batch"]
) -> dict[str, tuple[int, int]]:
    """By the mitigation's name, the number of batches with a detection, and the number of rows.

    Args:
        model: without errors.
        mitigations: that detect; all are attached at a time.
        batches: as `padded_batches(split)`, or for millions of rows a generator (`generated`).
    """
    alarms, rows = [0] * len(mitigations), 0
    with evaluating(model), Composed(mitigations).attach(model):
        for batch in batches:
            with ExitStack() as stack:
                detections = [stack.enter_context(mitigation.attach(model)) for mitigation in mitigations]
                model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
            alarms = [
                count + bool(each_detection.detected) for count, each_detection in zip(alarms, detections, strict=True)
            ]
            rows += len(batch.labels)
    return {mitigation.name: (count, rows) for mitigation, count in zip(mitigations, alarms, strict=True)}


def generated(table_rows: int, rows: int, batch: int = BATCH, *, seed: int = 0) -> Iterator["Batch"]:
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


def noticed_shares(detections: pd.DataFrame) -> pd.DataFrame:
    """Shares of errors that were detected, by bit, with 95 % Wilson intervals.

    Args:
        detections: columns `COLUMNS`; rows without injections are dropped.

    Returns:
        `detections` with the shares of all errors (`noticed`) and of significant ones (`significant_noticed`, missing where
        there were none), each with `_low` and `_high`.
    """
    counts, keys = ["injections", "significant", "significant_detected", "detected"], list(COLUMNS[:4])
    others = {name: "first" for name in COLUMNS[-2:]}
    shares = detections.groupby(keys, sort=False, as_index=False).agg(dict.fromkeys(counts, "sum") | others)
    shares = shares[shares["injections"] > 0].reset_index(drop=True)
    parts = {"noticed": ("detected", "injections"), "significant_noticed": ("significant_detected", "significant")}
    for name, (count, n) in parts.items():
        shares[[name, f"{name}_low", f"{name}_high"]] = _intervals(shares[count], shares[n])
    return shares


def _intervals(count: pd.Series, n: pd.Series) -> np.ndarray:
    ends = [wilson(int(k), int(of)) if of else (np.nan,) * 3 for k, of in zip(count, n, strict=True)]
    return np.array(ends).reshape(-1, 3)


def claims(all_detections: pd.DataFrame, runs: pd.DataFrame, batch: int) -> pd.DataFrame:
    """Findings on claim C6: checksums detect errors at little cost.

    Args:
        all_detections: `in_layers` and `in_tables`, one below the other.
        runs: `overhead` of operators, with `mitigation`.
        batch: rows of a clean batch.

    Returns:
        three rows per check and model with errors: `part` (`layers` or `tables`), `mitigation`, `model`, `reading`, `value`
        with `low` and `high`, `n`, `interval`, `detail`, `reason` and `third`. `noticed`: the share of `n` significant errors
        that is detected (95 %, Wilson), of all and of each third of them. `alarms`: the share of `n` clean batches with an
        alarm (`exact_share`). `time`: per cent of the operator's time (median and range of `n` timings).
    """
    rows = []
    timings = (
        runs[runs["scope"] == "operator"]
        .groupby("mitigation")["overhead_percent"]
        .agg(["median", "min", "max", "count"])
    )
    for (name, model), group in all_detections[all_detections["injections"] > 0].groupby(
        ["mitigation", "model"], sort=False
    ):
        labels = {"mitigation": name, "model": model}
        rows += [labels | row | {THIRD: 0} for row in _check_findings(name, group, timings, batch)]
        for third, part in group.groupby(THIRD):
            rows.append(labels | _check_findings(name, part, timings, batch)[0] | {THIRD: third})
    return pd.DataFrame(rows)


def repair_claims(trials: pd.DataFrame) -> pd.DataFrame:
    """The finding on claim C6: the AUC that is lost in spite of repair, on all trials and on thirds of them.

    Args:
        trials: of campaigns over rates, with and without one mitigation that repairs.

    Returns:
        rows as of `claims`, with `part` (`repair`) and `reading` (`loss`): the mean AUC loss with repair at the rate where it
        is largest, of `n` trials.
    """

    def find(trials_of: pd.DataFrame) -> pd.DataFrame:
        repaired = summarise(trials_of[trials_of["mitigation"] != NONE])
        lost = repaired["auc_drop"].fillna(repaired["auc_golden"])  # all, where the model raised in every trial
        worst = repaired.loc[lost.idxmax()]
        row = {"part": "repair", "reading": "loss"} | worst[["mitigation", "model"]].to_dict()
        row |= zip(("value", "low", "high"), worst[["auc_drop", "auc_drop_low", "auc_drop_high"]], strict=True)
        reason = "the model raised in every trial" if np.isnan(row["value"]) else ""
        detail = f"at {worst['ber']:g}, {worst['n']} trials"
        return pd.DataFrame([row | {"n": worst["n"], "interval": "", "detail": detail, "reason": reason}])

    return by_thirds(find, trials)


def _check_findings(name: str, group: pd.DataFrame, timings: pd.DataFrame, batch: int) -> list[dict[str, Any]]:
    """The rows of `claims` of one check."""
    alarms, clean = (int(number) for number in group[["false_alarms", "clean_rows"]].iloc[0])
    part, bits = "layers" if name.startswith("ABFT Linear") else "tables", ""
    if part == "tables" and (group["bit"] >= 8).any():  # of int8 rows all bits
        share = f"{int(group['significant_detected'].sum()):,} of {int(group['significant'].sum()):,} over all bits"
        group, bits = group[group["bit"] >= 23], f" of sign and exponent ({share})"
    n, batches = int(group["significant"].sum()), -(-clean // batch)
    shares = wilson(int(group["significant_detected"].sum()), n) if n else (np.nan,) * 3
    rate = exact_share(alarms, batches).values()
    *time, runs = timings.loc[name].tolist() if name in timings.index else (np.nan, np.nan, np.nan, 0)
    untimed, spread = "" if runs else "the operator's time was not measured", "range over timings"
    wordings = {
        "noticed": (shares, n, "", f"{n:,} significant errors{bits}", "" if n else "no significant errors to detect"),
        "alarms": (rate, batches, EXACT, f"{alarms} alarms in {clean:,} rows, {batches:,} batches", ""),
        "time": (time, int(runs), spread, "", untimed),
    }
    return [
        {"part": part, "reading": reading}
        | dict(zip(("value", "low", "high"), numbers, strict=True))
        | {"n": count, "interval": interval, "detail": detail, "reason": reason}
        for reading, (numbers, count, interval, detail, reason) in wordings.items()
    ]
