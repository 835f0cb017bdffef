"""Bounds of the rounding error of checksums, for any order of summation.

Notation of N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002: u is the unit roundoff (2^-24
of float32), and gamma_m = m u / (1 - m u) (lemma 3.1). A sum of m terms in any order is off by at most gamma_(m-1) times the
sum of their magnitudes, an inner product of m terms by at most gamma_m |x|.|y| (sections 3.1 and 4.2), with or without fused
multiply-add."""

import math
from typing import NamedTuple

import torch

OPERANDS = {"float32": 0.0, "tf32": 2.0**-11, "bfloat16": 2.0**-8}  # relative rounding of factors before a product
MAX_FIRST_ORDER = 0.02  # up to here a first-order bound holds with five per cent added


class LinearSums(NamedTuple):
    """Checksums and bound of a layer Y = X W^T + b, in the layer's precision.

    Attributes:
        columns: [2, k]: column sums c of W, and t of the bound.
        offsets: [2]: the sum of b, and t_0 of the bound.
    """

    columns: torch.Tensor
    offsets: torch.Tensor


def gamma(m: int, u: float) -> float:
    """gamma_m; infinite if no bound holds.

    Example:
        >>> f"{gamma(512, 2**-24):.4g}"
        '3.052e-05'
    """
    return m * u / (1 - m * u) if m * u < 1 else math.inf


def unit_roundoff(dtype: torch.dtype) -> float:
    """u of rounding to nearest in a floating format.

    Example:
        >>> unit_roundoff(torch.float32) == 2**-24
        True
    """
    return torch.finfo(dtype).eps / 2


def linear_sums(weight: torch.Tensor, bias: torch.Tensor | None, operand: float = 0.0) -> LinearSums:
    """Checksums of a layer y_j = sum_l x_l W_jl + b_j with n outputs and k inputs, and a bound that rounding never reaches.

    Let c = W^T 1 and s = sum b, a = |W|^T 1 and A = |x|.a + sum |b|. In exact arithmetic sum_j y_j = x.c + s. The computed
    values are

    - y: a sum of k + 1 terms, k of which are rounded products: |y_j - exact| <= g1 (|x|.|W_j| + |b_j|), g1 = gamma_(k+1); if
      factors are rounded first (TF32, bfloat16), by r each, g1 grows by (1 + r)^2 - 1;
    - the sum of n outputs: off by gamma_(n-1) sum_j |y_j| <= gamma_(n-1) (1 + g1) A;
    - the column sums, in float64 and then rounded: |c' - c| <= e = u |c'| + 2 gamma^(64)_n a, and s' likewise;
    - x.c' + s': off by gamma_(k+1) (|x|.|c'| + |s'|);
    - the difference of both sums: a relative u.

    So without an error |computed difference| <= (1 + u) (g |x|.a + |x|.e + gamma_(k+1) |x|.|c'| + the same of the biases) with
    g = g1 + gamma_n (1 + g1). The coefficients of |x| are the vector t, the rest is t_0. Both are raised by 2 gamma_(k+3), so
    that the computed |x|.t + t_0 is not less than the exact one ((1 - g)(1 + 2 g) >= 1 up to g = 1/2), and rounded upwards.

    Underflow: a result, or an operand, below the smallest normal number f = 2^-126 may be off by f (numbers that are flushed to
    zero; gradual underflow is off by less), a product of x and w by up to f (1 + |x| + |w|). These are added, four times over.

    Args:
        weight: W [n, k], float32 or float64, finite, without errors.
        bias: b [n].
        operand: r.

    Raises:
        ValueError: the sums are not finite in this precision.
    """
    dtype, (n, k) = weight.dtype, weight.shape
    u, u64, f = unit_roundoff(dtype), unit_roundoff(torch.float64), torch.finfo(dtype).tiny
    w = weight.detach().double()
    b = torch.zeros(n, dtype=torch.float64, device=w.device) if bias is None else bias.detach().double()
    columns, offset = w.sum(0).to(dtype), b.sum().to(dtype)
    c, s, a, magnitude = columns.double().abs(), offset.double().abs(), w.abs().sum(0), b.abs().sum()
    inner = gamma(k + 1, u)
    product = inner + ((1 + operand) ** 2 - 1) * (1 + inner)
    total = product + gamma(n, u) * (1 + product)
    off = 2 * gamma(n, u64)
    raised = (1 + u) * (1 + 2 * gamma(k + 3, u))
    t = raised * ((total + off) * a + u * c + inner * c) + 4 * f * (n + 1)
    t0 = raised * ((total + off) * magnitude + u * s + inner * s)
    t0 = t0 + 4 * f * ((n + 1) * (k + 2) + a.sum() + c.sum() + t.sum())
    sums = LinearSums(torch.stack((columns, round_up(t, dtype))), torch.stack((offset, round_up(t0, dtype))))
    if not all(bool(part.isfinite().all()) for part in sums):
        raise ValueError(f"the sums of its {n} x {k} weights are not finite in {str(dtype).removeprefix('torch.')}")
    return sums


def bag_factor(longest: int, dim: int, u: float) -> float:
    """A bag's threshold, relative to its pooled magnitudes: row sums of |T|, weighted and pooled like the rows.

    With rows T_r of d values, checksums C_r = sum_j T_rj and A_r = sum_j |T_rj|, let w_r be the weights (1, given ones, or one
    over the number of rows), L rows in the bag and m = L + 2 (a product, L - 1 additions, a reciprocal and its product). Pooled
    values are off by gamma_m sum_r |w_r T_rj| each, their sum by gamma_d more; C_r by u |C_r|, its pooling by gamma_m, the
    difference of both sums by u; and the pooled A_r is at least 1 - gamma_m of its exact value. Altogether that is at most
    (d + 3 m + 3) u to first order. Five per cent are added for terms of second order, which suffices while the sum is below
    0.02; beyond, there is no bound.

    Args:
        longest: largest number of rows in the bag.
        dim: d.
        u: unit roundoff.

    Returns:
        the factor; infinite beyond its range (over 100,000 rows of float32 in a bag).

    Example:
        >>> round(bag_factor(1, 16, 2**-24) / 2**-24, 1)
        29.4
    """
    first = (dim + 3 * (longest + 2) + 3) * u
    return 1.05 * first if first < MAX_FIRST_ORDER else math.inf


def round_up(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float64 values rounded up."""
    near = values.to(dtype)
    above = torch.nextafter(near, torch.full_like(near, math.inf))
    return torch.where(near.double() < values, above, near)
