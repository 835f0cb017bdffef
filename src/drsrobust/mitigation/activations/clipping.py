"""Activation clipping: bounds on the numbers at chosen outputs of a model.

Sources: Chen, Li and Pattabiraman, "A low-cost fault corrector for deep neural networks through range restriction" (Ranger),
DSN 2021, arXiv:2003.13874: bounds from clean data, out-of-range values saturate. Hoang, Hanif and Shafique, "FT-ClipAct",
DATE 2020, arXiv:1912.00941: they become 0, bounds searched under faults. Bounds per neuron: FitAct, arXiv:2112.13544."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from drsrobust._arguments import check_function, check_items, check_number, check_whole, wrong
from drsrobust._choices import check_choice
from drsrobust.injection import restore_leftovers
from drsrobust.introspection.calling import Forward
from drsrobust.introspection.tensors import listed, unwrapped
from drsrobust.introspection.wrappers import check_module, is_compiled
from drsrobust.mitigation.activations.bounds import Bounds, CleanRows, check_rows, learn
from drsrobust.mitigation.activations.limits import CLIP_MODES, NANS, limiter
from drsrobust.mitigation.activations.sites import ClipSite, by_part, check_sites, find_sites, hook_sites, select_sites
from drsrobust.mitigation.base import (
    ActiveMitigation,
    Cost,
    Handle,
    Mitigation,
    confined_name,
    format_number,
    tensor_names,
    within,
)

if TYPE_CHECKING:
    import pandas as pd

FIT_ROWS = (
    100_000  # that bounds are learnt from: of 20,000, per neuron and to zero, up to 1e-4 AUC is lost without errors
)
SCOPES = ("layer", "neuron")
MULTIPLIERS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)


class ActivationClipping(Mitigation):
    """Fixed bounds: y = min(max(x, -bound), bound) at every site, or y = 0 where |x| > bound; for NaN see `nan`.

    `ActivationClipping.fit` learns bounds from clean rows, `.search` scales them under errors.
    `dr.mitigation.clip_sites(model)` lists the sites.

    Args:
        bound: over 0.
        mode: numbers outside become the nearer bound (`saturate`) or 0 (`zero`).
        nan: NaN becomes 0 (`zero`; with `saturate` the nearer bound, where 0 is outside), the upper bound (`bound`, only with
            `saturate`), or stays (`keep`).
        sites: kinds of sites, as `("linear", "logit")`; None: all that a model has.

    Attributes:
        name: for tables, as `clip 100`.
        learnt: site -> `Bounds` of fitted clipping; None with a fixed bound.
        tried: (multiplier, score) pairs of a search, in order.

    Raises:
        ValueError: a bound that is not positive, an unknown mode, site or NaN rule. On `attach`: a model without any of the
            sites, or without a site that has learnt bounds, or a compiled model (hooks would not run).

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1))
        >>> clip = ActivationClipping(6, sites="linear")
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
        sites: str | Sequence[str] | None = None,
    ) -> None:
        bound = check_number("bound", bound, "a finite number over 0, as 6 or 100", _is_positive)
        self._set(format_number(bound), mode, nan, sites)
        self.bound: float | None = bound

    def _set(self, label: str, mode: str, nan: str, sites: str | Sequence[str] | None) -> None:
        check_choice("mode", mode, CLIP_MODES)
        check_choice("nan", nan, NANS)
        if mode == "zero" and nan == "bound":
            raise ValueError("nan='bound' needs mode='saturate'; in mode 'zero' numbers outside become 0")
        self.mode, self.nan, self.sites = mode, nan, check_sites(sites)
        self.bound, self.scope = None, "layer"
        self.learnt: dict[ClipSite, Bounds] | None = None
        self._fit: dict[str, Any] | None = None  # how bounds were learnt
        self.tried: list[tuple[float, float]] = []
        parts = [f"clip {label}"]
        parts += ["to zero"] if mode == "zero" else []
        parts += [] if nan == "zero" else [f"NaN {'kept' if nan == 'keep' else 'to bound'}"]
        parts += [f"at {', '.join(self.sites)}"] if self.sites is not None else []
        self.name = " ".join(parts)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        split: CleanRows,
        *,
        rows: int = FIT_ROWS,
        quantile: float | None = None,
        margin: float = 1.0,
        scope: str = "layer",
        mode: str = "saturate",
        nan: str = "zero",
        sites: str | Sequence[str] | None = None,
        forward: Forward | None = None,
    ) -> "ActivationClipping":
        """Learns bounds from a model's outputs for training rows; errors that an interrupted `with` left are undone first.

        With bounds of all rows (no quantile, margin 1) these rows keep their scores bit for bit.

        Args:
            model: any module.
            split: training rows, as `data.train`; the first `rows` are used (splits are in random order), rounded down to a
                multiple of 32. Or Batches, as of `dr.data.from_batches`.
            rows: how many.
            quantile: None: bounds are the smallest and the largest value; else -m and m, where m is this quantile of |x|.
            margin: moves each bound b outwards, by (margin - 1) |b|.
            scope: one pair of bounds per site (`layer`), or per entry of its last dimension (`neuron`).
            mode, nan, sites: as for a fixed bound.
            forward: forward(model, batch), as of `Evaluator`.

        Raises:
            ValueError: a model without any of the sites, or with NaN or infinite values there; a number out of range.
        """
        check_choice("scope", scope, SCOPES)
        check_module(model)
        if quantile is not None:
            right = "over 0 and at most 1, as 0.999"
            quantile = check_number("quantile", quantile, right, lambda quantile: 0 < quantile <= 1)
        margin = check_number("margin", margin, "a finite number over 0, as 1.5", _is_positive)
        rows = check_whole("rows", rows, 1)
        check_rows("split", split)
        label = "profiled" if quantile is None else f"quantile {format_number(quantile)}"
        label += ("" if margin == 1 else f" x {format_number(margin)}") + (
            "" if rows == FIT_ROWS else f" from {rows} rows"
        )
        self = cls.__new__(cls)
        self._set(label + (" per neuron" if scope == "neuron" else ""), mode, nan, sites)
        self.scope = scope
        self._fit = {"rows": rows, "quantile": quantile, "margin": margin}
        restore_leftovers(model)
        options = {"rows": rows, "quantile": quantile, "margin": margin, "per_neuron": scope == "neuron"}
        options["forward"] = forward
        self.learnt = learn(model, split, select_sites(model, self.sites), **options)
        return self

    @classmethod
    def search(
        cls,
        model: nn.Module,
        split: CleanRows,
        score: "Callable[[ActivationClipping], float]",
        *,
        multipliers: Sequence[float] = MULTIPLIERS,
        **options: Any,
    ) -> "ActivationClipping":
        """Fitted bounds times the multiplier with the best score, of a grid (FT-ClipAct searches its thresholds so).

        A usual score is the mean AUC over trials of errors on validation rows, by `drsrobust.campaign.auc_under_errors`. A
        trial in which the model raises must count as lost, or else bounds that make more trials raise look better.

        Use other error maps and rows for the search than for the later measurement. A campaign with `seed=1` on `data.valid`
        has other maps than one with `seed=0` on `data.test`.

        Args:
            model, split: as in `fit`.
            score: (clipping) -> number, higher is better; called once per multiplier. Of equal scores the larger multiplier
                wins, which changes less.
            multipliers: of the grid, each over 0.
            options: of `fit`.

        Raises:
            ValueError: as `fit`; no multiplier, one that is not positive, or a score that is NaN.
        """
        check_function("score", score, "a function of a clipping that gives a number")
        fitted = cls.fit(model, split, **options)
        best, scores = best_multiplier(lambda multiplier: score(fitted.scaled(multiplier)), multipliers)
        searched = fitted.scaled(best)
        searched.name = searched.name.replace(fitted.name, f"{fitted.name} searched", 1)
        searched.tried = scores
        searched._fit = fitted._fit | {"searched": [float(multiplier) for multiplier, _ in scores]}
        return searched

    def scaled(self, multiplier: float) -> "ActivationClipping":
        """The same clipping with all bounds times a number over 0."""
        check_number("multiplier", multiplier, "a finite number over 0", _is_positive)
        scaled = copy(self)
        scaled.bound = None if self.bound is None else self.bound * multiplier
        if self.learnt is not None:
            scaled.learnt = {
                site: Bounds(bounds.low * multiplier, bounds.high * multiplier, bounds.values)
                for site, bounds in self.learnt.items()
            }
        scaled.name = f"{self.name} ({format_number(multiplier)} x)"
        return scaled

    def bounds(self) -> "pd.DataFrame":
        """Learnt bounds: columns `site`, `module` (followed by the part of an output of several tensors, as `[0]`), `layer`,
        `component`, `low`, `high` (per neuron: the widest), `stored` (how many numbers are stored).

        Raises:
            ValueError: fixed bounds.
        """
        import pandas as pd

        if self.learnt is None:
            raise ValueError(f"{self.name} has the fixed bound {self.bound:g} at all sites and no learnt bounds")
        rows = []
        for site, bounds in self.learnt.items():
            widest = (float(bounds.low.min()), float(bounds.high.max()), bounds.number)
            rows.append((site.kind, site.module + site.part, site.layer, site.component, *widest))
        frame = pd.DataFrame(rows, columns=["site", "module", "layer", "component", "low", "high", "stored"])
        return frame.astype({"layer": "Int64"})

    def settings(self) -> Any:
        settings: dict[str, Any] = {"mode": self.mode, "nan": self.nan, "sites": self.sites and list(self.sites)}
        settings |= {"scope": self.scope, "bound": self.bound}
        if self.learnt is not None:
            total = hashlib.sha256()
            for site, bounds in sorted(self.learnt.items(), key=lambda item: str(item[0])):
                total.update(f"{site} {list(bounds.low.shape)}\n".encode())
                total.update(bounds.low.numpy().tobytes() + bounds.high.numpy().tobytes())
            settings |= {"fit": self._fit, "bounds": total.hexdigest()}
        return settings

    def register_hooks(self, model: nn.Module, active: ActiveMitigation) -> Iterator[Handle]:
        if any(is_compiled(module) for module in model.modules()):
            raise ValueError("the model is compiled and would not run hooks; attach the clipping before torch.compile")
        ends = self._ends(model)
        limits = {site: limiter(low, high, self.mode, self.nan) for site, (low, high) in ends.items()}
        yield from hook_sites(model, by_part(limits))

    def _ends(self, model: nn.Module) -> dict[ClipSite, tuple[Any, Any]]:
        """Lower and upper bound of each site in a model."""
        if self.learnt is None:
            return dict.fromkeys(select_sites(model, self.sites), (-self.bound, self.bound))
        sites = set(find_sites(model))
        for site in self.learnt:
            if site.whole not in sites:
                raise ValueError(
                    f"{self.name} has bounds for {site}, which this {type(unwrapped(model)).__name__} does not have; it has: "
                    f"{', '.join(sorted(map(str, sites)))}"
                )
        return {site: (bounds.low, bounds.high) for site, bounds in self.learnt.items()}

    def covers(self, model: nn.Module) -> set[str]:
        names = [entry.name for entry in listed(model)]
        return set().union(*(within(site.module, names) for site in self.learnt or () if site.module))

    def on(self, tensors: Iterable[str]) -> "ActivationClipping":
        """Keeps the learnt bounds of the outputs of modules with any of the tensors.

        Raises:
            TypeError: a fixed bound.
        """
        tensors = tensor_names(tensors)
        if self.learnt is None:
            raise TypeError(f"{self.name} has one bound for all sites; only ActivationClipping.fit can be confined")
        confined = copy(self)
        confined.learnt = {
            site: bounds for site, bounds in self.learnt.items() if site.module and within(site.module, tensors)
        }
        confined.name = confined_name(self.name, tensors)
        return confined

    def cost(self, model: nn.Module) -> Cost:
        """Bounds of 32 bits each (a fixed bound: one in all); per bounded number two comparisons, counted as two multiply-adds,
        and 8 bytes, as a separate clamp reads and writes it (one fused into the layer's kernel takes none).

        Numbers per sample were counted while bounds were learnt. For a fixed bound they follow from the modules' sizes: a layer
        that a sample passes several times counts once, and sites of unknown width count nothing.
        """
        if self.learnt is None:
            stored, numbers = 1, sum(site.width or 0 for site in self._ends(model))
        else:
            stored = sum(bounds.number for bounds in self.learnt.values())
            numbers = math.ceil(sum(bounds.values for bounds in self.learnt.values()))
        return Cost(stored_bits=32 * stored, multiply_adds=2 * numbers, bytes_touched=8 * numbers)


def _is_positive(value: float) -> bool:
    return value > 0


def best_multiplier(
    score: Callable[[float], float], multipliers: Sequence[float]
) -> tuple[float, list[tuple[float, float]]]:
    """Tries every multiplier of a grid.

    Args:
        score: multiplier -> number, higher is better; called once for each.
        multipliers: in any order.

    Returns:
        the best multiplier (of equals the largest), and (multiplier, score) of each in the order tried.

    Raises:
        ValueError: no multiplier, one that is not positive, or a score that is NaN.

    Example:
        >>> best_multiplier(lambda m: -abs(m - 3), [1, 2, 4, 8])
        (4, [(1, -2), (2, -1), (4, -1), (8, -5)])
    """
    right = "one or more finite numbers over 0"
    grid = check_items("multipliers", multipliers, right)
    for multiplier in grid:
        check_number("each of multipliers", multiplier, "a finite number over 0", _is_positive)
    if not grid:
        raise wrong("multipliers", right, multipliers)
    scores: dict[float, float] = {}
    for multiplier in sorted(set(grid)):
        scores[multiplier] = score(multiplier)
        if math.isnan(scores[multiplier]):
            raise ValueError(f"the score of the bounds times {multiplier:g} is NaN")
    return max(scores, key=lambda multiplier: (scores[multiplier], multiplier)), list(scores.items())
