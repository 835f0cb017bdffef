"""FBGEMM's row-wise quantized tables, as TorchRec and FBGEMM themselves make and read them."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorMapMismatch, FixedCount, inject, resolve
from drsrobust.introspection.embedding_modules import torchrec

CODES = {
    torch.int8: ("int8", 20),
    torch.quint4x2: ("int4", 12),
    torch.quint2x4: ("int2", 8),
}  # live bytes of a row of 16
FLOATS = (torch.float16, torch.float32)
FIELDS = ("value", "scale", "bias")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        config = torchrec().EmbeddingBagConfig
        self.tables = torchrec().EmbeddingBagCollection(
            tables=[
                config(name=f"t{i}", embedding_dim=16, num_embeddings=rows, feature_names=[f"f{i}"])
                for i, rows in enumerate((50, 70))
            ]
        )
        self.top = nn.Linear(32, 1)

    def forward(self, ids):
        return self.top(self.tables(ids).values())


def quantized(dtype, seed=0):
    from torchrec.inference.modules import quantize_embeddings

    torch.manual_seed(seed)
    return quantize_embeddings(Model(), dtype=dtype, inplace=True)


def ids(*values):
    half = len(values) // 2
    return torchrec().KeyedJaggedTensor(
        keys=["f0", "f1"], values=torch.tensor(values), lengths=torch.ones(2 * half, dtype=torch.int64)
    )


def table(model, name="t0"):
    return model.tables.embedding_bags[name].weight


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")


@pytest.mark.parametrize("dtype", CODES)
def test_words_are_bytes_and_know_what_they_are(dtype):
    values, live = CODES[dtype]
    model = quantized(dtype)
    space = resolve(model, "embedding")
    assert [t.name for t in space.tensors] == [f"tables.embedding_bags.t{i}.weight" for i in (0, 1)]
    assert space.tensors[0].format.name.startswith(f"{values} rows: 16 values, 4 bytes of scale and bias")
    assert space.bits == 8 * live * 120 and space.words == live * 120
    assert space.only(("scale",)).bits == space.only(("bias",)).bits == 16 * 120
    assert space.only(("value",)).bits == 8 * (live - 4) * 120
    row = space.tensors[0].shape[1]
    assert row > live and space.only(("padding",)).bits == 8 * (row - live) * 120
    assert resolve(model, "all").bits == space.bits + 33 * 32  # tables are weights, though PyTorch has them as buffers


@pytest.mark.parametrize("dtype", [*CODES, *FLOATS])
def test_errors_reach_the_look_up_and_are_undone(dtype):
    model = quantized(dtype)
    one = ids(7, 9)
    with torch.no_grad():
        golden = model(one)
        with dr.inject(model, dr.BitFlip(0.02), "embedding", seed=3) as error_map:
            assert len(error_map) and not torch.equal(model(one), golden)
        assert torch.equal(model(one), golden)


@pytest.mark.parametrize("dtype", [torch.int8, torch.quint4x2])
def test_scale_bias_and_codes_are_where_fbgemm_has_them(dtype):
    """FBGEMM's own split of a table into codes, scale and bias says which part changed."""
    model = quantized(dtype)
    lookup = model.tables._emb_modules[0]

    def parts():
        found = lookup.split_embedding_weights_with_scale_bias(split_scale_bias_mode=2)[1]
        return {name: part.clone().view(torch.uint8) for name, part in zip(FIELDS, found, strict=True)}

    before = parts()
    for field in before:
        with dr.inject(model, dr.FixedCount(30, bits=field), "*t1.weight", seed=1) as error_map:
            changed = {name for name, part in parts().items() if not torch.equal(part, before[name])}
            assert changed == {field} and error_map.counts("field").to_dict() == {field: 30}
    with dr.inject(model, dr.BitFlip(1.0, bits="padding"), "embedding", seed=1) as error_map:
        assert all(torch.equal(part, before[name]) for name, part in parts().items())
        assert set(error_map.counts("field").index) == {"padding"}


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_floats_are_floats(dtype):
    model = quantized(dtype)
    space = resolve(model, "embedding")
    assert space.tensors[0].format.dtype == dtype and space.words == 120 * 16
    before = table(model).clone()
    with dr.inject(model, dr.BitFlip(1.0, bits="sign"), "*t0.weight", seed=1):
        assert torch.equal(table(model).view(dtype), -before.view(dtype))
    assert torch.equal(table(model), before)


def lookup_module(**tables):
    """FBGEMM's look-up of tables of (rows, width, type)."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

    specs = [(name, n, d, SparseType[kind], EmbeddingLocation.HOST) for name, (n, d, kind) in tables.items()]
    module = IntNBitTableBatchedEmbeddingBagsCodegen(specs, device="cpu", row_alignment=16)
    module.fill_random_weights()
    return module


def test_a_lookup_module_by_itself():
    model = nn.Module()
    model.bags = lookup_module(a=(10, 20, "INT8"), b=(12, 6, "INT4"))
    space = resolve(model, "embedding")
    assert [(t.name, t.shape) for t in space.tensors] == [("bags.a.weight", (10, 32)), ("bags.b.weight", (12, 16))]
    assert space.bits == 8 * (24 * 10 + 7 * 12)
    # FBGEMM's offsets and types are buffers too, but its kernels trust them: errors there would end the process.
    assert any(name == "bags.weights_tys" for name, _ in model.named_buffers())
    assert [t.name for t in resolve(model, "everything").tensors] == [t.name for t in space.tensors]

    def held():
        return [rows.clone() for rows, _ in model.bags.split_embedding_weights(split_scale_shifts=False)]

    before = held()
    with dr.inject(model, dr.BitFlip(0.5), "embedding", seed=1):
        now = held()
        assert not torch.equal(now[0], before[0]) and torch.equal(now[1][:, 7:], before[1][:, 7:])
    assert all(map(torch.equal, held(), before))


def test_maps_know_the_layout(tmp_path):
    """Rows of 16 bytes of int4 codes and of int2 codes have one shape, but other bits."""
    four, two = quantized(torch.quint4x2), quantized(torch.quint2x4)
    error_map = dr.BitFlip(0.1).sample(resolve(four, "embedding"), seed=1)
    with pytest.raises(ErrorMapMismatch, match=r"t0.weight' of \[50, 16\] int4 rows.* it is .*int2"):
        error_map.apply(two)
    error_map.save(tmp_path / "m.npz")
    loaded = dr.ErrorMap.load(tmp_path / "m.npz")
    other = quantized(torch.quint4x2, seed=5)
    with loaded.applied(other):
        assert loaded.counts("field").sum() == error_map.bits
    assert loaded.restrict("scale").counts("field").to_dict() == {"scale": error_map.counts("field")["scale"]}


@pytest.mark.parametrize("error_model", [dr.MultiBit(0.1, 3), dr.RandomWord(0.1), dr.Burst(0.01, 9)])
def test_patterns_leave_padding_alone(error_model):
    model = quantized(torch.int8)
    error_map = error_model.sample(resolve(model, "embedding"), seed=1)
    assert len(error_map) and "padding" not in error_map.counts("field")
    assert (np.asarray(error_map.word) % 32 < 20).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_weights_that_no_target_holds_are_named_once():
    """PyTorch's dynamic quantization packs weights into script objects."""
    plain = nn.ModuleDict({"table": nn.EmbeddingBag(10, 4), "top": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))})
    packed = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    with pytest.warns(UserWarning, match=r"the weights of top.0._packed_params, top.1._packed_params:"):
        assert [tensor.name for tensor in resolve(packed).tensors] == ["table.weight"]
    with inject(packed, FixedCount(1), "table*", seed=1) as error_map:  # warnings are errors here
        assert len(error_map) == 1
