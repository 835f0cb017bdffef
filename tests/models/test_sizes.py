"""Sizes that make no sense are refused with the size and its value."""

import pytest

from drsrobust.data.dataset import Feature, Schema
from drsrobust.models import build_model
from drsrobust.models.dlrm import DLRM

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
