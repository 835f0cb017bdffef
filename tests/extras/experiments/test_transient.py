"""Errors while a model runs: inputs, activations, gradients; call by call, or sample by sample."""

import copy
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import applied_maps, restore
from drsrobust.introspection.embedding_modules import torchrec
from tests.injection.spaces import fused_collection
from tests.injection.test_quantized import Model
from tests.refusals import refuses


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


def hooks_of(model):
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return modules + sum(len(p._backward_hooks or ()) for p in model.parameters())


@pytest.fixture
def x():
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


SIGN = dr.BitFlip(1.0, bits="sign")


def run(model, error_model, target, *inputs, seed=1):
    """What a model without gradients gives under errors, and their map."""
    with torch.no_grad(), dr.inject(model, error_model, target, seed=seed) as error_map:
        return model(*inputs), error_map


def test_what_was_hit_is_what_the_log_says(x):
    model = net()
    seen = []
    model[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    with torch.no_grad():
        model(x)
        with dr.inject(model, dr.BitFlip(0.01), dr.Activations("1"), seed=4) as error_map:
            for _ in range(3):
                model(x)
    golden = seen[0].view(torch.int32)
    log = error_map.log
    assert log.calls == {"1": 3} and log.eligible_bits == log.n_sites == 3 * 40 * 32
    frame = log.frame()
    assert frame["sample"].isna().all() and set(frame["site"]) == {"1"}
    for call, output in enumerate(seen[1:]):
        changed = (output.view(torch.int32) ^ golden).flatten().numpy().view(np.uint32)
        here = frame[frame["call"] == call]
        assert np.flatnonzero(changed).tolist() == sorted(here["word"])
        assert changed[here["word"]].tolist() == here["mask"].tolist()
    assert len({tuple(hit.word) for hit in log.hits}) == 3  # calls differ
    assert log.n_events == log.bits == sum(bin(mask).count("1") for mask in frame["mask"])
    assert log.realised_rate == log.bits / log.eligible_bits


def test_samples_do_not_depend_on_batches(x):
    model = net()

    def in_batches(*sizes):
        target = dr.Activations("0", per="sample")
        with torch.no_grad(), dr.inject(model, dr.FixedCount(2), target, seed=5) as error_map:
            outputs = torch.cat([model(part) for part in x.split(sizes)])
        frame = error_map.log.frame()
        assert frame["sample"].nunique() == 8 and error_map.log.bits == 16
        return outputs, frame.drop(columns="call")

    whole, parts = in_batches(8), in_batches(3, 5)
    assert torch.allclose(whole[0], parts[0], atol=1e-6, equal_nan=True) and whole[1].equals(parts[1])


@pytest.mark.parametrize(
    "error_model", [dr.StuckAt(1, 0.2), dr.RandomValue(0.3, -1, 1), dr.MultiBit(0.2, 2), dr.RandomWord(0.2)]
)
@pytest.mark.parametrize("per", ["call", "sample"])
def test_every_error_model(x, error_model, per):
    """Also those that look at the present words."""
    model, seen = net(), []
    model[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    model(x)
    _, error_map = run(model, error_model, dr.Activations("0", per), x, seed=3)
    changed = seen[1].view(torch.int32) != seen[0].view(torch.int32)
    assert int(changed.sum()) == error_map.log.words > 0
    if isinstance(error_model, dr.StuckAt):
        assert ((seen[1].view(torch.int32) & seen[0].view(torch.int32)) == seen[0].view(torch.int32)).all()
    if isinstance(error_model, dr.RandomValue):
        assert (seen[1][changed].abs() <= 1).all()


def test_a_trial_with_errors_everywhere(x):
    model, before = net(), [p.detach().clone() for p in net().parameters()]
    pairs = [(dr.BitFlip(0.02), "0"), (dr.BitFlip(0.02), "2"), (dr.BitFlip(0.02), dr.Inputs("dense"))]
    pairs += [(dr.BitFlip(0.02), dr.Activations("1")), (dr.MultiBit(0.1, 2), dr.Activations("1"))]
    with torch.no_grad(), dr.inject(model, pairs, seed=9) as error_map:
        one = model(x)
    assert error_map.targets == ("0.bias", "0.weight", "2.bias", "2.weight")
    assert set(error_map.log.calls) == {"dense", "1"} and error_map.log.calls["1"] == 2
    assert hooks_of(model) == 0 and all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    with torch.no_grad(), dr.inject(model, pairs[::-1], seed=9) as again:
        assert torch.equal(model(x), one)  # in whatever order the pairs stand
    assert again.frame().equals(error_map.frame())
    with dr.inject(model, [pairs[0]], seed=9) as alone, dr.inject(model, dr.BitFlip(0.02), "0", seed=9) as single:
        assert alone.frame().equals(single.frame())


def test_pairs_on_equal_targets_are_independent():
    model = nn.ModuleDict({"a": nn.Linear(40, 40), "b": nn.Linear(40, 40)})
    with dr.inject(model, [(dr.BitFlip(0.01), "a"), (dr.BitFlip(0.01), "b")], seed=1) as error_map:
        words = {name: set(group["word"]) for name, group in error_map.frame().groupby("tensor")}
    assert words["a.weight"] != words["b.weight"]
    with dr.inject(model, [(dr.BitFlip(0.01), "a"), (dr.BitFlip(0.01), "a")], seed=1) as twice:
        with_one = dr.BitFlip(0.01).sample(dr.injection.resolve(model, "a"), seed=1)
        assert twice.bits > with_one.bits and (twice | with_one).bits == twice.bits


def test_exceptions_leave_no_hook(x):
    model = net()
    with pytest.raises(KeyError), dr.inject(model, SIGN, dr.Activations("*"), seed=1):
        assert hooks_of(model) == 3
        raise KeyError
    assert hooks_of(model) == 0
    left = dr.inject(model, [(SIGN, dr.Activations("*")), (SIGN, "0")], seed=1)
    left.__enter__()
    assert hooks_of(model) == 3 and restore(model) == 2 and hooks_of(model) == 0
    with pytest.warns(UserWarning, match="no error was injected at 0, 1, 2: not called"):
        left.__exit__(None, None, None)


def test_leaves_of_a_glob_and_exact_containers(x):
    model = nn.Sequential(net(), nn.Linear(1, 1))
    for glob, places in (("0*", {"0.0", "0.1", "0.2"}), ("0", {"0"}), ("*", {"0.0", "0.1", "0.2", "1"})):
        _, error_map = run(model, dr.BitFlip(0.5), dr.Activations(glob), x)
        assert set(error_map.log.calls) == places


def test_gradients(x):
    model = net()
    model(x).sum().backward()
    golden = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with dr.inject(model, SIGN, dr.Gradients("2.*"), seed=1) as error_map:
        model(x).sum().backward()
    assert torch.equal(model[2].weight.grad, -golden["2.weight"]) and torch.equal(model[2].bias.grad, -golden["2.bias"])
    assert torch.equal(model[0].weight.grad, golden["0.weight"]) and hooks_of(model) == 0
    assert error_map.log.calls == {"gradient of 2.weight": 1, "gradient of 2.bias": 1}


def test_sparse_gradients():
    table = nn.Embedding(9, 4, sparse=True)
    ids = torch.tensor([1, 3, 3])
    with dr.inject(table, SIGN, dr.Gradients("weight"), seed=1):
        table(ids).sum().backward()
    dense = table.weight.grad.to_dense()
    assert dense[1].tolist() == [-1.0] * 4 and dense[3].tolist() == [-2.0] * 4 and not dense[0].any()


def test_gradients_pass_through_hit_activations(x):
    model, weights = net(), net()[2].weight.detach().clone()
    with dr.inject(model, SIGN, dr.Activations("1"), seed=1):
        model(x).sum().backward()
    hidden = torch.relu(model[0](x))
    assert torch.allclose(model[2].weight.grad, -hidden.sum(0, keepdim=True))
    through = (weights * (hidden > 0)).sum(0)  # as if the errors were not there
    assert torch.allclose(model[0].bias.grad, through)


def jagged(values=(1, 2, 3, 4, 5, 6), lengths=(2, 0, 1, 1, 1, 1)):
    return torchrec().KeyedJaggedTensor(keys=["f0", "f1"], values=torch.tensor(values), lengths=torch.tensor(lengths))


def test_ids():
    model, ids = Model(), jagged()
    found, error_map = run(model, dr.BitFlip(1.0, bits=(0,)), dr.Inputs("ids"), ids)
    assert torch.equal(found, model(jagged(values=(0, 3, 2, 5, 4, 7)))) and not torch.equal(found, model(ids))
    assert ids.values().tolist() == [1, 2, 3, 4, 5, 6] and error_map.log.calls == {"ids": 1}
    assert error_map.log.eligible_bits == 6 and hooks_of(model) == 0


def test_ids_of_each_sample():
    """Two bits in the ids of each sample, wherever in the jagged values they lie; a sample without ids has none."""
    target = dr.Inputs("ids", per="sample", out_of_range="wrap")
    _, error_map = run(Model(), dr.FixedCount(2, bits=range(6)), target, jagged(lengths=(2, 0, 1, 2, 0, 1)))
    assert error_map.log.bits == 4 and set(error_map.log.frame()["sample"]) == {0, 2}


def test_pooled_embeddings():
    model, ids = Model(), jagged()
    found, error_map = run(model, SIGN, dr.Activations("embedding"), ids)
    assert torch.allclose(found, model.top(-model.tables(ids).values()))
    assert error_map.log.calls == {"tables": 1} and error_map.log.words == 96


@pytest.mark.parametrize(("out_of_range", "reads"), [("first", 0), ("wrap", 37)])
def test_ids_out_of_range_are_guarded(out_of_range, reads):
    """Bit 6 of id 1 makes 65; a table of 28 rows has no such row."""
    table, target = nn.EmbeddingBag(28, 3), dr.Inputs("ids", out_of_range=out_of_range)
    found, _ = run(table, dr.BitFlip(1.0, bits=(6,)), target, torch.tensor([[1]]))
    assert torch.equal(found[0], table.weight[reads % 28])


@pytest.mark.parametrize("bit", [5, 6, 40, 62, 63])
def test_ids_out_of_range_raise_before_the_look_up(bit):
    model = Model()
    with pytest.raises(IndexError, match=r"tables: id -?\d+ is out of range; the table has rows 0 to (49|69)"):
        run(model, dr.BitFlip(1.0, bits=(bit, 5)), dr.Inputs("ids"), jagged(values=(20, 20, 20, 60, 60, 60)))
    assert hooks_of(model) == 0


def test_compiled_modules_are_refused_rather_than_left_alone():
    model = net()
    compiled = torch.compile(model, backend="eager")
    for wrapped, place in (
        (compiled, dr.Activations("*")),
        (nn.Sequential(compiled), dr.Activations("*")),
        (torch.compile(nn.Sequential(nn.EmbeddingBag(100, 4)), backend="eager"), dr.Inputs("ids")),
    ):
        refuses(dr.inject(wrapped, SIGN, place, seed=1).__enter__, ValueError, "is compiled")
        assert hooks_of(wrapped) == 0


def test_outputs_of_any_shape():
    class Many(nn.Module):
        def forward(self, x):
            return {"a": x + 1, "b": [x.sum(), (x.half(), (x > 0).int())]}

    many, odd = nn.Sequential(Many()), nn.Sequential(nn.Identity())
    found, error_map = run(many, dr.BitFlip(1.0, bits=(0,)), dr.Activations("0"), torch.zeros(2, 2))
    assert set(error_map.log.calls) == {"0[a]", "0[b][0]", "0[b][1][0]", "0[b][1][1]"}
    assert found["b"][1][1].tolist() == [[1, 1], [1, 1]] and isinstance(found["b"][1], tuple)
    given = (None, 3, "text", torch.ones(2, dtype=torch.bool), defaultdict(list, x=torch.ones(1)))
    found, _ = run(odd, SIGN, dr.Activations("0"), given)
    assert found[:3] == (None, 3, "text") and found[3].all() and found[4]["x"] == -1 and found[4]["y"] == []


def test_in_a_campaign(evaluator, tmp_path):
    errors = [dr.BitFlip(1e-4)]
    targets = [dr.Activations("over_arch.*"), dr.Inputs("dense"), dr.Rows("user", [1, 2]), "all"]
    options = {"trials": 2, "sampling": "plain", "store": tmp_path / "s"}
    table = dr.Campaign(evaluator, errors=errors, targets=targets, **options).run(progress=False)
    assert list(table["target"].unique()) == ["Activations(over_arch.*)", "Inputs(dense)", "Rows(user, [1, 2])", "all"]
    assert (table["ber"] == 1e-4).all() and table["seed"].nunique() == 8
    hit = table[table["target"] == "Activations(over_arch.*)"]
    flipped = hit["bits_flipped"].tolist()
    assert min(flipped) > 0 and hit["n_events"].tolist() == flipped
    assert hit["realised_rate"].tolist() == (hit["bits_flipped"] / hit["n_sites"]).tolist()
    assert hooks_of(evaluator.model) == 0 and evaluator.run().auc == evaluator.golden.auc
    row = hit.iloc[1]
    with dr.inject(evaluator.model, errors[0], targets[0], seed=int(row["seed"])):
        assert evaluator.run().auc == row["auc"]


def test_compiled_models_draw_anew_at_each_call(x):
    """A compiler that traced the drawing would repeat one call's errors for ever."""
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
        with dr.inject(compiled, dr.BitFlip(0.01), dr.Inputs("dense"), seed=1) as error_map:
            outputs = [compiled(x) for _ in range(3)]
        with dr.inject(model, dr.BitFlip(0.01), dr.Inputs("dense"), seed=1) as plain:
            expected = [model(x) for _ in range(3)]
    assert error_map.log.frame().equals(plain.log.frame()) and error_map.log.calls == {"dense": 3}
    assert all(torch.allclose(a, b, equal_nan=True) for a, b in zip(outputs, expected, strict=True))


def test_an_interrupt_while_hooks_go_on_leaves_none(monkeypatch):
    model, real = net(), nn.Module.register_forward_hook
    for failing in range(3):
        calls = iter(range(10))

        def register(self, hook, calls=calls, failing=failing, **options):
            if next(calls) == failing:
                raise KeyboardInterrupt
            return real(self, hook, **options)

        monkeypatch.setattr(nn.Module, "register_forward_hook", register)
        with pytest.raises(KeyboardInterrupt), dr.inject(model, [(SIGN, "0"), (SIGN, dr.Activations("*"))], seed=1):
            pass
        assert hooks_of(model) == 0 and applied_maps(model) == ()


def test_a_backward_pass_that_never_comes(x):
    model = net()
    with pytest.warns(UserWarning, match="gradient of 0.weight"), dr.inject(model, SIGN, dr.Gradients("0.*"), seed=1):
        model(x)


def test_attention_is_hit_as_a_whole():
    attention, y = nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2)}), torch.randn(3, 1, 4)
    with torch.no_grad(), dr.inject(attention, dr.BitFlip(0.1), dr.Activations("attn*"), seed=1) as error_map:
        attention["attn"](y, y, y)
    assert set(error_map.log.calls) == {"attn[0]", "attn[1]"}  # its projection is not called as a module


def test_a_fused_collection_is_hit_as_a_whole():
    model = fused_collection(torch.optim.SGD)
    ids = torchrec().KeyedJaggedTensor(keys=["f"], values=torch.tensor([3]), lengths=torch.tensor([1]))
    for glob in ("bags*", "*", "embedding"):
        with torch.no_grad(), dr.inject(model, SIGN, dr.Activations(glob), seed=1) as error_map:
            model.bags(ids)
        assert error_map.log.calls == {"bags": 1} and error_map.log.bits == 4


def test_mistakes_are_not_the_models_doing(evaluator, tmp_path):
    """They stop a campaign rather than count as models that raised."""
    grid = {"errors": [dr.BitFlip(1e-3, bits=(40,))], "trials": 1}
    targets = [dr.Activations("dense_arch*")]
    campaign = dr.Campaign(evaluator, targets=targets, store=tmp_path / "a", **grid)
    refuses(lambda: campaign.run(progress=False), dr.injection.InjectionError, "dense_arch", "bit 40")
    for target, said in ((dr.Activations("typo"), "'typo'"), (dr.Gradients(), "gradients")):
        refuses(lambda target=target: dr.Campaign(evaluator, targets=[target], **grid), ValueError, said)
    assert hooks_of(evaluator.model) == 0


def test_guards_see_keywords_and_leave_dense_inputs_and_unread_features_alone():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.bags = nn.Embedding(28, 3), Model().tables

        def forward(self, ids, jagged, dense):
            return self.table(input=ids).sum() + self.bags(features=jagged).values().sum() + dense

    three = torchrec().KeyedJaggedTensor(
        keys=["f0", "f1", "unread"], values=torch.tensor([1, 2, -70]), lengths=torch.ones(3, dtype=torch.int64)
    )
    inputs, target = (torch.tensor([1]), three, torch.ones(1)), dr.Inputs("ids", out_of_range="wrap")
    found, error_map = run(Keywords(), dr.BitFlip(1.0, bits=(6,)), target, *inputs)
    assert found.isfinite() and set(error_map.log.calls) == {"ids", "ids[1]"}


def test_dense_inputs_also_in_lists_and_dicts(x):
    class Nested(nn.Module):
        def forward(self, x, others, *, named):
            return x.sum() + others[0].sum() + named["z"].sum()

    before = x.clone()
    with dr.inject(model := Nested(), SIGN, dr.Inputs("dense"), seed=1) as error_map:
        assert model(x, [x], named={"z": x}) == -3 * before.sum()
    assert torch.equal(x, before) and hooks_of(model) == len(error_map) == 0 and error_map.log.bits == 3 * 48
    assert error_map.log.calls == {"dense": 1, "dense[1]": 1, "dense[2]": 1}


def test_an_injection_may_be_used_again(x):
    model = net()
    before = copy.deepcopy(model.state_dict())
    pairs = [(dr.BitFlip(0.05), "all"), (dr.BitFlip(0.05), dr.Activations("1"))]
    injection = dr.injection.Injection(model, pairs, seed=3)
    outputs = []
    for _ in range(2):
        injection.apply()
        with pytest.raises(RuntimeError, match="is in the model already"), torch.no_grad():
            outputs.append(model(x))
            injection.apply()
        injection.undo()
        assert hooks_of(model) == 0 and all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(*(out.view(torch.int32) for out in outputs)) and restore(model) == 0


def test_a_wrong_order_of_undoing_undoes_nothing(x):
    model = net()
    outer = dr.injection.Injection(model, [(SIGN, "0"), (SIGN, dr.Activations("1"))], seed=1)
    inner = dr.injection.Injection(model, [(SIGN, "0")], seed=1)
    outer.apply()
    inner.apply()
    refuses(outer.undo, RuntimeError, "last in, first out")
    assert hooks_of(model) == 1
    inner.undo()
    outer.undo()
    assert hooks_of(model) == 0


def test_pairs_nest_in_each_rate():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))

    def drawn(rate):
        return dr.injection.Injection(model, [(dr.BitFlip(1e-2), "0.*"), (dr.BitFlip(rate), "1.*")], seed=0).error_map

    low, high = drawn(5e-3), drawn(2e-2)
    assert (low | high).bits == high.bits > low.bits
    rows = [(dr.BitFlip(0.05), dr.Rows("0.weight", numbers)) for numbers in ([0, 1], [5, 6])]
    one, other = (dr.injection.Injection(model, pairs, seed=0).error_map for pairs in (rows, rows[::-1]))
    assert one.frame().equals(other.frame())


@pytest.mark.parametrize(
    ("pairs", "eligible"),
    [
        ([((30,), "all"), ((29,), "all")], 2 * 1056),
        ([((30,), "all"), ((30,), "weight")], 1056),
        ([(None, "row 0"), (None, "row 1")], 2 * 1024),
        ([("sign", "row 0"), ((0, 31), "weight")], 2 * 1024),
        ([(None, "row 0"), ("sign", "all")], 1024 + 1056 - 32),
    ],
)
def test_realised_rate_of_several_errors(pairs, eligible):
    """Each bit that any of them could hit counts once; at rate 1 all are hit."""
    model = nn.Linear(32, 32)
    targets = {"all": "all", "weight": "weight", "row 0": dr.Rows("weight", [0]), "row 1": dr.Rows("weight", [1])}
    pairs = [(dr.BitFlip(1.0, bits=bits), targets[target]) for bits, target in pairs]
    error_map = dr.injection.Injection(model, pairs, seed=0).error_map
    assert error_map.eligible_bits == error_map.bits == eligible and error_map.realised_rate == 1.0
