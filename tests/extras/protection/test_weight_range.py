"""The weight range check against a loop over the words."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from tests.mitigation.plain import screened


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.f32 = nn.Parameter(torch.randn(6, 5))
        self.vector = nn.Parameter(torch.rand(7) + 1)  # 0 lies outside of its range
        self.f64 = nn.Parameter(torch.randn(4, 3).double())
        self.f16 = nn.Parameter(torch.randn(4, 3).half())
        self.bf16 = nn.Parameter(torch.randn(4, 2, 3).bfloat16())
        self.transposed = nn.Parameter(torch.randn(5, 4).t())
        self.register_buffer("tiny", torch.randn(4, 3).to(torch.float8_e4m3fn))
        self.register_buffer("codes", torch.randint(-50, 50, (6, 4), dtype=torch.int8))
        self.register_buffer("wide", torch.randint(0, 1000, (6,), dtype=torch.int64))
        self.register_buffer("unsigned", torch.randint(0, 1000, (6, 2)).to(torch.uint16))


def by_hand(tensor, per, margin, repair, index, word):
    """What a word of a tensor, as it stands after errors, becomes."""
    plain = tensor.detach().double()
    rows = plain.reshape(len(plain) if per == "row" and plain.dim() > 1 else 1, -1)
    row = rows[index // (plain.numel() // len(rows))]
    low, high = float(row.min()), float(row.max())
    if margin != 1:
        low, high = low - (margin - 1) * abs(low), high + (margin - 1) * abs(high)
        if not tensor.dtype.is_floating_point:
            low, high = math.floor(low), math.ceil(high)
        elif tensor.dtype.itemsize > 1:
            low, high = (float(torch.tensor(end, dtype=torch.float64).to(tensor.dtype)) for end in (low, high))
    value = float(word.double())
    if low <= value <= high:
        return value
    if repair == "zero" or math.isnan(value):
        return 0.0
    return low if value < low else high


@pytest.mark.parametrize("per", ["tensor", "row"])
@pytest.mark.parametrize("repair", ["zero", "clamp"])
@pytest.mark.parametrize("margin", [1.0, 1.25])
def test_against_a_loop(per, repair, margin):
    model = Mixed()
    check = dr.WeightRange.fit(model, per=per, margin=margin, repair=repair)
    assert not check.unchecked
    caught = 0
    for seed, rate in enumerate((0.001, 0.02, 0.3, 0.5)):
        drawn = dr.BitFlip(rate).sample(dr.resolve(model, "everything"), seed=seed)
        left = screened(check, drawn, model, seed).remaining
        tensors = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
        expected = {}
        with drawn.applied(model):
            for name, word in zip(drawn.frame()["tensor"], drawn.word.tolist(), strict=True):
                now = getattr(model, name).detach().reshape(-1)[word]
                expected[name, word] = by_hand(tensors[name], per, margin, repair, word, now)
                caught += expected[name, word] != float(now.double())
        with left.applied(model):
            for (name, word), value in expected.items():
                now = float(getattr(model, name).detach().reshape(-1)[word].double())
                if margin != 1 and repair == "clamp":  # a bound rounded to the format
                    assert now == pytest.approx(value, rel=0.07), (name, word)
                else:
                    assert now == value, (name, word)
    assert caught > 50


def test_detected_and_repaired():
    model = nn.Linear(64, 64)
    with torch.no_grad():
        model.weight[0] = 0.0
    space = dr.resolve(model, "weight")
    sign = dr.FixedCount(5, bits="sign").sample(space, seed=1)
    with torch.no_grad():  # the range is as wide on both sides
        model.weight[1, 0], model.weight[1, 1] = -1.0, 1.0
    check = dr.WeightRange.fit(model)
    left = screened(check, sign, model, 1)
    assert np.array_equal(left.remaining.mask, sign.mask) and left.detected is False and left.repaired is None
    top = dr.FixedCount(5, bits=(30,)).sample(space, seed=1)
    left = screened(check, top, model, 1)
    assert left.detected is True and left.repaired is False  # zeros replace weights
    assert screened(check, top.drop(top.word >= 0), model, 1).detected is False
    zeros = dr.BitFlip(0.5, bits=(30,)).sample(space, seed=1)
    zeros = zeros.drop(zeros.word >= 64)  # the first row: from 0.0 to 2.0 and back
    left = screened(check, zeros, model, 1)
    assert len(zeros) and not len(left.remaining) and left.detected is True and left.repaired is True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantized_rows_are_left_alone(data):
    from torchrec.inference.modules import quantize_embeddings

    torch.manual_seed(0)
    model = quantize_embeddings(dr.models.build_model("dlrm", data.schema).eval(), dtype=torch.qint8, inplace=False)
    check = dr.WeightRange.fit(model)
    assert len(check.unchecked) == len(data.schema.features)
    assert all(name.startswith("sparse_arch") for name in check.unchecked)
    drawn = dr.BitFlip(1e-3).sample(dr.resolve(model, "embedding"), seed=1)
    left = screened(check, drawn, model, 1).remaining
    assert np.array_equal(left.mask, drawn.mask) and np.array_equal(left.word, drawn.word)


def test_identity_names_and_cost():
    model = Mixed()
    checks = [dr.WeightRange.fit(model), dr.WeightRange.fit(model, per="row"), dr.WeightRange.fit(model, margin=2)]
    checks += [dr.WeightRange.fit(model, repair="clamp")]
    assert len({check.identity() for check in checks}) == len({check.name for check in checks}) == 4
    for check in checks:
        again = pickle.loads(pickle.dumps(check))
        assert again.identity() == check.identity()
    linear = nn.Linear(5, 7)
    assert dr.WeightRange.fit(linear).cost(linear).stored_bits == 2 * 2 * 32
    cost = dr.WeightRange.fit(linear, per="row").cost(linear)
    assert cost.stored_bits == (7 + 1) * 2 * 32 and cost.multiply_adds == cost.bytes_touched == 0


def test_words_outside_of_their_range(trained):
    check = dr.WeightRange.fit(trained, per="row")
    assert check.outside(trained) == {}
    with dr.inject(trained, dr.FixedCount(3, bits=(30,)), "over_mlp", seed=0) as error_map:
        assert sum(check.outside(trained).values()) == len(error_map)
