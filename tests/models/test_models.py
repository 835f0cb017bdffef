"""The models: their parts, scores and sizes, and what is computed otherwise than in TorchRec."""

import copy

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust.data.dataset import Feature, Schema
from drsrobust.injection import resolve
from drsrobust.injection.targets import as_target
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.introspection.tensors import component_of
from drsrobust.models import MODELS, build_model, default_sizes, describe, padded_batches, score, state_digest
from drsrobust.models.dlrm import DLRM, FlatInteractionArch
from drsrobust_extras.data.afm import BLOCK, AttentionalPooling
from drsrobust_extras.data.dcn import VectorCross
from drsrobust_extras.data.load import load_dataset
from tests.click_models import CLICK_MODELS

COMPONENTS = {
    "fm": {"embedding", "linear"},
    "dcn": {"embedding", "cross", "deep_mlp", "head"},
    "afm": {"embedding", "linear", "attention"},
    "afn": {"embedding", "linear", "logarithmic", "deep_mlp"},
    "wide_deep": {"embedding", "linear", "deep_mlp"},
    "deepfm": {"embedding", "linear", "deep_mlp"},
    "dlrm": {"embedding", "dense_mlp", "interaction", "over_mlp"},
    "dlrm_dcn": {"embedding", "dense_mlp", "cross", "over_mlp"},
    "dummy": {"embedding", "dense_mlp", "deep_mlp"},
}


def build(name, schema, *, std=0.5, **sizes):
    """A model in evaluation mode whose tables are not nearly zero (those of `dummy` never are)."""
    torch.manual_seed(1)
    return build_model(name, schema, **sizes, **({} if name == "dummy" else {"std": std})).eval()


@pytest.mark.parametrize("schema", ["ids", "full"])
@pytest.mark.parametrize("name", CLICK_MODELS)
def test_forward_and_components(name, schema):
    data = load_dataset(f"synthetic-movielens/{schema}", rows=500)
    torch.manual_seed(0)
    model = build_model(name, data.schema)
    batch = data.train.batch(slice(0, 70))
    logits = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
    assert logits.shape == (70,) and logits.dtype == torch.float32
    home = component_of(model)
    assert set(home.values()) == COMPONENTS[name]
    assert set(home) == {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    assert dr.models.model_name(model) == name
    assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_all_parameters_learn(name, data):
    model = build(name, data.schema)
    batch = data.train.batch(slice(0, 200))
    model(batch.dense_features, batch.sparse_features).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert not parameter.numel() or parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_every_feature_reaches_the_logit(name, data):
    """Another id in any one feature, or another dense value, changes the score."""
    model = build(name, data.schema)
    batch = data.train.batch(slice(0, 1))
    before = model(batch.dense_features, batch.sparse_features)
    for number in range(len(data.schema.features)):
        jagged = batch.sparse_features
        values = jagged.values().clone()
        start = int(jagged.lengths()[:number].sum())
        values[start] = (values[start] + 1) % data.schema.features[number].cardinality
        changed = type(jagged)(keys=jagged.keys(), values=values, lengths=jagged.lengths())
        assert model(batch.dense_features, changed) != before
    for column in torch.eye(len(data.schema.dense)):
        assert model(batch.dense_features + column, batch.sparse_features) != before


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_scores_do_not_depend_on_the_batch(name, data):
    model = build(name, data.schema)
    whole = score(model, padded_batches(data.test), len(data.test))
    assert np.isfinite(whole).all() and len(np.unique(whole)) > 500
    for size in (64, 96, 160):
        assert np.array_equal(score(model, padded_batches(data.test, size), len(data.test)), whole)
    some = data.test.take(np.array([5, 500, 17]))
    assert np.array_equal(score(model, padded_batches(some), 3), whole[[5, 500, 17]])


def test_what_a_seed_draws_stays(data):
    """A trained model follows from its seed: the order in which first weights are drawn must not change unnoticed."""
    from torch import nn
    from torchrec.models import dlrm

    from drsrobust.models.layers import embedding_tables

    torch.manual_seed(3)
    theirs = dlrm.DLRM(embedding_tables(data.schema, 16, 0.01), 4, [64, 16], [64, 32, 1])
    torch.manual_seed(3)
    assert state_digest(build_model("dlrm", data.schema)) == state_digest(theirs)

    torch.manual_seed(3)
    parts = nn.Module()
    parts.embeddings, parts.first_order = (embedding_tables(data.schema, dim, 0.01) for dim in (16, 1))
    parts.first_order_dense, parts.bias = nn.Linear(4, 1, bias=False), nn.Parameter(torch.zeros(1))
    layers = [nn.Linear(132, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 16), nn.BatchNorm1d(16)]
    parts.deep = nn.Sequential(*layers, nn.ReLU(), nn.Dropout(), nn.Linear(16, 1))
    torch.manual_seed(3)
    assert state_digest(build_model("wide_deep", data.schema)) == state_digest(parts)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fm", {"first_order.", "first_order_dense."}),
        ("dcn", {"deep."}),
        ("afm", {"first_order.", "first_order_dense.", "attention."}),
        ("afn", {"first_order.", "first_order_dense.", "deep."}),
        ("wide_deep", {"first_order.", "first_order_dense.", "deep."}),
        ("deepfm", {"first_order.", "first_order_dense.", "deep."}),
    ],
)
def test_as_released(name, expected, data):
    """What the published substrings hit: the first-order weights (not the bias) and the MLP or attention; parameters alone."""
    model = build_model(name, data.schema)
    hit = {tensor.name for tensor in resolve(model, "as_released").tensors}
    assert hit == {n for n, _ in model.named_parameters() if n.startswith(tuple(expected))}
    assert {f"{n.split('.')[0]}." for n in hit} == expected
    home = component_of(model)
    both = {tensor.name for tensor in resolve(model, as_target("as_released") | "embedding").tensors}
    assert both == hit | {n for n in home if home[n] == "embedding"}


def test_models_without_the_group_say_what_there_is(data):
    with pytest.raises(ValueError, match="'as_released' matches nothing.*components: dense_mlp, "):
        resolve(build_model("dlrm", data.schema), "as_released")
    model = build_model("fm", data.schema)
    model.as_released = torch.nn.Linear(2, 2)  # a tensor's own name, and a component, go before a group
    assert [t.name for t in resolve(model, "as_released").tensors] == ["as_released.bias", "as_released.weight"]


def test_dlrm_is_torchrecs(data):
    """The same weights in TorchRec's own class give the same logits."""
    from torchrec.models.dlrm import DLRM

    from drsrobust.models.layers import embedding_tables

    torch.manual_seed(0)
    ours = build_model("dlrm", data.schema)
    theirs = DLRM(embedding_tables(data.schema, 16, 0.01), 4, [64, 16], [64, 32, 1])
    theirs.load_state_dict(ours.state_dict())
    batch = data.test.batch()
    logits = theirs(batch.dense_features, batch.sparse_features)
    assert torch.equal(logits.squeeze(1), ours(batch.dense_features, batch.sparse_features))


def test_modules_keep_their_modes_and_scores_their_precision(data):
    model = build_model("wide_deep", data.schema).train()
    model.deep[1].eval()  # a frozen BatchNorm
    score(model, padded_batches(data.test), 600)
    assert model.training and model.deep[0].training and not model.deep[1].training

    class Fine(torch.nn.Module):
        def forward(self, dense_features, sparse_features):
            return 1.0 + 1e-12 * torch.arange(len(dense_features), dtype=torch.float64)

    scores = score(Fine(), padded_batches(data.test), 600)
    assert scores.dtype == np.float64 and len(np.unique(scores)) == 600


@pytest.mark.parametrize(
    "output, says", [(lambda x: x, r"\[608, 4\] for 608 rows"), (lambda x: (x, x), "a tuple of 2")]
)
def test_wrong_shapes_are_refused(output, says, data):
    class Wrong(torch.nn.Module):
        def forward(self, dense_features, sparse_features):
            return output(dense_features)

    with pytest.raises(ValueError, match=says):
        score(Wrong(), padded_batches(data.test), 600)
    with pytest.raises(ValueError, match="multiple of 32, .* got 100"):
        padded_batches(data.test, 100)


def test_names_and_digest(data, trained):
    assert default_sizes("dlrm", "criteo-sample/dlrm")["over_mlp"] == [512, 256, 1]
    assert default_sizes("dlrm_dcn", "synthetic-criteo/dlrm")["dense_mlp"] == [512, 256, 16]
    assert default_sizes("dlrm_dcn", "movielens-1m/ids") == {"embedding_dim": 32, "dense_mlp": [64, 32]}
    assert default_sizes("dlrm", "movielens-1m/ids") == default_sizes("afn", "criteo-sample/dlrm") == {}
    assert [line.split(":")[0] for line in describe().split("\n")] == [*MODELS]
    digest = state_digest(trained)
    weight = next(trained.parameters())
    with torch.no_grad():
        old = weight[0, 0].clone()
        weight[0, 0] = -old
        assert state_digest(trained) != digest
        weight[0, 0] = old
    assert state_digest(trained) == digest


SCHEMA = Schema(("age",), (Feature("user", 5), Feature("movie", 7)))
REFUSED = [
    *[("fm", "embedding_dim", value) for value in (0, 16.0)],
    *[("wide_deep", "deep_mlp", value) for value in ([], 16, "16")],
    *[("deepfm", "dropout", value) for value in (1, -0.1, float("nan"))],
    *[("fm", "std", value) for value in (0, float("inf"))],
    *[("dlrm", "dense_mlp", [64, 8]), ("dlrm", "over_mlp", [64, 32]), ("dlrm_dcn", "over_mlp", [1])],
    *[("afm", "attention_size", -1), ("afn", "neurons", True), ("dcn", "cross_layers", 0), ("dummy", "depth", 0)],
    *[("dlrm_dcn", "embedding_dim", 8), ("dlrm_dcn", "layers", 0), ("dlrm_dcn", "rank", 0), ("dummy", "width", "wide")],
]


@pytest.mark.parametrize(("model", "size", "value"), REFUSED)
def test_refused(model, size, value):
    with pytest.raises(ValueError) as caught:
        build_model(model, SCHEMA, **{size: value})
    text = str(caught.value)
    assert f"model '{model}'" in text and size in text and str(value) in text


def test_classes_refuse_too():
    with pytest.raises(ValueError, match=r"^the last width of dense_mlp .* got \[8\]"):
        DLRM(SCHEMA, dense_mlp=[8])
    with pytest.raises(ValueError, match="deep_mlp .* got 0"):
        build_model("wide_deep", SCHEMA, deep_mlp=(16, 0))
    with pytest.raises(ValueError, match="'embeding_dim'; did you mean 'embedding_dim'"):
        build_model("fm", SCHEMA, embeding_dim=8)


def test_attention_needs_a_pair():
    with pytest.raises(ValueError, match="'afm': .* two features"):
        build_model("afm", Schema((), (Feature("user", 5),)))


@pytest.mark.parametrize("width", [32, 429])
def test_cross_layers_are_torchrec_s(width):
    torch.manual_seed(0)
    ours, theirs = VectorCross(width, 3), torchrec().modules.crossnet.VectorCrossNet(width, 3)
    for bias in ours.bias:
        torch.nn.init.normal_(bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(256, width)
    expected = theirs(x)
    assert torch.equal(ours(x), expected)
    ours(x).square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4 * float(other.grad.abs().max()))


@pytest.mark.parametrize(("fields", "blocks"), [(2, 1), (10, 1), (39, 16)])
def test_attention_goes_through_rows_in_blocks_that_fit(fields, blocks):
    torch.manual_seed(0)
    pooling, calls = AttentionalPooling(8, 4, 0.0), []
    pooling.hidden.register_forward_hook(lambda module, given, _: calls.append(given[0].shape[:2]))
    vectors = torch.randn(16 * BLOCK, fields, 8)
    with torch.no_grad():
        whole = pooling(vectors)
        assert len(calls) == blocks and sum(rows for rows, _ in calls) == len(vectors)
        apart = torch.cat([pooling(block) for block in vectors.split(BLOCK)])
    assert torch.equal(whole, apart)


def both_archs(features):
    return FlatInteractionArch(features), torchrec().models.dlrm.InteractionArch(features)


@pytest.mark.parametrize(("features", "rows"), [(1, 3), (2, 64), (26, 200)])
def test_same_numbers_forwards_and_backwards(features, rows):
    torch.manual_seed(0)
    dense, sparse = torch.randn(rows, 8), torch.randn(rows, features, 8)
    results = []
    for arch in both_archs(features):
        inputs = dense.clone().requires_grad_(), sparse.clone().requires_grad_()
        output = arch(*inputs)
        output.backward(torch.arange(output.numel(), dtype=torch.float32).view_as(output).sin())
        results.append((output, *(tensor.grad for tensor in inputs)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("wrong", [(0, 4, 5), (1, 0, -1), (1, 2, 0), (0, 0, -7)])
def test_an_error_in_the_buffer_reads_what_torchrec_reads(wrong):
    """Another pair, or one counted from the end."""
    side, pair, value = wrong
    dense, sparse = torch.randn(5, 4), torch.randn(5, 6, 4)
    outputs = []
    for arch in both_archs(6):
        arch.triu_indices[side, pair] = value
        outputs.append(arch(dense, sparse))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("value", [7, -8, 2**40, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("side", [0, 1])
def test_an_error_that_names_no_vector_raises_as_torchrec_does(side, value):
    for arch in both_archs(6):
        arch.triu_indices[side, 3] = value
        with pytest.raises((IndexError, RuntimeError), match="out of (bounds|DATA bounds|range)"):
            arch(torch.randn(5, 4), torch.randn(5, 6, 4))
