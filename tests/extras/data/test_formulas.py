"""Each model against its paper's formula, worked out anew in float64 NumPy from the model's weights."""

import numpy as np
import pytest
import torch

from drsrobust.data.dataset import Feature, Schema
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models import build_model
from tests.refusals import refuses

ROWS = 40


def randomised(name, data, **sizes):
    """A model in evaluation mode with all its numbers drawn at random, so that every term counts; and its state."""
    torch.manual_seed(0)
    model = build_model(name, data.schema, **sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_(std=0.3)
            if key.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return model, {key: value.double().numpy() for key, value in model.state_dict().items()}


def looked_up(state, prefix, split, schema):
    """Per feature the mean of the rows that are read [n, dim]."""
    vectors = []
    for feature in schema.features:
        table = state[f"{prefix}.embedding_bags.{feature.name}.weight"]
        values, lengths = split.sparse[feature.name]
        lengths = np.ones(len(split), int) if lengths is None else lengths
        bags = np.split(values, np.cumsum(lengths)[:-1])
        vectors.append(np.array([table[bag].sum(axis=0) / max(len(bag), 1) for bag in bags]))
    return vectors


def field_vectors(state, split, schema):
    """Of all features, then of all dense columns (value times vector)."""
    dense = [split.dense[:, [d]].astype(float) * state["fields.dense"][d] for d in range(len(schema.dense))]
    return looked_up(state, "fields.embeddings", split, schema) + dense


def first_order(state, split, schema):
    ids = sum(looked_up(state, "first_order", split, schema))[:, 0]
    return state["bias"] + ids + split.dense.astype(float) @ state["first_order_dense.weight"][0]


def pair_products(vectors):
    """v_i * v_j of all pairs i < j."""
    n = len(vectors)
    return [vectors[i] * vectors[j] for i in range(n) for j in range(i + 1, n)]


def linear(state, prefix, x):
    return x @ state[f"{prefix}.weight"].T + state[f"{prefix}.bias"]


def norm(state, prefix, x):
    scale = state[f"{prefix}.weight"] / np.sqrt(state[f"{prefix}.running_var"] + 1e-5)
    return (x - state[f"{prefix}.running_mean"]) * scale + state[f"{prefix}.bias"]


def relu(x):
    return np.maximum(x, 0)


def deep(state, prefix, x, layers=2, project=True):
    """The study's MLP: Linear, BatchNorm, ReLU (and Dropout, which does nothing here) per layer."""
    for i in range(layers):
        x = relu(norm(state, f"{prefix}.{4 * i + 1}", linear(state, f"{prefix}.{4 * i}", x)))
    return linear(state, f"{prefix}.{4 * layers}", x)[:, 0] if project else x


@pytest.fixture(scope="module")
def split(data):
    return data.test.head(ROWS)


def agree(model, split, expected):
    batch = split.batch()
    with torch.no_grad():
        found = model(batch.dense_features, batch.sparse_features).double().numpy()
    assert np.std(expected) > 0.1  # there is something to compare
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["fm", "deepfm"])
def test_fm_and_deepfm(data, split, name):
    model, state = randomised(name, data)
    vectors = field_vectors(state, split, data.schema)
    expected = first_order(state, split, data.schema) + sum(product.sum(axis=1) for product in pair_products(vectors))
    if name == "deepfm":
        expected = expected + deep(state, "deep.dense_module", np.concatenate(vectors, axis=1))
    agree(model, split, expected)


@pytest.mark.parametrize("name", ["wide_deep", "dcn"])
def test_wide_deep_and_dcn(data, split, name):
    model, state = randomised(name, data)
    x = x0 = np.concatenate([split.dense, *looked_up(state, "embeddings", split, data.schema)], axis=1)
    if name == "wide_deep":
        agree(model, split, first_order(state, split, data.schema) + deep(state, "deep", x))
        return
    for layer in range(3):
        x = x0 * (x @ state[f"cross.kernels.{layer}"]) + state[f"cross.bias.{layer}"].reshape(-1) + x
    both = np.concatenate([x, deep(state, "deep", x0, project=False)], axis=1)
    agree(model, split, linear(state, "head", both)[:, 0])


@pytest.mark.parametrize("rows", [ROWS, 300])  # one block and several
def test_afm(data, rows):
    split = data.test.head(rows)
    model, state = randomised("afm", data)
    products = np.stack(pair_products(field_vectors(state, split, data.schema)), axis=1)  # [n, pairs, dim]
    scores = relu(linear(state, "attention.hidden", products)) @ state["attention.score.weight"][0]
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    pooled = (weights[:, :, None] * products).sum(axis=1)
    agree(model, split, first_order(state, split, data.schema) + pooled @ state["attention.projection.weight"][0])


def test_afn(data, split):
    """Each neuron as the product of powers that it is."""
    neurons = 6
    model, state = randomised("afn", data, neurons=neurons, deep_mlp=(8, 8))
    magnitudes = np.maximum(np.abs(np.stack(field_vectors(state, split, data.schema))), 1e-5)  # [fields, n, dim]
    scale = state["logarithmic.log_norm.weight"] / np.sqrt(state["logarithmic.log_norm.running_var"] + 1e-5)
    shift = state["logarithmic.log_norm.bias"] - state["logarithmic.log_norm.running_mean"] * scale
    products = []
    for j in range(neurons):
        orders = state["logarithmic.orders.weight"][j]
        product = np.full(magnitudes.shape[1:], np.exp(state["logarithmic.orders.bias"][j] + orders @ shift))
        for i, magnitude in enumerate(magnitudes):
            product = product * magnitude ** (orders[i] * scale[i])
        products.append(product)
    x = norm(state, "logarithmic.product_norm", np.stack(products, axis=2)).reshape(len(split), -1)
    agree(model, split, first_order(state, split, data.schema) + deep(state, "deep", x))


@pytest.mark.parametrize(("name", "sizes"), [("dlrm", {}), ("dlrm_dcn", {"layers": 2, "rank": 3})])
def test_dlrm_and_dlrm_dcn(data, split, name, sizes):
    model, state = randomised(name, data, **sizes)
    x = split.dense.astype(float)
    for layer in range(2):
        x = relu(linear(state, f"dense_arch.model._mlp.{layer}._linear", x))
    vectors = [x, *looked_up(state, "sparse_arch.embedding_bag_collection", split, data.schema)]
    if name == "dlrm":
        products = [product.sum(axis=1, keepdims=True) for product in pair_products(vectors)]
        x = np.concatenate([x, *products], axis=1)
    else:
        x = x0 = np.concatenate(vectors, axis=1)
        cross = "inter_arch.crossnet"
        for layer in range(2):
            low = x @ state[f"{cross}.V_kernels.{layer}"].T @ state[f"{cross}.W_kernels.{layer}"].T
            x = x0 * (low + state[f"{cross}.bias.{layer}"]) + x
    for layer in range(2):
        x = relu(linear(state, f"over_arch.model.0._mlp.{layer}._linear", x))
    agree(model, split, linear(state, "over_arch.model.1", x)[:, 0])


IDS = 8192
DUMMY = Schema(tuple(f"d{i}" for i in range(128)), (Feature("id", IDS, multi_hot=True),))


@pytest.mark.parametrize(("width", "depth", "dim"), [(64, 1, 64), (128, 2, 96)])
@pytest.mark.parametrize("as_released", [False, True])
def test_dummy(width, depth, dim, as_released):
    """`as_released`: the 0/1 vector itself is what is looked up, 8,192 times row 0 or 1."""
    torch.manual_seed(0)
    model = build_model("dummy", DUMMY, width=width, depth=depth, embedding_dim=dim, as_released=as_released)
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    table = state["embeddings.embedding_bags.id.weight"]
    hidden = [(width, width)] * (depth - 1)
    assert [v.shape for v in state.values() if v.ndim == 2] == [
        (IDS, dim),
        *[(width, 128), *hidden, (32, width)],
        *[(width, 32 + dim), *hidden, (1, width)],
    ]
    random = np.random.default_rng(0)
    ones = random.random((5, IDS)) < 0.01
    ones[0], ones[1] = False, True  # a row without an id, and one with all of them
    lengths = torch.from_numpy(ones.sum(axis=1).astype(np.int32))
    values = torch.from_numpy(np.nonzero(ones)[1].astype(np.int32))
    dense = torch.from_numpy(random.standard_normal((5, 128)).astype(np.float32))
    with torch.no_grad():
        found = model(dense, torchrec().KeyedJaggedTensor(keys=["id"], values=values, lengths=lengths)).double().numpy()
    rows = [vector.astype(int) if as_released else np.flatnonzero(vector) for vector in ones]
    x = dense.double().numpy()
    for layer in range(depth + 1):
        x = relu(linear(state, f"dense.{2 * layer}", x))
    x = np.concatenate([x, [table[ids].sum(axis=0) for ids in rows]], axis=1)
    for layer in range(depth):
        x = relu(linear(state, f"predictor.{2 * layer}", x))
    expected = linear(state, f"predictor.{2 * depth}", x)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_dummy_weights_are_kaiming_uniform():
    torch.manual_seed(0)
    model = build_model("dummy", DUMMY, width=512, depth=2, embedding_dim=128)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            bound = (6 / parameter.shape[1]) ** 0.5
            assert 0.95 * bound < parameter.max() <= bound and -bound <= parameter.min() < -0.95 * bound
    torch.manual_seed(0)
    again = build_model("dummy", DUMMY, width=512, depth=2, embedding_dim=128, as_released=True)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)  # the twin is the same model, read otherwise
    one = Schema((), (Feature("id", 1, multi_hot=True),))
    refuses(lambda: build_model("dummy", one, as_released=True), ValueError, "as_released ", "'id' has one")
