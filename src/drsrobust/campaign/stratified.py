"""Stratified sampling: components times classes of bits, each with trials of its own, put together by their shares of bits.

Most single errors do nothing and a few bits do most of the harm, so trials spread evenly over bits are spent on the
former. After A. Ruospo et al., "Assessing convolutional neural networks reliability through statistical fault injections",
DATE 2023; the formulas are those of W. G. Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5 (draws with replacement:
among as many bits as a model has, the correction for a finite population is nothing).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign.statistics import LEVEL, unseen, wilson
from drsrobust.injection import AddressSpace, Dtype, Target, as_target
from drsrobust.injection.formats import FIELDS, Format, format_named

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

BIT_CLASSES = (
    "sign",
    "exponent_top",
    "exponent_high",
    "exponent_low",
    "mantissa",
    "value_high",
    "value_low",
    "value",
    "scale",
    "bias",
)
_LOW = 4  # exponent bits that scale by 2, 4, 16 and 256


def bit_classes(number_format: str | Format) -> dict[str, tuple[int | str, ...]]:
    """The bits of a word by what their flips do, as `bits` of an error model.

    Of floating formats: `sign`; `exponent_top`, the exponent's highest bit, which makes a weight huge; `exponent_high`, those
    that scale by 2^16 or more; `exponent_low`, the four that scale by 2, 4, 16 and 256; `mantissa`. In float32: 31, 30, 29-27,
    26-23, 22-0 (the classes of the statistical injection literature). Of integers: `sign`, `value_high` and `value_low`, the
    halves of the others. Of quantized rows: their fields, `value`, `scale` and `bias`, as codes lie anywhere in a byte.

    Args:
        number_format: a name, as `float32`, or a `Format`.

    Raises:
        ValueError: a name that is no number format.

    Example:
        >>> {name: (bits[0], bits[-1]) for name, bits in bit_classes("float16").items()}
        {'sign': (15, 15), 'exponent_top': (14, 14), 'exponent_low': (10, 13), 'mantissa': (0, 9)}
    """
    known = format_named(number_format) if isinstance(number_format, str) else number_format
    fields = {name: mask for name in FIELDS if (mask := int(np.bitwise_or.reduce(known.fields.get(name, [0]))))}
    if "scale" in fields:
        return {name: (name,) for name in ("value", "scale", "bias")}
    numbers = {name: tuple(bit for bit in range(known.width) if mask >> bit & 1) for name, mask in fields.items()}
    found = {"sign": numbers.get("sign", ())}
    if "exponent" in numbers:
        *lower, top = numbers["exponent"]
        found |= {"exponent_top": (top,), "exponent_high": tuple(lower[_LOW:]), "exponent_low": tuple(lower[:_LOW])}
        found["mantissa"] = numbers["mantissa"]
    else:
        value = numbers["value"]
        found |= {"value_high": value[len(value) // 2 :], "value_low": value[: len(value) // 2]}
    return {name: bits for name, bits in found.items() if bits}


def strata(
    model: "nn.Module", target: "str | Target" = "all", components: Mapping[str, str] | None = None
) -> "pd.DataFrame":
    """Components times number formats times classes of bits: a partition of the bits that errors may hit.

    A trial of a stratum is `FixedCount(1, bits=bits)` in its `target`.

    Args:
        model: any module.
        target: what may be hit.
        components: overrides, as in `components()`.

    Returns:
        one row per stratum: `component`, `format` (`float32`, `int8 rows`), `bit_class`, `bits` (a tuple), `target` (string
        or Target), `eligible` (bits), `weight` (their share of all).

    Raises:
        ValueError: as `drsrobust.injection.resolve`; a target that takes chosen rows of several components.

    Example:
        >>> from torch import nn
        >>> model = nn.ModuleDict({"bottom": nn.Linear(4, 8), "top": nn.Linear(8, 1)})
        >>> strata(model)[["component", "bit_class", "eligible", "weight"]].head(3)
          component      bit_class  eligible    weight
        0    bottom           sign        40  0.025510
        1    bottom   exponent_top        40  0.025510
        2    bottom  exponent_high       120  0.076531
    """
    import pandas as pd

    whole = as_target(target).resolve(model, components)
    parts: dict[tuple[str, str], list] = {}
    for tensor in whole.tensors:
        parts.setdefault((tensor.component, tensor.format.name.partition(":")[0]), []).append(tensor)
    rows = []
    for (component, kind), tensors in sorted(parts.items()):
        here = _target(model, target, component, tensors, components)
        for name, bits in bit_classes(tensors[0].format).items():
            eligible = AddressSpace(tensors, bits).bits
            rows.append({"component": component, "format": kind, "bit_class": name, "bits": bits, "target": here})
            rows[-1] |= {"eligible": eligible, "weight": eligible / whole.bits}
    return pd.DataFrame(rows)


def neyman(weights: np.ndarray, sds: np.ndarray, n: int, minimum: int = 2) -> np.ndarray:
    """How many of n trials each stratum gets so that the mean's variance is least: in proportion to weight times standard
    deviation (J. Neyman, Journal of the Royal Statistical Society 97, 1934; Cochran, equation 5.26), at least `minimum` each.

    Args:
        weights: [strata], shares of all bits.
        sds: [strata], standard deviations known so far (of a share p: sqrt(p (1 - p))). Where a first few trials were all
            alike, 0 is an underestimate, and `minimum` is what stands against it. If all are 0, weights alone count.
        n: trials in all.
        minimum: per stratum; 2 is the least that gives a variance.

    Returns:
        int64 [strata], summing to n.

    Raises:
        ValueError: shapes that differ, negative numbers, or n less than `minimum` per stratum.

    Example:
        >>> neyman([0.5, 0.3, 0.2], [0.0, 0.1, 0.3], 100, minimum=10)
        array([10, 30, 60])
    """
    weights, sds = np.asarray(weights, np.float64), np.asarray(sds, np.float64)
    if weights.ndim != 1 or weights.shape != sds.shape or not len(weights):
        raise ValueError(f"weights have shape {weights.shape} and sds {sds.shape}; they must be [strata] each")
    if not ((weights >= 0).all() and (sds >= 0).all() and weights.sum() > 0):
        raise ValueError("weights and sds must be 0 or more, and some weight more than 0")
    if n < minimum * len(weights):
        raise ValueError(f"{n} trials are too few for {len(weights)} strata with at least {minimum} each")
    size = weights * sds if (weights * sds).any() else weights
    least = np.zeros(len(size), bool)  # strata that get the minimum, since their share would be less
    while True:
        rest = n - minimum * least.sum()
        free = np.where(least, 0.0, size)
        share = np.where(least, minimum, rest * free / free.sum() if free.any() else 0.0)
        if not (low := (share < minimum) & ~least).any():
            break
        least |= low
    found = np.floor(share + 1e-9).astype(np.int64)
    remainder = np.where(least, -1.0, share - found)
    found[np.argsort(-remainder, kind="stable")[: n - found.sum()]] += (
        1  # what rounding left goes to the largest remainders
    )
    return found


def stratified_mean(
    weights: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    ns: np.ndarray,
    level: float = LEVEL,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> tuple[float, float, float]:
    """The mean over all strata, sum_h W_h m_h, and its confidence interval: +- t sqrt(sum_h W_h^2 s_h^2 / n_h) (Cochran,
    section 5.4), with Satterthwaite's degrees of freedom (F. E. Satterthwaite, Biometrics Bulletin 2, 1946; Cochran,
    equation 5.16).

    A stratum whose trials were all alike has s_h = 0 and would count as known. It does not: up to u = `unseen(n_h)` of it
    (about 3 / n_h) may differ by as much as the bounds allow, so its mean lies between m_h - u (m_h - least) and
    m_h + u (greatest - m_h). These distances, times W_h, are added in squares to either half (recovered variances, as in
    `stratified_proportion`). The interval ends at the bounds. A stratum with hardly any variance has its t interval's troubles
    still: give it trials enough.

    Args:
        weights: [strata], summing to 1.
        means, variances: [strata], of the trials; variances with n - 1.
        ns: [strata], trials, at least 2 each.
        level: of confidence.
        bounds: least and greatest value that can be, of all strata or [strata] each.

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
        half = float(t.ppf((1 + level) / 2, freedom) * np.sqrt(parts.sum()))
    share = np.where(variances == 0, [unseen(n, level) for n in ns], 0.0)
    below = np.hypot(half, np.linalg.norm(weights * share * (means - least)))
    above = np.hypot(half, np.linalg.norm(weights * share * (greatest - means)))
    return mean, float(max(mean - below, weights @ least)), float(min(mean + above, weights @ greatest))


def stratified_proportion(
    weights: np.ndarray, counts: np.ndarray, ns: np.ndarray, level: float = LEVEL
) -> tuple[float, float, float]:
    """The share over all strata, sum_h W_h p_h, and its confidence interval by variance recovered from each stratum's Wilson
    interval (l_h, u_h): from p - sqrt(sum_h W_h^2 (p_h - l_h)^2) to p + sqrt(sum_h W_h^2 (u_h - p_h)^2) (G. Y. Zou, W. Huang,
    X. Zhang, "A note on confidence interval estimation for a linear function of binomial proportions", Computational
    Statistics & Data Analysis 53, 2009). A stratum without any event counts with its Wilson interval, not as known.

    Args:
        weights: [strata], summing to 1.
        counts, ns: [strata], events and trials, at least 1 each.
        level: of confidence.

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
    shares, lows, highs = np.array([wilson(int(count), int(n), level) for count, n in zip(counts, ns, strict=True)]).T
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


def _target(
    model: "nn.Module",
    whole: "str | Target",
    component: str,
    tensors: list,
    components: Mapping[str, str] | None,
) -> "str | Target":
    """The simplest target that means these tensors of a component, and these rows of them."""
    dtype = tensors[0].format.dtype
    candidates: list[str | Target] = [component, whole, Dtype(dtype, component), Dtype(dtype, whole)]
    if all(tensor.rows is None for tensor in tensors):
        named: str | Target = tensors[0].name
        for tensor in tensors[1:]:
            named = as_target(named) | tensor.name
        candidates.append(named)
    wanted = _places(tensors)
    for candidate in candidates:
        try:
            if _places(as_target(candidate).resolve(model, components).tensors) == wanted:
                return candidate
        except ValueError:  # another component of this name's group holds something that cannot be hit
            continue
    raise ValueError(
        f"{whole}: no target means its rows in {component} alone; take the strata of one component's rows at a time"
    )


def _places(tensors: Sequence) -> set:
    return {(tensor.name, None if tensor.rows is None else tensor.rows.tobytes()) for tensor in tensors}
