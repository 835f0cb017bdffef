"""Models that compute with other modules or tensors in some batches: reruns equal runs, and reach the rows of these batches."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.data import from_batches
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, FixedCount, inject
from drsrobust.models import state_digest
from tests.conftest import long_but

N_BATCHES, ROWS = 6, 128


def tower(outputs=1):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))


class Towers(nn.Module):
    """A tower for each domain; a batch has rows of one domain."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(tower() for _ in range(2))

    def forward(self, x, domain):
        return self.towers[domain](x)


class Listed(nn.Module):
    """Tensors of a list, of which no module is called."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 1) for _ in range(2))

    def forward(self, x, domain):
        return x @ self.weights[domain]


class Experts(nn.Module):
    """Experts take the rows that a gate gives them; the last one gets rows in the last batch alone."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(tower() for _ in range(3))

    def forward(self, x, domain):
        scores, gate = torch.zeros(len(x), 1), (x[:, 0] > 0).long() + (x[:, 1] > 9)
        for number, expert in enumerate(self.experts):
            if (mine := gate == number).any():
                scores[mine] = expert(x[mine])
        return scores


class SharedLayer(nn.Module):
    """One ReLU inside of a module that can be kept, two levels deep, and outside of it."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        inner = nn.Sequential(nn.Linear(8, 16), self.act)
        self.main = nn.Sequential(nn.Linear(8, 8), nn.Sequential(inner, nn.Linear(16, 16)))
        self.side, self.top = nn.Linear(8, 16), nn.Linear(32, 1)

    def forward(self, x, domain):
        return self.top(torch.cat((self.main(x), self.act(self.side(x))), 1))


class InThreads(nn.Module):
    """Layers that threads compute."""

    def __init__(self):
        super().__init__()
        self.layers, self.top = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(16, 1)

    def forward(self, x, domain):
        def compute(layer):
            with torch.no_grad():  # a state of the thread
                return layer(x)

        with ThreadPoolExecutor(2) as pool:
            return self.top(torch.cat(list(pool.map(compute, self.layers)), 1).relu())


def batches():
    torch.manual_seed(0)
    made = []
    for number in range(N_BATCHES):
        x = torch.randn(ROWS, 8)
        if number == N_BATCHES - 1:
            x[:5, 1] = 10
        made.append({"x": x, "domain": number % 2, "label": (x.sum(1) > 0).float()})
    return made


def forward(model, batch):
    return model(batch["x"], batch["domain"])


def evaluator_of(made):
    return Evaluator(made.eval(), from_batches(batches()), forward=forward)


MODELS = {
    "a tower for each domain": Towers,
    "a list of tensors": Listed,
    "experts": Experts,
    "a layer with two callers": SharedLayer,
    "modules in threads": InThreads,
}


@pytest.mark.filterwarnings("ignore:.*reruns are full runs")
@pytest.mark.parametrize("kind", long_but([*MODELS][:4], MODELS))
def test_reruns_are_runs(kind):
    """For 60 maps of one flip everywhere, and for many flips in each tensor."""
    torch.manual_seed(1)
    evaluator = evaluator_of(MODELS[kind]())
    model, before = evaluator.model, state_digest(evaluator.model)
    grid = [("all", FixedCount(1), seed) for seed in range(60)]
    grid += [(name, BitFlip(0.02), 0) for name, _ in model.named_parameters()]
    changed = 0
    for target, error_model, seed in grid:
        with inject(model, error_model, target, seed=seed) as error_map:
            full, rerun = evaluator.run(), evaluator.rerun(error_map)
        np.testing.assert_allclose(rerun.scores, full.scores, rtol=1e-5, atol=1e-5)
        changed += not np.array_equal(full.scores, evaluator.golden.scores)
    assert changed > len(grid) // 3 and state_digest(model) == before
    evaluator.verify()
    assert (evaluator.full_run is not None) == kind.endswith("threads")


class RandomLast(nn.Module):
    """Random in the last batch alone."""

    def __init__(self):
        super().__init__()
        self.top = tower()

    def forward(self, x, domain):
        scores = self.top(x)
        return scores + torch.rand(len(x), 1) if (x[:, 1] > 9).any() else scores


def test_a_model_that_is_random_in_its_last_batch():
    evaluator = evaluator_of(RandomLast())
    assert evaluator.full_run == "its scores change from run to run"
