"""One probe for each tensor of a model, before its first rerun: the highest bit of the mantissa flipped in all of its words.

A rerun with these flips is compared with a full run. So what tracing cannot see is found: values that leave PyTorch, or that
reach scores on another way than the operations of forward's thread. A full run in which no score changes shows that no score
depends on the tensor, as where a model keeps what it once computed from it.

A probe scores few rows where rows do not depend on each other, else one of the golden run's batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import numpy as np
from torch import nn

from drsrobust.evaluation.affected_rows import AffectedRows, CoupledRowsError, near
from drsrobust.evaluation.passes import Probes
from drsrobust.injection import AddressSpace, ErrorMap, FixedCount
from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.apply import AppliedMap
from drsrobust.injection.error_map import Fingerprint
from drsrobust.injection.number_formats import PADDING, TOP
from drsrobust.injection.stored import Memory, check, stored
from drsrobust.introspection.tensors import listed

WHOLE = 1_000_000  # words: of a larger table only rows that the batch looks up are flipped
ALONE = 4  # full runs, at most, that tell apart tensors of which a full run with flips in all of them changed scores
CHECK_EVERY = 8  # probes between two full runs without errors


def flips(model: nn.Module, memory: Memory, name: str, rows: np.ndarray | None = None) -> ErrorMap | None:
    """The map of a probe: in each word of a tensor the highest bit of its mantissa flips, which leaves it finite; of integers a
    middle bit of each. A float of 0 becomes 1, since such a flip would leave it nearly 0.

    Args:
        model: without errors.
        memory: its tensors.
        name: of the tensor.
        rows: of the tensor, int64 ascending; None: all.

    Returns:
        None of a tensor without words that can be hit.
    """
    entry = memory[name]
    try:
        check(name, entry.tensor)
        target = TargetTensor(name, memory.component[name], tuple(entry.tensor.shape), entry.format, rows, entry)
    except ValueError:
        return None
    space = AddressSpace([target]).in_model(model, memory)
    if not space.words:
        return None
    eligible, fields, period = space.eligible[0], target.format.fields, target.format.period
    words = eligible.locate_word(np.arange(eligible.words))
    chosen = np.zeros(period, np.uint64)
    for field, masks in fields.items():
        if field not in ("sign", "exponent", PADDING):
            bits, lowest = np.bitwise_count(masks).astype(np.uint64), masks & (~masks + np.uint64(1))
            up = bits - np.uint64(1) if field == "mantissa" else bits // np.uint64(2)
            chosen |= np.where(masks != 0, lowest << np.where(masks != 0, up, np.uint64(0)), np.uint64(0))
    mask = chosen[words % period]
    if "mantissa" in fields:
        exponent = fields["exponent"][words % period]
        one = exponent & (exponent >> np.uint64(1))  # all bits of the exponent but the highest
        values = space.read(np.zeros(len(words), np.int32), words)
        mask = np.where(values & ~fields["sign"][words % period] == 0, one, mask)
    hit = mask != 0
    fingerprint = (Fingerprint(name, target.shape, target.format.name, target.component),)
    tensor = np.zeros(int(hit.sum()), np.int32)
    return ErrorMap(tensor, words[hit], mask[hit], fingerprint, 0, "the probe of a tensor", space.bits)


def target_maps(model: nn.Module, space: AddressSpace) -> list[list[ErrorMap]]:
    """Two sets of error maps that must reach scores which depend on a target: the flips of a probe in all of its words (of a
    large tensor in its first ones), and the highest bit of the exponent in 16 of them."""
    memory, of_words = stored(model), []
    for tensor in space.tensors:
        rows = tensor.rows
        if tensor.width is None and tensor.targeted > WHOLE:
            rows = (np.arange(tensor.shape[0]) if rows is None else rows)[: max(1, WHOLE // max(1, tensor.row_words))]
        error_map = flips(model, memory, tensor.name, rows) if tensor.width is None else None
        of_words += [] if error_map is None else [error_map]
    sets = [of_words]
    with suppress(ValueError):  # formats without an exponent
        top = FixedCount(1, bits=(TOP,))
        sets.append([replace(top, k=min(16, top.eligible(space).bits)).sample(space, seed=0)])
    return sets


def probe_tensors(model: nn.Module, reach: AffectedRows, *, reruns: bool, effects: bool) -> Probes:
    """Probes all tensors of a model.

    Args:
        model: without errors.
        reach: of the golden run.
        reruns: whether reruns are compared with full runs.
        effects: whether tensors without effect are looked for, which a protection that repairs them has too.
    """
    try:
        return _Probing(model, reach, reruns, effects).result()
    except Exception as error:
        return Probes(f"errors in its tensors could not be tried ({type(error).__name__}: {error})" if reruns else None)


@contextmanager
def flipped(model: nn.Module, memory: Memory, reach: AffectedRows, names: Iterable[str]) -> Iterator[None]:
    """The model with the flips of some tensors, while the block runs; of large tables in rows that `reach` looks up."""
    with _applied(model, memory, _maps(model, memory, reach, names)):
        yield


class _Probing:
    def __init__(self, model: nn.Module, reach: AffectedRows, reruns: bool, effects: bool) -> None:
        self._model, self._reach, self._reruns, self._effects = model, reach, reruns, effects
        self._memory = stored(model)
        self._names = [name for name in self._memory if name in reach.flow.number]
        self._small = reach.few_rows() if reruns else None
        self._batches: dict[int, AffectedRows] = {}
        self._unchecked: list[str] = []  # tensors that were probed since the last full run without errors
        self._rounded: list[str] = []
        self._why: str | None = None

    def result(self) -> Probes:
        flow, unchanged, unread = self._reach.flow, [], []
        for name in self._names:
            number = flow.number[name]
            if self._reruns and not flow.read >> number & 1:
                continue
            part = self._part(number)
            changed = self._probe(part, name)
            if self._why is not None:
                return Probes(self._why)
            if changed is False and self._counts(name):
                unchanged.append(name)
        for rows in [self._small, *self._batches.values()]:
            if rows is not None and self._why is None:
                self._check(rows)
        if self._reruns and self._why is None:
            unread = self._probe_unread()
        if self._why is not None:
            return Probes(self._why)
        silent = tuple(self._without_effect(unchanged)) if self._effects else ()
        if not self._reruns:  # what batches read is not known
            return Probes(unread=silent)
        return Probes(None, tuple(self._rounded), silent, tuple(filter(self._counts, unread)) if self._effects else ())

    def _counts(self, name: str) -> bool:
        """Whether errors in a tensor are expected to change a score: not of counters and indices."""
        entry = self._memory[name]
        return entry.rows is not None or entry.tensor.is_floating_point()

    def _part(self, number: int) -> AffectedRows:
        """Rows whose batch reads a tensor."""
        if self._small is not None:
            return self._small
        effects = self._reach.flow.effects
        if not self._reruns or not effects:
            chosen = 0
        else:
            reading = [batch for batch, effect in enumerate(effects) if effect >> number & 1]
            chosen = next((batch for batch in reading if batch in self._batches), reading[0])
        if chosen not in self._batches:
            self._batches[chosen] = self._reach.one_batch(chosen)
        return self._batches[chosen]

    def _probe(self, part: AffectedRows, name: str) -> bool | None:
        """Whether flips in a tensor change a score of some rows in a full run; None if it cannot be hit. Sets `_why`."""
        maps = _maps(self._model, self._memory, part, [name])
        if not maps:
            return None
        with _applied(self._model, self._memory, maps):
            full = _scores(part.full)
        if self._reruns:
            with _applied(self._model, self._memory, maps):  # again, since a protection may have repaired them
                self._compare(name, full, part, maps)
        self._unchecked.append(name)
        if len(self._unchecked) >= CHECK_EVERY:
            self._check(part)
        return full is None or full.tobytes() != part.scores.tobytes()

    def _compare(self, name: str, full: np.ndarray | None, part: AffectedRows, maps: list[ErrorMap]) -> None:
        try:
            quick = part.score(part.of(maps))[0]
        except CoupledRowsError:
            self._why = f"an error in {name} changes the scores of rows that do not read it"
            return
        except Exception:  # a rerun that raises becomes a full run
            return
        if full is None or not near(quick, full):
            self._why = f"an error in {name} has other effects than its reruns show"
        elif full.tobytes() != quick.tobytes():
            self._rounded.append(name)

    def _check(self, part: AffectedRows) -> None:
        """Scores some rows again without errors."""
        names, self._unchecked = self._unchecked, []
        if not names:
            return
        scores = _scores(part.full)
        if scores is None or not near(scores, part.scores):
            which = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
            self._why = (
                f"an error in {which} leaves a state in the model that changes its scores after the error is undone"
            )

    def _probe_unread(self) -> list[str]:
        """Flips all tensors at once that a batch does not read; returns those that none reads. Sets `_why`."""
        flow, unread = self._reach.flow, []
        for effect in dict.fromkeys(flow.effects):
            names = [name for name in self._names if not effect >> flow.number[name] & 1]
            batches = np.array([number for number, other in enumerate(flow.effects) if other == effect])
            changing = self._changing(names, batches)
            known = [name for name in changing if not flow.unknown >> flow.number[name] & 1]
            if known:
                self._why = f"an error in {', '.join(known)} changes scores, which no operation that was seen shows"
                return []
            unread += [n for n in names if n not in changing and not flow.read >> flow.number[n] & 1]
        return list(dict.fromkeys(unread))

    def _without_effect(self, names: list[str]) -> list[str]:
        """Those of some tensors that change no score of any row, but for those that the model goes on to read and from which
        something leads to scores: a differentiable operation, as where its result is multiplied by 0, or a branch."""
        changing = self._changing(names, np.arange(len(self._reach.batches)))
        left = [entry for entry in listed(self._model) if entry.name in names and entry.name not in changing]
        leaves = [entry for entry in left if entry.tensor.is_floating_point() and entry.tensor.is_leaf]
        read, leads = self._reach.read_again(leaves) if left else (set(), set())
        return [entry.name for entry in left if entry.name not in read & leads]

    def _changing(self, names: list[str], batches: np.ndarray) -> list[str]:
        """Those of some tensors that change a score in some batches, or might."""
        golden = self._reach.scores_of(batches)

        def changes(some: list[str]) -> bool:
            with flipped(self._model, self._memory, self._reach, some):
                scores = _scores(lambda: self._reach.again(batches))
            return scores is None or not np.array_equal(scores, golden, equal_nan=True)

        if not names or not changes(names):
            return []
        if len(names) == 1:
            return names
        return [name for number, name in enumerate(names) if number >= ALONE or changes([name])]


def _maps(model: nn.Module, memory: Memory, reach: AffectedRows, names: Iterable[str]) -> list[ErrorMap]:
    """The flips of some tensors, without those that cannot be hit."""
    maps = []
    for name in names:
        large = memory[name].tensor.numel() > WHOLE
        error_map = flips(model, memory, name, reach.looked_up(name) if large else None)
        maps += [error_map] if error_map is not None and len(error_map) else []
    return maps


@contextmanager
def _applied(model: nn.Module, memory: Memory, maps: Iterable[ErrorMap]) -> Iterator[None]:
    """The model with the errors of some maps, while the block runs; also where it writes to a tensor itself."""
    with ExitStack() as block:
        for error_map in maps:
            applied = AppliedMap(error_map, memory, model)
            block.callback(_undo, applied)
            applied.apply()
        yield


def _undo(applied: AppliedMap) -> None:
    with suppress(RuntimeError):  # a model that writes to the tensor itself: the flips are undone all the same
        applied.undo()


def _scores(score: Callable[[], np.ndarray]) -> np.ndarray | None:
    """What a function returns; None if the model raises."""
    try:
        return score()
    except Exception:
        return None
