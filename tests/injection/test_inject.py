import contextlib
import copy
import ctypes
import io
import itertools
import mmap
import pickle
import random
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import BitFlip, FixedCount, Injection, Rows, applied_maps, inject, resolve, restore
from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.mitigation import ECC, Detection, Mitigation
from drsrobust_extras.protection.field_errors import RandomValue


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


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, GeneratorExit])  # the last as a generator is closed
def test_undo_on_exceptions(model, error):
    before = words(model)
    with pytest.raises(error), inject(model, BitFlip(0.1), seed=1):
        assert not same(model, before)
        raise error
    assert same(model, before) and applied_maps(model) == ()


def test_nested_and_overlapping(model):
    before = words(model)
    with inject(model, BitFlip(0.3), seed=1) as outer:
        once = words(model)
        with inject(model, BitFlip(0.3), seed=2) as inner:
            assert applied_maps(model) == (outer, inner)
        assert same(model, once)
    assert same(model, before)


def of_one_model():
    model = nn.Linear(20, 30)
    return model, model


def of_a_module_and_its_parent():
    parent = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    return parent, parent[0]


def of_views_into_one_flat_parameter():
    parent, child = nn.Module(), nn.Module()
    parent.flat = nn.Parameter(torch.randn(64))
    child.part = nn.Parameter(parent.flat.data[32:].view(4, 8))
    return parent, child


@pytest.mark.parametrize("make", [of_one_model, of_a_module_and_its_parent, of_views_into_one_flat_parameter])
def test_another_order_of_undoing_is_refused_and_restore_helps(make):
    """Also for models that share memory: they know of each other."""
    parent, child = make()
    before = words(parent)
    outer, inner = inject(parent, BitFlip(0.3), seed=1), inject(child, BitFlip(0.3), seed=2)
    outer.__enter__()
    assert len(applied_maps(child)) == 1
    inner.__enter__()
    assert len(applied_maps(parent)) == len(applied_maps(child)) == 2
    with pytest.raises(RuntimeError, match="last in, first out.*seed 2.*seed 1.*restore"):
        outer.__exit__(None, None, None)
    assert restore(child) == 2 and same(parent, before)
    inner.__exit__(None, None, None)  # its undo has nothing left to do
    assert same(parent, before) and restore(child) == 0


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
    untied = nn.ModuleDict({"enc": nn.Linear(20, 30, bias=False), "dec": nn.Linear(30, 20, bias=False)})
    tied = copy.deepcopy(untied)
    tied.dec.weight = nn.Parameter(tied.enc.weight.data.t())
    before = tied.enc.weight.detach().clone()
    says = "share a part of their memory; target one of them by its name"
    pairs = [(BitFlip(0.3), "enc.weight"), (BitFlip(0.3), "dec.weight")]
    with pytest.raises(ValueError, match=says), inject(tied, pairs, seed=0):
        pass
    with pytest.raises(ValueError, match=says), BitFlip(0.3).sample(resolve(untied), seed=0).applied(tied):
        pass
    assert torch.equal(tied.enc.weight.detach(), before) and applied_maps(tied) == ()


def step(rows, optimizer, fused):
    def write(model):
        steps = optimizer(model.parameters(), lr=0.1, fused=fused)
        model(rows).square().sum().backward()
        steps.step()

    return write


def layer_and_table():
    """A layer that is read, or a table whose row with errors is not: no step changes a word that was hit there."""
    yield lambda: nn.Linear(16, 4), (FixedCount(3, bits=(10,)), "weight"), torch.randn(8, 16)
    yield lambda: nn.Embedding(1000, 4), (FixedCount(1), Rows("weight", [999])), torch.arange(20)


OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
WRITES = [
    *[
        (make, pair, step(rows, optimizer, fused))
        for make, pair, rows in layer_and_table()
        for optimizer in OPTIMIZERS
        for fused in (False, True)
    ],
    (lambda: nn.Embedding(100, 4, max_norm=1.0), (FixedCount(40), "all"), lambda table: table(torch.arange(100))),
    (lambda: nn.Linear(4, 4), (FixedCount(1), "all"), lambda model: model.double()),
]


@pytest.mark.parametrize(("make", "pair", "write"), WRITES)
def test_what_writes_to_tensors_with_errors_is_noticed(make, pair, write):
    """PyTorch's versions do not count a fused step."""
    model = make()
    says = "weight.*: (written to|replaced) while errors were in it"
    with pytest.raises(RuntimeError, match=says), inject(model, [pair], seed=1):
        write(model)
    assert applied_maps(model) == ()


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
    with pytest.raises(ValueError, match="weight lies in read-only memory"):
        FixedCount(1).sample(resolve(model, "weight"), seed=1).apply(model)


def test_memory_at_an_address_that_was_writable_is_checked_again():
    """As a file that is mapped for reading where a freed tensor was; the parameter stays."""
    model, region = nn.Linear(4, 4), mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    protect = ctypes.CDLL(None).mprotect
    for protection in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ):
        model.weight.data = torch.frombuffer(region, dtype=torch.float32, count=16).view(4, 4)
        assert model.weight.data_ptr() == address
        assert protect(ctypes.c_void_p(address), mmap.PAGESIZE, protection) == 0
        refused = pytest.raises(ValueError, match="weight lies in read-only memory")
        with refused if protection == mmap.PROT_READ else contextlib.nullcontext():
            for seed in range(3):
                with inject(model, FixedCount(1), "weight", seed=seed):
                    pass
    assert protect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


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


class SignsProtected(Mitigation):
    name = "signs"

    def settings(self):
        return {}

    def screen(self, error_map, model, *, seed):
        return error_map.restrict(range(31))

    def new_detection(self):
        return Detection(detected=False)

    def register_hooks(self, model, active):
        def hook(module, args, output):
            if not output.isfinite().all():
                active.detection.record(repaired=True)
            return output.nan_to_num(0.0, 0.0, 0.0)

        yield model.register_forward_hook(hook)


@pytest.mark.parametrize("parts", [1, 2])
def test_both_sides(parts):
    """Of a mitigation, and of a sum of two."""
    model, x = nn.Linear(64, 64), torch.randn(10, 64)
    before = [p.detach().clone() for p in model.parameters()]
    mitigation = reduce(add, [SignsProtected() for _ in range(parts)])
    with torch.no_grad(), dr.inject(model, dr.BitFlip(0.3), seed=1, mitigation=mitigation) as left:
        drawn = dr.BitFlip(0.3).sample(dr.resolve(model), seed=1)
        assert left.bits == drawn.bits - drawn.restrict("sign").bits < drawn.bits
        assert dr.injection.applied_maps(model) == (left,)
        with mitigation.attach(model) as watch:
            assert watch.detected is False and watch.repaired is None
            assert model(x).isfinite().all()
            assert len(model._forward_hooks) == parts
        assert watch.detected is True and watch.repaired is True
    assert not model._forward_hooks
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_composed():
    both = SignsProtected() + SignsProtected()
    assert both.name == "signs + signs" and len((both + SignsProtected()).parts) == 3
    assert both.identity() != SignsProtected().identity()


def test_errors_in_activations_come_before_what_bounds_them():
    """Whichever was put on first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(200, 8)
    clip, errors, layer = dr.ActivationClipping(6), dr.BitFlip(0.01), dr.Activations("0")
    seen = []
    with torch.no_grad():
        model[1].register_forward_pre_hook(lambda module, args: seen.append(float(args[0].nan_to_num().abs().max())))
        with dr.inject(model, errors, target=layer, seed=3):
            model(x)
            with clip.attach(model):
                model(x)
        with clip.attach(model), dr.inject(model, errors, target=layer, seed=3):
            model(x)
    assert seen[0] > 100 and seen[1] <= 6 and seen[2] <= 6
