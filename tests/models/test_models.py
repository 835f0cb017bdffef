import copy

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust.injection import resolve
from drsrobust.injection.targets import as_target
from drsrobust.introspection.tensors import component_of
from drsrobust.models import MODELS, build_model, default_sizes, describe, padded_batches, score, state_digest
from drsrobust_extras.data.load import load_dataset

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
@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
def test_all_parameters_learn(name, data):
    model = build(name, data.schema)
    batch = data.train.batch(slice(0, 200))
    model(batch.dense_features, batch.sparse_features).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert not parameter.numel() or parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
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
