"""What one seed has always given: trial seeds, error maps, errors in check bits, hashed ids, first weights.

These numbers rest on canonical texts and labels, on names of tensors and on the order in which modules are made. A change
that alters them alters every figure. `python -m tests.test_known_answers` writes the file anew after a change that is meant.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.conditions import Condition, resolve_target
from drsrobust.campaign.trial import trial_seed
from drsrobust.injection import ErrorModel, Injection, StuckAt
from drsrobust.models import build_model
from drsrobust_extras.data.id_encoding import hash_ids
from drsrobust_extras.protection.field_errors import RowError
from tests.click_models import CLICK_MODELS

FILE = Path(__file__).with_suffix(".json")
ERRORS: tuple[ErrorModel, ...] = (
    *(dr.BitFlip(1e-2), dr.BitFlip(1e-2, bits=("exponent", 3)), dr.FixedCount(9), dr.FixedCount(9, bits=(1, 2))),
    *(dr.SingleBit(14), StuckAt(0, 1e-2), StuckAt(1, 1e-2, bits=(14,)), dr.MultiBit(1e-2, 2), dr.RandomWord(1e-2)),
    *(dr.RandomValue(1e-2, -1.0, 1.0), dr.Burst(1e-3, 5), RowError(1e-1, 64)),
    *(RowError(1e-1, 64, 0.1), dr.BitFlip(1e-2) + dr.MultiBit(1e-2, 3)),
)
STORED = (
    *(dr.BitProtection((30,)), dr.BitProtection("exponent", code="tmr"), dr.BitProtection("exponent", code="secded")),
    *(dr.ECC(), dr.ECC(32, "zero"), dr.ParityZero(), dr.Replication(), dr.Replication(5, "majority")),
    *(dr.WeightRange.fit, dr.Scrubbing(), dr.Scrubbing(0.5, 2.0), dr.ECC() + dr.BitProtection((31,))),
)


class Model(nn.Module):
    """Tables, a layer, and words of two widths; every weight a small binary fraction, the same on every machine."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.EmbeddingBag(40, 8) for name in ("user", "movie")})
        self.top = nn.Linear(16, 24)
        self.words = nn.Parameter(torch.zeros(64, dtype=torch.float16))
        for number, parameter in enumerate(self.parameters()):
            values = torch.arange(parameter.numel()) * (number + 3) % 97 - 48
            parameter.data = (values / 64).to(parameter.dtype).reshape(parameter.shape)

    def forward(self, x):
        return self.top(x)


def digest(*arrays):
    """The first 16 hex digits of SHA-256 over the bytes of some arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def digest_of(error_map):
    return [len(error_map), digest(error_map.tensor, error_map.word, error_map.mask)]


def seeds():
    """Of the second trial of each error model, on targets at rest and while the model runs."""
    model, evaluator = Model(), SimpleNamespace(name="fm", rows=SimpleNamespace(dataset="movielens-1m/ids"))
    targets = ("all", "embedding", dr.Rows("user", [3, 7]), dr.Inputs("dense"), dr.Activations("top"))
    found = {}
    for target in targets:
        for error in ERRORS:
            condition = Condition(error, target, resolve_target(model, target))
            for coupled in (True, False):
                name = f"{error!r} {target} {coupled}"
                found[name] = trial_seed(evaluator, condition, 1, seed=5, coupled=coupled)
    return found


def maps():
    model = Model()
    return {
        f"{error!r} {target}": digest_of(error.sample(dr.resolve(model, target), seed=7))
        for error in ERRORS
        for target in ("all", "embedding", dr.Rows("user", [3, 7, 8]) | "top.bias")
    }


def transient():
    """What errors in activations and inputs hit in two calls."""
    found = {}
    for error in (dr.BitFlip(1e-2), dr.FixedCount(2), dr.MultiBit(1e-2, 2)):
        model = Model()
        with dr.inject(model, error, dr.Activations("top"), seed=3) as error_map, torch.no_grad():
            for _ in range(2):
                model(torch.ones(4, 16))
        hits = error_map.log.hits
        found[repr(error)] = digest(*(array for hit in hits for array in (hit.word, hit.mask)))
    return found


def kept():
    """What each protection leaves of the errors, with those in its own check bits."""
    found = {}
    for protection in STORED:
        for error in (dr.BitFlip(1e-2), dr.FixedCount(50), RowError(1e-1, 64), dr.Burst(1e-3, 5)):
            model = Model()
            model.words.data = torch.zeros(0, dtype=torch.float16)  # codes are of 32-bit words here
            given = protection(model) if callable(protection) else protection
            drawn = Injection(model, [(error, "all")], seed=11).error_map
            found[f"{given.name} {error!r}"] = digest_of(given.screen(drawn, dr.resolve(model), seed=11).remaining)
    return found


def ids():
    values = np.arange(1000, dtype=np.int64) * 7919
    return {
        f"{feature} {size}": digest(hash_ids(values, size, feature).astype(np.int64))
        for feature in ("user", "cat_3")
        for size in (100, 2**20)
    }


def weights():
    """The first values of each tensor of each model, in the order of the module's own list."""
    data = dr.load_dataset("synthetic-movielens/full", rows=3000)
    found = {}
    for name in CLICK_MODELS:
        schema = dr.load_dataset("synthetic-dummy", rows=200).schema if name == "dummy" else data.schema
        torch.manual_seed(1)
        sizes = {"neurons": 8, "deep_mlp": (16, 16)} if name == "afn" else {}  # those of the study take seconds to make
        state = build_model(name, schema, **sizes).state_dict()
        found[name] = {key: tensor.flatten()[:2].tolist() for key, tensor in state.items()}
    return found


PARTS = {"seeds": seeds, "maps": maps, "transient": transient, "kept": kept, "ids": ids, "weights": weights}


@pytest.mark.parametrize("part", [part for part in PARTS if part != "weights"])
def test_one_seed_gives_what_it_always_gave(part):
    assert json.loads(json.dumps(PARTS[part]())) == json.loads(FILE.read_text())[part]


def test_first_weights_are_what_they_were():
    """Their names and order exactly; their values up to what processors round differently."""
    expected = json.loads(FILE.read_text())["weights"]
    for name, tensors in weights().items():
        assert list(tensors) == list(expected[name])
        for key, values in tensors.items():
            assert values == pytest.approx(expected[name][key], rel=1e-5, abs=1e-9)


if __name__ == "__main__":
    FILE.write_text(json.dumps({part: make() for part, make in PARTS.items()}, indent=0) + "\n")
