"""What cannot be, or cannot hit what it is given: refused with the argument's name and the value."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import drsrobust as dr
from drsrobust.injection import ErrorClock, Sum, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.injection.number_formats import format_named, plain, quantized_rows
from tests.injection.spaces import Mlp, Reads, holder, small, space_of
from tests.refusals import refuses

NAN, INF = math.nan, math.inf
CLOCK = ErrorClock(5, seed=1)
SPACE = space_of((2,))
DRAWN = dr.FixedCount(5).sample(space_of((24,)), seed=1)


def rows(table, numbers):
    return resolve(small(), dr.Rows(table, numbers))


def hot(**features):
    return resolve(small(), dr.Rows.hot("table", Reads(**features), 0.1))


def layer(features=3, dtype=torch.float32):
    return nn.Linear(4, features, dtype=dtype)


FLIPS = dr.BitFlip(0.1)


def on(model, error_model=FLIPS):
    return error_model.sample(resolve(model), seed=1)


def codes():
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


def complex_layer():
    return nn.Linear(2, 2, bias=False, dtype=torch.complex64)


QUANTIZED = AddressSpace([TargetTensor("t", "t", (3, 16), quantized_rows("int8", 8, 4, 16))])
UNHITTABLE = [
    (dr.StuckAt(1, 0.1, bits=(16,)), space_of((2,), "float16"), "bit 16", "float16"),
    (dr.SingleBit(8), space_of((2,), "int8"), "bit 8", "int8"),
    (dr.BitFlip(0.1, bits=(-1,)), space_of((2,), "int8"), "bit -1", "int8"),
    (dr.StuckAt(1, 0.1, bits="value"), SPACE, "value", "float32"),
    (dr.StuckAt(1, 0.1), SPACE, "t", "without a model"),
    (dr.MultiBit(0.1, 9), space_of((2,), "float8_e5m2"), "bits_per_word", 9),
    (dr.RandomValue(0.1, 0, 1e5), space_of((2,), "float16"), "float16", 100000),
    (dr.RandomValue(0.1, 0, 500), space_of((2,), "float8_e4m3fn"), "float8_e4m3fn", 500),
    (dr.RandomValue(0.1, -1, 5), space_of((2,), "uint8"), "uint8", -1),
    (dr.RandomValue(0.1, 0, 2**63), space_of((2,), "int64"), "int64", 2**63),
    (dr.RandomValue(0.1, 0.2, 0.8), space_of((2,), "int32"), "int32", 0.8),
    (dr.RandomValue(0.1, 0, 1), QUANTIZED, "t", "int8"),
]
RATED = [
    *(dr.BitFlip, dr.RandomWord, dr.RowError, lambda rate: dr.StuckAt(1, rate), lambda rate: dr.MultiBit(rate, 3)),
    *(lambda rate: dr.RandomValue(rate, 1, 2), lambda rate: dr.Burst(rate, 5)),
]
NO_RATES = (NAN, -1e-300, 1.0000001, INF)
CASES = [
    *[(lambda kind=kind, v=v: kind(v), "ber" if kind is dr.BitFlip else "rate", v) for kind in RATED for v in NO_RATES],
    # settings of error models
    (lambda: dr.Burst(0.1, 0), "length", 0),
    (lambda: dr.RowError(0.1, density=1.5), "density", 1.5),
    (lambda: dr.RowError(0.1, density=NAN), "density", NAN),
    (lambda: dr.RowError(0.1, row_bytes=12), "row_bytes", 12),
    (lambda: dr.RowError(0.1, row_bytes=0), "row_bytes", 0),
    (lambda: dr.RandomValue(0.1, 2, 1), "low", 2),
    (lambda: dr.RandomValue(0.1, 1, 1), "low", 1),
    (lambda: dr.RandomValue(0.1, 0, INF), "high", INF),
    (lambda: dr.RandomValue(0.1, False, 1), "low", False),
    (lambda: dr.BitFlip(0.1, bits=()), "bits", []),
    (lambda: dr.BitFlip(0.1, bits="exponant"), "exponant", "exponent"),
    (lambda: dr.StuckAt(1, 0.1, bits=("sing",)), "sing", "sign"),
    (lambda: dr.BitFlip(1e-3, others=1), "others", 1),
    (lambda: dr.FixedCount(3, critical="1+", others=0), "critical", "1+"),
    (lambda: on(layer(), dr.FixedCount(3, critical=0, others=4)), "others", 4),
    (lambda: on(nn.Linear(1, 1), dr.FixedCount(65)), "k", 65),
    *[(lambda case=case: case[0].sample(case[1], seed=1), *case[2:]) for case in UNHITTABLE],
    *[(lambda case=case: (case[0] + dr.BitFlip(0.1)).sample(case[1], seed=1), *case[2:]) for case in UNHITTABLE],
    (lambda: dr.BitFlip(0.1) + 3, "+", "int"),
    (lambda: Sum((dr.BitFlip(0.1), 3)), "sum", 3),
    # clocks
    (lambda: ErrorClock(0, seed=1), "n", 0),
    (lambda: ErrorClock(5, seed=2**64), "seed", 2**64),
    *[(lambda bounds=bounds: CLOCK.until(0.1, blocks=bounds), "blocks", bounds) for bounds in ((0, 2), (1, 0))],
    *[(lambda rate=rate: CLOCK.until(rate), "rate", rate) for rate in (1.5, -0.1, NAN)],
    (lambda: CLOCK.arrivals(-1), "rate", -1),
    *[(lambda k=k: CLOCK.first(k), "k", k) for k in (6, -1)],
    # maps
    (lambda: DRAWN.restrict((64,)), "float32", 64),
    (lambda: DRAWN.restrict("exponant"), "exponant", "exponent"),
    (lambda: DRAWN.restrict(()), "bits", []),
    (lambda: DRAWN.counts("bits"), "bits", "bit"),
    *[(lambda drop=drop: DRAWN.drop(drop), "words", 5) for drop in ([True], np.ones(5), np.ones((2, 2), bool), True)],
    (lambda: on(layer()) | on(layer(4)), "bias", [4]),
    (lambda: on(layer()) | on(layer(dtype=torch.float16)), "bias", "float16"),
    (lambda: on(layer()) | 3, "|", "int"),
    (lambda: on(layer(), dr.StuckAt(1, 0.5)) | on(layer(), dr.StuckAt(1, 0.5)), "a word", "differs"),
    (lambda: on(layer(30)).apply(layer(31)), "bias", [31]),
    (lambda: on(layer()).apply(layer(dtype=torch.float64)), "bias", "float64"),
    (lambda: on(layer()).applied(nn.EmbeddingBag(2, 2)).__enter__(), "bias", "does not have"),
    # targets
    (lambda: rows("table", [10]), "table.weight", "row 10"),
    (lambda: rows("table", [-1]), "table.weight", "row -1"),
    (lambda: rows("table", np.ones(9, bool)), "mask", [10]),
    (lambda: rows("tabel", [1]), "tabel", "table.weight"),
    (lambda: rows("*.weight", [1]), "*.weight", "other.weight"),
    (lambda: resolve(small(), dr.Rows.quantile("table", Reads(table=[1]), 0.15, 0.16)), "table.weight", 0.15),
    (lambda: hot(table=[10]), "table", "row 10"),
    (lambda: hot(x=[1]), "table.weight", "feature"),
    (lambda: dr.injection.Dtype("float17"), "dtype", "float17"),
    (lambda: resolve(small(), dr.injection.Dtype("float64")), "target", "float64"),
    (lambda: resolve(small(), dr.Rows("table", [1]) | "nothing"), "target", "nothing"),
    (lambda: resolve(small(), ["top.*", "nine"]), "target", "nine"),
    *[(lambda wrong=wrong: resolve(small(), wrong), "target", "3") for wrong in (3, [3], [["0.*"], 3])],
    (lambda: resolve(small(), []), "target", []),
    (lambda: resolve(complex_layer()), "weight", "complex64"),
    (lambda: dr.inject(complex_layer(), dr.StuckAt(1, 0.1), seed=1).__enter__(), "weight", "complex64"),
    (lambda: resolve(nn.Linear(2, 2, device="meta")), "bias", "meta"),
    (lambda: resolve(holder(codes=codes()), "everything"), "codes is", "qint8"),
    (lambda: resolve(holder(a=TwoTensor(torch.ones(3), torch.ones(3))), "everything"), "a is", "TwoTensor"),
    (lambda: resolve(nn.LazyLinear(3)), "bias", "initialised"),
    (lambda: resolve(holder(mask=torch.ones(3, dtype=torch.bool)), "mask"), "mask", "bool"),
    (lambda: resolve(holder(one=torch.zeros(1).expand(8)), "everything"), "one", "repeats"),
    (lambda: resolve(holder(table=torch.ones(3)), "all"), "all", "everything"),
    (lambda: plain(torch.bfloat16).eligible((16,)), "bfloat16", 16),
    (lambda: format_named("float31"), "number format", "float31"),
]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Lazy modules")
@pytest.mark.parametrize(("call", "name", "value"), CASES, ids=lambda part: None if callable(part) else str(part))
def test_refused_with_name_and_value(call, name, value):
    refuses(call, (ValueError, TypeError), name, value)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("mpl", "mlp"),
        ("mlp.9", "mlp."),
        ("embeding", "embedding"),
        ("embeddings.usr_id", "embeddings.user_id"),
        ("mlp.0.wieght", "mlp.0.weight"),
    ],
)
def test_the_nearest_names_are_suggested(wrong, nearest):
    said = (f"'{wrong}'", f"did you mean '{nearest}", "components: embedding, mlp, scale; 16 tensors")
    refuses(lambda: resolve(Mlp(), wrong), ValueError, *said)
