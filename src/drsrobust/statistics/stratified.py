"""Stratified sampling: each component and class of bits has its own trials, weighted by its share of bits.

Most single errors have no effect and a few bits cause most of the harm, so trials spread evenly over bits are mostly spent on
the former. After A. Ruospo et al., "Assessing convolutional neural networks reliability through statistical fault injections",
DATE 2023; the formulas are those of W. G. Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5 (draws with replacement:
the correction for a finite population is negligible).
"""

from collections.abc import Sequence

import numpy as np

from drsrobust.statistics.intervals import CONFIDENCE, rule_of_three, wilson


def stratified_mean(
    weights: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    ns: np.ndarray,
    confidence: float = CONFIDENCE,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> tuple[float, float, float]:
    """The mean over all strata, sum_h W_h m_h, and its confidence interval: +- t sqrt(sum_h W_h^2 s_h^2 / n_h) (Cochran,
    section 5.4), with Satterthwaite's degrees of freedom (F. E. Satterthwaite, Biometrics Bulletin 2, 1946; Cochran,
    equation 5.16).

    A stratum with equal trials has s_h = 0, yet up to u = `rule_of_three(n_h)` of it may differ by as much as the bounds allow:
    its mean lies between m_h - u (m_h - least) and m_h + u (greatest - m_h). These distances, times W_h, are added in squares
    to either half (recovered variances, as in `stratified_proportion`). The interval ends at the bounds.

    Args:
        weights: [strata], summing to 1.
        means, variances: [strata], of the trials; variances with n - 1.
        ns: [strata], trials, at least 2 each.
        confidence: of the interval.
        bounds: least and greatest possible value, of all strata or [strata] each.

    Raises:
        ValueError: weights that do not sum to 1, arrays of other shapes, fewer than 2 trials, means outside the bounds.

    Example:
        >>> stratified_mean([0.9, 0.1], [0.0, 0.2], [0.0, 0.04], [300, 100])
        (0.0200..., 0.0160..., 0.0297...)
    """
    from scipy.stats import t

    weights, means, variances, ns = _same_strata(weights, means=means, variances=variances, ns=ns)
    least, greatest = (np.broadcast_to(bound, weights.shape) for bound in bounds)
    if (ns < 2).any():
        raise ValueError(f"strata have {ns.astype(int).tolist()} trials; a variance needs two of each")
    if not ((means >= least) & (means <= greatest) & (variances >= 0)).all():
        raise ValueError(f"means {means.tolist()} must lie within {bounds!r}, and variances be 0 or more")
    mean = float(weights @ means)
    parts = weights**2 * variances / ns
    half = 0.0
    if parts.any():
        freedom = parts.sum() ** 2 / (parts**2 / (ns - 1)).sum()
        half = float(t.ppf((1 + confidence) / 2, freedom) * np.sqrt(parts.sum()))
    share = np.where(variances == 0, [rule_of_three(n, confidence) for n in ns], 0.0)
    below = np.hypot(half, np.linalg.norm(weights * share * (means - least)))
    above = np.hypot(half, np.linalg.norm(weights * share * (greatest - means)))
    return mean, float(max(mean - below, weights @ least)), float(min(mean + above, weights @ greatest))


def stratified_proportion(
    weights: np.ndarray, counts: np.ndarray, ns: np.ndarray, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """The share over all strata, sum_h W_h p_h, and its confidence interval by variance recovered from each stratum's Wilson
    interval (l_h, u_h): from p - sqrt(sum_h W_h^2 (p_h - l_h)^2) to p + sqrt(sum_h W_h^2 (u_h - p_h)^2) (G. Y. Zou, W. Huang,
    X. Zhang, "A note on confidence interval estimation for a linear function of binomial proportions", Computational
    Statistics & Data Analysis 53, 2009). A stratum without events counts with its Wilson interval.

    Args:
        weights: [strata], summing to 1.
        counts, ns: [strata], events and trials, at least 1 each.
        confidence: of the interval.

    Raises:
        ValueError: weights that do not sum to 1, arrays of other shapes, counts above trials, a stratum without trials.

    Example:
        >>> stratified_proportion([0.9, 0.1], [0, 20], [300, 100])
        (0.0200..., 0.0133..., 0.0344...)
    """
    weights, counts, ns = _same_strata(weights, counts=counts, ns=ns)
    if (ns < 1).any() or (counts < 0).any() or (counts > ns).any():
        raise ValueError(
            f"{counts.tolist()} events in {ns.tolist()} trials; each stratum needs trials, and no more events"
        )
    shares, lows, highs = np.array(
        [wilson(int(count), int(n), confidence) for count, n in zip(counts, ns, strict=True)]
    ).T
    share = float(weights @ shares)
    below, above = np.linalg.norm(weights * (shares - lows)), np.linalg.norm(weights * (highs - shares))
    return share, float(max(0.0, share - below)), float(min(1.0, share + above))


def _same_strata(weights: Sequence[float], **arrays: Sequence[float]) -> tuple[np.ndarray, ...]:
    found = np.asarray(weights, np.float64)
    if found.ndim != 1 or not len(found) or not (found >= 0).all() or abs(found.sum() - 1) > 1e-9:
        raise ValueError(f"weights are {found.tolist()}; they must be [strata], 0 or more, and sum to 1")
    others = [np.asarray(array, np.float64) for array in arrays.values()]
    for name, other in zip(arrays, others, strict=True):
        if other.shape != found.shape:
            raise ValueError(f"{name} have shape {other.shape}; they must be as many as the weights, {len(found)}")
    return found, *others
