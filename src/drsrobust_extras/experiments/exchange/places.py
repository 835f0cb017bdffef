"""Error maps from places that are known already: from words of named tensors, and from two models that differ."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from drsrobust.extend import Stored, TargetTensor, check_instance, stored, wrong
from drsrobust.injection import INTEGER_OF_BYTES, AddressSpace, ErrorMap, ErrorMapMismatch, FixedCount


class Places(NamedTuple):
    """The wrong words of one tensor: flat index, int64 [n], each once; XOR mask, uint64 [n]; and, where masks were made from
    words, these words, uint64 [n], and for which entries that is so, bool [n]."""

    word: np.ndarray
    mask: np.ndarray
    original: np.ndarray | None = None
    depends: np.ndarray | None = None

    def ascending(self) -> "Places":
        """Sorted by word, without empty masks."""
        order = np.argsort(self.word, kind="stable")
        order = order[self.mask[order] != 0]
        return Places(*(array if array is None else array[order] for array in self))


def found(model: nn.Module, name: str) -> tuple[str, Stored]:
    """A tensor of a model, and its first name.

    Raises:
        ErrorMapMismatch: there is none of that name.
    """
    memory = stored(check_instance("model", model, nn.Module, "a torch.nn.Module"))
    first = memory.first.get(name, name)
    if first not in memory:
        raise ErrorMapMismatch(f"the model has no tensor {name!r}; it has {', '.join(sorted(memory)[:8])} ...")
    return first, memory[first]


def whole(name: str, given: Any) -> np.ndarray:
    """Numbers as int64, of any shape.

    Raises:
        ArgumentError: one is no whole number, as 1.5, "1" or True, which NumPy would take for 1.
    """
    try:
        numbers = np.array(given)
    except ValueError:  # lists of different lengths
        numbers = np.array(None)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise wrong(name, "whole numbers", given)
    return numbers.astype(np.int64)


def map_of(model: nn.Module, places: Mapping[str, Places], error_model: str, **about: Any) -> ErrorMap:
    """The error map of wrong words in a model.

    Args:
        model: that has the tensors.
        places: first name of a tensor -> its wrong words; a tensor without any was targeted too.
        error_model: how they were drawn, as text.
        about: further attributes of the map; `eligible_bits` is unknown where it is not among them.
    """
    memory = stored(model)
    tensors = [
        TargetTensor(name, memory.component[name], tuple(entry.tensor.shape), entry.format, None, entry)
        for name, entry in ((name, memory[name]) for name in places)
    ]
    space = AddressSpace(tensors).in_model(model, memory)
    about = {"seed": 0, "eligible_bits": None, "clock": None, "n_sites": None, "n_events": None} | about
    if not space.tensors:
        nothing = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64)
        return ErrorMap(*nothing, (), error_model=error_model, **about)
    hit = [places[tensor.name].ascending() for tensor in space.tensors]
    counts = [len(one.word) for one in hit]
    tensor = np.repeat(np.arange(len(hit), dtype=np.int32), counts)
    word, mask = (np.concatenate([getattr(one, name) for one in hit]) for name in ("word", "mask"))
    template = FixedCount(1).sample(space, seed=0)  # for the names, shapes and formats of the space's tensors
    if any(one.original is not None for one in hit):
        about["original"] = _joined(hit, counts, "original", np.uint64)
        about["depends"] = _joined(hit, counts, "depends", bool)
    return replace(template.with_words(tensor, word, mask), error_model=error_model, sources=(), **about)


def _joined(hit: Iterable[Places], counts: Iterable[int], name: str, kind: Any) -> np.ndarray:
    arrays = ((getattr(one, name), count) for one, count in zip(hit, counts, strict=True))
    return np.concatenate([np.zeros(count, kind) if array is None else array for array, count in arrays])


def between(clean: nn.Module, faulty: nn.Module) -> ErrorMap:
    """The error map that turns one model into another: what any tool has done to the stored words of a copy.

    Args:
        clean: without errors.
        faulty: a copy of it, with errors in its parameters and buffers.

    Returns:
        a map of the tensors that differ, with `eligible_bits` None, since nothing says which bits the tool could have hit.

    Raises:
        ErrorMapMismatch: a tensor that one of them lacks, or of another shape or dtype.
        ValueError: a tensor differs whose words no map can hold (complex, bool).

    Example:
        >>> import copy, torch
        >>> clean = nn.Linear(4, 2)
        >>> faulty = copy.deepcopy(clean)
        >>> with torch.no_grad():
        ...     faulty.weight[1, 2] *= -1
        >>> error_map = between(clean, faulty)
        >>> error_map.word.tolist(), error_map.counts("bit").to_dict()
        ([6], {31: 1})
    """
    ours, others = (
        stored(check_instance(n, m, nn.Module, "a module")) for n, m in (("clean", clean), ("faulty", faulty))
    )
    if missing := sorted(set(ours) ^ set(others)):
        raise ErrorMapMismatch(f"only one of the two models has {missing[0]!r}")
    places = {}
    for name, entry in ours.items():
        before, after = entry.tensor.detach(), others[name].tensor.detach()
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            about = " and ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in (before, after))
            raise ErrorMapMismatch(f"{name!r} of the two models is {about}")
        integers = INTEGER_OF_BYTES.get(before.element_size())
        differs = (
            before != after if integers is None else before.view(integers) != after.to(before.device).view(integers)
        )
        word = differs.reshape(-1).nonzero().view(-1).cpu().numpy()
        if len(word):
            mask = entry.words().read_uint64(word) ^ others[name].words().read_uint64(word)
            places[name] = Places(word, mask)
    return map_of(clean, places, "the difference of two models")
