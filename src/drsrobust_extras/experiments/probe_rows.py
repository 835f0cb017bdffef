"""Probe rows: fixed rows of data that are scored periodically; a score that differs in any bit detects an error (`ProbeRows`).

The cheapest detector: it needs no code in the model and detects errors of the computation too, but no error in a table's row
that no probe row looks up. After LM-Fix (arXiv:2511.02866), which tests a language model by one fixed vector."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.extend import (
    AffectedRows,
    Errors,
    attached_mitigations,
    check_choice,
    check_evaluator,
    check_instance,
    check_seed,
    check_whole,
    gradients,
    label_stream,
    on_device_of,
)
from drsrobust.injection import AddressSpace, ErrorMap, InjectionError, TargetLike, as_target, maps_with, open_in
from drsrobust.introspection import listed
from drsrobust.mitigation import Cost, Detection, Mitigation, Screened
from drsrobust.models import BATCH, PaddedBatches, Scoring, score, state_digest
from drsrobust_extras.protection.scrubbing import arrived_before, arriving_together, checked_times, exposure

if TYPE_CHECKING:
    import pandas as pd

HOW = ("cover", "random")
OUTCOMES = DETECTED, NOT_READ, MASKED, ROUNDED = "detected", "not read", "masked", "rounded away"
_FIRST = 64  # rows of the first batch; each next one is as large as all before it, up to BATCH


@dataclass(frozen=True, eq=False)
class _Golden:
    """The probe rows' batches, their scores without errors, what they read, and the mitigations that were attached."""

    attached: tuple[Mitigation, ...]
    reach: AffectedRows
    ends: np.ndarray
    batches: list[Any]
    scores: list[np.ndarray]


class ProbeRows(Mitigation):
    """Fixed rows that are scored every `period`. If a score differs in any bit from the golden one, all weights are reloaded
    from a golden copy.

    Errors of a map gathered over a time `window`, H; each arrived at a time uniform over it, as of `Scrubbing`. The last probe
    was A ago, A uniform over [0, T], T the period. Errors older than A were in the model together; if the probe rows detect
    them, those younger than A remain, else all. A single error that is detected is thus present for T / 2 on average
    (`exposure`). T = 0: the rows are scored at each use. Reloading works always; golden scores have no errors.

    Bits are compared, so the batches are always the same ones, with the same rows in the same places; golden scores hold for
    one machine and number of threads. A worker process makes its own.

    Cost: n rows are scored in each period, and `Cost` counts neither these nor the golden copy, as of a scrubber: their share
    of the work is n / T rows over the rows that are served in that time. Stored bits: the rows and their scores, 32 each.

    Args:
        evaluator: of the model; its own rows play no part.
        rows: the probe rows, in the order in which they are scored; take them from training or validation rows.
        period: between two probes, in any unit of time.
        window: over which errors gathered, in the same unit.

    Attributes:
        rows: as passed.
        checkpoint: SHA-256 (hex) of the model's state.

    Raises:
        ValueError: no rows, a sharded model, scores that change from run to run, or a time that is out of range.

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens", rows=6000)
        >>> model = dr.load_model("dlrm", data, settings=dr.training.Settings(epochs=1), progress=False)
        >>> probes = ProbeRows.fit(dr.Evaluator(model, data.test), data.train, n=64)
        >>> with dr.inject(model, dr.FixedCount(1, bits=[30]), target="over_mlp", seed=1) as error_map:
        ...     probes.detects(error_map)
        True
        >>> probes.outcome(error_map)
        'detected'
    """

    def __init__(self, evaluator: Evaluator, rows: Split, *, period: float = 0.0, window: float = 1.0) -> None:
        check_evaluator(evaluator)
        if evaluator.ranks is not None:
            raise ValueError("probe rows of a sharded model are not supported; probe each replica of the whole model")
        _check_split("rows", rows)
        if not len(rows):
            raise ValueError("there are no probe rows; give 1 or more")
        self.period, self.window = checked_times(period, window)
        self.rows, self.checkpoint = rows, evaluator.checkpoint
        self._model: nn.Module | None = evaluator.model
        self._scoring: Scoring = evaluator.scoring
        evaluator.probe()
        self._full_runs = evaluator.full_run is not None  # which rows errors affect is unknown then
        self._cached_golden: _Golden | None = None
        self._gradients: dict[str, np.ndarray] | None = None
        when = "at each use" if not self.period else f"every {self.period / self.window:g} of the time"
        self.name = f"{len(rows):,} probe row{'s' * (len(rows) > 1)}, {when}"
        self._stored = sum(scores.size for scores in self._golden().scores) + rows.dense.size
        self._stored += sum(len(ids.values) for ids in rows.sparse.values())

    @classmethod
    def fit(
        cls,
        evaluator: Evaluator,
        split: Split,
        n: int = 64,
        *,
        how: str = "cover",
        weights: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        period: float = 0.0,
        window: float = 1.0,
    ) -> "ProbeRows":
        """Chooses n rows of a split; the first of n are those of any smaller number.

        `cover` takes at each step the row that reads most words of tables that no earlier row reads: of all sets of n rows,
        none reads more than 1 / (1 - 1/e) times as much (G. L. Nemhauser, L. A. Wolsey, M. L. Fisher, Mathematical Programming
        14, 1978). Once all is read that the split reads, it covers it again.

        Args:
            evaluator: of the model.
            split: rows to choose from, as `data.train`.
            n: how many.
            how: `cover`, or `random`: drawn without repetition.
            weights: table's tensor -> weight of each word, in the tensor's shape, or of each row [rows]; tables without one do
                not count. None: every word counts 1.
            seed: of the random rows; of `cover` of the order among rows that read equally much.
            period, window: as of the class.

        Raises:
            TypeError: rows that are no Split, as Batches.
            ValueError: n under 1 or over the split's rows, another `how`, or weights of no table, of another shape, or that are
                no numbers of 0 or more.
        """
        _check_split("split", split)
        check_choice("how", how, HOW)
        check_evaluator(evaluator)
        n = check_whole("n", n, 1, len(split))
        if weights is not None:
            check_instance("weights", weights, Mapping, "a dictionary from tables' tensors to weights")
        order = np.random.default_rng(check_seed(seed)).permutation(len(split))
        if how == "cover":
            order = _cover(*_reads(evaluator, split, weights), n, order)
        return cls(evaluator, split.take(order[:n]), period=period, window=window)

    @property
    def exposure(self) -> float:
        """The expected share of the errors it detects that are still present at the time of use."""
        return exposure(self.period, self.window)

    @property
    def computes(self) -> bool:
        return False

    def settings(self) -> Any:
        known = {"rows": len(self.rows), "fingerprint": self.rows.fingerprint, "model": self.checkpoint}
        return {**known, "period": self.period, "window": self.window}

    def check(self, model: nn.Module) -> None:
        """Raises ValueError for another model than that of the golden scores."""
        if (state := state_digest(model)) != self.checkpoint:
            raise ValueError(
                f"the probe rows have golden scores of a model with state {self.checkpoint[:12]}, and this one has {state[:12]}"
            )

    def cost(self, model: nn.Module) -> Cost:
        return Cost(stored_bits=32 * self._stored)

    def coverage(self, target: TargetLike = "all") -> "pd.DataFrame":
        """The words that scores of the probe rows depend on: of tables the rows that any of them looks up, of other tensors
        all, of tensors that no score depends on none.

        Returns:
            one row per component of the target: `component`, `words`, `read`, `share`.

        Raises:
            ValueError: a target that matches nothing.
        """
        import pandas as pd

        reach, counts = self._golden().reach, {}
        space = as_target(target).resolve(self._model)
        for tensor, eligible in zip(space.tensors, space.eligible, strict=True):
            share, read = 1.0, None if self._full_runs else reach.looked_up(tensor.name)
            if read is not None:
                targeted = np.arange(tensor.shape[0] if tensor.shape else 0) if tensor.rows is None else tensor.rows
                share = len(np.intersect1d(targeted, read, assume_unique=True)) / max(len(targeted), 1)
            words, all_read = counts.get(tensor.component, (0, 0))
            counts[tensor.component] = words + eligible.words, all_read + round(share * eligible.words)
        frame = pd.DataFrame(
            [(name, *both) for name, both in sorted(counts.items())], columns=["component", "words", "read"]
        )
        return frame.assign(share=frame["read"] / frame["words"])

    def detects(self, error_map: ErrorMap) -> bool:
        """Whether a score of the probe rows differs in any bit while errors are in the model; also if the model raises.

        Errors of all maps that are applied at the moment count, and so do errors that are drawn while the model runs.

        Raises:
            ValueError: the map is not applied, or mitigations were attached since the golden scores were made.
        """
        return self.rows_needed(error_map) is not None

    def rows_needed(self, error_map: ErrorMap) -> int | None:
        """How many of the probe rows, from the first on, detect the errors that are in the model; None if all do not. Arguments
        and errors as of `detects`."""
        golden, (maps, transient) = self._golden(), maps_with(error_map, self._model)
        starts, chosen = np.append(0, golden.ends[:-1]), range(len(golden.ends))
        if not transient and not self._full_runs and golden.reach.everything is None:
            affected = golden.reach.of(maps)
            if not affected.dense:
                chosen = np.unique(np.searchsorted(golden.ends, affected.rows, side="right")).tolist()
        for number in chosen:
            before = golden.scores[number]
            try:
                after = score(self._model, [golden.batches[number]], len(before), self._scoring)
            except InjectionError:
                raise
            except Exception:  # the host notices that the model raised
                return int(starts[number]) + 1
            changed = _bits(before) != _bits(after)
            if changed.any():
                return int(starts[number] + changed.reshape(len(before), -1).any(axis=1).argmax()) + 1
        return None

    def rows_reading(self, error_map: ErrorMap) -> int | None:
        """How many of the probe rows, from the first on, read a wrong word of a map, applied or not; None if no row does. So
        many rows are needed at least to detect it."""
        reach = self._golden().reach
        if reach.everything is not None:
            return 1
        affected = reach.of([error_map])
        if affected.dense:
            return 1
        return int(affected.rows[0]) + 1 if len(affected.rows) else None

    def outcome(self, error_map: ErrorMap) -> str:
        """What becomes of errors, which are applied and undone here: `detected`; `not read`: no probe row reads a wrong word;
        `masked`: behind a dead ReLU or times 0, so that the gradient of every score is 0 in all wrong words that are read;
        `rounded away`.

        Tensors without a gradient, as those of integers, count as not masked.

        Raises:
            ValueError: errors are in the model already.
            ErrorMapMismatch: a map of another model.
        """
        self._golden()
        if open_in(self._model):
            raise ValueError(
                "errors are in the model now, and outcome applies them itself; call it after the `with` block"
            )
        with error_map.applied(self._model):
            if self.detects(error_map):
                return DETECTED
        if self._gradients is None:
            self._gradients = self._sensitive()
        is_read = False
        for number, entries in error_map.by_tensor():
            entry, words = error_map.fingerprint[number], error_map.word[entries]
            read = None if self._full_runs else self._golden().reach.looked_up(entry.name)
            if read is not None:
                width = int(np.prod(entry.shape[1:], dtype=np.int64))
                words = words[np.isin(words // width, read)]
            sensitive = self._gradients.get(entry.name)
            if len(words) and (sensitive is None or sensitive[words].any()):
                return ROUNDED
            is_read |= len(words) > 0
        return MASKED if is_read else NOT_READ

    def screen(self, error_map: ErrorMap, space: AddressSpace, *, seed: int) -> Screened:
        last = self.period / self.window * int(label_stream(seed, "ProbeRows").random_raw(1)[0]) * 2.0**-64
        old, together = np.zeros_like(error_map.mask), arriving_together(error_map.sources)
        for number, entries in error_map.by_tensor():
            entry = error_map.fingerprint[number]
            errors = Errors(error_map.word[entries], error_map.mask[entries])
            row = errors.index // max(1, int(np.prod(entry.shape[1:], dtype=np.int64)))
            key = int(label_stream(seed, f"ProbeRows {entry.name}").random_raw(1)[0])
            old[entries] = arrived_before(errors, row, lambda unit: np.full(len(unit), last), key, together)
        seen = error_map.with_words(error_map.tensor, error_map.word, old)
        if not len(seen):
            return Screened(error_map, detected=False)
        self._golden()
        with seen.applied(self._model):
            detected = self.detects(seen)
        if not detected:
            return Screened(error_map, detected=False)
        return Screened(error_map.with_words(error_map.tensor, error_map.word, error_map.mask & ~old), True, True)

    @contextmanager
    def attach(self, model: nn.Module) -> Iterator[Detection]:
        if self._model is not model:
            self.check(model)
            self._model, self._cached_golden = model, None
        with super().attach(model) as detection:
            yield detection

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_model": None, "_cached_golden": None}

    def _golden(self) -> _Golden:
        """The golden scores under the mitigations that are attached now."""
        if self._model is None:
            raise ValueError("these probe rows came from another process; attach them to the model first")
        attached = tuple(other for other in attached_mitigations(self._model) if other.computes)
        if self._cached_golden is not None and self._cached_golden.attached == attached:
            return self._cached_golden
        if open_in(self._model):
            raise ValueError(
                f"{self.name} have no golden scores under what is attached now, and errors are in the model; "
                "make ProbeRows, or call detects without errors, under these mitigations first"
            )
        sizes = [min(len(self.rows), _FIRST)]
        while sum(sizes) < len(self.rows):
            sizes.append(min(sum(sizes), BATCH, len(self.rows) - sum(sizes)))
        ends = np.cumsum(sizes)
        numbers = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        batches = [on_device_of(self._model, PaddedBatches(self.rows, BATCH, rows)[0]) for rows in numbers]
        both = [
            [score(self._model, [batch], size, self._scoring) for batch, size in zip(batches, sizes, strict=True)]
            for _ in range(2)
        ]
        if any((_bits(first) != _bits(second)).any() for first, second in zip(*both, strict=True)):
            raise ValueError("scores of the probe rows change from run to run, so their bits cannot be compared")
        reach = AffectedRows(self._model, self.rows, 0, self._scoring)
        self._cached_golden = _Golden(attached, reach, ends, batches, both[0])
        return self._cached_golden

    def _sensitive(self) -> dict[str, np.ndarray]:
        """Tensor -> which of its words (bool, flat) have a gradient of any probe row's score."""
        entries = [entry for entry in listed(self._model) if entry.tensor.is_floating_point() and entry.tensor.is_leaf]
        found = {entry.name: np.zeros(entry.tensor.numel(), bool) for entry in entries}
        batches = zip(self._golden().batches, map(len, self._golden().scores), strict=True)
        for of_batch in gradients(self._model, self._scoring, [entry.tensor for entry in entries], batches):
            for entry, gradient in zip(entries, of_batch, strict=True):
                if gradient is not None:
                    found[entry.name] |= (gradient.to_dense() != 0).cpu().numpy().ravel()
        return found


def _check_split(name: str, rows: Any) -> None:
    """Raises ArgumentError for rows that cannot be taken one by one."""
    check_instance(
        name, rows, Split, "rows that are taken one by one: a Split, as data.train of dr.data.from_frame(...)"
    )


def _bits(scores: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(scores).view(f"u{scores.dtype.itemsize}")


def _reads(
    evaluator: Evaluator, split: Split, weights: Mapping[str, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each row of a split reads: row and item (int64 [pairs], ascending by row, distinct), and the items' weights [items].
    An item is a row of a table."""
    space = as_target("everything").resolve(evaluator.model)
    words = {
        tensor.name: (tensor.shape, eligible.words / tensor.shape[0])
        for tensor, eligible in zip(space.tensors, space.eligible, strict=True)
        if tensor.shape and tensor.shape[0]
    }
    tables = AffectedRows(evaluator.model, split, 0, evaluator.scoring).features()
    if unknown := sorted(set(weights or ()) - set(tables)):
        raise ValueError(
            f"weights names {unknown[0]!r}; tables with known look-ups are {', '.join(sorted(tables)) or 'none'}"
        )
    rows, items, of_items, first = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)], 0
    for table in sorted(tables):
        shape, per_row = words[table]
        weight = np.full(shape[0], float(per_row)) if weights is None else _row_weights(table, shape, weights)
        for feature in tables[table]:
            ids = split.sparse[feature]
            rows.append(np.repeat(np.arange(len(split)), 1 if ids.lengths is None else ids.lengths))
            items.append(first + np.asarray(ids.values, np.int64))
        of_items.append(weight)
        first += shape[0]
    pairs = np.unique(np.concatenate(rows) * max(first, 1) + np.concatenate(items))
    return pairs // max(first, 1), pairs % max(first, 1), np.concatenate(of_items)


def _row_weights(table: str, shape: tuple[int, ...], weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """The weights of a table's rows, float64 [rows]."""
    if table not in weights:
        return np.zeros(shape[0])
    given = np.asarray(weights[table], np.float64)
    if given.shape not in (tuple(shape), (shape[0],)):
        raise ValueError(
            f"weights of {table} have shape {list(given.shape)}; they must have {list(shape)} or {[shape[0]]}"
        )
    if not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError(
            f"weights of {table} must be finite numbers of 0 or more, got {given.min():g} to {given.max():g}"
        )
    return given.reshape(shape[0], -1).sum(axis=1)


def _cover(rows: np.ndarray, items: np.ndarray, weights: np.ndarray, n: int, order: np.ndarray) -> np.ndarray:
    """Greedy maximum cover, in rounds.

    Args:
        rows, items: int64 [pairs], ascending by row: which row reads which item.
        weights: of the items.
        n: rows to choose.
        order: all rows; of those with equal gains the first in this order is chosen.

    Returns:
        the chosen rows, int64 [n], in the order of choice.
    """
    place = np.argsort(order)  # the first of equal gains has the first place
    starts = np.searchsorted(rows, np.arange(len(order) + 1)).tolist()
    by_item = np.argsort(items, kind="stable")
    readers, ends = place[rows[by_item]], np.searchsorted(items[by_item], np.arange(len(weights) + 1)).tolist()
    every, taken = np.bincount(place[rows], weights=weights[items], minlength=len(order)), np.zeros(len(order), bool)
    chosen: list[int] = []
    while len(chosen) < n:
        gains, unread = np.where(taken, -np.inf, every), weights.copy()
        if not gains.max() > 0:  # nothing to cover
            return np.append(np.array(chosen, np.int64), order[~taken])[:n]
        while len(chosen) < n and gains[best := int(gains.argmax())] > 0:
            row = int(order[best])
            read = items[starts[row] : starts[row + 1]]
            new = read[unread[read] > 0]
            if not len(new):
                gains[best] = 0.0  # what rounding left
                continue
            for item in new.tolist():
                gains[readers[ends[item] : ends[item + 1]]] -= weights[item]
            gains[best], taken[best], unread[new] = -np.inf, True, 0.0
            chosen.append(row)
    return np.array(chosen, np.int64)
