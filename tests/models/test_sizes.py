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
        ("fm", {"embedding_dim": 0}, "model 'fm': embedding_dim is 0; it must be a whole number from 1"),
        ("deepfm", {"embedding_dim": 16.0}, "embedding_dim is 16.0; it must be a whole number from 1"),
        ("afm", {"attention_size": -1}, "model 'afm': attention_size is -1; it must be a whole number from 1"),
        ("afn", {"neurons": True}, "neurons is True; it must be a whole number from 1"),
        ("dcn", {"cross_layers": 0}, "cross_layers is 0; it must be a whole number from 1"),
        ("dcn", {"cross": "tensor"}, "cross is 'tensor'; it must be 'vector', 'matrix' or 'low_rank'"),
        ("dcn", {"cross": "low_rank", "rank": 0}, "rank is 0; it must be a whole number from 1"),
        ("dcn", {"deep_mlp": []}, r"deep_mlp is \[\]; it must be one or more layer widths"),
        ("wide_deep", {"deep_mlp": (16, 0)}, r"deep_mlp is \(16, 0\); it must be one or more layer widths"),
        ("wide_deep", {"deep_mlp": 16}, "deep_mlp is 16; it must be one or more layer widths"),
        ("afn", {"deep_mlp": "16"}, "deep_mlp is '16'; it must be one or more layer widths"),
        ("wide_deep", {"dropout": 1}, r"dropout is 1; it must be in \[0, 1\)"),
        ("deepfm", {"dropout": -0.1}, r"dropout is -0.1; it must be in \[0, 1\)"),
        ("afm", {"dropout": float("nan")}, r"dropout is nan; it must be in \[0, 1\)"),
        ("fm", {"std": 0}, "std is 0; it must be over 0"),
        ("dlrm", {"std": float("inf")}, "std is inf; it must be over 0"),
        ("dlrm", {"dense_mlp": (64, 8)}, r"dense_mlp is \[64, 8\]; its last width must be embedding_dim, 16"),
        ("dlrm", {"over_mlp": (64, 32)}, r"over_mlp is \[64, 32\]; .* the last one 1"),
        ("dlrm_dcn", {"embedding_dim": 8}, r"model 'dlrm_dcn': dense_mlp is \[64, 16\]; .* embedding_dim, 8"),
        ("dlrm_dcn", {"over_mlp": [1]}, r"over_mlp is \[1\]; it must have at least two widths"),
        ("dlrm_dcn", {"layers": 0}, "layers is 0; it must be a whole number from 1"),
        ("dlrm_dcn", {"rank": 0}, "rank is 0; it must be a whole number from 1"),
        ("dummy", {"depth": 0}, "depth is 0; it must be a whole number from 1"),
        ("dummy", {"width": "wide"}, "width is 'wide'; it must be a whole number from 1"),
    ],
)
def test_refused(name, sizes, says):
    with pytest.raises(ValueError, match=says):
        build_model(name, SCHEMA, **sizes)


def test_classes_refuse_too():
    with pytest.raises(ValueError, match=r"^dense_mlp is \[8\]; its last width must be embedding_dim, 16"):
        DLRM(SCHEMA, dense_mlp=[8])


def test_attention_needs_a_pair():
    with pytest.raises(ValueError, match="model 'afm': the schema has one feature; .* at least two"):
        build_model("afm", Schema((), (Feature("user", 5),)))
