"""Single errors that checksums detect, false alarms, and effects to compare with arXiv:2103.00130 (notebook 07)."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation import Evaluator, ReachWarning
from drsrobust.extend import evaluating, progress_bar
from drsrobust.injection import AddressSpace, ErrorMap, SingleBit, resolve
from drsrobust.mitigation import Composed, Mitigation
from drsrobust.models import model_name
from drsrobust.statistics import summarise, wilson
from drsrobust_study.findings import EXACT, exact_share
from drsrobust_study.mitigations import Case, bag_checks, layer_checks
from drsrobust_study.rounding import beyond_rounding

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

COLUMNS = ("mitigation", "model", "component", "bit", "injections", "significant", "significant_detected", "detected")
COLUMNS += ("false_alarms", "clean_rows")
MOVED = {"provable": 1e-2, "calibrated": 1e-3}  # of a logit, by an error that a linear layer's check should detect
BATCH = 2048  # clean rows


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
    return by_bit(errors, errors["moved"] > limit, alarms_on_test_rows(case, mitigations))


def in_tables(case: Case, injections: int, *, rows: int, seed: int = 0, progress: bool = True) -> pd.DataFrame:
    """Single errors in embedding tables. An error is significant if it changes a pooled value beyond rounding
    (`beyond_rounding`); in int8 rows, which are checked by residues, if its row is read. Arguments and columns as of
    `in_layers`."""
    mitigations = bag_checks(case)[:1]
    errors = _errors(case, mitigations, injections, "embedding", rows, seed, progress)
    significant = errors["rows_reached"] > 0
    if not case.int8:
        significant = beyond_rounding(case.model, _scored(case, rows), errors)
    return by_bit(errors, significant, alarms_on_test_rows(case, mitigations))


def _errors(
    case: Case, mitigations: Sequence[Mitigation], injections: int, target: str, rows: int, seed: int, progress: bool
) -> pd.DataFrame:
    options = {"targets": (target,), "seed": seed, "progress": progress}
    return single_errors(case.model, _scored(case, rows), mitigations, injections, **options).assign(model=case.name)


def _scored(case: Case, rows: int) -> Split:
    return case.test.head(min(rows, len(case.test)))


def alarms_on_test_rows(case: Case, mitigations: Sequence[Mitigation]) -> dict[str, tuple[int, int]]:
    """`false_alarms` on a model's test rows."""
    return false_alarms(case.model, mitigations, case.test.batches(BATCH))


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
    """Counts by component and bit.

    Args:
        errors: as `single_errors` returns them.
        significant: which of its rows should be detected, bool.
        alarms: by the mitigation's name, as `false_alarms` returns them.

    Returns:
        the columns `COLUMNS`, mitigations in their order.
    """
    counted = {"injections": 1, "significant": significant, "significant_detected": significant & errors["detected"]}
    keys, counts = list(COLUMNS[:4]), list(COLUMNS[4:8])
    order = {name: number for number, name in enumerate(errors["mitigation"].unique())}
    table = errors.assign(**counted).groupby(keys)[counts].sum().astype(int).reset_index()
    table = table.sort_values("mitigation", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    table[list(COLUMNS[8:])] = [alarms[name] for name in table["mitigation"]]
    return table


def false_alarms(
    model: nn.Module, mitigations: Sequence[Mitigation], batches: Iterable["Batch"]
) -> dict[str, tuple[int, int]]:
    """By the mitigation's name, the number of batches with a detection, and the number of rows.

    Args:
        model: without errors.
        mitigations: that detect; all are attached at a time.
        batches: as `padded_batches(split)`, or for millions of rows a generator.
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


def effects(all_detections: pd.DataFrame, runs: pd.DataFrame, trials: pd.DataFrame, batch: int) -> pd.DataFrame:
    """What checksums find, how often they alarm without errors, what they cost, and what is lost in spite of repair.

    Args:
        all_detections: `in_layers` and `in_tables`, one below the other.
        runs: `time_cost`, of operators and models.
        trials: of a campaign over rates with one mitigation that repairs.
        batch: rows of a clean batch.

    Returns:
        `effect` in words, `part` (`layers`, `tables`, `repair`), `reading`, `mitigation`, `value`, `low`, `high`, `n` and
        `interval`. `noticed`: the share of `n` significant errors (in float tables: of sign and exponent) that is detected;
        `alarms`: of `n` clean batches; `time`: per cent of the operator's time, median and range of `n` timings; `loss`: the
        mean AUC lost with repair at the rate where it is largest, of `n` trials.
    """
    rows: list[tuple[Any, ...]] = []
    timings = runs[runs["scope"] == "operator"].groupby("mitigation")["overhead_percent"]
    for name, group in all_detections[all_detections["injections"] > 0].groupby("mitigation", sort=False):
        place = ("layers" if name.startswith("ABFT Linear") else "tables", name)
        alarms, clean = (int(number) for number in group[["false_alarms", "clean_rows"]].iloc[0])
        if place[0] == "tables" and (group["bit"] >= 8).any():  # of int8 rows all bits
            group = group[group["bit"] >= 23]
        n, batches = int(group["significant"].sum()), -(-clean // batch)
        shares = wilson(int(group["significant_detected"].sum()), n) if n else (np.nan,) * 3
        time = timings.get_group(name) if name in timings.groups else pd.Series(dtype=float)
        ends = time.median(), time.min(), time.max()
        rows += [
            ("significant errors detected", "noticed", *place, *shares, n, "Wilson"),
            ("clean batches with an alarm", "alarms", *place, *exact_share(alarms, batches).values(), batches, EXACT),
            ("extra time (%)", "time", *place, *ends, len(time), "range over timings"),
        ]
    repaired = summarise(trials)
    lost = repaired["auc_drop"].fillna(repaired["auc_golden"])  # all, where the model raised in every trial
    worst = repaired.loc[lost.idxmax()]
    ends = worst[["auc_drop", "auc_drop_low", "auc_drop_high"]]
    place = ("repair", worst["mitigation"])
    rows.append((f"AUC lost with repair at {worst['ber']:g}", "loss", *place, *ends, int(worst["n"]), ""))
    columns = ["effect", "reading", "part", "mitigation", "value", "low", "high", "n", "interval"]
    return pd.DataFrame(rows, columns=columns)
