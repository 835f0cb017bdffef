"""Protections of models whose forward gives tuples, dictionaries and objects: scores are protected as if they came alone."""

import collections
import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation import ActivationClipping, NaNGuard
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    scores: Any
    hidden: Any


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict):
    """As those of the transformers package: its items are its fields, and `update` is refused."""

    scores: Any = None
    hidden: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            super().__setitem__(field.name, getattr(self, field.name))

    def update(self, *args, **kwargs):
        raise TypeError("update is refused")

    def __setattr__(self, name, value):
        if name in self.keys():
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __reduce__(self):
        return type(self), (self.scores, self.hidden)


Named = collections.namedtuple("Named", "scores hidden")
KINDS = {  # how a model gives its scores and what it hides, and how forward picks the scores
    "tuple": (lambda s, h: (s, h), lambda o: o[0]),
    "list": (lambda s, h: [h, s], lambda o: o[1]),
    "dict": (lambda s, h: {"ids": torch.arange(len(s)), "hidden": h, "scores": s}, lambda o: o["scores"]),
    "named tuple": (Named, lambda o: o.scores),
    "frozen dataclass": (Frozen, lambda o: o.scores),
    "fields": (ModelOutput, lambda o: o.scores),
    "items": (ModelOutput, lambda o: o["scores"]),
    "user dict": (lambda s, h: collections.UserDict(scores=s, hidden=h), lambda o: o["scores"]),
    "object": (lambda s, h: types.SimpleNamespace(scores=s, hidden=h), lambda o: o.scores),
    "distribution": (lambda s, h: torch.distributions.Normal(s, 1.0 + 0 * s), lambda o: o.mean),
    "structseq": (lambda s, h: torch.stack([s, s]).max(0), lambda o: o.values),
    "nested": (lambda s, h: ({"a": [h, (s, None)]}, 3), lambda o: o[0]["a"][1][0]),
}
PROTECTIONS = {
    "fitted": lambda *fit, **how: ActivationClipping.fit(*fit, **how),
    "of the output": lambda *fit, **how: ActivationClipping.fit(*fit, sites="logit", margin=0.9, **how),
    "per neuron": lambda *fit, **how: ActivationClipping.fit(*fit, quantile=0.99, scope="neuron", **how),
    "fixed": lambda *fit, **how: ActivationClipping(0.5, sites="logit"),
    "NaN guard": lambda *fit, **how: NaNGuard(0.5),
    "linear": lambda *fit, **how: ABFTLinear.fit(fit[0], action="restore"),
}


class Scorer(nn.Module):
    def __init__(self, give):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.give = nn.Linear(8, 16), nn.Linear(16, 1), give

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.give(self.last(hidden).squeeze(-1), 10 * hidden)


def rows():
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    return dr.data.from_batches([(part, (part.sum(1) > 0).float()) for part in x.split(64)])


def under_errors(give, pick):
    """Scores of a model without errors and with some, under each protection."""
    model, data = Scorer(give).eval(), rows()
    forward = lambda model, batch: pick(model(batch[0]))  # noqa: E731
    found = {}
    for name, make in PROTECTIONS.items():
        with dr.Evaluator(model, data, forward=forward).under(make(model, data, forward=forward)) as guarded:
            found[name] = [guarded.golden.scores.tolist()]
            for seed, target in ((1, "last"), (2, "all")):
                with dr.inject(model, dr.BitFlip(2e-2), target=target, seed=seed) as error_map:
                    found[name].append(guarded.rerun(error_map).scores.tolist())
    return found


@pytest.fixture(scope="module")
def alone():
    return under_errors(lambda scores, hidden: scores, lambda output: output)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_in_any_output_are_protected_as_scores_alone(kind, alone):
    assert repr(under_errors(*KINDS[kind])) == repr(alone)  # NaN equals NaN


def test_each_tensor_of_an_output_has_bounds_of_its_own():
    model, data = Scorer(lambda scores, hidden: (scores, hidden, hidden / 0)).eval(), rows()
    with pytest.warns(UserWarning, match=r"output\[2\] has NaN or infinite values .* this tensor is not bounded"):
        clip = ActivationClipping.fit(model, data, sites="logit", forward=lambda model, batch: model(batch[0])[0])
    table = clip.bounds()
    assert list(table["module"]) == ["[0]", "[1]"] and list(map(str, clip.learnt))[0] == "logit the model, output[0]"
    with torch.no_grad():
        outputs = [model(batch[0]) for batch in data.batches]
    for part in (0, 1):
        values = torch.cat([output[part] for output in outputs])
        assert table["low"][part] == values.min() and table["high"][part] == values.max()


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), None


class Looked(nn.Embedding):
    def forward(self, ids):
        return {"vectors": super().forward(ids)}


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.table, self.last = Pair(8, 16), Looked(4, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)[0]) + self.table((x[:, 0] > 0).long())["vectors"])


@pytest.mark.parametrize(
    ("fit", "gave"), [(ABFTLinear.fit, "Pair.* a tuple"), (ABFTEmbeddingBag.fit, "Looked.* a dict")]
)
def test_checksums_leave_out_layers_that_give_no_tensor(fit, gave):
    model, data = Pairs().eval(), rows()
    evaluator = dr.Evaluator(model, data, forward=lambda model, batch: model(batch[0]))
    with pytest.warns(UserWarning, match=gave), evaluator.under(fit(model)) as guarded:
        assert guarded.golden.scores.tolist() == evaluator.golden.scores.tolist()


def test_errors_in_activations_hit_objects():
    model, x = nn.Sequential(Scorer(KINDS["frozen dataclass"][0])).eval(), torch.ones(2, 8)
    before = model(x)
    with dr.inject(model, dr.BitFlip(1.0, bits=[31]), target=dr.Activations("0"), seed=0) as error_map:
        after = model(x)
    assert torch.equal(after.scores, -before.scores) and torch.equal(after.hidden, -before.hidden)
    assert set(error_map.log.calls) == {"0[scores]", "0[hidden]"}
