import numpy as np
import pytest
import torch

from drsrobust.data import load_dataset
from drsrobust.models import MODELS, build_model, default_sizes, model_name, padded_batches, score, state_digest
from drsrobust.tensors import component_of

COMPONENTS = {
    "dlrm": {"embedding", "dense_mlp", "interaction", "over_mlp"},
    "wide_deep": {"embedding", "linear", "deep_mlp"},
}


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
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.numel())
    assert model_name(model) == name


@pytest.mark.parametrize("name", MODELS)
def test_every_feature_reaches_the_logit(name, data):
    """Another id in any one feature, or another dense value, changes the score."""
    torch.manual_seed(1)
    model = build_model(name, data.schema, std=0.5).eval()
    batch = data.train.batch(slice(0, 1))
    before = model(batch.dense_features, batch.sparse_features)
    for number in range(len(data.schema.features)):
        jagged = batch.sparse_features
        values = jagged.values().clone()
        start = int(jagged.lengths()[:number].sum())
        values[start] = (values[start] + 1) % data.schema.features[number].cardinality
        changed = type(jagged)(keys=jagged.keys(), values=values, lengths=jagged.lengths())
        assert model(batch.dense_features, changed) != before
    assert model(batch.dense_features + 1, batch.sparse_features) != before


def test_dlrm_is_torchrecs(data):
    """The same weights in TorchRec's own class give the same logits."""
    from torchrec.models.dlrm import DLRM

    from drsrobust.models.embedding import embedding_tables

    torch.manual_seed(0)
    ours = build_model("dlrm", data.schema)
    theirs = DLRM(embedding_tables(data.schema, 16, 0.01), 4, [64, 16], [64, 32, 1])
    theirs.load_state_dict(ours.state_dict())
    batch = data.test.batch()
    logits = theirs(batch.dense_features, batch.sparse_features)
    assert torch.equal(logits.squeeze(1), ours(batch.dense_features, batch.sparse_features))


def test_a_rows_score_does_not_depend_on_its_batch(trained, data):
    whole = score(trained, padded_batches(data.test), len(data.test))
    for size in (64, 96, 256):
        assert np.array_equal(score(trained, padded_batches(data.test, size), len(data.test)), whole)
    some = data.test.take(np.array([5, 500, 17]))
    assert np.array_equal(score(trained, padded_batches(some), 3), whole[[5, 500, 17]])
    with pytest.raises(ValueError, match="batch size is 100; it must be a multiple of 32"):
        padded_batches(data.test, 100)


def test_wrong_shapes_are_told(data):
    class Wide(torch.nn.Module):
        def forward(self, dense_features, sparse_features):
            return dense_features

    with pytest.raises(ValueError, match=r"logits of shape \[608, 4\]; \[608\] is expected"):
        score(Wide(), padded_batches(data.test), 600)


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

    class Pair(torch.nn.Module):
        def forward(self, dense_features, sparse_features):
            return dense_features, dense_features

    with pytest.raises(ValueError, match="the model gave a tuple; a tensor of logits"):
        score(Pair(), padded_batches(data.test), 600)


def test_names_and_digest(data, trained):
    with pytest.raises(ValueError, match=r"unknown model 'dlmr'; did you mean 'dlrm'\?"):
        build_model("dlmr", data.schema)
    assert default_sizes("dlrm", "criteo-sample/dlrm")["over_mlp"] == [512, 256, 1]
    digest = state_digest(trained)
    weight = next(trained.parameters())
    with torch.no_grad():
        old = weight[0, 0].clone()
        weight[0, 0] = -old
        assert state_digest(trained) != digest
        weight[0, 0] = old
    assert state_digest(trained) == digest
