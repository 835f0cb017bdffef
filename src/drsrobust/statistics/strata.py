"""Estimates from trials of one condition, plain or stratified: by the number of critical flips, by chips, or by parts of the
bits that have trials of their own.

The mean of a stratified condition is sum_h W_h m_h, with the probability W_h of stratum h and the mean m_h of its trials. Its
interval is made of the strata's intervals (l_h, u_h) by recovered variances: from m - sqrt(sum_h W_h^2 (m_h - l_h)^2) to
m + sqrt(sum_h W_h^2 (u_h - m_h)^2) (G. Y. Zou, W. Huang, X. Zhang, Computational Statistics & Data Analysis 53, 2009). A plain
condition is one stratum of weight 1. Strata are after A. Ruospo et al., "Assessing convolutional neural networks reliability
through statistical fault injections", DATE 2023, and W. G. Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import ALL, CONDITION
from drsrobust.statistics.headline import losses_of
from drsrobust.statistics.intervals import CONFIDENCE, bounded_interval, mean_interval, stringer_interval, wilson

if TYPE_CHECKING:
    import pandas as pd

# Columns of a stratified table: the weights of a condition's trials sum to 1; in strata with a bounded loss no error map is
# taken to lose more than those that were drawn.
STRATUM, WEIGHT, LOSS_IS_BOUNDED = "stratum", "weight", "loss_is_bounded"
DROP = 0.001  # AUC: a trial that loses more is harmed
# Student's t is too narrow where fewer trials, and a smaller share of them, are harmed or carry the mean.
FEW_TRIALS, FEW_SHARE = 12, 0.25
LARGE_LOSS = 0.25  # of the largest loss: trials that lose more carry the mean
# How the interval of a stratum is made, as summaries name it.
STUDENT, STRINGER, RULE_OF_THREE = METHOD_NAMES = "Student's t", "Stringer's bound", "rule of three"
MetricBounds = tuple[float, float] | tuple[np.ndarray, np.ndarray]
AS_SEEN, UNKNOWN = "values as seen", ""
# `mean_interval` uses the rule of three by itself where all values agree.
METHODS = dict(zip(METHOD_NAMES, (mean_interval, stringer_interval, mean_interval), strict=True))


@dataclass(frozen=True)
class Strata:
    """The strata of the trials of one condition.

    Attributes:
        names: of the strata.
        weights: float64 [strata], their probabilities, which sum to 1.
        members: bool [strata, trials].
        few_harmful: bool [strata], whether so few trials of a stratum are harmed, or carry its mean loss, that Student's t is
            too narrow.
        loss_is_bounded: bool [strata], whether no value is taken to lie beyond those seen.
    """

    names: tuple[str, ...]
    weights: np.ndarray
    members: np.ndarray
    few_harmful: np.ndarray
    loss_is_bounded: np.ndarray

    @classmethod
    def of(cls, trials: "pd.DataFrame", losses: np.ndarray | None = None) -> "Strata":
        """The strata of a table's trials of one condition, of one or more campaigns. A trial is harmed if it loses over 0.001
        or raises.

        Args:
            trials: whose strata, weights and outcomes count.
            losses: float64 [trials], NaN of those without scores; None: those of the headline, as far as there are any.

        Raises:
            ValueError: weights that do not sum to 1, as of several conditions or of an unfinished one.
        """
        plain = STRATUM not in trials or trials[STRATUM].isna().all()
        names = np.full(len(trials), ALL) if plain else trials[STRATUM].astype(str).to_numpy()
        weight = np.full(len(trials), 1 / len(trials)) if plain else trials[WEIGHT].to_numpy(np.float64)
        total, columns = weight.sum(), [name for name in CONDITION if name in trials]
        if round(total) > 1 and trials[columns].nunique(dropna=False).le(1).all():
            check_trials(trials)
            weight = weight / round(total)  # campaigns with seeds of their own: strata are the same in all
        if not plain and not abs(weight.sum() - 1) < 1e-9:
            check_trials(trials)
            raise ValueError(
                f"the weights of {len(trials)} trials sum to {total:g}, not to 1: they are of several conditions, or "
                "some trials of one are missing"
            )
        # Without losses no trial is known to be harmless, so that none is counted as one of few harmful ones.
        harmed = np.ones(len(trials), bool)
        losses = losses_of(trials) if losses is None else losses
        if losses is not None and "outcome" in trials:
            harmed = (losses > DROP) | (trials["outcome"] == "raised").to_numpy(bool)
        strata = tuple(dict.fromkeys(names.tolist()))
        members = np.array([names == name for name in strata])
        # Trials of pilots have no weight, and are in no number.
        strata = tuple(name for name, member in zip(strata, members, strict=True) if weight[member].any())
        members = np.array([names == name for name in strata])
        losses = harmed.astype(float) if losses is None else losses
        is_bounded = np.zeros(len(trials), bool)
        if LOSS_IS_BOUNDED in trials:
            is_bounded = trials[LOSS_IS_BOUNDED].eq(True).to_numpy(bool)  # null in plain trials that were concatenated
        bounded = [bool(is_bounded[member].all()) for member in members]
        few = [
            _few(losses[member], None if is_bounded_stratum else harmed[member])
            for is_bounded_stratum, member in zip(bounded, members, strict=True)
        ]
        return cls(strata, members @ weight, members, np.array(few), np.array(bounded))

    @property
    def stratified(self) -> bool:
        """Whether there is more than plain maps."""
        return self.names != (ALL,)

    @property
    def shares(self) -> np.ndarray:
        """The part of each trial in the mean: float64 [trials], which sum to 1."""
        return (self.weights / self.members.sum(1)) @ self.members

    def mean(self, values: np.ndarray) -> float:
        """The mean of values [trials] without their NaN; NaN if there are no others."""
        weights, parts = self._parts(values)
        return float(weights @ [part.mean() for part in parts.values()]) if parts else float("nan")

    def mean_interval(
        self,
        values: np.ndarray,
        bounds: MetricBounds | None,
        confidence: float = CONFIDENCE,
    ) -> tuple[float, float, float]:
        """The mean of values [trials] and its interval.

        A stratum's interval is Student's; with few harmful trials it is Stringer's, which needs finite bounds; where all trials
        agree it is the rule of three. Of strata whose loss is bounded it is assumed that no value lies beyond those seen; if
        they are all equal, so is the mean.

        Args:
            values: NaN where a trial has no value.
            bounds: least and greatest possible value, of all strata or [strata] each; None: unknown.
            confidence: of the interval.

        Raises:
            ValueError: values outside the bounds.
        """
        weights, parts = self._parts(values)
        if not parts:
            return (float("nan"),) * 3
        intervals = [self._stratum(number, part, bounds, confidence) for number, part in parts.items()]
        means, below, above = np.array(intervals).T
        mean = float(weights @ means)
        # Strata are independent, so distances add in squares; each side by itself, since Stringer's bound is not symmetric.
        low, high = mean - np.linalg.norm(weights * below), mean + np.linalg.norm(weights * above)
        least, greatest = (weights @ ends for ends in np.transpose([self._bounds(number, bounds) for number in parts]))
        return mean, float(max(low, least)), float(min(high, greatest))

    def _bounds(self, number: int, bounds: MetricBounds | None) -> tuple[float, float]:
        """The bounds of a stratum."""
        if bounds is None:
            return -np.inf, np.inf
        return tuple(float(np.broadcast_to(end, self.weights.shape)[number]) for end in bounds)

    def methods(self, values: np.ndarray, bounds: MetricBounds | None) -> str:
        """How `mean_interval` makes the intervals of the strata: `Student's t`, `Stringer's bound`, `rule of three` (all trials
        agree), or several of these; empty where there is no interval."""
        by_stratum = [self._method(number, part, bounds) for number, part in self._parts(values)[1].items()]
        return (
            ""
            if UNKNOWN in by_stratum
            else ", ".join(sorted({*by_stratum} - {AS_SEEN}) or [AS_SEEN] * bool(by_stratum))
        )

    def _method(self, number: int, values: np.ndarray, bounds: MetricBounds | None) -> str:
        with np.errstate(invalid="ignore"):  # of infinite values
            alike = np.ptp(values) <= 1e-12 * abs(values).max()  # but for rounding
        if self.loss_is_bounded[number] and values.min() == values.max():
            return AS_SEEN
        has_bounds = bounds is not None and (
            self.loss_is_bounded[number] or bool(np.isfinite(self._bounds(number, bounds)).all())
        )
        if alike:
            return RULE_OF_THREE if bounds is not None else UNKNOWN
        if not self.few_harmful[number]:
            return STUDENT
        return STRINGER if has_bounds else UNKNOWN

    def _stratum(self, number: int, values: np.ndarray, bounds: MetricBounds | None, confidence: float) -> tuple:
        """Mean of a stratum, and how far the ends of its interval lie from it."""
        method = self._method(number, values, bounds)
        if method == AS_SEEN:
            return float(values[0]), 0.0, 0.0
        if method == UNKNOWN:
            return mean_interval(values)[0], float("nan"), float("nan")
        ends = (values.min(), values.max()) if self.loss_is_bounded[number] else bounds and self._bounds(number, bounds)
        mean, low, high = METHODS[method](values, bounds=ends, confidence=confidence)
        return float(mean), float(mean - low), float(high - mean)

    def ratio(
        self, numerator: np.ndarray, denominator: np.ndarray, confidence: float = CONFIDENCE
    ) -> tuple[float, float, float]:
        """The ratio of two means over the same trials, and Fieller's interval: all r for which the mean of numerator - r *
        denominator may be 0, by Student's t with Satterthwaite's degrees of freedom. The ends are NaN where the denominator may
        be 0."""
        from scipy.special import stdtrit

        weights, tops = self._parts(numerator)
        bottoms = list(self._parts(denominator)[1].values())
        if not tops:
            return (float("nan"),) * 3
        means = np.array([[x.mean(), y.mean()] for x, y in zip(tops.values(), bottoms, strict=True)])
        top, bottom = weights @ means
        if not bottom or min(map(len, bottoms)) < 2:
            return float(top / bottom) if bottom else float("nan"), float("nan"), float("nan")
        ns = np.array([len(y) for y in bottoms])
        spread = np.array([np.cov(x, y) for x, y in zip(tops.values(), bottoms, strict=True)])
        spread *= (weights**2 / ns)[:, None, None]  # of the mean, by stratum
        share = float(top / bottom)
        variances = spread @ [1, -share] @ [1, -share]  # variances of numerator - share * denominator
        freedom = variances.sum() ** 2 / (variances**2 / (ns - 1)).sum() if variances.any() else ns.sum() - len(ns)
        (xx, xy), (_, yy) = stdtrit(freedom, (1 + confidence) / 2) ** 2 * spread.sum(0)
        a, b, c = bottom**2 - yy, top * bottom - xy, top**2 - xx
        if a <= 0:
            return share, float("nan"), float("nan")
        root = np.sqrt(max(b * b - a * c, 0.0))
        return share, float(min(share, (b - root) / a)), float(max(share, (b + root) / a))

    def upper_bound(self, values: np.ndarray, bounds: tuple[float, float], confidence: float = CONFIDENCE) -> float:
        """An upper bound of the mean that assumes nothing but the bounds: the sum of the strata's upper bounds by betting
        (`bounded_interval`), each at a share of the error (Bonferroni).

        Raises:
            ValueError: values outside the bounds.
        """
        weights, parts = self._parts(values)
        # `bounded_interval` has two sides, of which one is used: half of its error.
        level = 1 - 2 * (1 - confidence) / max(1, len(parts))
        return float(weights @ [bounded_interval(part, bounds, level)[2] for part in parts.values()])

    def share(self, flags: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
        """The share of trials with a property (bool [trials]) and its interval, of Wilson's intervals of the strata."""
        intervals = [wilson(int(flags[member].sum()), int(member.sum()), confidence) for member in self.members]
        shares, lows, highs = np.array(intervals).T
        if len(shares) == 1:
            return tuple(map(float, intervals[0]))
        share = float(self.weights @ shares)
        below, above = np.linalg.norm(self.weights * (shares - lows)), np.linalg.norm(self.weights * (highs - shares))
        return share, float(max(0.0, share - below)), float(min(1.0, share + above))

    def quantile(self, values: np.ndarray, q: float) -> float:
        """The q-quantile of values [trials] without their NaN. Of plain trials it is interpolated between two values, of
        stratified ones it is the least value that has a share q of the weight at or below it."""
        is_number = ~np.isnan(values)
        if not is_number.any():
            return float("nan")
        if not self.stratified:
            return float(np.quantile(values[is_number], q))
        weights = self.shares
        order = np.argsort(values[is_number], kind="stable")
        cumulated = np.cumsum(weights[is_number][order])
        return float(values[is_number][order][np.searchsorted(cumulated, q * cumulated[-1] * (1 - 1e-12))])

    def _parts(self, values: np.ndarray) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The values without NaN of each stratum that has some, by its number, and the weights of these strata, each times its
        share of trials with a value, summing to 1."""
        is_number = ~np.isnan(values)
        parts = {
            number: values[member & is_number]
            for number, member in enumerate(self.members)
            if (member & is_number).any()
        }
        # A trial without a value takes its weight along: its stratum counts for less, not its other trials for more.
        weights = np.array([self.weights[n] * len(part) / self.members[n].sum() for n, part in parts.items()])
        return weights / weights.sum(), parts


def check_trials(table: "pd.DataFrame") -> None:
    """Raises ValueError for a trial that a table holds twice: with one trial number and seed in one condition of one trained
    model and set of rows (a table without seeds is not checked)."""
    keys = [*CONDITION, "mitigation_id", "checkpoint", "data", STRATUM, "seed", "trial"]
    if "seed" not in table:
        return
    is_repeated = table.duplicated([key for key in keys if key in table]).to_numpy()
    if is_repeated.any():
        first = table.iloc[int(is_repeated.argmax())]
        row = ", ".join(f"{key} {first[key]}" for key in ("trial", *keys[:-2]) if key in table and key != "ber")
        raise ValueError(
            f"the table holds {int(is_repeated.sum()):,} trials twice, which would narrow intervals: the first is {row} (seed "
            f"{first['seed']}); give each campaign's table once, or drop_duplicates()"
        )


def _few(losses: np.ndarray, harmed: np.ndarray | None) -> bool:
    """Whether few trials are harmed (None: that does not matter), or few lose more than a quarter of the largest loss."""
    losses = losses[~np.isnan(losses)]
    large = losses > LARGE_LOSS * losses.max(initial=0.0)
    return any(
        flags is not None and flags.sum() < FEW_TRIALS and flags.sum() < FEW_SHARE * len(flags)
        for flags in (harmed, large)
    )
