"""The errors of PyTEI, PyTorchFI and MRFI in stored words, from the form in which each of them names errors."""

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.extend import WordView, check_instance, check_items, expanded, wrong
from drsrobust.injection import ErrorMap, ErrorMapMismatch
from drsrobust_extras.experiments.exchange.places import Places, found, map_of, whole


def from_pytei(path: str | Path, model: nn.Module) -> ErrorMap:
    """The error map in a file of PyTEI's `Injector.save_error_map`: a dictionary of parameter names and int32 tensors of their
    shapes, whose numbers are XOR masks of the float32 words. (Its `load_error_map` followed by `inject` draws a new map.)

    Args:
        path: of the file; it is loaded with `weights_only=True`.
        model: that has these parameters.

    Returns:
        a map with seed 0, since the file holds none.

    Raises:
        ErrorMapMismatch: a parameter that the model lacks, or of another shape or dtype.
        ValueError: not such a file.
    """
    path = expanded("path", path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        masks = {name: mask.to_dense() for name, mask in content.items()}
        if not masks or {mask.dtype for mask in masks.values()} != {torch.int32}:
            raise ValueError("it must hold int32 tensors by the names of parameters")
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not an error map of PyTEI, or is damaged: {error}") from error
    places = {}
    for name, mask in masks.items():
        first, entry = found(model, name)
        if first in places:
            raise ErrorMapMismatch(f"{name!r} is a second name of {first!r}, and the file has masks for both")
        if (entry.tensor.shape, entry.tensor.dtype) != (mask.shape, torch.float32):
            about = f"{list(entry.tensor.shape)} {entry.format.name}"
            raise ErrorMapMismatch(f"{name!r} is {about}, the map is of {list(mask.shape)} float32")
        flat = mask.reshape(-1).numpy().view(np.uint32)
        word = np.flatnonzero(flat)
        places[first] = Places(word, flat[word].astype(np.uint64))
    eligible = sum(32 * mask.numel() for mask in masks.values())
    return map_of(model, places, "PyTEI's error map", eligible_bits=eligible)


def from_pytorchfi(
    model: nn.Module,
    *,
    layer_num: Sequence[int],
    k: Sequence[int],
    dim1: Sequence[int | None],
    dim2: Sequence[int | None],
    dim3: Sequence[int | None],
    value: Sequence[float],
    layer_types: Sequence[type[nn.Module]] = (nn.Conv2d,),
) -> ErrorMap:
    """The errors of PyTorchFI's `declare_weight_fi` (version 0.6.0), with its arguments: lists, one entry for an error. They
    write values, so the map fits these weights alone.

    Args:
        model: as the tool got it.
        layer_num: the number of a layer among the modules of `layer_types`.
        k, dim1, dim2, dim3: the place in its weight; None beyond the weight's last dimension.
        value: that is written there.
        layer_types: as the tool got them.

    Raises:
        ArgumentError: lists of different lengths, a layer or a place that there is not.
    """
    layers = [
        f"{name}.weight".lstrip(".") for name, module in model.named_modules() if isinstance(module, tuple(layer_types))
    ]
    lists = {"layer_num": layer_num, "k": k, "dim1": dim1, "dim2": dim2, "dim3": dim3, "value": value}
    checked = {name: check_items(name, entries, "a list, one entry for an error") for name, entries in lists.items()}
    for name, entries in checked.items():
        if len(entries) != len(checked["layer_num"]):
            raise wrong(name, f"a list of {len(checked['layer_num'])} entries, as layer_num is", entries)
    writes = _Writes(model, layers)
    for number, *place, new in zip(*checked.values(), strict=True):
        try:
            layer = layers[range(len(layers)).index(index(number))]
        except (TypeError, ValueError):
            raise wrong("layer_num", f"numbers under {len(layers)}, the layers of layer_types", number) from None
        shape = writes.shape(layer)
        try:
            word = np.ravel_multi_index([index(one) for one in place if one is not None], shape)
        except (TypeError, ValueError):
            raise wrong("k, dim1, dim2, dim3", f"a place in {layer} of {list(shape)}", place) from None
        writes.set(layer, np.array([word]), new)
    return writes.error_map("PyTorchFI's declare_weight_fi")


def from_mrfi(model: nn.Module, config: Mapping[str, Any]) -> ErrorMap:
    """The errors in weights of an EasyConfig of MRFI (version 2.1.0) that names its places and bits.

    Args:
        model: that MRFI is to wrap.
        config: as its YAML: `faultinject`, a list of entries with `type: weight`; `name`; `module_type`, `module_name` or
            `module_fullname`; a `selector`, `FixPosition` or `FixPositions` (without one all words are hit); an `error_mode`,
            `FloatFixedBitFlip`, `SetValue` or `SetZero`.

    Raises:
        ValueError: an entry that names no places, as random selectors, which draw at each forward pass; quantization; errors in
            activations. `between` gives the map of what such an entry did to the weights of a copy. Or entries hit a tensor
            that two modules share.
    """
    faults = check_items(
        "faultinject", check_instance("config", config, Mapping, "a dictionary").get("faultinject"), "a list"
    )
    for fault in faults:
        check_instance("an entry of faultinject", fault, Mapping, "a dictionary")
    chosen = [(fault, name) for fault in faults if fault.get("enabled", True) for name in _weights(model, fault)]
    writes, names = _Writes(model, [name for _, name in chosen]), dict[str, str]()
    for fault, name in chosen:
        if (other := names.setdefault(writes.first(name), name)) != name:
            raise ValueError(
                f"{name!r} is {other!r} too, and MRFI hits it again before each of its modules; they read different words, "
                "which no error map holds"
            )
        mode = dict(check_instance("error_mode", fault.get("error_mode"), Mapping, "a dictionary"))
        word = _positions(fault.get("selector"), writes.shape(name))
        method = mode.pop("method", None)
        if method == "FloatFixedBitFlip" and not mode.get("suppress_invalid"):
            writes.flip(name, word, mode.get("bit"))
        elif method in ("SetValue", "SetZero"):
            writes.set(name, word, mode.get("value", 0) if method == "SetValue" else 0)
        else:
            raise _refused("error_mode", fault["error_mode"], "FloatFixedBitFlip, SetValue or SetZero")
    return writes.error_map("MRFI's fault injection")


def _refused(key: str, value: Any, known: str) -> ValueError:
    return ValueError(
        f"{key} of a faultinject entry must be {known}, got {value!r}; for what else it did to the weights of a copy, use "
        "between(model, copy)"
    )


def _weights(model: nn.Module, fault: Mapping[str, Any]) -> Iterator[str]:
    """The tensors that an entry of MRFI hits, module by module."""
    if fault.get("type") not in ("weight", "weights"):
        raise _refused("type", fault.get("type"), "weight (errors in activations are in no stored word)")
    if fault.get("quantization") is not None:
        raise _refused("quantization", fault["quantization"], "absent")

    def entries(key: str, default: Any = ()) -> list[str]:
        return check_items(key, fault.get(key, default) or (), "text, or a list of it", str)

    for name, module in model.named_modules():
        if (
            any(part in str(type(module)) for part in entries("module_type"))
            or any(part in name for part in entries("module_name"))
            or name in entries("module_fullname")
        ):
            held = [
                weight
                for weight in entries("name", "weight")
                if isinstance(getattr(module, weight, None), torch.Tensor)
            ]
            yield from (f"{name}.{weight}".lstrip(".") for weight in held)


def _positions(selector: Mapping[str, Any] | None, shape: tuple[int, ...]) -> np.ndarray:
    """Flat indices int64 [n]: MRFI takes numbers, or one list of coordinates for each dimension."""
    words = int(np.prod(shape))
    if selector is None:
        return np.arange(words)
    check_instance("selector", selector, Mapping, "a dictionary")
    methods = {"FixPosition": "position", "FixPositions": "positions"}
    if selector.get("method") not in methods:
        raise _refused("selector", dict(selector), " or ".join(methods))
    given = whole("selector", selector.get(methods[selector["method"]]))
    if selector["method"] == "FixPosition":
        given = given.reshape(-1) if given.size == 1 else given.reshape(-1, 1)
    try:
        flat = given if given.ndim == 1 else np.ravel_multi_index(tuple(given), shape)
    except ValueError as error:
        raise wrong("selector", f"positions in a weight of {list(shape)} ({error})", dict(selector)) from None
    if (flat < 0).any() or (flat >= words).any():
        raise wrong("selector", f"positions under {words}", dict(selector))
    return flat


class _Writes:
    """Words that a tool writes, one call after the other, over those of a model. Of one word the last entry of a call stays."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._model, self._first = model, {name: found(model, name) for name in names}
        self._new: dict[str, dict[int, int]] = {first: {} for first, _ in self._first.values()}
        self._set: dict[str, set[int]] = {first: set() for first, _ in self._first.values()}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._first[name][1].tensor.shape)

    def first(self, name: str) -> str:
        return self._first[name][0]

    def set(self, name: str, word: np.ndarray, value: Any) -> None:
        """Writes one value, or one for each word."""
        first, entry = self._first[name]
        try:
            values = torch.as_tensor(value, dtype=torch.float64).expand(len(word)).to(entry.tensor.dtype)
        except (TypeError, RuntimeError, ValueError):
            raise wrong("value", f"a number, or {len(word)} of them", value) from None
        words = WordView(values).read_uint64(np.arange(len(word)))
        self._new[first].update(zip(word.tolist(), words.tolist(), strict=True))
        self._set[first].update(word.tolist())

    def flip(self, name: str, word: np.ndarray, bit: Any) -> None:
        """Flips one bit, or one for each word."""
        (first, entry), width = self._first[name], 8 * self._first[name][1].tensor.element_size()
        bits = whole("bit", bit)
        if bits.size not in (1, len(word)):
            raise wrong("bit", f"a number, or {len(word)} of them", bit)
        bits = np.broadcast_to(bits, word.shape)
        if (bits < 0).any() or (bits >= width).any():
            raise wrong("bit", f"numbers under {width}", bit)
        new, present = self._new[first], entry.words().read_uint64(word).tolist()
        before = [new.get(one, value) for one, value in zip(word.tolist(), present, strict=True)]
        new.update(
            (one, value ^ (1 << at)) for one, value, at in zip(word.tolist(), before, bits.tolist(), strict=True)
        )

    def error_map(self, error_model: str) -> ErrorMap:
        """The map of all that was written; masks depend on the original where a value was."""
        places = {}
        for first, entry in self._first.values():
            new = self._new[first]
            word, depends = np.array(list(new), np.int64), np.array([one in self._set[first] for one in new], bool)
            original = entry.words().read_uint64(word)
            mask = original ^ np.array(list(new.values()), np.uint64)
            places[first] = Places(
                word, mask, np.where(depends, original, np.uint64(0)) if depends.any() else None, depends
            )
        return map_of(self._model, places, error_model)
