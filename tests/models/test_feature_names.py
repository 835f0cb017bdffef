"""Features of any name: every model, targets by the user's name, and the names of tensors that stay as they were."""

import numpy as np
import pandas as pd
import pytest
import torch

import drsrobust as dr
from drsrobust.data import Feature, Schema
from drsrobust.introspection.embedding_modules import table_names
from drsrobust.models import build_model
from drsrobust.training import Settings, fit
from tests.click_models import CLICK_MODELS

ODD = ["type", "keys", "values", "train", "forward", "items", "item.title", "", "0", "weight", "requires_grad_", "a b"]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({name: random.integers(5, size=1000) for name in ODD} | {"y": random.integers(2, size=1000)})
    frame["price.net"] = random.normal(size=1000)
    return dr.data.from_frame(frame, label="y", dense=["price.net"], sparse=ODD, split=(0.6, 0.2, 0.2))


SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_every_model_takes_them(data, name):
    torch.manual_seed(0)
    model = build_model(name, data.schema, **SMALL.get(name, {}))
    assert [feature.name for feature in data.schema.features] == ODD and data.schema.dense == ("price.net",)
    evaluator = dr.Evaluator(model, data)
    assert evaluator.full_run is None
    for feature in ODD:
        with dr.inject(model, dr.FixedCount(2), target=dr.Rows(feature, [1, 3]), seed=1) as error_map:
            assert np.array_equal(evaluator.rerun(error_map).scores, evaluator.run().scores)
        (table,) = error_map.fingerprint
        assert table.component == "embedding" and table_names(ODD)[feature] == table.name.split(".")[-2]


@pytest.mark.long
@pytest.mark.parametrize("name", CLICK_MODELS)
def test_every_model_trains_on_them(data, name, empty_cache):
    settings = Settings(epochs=1, batch_size=32)
    sizes = SMALL.get(name, {})
    model = build_model(name, data.schema, **sizes)
    start = {key: value.clone() for key, value in model.state_dict().items() if "embedding_bags" in key}
    fit(model, data, settings, progress=False)
    assert len(start) >= len(ODD) and all((model.state_dict()[key] != value).any() for key, value in start.items())
    made, read = (
        dr.load_model(name, data, settings=settings, sizes=sizes, progress=False) for _ in range(2)
    )  # read: a checkpoint
    assert np.array_equal(dr.Evaluator(made, data).golden.scores, dr.Evaluator(read, data).golden.scores)


def test_tables_and_messages_have_the_users_names(data):
    model = build_model("fm", data.schema)
    targets = [dr.Rows("type", [1, 2]), dr.Rows("", [0]), "fields.*.item.title.weight"]
    campaign = dr.Campaign(dr.Evaluator(model, data), errors=[dr.FixedCount(1)], targets=targets, trials=2)
    assert set(campaign.run()["target"]) == {"Rows(type, [1, 2])", "Rows(, [0])", "fields.*.item.title.weight"}
    with pytest.raises(ValueError, match=r"unknown table 'titel'.*embedding_bags\.item\.title\.weight"):
        dr.resolve(model, dr.Rows("titel", [1]))


def test_a_model_scores_as_with_plain_names(data):
    """The tables of odd names read the ids of their features."""
    plain = {name: f"f{number}" for number, name in enumerate(ODD)}
    torch.manual_seed(0)
    odd = build_model("deepfm", data.schema)
    torch.manual_seed(0)
    features = tuple(Feature(plain[one.name], one.cardinality) for one in data.schema.features)
    same = build_model("deepfm", Schema(data.schema.dense, features))
    for one, other in zip(odd.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
    frame = pd.DataFrame({plain[name]: data.test.sparse[name].values for name in ODD})
    frame = frame.assign(y=data.test.labels, d=data.test.dense[:, 0])
    renamed = dr.data.from_frame(frame, label="y", dense=["d"], sparse=list(plain.values()))
    assert np.array_equal(dr.Evaluator(odd, data).golden.scores, dr.Evaluator(same, renamed).golden.scores)


@pytest.mark.parametrize(
    ("target", "tables"),
    [
        ("fields.embeddings.embedding_bags.type.weight", ["fields.embeddings.embedding_bags.type_.weight"]),
        ("fields.*.item.title.weight", ["fields.embeddings.embedding_bags.item_title.weight"]),
        ("*.keys.*", [f"{part}.embedding_bags.keys_.weight" for part in ("fields.embeddings", "first_order")]),
        ("fields.embeddings.embedding_bags..weight", ["fields.embeddings.embedding_bags._.weight"]),
    ],
)
def test_globs_take_the_features_name(data, target, tables):
    model = build_model("fm", data.schema)
    assert [tensor.name for tensor in dr.resolve(model, target).tensors] == tables


def test_names_that_modules_take_are_kept():
    known = ["user", "movie", "zip", "weight", "bias", "C1", "0", "a b", "tags[0]", "größe", "type_"]
    assert table_names(known) == {name: name for name in known}
    assert table_names(["type", "type_", "a.b", "a_b", "", "_", "requires_grad_"]) == {
        "type": "type__",
        "type_": "type_",
        "a.b": "a_b_",
        "a_b": "a_b",
        "": "__",
        "_": "_",
        "requires_grad_": "requires_grad__",
    }


def test_a_table_that_no_machine_has_is_not_allocated():
    huge = Schema((), (Feature("item", 2**31 - 1), Feature("user", 10)))
    for name in CLICK_MODELS:
        with pytest.raises(ValueError, match="'item' has 2,147,483,647 rows"):
            build_model(name, huge)
