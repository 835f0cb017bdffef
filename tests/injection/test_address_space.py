from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.injection import BitFlip, FixedCount, resolve
from drsrobust.injection.address_space import AddressSpace, TargetTensor, union_bits
from tests.injection.spaces import Mixed
from tests.refusals import refuses


def names(space):
    return [tensor.name for tensor in space.tensors]


def test_components_and_memory_of_a_model():
    model = Mixed()
    space = resolve(model, "x", components={"x": "[abc]*"})
    assert names(space) == ["a", "b"] and all(tensor.memory is getattr(model, tensor.name) for tensor in space.tensors)


def test_components_and_groups(trained):
    assert {t.component for t in resolve(trained, "over_mlp").tensors} == {"over_mlp"}
    assert {t.component for t in resolve(trained, "mlp").tensors} == {"dense_mlp", "over_mlp"}
    everything = names(resolve(trained, "everything"))
    assert everything == sorted(everything) and "inter_arch.triu_indices" in everything
    total = sum(p.numel() for p in trained.parameters())
    assert names(resolve(trained, "interaction")) == ["inter_arch.triu_indices"]  # a component of buffers alone
    assert resolve(trained, "all").words == total and resolve(trained).bits == 32 * total


WHOLE = torch.zeros(6, 6)


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [
        (WHOLE, WHOLE, ["a"]),
        (WHOLE[:, :2], WHOLE[:, 2:], ["a", "b"]),  # beside each other, row by row: nothing is shared
        (WHOLE[:4], WHOLE[4:], ["a", "b"]),
        (WHOLE, WHOLE[2:4], None),
        (WHOLE, WHOLE.t(), None),
    ],
)
def test_shared_memory_counts_once(a, b, left):
    model = nn.ParameterDict({"a": a, "b": b})
    if left is None:
        refuses(lambda: resolve(model), ValueError, "a and b", "share a part of their memory")
    else:
        assert names(resolve(model)) == left


def plain_bits(space):
    """(tensor, word, bit) of each eligible bit, in order."""
    found = []
    for number, tensor in enumerate(space.tensors):
        rows = range(tensor.shape[0]) if tensor.rows is None else tensor.rows.tolist()
        words = [row * tensor.row_words + place for row in rows for place in range(tensor.row_words)]
        bits = [bit for bit in range(tensor.format.width) if space.chosen_bits is None or bit in space.chosen_bits]
        found += [(number, word, bit) for word in words for bit in bits]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_spaces_of_several_tensors_against_plain_lists(seed):
    """Some rows of some tensors, of several widths, all bits or some."""
    random, tensors = np.random.default_rng(seed), []
    for name, form in zip("cabd", ("float32", "float16", "uint8", "float64"), strict=True):
        shape = tuple(random.integers(1, 7, 2).tolist())
        rows = np.flatnonzero(random.random(shape[0]) < 0.6) if random.random() < 0.7 else None
        whole = TargetTensor.of(name, "x", getattr(torch, form), shape)
        tensors.append(TargetTensor(name, "x", shape, whole.format, rows))
    chosen = None if seed % 3 == 0 else random.choice(8, 3, replace=False).tolist()
    space = AddressSpace(tensors, chosen)
    expected, there = plain_bits(space), [tensor for tensor in tensors if tensor.targeted]
    assert names(space) == sorted(tensor.name for tensor in there) and space.bits == len(expected)
    assert list(zip(*(part.tolist() for part in space.locate(np.arange(space.bits))), strict=True)) == expected
    words = list(dict.fromkeys(place[:2] for place in expected))
    assert space.words == len(words)
    assert list(zip(*(part.tolist() for part in space.locate_words(np.arange(len(words)))), strict=True)) == words
    some = np.flatnonzero(random.random(space.bits) < random.choice([0.02, 0.3, 0.9]))
    masks = {}
    for tensor, word, bit in (expected[place] for place in some):
        masks[tensor, word] = masks.get((tensor, word), 0) | 1 << bit
    located = [part.tolist() for part in space.locate_masks(some)]
    assert {(tensor, word): mask for tensor, word, mask in zip(*located, strict=True)} == masks
    assert len(located[0]) == len(masks)
    for length in (1, 2, 40, 1000):
        reached = set()
        for start in some.tolist():
            reached.add(start)
            for place in range(start + 1, min(start + length, space.bits)):
                (before, word, _), (tensor, other, _) = expected[place - 1 : place + 1]
                row_words = space.tensors[tensor].row_words
                if tensor != before or other // row_words - word // row_words > 1:
                    break
                reached.add(place)
        assert space.extend(some, length).tolist() == sorted(reached)
    for number, eligible in enumerate(space.eligible):
        mine = [(word, bit) for tensor, word, bit in expected if tensor == number]
        by_word = {word: sum(1 << bit for one, bit in mine if one == word) for word, _ in mine}
        every = np.arange(eligible.tensor.size)
        assert eligible.mask_of(every).tolist() == [by_word.get(word, 0) for word in every.tolist()]
        assert eligible.everything == (chosen is None or len(chosen) == eligible.tensor.format.width)
        assert eligible.fewest == min(mask.bit_count() for mask in by_word.values())
        rows = [
            word // eligible.tensor.row_words for word, _ in mine
        ]  # of one run if they have one number less their place
        run = {row: row - place for place, row in enumerate(dict.fromkeys(rows))}
        assert eligible.runs().tolist() == list(Counter(run[row] for row in rows).values())
        for row_bytes in (1, 3, 16, 1000):
            size = eligible.tensor.format.dtype.itemsize
            held = {byte // row_bytes for word in by_word for byte in range(word * size, (word + 1) * size)}
            assert list(eligible.storage_rows(row_bytes)) == sorted(held)
    for row_bytes in (1, 7):
        assert space.rows(row_bytes) == sum(len(eligible.storage_rows(row_bytes)) for eligible in space.eligible)
    assert [tensor.memory for tensor in space.tensors] == [None] * len(there)
    other = AddressSpace([TargetTensor(t.name, "x", t.shape, t.format, None) for t in there[:2]], [0, 7])
    both = {(space.tensors[number].name, word, bit) for number, word, bit in expected}
    both |= {(other.tensors[number].name, word, bit) for number, word, bit in plain_bits(other)}
    assert union_bits([space, other]) == len(both) and union_bits([space]) == space.bits
    assert (space.only(None) is space) == all(eligible.everything for eligible in space.eligible)
    assert repr(space).endswith(f"{', '.join(names(space)[:3])}{', ...' * (len(there) > 3)}>")


def test_labels_leave_out_rates_alone():
    assert BitFlip(1e-3).label == "BitFlip" and BitFlip(0.1, bits=(31, 30)).label == "BitFlip(bits=[30, 31])"
    assert str(BitFlip(1e-3, bits=(30,)) + FixedCount(2)) == "BitFlip(ber=0.001, bits=[30]) + FixedCount(k=2)"


def test_the_device_that_holds_all_words():
    space = resolve(Mixed())
    lost = [replace(tensor, stored=None) for tensor in space.tensors]
    spaces = [space, AddressSpace(lost), AddressSpace([space.tensors[0], lost[1]])]
    assert [one.device for one in spaces] == [torch.device("cpu"), None, None]
