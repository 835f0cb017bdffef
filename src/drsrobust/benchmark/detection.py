"""Which single errors a mitigation notices, and whether it is ever alarmed without one."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from drsrobust._progress import progress
from drsrobust.benchmark.planted import planted
from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorMap, SingleBit, resolve
from drsrobust.mitigation import Composed, Mitigation
from drsrobust.mitigation.abft import ABFT
from drsrobust.models import evaluating, model_name, padded_batches

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
    show: bool = True,
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
        show: a progress bar.

    Returns:
        a row per mitigation, component and bit, with the columns `COLUMNS`. `false_alarms` counts batches of the clean rows, of
        all components together.
    """
    found = single_errors(model, split, mitigations, injections, targets=targets, seed=seed, show=show)
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
    show: bool = True,
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
    judge, name = Evaluator(model, split), model_name(model)
    maps = list(_drawn(model, injections, targets, seed))
    plain = []
    with progress(len(maps) * (1 + len(mitigations)), "single errors", show=show) as bar:
        for error_map in maps:
            with error_map.applied(model):
                result = judge.rerun(error_map)
            plain.append(
                _about(error_map, model) | {"rows_reached": result.rows_reached, "moved": _moved(judge, result)}
            )
            bar.update()
        rows = []
        for group in _in_one_pass(mitigations):
            with judge.under(Composed(group)) as guarded, warnings.catch_warnings():
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


def _moved(judge: Evaluator, result: Any) -> float:
    """The largest change of a logit, infinite where one is not finite or the model raised."""
    if result.scores is None:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        moved = float(np.abs(result.scores - judge.golden.scores).max())
    return moved if np.isfinite(moved) else np.inf
