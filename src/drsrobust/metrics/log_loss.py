"""Predicted probabilities: log loss, normalised entropy and calibration in float64, and what a server returns, in float32."""

import numpy as np

from drsrobust.metrics._inputs import BLOCK, checked, checked_prior

P_MIN = 1e-12  # probabilities are clipped to [P_MIN, 1 - P_MIN], as TorchRec's normalised entropy does
MAX_LOGIT = 40.0  # logits beyond have a clipped probability, and their exponential stays finite
GROUP = 16  # rows whose factors are multiplied before the logarithm: at most 1e12 ** 16, far from float64's end


def served(scores: np.ndarray) -> np.ndarray:
    """Click probabilities of logits [n] as a server returns them: the sigmoid, computed in float32; NaN stays NaN.

    Logits over 17.4 give 1 and logits under -88.8 give 0, so scores beyond tie.

    Returns:
        float32 [n].

    Example:
        >>> served(np.array([0.0, 20.0, 1e30, -1e30, np.nan]))
        array([0.5, 1. , 1. , 0. , nan], dtype=float32)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-np.asarray(scores, np.float32)))


def probabilities(scores: np.ndarray, prior: float) -> np.ndarray:
    """Click probabilities float64 [n] of logits [n], clipped to [1e-12, 1 - 1e-12]; NaN becomes `prior`, the click rate of the
    training rows. A row's probability depends on its logit alone, bit for bit.

    Raises:
        ValueError: a prior outside [0, 1].

    Example:
        >>> probabilities(np.array([0.0, np.nan]), prior=0.25)
        array([0.5 , 0.25])
    """
    with np.errstate(invalid="ignore"):  # a NaN with its quiet bit off
        logits = np.clip(scores, -MAX_LOGIT, MAX_LOGIT).astype(np.float64, copy=False)
        p = 1 / (1 + np.exp(-logits))
    np.clip(p, P_MIN, 1 - P_MIN, out=p)
    missing = np.isnan(p)
    if missing.any():
        p[missing] = _clipped_rate(prior)
    return p


def log_loss(labels: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Mean binary cross-entropy, in nats, of logits [n] against labels [n]; NaN without rows.

    Args:
        labels: [n], 0 or 1.
        scores: [n], logits.
        prior: click rate of the training rows, what a NaN predicts.

    Raises:
        ValueError: labels and scores of different lengths, a label other than 0 and 1, or a prior outside [0, 1].

    Example:
        >>> log_loss(np.array([1, 0]), np.array([0.0, np.nan]), prior=0.5)
        0.693147180559945...
    """
    return mean_log(factors(*checked(labels, scores), prior))


def normalised_entropy(labels: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Log loss over the entropy of the rows' own click rate (He et al., ADKDD 2014); NaN when only one class is there.

    Arguments and errors are those of `log_loss`.

    Example:
        >>> normalised_entropy(np.array([1, 0]), np.array([0.0, 0.0]), prior=0.5)
        1.0
    """
    clicked, scores = checked(labels, scores)
    return mean_log(factors(clicked, scores, prior)) / entropy(clicked)


def calibration(labels: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Mean predicted probability over the rows' own click rate: 1 is right, more is too many clicks predicted.

    TorchRec's `CalibrationMetric` (sum of predictions over sum of labels); He et al., ADKDD 2014. Without a click it is NaN
    (there 0).

    Arguments and errors are those of `log_loss`.

    Example:
        >>> calibration(np.array([1, 0, 0, 0]), np.zeros(4), prior=0.25)
        2.0
    """
    clicked, scores = checked(labels, scores)
    return over_clicks(probabilities(scores, prior), clicked)


def over_clicks(p: np.ndarray, clicked: np.ndarray) -> float:
    """Sum of probabilities [n] over the number of clicks; NaN without a click."""
    clicks = np.count_nonzero(clicked)
    return float(p.sum() / clicks) if clicks else float("nan")


def entropy(clicked: np.ndarray) -> float:
    """Entropy, in nats, of the click rate of rows (bool [n]); NaN when only one class is there."""
    return entropy_of(np.count_nonzero(clicked), len(clicked))


def entropy_of(clicks: int, n: int) -> float:
    """`entropy` of n rows with so many clicks."""
    rate = clicks / max(n, 1)
    if rate in (0.0, 1.0):
        return float("nan")
    return float(-(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))


def factors(clicked: np.ndarray, scores: np.ndarray, prior: float) -> np.ndarray:
    """One over the probability that a row's label was given, float64 [n]: its logarithm is the row's loss.

    1 + exp(-logit) of a click, 1 + exp(logit) of another row. A row's factor depends on its logit and label alone, bit for
    bit, wherever the row lies.
    """
    factor = np.empty(len(scores))
    for start in range(0, len(scores), BLOCK):
        rows = slice(start, start + BLOCK)
        signed = np.clip(scores[rows], -MAX_LOGIT, MAX_LOGIT)
        with np.errstate(invalid="ignore"):  # a NaN with its quiet bit off
            signed *= 1 - 2 * clicked[rows].astype(signed.dtype)  # of one type and in place: four times as fast
            np.exp(signed, out=factor[rows], dtype=np.float64)
    factor += 1
    np.clip(factor, 1 / (1 - P_MIN), 1 / P_MIN, out=factor)
    missing = np.isnan(factor)
    if missing.any():
        p = _clipped_rate(prior)
        factor[missing] = np.where(clicked[missing], 1 / p, 1 / (1 - p))
    return factor


def mean_log(factor: np.ndarray) -> float:
    """Mean logarithm of factors [n] in [1, 1e12]; NaN without rows. Of products of 16, which spares 15 of 16 logarithms."""
    if not len(factor):
        return float("nan")
    n_grouped = len(factor) // GROUP * GROUP
    products = np.multiply.reduce(factor[:n_grouped].reshape(GROUP, -1), axis=0)
    remainder = np.multiply.reduce(factor[n_grouped:])
    return float((np.log(products).sum() + np.log(remainder)) / len(factor))


def _clipped_rate(prior: float) -> float:
    return min(max(checked_prior(prior), P_MIN), 1 - P_MIN)
