"""Activation clipping: its arithmetic, what it learns, and that it changes nothing but what is out of bounds."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.introspection.tensors import components
from drsrobust.metrics.auc import auc_difference
from drsrobust.mitigation.activations.clipping import ActivationClipping, best_multiplier
from drsrobust.mitigation.activations.limits import limiter
from drsrobust.mitigation.activations.nan_guard import NaNGuard
from drsrobust.mitigation.activations.sites import find_sites
from drsrobust.mitigation.base import format_number
from drsrobust.models import MODELS, build_model, padded_batches, score, state_digest
from drsrobust_extras.data.load import load_dataset
from tests.conftest import long_but

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}
NAMES = [name for name in MODELS if name != "dummy"]
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


# The arithmetic.


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


# Learnt bounds.


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

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))

        def forward(self, dense_features, sparse_features):
            return self.layers(dense_features).squeeze(1)

    data, model = load_dataset("synthetic-movielens/full", rows=1000), Model()
    for options in ({}, {"quantile": 1.0}):
        clip = ActivationClipping.fit(model, data.train, rows=256, sites="linear", **options)
        hidden = model.layers[0](torch.tensor(data.train.dense[:256]))
        (one,) = clip.learnt.values()
        assert one.low == (hidden.min() if not options else -hidden.abs().max()) and one.low < 0


@pytest.mark.parametrize("rows", [1, 100, 2112, 10**9])
def test_numbers_of_rows(rows, data):
    """Any number of rows will do, and all values lie within the bounds of more rows."""
    model = build("dlrm", data)
    few = ActivationClipping.fit(model, data.train, rows=rows)
    many = ActivationClipping.fit(model, data.train)
    for place, one in few.learnt.items():
        assert many.learnt[place].low <= one.low <= one.high <= many.learnt[place].high


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", ["dcn", "dlrm"])
def test_clean_auc(name, data):
    """Rows that bounds were not made of: within 1e-4 of golden, or no difference that DeLong's test could see."""
    model = build(name, data)
    evaluator = Evaluator(model, data.test)
    with evaluator.under(ActivationClipping.fit(model, data.train)) as guarded:
        difference, low, high, _ = auc_difference(data.test.labels, guarded.golden.scores, evaluator.golden.scores)
    assert abs(difference) < 1e-3 and low <= 1e-4 and high >= -1e-4


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


def test_it_helps(trained, data):
    evaluator = Evaluator(trained, data.test)
    clip = ActivationClipping.fit(trained, data.train)
    plain, clipped = [], []
    with evaluator.under(clip) as guarded:
        for seed in range(20):
            with inject(trained, BitFlip(1e-3), "mlp", seed=seed, mitigation=clip) as error_map:
                clipped.append(guarded.rerun(error_map).auc)
    for seed in range(20):
        with inject(trained, BitFlip(1e-3), "mlp", seed=seed) as error_map:
            plain.append(evaluator.rerun(error_map).auc)
    assert np.mean(clipped) > np.mean(plain) + 0.02


# Search.


def test_search_finds_the_best_of_a_grid():
    for peak, best in ((0.3, 0.25), (1.1, 1), (3.0, 4), (7.9, 8)):
        found, tried = best_multiplier(lambda m, peak=peak: -abs(m - peak), [8, 0.25, 0.5, 1, 2, 4, 8])
        assert found == best and [m for m, _ in tried] == [0.25, 0.5, 1, 2, 4, 8]
    assert best_multiplier(lambda m: 0.0, [1, 4, 2])[0] == 4  # of equals the one that changes least
    for grid in ([], [0, 1], [INF]):
        with pytest.raises(ValueError, match="multipliers must be (one or more finite numbers|a finite number) over 0"):
            best_multiplier(lambda m: 0.0, grid)
    with pytest.raises(ValueError, match="the score of the bounds times 2 is NaN"):
        best_multiplier(lambda m: NAN, [2])


def test_search(trained, data):
    fitted = ActivationClipping.fit(trained, data.train, quantile=0.999)
    evaluator = Evaluator(trained, data.valid)

    def mean_auc(clip):
        with evaluator.under(clip) as guarded:
            found = []
            for seed in range(5):
                with inject(trained, BitFlip(1e-3), "mlp", seed=1000 + seed) as error_map:
                    found.append(guarded.rerun(error_map).auc)
        return float(np.mean(found))

    clip = ActivationClipping.search(trained, data.train, mean_auc, multipliers=(0.5, 1, 2), quantile=0.999)
    scores = dict(clip.tried)
    assert len(scores) == 3 and mean_auc(clip) == max(scores.values()) >= scores[1]
    best = max(scores, key=lambda m: (scores[m], m))
    for place, one in fitted.learnt.items():
        assert torch.equal(clip.learnt[place].high, one.high * best)
    assert (
        clip.name == f"clip quantile 0.999 searched ({format_number(best)} x)" and clip.identity() != fitted.identity()
    )


# Identity, names, cost, errors.


def test_identity_and_names(trained, data):
    fit = ActivationClipping.fit
    clips = {
        "clip 100": ActivationClipping(100),
        "clip 6": ActivationClipping(6),
        "clip 6 to zero": ActivationClipping(6, mode="zero"),
        "clip 6 NaN to bound": ActivationClipping(6, nan="bound"),
        "clip 6 NaN kept": ActivationClipping(6, nan="keep"),
        "clip 6 at linear": ActivationClipping(6, sites="linear"),
        "clip profiled": fit(trained, data.train),
        "clip profiled per neuron": fit(trained, data.train, scope="neuron"),
        "clip profiled x 1.5": fit(trained, data.train, margin=1.5),
        "clip profiled from 64 rows": fit(trained, data.train, rows=64),
        "clip quantile 0.999": fit(trained, data.train, quantile=0.999),
        "clip profiled at linear, logit": fit(trained, data.train, sites=("logit", "linear")),
    }
    assert {name: clip.name for name, clip in clips.items()} == {name: name for name in clips}
    assert len({clip.identity() for clip in clips.values()}) == len(clips)
    for clip in clips.values():
        assert not clip.ordered
        again = pickle.loads(pickle.dumps(clip))
        assert again.identity() == clip.identity() and again.name == clip.name
    assert fit(trained, data.train).identity() == clips["clip profiled"].identity()


def test_labels_tell_close_numbers_apart(trained, data):
    fitted = ActivationClipping.fit(trained, data.train)
    close = ActivationClipping.fit(trained, data.train, margin=1.00000001)
    assert close.name == "clip profiled x 1.00000001" and close.identity() != fitted.identity()
    assert fitted.scaled(1.00000001).name == "clip profiled (1.00000001 x)"
    assert fitted.scaled(0.35).name == "clip profiled (0.35 x)" and fitted.scaled(2.0).name == "clip profiled (2 x)"
    assert ActivationClipping(6.0000001).name == "clip 6.0000001" != ActivationClipping(6).name
    assert fitted.scaled(0.1 + 0.2).name == "clip profiled (0.30000000000000004 x)"


def test_searched_bounds_may_be_the_fitted_ones(trained, data):
    """Both are then in one campaign, each under its own label."""
    fitted = ActivationClipping.fit(trained, data.train)
    searched = ActivationClipping.search(trained, data.train, lambda clip: 0.5, multipliers=(0.5, 1.0))
    assert searched.name == "clip profiled searched (1 x)" and searched.identity() != fitted.identity()
    assert fitted.bounds().equals(searched.bounds())
    Campaign(Evaluator(trained, data.test), errors=[BitFlip(1e-3)], mitigations=[fitted, searched])


def test_another_instance_of_the_model(trained, data):
    clip = pickle.loads(pickle.dumps(ActivationClipping.fit(trained, data.train, scope="neuron")))
    other = copy.deepcopy(trained)
    with clip.attach(trained):
        expected = score(trained, padded_batches(data.test), len(data.test))
    with clip.attach(other):
        assert np.array_equal(score(other, padded_batches(data.test), len(data.test)), expected)
    different = build("wide_deep", data)
    before = standing(different)
    message = (
        "clip profiled per neuron has bounds for .* sparse_arch.*, which this WideDeep does not have; it has: cross|emb"
    )
    with pytest.raises(ValueError, match=message), clip.attach(different):
        pass
    assert standing(different) == before


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
    with pytest.raises(ValueError, match="clip 100 has the fixed bound 100"):
        fixed.bounds()


def test_composes(trained, data):
    clip, guard = ActivationClipping.fit(trained, data.train, sites="linear"), NaNGuard(data.train.prior)
    both = clip + guard
    assert both.name == "clip profiled at linear + NaN guard"
    weight = trained.over_arch.model[1].bias
    with torch.no_grad(), both.attach(trained) as watch:
        old = weight.clone()
        weight.fill_(NAN)
        batch = data.test.batch(slice(0, 64))
        logits = trained(batch.dense_features, batch.sparse_features)
        weight.copy_(old)
    assert watch.detected is True and watch.repaired is False and logits.isfinite().all()


def test_mistakes(trained, data):
    for bound in (0, -1, INF, NAN, "6", True):
        with pytest.raises(ValueError, match="bound must be a finite number over 0"):
            ActivationClipping(bound)
    with pytest.raises(ValueError, match="unknown mode 'saturated'; did you mean 'saturate'"):
        ActivationClipping(6, mode="saturated")
    with pytest.raises(ValueError, match="unknown nan 'one'"):
        ActivationClipping(6, nan="one")
    with pytest.raises(ValueError, match="nan='bound' needs mode='saturate'"):
        ActivationClipping(6, mode="zero", nan="bound")
    fit = ActivationClipping.fit
    for options, message in (
        ({"quantile": 1.2}, "quantile must be over 0 and at most 1, as 0.999, got 1.2"),
        ({"margin": 0}, "margin must be a finite number over 0, as 1.5, got 0"),
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"scope": "neurons"}, "unknown scope 'neurons'; did you mean 'neuron'"),
        ({"sites": "cross"}, "DLRM has no site of the kind cross; it has: embedding, linear"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(trained, data.train, **options)
    with pytest.raises(ValueError, match="multiplier must be a finite number over 0, got 0"):
        ActivationClipping(6).scaled(0)
    assert ActivationClipping(6).scaled(2).bound == 12
    with (
        pytest.raises(ValueError, match="DLRM has no site of the kind norm"),
        ActivationClipping(6, sites="norm").attach(trained),
    ):
        pass
    broken = copy.deepcopy(trained)
    with torch.no_grad():
        broken.over_arch.model[1].bias.fill_(NAN)
    with pytest.raises(ValueError, match=r"last over_arch.model.1 has NaN or infinite values without errors"):
        fit(broken, data.train)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_refused():
    compiled = torch.compile(nn.Linear(2, 1))
    with pytest.raises(ValueError, match="the model is compiled"), ActivationClipping(6).attach(compiled):
        pass


def test_what_an_interrupted_with_left_is_not_learnt(trained, data):
    expected = ActivationClipping.fit(trained, data.train).identity()
    left_open = inject(trained, BitFlip(1e-2), seed=1)
    left_open.__enter__()
    with pytest.warns(UserWarning, match="were still in the model and have been undone"):
        assert ActivationClipping.fit(trained, data.train).identity() == expected


# Tables of plain PyTorch, and quantized ones.


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantized_tables(data):
    from torchrec.inference.modules import quantize_embeddings

    model = quantize_embeddings(build("dlrm", data), dtype=torch.qint8, inplace=False)
    evaluator = Evaluator(model, data.test)
    clip = ActivationClipping.fit(model, data.train, scope="neuron")
    assert {"embedding", "logit"} <= {place.kind for place in clip.learnt}
    with evaluator.under(clip) as guarded:
        for target, rate in (("all", 1e-3), ("embedding", 1e-5)):
            with inject(model, BitFlip(rate), target, seed=1) as error_map:
                assert np.array_equal(guarded.rerun(error_map).scores, guarded.run().scores)
