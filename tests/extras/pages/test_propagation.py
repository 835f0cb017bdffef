import contextlib
import copy
from collections import namedtuple
from dataclasses import make_dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.models import state_digest
from tests.refusals import refuses

COLUMNS = ["module", "type", "call", "depth", "outputs", "share_changed", "largest_change", "nan", "inf"]
COLUMNS += ["rows_changed", "own_errors"]


def plain(model, batch):
    return model(batch)


def flips(model, target, bits, count=1, seed=1):
    """The map of a `with` block that has ended."""
    with dr.inject(model, dr.FixedCount(count, bits=bits), target=target, seed=seed) as error_map:
        pass
    return error_map


def two_layers():
    """1 -> 2 -> 1, in numbers that can be followed by hand."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    state = {"0.weight": [[1.0], [2.0]], "0.bias": [0.0, 0.0], "2.weight": [[1.0, 10.0]], "2.bias": [0.0]}
    model.load_state_dict({name: torch.tensor(values) for name, values in state.items()})
    return model


class Computed(nn.Module):
    """Has no parameters."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


class Value(nn.Module):
    """Gives its parameter, whatever it is given."""

    def __init__(self, *values):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(values))

    def forward(self, x):
        return self.value + 0 * x


def times_one(*then):
    """A layer with the weight 1, and what comes after it."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), *then)
    nn.init.constant_(model[0].weight, 1.0)
    return model


def sign_of_first_weight(model):
    """The flip of the sign of 0.weight[0, 0]: 1 becomes -1."""
    error_map = flips(model, "0.weight", [31], count=2)
    return error_map.drop(error_map.word != 0)


def test_by_hand():
    """The first of two columns changes its sign; the ReLU masks one of its four rows, whose input is negative, partly."""
    model = two_layers()
    x = torch.tensor([[1.0], [3.0], [0.0], [-2.0]])
    frame = dr.trace(model, x, sign_of_first_weight(model), plain)
    assert list(frame) == COLUMNS and frame.attrs["raised"] is None
    rows = frame.set_index("module")
    assert list(rows.index) == ["0", "1", "2", "(model)"]
    assert rows["type"].tolist() == ["Linear", "ReLU", "Linear", "Sequential"]
    assert rows["depth"].tolist() == [1, 1, 1, 0] and rows["call"].tolist() == [0] * 4
    assert rows["outputs"].tolist() == [8, 8, 4, 4]
    # Layer 0: 1, 3, 0 and -2 become -1, -3, 0 (no bit differs after the bias of 0 is added) and 2.
    assert rows["share_changed"].tolist() == [3 / 8, 3 / 8, 3 / 4, 3 / 4]
    assert rows["rows_changed"].tolist() == [3 / 4] * 4
    assert rows["largest_change"].tolist() == [6, 3, 3, 3]
    assert rows["own_errors"].tolist() == [1, 0, 0, 0]
    assert not rows[["nan", "inf"]].to_numpy().any()


def test_nan_and_inf():
    second = Computed(lambda x: torch.stack((1 / x, (x - x) / x, torch.full_like(x, torch.nan))))
    model = nn.Sequential(Value(2.0, 1.0), second)
    error_map = flips(model, "0.value", [30], count=2)  # 2 becomes 0, 1 becomes inf
    rows = dr.trace(model, torch.zeros(2), error_map, plain).set_index("module")
    assert rows.loc["0", ["inf", "nan"]].tolist() == [1, 0] and rows.loc["0", "largest_change"] == np.inf
    # 1/2 -> inf, 1/1 -> 0; 0/2 -> NaN, 0/1 -> NaN; NaN stays.
    assert rows.loc["1", ["inf", "nan", "share_changed", "largest_change"]].tolist() == [1, 2, 4 / 6, np.inf]
    assert rows.loc["1", "rows_changed"] == 2 / 3


@pytest.mark.parametrize(
    ("value", "bit", "expected"),
    [
        (float("nan"), 3, {"share_changed": 0, "nan": 0, "largest_change": 0}),  # another NaN
        (0.0, 31, {"share_changed": 1, "largest_change": 0}),  # -0
        (float("inf"), 31, {"share_changed": 1, "inf": 0, "largest_change": np.inf}),
        (float("inf"), 3, {"share_changed": 1, "inf": 0, "nan": 1}),
        (1.5, 30, {"share_changed": 1, "inf": 0, "nan": 1}),
        (1.0, 30, {"share_changed": 1, "inf": 1, "nan": 0, "largest_change": np.inf}),
    ],
)
def test_special_values(value, bit, expected):
    model = Value(value)
    model.forward = lambda x: model.value.expand(len(x))
    row = dr.trace(model, torch.ones(1), flips(model, "all", [bit]), plain).iloc[0]
    assert row[list(expected)].to_dict() == expected


def test_model_and_map_stay():
    model = nn.Sequential(*two_layers(), nn.BatchNorm1d(1), nn.Dropout(0.9)).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    error_map = sign_of_first_weight(model)
    frames = [dr.trace(model, torch.ones(64, 1), error_map, plain) for _ in range(2)]
    pd.testing.assert_frame_equal(*frames)
    assert frames[0].set_index("module").loc["4", "share_changed"] == 1  # no output is dropped
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert model.training and model[4].training and torch.equal(state, torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())


def outputs_of(model, batch):
    """What each module gives, read by a hook of its own."""
    found = {}

    def note(name, output):
        values = output.values() if type(output).__name__ == "KeyedTensor" else output
        found[name or "(model)"] = values.clone().numpy()

    with torch.no_grad(), contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(lambda module, args, output, name=name: note(name, output))
            stack.enter_context(hook)
        model.eval()(batch.dense_features, batch.sparse_features)
    return found


def test_torchrec_dlrm_against_two_runs(trained, data):
    batch = next(data.test.batches(128))
    error_map = flips(trained, "over_mlp", [30], seed=3)
    frame, golden = dr.trace(trained, batch, error_map), outputs_of(trained, batch)
    with error_map.applied(trained):
        wrong = outputs_of(trained, batch)
    assert len(frame) == len(golden) > 10
    for row in frame.itertuples():
        before, after = golden[row.module], wrong[row.module]
        assert row.outputs == before.size, row.module
        assert row.share_changed == (before != after).mean(), row.module
        assert row.largest_change == np.abs(before.astype(float) - after).max(), row.module
    first = frame[frame["share_changed"] > 0].iloc[0]
    assert error_map.frame()["tensor"].item().startswith(first["module"]) and first["own_errors"] == 1
    assert set(frame[frame["module"].str.startswith(("sparse_arch", "dense_arch"))]["share_changed"]) == {0}


def test_an_error_in_a_table_changes_the_rows_that_read_it(trained, data):
    batch = next(data.test.batches(256))
    ids = batch.sparse_features["user"].values().numpy()
    (name,) = [name for name, _ in trained.named_parameters() if name.endswith("t_user.weight") or "user" in name]
    row = int(ids[0])
    error_map = flips(trained, dr.Rows(name, rows=[row]), [30])
    frame = dr.trace(trained, batch, error_map).set_index("module")
    share = (ids == row).mean()
    assert 0 < share < 0.5
    assert frame.loc[name.removesuffix(".weight"), "rows_changed"] == share
    assert frame.loc["sparse_arch", "rows_changed"] == share and frame.loc["(model)", "rows_changed"] == share
    assert frame.loc["sparse_arch", "share_changed"] < share  # other features' embeddings stay


def test_a_module_called_twice():
    model = times_one()
    twice = Computed(lambda x: model[0](model[0](x)))
    twice.scale = model[0]
    frame = dr.trace(twice, torch.ones(2, 1), flips(twice, "all", [31]), plain)
    assert frame[["module", "call"]].to_numpy().tolist() == [["scale", 0], ["scale", 1], ["(model)", 0]]
    assert frame["share_changed"].tolist() == [1, 0, 0]  # -1, then (-1)(-1)
    assert frame["own_errors"].tolist() == [1, 1, 0]


def test_outputs_that_are_changed_in_place_later():
    model = times_one(nn.ReLU(inplace=True))
    frame = dr.trace(model, torch.full((1, 1), -1.0), flips(model, "all", [31]), plain)
    assert frame["largest_change"].tolist() == [2, 1, 1]  # -1 -> 1; 0 -> 1


def test_other_control_flow_and_shapes():
    layers = {"first": times_one()[0], "low": nn.ReLU(), "high": nn.Tanh(), "cut": Computed(lambda x: x[x > 0])}
    model = nn.ModuleDict(layers)
    model.forward = lambda x: model["cut"](model["high"](x) if (x := model["first"](x)).sum() > 0 else model["low"](x))
    frame = dr.trace(model, torch.ones(3, 1), flips(model, "all", [31]), plain)
    assert frame["module"].tolist() == ["first", "low", "cut", "(model)", "high"]
    assert frame["outputs"].tolist() == [3, 3, 0, 0, 3]
    numbers = frame[["share_changed", "largest_change", "nan", "inf", "rows_changed"]]
    assert numbers.iloc[0].tolist() == [1, 2, 0, 0, 1] and numbers.iloc[1:].isna().all(axis=None)


def test_a_model_that_raises_with_errors():
    def checked(x):
        if not x.isfinite().all():
            raise ArithmeticError("not finite")
        return x

    model = times_one(Computed(checked), nn.ReLU())
    state = state_digest(model)
    frame = dr.trace(model, torch.ones(1, 1), flips(model, "0.weight", [30]), plain)
    assert frame.attrs["raised"] == "ArithmeticError: not finite"
    assert frame["module"].tolist() == ["0"] and frame["inf"].tolist() == [1]
    assert state_digest(model) == state and not dr.restore(model)
    error_map, infinite = flips(model, "0.weight", [30]), torch.full((1, 1), torch.inf)  # fails without errors already
    refuses(lambda: dr.trace(model, infinite, error_map, plain), ArithmeticError, "not finite")
    assert not any(module._forward_hooks for module in model.modules())


Named = namedtuple("Named", "scores ids")
Output = make_dataclass("Output", ["logits", "more"])


def nested(x):
    from torchrec import JaggedTensor

    jagged = JaggedTensor(values=x.reshape(-1), lengths=torch.ones(len(x), dtype=torch.int32))
    return Output(x, {"all": [Named(2 * x, x.long()), None, "text"], "jagged": jagged})


@pytest.mark.parametrize(
    ("output", "outputs", "changed"),
    [
        (nested, 12, 10),  # 3 numbers in each of 4 tensors; of the integers 0, 0 and 1 only the last one changes
        (lambda x: x.to(torch.bfloat16), 3, 3),
        (lambda x: x > 0.5, 3, 1),
        (lambda x: torch.quantize_per_tensor(x, 0.25, 0, torch.qint8), 3, 3),
        (lambda x: torch.complex(x, torch.ones_like(x)), 6, 3),
        (lambda x: x.to_sparse(), 3, 3),
        (lambda x: torch.nested.nested_tensor(list(x)), 3, 3),
        (lambda x: x.sum(), 1, 1),
        (lambda x: None, 0, 0),
        (lambda x: x[:0], 0, 0),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of prototypes in PyTorch
def test_kinds_of_outputs(output, outputs, changed):
    model = times_one(Computed(output))
    rows = dr.trace(model, torch.tensor([[0.25], [0.5], [1.0]]), flips(model, "all", [31]), plain)
    row = rows.set_index("module").loc["1"]
    assert row["outputs"] == outputs and row["share_changed"] * max(outputs, 1) == pytest.approx(changed)


def test_rows_of_several_outputs():
    """A row counts once if any tensor of as many rows differs in it."""
    one, two = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[1.0], [1.0], [0.0]])
    model = times_one(Computed(lambda x: (x * one, x * two, x.reshape(1, -1))))
    frame = dr.trace(model, two, flips(model, "all", [23]), plain)
    assert frame.set_index("module").loc["1", "rows_changed"] == 2 / 3


def test_errors_of_modules_that_are_never_called_and_of_tied_tensors():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.attention, self.scores = nn.Embedding(9, 4), nn.MultiheadAttention(4, 1), nn.Linear(4, 9)
            self.scores.weight = self.items.weight

        def forward(self, ids):
            x = self.items(ids)
            return self.scores(self.attention(x, x, x, need_weights=False)[0])

    model = Attention()
    error_map = flips(model, "attention.out_proj.weight", [3], count=2) | flips(model, "items.weight", [2], count=3)
    rows = dr.trace(model, torch.arange(9), error_map, plain).set_index("module")["own_errors"]
    assert rows.to_dict() == {"items": 3, "attention": 2, "scores": 3, "(model)": 0}


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_transformer_layers_show_their_parts():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
    padding = torch.tensor([[False, False, True], [False, True, True]])
    error_map = flips(model, "layers.1.linear1.weight", [30])
    frame = dr.trace(model, torch.rand(2, 3, 4), error_map, lambda m, x: m(x, src_key_padding_mask=padding))
    assert frame[frame["share_changed"] > 0]["module"].iloc[0] == "layers.1.linear1"


def test_random_numbers_are_the_same_in_both_runs():
    model = times_one(Computed(lambda x: x + torch.rand(len(x), 1)))
    frame = dr.trace(model, torch.ones(5, 1), flips(model, "all", [0], count=0), plain)
    assert set(frame["share_changed"]) == {0}


def test_compiled_models_run_uncompiled():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    model, x = Own(*two_layers()), torch.ones(2, 1)
    error_map = sign_of_first_weight(model)
    expected = dr.trace(model, x, error_map, plain)
    pd.testing.assert_frame_equal(dr.trace(torch.compile(model, backend=backend), x, error_map, plain), expected)
    model.compile(backend=backend)
    pd.testing.assert_frame_equal(dr.trace(model, x, error_map, plain), expected)
    assert not compiled
    model(x)
    assert len(compiled) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrapped_modules_have_one_row_and_those_of_torchscript_none():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = two_layers()
    x, error_map = torch.ones(2, 1), sign_of_first_weight(model)
    expected = dr.trace(model, x, error_map, plain)
    model[2] = checkpoint_wrapper(model[2])
    pd.testing.assert_frame_equal(dr.trace(model, x, error_map, plain), expected)
    model[1], script = torch.jit.script(model[1]), torch.jit.script(two_layers())
    frame = dr.trace(model, x, error_map, plain)
    assert frame["module"].tolist() == ["0", "2", "(model)"] and frame["share_changed"].iloc[-1] == 1
    said = "TorchScript is to be traced before torch.jit.script"
    refuses(lambda: dr.trace(script, torch.ones(2, 1), error_map, plain), ValueError, said)


def test_refusals():
    model, x = two_layers(), torch.ones(2, 1)
    with dr.inject(model, dr.FixedCount(1, bits=[31]), seed=1) as error_map:
        changed = copy.deepcopy(model[0].weight.data)
        refuses(lambda: dr.trace(model, x, error_map, plain), ValueError, "errors are in the Sequential now")
        assert torch.equal(model[0].weight.data, changed)  # they stay there
    with dr.inject(model, dr.FixedCount(1, bits=[31]), dr.Activations("1"), seed=1) as transient:
        model(x)
    refuses(lambda: dr.trace(model, x, transient, plain), ValueError, "error_map has transient errors")
    refuses(lambda: dr.trace(model, x, error_map, lambda model, batch: batch), ValueError, "no module")
    refuses(lambda: dr.trace(model, x, error_map), TypeError, "[2, 1]", " forward=")
    other = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="it is|does not have"):
        dr.trace(other, torch.ones(2, 3), error_map, plain)
