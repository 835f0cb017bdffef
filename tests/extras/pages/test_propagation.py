import copy
import warnings
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.models import state_digest

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
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, 10.0]]))
        model[2].bias.zero_()
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


def test_without_effect():
    model = two_layers()
    for error_map in (flips(model, "all", [31], count=0), sign_of_first_weight(model)):
        frame = dr.trace(model, torch.zeros(3, 1), error_map, plain)
        assert not frame[["share_changed", "largest_change", "nan", "inf", "rows_changed"]].to_numpy(float).any()
    assert frame["own_errors"].sum() == 1


def test_nan_and_inf():
    class Values(nn.Module):
        def __init__(self, values):
            super().__init__()
            self.values = nn.Parameter(torch.tensor(values))

        def forward(self, x):
            return x + self.values

    class Fixed(nn.Module):
        """1 / 0 or 0 / 0 where an error makes the input 0."""

        def forward(self, x):
            return torch.stack((1 / x, (x - x) / x, torch.full_like(x, float("nan"))))

    model = nn.Sequential(Values([2.0, 1.0]), Fixed())
    error_map = flips(model, "0.values", [30], count=2)  # 2 becomes 0, 1 becomes inf
    rows = dr.trace(model, torch.zeros(2), error_map, plain).set_index("module")
    assert rows.loc["0", ["inf", "nan"]].tolist() == [1, 0] and rows.loc["0", "largest_change"] == np.inf
    # 1/2 -> inf, 1/1 -> 0; 0/2 -> NaN, 0/1 -> NaN; NaN stays.
    assert rows.loc["1", ["inf", "nan", "share_changed", "largest_change"]].tolist() == [1, 2, 4 / 6, np.inf]
    assert rows.loc["1", "rows_changed"] == 2 / 3
    only = nn.Sequential(Values([2.0]), nn.Identity())
    only[1].forward = lambda x: (x - x) / x
    rows = dr.trace(only, torch.zeros(1), flips(only, "0.values", [30]), plain).set_index("module")
    assert np.isnan(rows.loc["1", "largest_change"]) and rows.loc["1", "nan"] == 1 and rows.loc["0", "nan"] == 0


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
    class Value(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.tensor([value]))

        def forward(self, x):
            return self.value.expand(len(x))

    model = Value()
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


def test_torchrec_dlrm_against_two_runs(trained, data):
    """Each module's output, read by a hook of its own."""
    batch = next(data.test.batches(128))
    error_map = flips(trained, "over_mlp", [30], seed=3)
    frame = dr.trace(trained, batch, error_map)
    found = {}
    for case in ("without", "with"):
        handles = [
            module.register_forward_hook(lambda module, args, output, name=name, case=case: note(name, case, output))
            for name, module in trained.named_modules()
        ]

        def note(name, case, output):
            values = output.values() if type(output).__name__ == "KeyedTensor" else output
            found[name or "(model)", case] = values.clone().numpy()

        trained.eval()
        with torch.no_grad():
            if case == "with":
                with error_map.applied(trained):
                    trained(batch.dense_features, batch.sparse_features)
            else:
                trained(batch.dense_features, batch.sparse_features)
        for handle in handles:
            handle.remove()
    assert len(frame) == len(found) / 2 > 10
    for row in frame.itertuples():
        golden, wrong = (found[row.module, case] for case in ("without", "with"))
        assert row.outputs == golden.size, row.module
        assert row.share_changed == (golden != wrong).mean(), row.module
        assert row.largest_change == np.abs(golden.astype(float) - wrong).max(), row.module
    first = frame[frame["share_changed"] > 0].iloc[0]
    assert error_map.frame()["tensor"].item().startswith(first["module"]) and first["own_errors"] == 1
    assert not frame[frame["module"].str.startswith(("sparse_arch", "dense_arch"))]["share_changed"].any()


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


def test_gru():
    """A tuple of outputs, whose hidden state has another first dimension."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"gru": nn.GRU(3, 4, batch_first=True), "head": nn.Linear(4, 1)})

    def scores(model, batch):
        return model["head"](model["gru"](batch)[0][:, -1])

    x = torch.rand(5, 7, 3)
    error_map = flips(model, "gru.weight_hh_l0", [30])
    rows = dr.trace(model, x, error_map, scores).set_index("module")
    assert list(rows.index) == ["gru", "head"]  # the model itself is not called
    with torch.no_grad():
        golden = model["gru"](x)
        with error_map.applied(model):
            wrong = model["gru"](x)
    changed = [(a != b).numpy() for a, b in zip(golden, wrong, strict=True)]
    assert rows.loc["gru", "outputs"] == 5 * 7 * 4 + 5 * 4
    assert rows.loc["gru", "share_changed"] == sum(part.sum() for part in changed) / (5 * 7 * 4 + 5 * 4)
    assert rows.loc["gru", "rows_changed"] == changed[0].any((1, 2)).mean()


def test_a_module_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.scale.weight, 1.0)

        def forward(self, x):
            return self.scale(self.scale(x))

    model = Twice()
    frame = dr.trace(model, torch.ones(2, 1), flips(model, "all", [31]), plain)
    assert frame[["module", "call"]].to_numpy().tolist() == [["scale", 0], ["scale", 1], ["(model)", 0]]
    assert frame["share_changed"].tolist() == [1, 0, 0]  # -1, then (-1)(-1)
    assert frame["own_errors"].tolist() == [1, 1, 0]


def test_outputs_that_are_changed_in_place_later():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(inplace=True))
    nn.init.constant_(model[0].weight, -1.0)
    frame = dr.trace(model, torch.ones(1, 1), flips(model, "all", [31]), plain)
    assert frame["largest_change"].tolist() == [2, 1, 1]  # -1 -> 1; 0 -> 1


def test_other_control_flow_and_shapes():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.low, self.high, self.cut = nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Tanh(), nn.Identity()
            self.cut.forward = lambda x: x[x > 0]
            nn.init.constant_(self.first.weight, 1.0)

        def forward(self, x):
            x = self.first(x)
            return self.cut(self.high(x) if x.sum() > 0 else self.low(x))

    model = Branch()
    frame = dr.trace(model, torch.ones(3, 1), flips(model, "all", [31]), plain)
    assert frame["module"].tolist() == ["first", "low", "cut", "(model)", "high"]
    assert frame["outputs"].tolist() == [3, 3, 0, 0, 3]
    numbers = frame[["share_changed", "largest_change", "nan", "inf", "rows_changed"]]
    assert numbers.iloc[0].tolist() == [1, 2, 0, 0, 1] and numbers.iloc[1:].isna().all(axis=None)


def test_a_model_that_raises_with_errors():
    class Checked(nn.Module):
        def forward(self, x):
            if not x.isfinite().all():
                raise ArithmeticError("not finite")
            return x

    model = nn.Sequential(nn.Linear(1, 1), Checked(), nn.ReLU())
    nn.init.constant_(model[0].weight, 1.0)
    state = state_digest(model)
    frame = dr.trace(model, torch.ones(1, 1), flips(model, "0.weight", [30]), plain)
    assert frame.attrs["raised"] == "ArithmeticError: not finite"
    assert frame["module"].tolist() == ["0"] and frame["inf"].tolist() == [1]
    assert state_digest(model) == state and not dr.restore(model)
    with pytest.raises(ArithmeticError, match="not finite"):  # without errors already
        dr.trace(model, torch.full((1, 1), torch.inf), flips(model, "0.weight", [30]), plain)
    assert not any(module._forward_hooks for module in model.modules())


Named = namedtuple("Named", "scores ids")


@dataclass
class Output:
    logits: torch.Tensor
    more: dict


def nested(x):
    from torchrec import JaggedTensor

    jagged = JaggedTensor(values=x.reshape(-1), lengths=torch.ones(len(x), dtype=torch.int32))
    return Output(x, {"all": [Named(2 * x, x.long()), None, "text"], "jagged": jagged})


@pytest.mark.parametrize(
    ("output", "outputs", "changed"),
    [
        (nested, 12, 10),  # 3 numbers in each of 4 tensors; of the integers 0, 0 and 1 only the last one changes
        (lambda x: x.to(torch.bfloat16), 3, 3),
        (lambda x: x.double(), 3, 3),
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
def test_kinds_of_outputs(output, outputs, changed):
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Identity())
    nn.init.constant_(model[0].weight, 1.0)
    model[1].forward = output
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes in PyTorch
        rows = dr.trace(model, torch.tensor([[0.25], [0.5], [1.0]]), flips(model, "all", [31]), plain)
    row = rows.set_index("module").loc["1"]
    assert row["outputs"] == outputs and row["share_changed"] * max(outputs, 1) == pytest.approx(changed)


def test_rows_of_several_outputs():
    """A row counts once if any tensor of as many rows differs in it."""

    class Two(nn.Module):
        def forward(self, x):
            return x * torch.tensor([[1.0], [0.0], [0.0]]), x * torch.tensor([[1.0], [1.0], [0.0]]), x.reshape(1, -1)

    model = nn.Sequential(nn.Linear(1, 1, bias=False), Two())
    nn.init.constant_(model[0].weight, 1.0)
    frame = dr.trace(model, torch.tensor([[1.0], [1.0], [0.0]]), flips(model, "all", [23]), plain)
    row = frame.set_index("module").loc["1"]
    assert row["rows_changed"] == 2 / 3


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


def test_transformer_layers_show_their_parts():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
    padding = torch.tensor([[False, False, True], [False, True, True]])
    error_map = flips(model, "layers.1.linear1.weight", [30])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        frame = dr.trace(model, torch.rand(2, 3, 4), error_map, lambda m, x: m(x, src_key_padding_mask=padding))
    assert frame[frame["share_changed"] > 0]["module"].iloc[0] == "layers.1.linear1"


def test_random_numbers_are_the_same_in_both_runs():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.rand(len(x), 1)

    model = Noisy(1, 1)
    assert not dr.trace(model, torch.ones(5, 1), flips(model, "all", [0], count=0), plain)["share_changed"].any()


def test_compiled_models_run_uncompiled():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def forward(self, x):
            return self.layer(x).relu()

    model = Own()
    x, error_map = torch.ones(2, 1), flips(model, "all", [30])
    expected = dr.trace(model, x, error_map, plain)
    pd.testing.assert_frame_equal(dr.trace(torch.compile(model, backend=backend), x, error_map, plain), expected)
    model.compile(backend=backend)
    pd.testing.assert_frame_equal(dr.trace(model, x, error_map, plain), expected)
    assert not compiled
    model(x)
    assert len(compiled) == 1


def test_wrapped_modules_have_one_row():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = two_layers()
    x, error_map = torch.ones(2, 1), sign_of_first_weight(model)
    expected = dr.trace(model, x, error_map, plain)
    model[2] = checkpoint_wrapper(model[2])
    pd.testing.assert_frame_equal(dr.trace(model, x, error_map, plain), expected)


def test_modules_of_torchscript_have_no_rows():
    model = two_layers()
    error_map = sign_of_first_weight(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model[1] = torch.jit.script(model[1])
        script = torch.jit.script(two_layers())
    frame = dr.trace(model, torch.ones(2, 1), error_map, plain)
    assert frame["module"].tolist() == ["0", "2", "(model)"] and frame["share_changed"].iloc[-1] == 1
    with pytest.raises(ValueError, match="TorchScript is to be traced before torch.jit.script"):
        dr.trace(script, torch.ones(2, 1), error_map, plain)


def test_bounds_of_a_mitigation_are_seen(trained, data):
    batch = next(data.test.batches(128))
    error_map = flips(trained, "over_mlp", [30], seed=3)
    free = dr.trace(trained, batch, error_map)
    with dr.ActivationClipping(6).attach(trained):
        bounded = dr.trace(trained, batch, error_map)
    hit = free["own_errors"] > 0
    layer = free["module"] == error_map.frame()["tensor"].item().split("._linear")[0]
    assert free.loc[hit | layer, "largest_change"].min() > 1e30
    assert bounded.loc[layer, "largest_change"].item() <= 6  # after the ReLU, where the bound is


def test_refusals():
    model, x = two_layers(), torch.ones(2, 1)
    with pytest.raises(TypeError, match="error_map must be an error map, as `with dr.inject.* got 3"):
        dr.trace(model, x, 3, plain)
    with dr.inject(model, dr.FixedCount(1, bits=[31]), seed=1) as error_map:
        changed = copy.deepcopy(model[0].weight.data)
        with pytest.raises(ValueError, match=r"errors are in the Sequential now, .* call it after the `with dr.inject"):
            dr.trace(model, x, error_map, plain)
        assert torch.equal(model[0].weight.data, changed)  # they stay there
    with dr.inject(model, dr.FixedCount(1, bits=[31]), dr.Activations("1"), seed=1) as transient:
        model(x)
    with pytest.raises(ValueError, match=r"error_map has transient errors \(FixedCount.* errors in memory alone"):
        dr.trace(model, x, transient, plain)
    with pytest.raises(ValueError, match="no module of the Sequential was called, .* forward must call the model"):
        dr.trace(model, x, error_map, lambda model, batch: batch)
    with pytest.raises(ValueError, match="it is|does not have"):
        dr.trace(nn.Sequential(nn.Linear(3, 2)), torch.ones(2, 3), error_map, plain)
    with pytest.raises(TypeError, match=r"this batch is a tensor \[2, 1\]; pass forward="):
        dr.trace(model, x, error_map)
