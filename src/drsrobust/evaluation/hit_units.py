"""Errors in a few units of a large Linear layer: these units alone are computed, and put into its output without errors.

A matrix product gives a unit the same bits whatever other units it has, where their number is a multiple of 16. Nothing relies
on that before a layer has shown it: the first time that so many units of a batch are computed alone, all units are computed
too, with and without errors, and where any bit differs the layer is computed in full from then on. It is from the start where
it is not exactly `nn.Linear`, called once in a batch, with tensors that nothing else holds or reads.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from drsrobust.evaluation.cached_outputs import CachedOutputs
from drsrobust.evaluation.dataflow import Dataflow, has_memory, storage_of
from drsrobust.introspection.wrappers import ModuleForward, has_replaced_forward, intercepted, named_modules

UNITS = 16  # a multiple of it is computed
SHARE = 0.5  # of a layer's units, at most
LEAST = 1 << 14  # weights: a product with a smaller matrix takes no longer than to put its units in their places


@dataclass
class _Layer:
    """A layer without errors; `tensors` are its own ones, as bits of `Dataflow`, and `kept` its input and output by batch."""

    name: str
    module: nn.Linear
    tensors: int
    weight: torch.Tensor
    bias: torch.Tensor | None
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    shown: set[tuple[int, int]] = field(default_factory=set)  # batch and number of units
    differs: bool = False  # a unit alone has other bits than among all


@dataclass
class _Units:
    """The units of a layer that errors hit at the moment, and so many others that a product gives them the same bits."""

    layer: _Layer
    numbers: torch.Tensor  # int64, ascending

    def __post_init__(self) -> None:
        self.key, module, layer = len(self.numbers), self.layer.module, self.layer
        self._now, self._golden = (
            (weight.detach()[self.numbers], None if bias is None else bias.detach()[self.numbers])
            for weight, bias in ((module.weight, module.bias), (layer.weight, layer.bias))
        )

    def put(self, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """The layer's output without errors, with these units as they are now."""
        return output.clone().index_copy_(1, self.numbers, linear(x, *self._now))

    def changed(self, x: torch.Tensor, output: torch.Tensor) -> np.ndarray:
        """In which rows they differ from the output without errors, bool."""
        return (_bits(linear(x, *self._now)) != _bits(output[:, self.numbers])).any(1).numpy()

    def show(self, x: torch.Tensor, output: torch.Tensor, full: torch.Tensor) -> bool:
        """Whether these units alone have the bits that they have among all units, without errors and now."""
        golden, now = _bits(linear(x, *self._golden)), self.put(x, output)
        same = (_bits(now) == _bits(full)) | (now.isnan() & full.isnan())
        return torch.equal(golden, _bits(output[:, self.numbers])) and bool(same.all())


class HitUnits:
    """The layers of a model whose hit units can be computed alone.

    Args:
        model: without errors.
        flow: its dependences.
        cached: knows the present batch, and the memory that is left.
    """

    def __init__(self, model: nn.Module, flow: Dataflow, cached: CachedOutputs) -> None:
        self._flow, self._cached, self._layers = flow, cached, list[_Layer]()
        modules = named_modules(model)
        tensors = [
            tensor for _, module in modules for tensor in (*module._parameters.values(), *module._buffers.values())
        ]
        try:
            holders = Counter(_address(tensor) for tensor in tensors)
        except (RuntimeError, TypeError):  # a wrapper around other tensors, of which some may be those of a layer
            return
        for name, module in modules:
            calls = flow.calls.get(name)
            if type(module) is not nn.Linear or flow.problem or calls is None or not calls.once:
                continue
            own = {f"{name}.{key}": tensor for key, tensor in module._parameters.items() if tensor is not None}
            if (
                module.weight.numel() < LEAST
                or not all(map(_is_plain, own.values()))
                or own.keys() - flow.number.keys()
            ):
                continue
            number = sum(1 << flow.number[key] for key in own)
            if all(holders[_address(tensor)] == 1 for tensor in own.values()) and not flow.elsewhere & number:
                weight, bias = (
                    tensor if tensor is None else tensor.detach().clone() for tensor in (module.weight, module.bias)
                )
                self._layers.append(_Layer(name, module, number, weight, bias))

    def _hit(self, hit: int) -> list[_Units]:
        """The layers whose input errors in a set of tensors leave as it is, and of which they hit few units."""
        found = []
        for layer in [] if hit & self._flow.unknown else self._layers:
            module = layer.module
            same = type(module) is nn.Linear and not (
                module._forward_hooks or module._forward_pre_hooks or layer.differs
            )
            if same and layer.tensors & hit and not self._flow.calls[layer.name].inputs & hit:
                numbers = None if has_replaced_forward(module) else _numbers(layer)
                found += [] if numbers is None else [_Units(layer, numbers)]
        return found

    @contextmanager
    def answering(self, hit: int) -> Iterator[None]:
        """Computes hit units alone while the block scores batches with errors in a set of tensors."""
        units = {each.layer.name: each for each in self._hit(hit)}

        def answer(name: str, forward: ModuleForward) -> ModuleForward:
            return lambda *args, **kwargs: self._output(units[name], forward, *args, **kwargs)

        with intercepted({name: each.layer.module for name, each in units.items()}, answer):
            yield

    def _output(self, units: _Units, forward: ModuleForward, *args: Any, **kwargs: Any) -> torch.Tensor:
        batch, layer = self._cached.batch, units.layer
        if batch is None or layer.differs or len(args) != 1 or not _is_plain(args[0]) or args[0].dim() != 2:
            return forward(*args, **kwargs)
        (x,) = args
        if (batch, units.key) in layer.shown:
            return units.put(x, layer.kept[batch][1])
        full = forward(x)
        if batch not in layer.kept:
            output = linear(x, layer.weight, layer.bias)
            if not self._cached.takes(x.nbytes + output.nbytes):
                return full
            layer.kept[batch] = (x.clone(), output)
        if full.dtype == torch.float32 and units.show(x, layer.kept[batch][1], full):
            layer.shown.add((batch, units.key))
        else:
            layer.differs = True
            layer.kept.clear()
        return full

    @torch.no_grad()
    def changed(self, hit: int, rows: Sequence[int], most: float) -> np.ndarray | None:
        """The rows, int64 ascending, in which errors in a set of tensors change the outputs of the layers that they hit. None:
        more than `most`, not known, or they change something else too.

        Args:
            hit: the tensors.
            rows: of each batch, without padding.
            most: rows.
        """
        units = self._hit(hit)
        if not units or hit & self._flow.control or hit & ~sum(each.layer.tensors for each in units):
            return None
        if any((batch, each.key) not in each.layer.shown for batch in range(len(rows)) for each in units):
            return None
        found, total, first = [], 0, 0
        for batch, n in enumerate(rows):
            is_changed = np.logical_or.reduce([each.changed(*each.layer.kept[batch]) for each in units])[:n]
            found.append(first + np.flatnonzero(is_changed))
            total, first = total + len(found[-1]), first + n
            if total > most:
                return None
        return np.concatenate(found)


def _numbers(layer: _Layer) -> torch.Tensor | None:
    """The units whose weights or bias are not those without errors, with others up to a multiple; None if these are many."""
    is_hit = (_bits(layer.module.weight.detach()) != _bits(layer.weight)).any(1)
    if layer.bias is not None:
        is_hit |= _bits(layer.module.bias.detach()) != _bits(layer.bias)
    hit = int(is_hit.sum())
    needed = max(1, -(-hit // UNITS)) * UNITS
    if needed > SHARE * len(is_hit):
        return None
    is_hit[(~is_hit).nonzero()[: needed - hit, 0]] = True
    return is_hit.nonzero()[:, 0]


def _is_plain(value: Any) -> bool:
    """Whether a tensor is in plain float32 on the CPU, and nothing casts it."""
    is_tensor = type(value) in (torch.Tensor, nn.Parameter) and value.dtype == torch.float32
    return is_tensor and value.device.type == "cpu" and has_memory(value) and not torch.is_autocast_enabled("cpu")


def _address(tensor: torch.Tensor | None) -> int | None:
    return storage_of(tensor).data_ptr() if tensor is not None and has_memory(tensor) else None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32)
