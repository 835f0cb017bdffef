"""Clip sites of all models, and identities of all protections and error models, are those of version 0.10: stored campaigns
name protections by them."""

import json
from pathlib import Path

import numpy as np
import pytest

import drsrobust as dr
from tests.click_models import CLICK_MODELS

KNOWN = Path(__file__).with_suffix(".json")
ERRORS = {
    "BitFlip": lambda: dr.BitFlip(1e-3),
    "BitFlip of bits": lambda: dr.BitFlip(1e-3, bits=["exponent", 31]),
    "Burst": lambda: dr.Burst(1e-4, length=4),
    "FixedCount": lambda: dr.FixedCount(3),
    "MemoryFault": lambda: dr.MemoryFault("bank"),
    "MultiBit": lambda: dr.MultiBit(1e-3, 2),
    "RandomValue": lambda: dr.RandomValue(1e-3, low=-1.0, high=1.0),
    "RandomWord": lambda: dr.RandomWord(1e-3),
    "RowError": lambda: dr.RowError(1e-3),
    "SingleBit": lambda: dr.SingleBit(30),
    "StuckAt": lambda: dr.StuckAt(1, 1e-3),
    "a sum": lambda: dr.BitFlip(1e-3) + dr.RowError(1e-4),
}


def protections(model, data):
    """Name -> a protection of the model."""
    train = data.train
    return {
        "ABFTEmbeddingBag": dr.ABFTEmbeddingBag.fit(model),
        "ABFTLinear": dr.ABFTLinear.fit(model),
        "ABFTLinear, restore": dr.ABFTLinear.fit(model, action="restore"),
        "ActivationClipping": dr.ActivationClipping(6.0),
        "ActivationClipping.fit": dr.ActivationClipping.fit(model, train, mode="zero"),
        "BitProtection": dr.BitProtection(range(23, 32), code="tmr"),
        "Chipkill": dr.Chipkill(),
        "ECC": dr.ECC(),
        "ECC of 32": dr.ECC(32),
        "NaNGuard": dr.NaNGuard(prior=0.25),
        "OnDieECC": dr.OnDieECC(),
        "ParityZero": dr.ParityZero(),
        "Replication": dr.Replication(),
        "Scrubbing": dr.Scrubbing(period=0.1, window=1.0),
        "WeightRange": dr.WeightRange.fit(model),
        "WeightRange per row": dr.WeightRange.fit(model, per="row"),
        "ZeroSpaceECC": dr.ZeroSpaceECC(),
        "a sum": dr.WeightRange.fit(model) + dr.Chipkill(),
    }


def present():
    """All of them, as the file holds them."""
    data = dr.load_dataset("synthetic-movielens/full", rows=600, seed=3)
    sites, found = {}, {}
    for name in CLICK_MODELS:
        import torch

        schema = data.schema if name != "dummy" else dr.load_dataset("synthetic-dummy/0.01", rows=600).schema
        torch.manual_seed(1)
        model = dr.models.build_model(name, schema)
        frame = dr.mitigation.clip_sites(model).astype(object)
        sites[name] = frame.where(frame.notna(), None).to_numpy().tolist()
        if name == "dlrm":
            with torch.no_grad():
                for number, parameter in enumerate(model.parameters()):
                    values = np.random.default_rng(number).normal(size=tuple(parameter.shape)).round(3)
                    parameter.copy_(torch.from_numpy(values.astype(np.float32)))
            space = dr.resolve(model)
            for label, make in ERRORS.items():
                error = make()
                columns = {key: str(value) for key, value in error.columns().items()}
                drawn = error.sample(space, seed=5)
                found[label] = [repr(error), columns, int(drawn.bits), int(drawn.word.sum() % 2**31)]
            identities = {label: one.identity() for label, one in protections(model, data).items()}
    return {"sites": sites, "errors": found, "protections": identities}


@pytest.mark.parametrize("part", ["sites", "errors", "protections"])
def test_all_are_as_they_were(part):
    found, known = json.loads(json.dumps(present()))[part], json.loads(KNOWN.read_text())[part]
    assert {name for name in known if found.get(name) != known[name]} == set() and set(found) == set(known)


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(present(), indent=1, sort_keys=True) + "\n")
