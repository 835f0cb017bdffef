"""The best multiplier of bounds, by a grid and golden sections.

Activation clipping: no number that passes a place may lie outside of its bounds.

Sources: Chen, Li and Pattabiraman, "A low-cost fault corrector for deep neural networks through range restriction" (Ranger),
DSN 2021, arXiv:2003.13874: bounds from clean data, out-of-range values saturate. Hoang, Hanif and Shafique, "FT-ClipAct",
DATE 2020, arXiv:1912.00941: they become 0, bounds searched under faults. Bounds per neuron: FitAct, arXiv:2112.13544."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection import restore_leftovers
from drsrobust.introspection.tensors import unwrapped
from drsrobust.mitigation.activations.bounds import Bounds, CleanRows, learn, put_on
from drsrobust.mitigation.activations.limits import MODES, NANS, limiter
from drsrobust.mitigation.activations.sites import Place, check_kinds, chosen, find
from drsrobust.mitigation.base import Cost, Current, Handle, Mitigation, shown

if TYPE_CHECKING:
    import pandas as pd


_RATIO = (math.sqrt(5) - 1) / 2


def best_multiplier(
    score: Callable[[float], float], multipliers: Sequence[float], steps: int
) -> tuple[float, list[tuple[float, float]]]:
    """Tries every multiplier of a grid, then narrows the interval between the neighbours of the best by golden sections of
    its logarithm (Kiefer 1953): two new multipliers in the first step, one in each later one. Of a score with one peak this
    finds it; of any other, a good place.

    Args:
        score: multiplier -> number, higher is better; called once for each.
        multipliers: in any order.
        steps: of golden sections.

    Returns:
        the best of all that were tried (of equals the largest), and (multiplier, score) of each in the order tried.

    Raises:
        ValueError: no multiplier, one that is not positive, a negative number of steps, or a score that is NaN.

    Example:
        >>> best_multiplier(lambda m: -abs(m - 3), [1, 2, 4, 8], steps=0)
        (4, [(1, -2), (2, -1), (4, -1), (8, -5)])
    """
    grid = sorted(set(multipliers))
    if not grid or not all(0 < one < math.inf for one in grid):
        raise ValueError(f"multipliers are {list(multipliers)}; they must be one or more finite numbers over 0")
    if steps < 0:
        raise ValueError(f"steps is {steps!r}; it must be 0 or more")
    tried: dict[float, float] = {}

    def value(multiplier: float) -> float:
        if multiplier not in tried:
            tried[multiplier] = score(multiplier)
            if math.isnan(tried[multiplier]):
                raise ValueError(f"the score of the bounds times {multiplier:g} is NaN")
        return tried[multiplier]

    for one in grid:
        value(one)
    best = max(grid, key=lambda one: (tried[one], one))
    if steps and len(grid) > 1:
        at = grid.index(best)
        low, high = math.log(grid[max(at - 1, 0)]), math.log(grid[min(at + 1, len(grid) - 1)])
        left, right = high - _RATIO * (high - low), low + _RATIO * (high - low)
        for _ in range(steps):  # the first one tries both inner points, each later one the point that is new
            if value(math.exp(left)) > value(math.exp(right)):
                high, right = right, left
                left = high - _RATIO * (high - low)
            else:
                low, left = left, right
                right = low + _RATIO * (high - low)
    best = max(tried, key=lambda one: (tried[one], one))
    return best, list(tried.items())


ROWS = 100_000  # that bounds are learnt from: of 20,000, per neuron and to zero, up to 1e-4 AUC is lost without errors
SCOPES = ("layer", "neuron")
MULTIPLIERS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)


class ActivationClipping(Mitigation):
    """Fixed bounds: y = min(max(x, -bound), bound) at every place, or y = 0 where |x| > bound; for NaN see `nan`.

    Bounds learnt from clean rows: `ActivationClipping.fit`; searched under errors: `.search`; what the published code of
    arXiv:2307.10244 did: `.as_released`. `dr.mitigation.clip_sites(model)` lists the places.

    Args:
        bound: over 0.
        mode: `saturate`: what lies outside becomes the nearer bound; `zero`: it becomes 0.
        nan: what NaN becomes: `zero` (with `saturate` the nearer bound, where 0 lies outside), `bound` (the upper one; only
            with `saturate`), or `keep`.
        places: kinds of places, as `("linear", "logit")`; None: all that a model has.

    Attributes:
        name: for tables, as `clip 100`.
        learnt: place -> `Bounds`, of fitted ones; None of a fixed bound.
        tried: of searched bounds, the (multiplier, score) pairs in the order in which they were tried.

    Raises:
        ValueError: a bound that is not positive, an unknown mode, place or way with NaN. When attached: a model that has none
            of the places, or lacks one for which bounds were learnt, or is compiled (its hooks would not run).

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1))
        >>> clip = ActivationClipping(6, places="linear")
        >>> with torch.no_grad(), clip.attach(model):
        ...     _ = model[0].weight.copy_(torch.tensor([[1.0], [1e30]]))
        ...     model[0](torch.ones(1, 1)).tolist()
        [[1.0, 6.0]]
    """

    def __init__(
        self,
        bound: float,
        *,
        mode: str = "saturate",
        nan: str = "zero",
        places: str | Sequence[str] | None = None,
    ) -> None:
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
            raise ValueError(f"bound is {bound!r}; it must be a finite number over 0, as 6 or 100")
        self._set(shown(bound), mode, nan, places)
        self.bound: float | None = float(bound)

    def _set(self, what: str, mode: str, nan: str, places: str | Sequence[str] | None) -> None:
        _check("mode", mode, MODES)
        _check("nan", nan, NANS)
        if mode == "zero" and nan == "bound":
            raise ValueError("nan='bound' goes with mode='saturate'; in mode 'zero' nothing becomes a bound")
        self.mode, self.nan, self.kinds = mode, nan, check_kinds(places)
        self.bound, self.scope = None, "layer"
        self.learnt: dict[Place, Bounds] | None = None
        self._fit: dict[str, Any] | None = None  # how bounds were learnt
        self.tried: list[tuple[float, float]] = []
        self._needs_a_place = True
        parts = [f"clip {what}"]
        parts += ["to zero"] if mode == "zero" else []
        parts += [] if nan == "zero" else [f"NaN {'kept' if nan == 'keep' else 'to bound'}"]
        parts += [f"at {', '.join(self.kinds)}"] if self.kinds is not None else []
        self.name = " ".join(parts)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        split: CleanRows,
        *,
        rows: int = ROWS,
        quantile: float | None = None,
        margin: float = 1.0,
        scope: str = "layer",
        mode: str = "saturate",
        nan: str = "zero",
        places: str | Sequence[str] | None = None,
    ) -> "ActivationClipping":
        """Bounds from what a model gives for training rows; errors that an interrupted `with` left in it are undone first.

        With bounds of all rows (no quantile, margin 1) rows among these keep their scores bit for bit.

        Args:
            model: forward(dense_features, sparse_features).
            split: training rows, as `data.train`; its first `rows` are taken (splits are in random order), rounded down to a
                multiple of 32.
            rows: how many.
            quantile: None: bounds are the smallest and the largest value; else -m and m, where m is this quantile of |x|.
            margin: moves each bound b outwards, by (margin - 1) |b|.
            scope: `layer`: one pair of bounds for a place; `neuron`: one for each entry of the last dimension.
            mode, nan, places: as for a fixed bound.

        Raises:
            ValueError: a model that has none of the places, or gives NaN or infinite values there without errors; a number that
                makes no sense.
        """
        _check("scope", scope, SCOPES)
        if quantile is not None and not 0 < quantile <= 1:
            raise ValueError(f"quantile is {quantile!r}; it must be over 0 and at most 1, as 0.999")
        if not 0 < margin < math.inf:
            raise ValueError(f"margin is {margin!r}; it must be a finite number over 0, as 1.5")
        if rows < 1:
            raise ValueError(f"rows is {rows!r}; it must be at least 1")
        what = "profiled" if quantile is None else f"quantile {shown(quantile)}"
        what += ("" if margin == 1 else f" x {shown(margin)}") + ("" if rows == ROWS else f" from {rows} rows")
        self = cls.__new__(cls)
        self._set(what + (" per neuron" if scope == "neuron" else ""), mode, nan, places)
        self.scope = scope
        self._fit = {"rows": int(rows), "quantile": quantile and float(quantile), "margin": float(margin)}
        restore_leftovers(model)
        there = chosen(model, self.kinds)
        self.learnt = learn(
            model, split, there, rows=rows, quantile=quantile, margin=margin, per_neuron=scope == "neuron"
        )
        return self

    @classmethod
    def search(
        cls,
        model: nn.Module,
        split: CleanRows,
        score: "Callable[[ActivationClipping], float]",
        *,
        multipliers: Sequence[float] = MULTIPLIERS,
        steps: int = 0,
        **options: Any,
    ) -> "ActivationClipping":
        """Fitted bounds times the multiplier that a score likes best, as FT-ClipAct searches for its thresholds: first over a
        grid, then, between the neighbours of the best, by golden sections of the multiplier's logarithm.

        The score is the caller's: say, the mean AUC over trials of errors on validation rows, as of
        `drsrobust.campaign.auc_under_errors`. It must count a trial in which the model raises as lost: where such trials are
        left out, bounds that make more of them raise look better.

        So that bounds are not judged by what they were chosen for, use other error maps there than afterwards, and other rows.
        Maps follow from seeds: those of a campaign with `seed=1` on `data.valid` are disjoint from those of one with `seed=0`
        on `data.test`.

        Args:
            model, split: as in `fit`.
            score: (clipping) -> number, higher is better; called once for each multiplier that is tried. Of equal scores the
                larger multiplier wins, which changes less.
            multipliers: of the grid, each over 0.
            steps: of golden sections, after the grid.
            options: of `fit`.

        Raises:
            ValueError: as `fit`; no multiplier, or one that is not positive; a score that is NaN.
        """
        fitted = cls.fit(model, split, **options)
        best, tried = best_multiplier(lambda multiplier: score(fitted.scaled(multiplier)), multipliers, steps)
        found = fitted.scaled(best)
        found.name = found.name.replace(fitted.name, f"{fitted.name} searched", 1)
        found.tried = tried
        found._fit = fitted._fit | {"searched": [float(multiplier) for multiplier, _ in tried]}
        return found

    @classmethod
    def as_released(cls, bound: float) -> "ActivationClipping":
        """The clipping that the published code of arXiv:2307.10244 applies: behind every nn.Linear but the last one NaN
        becomes 0, then values saturate at -bound and bound. First-order terms, tables, cross layers and the logit are never
        clipped, nor is anything in FM, which has no such layer (this is no error here).

        Its bound was 1000 in March 2023, 6 in April 2023 and is 100 in its last commit. Only its version of 3 to 7 March 2023
        kept NaN: `ActivationClipping(bound, nan="keep", places="linear")`.
        """
        self = cls(bound, nan="zero", places=("linear",))
        self._needs_a_place = False
        self.name = f"clip as released {shown(bound)}"
        return self

    def scaled(self, multiplier: float) -> "ActivationClipping":
        """The same with all bounds times a number over 0."""
        if not 0 < multiplier < math.inf:
            raise ValueError(f"multiplier is {multiplier!r}; it must be a finite number over 0")
        other = copy(self)
        other.bound = None if self.bound is None else self.bound * multiplier
        if self.learnt is not None:
            other.learnt = {
                place: Bounds(one.low * multiplier, one.high * multiplier, one.values)
                for place, one in self.learnt.items()
            }
        other.name = f"{self.name} ({shown(multiplier)} x)"
        return other

    def bounds(self) -> "pd.DataFrame":
        """What was learnt: columns `place`, `module`, `layer`, `component`, `low`, `high` (per neuron: the widest of these),
        `stored` (numbers that are to be kept).

        Raises:
            ValueError: a fixed bound learnt nothing.
        """
        import pandas as pd

        if self.learnt is None:
            raise ValueError(f"{self.name} has one bound for all places, {self.bound:g}; nothing was learnt")
        rows = []
        for place, one in self.learnt.items():
            widest = (float(one.low.min()), float(one.high.max()), one.number)
            rows.append((place.kind, place.module, place.layer, place.component, *widest))
        frame = pd.DataFrame(rows, columns=["place", "module", "layer", "component", "low", "high", "stored"])
        return frame.astype({"layer": "Int64"})

    def settings(self) -> Any:
        found: dict[str, Any] = {"mode": self.mode, "nan": self.nan, "places": self.kinds and list(self.kinds)}
        found |= {"scope": self.scope, "bound": self.bound, "needs_a_place": self._needs_a_place}
        if self.learnt is not None:
            total = hashlib.sha256()
            for place, one in sorted(self.learnt.items(), key=lambda item: str(item[0])):
                total.update(f"{place} {list(one.low.shape)}\n".encode())
                total.update(one.low.numpy().tobytes() + one.high.numpy().tobytes())
            found |= {"fit": self._fit, "bounds": total.hexdigest()}
        return found

    def put_on(self, model: nn.Module, watch: Current) -> Iterator[Handle]:
        compiled = any("_orig_mod" in one._modules or one._compiled_call_impl is not None for one in model.modules())
        if compiled:
            raise ValueError("the model is compiled, which leaves hooks out; attach the clipping before torch.compile")
        yield from put_on(
            model, {place: limiter(low, high, self.mode, self.nan) for place, (low, high) in self._ends(model).items()}
        )

    def _ends(self, model: nn.Module) -> dict[Place, tuple[Any, Any]]:
        """The bounds of each place in a model."""
        if self.learnt is None:
            there = chosen(model, self.kinds) if self._needs_a_place else find(model)
            wanted = [place for place in there if self.kinds is None or place.kind in self.kinds]
            return dict.fromkeys(wanted, (-self.bound, self.bound))
        there = set(find(model))
        for place in self.learnt:
            if place not in there:
                raise ValueError(
                    f"{self.name} has bounds for {place}, which this {type(unwrapped(model)).__name__} does not have; it has: "
                    f"{', '.join(sorted(str(one) for one in there))}"
                )
        return {place: (one.low, one.high) for place, one in self.learnt.items()}

    def cost(self, model: nn.Module) -> Cost:
        """Bounds of 32 bits each (a fixed bound: one for all); two comparisons for each number that is bounded, counted as two
        multiply-adds; each number read and written once, 8 bytes, as a clamp of its own does (one in the layer's kernel would
        take none).

        How many numbers a sample has was counted where bounds were learnt. For a fixed bound it is what the modules' sizes
        say: a layer that a sample passes several times counts once, and of places of unknown width nothing.
        """
        if self.learnt is None:
            numbers = sum(place.width or 0 for place in self._ends(model))
            return Cost(stored_bits=32, multiply_adds=2 * numbers, bytes_touched=8 * numbers)
        numbers = math.ceil(sum(one.values for one in self.learnt.values()))
        stored = sum(one.number for one in self.learnt.values())
        return Cost(stored_bits=32 * stored, multiply_adds=2 * numbers, bytes_touched=8 * numbers)


def _check(what: str, given: Any, known: Sequence[str]) -> None:
    if given not in known:
        raise unknown(what, given, known)
