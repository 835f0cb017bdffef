"""Served and sharded models (TorchScript, `torch.export`, tensor subclasses) work, or one line says what to do."""

import io
import os

import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign.model_file import model_file, read_model_file
from drsrobust.introspection.wrappers import is_frozen
from drsrobust.mitigation import ActivationClipping, NaNGuard
from drsrobust.models import state_digest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
X = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x))).squeeze(-1)


class Around(nn.Module):
    """Dropout shows whether modes are switched."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.drop, self.bias = inner, nn.Dropout(0.5), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.inner(self.drop(x)) + self.bias


def loaded(script):
    saved = io.BytesIO()
    torch.jit.save(script, saved)
    saved.seek(0)
    return torch.jit.load(saved)


class AlwaysServing(Scorer):
    def train(self, mode=True):
        raise NotImplementedError("no modes")


SERVED = {
    "scripted": lambda: torch.jit.script(Scorer()),
    "traced": lambda: torch.jit.trace(Scorer().eval(), X[:2]),
    "loaded": lambda: loaded(torch.jit.script(Scorer())),
    "scripted inside": lambda: Around(torch.jit.script(Scorer())),
    "traced inside": lambda: Around(torch.jit.trace(Scorer().eval(), X[:2])),
    "frozen inside": lambda: Around(torch.jit.freeze(torch.jit.script(Scorer().eval()))),
    "exported": lambda: torch.export.export(Scorer(), (X[:64],)).module(),
    "exported inside": lambda: Around(torch.export.export(Scorer(), (X[:64],)).module()),
    "eval() raises": lambda: AlwaysServing(),
}


def rows():
    return dr.data.from_batches([(x, (x.sum(1) > 0).float()) for x in X.split(64)])


def forward(model, batch):
    return model(batch[0])


def truth(kind, seed):
    """Scores of the plain module with the same errors."""
    plain = Scorer().eval()
    if "inside" in kind:
        plain = Around(plain).eval()
    target = "bias" if kind == "frozen inside" else "all"
    with dr.inject(plain, dr.BitFlip(1e-2), target=target, seed=seed), torch.no_grad():
        return torch.cat([plain(x) for x in X.split(64)])


@pytest.mark.filterwarnings("ignore:errors cannot hit the weights of inner")
@pytest.mark.parametrize("kind", SERVED)
def test_a_served_model_has_the_scores_of_the_plain_one(kind, tmp_path):
    model = SERVED[kind]()
    modes = [module.training for module in model.modules() if not is_frozen(module)]
    evaluator = dr.Evaluator(model, rows(), forward=forward)
    for seed in range(3):
        with dr.inject(model, dr.BitFlip(1e-2), seed=seed) as error_map:
            runs = [evaluator.run().scores, evaluator.rerun(error_map).scores]
        for scores in runs:
            torch.testing.assert_close(torch.tensor(scores), truth(kind, seed), equal_nan=True)
    assert [module.training for module in model.modules() if not is_frozen(module)] == modes
    campaign = dr.Campaign(
        evaluator,
        errors=dr.BitFlip(1e-2),
        mitigations=[None, NaNGuard(0.5), ActivationClipping.fit(model, rows(), sites="logit", forward=forward)],
        trials=2,
        sampling="plain",
        store=tmp_path / "store",
    )
    assert len(campaign.run(workers=1, progress=False)) == 6


@pytest.mark.parametrize("kind", ["scripted", "traced", "loaded", "scripted inside", "traced inside"])
def test_workers_make_torchscript(kind):
    evaluator = dr.Evaluator(SERVED[kind](), rows(), forward=forward)
    made, call = read_model_file(model_file(evaluator))
    with torch.no_grad():
        evaluator.model.eval()
        assert torch.equal(call(made.eval(), [X]), forward(evaluator.model, [X]))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["traced", "local class"])
def test_trials_do_not_depend_on_the_name_that_a_worker_gives_to_the_class(kind, tmp_path):
    class Local(Scorer):
        pass

    Local.__module__ = "__main__"  # as of a script or notebook: it is pickled by value, and has another name there
    model = SERVED[kind]() if kind in SERVED else Local()
    evaluator = dr.Evaluator(model, rows(), forward=forward)
    options = {"errors": dr.BitFlip(1e-2), "mitigations": [None, NaNGuard(0.5)], "trials": 4}
    tables = [dr.Campaign(evaluator, **options, store=tmp_path / f"{n}").run(workers=n, progress=False) for n in (1, 2)]
    assert tables[0].equals(tables[1])


def test_weights_frozen_into_a_part_are_said():
    with pytest.warns(UserWarning, match="cannot hit the weights of inner: .* frozen into TorchScript"):
        assert dr.resolve(SERVED["frozen inside"]()).words == 1
    assert dr.components(nn.ReLU()).empty


def test_parts_of_torchscript_run_no_hooks():
    with pytest.raises(ValueError, match="first is a part of a model in TorchScript, which runs no hooks of its parts"):
        dr.inject(SERVED["scripted"](), dr.BitFlip(0.1), target=dr.Activations("first"), seed=0).__enter__()
    with pytest.raises(ValueError, match="inner.first is a part of inner in TorchScript.* or at 'inner'"):
        dr.inject(SERVED["traced inside"](), dr.BitFlip(0.1), target=dr.Activations("inner.first"), seed=0).__enter__()
    model = SERVED["scripted inside"]().eval()
    with dr.inject(model, dr.BitFlip(1.0, bits=[31]), target=dr.Activations("inner"), seed=0), torch.no_grad():
        assert torch.equal(model(X), -Scorer()(X))


def with_weight(change):
    model = Scorer().eval()
    model.first.weight = nn.Parameter(change(model.first.weight.data), requires_grad=False)
    return model


def test_a_wrapper_around_tensors_counts():
    """As of weights that a quantization package converts."""
    from torch.testing._internal.two_tensor import TwoTensor

    ones = torch.ones(16, 8)
    digests = [
        state_digest(with_weight(lambda weight, two=two: TwoTensor(ones, two)))
        for two in (ones, ones.clone(), 2 * ones)
    ]
    assert digests[0] == digests[1] != digests[2]


class Plain(torch.Tensor):
    """A subclass with memory of its own."""


def test_a_subclass_with_memory_is_hit():
    model = with_weight(lambda weight: weight.as_subclass(Plain))
    evaluator = dr.Evaluator(model, rows(), forward=forward)
    with dr.inject(model, dr.BitFlip(1e-2), seed=1) as error_map:
        assert torch.equal(torch.as_tensor(evaluator.rerun(error_map).scores), truth("", 1))


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    store = torch.distributed.FileStore(os.fspath(tmp_path / "group"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_dtensors_are_refused_by_name(mesh):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    one_layer = Scorer().eval()
    fully_shard(one_layer.first, mesh=mesh)
    for model in (one_layer, parallelize_module(Scorer(), mesh, {"first": ColwiseParallel()})):
        with pytest.raises(ValueError, match="first.weight is a DTensor"):
            dr.Evaluator(model, rows(), forward=forward)
    with pytest.raises(ValueError, match=r"first.bias is a DTensor.*; the others are \['last'\]"):
        dr.resolve(one_layer)
    assert [tensor.name for tensor in dr.resolve(one_layer, "last").tensors] == ["last.bias", "last.weight"]
