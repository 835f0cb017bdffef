"""Models whose weights are stored in narrow formats: what an error in a stored word is, and that everything else takes them."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models import build_model, state_digest
from drsrobust_extras.data.stored_as import DENSE, SCALED, SCALES, TABLES, stored_as
from tests.click_models import CLICK_MODELS
from tests.conftest import long_but

LAYERS = ["dense_mlp", "over_mlp"]


def eight_bits(code, exponent_bits, *, infinities):
    """A number of 8 bits by the OCP specification (OFP8, revision 1.0), in plain Python."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    sign = -1.0 if code >> 7 else 1.0
    exponent, mantissa = (code >> mantissa_bits) & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    if infinities and exponent == 2**exponent_bits - 1:
        return math.nan if mantissa else sign * math.inf
    if not infinities and code & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + 2**mantissa_bits, exponent - bias - mantissa_bits)


VALUES = {
    "fp8_e4m3": [eight_bits(code, 4, infinities=False) for code in range(256)],
    "fp8_e5m2": [eight_bits(code, 5, infinities=True) for code in range(256)],
    "fp16": np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32),
    "bf16": (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_flip_of_every_word_is_its_value(name):
    """All words of a format, each with each of its bits flipped: the layer computes with the value of the changed word."""
    values = np.asarray(VALUES[name], np.float32)
    width = (len(values) - 1).bit_length()
    layer = stored_as(nn.Linear(len(values) // 16, 16, bias=False), dense=name)
    words = layer._parameters["weight"].data.view({8: torch.uint8, 16: torch.uint16}[width])
    words.copy_(torch.arange(len(values)).view(words.shape))
    assert np.array_equal(layer.weight.detach().numpy().ravel(), values, equal_nan=True)
    for bit in range(width):
        with dr.inject(layer, dr.BitFlip(1.0, bits=(bit,)), seed=1) as error_map:
            assert len(error_map) == len(values)
            wrong = layer.weight.detach().numpy().ravel()
        assert np.array_equal(wrong, values[np.arange(len(values)) ^ (1 << bit)], equal_nan=True)
    assert torch.equal(words.flatten().int(), torch.arange(len(values), dtype=torch.int32))


def test_errors_in_bfloat16_are_errors_in_the_upper_half_of_rounded_float32(data):
    """Signs and exponents are drawn alike, and the same changed bits give the same scores."""
    model, rows = build_model("dlrm", data.schema, std=0.3).eval(), data.test.head(300)
    narrow = stored_as(model, dense="bf16")
    for name, parameter in model.named_parameters():
        if not name.startswith("sparse"):
            parameter.data = parameter.data.bfloat16().float()
    scores, error = [], dr.BitFlip(1e-3, bits=("sign", "exponent"))
    for one in (model, narrow):
        evaluator = dr.Evaluator(one, rows, output="logit")
        with dr.inject(one, error, LAYERS, seed=5) as error_map:
            scores.append((evaluator.golden.scores, evaluator.run().scores, error_map.word, error_map.mask))
    wide, short = scores
    assert len(wide[2]) and np.array_equal(wide[2], short[2]) and np.array_equal(wide[3], short[3] << np.uint64(16))
    assert np.array_equal(wide[0], short[0]) and np.array_equal(wide[1], short[1], equal_nan=True)


@pytest.mark.parametrize(
    ("dense", "scale"), [(dense, scale) for dense in DENSE for scale in SCALES if scale == "none" or dense in SCALED]
)
def test_numbers_are_rounded_to_nearest(dense, scale):
    layer, dtype = nn.Linear(33, 17), DENSE[dense]
    with torch.no_grad():
        layer.weight[3] = 0.0
        layer.weight[4] *= 50
    narrow = stored_as(layer, dense=dense, scale=scale)
    assert len(narrow._parameters) == (2 if scale == "none" else 4)
    for name in ("weight", "bias"):
        exact, stored, read = getattr(layer, name), narrow._parameters[name], getattr(narrow, name)
        factor = narrow._parameters.get(f"{name}_scale", torch.ones(1)).detach()
        assert stored.dtype == dtype and read.dtype == torch.float32
        # Half a unit in the last place of the number, or of the smallest number.
        step = torch.maximum(exact.abs(), torch.finfo(dtype).smallest_normal * factor) * torch.finfo(dtype).eps
        assert ((read - exact).abs() <= step * 0.5000001).all()
        if scale != "none":
            size = stored.float().abs()
            most = size.amax(1) if scale == "row" and stored.dim() > 1 else size.max()
            assert set(most.flatten().tolist()) <= {0.0, torch.finfo(dtype).max}
    # The model itself stays as it was.
    assert type(layer) is nn.Linear and layer.weight.dtype == torch.float32


@pytest.mark.parametrize(
    "name", long_but(("dlrm", "fm"), [name for name in CLICK_MODELS if name not in ("dummy", "afn")])
)
def test_models_of_the_library(name, data):
    """Scores are near those in float32, the nearer the wider the format; reruns equal runs; undo leaves every bit."""
    model, rows = build_model(name, data.schema, std=0.3).eval(), data.test.head(200)
    expected, before, distances = dr.Evaluator(model, rows, output="logit").golden.scores, state_digest(model), {}
    for formats in [{"dense": dense} for dense in DENSE] + [{"tables": tables} for tables in TABLES]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="tables of .* stay as they are")
            narrow = stored_as(model, **formats)
        evaluator, digest = dr.Evaluator(narrow, rows, output="logit"), state_digest(narrow)
        (key,) = formats.values()
        distances[*formats, key] = float(np.abs(evaluator.golden.scores - expected).max())
        with dr.inject(narrow, dr.BitFlip(1e-3), seed=1) as error_map:
            assert len(error_map)
            rerun, run = evaluator.rerun(error_map), evaluator.run()
        assert np.array_equal(rerun.scores, run.scores, equal_nan=True) and state_digest(narrow) == digest
    order = [distances["dense", key] for key in ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")]
    assert order[0] == 0 and order == sorted(order)
    order = [distances["tables", key] for key in TABLES]
    assert order[0] == 0 and order[1] < order[-1] and order[2] < order[3] < order[4]
    assert state_digest(model) == before


def protections(model, data):
    """What may protect a model, by its name; each is made for the model."""
    yield dr.ECC()
    yield dr.ParityZero()
    yield dr.Replication()
    yield dr.BitProtection(("sign", "exponent", "scale", "bias"), code="secded")
    yield dr.OnDieECC()
    yield dr.Chipkill()
    if any(tensor.format.name == "float32" for tensor in dr.resolve(model).tensors):
        yield dr.SelectiveChipkill.store(model)
    yield dr.Scrubbing(period=0.1, window=1.0)
    yield dr.WeightRange.fit(model)
    yield dr.ABFTLinear.fit(model, action="restore")
    yield dr.ABFTEmbeddingBag.fit(model, action="restore")
    yield dr.ActivationClipping.fit(model, data.train.head(500))
    yield dr.NaNGuard(prior=0.3)


FORMATS = [{"dense": dense} for dense in DENSE] + [{"dense": "fp8_e4m3", "scale": "row"}]
FORMATS += [{"tables": tables} for tables in TABLES] + [{"dense": "bf16", "tables": "int8"}]


@pytest.mark.parametrize("formats", long_but(FORMATS[-3:], FORMATS), ids=lambda formats: " ".join(formats.values()))
def test_all_protections_take_all_formats(formats, data):
    """Under each one: fewer or other errors, `rerun` as `run`, and every bit as before."""
    narrow, rows = stored_as(build_model("dlrm", data.schema, std=0.3).eval(), **formats), data.test.head(200)
    for protection in protections(narrow, data):
        evaluator, before = dr.Evaluator(narrow, rows, output="logit"), state_digest(narrow)
        errors = dr.inject(narrow, dr.BitFlip(1e-4), seed=1, mitigation=protection)
        with evaluator.under(protection) as guarded, errors as remaining:
            rerun, run = guarded.rerun(remaining), guarded.run()
        assert np.array_equal(rerun.scores, run.scores, equal_nan=True), protection.name
        assert state_digest(narrow) == before, protection.name


@pytest.mark.parametrize("dense", DENSE)
def test_a_checksum_restores_the_stored_words(dense):
    layer = stored_as(nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 1)), dense=dense)
    abft, inputs = dr.ABFTLinear.fit(layer, action="restore"), torch.randn(30, 20)
    top = {32: 30, 16: 14, 8: 6}[8 * layer[0]._parameters["weight"].element_size()]
    with torch.no_grad():
        expected, words = layer(inputs), layer[0]._parameters["weight"].clone()
        with abft.attach(layer) as detection, dr.inject(layer, dr.SingleBit(top), "0.weight", seed=1):
            assert torch.equal(layer(inputs), expected) and detection.detected and detection.repaired
            assert torch.equal(layer[0]._parameters["weight"].float(), words.float())


@pytest.mark.long
@pytest.mark.parametrize("formats", [{"dense": "fp8_e5m2", "scale": "tensor"}, {"dense": "bf16", "tables": "int4"}])
def test_a_campaign_in_processes(formats, data, tmp_path):
    """The same table in this process and in two."""
    narrow, rows = stored_as(build_model("dlrm", data.schema, std=0.3).eval(), **formats), data.test.head(500)
    evaluator = dr.Evaluator(narrow, rows, output="logit")
    options = {"errors": [dr.BitFlip(1e-4), dr.BitFlip(1e-3)], "mitigations": [None, dr.WeightRange.fit(narrow)]}
    options |= {"trials": 6, "sampling": "stratified"}
    campaigns = [dr.Campaign(evaluator, store=tmp_path / str(workers), **options) for workers in (1, 2)]
    tables = [each.run(workers=workers, progress=False) for workers, each in enumerate(campaigns, 1)]
    assert tables[0].equals(tables[1]) and tables[0]["bits_flipped"].max() > 1


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    narrow = stored_as(model, dense="fp8_e4m3", scale="row")
    assert narrow["a"]._parameters["weight"] is narrow["b"]._parameters["weight"]
    assert narrow["a"]._parameters["weight_scale"] is narrow["b"]._parameters["weight_scale"]
    names = [tensor.name for tensor in dr.resolve(narrow).tensors]
    assert names == ["a.bias", "a.bias_scale", "a.weight", "a.weight_scale", "b.bias", "b.bias_scale"]


def collection(*poolings):
    config, kinds = torchrec().EmbeddingBagConfig, torchrec().PoolingType
    sizes = {"embedding_dim": 4, "num_embeddings": 9}
    tables = [
        config(name=f"t{n}", feature_names=[f"f{n}"], pooling=getattr(kinds, pooling), **sizes)
        for n, pooling in enumerate(poolings)
    ]
    return torchrec().EmbeddingBagCollection(tables=tables)


@pytest.mark.parametrize(
    ("model", "formats", "message"),
    [
        (nn.Linear(4, 2), {"dense": "bf8"}, "dense format 'bf8'"),
        (nn.Linear(4, 2), {"tables": "bf16"}, "table format 'bf16'"),
        (nn.Linear(4, 2), {"dense": "bf16", "scale": "block"}, "scale 'block'"),
        (nn.Linear(4, 2), {"dense": "bf16", "scale": "row"}, "fp16, fp8_e4m3, fp8_e5m2, not of bf16"),
        (nn.Linear(4, 2), {"tables": "int8"}, "tables .* Linear has none"),
        (nn.EmbeddingBag(4, 2), {"tables": "int8"}, "weight is none"),
        (nn.LSTM(4, 2), {"dense": "bf16"}, "weight_ih_l0: LSTM .*'_flat_weights'"),
        (torch.compile(nn.Linear(4, 2), backend="eager"), {"dense": "bf16"}, "compiled"),
        (nn.Sequential(collection("SUM", "MEAN", "SUM")), {"tables": "int8"}, "0: .*pooling"),
    ],
)
def test_what_is_refused(model, formats, message):
    with pytest.raises(ValueError, match=message):
        stored_as(model, **formats)
    assert stored_as(nn.Sequential(collection("SUM", "MEAN")), tables="int8")


def test_numbers_over_the_range_are_refused():
    layer = nn.Linear(4, 2)
    layer.weight.data[1, 2] = 1e4
    with pytest.raises(ValueError, match=r"weight has numbers to 1e\+04, .* 448: scale='tensor'"):
        stored_as(layer, dense="fp8_e4m3")
    assert stored_as(layer, dense="fp8_e4m3", scale="tensor").weight.max() == 1e4
    layer.weight.data[1, 2] = math.nan
    with pytest.raises(ValueError, match="weight has numbers to nan"):
        stored_as(layer, dense="bf16")


def test_tables_of_odd_width_stay_as_they_are(data):
    model = build_model("fm", data.schema).eval()
    with pytest.warns(UserWarning, match="tables of first_order stay as they are: user has an odd width"):
        narrow = stored_as(model, tables="int8")
    formats = {tensor.name: tensor.format.name for tensor in dr.resolve(narrow).tensors}
    assert formats["first_order.embedding_bags.user.weight"] == "float32"
    assert formats["fields.embeddings.embedding_bags.user.weight"].startswith("int8 rows")


def test_the_page_runs(capsys, run_page):
    names = run_page("models.md", blocks=2)
    assert names["narrow"].over_arch.model[1]._parameters["weight"].dtype == torch.bfloat16
    assert "share" in capsys.readouterr().out
