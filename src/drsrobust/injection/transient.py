"""Transient targets: what is hit while the model runs, through hooks, at each call or for each sample.

Errors are drawn anew each time. The n-th call (or sample) of a place draws with a seed of its own, raw word n (from 0) of
`PCG64(SeedSequence(seed, spawn_key=(place, 3)))`, where `place` is the first 4 bytes (big-endian) of SHA-256 over the place's
name: so what is hit depends on the seed and on how many calls there were, on nothing else.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._names import unknown
from drsrobust.injection.hooks import Draw
from drsrobust.injection.lookups import OUT_OF_RANGE, guard, refuse_compiled
from drsrobust.injection.storage import hittable
from drsrobust.tensors import listed, named_modules

_PER = ("call", "sample")


class Transient(ABC):
    """What is hit while the model runs."""

    @abstractmethod
    def attach(self, model: nn.Module, draw: Draw) -> Iterator[tuple[str | None, Any]]:
        """Puts hooks on the model.

        Yields:
            of each, as soon as it is on: the name of its place (None for hooks that only help), and its handle.

        Raises:
            ValueError: there is nothing of the kind in the model.
        """


@dataclass(frozen=True)
class Inputs(Transient):
    """The model's inputs, before it sees them.

    Args:
        which: `"dense"` (floating tensors among the arguments of its forward, also in lists, tuples and dicts) or `"ids"` (the
            values of KeyedJaggedTensors, and integer tensors, whatever they mean: offsets too).
        per: errors are drawn for each `"call"`, or for each `"sample"` of it on its own (row of a tensor; all ids of a row of
            a KeyedJaggedTensor), which costs some 0.1 ms per sample.
        out_of_range: of `"ids"`, what becomes of an id that its table does not have:

            - `"raise"`: IndexError, before the look-up.
            - `"first"`: it reads row 0.
            - `"wrap"`: it reads the row with the id modulo the table's rows.
            - `"as_is"`: the look-up decides. Found with PyTorch 2.13, TorchRec and FBGEMM 1.8 on a CPU: `nn.Embedding`,
              `nn.EmbeddingBag` and so TorchRec's `EmbeddingBagCollection` raise; FBGEMM's fused tables read row 0 when it is
              too large and raise when it is negative; its quantized ones read row 0 when it is too large and give zeros for -1.
              On a GPU a plain look-up fails the device for the whole process.

    The original tensors stay as they are: the model sees changed copies.
    """

    which: str
    per: str = "call"
    out_of_range: str = "raise"

    def __post_init__(self) -> None:
        _one_of("inputs", self.which, ("dense", "ids"))
        _one_of("way to draw (per)", self.per, _PER)
        _one_of("way to treat ids out of range", self.out_of_range, OUT_OF_RANGE)

    def __str__(self) -> str:
        return f"Inputs({self.which}{_per(self.per)}{'' if self.out_of_range == 'raise' else f', {self.out_of_range}'})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[tuple[str | None, Any]]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            hit = self._hit(draw)
            args = tuple(_changed(value, "", hit) for value in args)
            kwargs = {name: _changed(value, "", hit) for name, value in kwargs.items()}
            return args, kwargs

        yield self.which, model.register_forward_pre_hook(hook, with_kwargs=True)
        if self.which == "ids" and self.out_of_range != "as_is":
            yield from ((None, handle) for handle in guard(model, self.out_of_range))

    def _hit(self, draw: Draw) -> "Hit":
        """What one call's tensors go through: those of the kind are hit, and named `dense`, `dense[1]`, ..."""
        seen = count()

        def hit(_: str, tensor: torch.Tensor, samples: Callable[[], list[np.ndarray]]) -> torch.Tensor:
            if tensor.dtype.is_floating_point != (self.which == "dense"):
                return tensor
            number = next(seen)
            where = f"{self.which}[{number}]" if number else self.which
            return draw.hit(where, tensor, samples() if self.per == "sample" else None)

        return hit


@dataclass(frozen=True)
class Activations(Transient):
    """Outputs of modules.

    Args:
        glob: on module names, as `over_arch.*`. A module that holds others which match too is left out (its output is mostly
            the last one's); an exact name means that module. `"embedding"` means the pooled embeddings: the outputs of all
            embedding modules.
        per: errors are drawn for each `"call"`, or for each `"sample"` (row) of it on its own.

    Tensors, TorchRec's KeyedTensor and JaggedTensor, and tuples, lists and dicts of them are hit. The module's other hooks
    (a mitigation's, as a bound on outputs) and the next module see a changed copy; gradients pass through it as if it were
    the original. What activation checkpointing computes again is hit again, with other errors.
    """

    glob: str
    per: str = "call"

    def __post_init__(self) -> None:
        _check_glob(self.glob)
        _one_of("way to draw (per)", self.per, _PER)

    def __str__(self) -> str:
        return f"Activations({self.glob}{_per(self.per)})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[tuple[str | None, Any]]:
        modules = self._modules(model)
        refuse_compiled(model, [name for name, _ in modules])

        def hit(where: str, tensor: torch.Tensor, samples: Callable[[], list[np.ndarray]]) -> torch.Tensor:
            return draw.hit(where, tensor, samples() if self.per == "sample" else None)

        for name, module in modules:

            def hook(module: nn.Module, args: tuple, output: Any, name: str = name) -> Any:
                return _changed(output, name, hit)

            # First of all hooks: what stands behind the module, as a bound on its outputs, sees the errors.
            yield name, module.register_forward_hook(hook, prepend=True)

    def _modules(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        every: dict[str, nn.Module] = {}
        for name, module in named_modules(model):
            if name and _is_called(module):
                every.setdefault(name, module)  # of a wrapper and what it wraps, the wrapper
        if self.glob in every:
            return [(self.glob, every[self.glob])]
        # What these do inside of themselves is not done by calling their children.
        closed = [n for n, m in every.items() if isinstance(m, nn.MultiheadAttention) or _is_collection(m)]
        whole = {n: m for n, m in every.items() if not any(n.startswith(f"{outer}.") for outer in closed)}
        if self.glob == "embedding":
            found = {n: m for n, m in whole.items() if _is_embedding(m)}
        else:
            found = {n: m for n, m in whole.items() if fnmatchcase(n, self.glob)}
            found = {n: m for n, m in found.items() if not any(inner.startswith(f"{n}.") for inner in found)}
        if not found:
            raise ValueError(f"no module matches {self.glob!r}; there are: {', '.join(every)}")
        return list(found.items())


@dataclass(frozen=True)
class Gradients(Transient):
    """Gradients of parameters, as they come out of a backward pass, before they are added to `.grad`.

    Gradients that a fused optimizer uses up inside the backward pass (TorchRec's fused tables) are never seen.

    Args:
        glob: on names of parameters; an exact name means that one.
    """

    glob: str = "*"

    def __post_init__(self) -> None:
        _check_glob(self.glob)

    def __str__(self) -> str:
        return f"Gradients({self.glob})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[tuple[str | None, Any]]:
        every = {}
        for one in listed(model):
            if isinstance(one.tensor, nn.Parameter) and one.tensor.requires_grad:
                every |= dict.fromkeys((one.name, *one.aliases), (one.name, one.tensor))
        names = [self.glob] if self.glob in every else [name for name in every if fnmatchcase(name, self.glob)]
        if not names:
            raise ValueError(
                f"no parameter with a gradient matches {self.glob!r}; there are: {', '.join(every) or 'none'}"
            )
        for name, tensor in dict(every[name] for name in names).items():
            where = f"gradient of {name}"

            def hook(gradient: torch.Tensor, where: str = where) -> torch.Tensor:
                if not gradient.is_sparse:
                    return draw.hit(where, gradient)
                values = draw.hit(where, gradient._values())
                as_it_was = {"is_coalesced": gradient.is_coalesced(), "check_invariants": False}
                return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, **as_it_was)

            yield where, tensor.register_hook(hook)


# Gives a tensor with errors: its place, the tensor, and what tells which words belong to each sample.
Hit = Callable[[str, torch.Tensor, Callable[[], list[np.ndarray]]], torch.Tensor]


def _changed(value: Any, where: str, hit: Hit) -> Any:
    """A value with all tensors in it hit: plain ones, TorchRec's KeyedTensor, JaggedTensor and KeyedJaggedTensor, and those in
    tuples, lists and dicts. What has no bits to hit stays as it is."""
    if isinstance(value, torch.Tensor):
        return hit(where, value, lambda: _rows(value)) if hittable(value) else value
    kind = type(value).__name__
    if kind in ("KeyedTensor", "JaggedTensor", "KeyedJaggedTensor"):
        values = value.values()
        changed = hit(where, values, lambda: _samples_of_ids(value) if kind == "KeyedJaggedTensor" else _rows(values))
        if changed is values:
            return value
        if kind == "KeyedTensor":
            about = {"keys": value.keys(), "length_per_key": value.length_per_key(), "key_dim": value.key_dim()}
        else:
            about = {"weights": value.weights_or_none(), "lengths": value.lengths()}
            about |= {"keys": value.keys(), "stride": value.stride()} if kind == "KeyedJaggedTensor" else {}
        return type(value)(values=changed, **about)
    if isinstance(value, dict):
        changed = copy.copy(value)
        changed.update({key: _changed(part, f"{where}[{key}]", hit) for key, part in value.items()})
        return changed
    if isinstance(value, tuple | list):
        parts = [_changed(part, f"{where}[{number}]", hit) for number, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _one_of(thing: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown(thing, value, known)


def _check_glob(glob: str) -> None:
    if not isinstance(glob, str):
        raise ValueError(f"glob is {glob!r}; it must be a name or a glob, as 'over_arch.*'")


def _per(per: str) -> str:
    return "" if per == "call" else f", per {per}"


def _rows(tensor: torch.Tensor) -> list[np.ndarray]:
    """The words of each row of a tensor."""
    if not tensor.dim():
        return [np.zeros(1, np.int64)]
    return list(np.arange(tensor.numel()).reshape(tensor.shape[0], -1)) if tensor.shape[0] else []


def _is_collection(module: nn.Module) -> bool:
    return type(module).__name__.endswith(("EmbeddingBagCollection", "EmbeddingCollection"))


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) or _is_collection(module)


def _is_called(module: nn.Module) -> bool:
    """Whether a module has a forward (a ModuleList has none)."""
    return type(module).forward is not nn.Module.forward


def _samples_of_ids(jagged: Any) -> list[np.ndarray]:
    """Where the ids of each sample lie among a KeyedJaggedTensor's values."""
    lengths = jagged.lengths().cpu().numpy()
    samples = jagged.stride()
    sample = np.repeat(np.arange(len(lengths)) % samples, lengths)
    order = np.argsort(sample, kind="stable")
    return np.split(order, np.cumsum(np.bincount(sample, minlength=samples))[:-1])
