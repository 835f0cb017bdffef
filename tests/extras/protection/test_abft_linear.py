"""ABFT on linear layers: detection, actions, and a clean detach."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.models import build_model, padded_batches, score
from drsrobust_extras.protection.abft.linear import Differences, LinearCheck
from tests.click_models import CLICK_MODELS


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1)), torch.randn(50, 20)


def traces(model):
    return [
        (name, list(module.__dict__), list(module._forward_hooks), list(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]


def fitted(model, data, **options):
    rows = data.train.head(2000) if options.get("mode") == "calibrated" else None
    return dr.ABFTLinear.fit(model, rows, **options)


@pytest.mark.parametrize(("name", "mode"), [*((name, "provable") for name in CLICK_MODELS), ("dlrm", "calibrated")])
def test_every_model_by_its_modules(name, mode, data):
    torch.manual_seed(0)
    model = build_model(name, data.schema)
    before, batches = traces(model), padded_batches(data.valid)
    plain = score(model, batches, len(data.valid))
    abft = fitted(model, data, mode=mode)
    linear = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert abft.covered == linear and linear
    assert model.training
    with abft.attach(model) as watch:
        assert np.array_equal(score(model, batches, len(data.valid)), plain)
        assert watch.detected is False and watch.repaired is None
    assert traces(model) == before
    with abft.attach(model) as watch, dr.inject(model, dr.FixedCount(4, bits=(30,)), f"{linear[-1]}.weight", seed=3):
        score(model, batches, len(data.valid))
        assert watch.detected


@pytest.mark.parametrize("bit", [23, 27, 30, 31])
def test_every_sign_and_exponent_that_a_batch_uses(bit):
    model, x = two_layers()
    abft = dr.ABFTLinear.fit(model)
    for target in ("0.weight", "0.bias", "2.weight", "2.bias"):
        for seed in range(6):
            with torch.no_grad(), dr.inject(model, dr.SingleBit(bit), target, seed=seed) as error_map:
                wrong = model(x)
                with abft.attach(model) as watch:
                    assert np.array_equal(model(x), wrong, equal_nan=True)
                assert watch.detected and watch.repaired is None, error_map.frame()


def test_mantissa_bits_show_down_to_rounding():
    (model, x), found = two_layers(), {}
    model[0].bias.data[3] = 0.2
    abft = dr.ABFTLinear.fit(model)
    for bit in range(23):
        with torch.no_grad(), abft.attach(model) as watch:
            model[0].bias.data.view(torch.int32)[3] ^= 1 << bit
            model(x)
            model[0].bias.data.view(torch.int32)[3] ^= 1 << bit
        found[bit] = watch.detected
    assert all(found[bit] for bit in range(16, 23)) and not any(found[bit] for bit in range(3))
    with abft.attach(model) as watch:  # gradients pass
        model(x).sum().backward()
    assert watch.detected is False and model[0].weight.grad is not None


def test_calibrated_is_tighter_and_capped(data, trained):
    provable, close, loose = (
        fitted(trained, data, **options)
        for options in ({}, {"mode": "calibrated"}, {"mode": "calibrated", "margin": 1e9})
    )
    for name in provable.covered:
        one, other, third = (abft.checks[name] for abft in (provable, close, loose))
        assert torch.equal(one.sums.columns, other.sums.columns) and 0 < other.rule.share < 0.5 < one.rule.share
        assert third.rule.share == 1 and third.rule.least >= other.rule.least >= 0 == one.rule.least
    assert len({one.identity() for one in (provable, close, loose)}) == 3
    for split in (data.valid, data.test):
        with close.attach(trained) as watch:
            score(trained, padded_batches(split), len(split))
        assert not watch.detected


@pytest.mark.parametrize("levels", [None, (0.2, 1e-5), (1e-3, 1e-3)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_fast_path_gives_the_result_of_the_slow_one(bias, levels):
    torch.manual_seed(0)
    layer = nn.Linear(64, 32, bias=bias)
    check = LinearCheck.of("layer", layer)
    check = check if levels is None else check.tightened(*levels)
    x, seen = torch.randn(96, 64), set()
    y = layer(x).detach()
    for size in [0.0, *(1.5 * 2.0**k for k in range(-26, 4)), float("inf"), float("nan")]:
        wrong = y.clone()
        wrong[7, 3] += size
        quick, careful = (Differences(check, torch.device("cpu")) for _ in range(2))
        careful._lowest = 0.0
        said, expected = (one.find_wrong((x,), {}, wrong) for one in (quick, careful))
        assert (said is None and expected is None) or said.tolist() == expected.tolist() == [7]
        seen.add((quick._all_below_lowest(x, wrong), said is None))
    assert seen >= {(False, False)} and ((True, True) in seen) == bias and (True, False) not in seen


def test_recompute_repairs_an_error_of_computation_and_not_of_memory():
    model, x = two_layers()
    abft = dr.ABFTLinear.fit(model, action="recompute")
    with torch.no_grad():
        golden = model(x)
        # The errors' hooks go on first, as hardware comes before what checks it.
        with dr.inject(model, dr.FixedCount(5, bits="exponent"), dr.Activations("0"), seed=0) as error_map:
            assert not torch.equal(model(x), golden)
            with abft.attach(model) as watch:
                assert torch.equal(model(x), golden)
            assert watch.detected and watch.repaired and len(error_map.log.frame())
        with dr.inject(model, dr.SingleBit(30), "0.weight", seed=0), abft.attach(model) as watch:
            assert not torch.equal(model(x), golden)
            assert watch.detected and watch.repaired is False


def test_zero_sets_the_row_to_0():
    layer = nn.Linear(4, 3)
    abft = dr.ABFTLinear.fit(layer, action="zero")
    x = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    with torch.no_grad():
        golden = layer(x)
        layer.weight.data[1, 2] += 1.0
        with abft.attach(layer) as watch:
            out = layer(x)
            deep = layer(x.view(2, 2, 4))
    golden[2] = 0
    assert torch.equal(out, golden) and torch.equal(deep, golden.view(2, 2, 3))
    assert watch.detected and watch.repaired is None


def test_restore_puts_the_layer_back_and_undo_finds_what_it_expects():
    model, x = two_layers()
    abft = dr.ABFTLinear.fit(model, action="restore")
    words = [p.detach().clone() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    with torch.no_grad():
        golden = model(x)
        with dr.inject(model, dr.FixedCount(4, bits="sign"), "0.*", seed=0, mitigation=abft):
            with abft.attach(model) as watch:
                assert torch.equal(model(x), golden) and watch.detected and watch.repaired
            assert all(torch.equal(a, b) for a, b in zip(words, model.parameters(), strict=True))
            with dr.inject(model, dr.FixedCount(4, bits="sign"), "0.*", seed=1):  # one inside of the other
                assert torch.equal(model(x), golden)
                with dr.inject(model, dr.FixedCount(2, bits="sign"), "2.weight", seed=2):
                    pass  # never seen by a check
    assert all(torch.equal(a, b) for a, b in zip(words, model.parameters(), strict=True))
    assert versions == [p._version for p in model.parameters()]
    assert abft.ordered and not model[0]._forward_hooks
    assert abft.cost(model).stored_bits == 32 * (2 * (21 + 31) + 2 * 4) + 32 * (20 * 30 + 30 + 31)


def test_every_third_batch():
    model, x = two_layers()
    abft = dr.ABFTLinear.fit(model, every=3)
    assert abft.ordered and abft.cost(model).multiply_adds * 3 >= dr.ABFTLinear.fit(model).cost(model).multiply_adds
    with torch.no_grad(), abft.attach(model):
        for skipped in range(3):
            with abft.attach(model) as watch:
                for _ in range(skipped):
                    model(x)
                with dr.inject(model, dr.SingleBit(31), "0.weight", seed=0):
                    model(x)
                    assert watch.detected is (skipped == 0)
                    for _ in range(2 - skipped):
                        model(x)
                    assert watch.detected is (skipped == 0)
                    model(x)
                    assert watch.detected is True
    assert not model._forward_pre_hooks


def test_it_travels_to_another_instance(data, trained):
    abft = pickle.loads(pickle.dumps(fitted(trained, data, action="restore")))
    assert abft.identity() == fitted(trained, data, action="restore").identity()
    assert abft.identity() != fitted(trained, data).identity() != fitted(trained, data, every=2).identity()
    twin = build_model("dlrm", data.schema)
    assert dr.ABFTLinear.fit(twin, action="restore").identity() != abft.identity()
    twin.load_state_dict(trained.state_dict())
    evaluator = dr.Evaluator(twin, data.test)
    with evaluator.under(abft) as guarded, abft.attach(twin) as watch:
        assert np.array_equal(guarded.golden.scores, evaluator.golden.scores) and watch.detected is False
        with dr.inject(twin, dr.FixedCount(20, bits="exponent"), "mlp", seed=0) as error_map:
            assert guarded.rerun(error_map).auc == pytest.approx(evaluator.golden.auc, abs=1e-4)
        assert watch.detected and watch.repaired
    evaluator.verify()


def test_keywords_and_other_shapes():
    layer = nn.Linear(4, 6)
    abft = dr.ABFTLinear.fit(layer)
    x = torch.randn(7, 4, 5).transpose(1, 2)
    with torch.no_grad(), abft.attach(layer) as watch:
        layer(input=x)
        layer(x[0, 0])
        layer(x[:0])
        assert watch.detected is False
        layer.weight.data[0, 0] += 1
        layer(input=x)
        assert watch.detected


def test_products_that_round_their_factors():
    model, x = two_layers()
    coarse = dr.ABFTLinear.fit(model, products="tf32")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with pytest.raises(ValueError, match="fit with products='tf32'"), dr.ABFTLinear.fit(model).attach(model):
            pass
        with torch.no_grad(), coarse.attach(model) as watch:
            model(x)
    finally:
        torch.set_float32_matmul_precision(before)
    assert watch.detected is False
    rounded = (model[0].weight.data.view(torch.int32) & -8192).view(torch.float32)  # towards zero: at most 2^-10
    with torch.no_grad(), coarse.attach(model) as watch:
        model[0].weight.data.copy_(rounded)
        model(x)
    assert watch.detected is False
    with pytest.raises(TypeError, match="autocast"), dr.ABFTLinear.fit(model).attach(model), torch.autocast("cpu"):
        model(x)
