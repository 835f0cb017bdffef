"""What `output=` says of a model, and what its outputs look like: probabilities, logits, or something else."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr

LOOK = "look like probabilities; pass output='probability'"


class Sigmoid(nn.Module):
    """A small model that ends with some function of its logits."""

    def __init__(self, data, last=torch.sigmoid, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.movie = nn.Embedding(data.schema.features[1].cardinality, 8)
        self.top, self.last = nn.Linear(8, outputs), last

    def forward(self, dense_features, sparse_features):
        return self.last(self.top(self.movie(sparse_features["movie"].values().long())))


@contextmanager
def silence():
    """Nothing is said of the kind of the outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*the AUC without errors is")
        yield


@pytest.mark.parametrize(
    ("last", "seems"),
    [
        (lambda logits: 4 * logits, "logits: output='logit'"),
        (lambda logits: 100 * logits.sigmoid(), "percent, of which forward returns a hundredth"),
        (torch.tanh, "a tanh, of which forward returns"),
        (nn.functional.logsigmoid, r"logarithms of probabilities, of which forward returns .exp\(\)"),
    ],
)
def test_outputs_that_are_no_probabilities_are_refused(data, last, seems):
    for forward in (None, lambda model, batch: model(batch.dense_features, batch.sparse_features).double()):
        with pytest.raises(ValueError, match=f"takes values from 0 to 1, and the model .* gives values from .*{seems}"):
            dr.Evaluator(Sigmoid(data, last), data.test, forward=forward, output="probability")


def test_of_several_tasks_the_first_that_is_no_probability_is_named(data):
    clicks = np.stack((data.test.labels, 1 - data.test.labels), axis=1)
    rows = dr.data.from_tensors(label=clicks, tasks=("a", "b"), sparse={"movie": data.test.sparse["movie"].values})

    def last(kinds):
        return lambda logits: torch.stack([kind(column) for kind, column in zip(kinds, logits.T, strict=True)], dim=1)

    identity, sigmoid = lambda values: 9 * values, torch.sigmoid
    with pytest.raises(ValueError, match="for task 'b': they look like logits"):
        dr.Evaluator(Sigmoid(data, last((sigmoid, identity)), outputs=2), rows, output="probability", task="multi")
    with pytest.warns(UserWarning, match=rf"of 'a' in \[.*\], of 'b' in .* {LOOK}"):
        dr.Evaluator(Sigmoid(data, last((sigmoid, sigmoid)), outputs=2), rows, task="multi")
    with pytest.warns(UserWarning, match="all scores lie of 'a' in .*; let forward return logits of all tasks"):
        dr.Evaluator(Sigmoid(data, last((sigmoid, identity)), outputs=2), rows, task="multi")
    with silence():
        dr.Evaluator(Sigmoid(data, last((identity, identity)), outputs=2), rows, task="multi")
        dr.Evaluator(Sigmoid(data, last((sigmoid, sigmoid)), outputs=2), rows, output="probability", task="multi")


def test_probabilities_that_round_past_one_and_wrong_ones_under_errors(data):
    """A softmax in float32 passes 1 by a rounding; errors give any number, which is a result."""
    rounded = Sigmoid(data, lambda logits: torch.where(logits > 0, 1 + 1.2e-7, logits.sigmoid()))
    evaluator = dr.Evaluator(rounded, data.test, output="probability")
    evaluator.probe()
    with dr.inject(evaluator.model, dr.FixedCount(1), seed=0) as error_map:
        evaluator.model.last = lambda logits: 30 * logits
        try:
            assert evaluator.run().outcome == "ok"
            assert evaluator.rerun(error_map).outcome == "ok"
        finally:
            evaluator.model.last = rounded.last


@pytest.mark.parametrize(
    "last",
    [
        torch.sigmoid,
        lambda logits: 1 / (1 + torch.exp(-logits)),
        lambda logits: torch.softmax(torch.cat((torch.zeros_like(logits), logits), dim=1), dim=1)[:, 1],
        lambda logits: (torch.tanh(logits) + 1) / 2,
        lambda logits: logits.sigmoid().clamp(1e-6, 1 - 1e-6).bfloat16(),
        lambda logits: 0.9 * logits.sigmoid().pow(2) + 0.01,  # badly calibrated
    ],
)
def test_every_sigmoid_without_output_is_noticed(data, last):
    """Log loss of the probabilities taken as logits is wrong: 0.73 for 0.72, without a word before."""
    with pytest.warns(UserWarning, match=LOOK):
        evaluator = dr.Evaluator(Sigmoid(data, last), data.test)
    assert evaluator.scoring.output == "logit"
    with silence():  # said explicitly, nothing more is said
        dr.Evaluator(Sigmoid(data, last), data.test, output="logit")
        dr.Evaluator(Sigmoid(data, last), data.test, output="probability")


def test_an_untraceable_sigmoid_is_noticed(data):
    """Operations of a compiled model are not followed: the range of its scores decides."""
    model = Sigmoid(data)
    with pytest.warns(UserWarning, match=LOOK):
        dr.Evaluator(torch.compile(model, backend="eager"), data.test)
