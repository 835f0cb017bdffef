"""Errors in few units of a large Linear: equal to full runs bit for bit, by fewer products where the layer allows it."""

import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust_extras.data.load import load_dataset
from tests.conftest import long_but

ERRORS = (FixedCount(1), BitFlip(1e-6), BitFlip(1e-5), BitFlip(1e-3), FixedCount(4, bits=(30,)))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


class Wide(nn.Module):
    """Look-ups, a small layer, a large one, the logit; with a habit."""

    def __init__(self, features, habit):
        super().__init__()
        self.habit, self.names = habit, [feature.name for feature in features]
        self.tables = nn.ModuleList(nn.EmbeddingBag(feature.cardinality, 8, mode="sum") for feature in features)
        self.first = nn.Linear(8 * len(features), 128)
        self.large = (Doubled if habit == "subclass" else nn.Linear)(128, 192, bias=habit != "no bias")
        self.last = nn.Linear(192, 1)
        self.relu = nn.ReLU(inplace=habit == "in place")
        if habit == "hook":
            self.large.register_forward_hook(lambda module, args, output: output + 1)
        if habit == "parametrized":
            parametrize.register_parametrization(self.large, "weight", Halved())
        if habit == "tied":
            self.other = nn.Linear(128, 192)
            self.other.weight = self.large.weight

    def forward(self, dense_features, sparse_features):
        ids = [sparse_features[name] for name in self.names]
        found = [table(one.values().long(), one.offsets()[:-1]) for table, one in zip(self.tables, ids, strict=True)]
        x = torch.relu(self.first(torch.cat(found, dim=1)))
        with torch.autocast("cpu", torch.bfloat16) if self.habit == "autocast" else nullcontext():
            y = self.large(x)
        if self.habit == "input in place":
            x.mul_(2)
        elif self.habit == "twice":
            y = y + self.large(x / 2)
        elif self.habit == "tied":
            y = y + self.other(x)
        elif self.habit == "read":
            y = y + linear(x, self.large.weight)
        elif self.habit == "coupled":  # only by errors
            y = y * (100 / y.abs().max()).clamp(max=1)
        elif self.habit == "mixed":
            y = y - y.mean(dim=0)
        return self.last(self.relu(y.float())).squeeze(1) + x[:, 0]


def products(call):
    """What a function returns, and the products in it."""
    with FlopCounterMode(display=False) as counter:
        return call(), counter.get_total_flops()


@pytest.fixture(scope="module")
def data():
    return load_dataset("synthetic-movielens/full", rows=24_000)


# Habit -> whether the large layer's hit units are computed alone.
HABITS = dict.fromkeys(("", "no bias", "in place", "input in place", "coupled", "mixed"), True)
HABITS |= dict.fromkeys(("hook", "subclass", "parametrized", "tied", "read", "twice", "autocast"), False)


@pytest.mark.filterwarnings("ignore:.*changes the scores of other rows", "ignore:.*the AUC without errors is")
@pytest.mark.filterwarnings("ignore:.*scores depend on which rows are scored together")
@pytest.mark.parametrize("habit", long_but(("", "in place", "coupled", "hook", "twice", "tied"), HABITS))
def test_scores_are_those_of_full_runs(habit, data):
    torch.manual_seed(3)
    model = Wide(data.schema.features, habit)
    evaluator, fewer = Evaluator(model, data.test), []
    for target, error, seed in [("*bias", FixedCount(2), 1), *product(("large*", "all"), ERRORS, [1])]:
        with inject(model, error, target, seed=seed) as error_map:
            full, most = products(evaluator.run)
            for _ in range(2):
                quick, some = products(partial(evaluator.rerun, error_map))
                assert quick.outcome == full.outcome and np.array_equal(quick.scores, full.scores, equal_nan=True)
            if target != "all" and 0 < len(error_map) < 5:
                fewer.append(some / most)
    assert min(fewer) < 0.5 if HABITS[habit] else min(fewer) > 0.7
    evaluator.verify()


def test_few_changed_rows_go_on_alone(data):
    """Each input of the large layer is 0 in nearly all rows; and where nothing is kept, all is computed."""
    torch.manual_seed(3)
    model = Wide(data.schema.features, "")
    nn.init.constant_(model.first.bias, -1.5)
    for memory, least, most in (("2GB", 0.001, 0.15), (0, 1, 1)):
        evaluator = Evaluator(model, data.test, memory=memory)
        for seed in range(4):  # the last changes scores of the second batch
            with inject(model, FixedCount(1, bits=(24,)), "large.weight", seed=seed) as error_map:
                full, all_products = products(evaluator.run)
                result, some = [products(partial(evaluator.rerun, error_map)) for _ in range(2)][-1]
                assert np.array_equal(result.scores, full.scores) and least <= some / all_products <= most


def test_a_layer_whose_units_alone_differ_is_computed_in_full(data, monkeypatch):
    from drsrobust.evaluation import hit_units

    model = Wide(data.schema.features, "")
    monkeypatch.setattr(
        hit_units, "linear", lambda x, weight, bias: linear(x, weight, bias) + (len(weight) < 192) * 1e-7
    )
    evaluator = Evaluator(model, data.test)
    with inject(model, FixedCount(1, bits=(30,)), "large*", seed=1) as error_map:
        results = [products(lambda: evaluator.rerun(error_map)) for _ in range(2)]
        assert all(np.array_equal(result.scores, evaluator.run().scores) for result, _ in results)
    assert results[0][1] > results[1][1] > 0


@pytest.mark.long
def test_other_kernels_of_the_processor():
    environment = os.environ | {"MKL_CBWR": "COMPATIBLE"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-m", "not long"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
