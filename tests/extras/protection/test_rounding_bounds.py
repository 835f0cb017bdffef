"""Rounding never reaches the thresholds of checksums, for any numbers and order of summation."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear, LinearCheck

SIZES = st.integers(0, 70)


def spread(rng, shape, low, high):
    """Numbers of both signs over many magnitudes, some of them 0."""
    values = rng.standard_normal(shape) * 10.0 ** rng.uniform(low, high, shape)
    return values * (rng.random(shape) > 0.1)


def layer_of(weight, bias):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.weight.data.copy_(weight)
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


def quiet(model, *inputs):
    """Whether a model's checks detect nothing on these inputs."""
    abft = ABFTLinear.fit(model) if isinstance(model, nn.Linear) else ABFTEmbeddingBag.fit(model)
    with torch.no_grad():
        plain = model(*inputs)
        with abft.attach(model) as watch:
            guarded = model(*inputs)
    assert torch.equal(plain, guarded)
    return watch.detected is False


@settings(max_examples=80, deadline=None)
@given(
    k=SIZES,
    n=st.integers(1, 70),
    rows=st.integers(1, 9),
    low=st.integers(-44, 10),
    width=st.integers(0, 30),
    shape=st.sampled_from(["spread", "cancelling", "positive"]),
    bias=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_false_alarm_of_a_layer(k, n, rows, low, width, shape, bias, double, seed):
    rng, dtype = np.random.default_rng(seed), torch.float64 if double else torch.float32
    high = min(low + width, 15)
    weight, x = spread(rng, (n, k), low, high), spread(rng, (rows, k), min(low, 0), min(high, 15))
    if shape == "cancelling" and k > 1:  # columns and products that add up to next to nothing
        weight[n // 2 :] = -weight[: n - n // 2]
        half = k // 2
        x[:, half : 2 * half], weight[:, half : 2 * half] = x[:, :half], -weight[:, :half] * (1 + 1e-7)
    if shape == "positive":
        weight, x = np.abs(weight), np.abs(x)
    given_bias = torch.tensor(spread(rng, n, low, high), dtype=dtype) if bias else None
    layer = layer_of(torch.tensor(weight, dtype=dtype), given_bias)
    assert quiet(layer, torch.tensor(x, dtype=dtype))


@pytest.mark.parametrize("order", ["forwards", "backwards", "by size", "random"])
def test_no_false_alarm_whatever_the_order_of_summation(order):
    """Outputs that add up their terms one by one, in float32, in the order that is worst for them."""
    rng = np.random.default_rng(0)
    for k, n in [(300, 1), (40, 30), (3, 200)]:
        weight, x = spread(rng, (n, k), -3, 3).astype(np.float32), spread(rng, (4, k), -3, 3).astype(np.float32)
        weight[:, k // 2 : k // 2 * 2] = -weight[:, : k // 2]
        x[:, k // 2 : k // 2 * 2] = x[:, : k // 2]
        products = x[:, None, :] * weight[None]  # [B, n, k]
        if order == "backwards":
            products = products[..., ::-1]
        elif order == "by size":
            products = np.sort(products, axis=2)
        elif order == "random":
            products = rng.permuted(products, axis=2)
        y = np.add.accumulate(products, axis=2, dtype=np.float32)[..., -1]
        layer = layer_of(torch.from_numpy(weight), None)
        look = LinearCheck.of("", layer).on(layer)
        assert look((torch.from_numpy(x),), {}, torch.from_numpy(np.ascontiguousarray(y))) is None
        wrong = y.copy()
        wrong[2, 0] += 1e-3 * np.abs(x[2]) @ np.abs(weight).sum(0)
        assert look((torch.from_numpy(x),), {}, torch.from_numpy(wrong)).tolist() == [2]


def test_sums_that_overflow_where_outputs_do_not():
    layer = layer_of(torch.full((8, 2), 1e19), None)
    x = torch.full((3, 2), 1e19)  # outputs of 2e38, sums of 1.6e39
    assert layer(x).isfinite().all() and quiet(layer, x)
    abft = ABFTLinear.fit(layer)
    with torch.no_grad(), abft.attach(layer) as watch:
        layer.weight.data[3, 0] = -1e19
        layer(x)
        assert watch.detected


def test_what_is_not_finite_counts_as_detected():
    layer = nn.Linear(5, 3)
    abft = ABFTLinear.fit(layer)
    for value in (float("nan"), float("inf"), -float("inf")):
        with torch.no_grad(), abft.attach(layer) as watch:
            x = torch.ones(4, 5)
            x[2, 1] = value
            layer(x)
            assert watch.detected


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 40),
    longest=st.integers(1, 50),
    mode=st.sampled_from(["sum", "mean"]),
    weighted=st.booleans(),
    low=st.integers(-44, 0),
    width=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_false_alarm_of_a_bag(dim, longest, mode, weighted, low, width, seed):
    rng = np.random.default_rng(seed)
    high = min(low + width, 15)
    bag = nn.EmbeddingBag(20, dim, mode=mode)
    bag.weight.data.copy_(torch.tensor(spread(rng, (20, dim), low, high)))
    lengths = rng.integers(0, longest + 1, 6)
    ids = torch.from_numpy(rng.integers(0, 20, lengths.sum()))
    offsets = torch.from_numpy(np.append(0, lengths.cumsum())[:-1])
    weights = torch.tensor(spread(rng, len(ids), -5, 5), dtype=torch.float32) if weighted and mode == "sum" else None
    assert quiet(bag, ids, offsets, weights)
