"""Activation clipping: its arithmetic, what it learns, and that it changes nothing but what is out of bounds; the NaN guard."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drsrobust.data import from_batches
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.introspection.tensors import components
from drsrobust.mitigation.activations.clipping import ActivationClipping, best_multiplier
from drsrobust.mitigation.activations.limits import limiter
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.mitigation.activations.sites import find_sites
from drsrobust.models import build_model, padded_batches, score, state_digest
from tests.click_models import CLICK_MODELS
from tests.conftest import long_but

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}
NAMES = [name for name in CLICK_MODELS if name != "dummy"]
NAN, INF = float("nan"), float("inf")


def build(name, data):
    """A model whose BatchNorms have seen data, so that its activations are not all alike."""
    torch.manual_seed(1)
    model = build_model(name, data.schema, **SMALL.get(name, {}), **({} if name == "dummy" else {"std": 0.3}))
    batch = data.train.batch(slice(0, 512))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(batch.dense_features, batch.sparse_features)
    return model.eval()


def standing(model):
    """State that attaching must not change."""
    modules = [(n, sorted(m.__dict__), len(m._forward_hooks), m.training) for n, m in model.named_modules()]
    return state_digest(model), modules


def by_hand(x, low, high, mode, nan):
    """The bounded value of one number."""
    if np.isnan(x):
        if nan == "keep":
            return x
        return high if nan == "bound" else (min(max(0.0, low), high) if mode == "saturate" else 0.0)
    if low <= x <= high:
        return x
    return 0.0 if mode == "zero" else (high if x > high else low)


NUMBERS = st.floats(width=32) | st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45])


@given(
    st.lists(NUMBERS, min_size=1, max_size=70),
    st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)).map(sorted),
    st.sampled_from(["saturate zero", "saturate bound", "saturate keep", "zero zero", "zero keep"]),
    st.booleans(),
)
def test_arithmetic(numbers, bounds, how, several):
    """Also with lengths that vectorised kernels do in part by single numbers, and at the bounds themselves."""
    mode, nan = how.split()
    low, high = bounds
    x = torch.tensor([*numbers, low, high], dtype=torch.float32)
    x = torch.stack((x, x)) if several else x
    before = x.clone()
    ends = (torch.full(x.shape[-1:], low), torch.full(x.shape[-1:], high)) if several else (low, high)
    held = limiter(*ends, mode, nan)(x, False)
    assert torch.equal(x.view(torch.int32), before.view(torch.int32))  # what it was given stays
    written = limiter(*ends, mode, nan)(before, True)
    assert written is before and torch.equal(written.view(torch.int32), held.view(torch.int32))
    expected = np.float32([by_hand(one, low, high, mode, nan) for one in x.flatten().tolist()])
    assert np.array_equal(held.flatten().numpy(), expected, equal_nan=True)
    inside = (x >= low) & (x <= high) & (x != 0)
    assert torch.equal(held[inside].view(torch.int32), x[inside].view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("how", ["saturate zero", "saturate bound", "zero zero"])
def test_other_dtypes(dtype, how):
    x = torch.tensor([NAN, INF, -INF, 1.5, -0.0, 7.0, -7.0] * 9, dtype=dtype)
    mode, nan = how.split()
    for bound in (6.0, 1e6):  # more than float16 has
        held = limiter(-bound, bound, mode, nan)(x, False)
        most = min(bound, torch.finfo(dtype).max)
        assert held.dtype == dtype and not held.isnan().any() and held.abs().max() <= most
        assert torch.equal(held[3::7], x[3::7]) and torch.equal(held[4::7], x[4::7])


@pytest.mark.parametrize("how", ["saturate zero", "saturate bound", "saturate keep", "zero zero", "zero keep"])
def test_what_lies_inside_is_handed_on_as_it_is(how):
    mode, nan = how.split()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        limit = limiter(-2.0, 1.5, mode, nan)
        x = torch.linspace(-2.0, 1.5, 1001, dtype=dtype).view(77, 13)
        assert limit(x, False) is x and limit(x[:0], False).shape == (0, 13)
        for wrong in (NAN, INF, -INF, 1.52, -2.02):
            x[50, 7] = wrong
            held = limit(x, False)
            assert held is not x and held[50, 7] != x[50, 7]


@pytest.mark.parametrize("shape", [(70_000, 16), (3, 300_000), (5000, 3, 40)])
def test_large_tensors(shape):
    """Those that are worked on in parts."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    high = torch.rand(shape[-1]) + 0.5
    held = limiter(-high, high, "zero", "zero")(x, False)
    assert torch.equal(held, torch.where(x.abs() <= high, x, torch.zeros(())))


@pytest.mark.parametrize("mode", ["saturate", "zero"])
@pytest.mark.parametrize("fresh", [False, True])
def test_gradients_pass_inside(mode, fresh):
    x = torch.tensor([1.0, 9.0, -2.0], requires_grad=True)
    (limiter(-6.0, 6.0, mode, "zero")(x * 1, fresh) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 3.0]


@pytest.mark.parametrize("name", ["afm", "dcn", "dlrm_dcn", "deepfm"])
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_bounds_are_what_clean_rows_give(name, scope, data):
    """Against all outputs of the same rows, kept whole."""
    model = build(name, data)
    seen = {}
    handles = []
    for place in find_sites(model):
        if place.layer is None:

            def note(module, args, output, place=place):
                values = output if isinstance(output, torch.Tensor) else output.values()
                seen.setdefault(place, []).append(values.detach())

            handles.append(model.get_submodule(place.module).register_forward_hook(note))
    score(model, padded_batches(data.train.head(4096)), 4096)
    for handle in handles:
        handle.remove()
    plain = ActivationClipping.fit(model, data.train, rows=4096, scope=scope)
    top = ActivationClipping.fit(model, data.train, rows=4100, scope=scope, quantile=0.99, margin=1.5)
    assert set(seen) <= set(plain.learnt) == set(top.learnt)
    for place, parts in seen.items():
        parts = [part if part.dim() > 1 else part.unsqueeze(1) for part in parts]
        values = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]).double().numpy()
        axis = 0 if scope == "neuron" and values.shape[1] > 1 else None
        assert np.array_equal(plain.learnt[place].low, values.min(axis)), place
        assert np.array_equal(plain.learnt[place].high, values.max(axis)), place
        expected = 1.5 * np.quantile(np.abs(values), 0.99, axis=axis)
        np.testing.assert_allclose(top.learnt[place].high, expected, rtol=1e-12)
        assert torch.equal(top.learnt[place].low, -top.learnt[place].high)
        assert plain.learnt[place].values == values.size / 4096


def test_margin_moves_outwards(data):
    model = build("dlrm", data)
    plain, wide = (ActivationClipping.fit(model, data.train, margin=margin) for margin in (1.0, 1.5))
    for place, one in plain.learnt.items():
        low, high = float(one.low), float(one.high)
        assert float(wide.learnt[place].low) == pytest.approx(low - 0.5 * abs(low))
        assert float(wide.learnt[place].high) == pytest.approx(high + 0.5 * abs(high))


def test_outputs_that_are_written_to_afterwards():
    """What is learnt is what the place gives, not what an activation in place makes of it."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)), torch.randn(256, 4)
    nn.init.constant_(model[0].bias, -2.0)  # the largest outputs are negative: after the activation they would be 0
    rows = from_batches([(x, torch.arange(256.0) % 2)])
    for options in ({}, {"quantile": 1.0}):
        clip = ActivationClipping.fit(
            model, rows, sites="linear", forward=lambda model, batch: model(batch[0]), **options
        )
        hidden = model[0](x)
        (one,) = clip.learnt.values()
        assert one.low == (hidden.min() if not options else -hidden.abs().max()) and one.low < 0


@pytest.mark.parametrize("name", CLICK_MODELS)
@pytest.mark.parametrize("options", [{}, {"scope": "neuron", "mode": "zero"}])
def test_rows_inside_keep_their_bits_and_nothing_stays_behind(name, options, data):
    model = build(name, data)
    before = standing(model)
    batches = padded_batches(data.train)
    golden = score(model, batches, len(data.train))
    clip = ActivationClipping.fit(model, data.train, rows=len(data.train) // 32 * 32, **options)
    assert standing(model) == before
    inside = len(data.train) // 32 * 32  # the rows that bounds were made of
    with clip.attach(model) as watch:
        held = score(model, batches, len(data.train))
        assert watch.detected is None and watch.repaired is None
        with clip.attach(model):  # it is there already
            assert np.array_equal(score(model, batches, len(data.train)), held)
    assert np.array_equal(held[:inside], golden[:inside])
    assert standing(model) == before
    assert np.array_equal(score(model, batches, len(data.train)), golden)
    with pytest.raises(ZeroDivisionError), clip.attach(model):
        raise ZeroDivisionError
    assert standing(model) == before


@pytest.mark.parametrize("name", long_but(("dlrm", "wide_deep"), NAMES))
@pytest.mark.parametrize("options", [{}, {"scope": "neuron", "mode": "zero"}])
def test_rerun_is_run(name, options, data):
    model = build(name, data)
    evaluator = Evaluator(model, data.test)
    clip = ActivationClipping.fit(model, data.train, rows=2048, **options)
    before = standing(model)
    with evaluator.under(clip) as guarded:
        assert guarded.full_run is None
        if name != "afn":  # what is kept of the plain model is kept of the protected one
            assert set(guarded._reach.cached._modules) == set(evaluator._reach.cached._modules)
        # DLRM's index buffer may name a vector that is not there: then the model raises.
        for target in ("all", *(set(components(model)["component"]) - {"interaction"})):
            for error_model in (FixedCount(1, bits=(30,)), BitFlip(1e-3), BitFlip(3e-2)):
                with inject(model, error_model, target, seed=3) as error_map:
                    full, quick = guarded.run(), guarded.rerun(error_map)
                    assert np.array_equal(full.scores, quick.scores) and full.auc == quick.auc
                    assert full.outcome == quick.outcome == "ok"  # nothing infinite, no NaN gets past the logit
        assert (guarded.run().scores == guarded.golden.scores).all()
    assert standing(model) == before


@pytest.mark.parametrize("name", ["dlrm", "dcn"])
def test_what_an_evaluator_of_the_plain_model_keeps_stays(name, data):
    """Its kept outputs are handed out while a clipping is on that may write to outputs; they are not written to."""
    model = build(name, data)
    evaluator, clip = Evaluator(model, data.test), ActivationClipping(0.01)
    for target in components(model)["component"]:
        with inject(model, BitFlip(1e-4), target, seed=2) as error_map:
            expected = evaluator.rerun(error_map).scores
        with inject(model, BitFlip(1e-4), target, seed=2, mitigation=clip) as error_map:
            held = evaluator.rerun(error_map).scores
        with inject(model, BitFlip(1e-4), target, seed=2) as error_map:
            assert np.array_equal(evaluator.rerun(error_map).scores, expected, equal_nan=True)
        assert target == "interaction" or np.abs(held).max() <= max(0.01, np.abs(evaluator.golden.scores).max())
    evaluator.verify()


def test_search_finds_the_best_of_a_grid():
    for peak, best in ((0.3, 0.25), (1.1, 1), (3.0, 4), (7.9, 8)):
        found, tried = best_multiplier(lambda m, peak=peak: -abs(m - peak), [8, 0.25, 0.5, 1, 2, 4, 8])
        assert found == best and [m for m, _ in tried] == [0.25, 0.5, 1, 2, 4, 8]
    assert best_multiplier(lambda m: 0.0, [1, 4, 2])[0] == 4  # of equals the one that changes least


def test_search(trained, data):
    """By the width of the bounds of the last layer, of which 2 has the best."""
    options = {"quantile": 0.999, "sites": "last"}
    fitted = ActivationClipping.fit(trained, data.train, **options)
    ((place, one),) = fitted.learnt.items()

    def closeness(clip):
        return -abs(float(clip.learnt[place].high / one.high) - 2.1)

    clip = ActivationClipping.search(trained, data.train, closeness, multipliers=(0.5, 1, 2, 4), **options)
    assert dict(clip.tried) == pytest.approx({0.5: -1.6, 1: -1.1, 2: -0.1, 4: -1.9}, abs=1e-6)
    assert torch.equal(clip.learnt[place].high, one.high * 2) and torch.equal(clip.learnt[place].low, one.low * 2)
    assert clip.name == "clip quantile 0.999 at last searched (2 x)" and clip.identity() != fitted.identity()


def test_identity_and_names(trained, data):
    fit, clip = ActivationClipping.fit, ActivationClipping
    fitted = fit(trained, data.train)
    clips = [
        *(clip(100), clip(6), clip(6.0000001), clip(6, mode="zero"), clip(6, nan="bound"), clip(6, sites="linear")),
        *(fitted, fitted.scaled(2.0), fitted.scaled(0.3), fitted.scaled(0.1 + 0.2), fit(trained, data.train, rows=64)),
        *(fit(trained, data.train, scope="neuron"), fit(trained, data.train, margin=1.00000001)),
        *(fit(trained, data.train, quantile=0.999), fit(trained, data.train, sites=("logit", "linear"))),
    ]
    assert len({one.name for one in clips}) == len({one.identity() for one in clips}) == len(clips)
    assert clips[-1].name == "clip profiled at linear, logit" and clips[3].name == "clip 6 to zero"
    for one in clips:
        again = pickle.loads(pickle.dumps(one))
        assert not one.ordered and again.identity() == one.identity() and again.name == one.name
    assert fit(trained, data.train).identity() == fitted.identity()


def test_another_instance_of_the_model(trained, data):
    clip = pickle.loads(pickle.dumps(ActivationClipping.fit(trained, data.train, scope="neuron")))
    other = copy.deepcopy(trained)
    with clip.attach(trained):
        expected = score(trained, padded_batches(data.test), len(data.test))
    with clip.attach(other):
        assert np.array_equal(score(other, padded_batches(data.test), len(data.test)), expected)


def test_cost(trained, data):
    layer = ActivationClipping.fit(trained, data.train)
    neuron = ActivationClipping.fit(trained, data.train, scope="neuron")
    fixed = ActivationClipping(100)
    table = layer.bounds()
    assert layer.cost(trained).stored_bits == 32 * 2 * len(table) == 32 * table["stored"].sum()
    width = sum(place.width for place in find_sites(trained))
    assert neuron.cost(trained).stored_bits == 32 * 2 * width
    assert layer.cost(trained).multiply_adds == 2 * width == fixed.cost(trained).multiply_adds
    assert layer.cost(trained).bytes_touched == 8 * width and fixed.cost(trained).stored_bits == 32


def test_what_an_interrupted_with_left_is_not_learnt(trained, data):
    expected = ActivationClipping.fit(trained, data.train).identity()
    left_open = inject(trained, BitFlip(1e-2), seed=1)
    left_open.__enter__()
    with pytest.warns(UserWarning, match="were still in the model and have been undone"):
        assert ActivationClipping.fit(trained, data.train).identity() == expected


class Given(nn.Module):
    """Returns its input."""

    def forward(self, scores):
        return scores


def test_values_and_watch():
    model, guard = Given(), NaNGuard(prior=0.2)
    scores = torch.tensor([1.0, math.nan, -math.inf, -0.0, math.inf])
    with guard.attach(model) as watch:
        fine = model(scores[:1])
        assert fine is not None and watch.detected is False and watch.repaired is None
        held = model(scores)
        assert watch.detected is True and watch.repaired is False
        model(scores[:1])
        assert watch.detected is True  # what was found stays found
        with guard.attach(model) as later:
            assert later.detected is False
    expected = math.log(0.2 / 0.8)
    assert torch.equal(held, torch.tensor([1.0, expected, expected, -0.0, expected]))
    assert not model._forward_hooks and scores.isnan().any()
    assert math.isclose(torch.tensor(guard.value).sigmoid(), 0.2, rel_tol=1e-6)
    with NaNGuard(value=-3).attach(model):
        assert model(scores[1:3].unsqueeze(1)).tolist() == [[-3.0], [-3.0]]


@pytest.mark.parametrize("name", ["deepfm", "dlrm_dcn", "afn"])
def test_every_model(name, data):
    torch.manual_seed(1)
    model = build_model(name, data.schema, **SMALL.get(name, {})).eval()
    before = state_digest(model)
    golden = score(model, padded_batches(data.test), len(data.test))
    guard = NaNGuard(data.train.prior)
    evaluator = Evaluator(model, data.test)
    replaced = 0
    with evaluator.under(guard) as guarded:
        assert guarded.full_run is None and np.array_equal(guarded.golden.scores, golden)
        for target, rate in (("all", 3e-2), ("embedding", 1e-2), ("all", 1e-3)):
            for seed in range(3):
                with inject(model, BitFlip(rate), target, seed=seed) as error_map:
                    with guard.attach(model) as watch:
                        quick = guarded.rerun(error_map)
                    assert np.array_equal(quick.scores, guarded.run().scores) and quick.outcome == "ok"
                held = int((quick.scores == np.float32(guard.value)).sum())
                assert (watch.detected, watch.repaired) == ((True, False) if held else (False, None))
                replaced += held
    assert replaced
    assert state_digest(model) == before and not any(module._forward_hooks for module in model.modules())


def test_what_it_costs():
    guard = NaNGuard(prior=0.5)
    assert guard.value == 0 and guard.identity() == NaNGuard(value=0).identity() and not guard.ordered
    cost = guard.cost(Given())
    assert (cost.stored_bits, cost.multiply_adds, cost.bytes_touched) == (32, 1, 4)
