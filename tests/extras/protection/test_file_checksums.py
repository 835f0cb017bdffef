"""Checksums: a file with a wrong bit is refused before it is loaded, and a wrong word of a model is found in its block."""

import contextlib
import json
import random
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import drsrobust as dr
from drsrobust._arguments import ArgumentError
from drsrobust_extras.protection.file_checksums import Checksums, DamagedError
from tests.refusals import refuses


@pytest.fixture
def model():
    return nn.Sequential(nn.Embedding(400, 16), nn.Linear(16, 8, dtype=torch.bfloat16), nn.BatchNorm1d(8)).eval()


def saved(model, path):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.float().numpy() for name, tensor in state.items()})
    else:
        torch.save({"model": state, "epoch": 3}, path)
    return path


def loaded(path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)["model"]


def change(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "beside"), [("m.pt", False), ("m.pt", True), ("m.safetensors", True), ("m.npz", False)]
)
def test_any_bit_of_a_file(model, tmp_path, name, beside):
    """A file that passes is loaded with the words that were saved, or is refused there."""
    path = saved(model, tmp_path / name)
    sums = dr.checksums(model, block=256)
    if beside:
        sums.save(tmp_path / f"{name}.checksums.json")
    content, found, before = path.read_bytes(), dr.verify(path), dr.checksums(loaded(path))
    assert found.path == path and (found.records > 6) == (name != "m.safetensors")
    assert found.blocks == beside * sum(len(about.sums) for about in sums.tensors.values())
    bits, passed = random.Random(0).sample(range(8 * len(content)), 100), 0
    for bit in bits:
        path.write_bytes(content)
        change(path, bit)
        try:
            dr.verify(path)
        except DamagedError as error:
            assert error.damage and str(path) in str(error)
        else:
            passed += 1
            with contextlib.suppress(RuntimeError, zipfile.BadZipFile):
                assert before.check(loaded(path)) == []
    assert passed <= 5


def test_names_of_what_is_wrong(model, tmp_path):
    path, sums = saved(model, tmp_path / "m.pt"), dr.checksums(model, block=256)
    start = path.read_bytes().index(model[1].weight.detach().view(torch.uint8).numpy().tobytes())
    change(path, 8 * start)
    refuses(lambda: dr.verify(path), DamagedError, "record m/data/1 (model.1.weight)")
    other = saved(model, tmp_path / "m.safetensors")
    refuses(lambda: dr.verify(other), ValueError, other, "m.safetensors.checksums.json")
    sums.save(tmp_path / "m.safetensors.checksums.json")
    change(other, 8 * (other.read_bytes().index(model[0].weight.detach().numpy().tobytes()) + 300))
    refuses(lambda: dr.verify(other), DamagedError, "0.weight, block 1 (bytes 256 to 512)", "crc32")
    save_file({"0.weight": model[0].weight.detach().half(), "more": torch.ones(1)}, other)
    wrong = pytest.raises(DamagedError, dr.verify, other).value.damage
    assert [entry.name for entry in wrong] == ["more", *sums.tensors] and "float16 [400, 16]" in wrong[1].why
    torch.save(model, path)
    assert dr.verify(path).records > 6
    sums.save(tmp_path / "m.pt.checksums.json")
    refuses(lambda: dr.verify(path), ValueError, path, "m.pt.checksums.json")
    (tmp_path / "m.pt.checksums.json").unlink()
    (tmp_path / "m.pt").write_bytes(b"no archive")
    refuses(lambda: dr.verify(path), ValueError, path, "checksums.json")
    refuses(lambda: dr.verify(tmp_path / "none.pt"), FileNotFoundError, "none.pt")


def test_files_that_are_right(model, tmp_path):
    """What looks like an archive, lies deep in a file, or is there under one of two names."""
    name, tied = "m.safetensors", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight, suffix = tied[0].weight, ".checksums.json"
    dr.checksums(tied).save(tmp_path / (name + suffix))
    save_model(tied, str(tmp_path / name))
    assert dr.verify(tmp_path / name).blocks == 4
    for length in range(18_000, 19_300, 8):  # of its header, which the file begins with: b"PK"
        save_file(tied.state_dict() | {"1.weight": tied[1].weight.clone()}, tmp_path / name, {"": "-" * length})
        if (tmp_path / name).read_bytes()[:2] == b"PK":
            break
    assert dr.verify(tmp_path / name).blocks == 4 and (tmp_path / name).read_bytes()[:2] == b"PK"
    dr.checksums(tied).save(tmp_path / f"m.pt{suffix}")
    torch.save({"best": {"model": tied.state_dict(), "epoch": 3}, "x": torch.ones(1)}, tmp_path / "m.pt")
    assert dr.verify(tmp_path / "m.pt").blocks == 4
    for content in (torch.ones(3), [tied.state_dict()]):
        torch.save(content, tmp_path / "m.pt")
        refuses(lambda: dr.verify(tmp_path / "m.pt"), ValueError, "m.pt.checksums.json")
    np.savez(tmp_path / "m.npz", text=np.array(["a"]))
    dr.checksums(tied).save(tmp_path / f"m.npz{suffix}")
    refuses(lambda: dr.verify(tmp_path / "m.npz"), ValueError, "m.npz.checksums.json")


def test_a_record_with_the_mark_of_a_folder(tmp_path):
    """Its words are not read by `torch.load`, though all agree with their CRC-32."""
    torch.save({"a": torch.ones(3)}, path := tmp_path / "m.pt")
    content = path.read_bytes()
    change(path, 8 * (content.rindex(b"m/data/0") - 8) + 4)  # of the external attributes in the list of records
    assert not torch.equal(torch.load(path)["a"], torch.ones(3))
    refuses(lambda: dr.verify(path), DamagedError, "m/data/0 (a)", "folder")


def test_a_record_that_is_hidden(tmp_path):
    """By the length of the comment before it in the list of records: `numpy.load` reads the others."""
    np.savez(path := tmp_path / "m.npz", a=np.ones(3), b=np.ones(3))
    change(path, 8 * (path.read_bytes().rindex(b"a.npy") - 13))
    assert list(loaded(path)) == ["a"]
    refuses(lambda: dr.verify(path), DamagedError, "list of records", 1, 2)


@pytest.mark.parametrize("kind", ["crc32", "sha256"])
def test_a_served_model(model, kind, tmp_path):
    dr.checksums(model, kind=kind, block=256).save(tmp_path / "sums.json")
    sums = Checksums.load(tmp_path / "sums.json")
    scrubber, blocks = sums.scrubber(model), sum(len(about.sums) for about in sums.tensors.values())
    assert sums.check(model) == [] and [next(scrubber) for _ in range(blocks + 1)] == [None] * (blocks + 1)
    with dr.inject(model, dr.FixedCount(1), target="0.weight", seed=3) as error_map:
        start = 4 * int(error_map.word[0]) // 256 * 256
        (wrong,) = sums.check(model)
        assert (wrong.name, wrong.start, wrong.end) == ("0.weight", start, start + 256)
        assert [found for found in (next(scrubber) for _ in range(blocks)) if found] == [wrong]
    assert sums.check(model) == sums.check(model.state_dict()) == []
    compiled = {
        f"_orig_mod.{name}": tensor for name, tensor in model.state_dict().items()
    }  # as torch.compile names them
    for wrapped in (compiled, nn.DataParallel(model)):
        assert sums.check(wrapped) == dr.checksums(wrapped, kind=kind, block=256).check(model) == []
    good = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight[[0, 300]] += 1
    scrubber = sums.scrubber(model)
    assert next(scrubber).block == 0
    model[0].weight = nn.Parameter(good)  # what was there is no longer of the model
    assert [next(scrubber) for _ in range(blocks)] == [None] * blocks
    model[2].running_mean = torch.ones(8)
    assert [wrong.name for wrong in sums.check(model)] == ["2.running_mean"]


def test_refusals(model, tmp_path):
    refuses(lambda: dr.checksums(model, kind="md5"), ValueError, "kind", "md5", "sha256")
    refuses(lambda: dr.checksums(model, block=0), ArgumentError, "block", 0)
    refuses(lambda: dr.checksums("model.pt"), ArgumentError, "model", "model.pt")
    refuses(lambda: dr.checksums({"a": 1.0}), ArgumentError, "a", 1.0)
    refuses(lambda: dr.checksums(nn.ReLU()), ValueError, "model", "ReLU")
    refuses(lambda: dr.checksums(nn.Linear(2, 2, device="meta")), ValueError, "weight", "meta")
    packed = type("Packed", (nn.Linear,), {"get_extra_state": lambda self: (self.weight, None)})(2, 2)
    refuses(lambda: dr.checksums(packed), ValueError, "_extra_state", "tuple")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once a process that it is deprecated
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    refuses(lambda: dr.checksums({"a": quantized}), ValueError, "a", "qint8")
    dr.checksums(model).save(path := tmp_path / "sums.json")
    torch.serialization.set_crc32_options(False)
    torch.save(model.state_dict() | {"empty": torch.empty(0)}, tmp_path / "m.pt")
    torch.serialization.set_crc32_options(True)
    refuses(lambda: dr.verify(tmp_path / "m.pt"), DamagedError, "every record", "set_crc32_options")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"block": 1}))
    refuses(lambda: Checksums.load(path), ValueError, path, "SHA-256")


def test_this_librarys_checkpoints(tmp_path, model):
    data = dr.load_dataset("synthetic-movielens", rows=500)
    trained = dr.models.build_model("fm", data.schema)
    about = {"model": "fm", "schema": {"dense": [], "features": []}, "sizes": {}}
    dr.training.save_checkpoint(trained, tmp_path / "fm", about)
    weights = tmp_path / "fm" / "model.safetensors"
    assert dr.verify(weights).blocks == len(trained.state_dict())
    change(weights, 8 * weights.stat().st_size - 8)
    refuses(lambda: dr.verify(weights), DamagedError, "block 0", "crc32")
