"""Sizes that make no sense are refused with the model, the size, its value and what would be right."""

import pytest

from drsrobust.data.dataset import Feature, Schema
from drsrobust.models import build_model
from drsrobust.models.dlrm import DLRM

SCHEMA = Schema(("age",), (Feature("user", 5), Feature("movie", 7)))


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("fm", {"embeding_dim": 8}, "model 'fm': unknown size 'embeding_dim'; did you mean 'embedding_dim'. known: "),
        ("fm", {"embedding_dim": 0}, "model 'fm': embedding_dim must be at least 1, got 0"),
        ("deepfm", {"embedding_dim": 16.0}, "embedding_dim must be a whole number, at least 1, got 16.0"),
        ("afm", {"attention_size": -1}, "model 'afm': attention_size must be at least 1, got -1"),
        ("afn", {"neurons": True}, "neurons must be a whole number, at least 1, got True"),
        ("dcn", {"cross_layers": 0}, "cross_layers must be at least 1, got 0"),
        ("dcn", {"deep_mlp": []}, r"deep_mlp must be one or more layer widths.*, got \[\]"),
        ("wide_deep", {"deep_mlp": (16, 0)}, "each width of deep_mlp must be at least 1, got 0"),
        ("wide_deep", {"deep_mlp": 16}, "deep_mlp must be one or more layer widths.*, got 16"),
        ("afn", {"deep_mlp": "16"}, "deep_mlp must be one or more layer widths.*, got '16'"),
        ("wide_deep", {"dropout": 1}, r"dropout must be in \[0, 1\), got 1"),
        ("deepfm", {"dropout": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
        ("afm", {"dropout": float("nan")}, r"dropout must be in \[0, 1\), got nan"),
        ("fm", {"std": 0}, "std must be over 0, got 0"),
        ("dlrm", {"std": float("inf")}, "std must be over 0, got inf"),
        ("dlrm", {"dense_mlp": (64, 8)}, r"the last width of dense_mlp must be embedding_dim, 16, .* got \[64, 8\]"),
        ("dlrm", {"over_mlp": (64, 32)}, r"over_mlp must have .* the last one 1 .* got \[64, 32\]"),
        ("dlrm_dcn", {"embedding_dim": 8}, r"model 'dlrm_dcn': the last width of dense_mlp must be embedding_dim, 8"),
        ("dlrm_dcn", {"over_mlp": [1]}, r"over_mlp must have at least two widths.* got \[1\]"),
        ("dlrm_dcn", {"layers": 0}, "layers must be at least 1, got 0"),
        ("dlrm_dcn", {"rank": 0}, "rank must be at least 1, got 0"),
        ("dummy", {"depth": 0}, "depth must be at least 1, got 0"),
        ("dummy", {"width": "wide"}, "width must be a whole number, at least 1, got 'wide'"),
    ],
)
def test_refused(name, sizes, says):
    with pytest.raises(ValueError, match=says):
        build_model(name, SCHEMA, **sizes)


def test_classes_refuse_too():
    with pytest.raises(ValueError, match=r"^the last width of dense_mlp must be embedding_dim, 16, .* got \[8\]"):
        DLRM(SCHEMA, dense_mlp=[8])


def test_attention_needs_a_pair():
    with pytest.raises(ValueError, match="model 'afm': the schema must have at least two features"):
        build_model("afm", Schema((), (Feature("user", 5),)))
