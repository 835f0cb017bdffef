"""Worst-case flips: which few bits, chosen one after the other, lower AUC most (`worst_case`).

Greedy search, as in the bit-flip attacks on classifiers (A. S. Rakin, Z. He, D. Fan, ICCV 2019, arXiv:1903.12269): the gradient
of the loss ranks candidates, each of the best is tried exactly, and the one with the lowest AUC stays. What it finds is a
lower bound of the harm that so many flips can do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from drsrobust.data import Split
from drsrobust.evaluation import Evaluator, OtherRows
from drsrobust.extend import check_evaluator, check_instance, check_whole, evaluating, requiring_gradients
from drsrobust.injection import ErrorMap, FixedCount
from drsrobust.mitigation import Mitigation, Screened
from drsrobust.models import PaddedBatches
from drsrobust_extras.experiments.allowed_flips import Allowed, blocks

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 3e38  # of infinity and NaN in the ranking
_BITS, _TENSORS = 20, 10  # a bit of a tensor gives at most 1 / _BITS of the candidates, a tensor 1 / _TENSORS
_POOL = 4096  # words of a tensor and bit, of the highest rank, that a protection is asked about
_TIED = -1e-9  # AUC that is lower by less is a tie


class _Flips(NamedTuple):
    """Single flips: index of the tensor in its space, flat word index, bit, and rank score (the loss that the gradient
    predicts)."""

    tensor: np.ndarray
    word: np.ndarray
    bit: np.ndarray
    score: np.ndarray

    def take(self, chosen: Any) -> "_Flips":
        return _Flips(*(array[chosen] for array in self))

    @classmethod
    def joined(cls, parts: "Sequence[_Flips]") -> "_Flips":
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) if parts else _none()


def _none() -> _Flips:
    return _Flips(*(np.empty(0, kind) for kind in (np.int32, np.int64, np.int64, np.float64)))


@dataclass(frozen=True, eq=False)
class WorstCase:
    """Chosen flips of a model.

    Attributes:
        flips: one row per flip in the order of choice: `flip` (from 1), `tensor`, `row` (of its first dimension), `word` (flat
            index), `bit`, `before` and `after` (values of the word), `auc` on the rows of the search with all flips so far.
        golden_auc: on these rows without errors.
        checkpoint: SHA-256 (hex) of the model's state.
        allowed: what could be chosen.

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens", rows=20_000)
        >>> model = dr.load_model("dlrm", data, settings=dr.training.Settings(epochs=2), progress=False)
        >>> found = worst_case(dr.Evaluator(model, data.valid), budget=2)
        >>> len(found.error_map(1)), list(found.measure(dr.Evaluator(model, data.test))["flips"][:2])
        (1, [0, 1])
    """

    flips: "pd.DataFrame"
    golden_auc: float
    checkpoint: str
    allowed: Allowed
    _template: ErrorMap

    def __repr__(self) -> str:
        last = self.flips["auc"].iloc[-1] if len(self.flips) else self.golden_auc
        return f"<WorstCase {self.allowed}: {len(self.flips)} flips, AUC {self.golden_auc:.4f} to {last:.4f}>"

    def error_map(self, n: int | None = None) -> ErrorMap:
        """The first n flips (None: all) as an error map, which can be saved and replayed."""
        first = self.flips.head(len(self.flips) if n is None else check_whole("n", n, 0, len(self.flips)))
        number = {name: position for position, name in enumerate(self._template.targets)}
        tensor = first["tensor"].map(number).to_numpy(np.int32)
        return _map_of(self._template, tensor, first["word"].to_numpy(np.int64), first["bit"].to_numpy(np.int64))

    def measure(self, evaluator: Evaluator) -> "pd.DataFrame":
        """AUC after each flip on other rows than those of the search.

        Args:
            evaluator: of the same model.

        Returns:
            `flips`, from 0, and `auc`.

        Raises:
            ValueError: an evaluator of another model.
        """
        import pandas as pd

        if evaluator.checkpoint != self.checkpoint:
            raise ValueError(
                f"the evaluator's model has state {evaluator.checkpoint[:12]}, the flips were chosen in {self.checkpoint[:12]}"
            )
        step = 1 if self.allowed.pairs_in is None else 2  # the model was scored after the second flip of each pair
        counts = [0, *self.flips["flip"][step - 1 :: step]]
        return pd.DataFrame([{"flips": n, "auc": _auc(evaluator, self.error_map(n))} for n in counts])


def worst_case(
    evaluator: Evaluator,
    *,
    budget: int = 20,
    allowed: Allowed | Mitigation | None = None,
    candidates: int = 40,
) -> WorstCase:
    """Chooses flips that lower AUC, one after the other (or pair after pair), until AUC is 0.5 or less, nothing lowers it, or
    the budget ends.

    Each step ranks all allowed flips by gradient of the mean loss times change of the word (infinite numbers and NaN count as
    3e38), takes the best 2 of each tensor and bit, at most 4 of a tensor (more where `candidates` is over 40), and scores the
    best of these exactly. Where gradients vanish, as they do once scores saturate, those of the model without errors rank.
    Greedy search finds a lower bound of the harm: another choice of as many flips may do more. Of changes to huge numbers the
    gradient says little, so there another flip may leave a lower AUC, though that of the chosen one is 0.5 or less.

    Args:
        evaluator: of the rows of the search; measure the harm on other rows (`WorstCase.measure`).
        budget: flips, at most.
        allowed: which flips; a protection means `Allowed(passes=protection)`; None: any flip of any parameter.
        candidates: flips (or pairs) that are scored exactly in each step.

    Returns:
        the flips, in order.

    Raises:
        TypeError: rows that are a stream.
        ValueError: another task than clicks, a budget or number of candidates under 1, or no targeted tensor with a gradient
            (inference tensors have none).

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens", rows=20_000)
        >>> model = dr.load_model("dlrm", data, settings=dr.training.Settings(epochs=2), progress=False)
        >>> chosen = worst_case(dr.Evaluator(model, data.valid), budget=2, allowed=dr.Allowed("over_mlp"))
        >>> bool(chosen.flips["auc"].iloc[-1] < chosen.golden_auc)
        True
    """
    check_evaluator(evaluator)
    budget, candidates = check_whole("budget", budget, 1), check_whole("candidates", candidates, 1)
    if isinstance(evaluator.rows, OtherRows) and not evaluator.rows.in_batches:
        raise TypeError(f"the rows are {type(evaluator.rows).__name__}; they must be a Split or Batches")
    if evaluator.scoring.task != "click":
        raise ValueError(
            f"worst_case lowers the AUC of clicks, and this evaluator's task is {evaluator.scoring.task!r}"
        )
    if not isinstance(allowed, Allowed):
        if allowed is not None:
            check_instance(
                "allowed", allowed, (Mitigation, Allowed), "an Allowed, as Allowed('over_mlp'), or a protection"
            )
        allowed = Allowed(passes=allowed)
    return _Search(evaluator, allowed, candidates).run(budget)


class _Search:
    """One greedy search; arguments as of `worst_case`."""

    def __init__(self, evaluator: Evaluator, allowed: Allowed, candidates: int) -> None:
        self._evaluator, self._allowed, self._candidates = evaluator, allowed, candidates
        self._per_tensor = max(4, candidates // _TENSORS)
        self._space = allowed.space(evaluator.model)
        self._numbers = [
            number
            for number, tensor in enumerate(self._space.tensors)
            if tensor.stored.rows is None and tensor.memory.is_floating_point()
        ]
        self._golden = self._gradients() if self._numbers else {}
        if not any(gradient is not None for gradient in self._golden.values()):
            raise ValueError(f"no tensor of target {str(allowed.target)!r} has a gradient")
        self._template = replace(
            FixedCount(1).sample(self._space, seed=0),
            error_model="worst case",
            n_sites=None,
            n_events=None,
            requested_rate=None,
            sources=(),
        )
        self._chosen = _none()

    def run(self, budget: int) -> WorstCase:
        import pandas as pd

        rows: list[dict[str, Any]] = []
        golden = auc = self._evaluator.golden.auc
        step = 1 if self._allowed.pairs_in is None else 2
        while auc > 0.5 and len(self._chosen.word) + step <= budget:
            tried = [(_auc(self._evaluator, self._with(move)), move) for move in self._moves()]
            tried = [attempt for attempt in tried if attempt[0] - auc < _TIED]
            if not tried:
                break
            auc, move = min(tried, key=lambda attempt: attempt[0])  # of equal ones the first
            rows += [row | {"auc": auc} for row in self._described(move)]
            self._chosen = _Flips.joined([self._chosen, move])
        columns = ["flip", "tensor", "row", "word", "bit", "before", "after", "auc"]
        flips = pd.DataFrame([{"flip": n} | row for n, row in enumerate(rows, 1)], columns=columns)
        if not self._evaluator.unchanged():
            raise RuntimeError("the search changed the model: a module updates its weights when gradients are computed")
        return WorstCase(flips, golden, self._evaluator.checkpoint, self._allowed, self._template)

    def _with(self, move: _Flips) -> ErrorMap:
        flips = _Flips.joined([self._chosen, move])
        return _map_of(self._template, flips.tensor, flips.word, flips.bit)

    def _described(self, move: _Flips) -> Iterator[dict[str, Any]]:
        """Rows of the table; values without other chosen flips of the same word."""
        for number, word, bit in zip(move.tensor, move.word, move.bit, strict=True):
            tensor = self._space.tensors[number]
            before = self._space.read(np.array([number]), np.array([word]))
            values = _values(np.append(before, before ^ (np.uint64(1) << np.uint64(bit))), tensor.memory.dtype)
            row = int(word) // tensor.row_words
            place = {"tensor": tensor.name, "row": row, "word": int(word), "bit": int(bit)}
            yield place | {"before": float(values[0]), "after": float(values[1])}

    def _moves(self) -> Iterator[_Flips]:
        """The best candidates that may be chosen next, the best first."""
        flips = self._ranked()
        if self._allowed.pairs_in is not None:
            moves = _pairs(flips, self._blocks(flips, self._allowed.pairs_in), self._per_tensor)
        else:
            best = _best(flips, flips.tensor * 64 | flips.bit, max(2, self._candidates // _BITS))
            best = _best(best, best.tensor, self._per_tensor)
            moves = [best.take([number]) for number in np.argsort(-best.score, kind="stable")]
        for number, move in enumerate(filter(self._passes, moves)):
            if number == self._candidates:
                return
            yield move

    def _passes(self, move: _Flips) -> bool:
        """Whether the protection leaves all flips that were chosen, and these, in the model."""
        if (protection := self._allowed.passes) is None:
            return True
        errors = self._with(move)
        left = Screened.by(protection, errors, self._space, seed=0).remaining
        return len(left) == len(errors) and all(
            np.array_equal(getattr(left, name), getattr(errors, name)) for name in ("tensor", "word", "mask")
        )

    def _ranked(self) -> _Flips:
        """All flips that may be chosen next and that the gradient expects to raise the loss; of each tensor and bit at most
        `_POOL`."""
        errors = self._with(_none())
        with errors.applied(self._evaluator.model):
            gradients = self._gradients()
            if not any(gradient is not None and gradient.any() for gradient in gradients.values()):
                gradients = self._golden
            found = (self._of_tensor(number, array) for number, array in gradients.items() if array is not None)
            flips = _Flips.joined([part for of_tensor in found for part in of_tensor])  # read while errors are there
        if (size := self._allowed.one_per) is not None:
            taken = self._blocks(self._chosen, size)
            flips = flips.take(~np.isin(self._blocks(flips, size), taken))
        if self._allowed.passes is not None and self._allowed.pairs_in is None:
            flips = _Flips.joined([flips.take(self._screened(flips, bit)) for bit in np.unique(flips.bit)])
        return flips

    def _of_tensor(self, number: int, gradient: np.ndarray) -> Iterator[_Flips]:
        """The flips of a tensor, bit by bit. Errors that were chosen are in the model."""
        tensor, eligible = self._space.tensors[number], self._space.eligible[number]
        word = np.flatnonzero(gradient)
        words, masks = self._space.read(np.full(len(word), number), word), eligible.mask_of(word)
        values, dtype = _values(words, tensor.memory.dtype), tensor.memory.dtype
        mine = self._chosen.take(self._chosen.tensor == number)
        for bit in range(tensor.format.width):
            flip = np.uint64(1) << np.uint64(bit)
            changed = np.nan_to_num(_values(words ^ flip, dtype), nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
            with np.errstate(over="ignore", invalid="ignore"):
                score = gradient[word] * (changed - np.nan_to_num(values))
            allowed = (score > 0) & (masks & flip != 0) & ~np.isin(word, mine.word[mine.bit == bit])
            entries = np.flatnonzero(allowed)
            if len(entries) > _POOL:
                entries = entries[np.argpartition(-score[entries], _POOL)[:_POOL]]
            fill = np.full(len(entries), number, np.int32), np.full(len(entries), bit)
            yield _Flips(fill[0], word[entries], fill[1], score[entries])

    def _screened(self, flips: _Flips, bit: int) -> np.ndarray:
        """Which of the flips, of one bit, a protection leaves in the model if each were alone in its word."""
        entries = np.flatnonzero(flips.bit == bit)
        part = flips.take(entries)
        errors = _map_of(self._template, part.tensor, part.word, part.bit)
        left = Screened.by(self._allowed.passes, errors, self._space, seed=0).remaining
        is_left = left.mask == np.uint64(1) << np.uint64(bit)
        places = left.tensor[is_left].astype(np.int64) << 40 | left.word[is_left]
        return entries[np.isin(part.tensor.astype(np.int64) << 40 | part.word, places)]

    def _blocks(self, flips: _Flips, size: int) -> np.ndarray:
        return blocks(self._space, flips.tensor, flips.word, size)

    def _gradients(self) -> dict[int, np.ndarray | None]:
        """The gradient of the mean loss by number of the tensor: float64 [words]; None where there is none. Rows without a
        finite score do not count."""
        model, rows = self._evaluator.model, self._evaluator.rows
        tensors = [self._space.tensors[number].memory for number in self._numbers]
        totals = [np.zeros(tensor.numel()) for tensor in tensors]
        reached, start = np.zeros(len(tensors), bool), 0
        labels = torch.from_numpy(np.array(rows.labels, np.float32))
        batches = PaddedBatches(rows) if isinstance(rows, Split) else rows.batches
        with requiring_gradients(tensors):
            for batch in batches:
                with evaluating(model), torch.enable_grad():
                    scores = self._evaluator.scoring(model, batch)[: len(labels) - start]
                    of_rows = labels[start : start + len(scores)].to(scores.device)
                    finite = scores.isfinite()
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(
                        scores[finite].float(), of_rows[finite], reduction="sum"
                    )
                    gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
                start += len(scores)
                for number, gradient in enumerate(gradients):
                    if gradient is not None:
                        reached[number] = True
                        dense = gradient.detach().to_dense().cpu().double().numpy().ravel()  # of sparse tables, too
                        totals[number] += np.nan_to_num(dense) / len(labels)
        return {
            n: total if is_reached else None
            for n, total, is_reached in zip(self._numbers, totals, reached, strict=True)
        }


def _best(flips: _Flips, key: np.ndarray, n: int) -> _Flips:
    """The n flips of the highest score of each key."""
    order = np.lexsort((flips.word, -flips.score, key))
    _, first = np.unique(key[order], return_index=True)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return flips.take(order[rank < n])


def _pairs(flips: _Flips, block: np.ndarray, n: int) -> list[_Flips]:
    """The two flips of the highest score of each block that has two, the best first; at most n of a tensor."""
    best = flips.take(np.lexsort((-flips.score, block)))
    order = np.sort(block)
    _, first, count = np.unique(order, return_index=True, return_counts=True)
    first = first[count > 1]
    with np.errstate(over="ignore"):
        score = best.score[first] + best.score[first + 1]
    pairs = _best(_Flips(best.tensor[first], best.word[first], first, score), best.tensor[first], n)
    return [best.take([start, start + 1]) for start in pairs.bit[np.argsort(-pairs.score, kind="stable")]]


def _map_of(template: ErrorMap, tensor: np.ndarray, word: np.ndarray, bit: np.ndarray) -> ErrorMap:
    """An error map of single flips, of which a word may have several."""
    mask = np.uint64(1) << bit.astype(np.uint64)
    places, number = np.unique(np.stack([tensor.astype(np.int64), word]), axis=1, return_inverse=True)
    masks = np.zeros(places.shape[1], np.uint64)
    np.bitwise_or.at(masks, number, mask)
    return template.with_words(places[0].astype(np.int32), places[1], masks)


def _values(words: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Words uint64 [n] as the numbers that they are, float64 [n]."""
    width = 8 * dtype.itemsize
    return torch.from_numpy(words.astype(f"uint{width}")).view(dtype).double().numpy()


def _auc(evaluator: Evaluator, errors: ErrorMap) -> float:
    """AUC with errors in the model; 1 where the model raises, so that no flip is chosen for that."""
    with errors.applied(evaluator.model):
        auc = evaluator.rerun(errors).auc
    return 1.0 if auc is None else auc
