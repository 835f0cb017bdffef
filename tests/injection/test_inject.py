import contextlib
import copy
import io
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.injection import (
    BitFlip,
    ErrorMapMismatch,
    FixedCount,
    Injection,
    Rows,
    SingleBit,
    applied_maps,
    inject,
    resolve,
    restore,
)
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.mitigation import ECC
from drsrobust_extras.protection.field_errors import RandomValue
from drsrobust_extras.protection.golden_copy import GoldenCopy


@pytest.fixture
def model():
    """Weights with every kind of float32 in them: NaN payloads, infinities, -0.0, denormals."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    odd = np.array([0x7FC00001, 0xFFC0DEAD, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], np.uint32).view(np.float32)
    with torch.no_grad():
        model[0].weight[0, : len(odd)] = torch.from_numpy(odd)
    return model


def words(model):
    return {name: p.detach().view(torch.int32).clone() for name, p in model.named_parameters()}


def same(model, before):
    return all(torch.equal(now, before[name]) for name, now in words(model).items())


def test_error_models_of_one_seed_draw_from_streams_of_their_own(model):
    space = resolve(model)
    at_rate = BitFlip(1e-3).sample(space, seed=8)
    assert not np.array_equal(FixedCount(at_rate.bits).sample(space, seed=8).word, at_rate.word)
    assert FixedCount(space.bits).sample(space, seed=8).bits == space.bits


def test_the_seed_alone_decides(model):
    """Random numbers drawn elsewhere change no map, and no generator elsewhere moves on."""
    space, error_model = resolve(model), BitFlip(1e-3) + RandomValue(1e-2, 0, 1)
    first = error_model.sample(space, seed=7).frame()
    torch.rand(5), np.random.rand(5), random.random()
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert error_model.sample(space, seed=7).frame().equals(first)
    assert not error_model.sample(space, seed=8).frame().equals(first)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1] and random.getstate() == states[2]


def test_close_seeds_and_large_ones_are_different_trials():
    """No two seeds share a map: none is folded into a smaller range."""
    space = AddressSpace([TargetTensor.of("t", "t", torch.float32, (10**9,))])  # more words than there is memory
    seeds = [*range(300), *(2**n + k for n in range(17, 64) for k in (0, 1)), 100_000, 200_000, 2**64 - 1]
    assert len({tuple(FixedCount(3).sample(space, seed=seed).word.tolist()) for seed in seeds}) == len(set(seeds))


def test_a_target_that_was_resolved_before(model):
    """Gives the errors of its name, protected or not, until a tensor is replaced."""
    space, before = resolve(model, "0.*"), words(model)
    for protection in (None, ECC()):
        with inject(model, BitFlip(1e-2), "0.*", seed=3, mitigation=protection) as by_name:
            pass
        with inject(model, BitFlip(1e-2), space, seed=3, mitigation=protection) as error_map:
            assert error_map.frame().equals(by_name.frame()) and not same(model, before)
    assert same(model, before)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(
        ValueError, match="0.weight: the address space is of another model, or of a tensor that was replaced"
    ):
        inject(model, BitFlip(1e-2), space, seed=3).__enter__()


def test_only_what_was_hit_is_touched(model):
    """No tensor is copied or put in another place: addresses and versions that autograd counts stay as they are."""
    tensors = dict(model.named_parameters())
    places = {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
    with inject(model, BitFlip(1e-2), "everything", seed=1):
        assert all(tensors[name] is tensor for name, tensor in model.named_parameters())
    assert {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()} == places
    with inject(model, FixedCount(1), "0.weight", seed=1), torch.no_grad():
        before = model[0].bias.clone()
        model[0].bias.add_(1)
    assert torch.equal(model[0].bias, before + 1)  # words that were not hit are not put back


def test_undo_on_exceptions(model):
    before = words(model)
    with pytest.raises(KeyError), inject(model, BitFlip(0.1), seed=1):
        assert not same(model, before)
        raise KeyError
    assert same(model, before) and applied_maps(model) == ()
    with contextlib.suppress(KeyboardInterrupt), inject(model, BitFlip(0.1), seed=1):
        raise KeyboardInterrupt
    assert same(model, before)

    def generator():
        with inject(model, BitFlip(0.1), seed=1):
            yield

    one = generator()
    next(one)
    assert not same(model, before)
    one.close()
    assert same(model, before)


def test_nested_and_overlapping(model):
    before = words(model)
    with inject(model, BitFlip(0.3), seed=1) as outer:
        once = words(model)
        with inject(model, BitFlip(0.3), seed=2) as inner:
            assert applied_maps(model) == (outer, inner)
        assert same(model, once)
    assert same(model, before)


def test_another_order_is_refused_and_restore_helps(model):
    before = words(model)
    first, second = inject(model, BitFlip(0.3), seed=1), inject(model, BitFlip(0.3), seed=2)
    first.__enter__()
    second.__enter__()
    with pytest.raises(RuntimeError, match="last in, first out.*seed 2.*seed 1.*restore"):
        first.__exit__(None, None, None)
    assert restore(model) == 2 and same(model, before)
    second.__exit__(None, None, None)  # its undo has nothing left to do
    assert same(model, before) and restore(model) == 0


def test_a_module_and_its_parent_know_of_each_other(model):
    before = words(model)
    outer, inner = inject(model, BitFlip(0.3), seed=1), inject(model[0], BitFlip(0.3), seed=2)
    outer.__enter__()
    inner.__enter__()
    assert len(applied_maps(model)) == len(applied_maps(model[0])) == 2 and len(applied_maps(model[1])) == 1
    with pytest.raises(RuntimeError, match="last in, first out"):
        outer.__exit__(None, None, None)
    assert restore(model) == 2 and same(model, before)


def test_a_tensor_that_was_replaced_meanwhile_is_told(model):
    with (
        pytest.raises(RuntimeError, match="0.bias, 0.weight, .*: replaced while errors were in it"),
        inject(model, BitFlip(0.3), seed=1),
    ):
        model.double()
    assert applied_maps(model) == ()


def test_restore_goes_on_after_a_replaced_tensor(model):
    before = words(model)
    left_open = [inject(model[0], BitFlip(0.3), seed=1), inject(model[1], BitFlip(0.3), seed=2)]
    for one in left_open:
        one.__enter__()
    model[1].weight.data = model[1].weight.data.clone()
    with pytest.raises(RuntimeError, match="weight: replaced while errors were in it"):
        restore(model)
    assert applied_maps(model) == ()
    assert torch.equal(words(model)["0.weight"], before["0.weight"])
    assert torch.equal(words(model)["1.bias"], before["1.bias"])


def test_views_into_one_flat_parameter_know_of_each_other():
    parent, child = nn.Module(), nn.Module()
    parent.flat = nn.Parameter(torch.randn(64))
    child.part = nn.Parameter(parent.flat.data[32:].view(4, 8))
    before = parent.flat.detach().clone()
    outer, inner = inject(parent, BitFlip(0.3), seed=1), inject(child, BitFlip(0.3), seed=2)
    outer.__enter__()
    assert len(applied_maps(child)) == 1
    inner.__enter__()
    with pytest.raises(RuntimeError, match="last in, first out"):
        outer.__exit__(None, None, None)
    assert restore(child) == 2 and torch.equal(parent.flat, before)


def test_a_wrapper_that_is_gone_does_not_take_its_open_map_along():
    import gc

    from drsrobust.injection import AppliedMap
    from drsrobust.injection.stored import stored

    layer = nn.Linear(8, 8)
    before = words(layer)
    wrapper = nn.Sequential(layer)
    application = AppliedMap(BitFlip(0.3).sample(resolve(wrapper), seed=1), stored(wrapper), wrapper)
    application.apply()
    del wrapper
    gc.collect()
    application.undo()
    assert same(layer, before)


def test_a_fault_at_each_write_in_turn(model, monkeypatch):
    """Whichever write fails, of applying or of undoing, restore puts every word back."""
    from drsrobust.injection.words import WordView

    before, real = words(model), WordView.write
    for failing in range(8):
        calls = iter(range(100))

        def write(self, index, values, calls=calls, failing=failing):
            if next(calls) == failing:
                raise KeyboardInterrupt
            real(self, index, values)

        monkeypatch.setattr(WordView, "write", write)
        with contextlib.suppress(KeyboardInterrupt), inject(model, BitFlip(0.2), seed=failing):
            pass
        monkeypatch.setattr(WordView, "write", real)
        restore(model)
        assert same(model, before)


def test_maps_of_other_models_are_refused(model):
    error_map = BitFlip(0.01).sample(resolve(model), seed=1)
    with pytest.raises(
        ErrorMapMismatch, match=r"made for '0.bias' of \[30\] float32; in this model it is \[31\] float32"
    ):
        error_map.apply(nn.Sequential(nn.Linear(20, 31), nn.Linear(31, 5)))
    with pytest.raises(ErrorMapMismatch, match=r"'0.bias' of \[30\] float32; in this model it is \[30\] float64"):
        error_map.apply(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)).double())
    with (
        pytest.raises(ErrorMapMismatch, match="hits '0.bias'; this model does not have this tensor"),
        error_map.applied(nn.Linear(2, 2)),
    ):
        pass


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BitFlip(1.01), "ber must be a number from 0 to 1, got 1.01"),
        (lambda: BitFlip(-1e-9), "ber must be .*, got -1e-09"),
        (lambda: BitFlip(float("nan")), "ber must be .*, got nan"),
        (lambda: BitFlip("1e-3"), "ber must be .*, got '1e-3'"),
        (lambda: BitFlip(True), "ber must be .*, got True"),
        (lambda: BitFlip(0.1, bits=()), r"bits are \[\]; they must be one or more integers"),
        (lambda: BitFlip(0.1, bits=(1.5,)), "each of bits must be a whole number, got 1.5"),
        (lambda: SingleBit("30"), "bit must be a whole number from 0 to 63, got '30'"),
        (lambda: BitFlip(0.1, bits="exponant"), "unknown field of a number format 'exponant'; did you mean 'exponent'"),
        (lambda: FixedCount(-1), "k must be at least 0, got -1"),
        (lambda: FixedCount(1.5), "k must be .*, got 1.5"),
        (lambda: FixedCount(True), "k must be .*, got True"),
        (lambda: FixedCount(65).sample(resolve(nn.Linear(1, 1)), seed=1), "k is 65; it must be from 0 to 64, the"),
        (lambda: BitFlip(0.1, bits=3), "bits must be a field, as 'exponent', or a tuple .* got 3"),
        (
            lambda: inject(nn.Linear(2, 2), BitFlip(0.1), seed=1.5).__enter__(),
            "seed must be a whole number from 0 to 2\\*\\*64 - 1, got 1.5",
        ),
        (lambda: inject(nn.Linear(2, 2), BitFlip(0.1), seed=None).__enter__(), "seed must be .*, got None"),
    ],
)
def test_bad_error_models(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_threads_change_nothing():
    big = nn.EmbeddingBag(40_000, 32)
    space, before = resolve(big), torch.get_num_threads()
    try:
        maps = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            maps.append(BitFlip(1e-2).sample(space, seed=3))
    finally:
        torch.set_num_threads(before)
    assert len(maps[0]) > 300_000
    assert all(np.array_equal(maps[0].word, one.word) and np.array_equal(maps[0].mask, one.mask) for one in maps)


def test_tensors_that_share_memory_are_refused_in_pairs_and_replays():
    """Undoing one would put back what the other had done."""
    untied = nn.Module()
    untied.enc, untied.dec = nn.Linear(20, 30, bias=False), nn.Linear(30, 20, bias=False)
    tied = copy.deepcopy(untied)
    tied.dec.weight = nn.Parameter(tied.enc.weight.data.t())
    before = tied.enc.weight.detach().clone()
    says = "share a part of their memory; target one of them by its name"
    pairs = [(BitFlip(0.3), "enc.weight"), (BitFlip(0.3), "dec.weight")]
    with pytest.raises(ValueError, match=says), inject(tied, pairs, seed=0):
        pass
    with pytest.raises(ValueError, match=says), BitFlip(0.3).sample(resolve(untied), seed=0).applied(tied):
        pass
    buffer, three = torch.randn(10, 10), nn.Module()
    three.a, three.b, three.c = (nn.Parameter(part) for part in (buffer[:, 0], buffer[3, 1:5], buffer[3, 3:7]))
    with pytest.raises(ValueError, match="b and c share"):
        resolve(three)
    assert torch.equal(tied.enc.weight.detach(), before) and applied_maps(tied) == ()


def test_a_model_that_writes_its_own_weights_is_told():
    table = nn.Embedding(100, 4, max_norm=1.0)
    with torch.no_grad():
        table(torch.arange(100))
    says = "weight: written to while errors were in it .by an optimizer's step, load_state_dict, max_norm"
    with pytest.raises(RuntimeError, match=says), torch.no_grad(), inject(table, BitFlip(0.01), seed=0):
        table(torch.arange(100))
    assert applied_maps(table) == ()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_an_optimizer_is_noticed(optimizer, fused):
    """PyTorch's versions do not count a fused step."""
    model = nn.Linear(16, 4)
    steps = optimizer(model.parameters(), lr=0.1, fused=fused)
    with (
        pytest.raises(RuntimeError, match="written to while errors were in it"),
        inject(model, FixedCount(3, bits=(10,)), "weight", seed=1),
    ):
        model(torch.randn(8, 16)).square().sum().backward()
        steps.step()
    assert applied_maps(model) == ()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_reads_no_row_with_errors_is_noticed(fused):
    table = nn.Embedding(1000, 4)
    steps = torch.optim.SGD(table.parameters(), lr=0.1, fused=fused)
    with (
        pytest.raises(RuntimeError, match="written to while errors were in it"),
        inject(table, [(FixedCount(1), Rows("weight", [999]))], seed=1),
    ):
        table(torch.arange(20)).sum().backward()
        steps.step()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_leaves_the_faulty_word_as_it_is_is_noticed(fused):
    """1e37 - 0.1 is 1e37 in float32."""
    model = nn.Linear(16, 4)
    steps = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    with (
        pytest.raises(RuntimeError, match="written to while errors were in it"),
        inject(model, FixedCount(1, bits=(30,)), "weight", seed=1),
    ):
        model.weight.grad = torch.ones_like(model.weight)
        steps.step()


def test_an_interrupt_while_the_watch_is_removed(monkeypatch):
    model = nn.Linear(4, 4)
    attributes = sorted(model.__dict__)
    injection = Injection(model, [(FixedCount(1), "all")], seed=1)
    injection.apply()

    def interrupt(model):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("drsrobust.injection.apply.unwatch_copies", interrupt)
        injection.undo()
    assert restore(model) == 1 and sorted(model.__dict__) == attributes
    model.state_dict()  # warnings are errors here


def test_a_repair_is_no_foreign_write():
    model = nn.Linear(16, 4)
    before = copy.deepcopy(model.state_dict())
    golden = GoldenCopy.of(model)
    with inject(model, FixedCount(3), "weight", seed=1):
        assert golden.reload(model) == 3
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("made", "applied", "undone"), list(itertools.product([False, True], repeat=3)))
def test_inference_mode(made, applied, undone):
    """Whatever of making, applying and undoing happens under `torch.inference_mode()`."""
    with torch.inference_mode(made):
        model = nn.Linear(64, 64)
    before = model.weight.detach().clone()
    injection = Injection(model, [(FixedCount(5), "weight")], seed=1)
    with torch.inference_mode(applied):
        injection.apply()
    assert not torch.equal(model.weight, before)
    with torch.inference_mode(undone):
        assert restore(model) == 1
    assert torch.equal(model.weight, before) and model.weight.is_inference() == made


def test_read_only_memory_is_refused(tmp_path):
    np.save(tmp_path / "weight.npy", np.ones((4, 4), np.float32))
    model = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="not writable"):
        model.weight.data = torch.from_numpy(np.load(tmp_path / "weight.npy", mmap_mode="r"))
    with pytest.raises(ValueError, match="weight lies in read-only memory"), inject(model, FixedCount(1), seed=1):
        pass
    with pytest.raises(ValueError, match="weight lies in read-only memory"):
        FixedCount(1).sample(resolve(model, "weight"), seed=1).apply(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with inject(model, FixedCount(1), "weight", seed=1):
        assert not (model.weight == 1).all()


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "state_dict", "save", "parent"])
def test_copies_of_a_model_with_errors(way):
    """They warn once for each open map, carry nothing of the watch, and never warn without errors."""
    ways = {
        "deepcopy": lambda model: copy.deepcopy(model),
        "pickle": lambda model: pickle.loads(pickle.dumps(model)),
        "state_dict": lambda model: model.state_dict(),
        "save": lambda model: torch.save(model, io.BytesIO()),
        "parent": lambda model: copy.deepcopy(nn.ModuleList([model]))[0],
    }
    model = nn.Linear(4, 4)
    attributes = sorted(model.__dict__)
    for seed in range(2):
        with inject(model, FixedCount(1), "weight", seed=seed):
            with pytest.warns(UserWarning, match="Linear was .* while errors are in it: the copy has these errors"):
                made = ways[way](model)
            ways[way](model)  # warnings are errors here
            with inject(model, FixedCount(1), "bias", seed=seed), pytest.warns(UserWarning, match="while errors"):
                ways[way](model)
    if isinstance(made, nn.Module):
        assert sorted(made.__dict__) == attributes
        assert not torch.equal(made.weight, model.weight)
        ways[way](made)
    ways[way](model)
    assert sorted(model.__dict__) == attributes


@pytest.mark.long
def test_many_errors_cost_no_more_than_the_words():
    """Of nearly all bits of 100,000 words; their positions as index arrays would take 100 MB and more."""
    import tracemalloc

    space = resolve(nn.EmbeddingBag(6_250, 16))
    for error_model in (BitFlip(1.0), BitFlip(0.5), FixedCount(space.bits - 1), FixedCount(space.bits // 2)):
        tracemalloc.start()
        error_map = error_model.sample(space, seed=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 72e6 and error_map.n_events == error_map.bits
        if isinstance(error_model, FixedCount):
            assert error_map.bits == error_model.k


@pytest.mark.parametrize("stride", ["t", "channels_last"])
def test_non_contiguous_tensors_cost_no_list_of_their_words(stride):
    import tracemalloc

    model = nn.Module()
    base = (
        torch.zeros(16, 200_000).t()
        if stride == "t"
        else torch.zeros(8, 16, 160, 160).to(memory_format=torch.channels_last)
    )
    model.weight = nn.Parameter(base)
    tracemalloc.start()
    BitFlip(1e-6).sample(resolve(model), seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
