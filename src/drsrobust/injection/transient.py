"""Transient targets: what is hit while the model runs, through hooks, at each call or for each sample.

Errors are drawn anew each time. The n-th call (or sample) of a place draws with a seed of its own, raw word n (from 0) of
`PCG64(SeedSequence(seed, spawn_key=(place, 3)))`, where `place` is the first 4 bytes (big-endian) of SHA-256 over the place's
name: so what is hit depends on the seed and on how many calls there were, on nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._names import unknown
from drsrobust.injection.hooks import Draw
from drsrobust.injection.lookups import OUT_OF_RANGE, guard
from drsrobust.tensors import named_modules, named_tensors, unwrapped

_PER = ("call", "sample")


class Transient:
    """What is hit while the model runs."""

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Any]:
        """Puts hooks on the model.

        Yields:
            the handle of each, as soon as it is on.

        Raises:
            ValueError: there is nothing of the kind in the model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Inputs(Transient):
    """The model's inputs, before it sees them.

    Args:
        which: `"dense"` (floating tensors among the arguments of its forward) or `"ids"` (the values of KeyedJaggedTensors,
            and integer tensors).
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

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Any]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            seen = Counted()
            args = tuple(self._change(value, draw, seen) for value in args)
            kwargs = {name: self._change(value, draw, seen) for name, value in kwargs.items()}
            if not seen.n:
                kind = "floating tensor" if self.which == "dense" else "KeyedJaggedTensor or integer tensor"
                raise ValueError(f"the model was called without any {kind}, so {self} has nothing to hit")
            return args, kwargs

        yield model.register_forward_pre_hook(hook, with_kwargs=True)
        if self.which == "ids" and self.out_of_range != "as_is":
            yield from guard(model, self.out_of_range)

    def _change(self, value: Any, draw: Draw, seen: "Counted") -> Any:
        """A value with errors, if it is of the kind."""
        if _is_jagged(value):
            if self.which == "dense":
                return value
            where = seen.name("ids")
            samples = _samples_of_ids(value) if self.per == "sample" else None
            return _jagged_with(value, draw.hit(where, value.values(), samples))
        if not isinstance(value, torch.Tensor) or value.dtype == torch.bool or value.dtype.is_complex:
            return value
        if value.dtype.is_floating_point != (self.which == "dense"):
            return value
        return draw.hit(seen.name(self.which), value, _rows(value) if self.per == "sample" else None)


@dataclass(frozen=True)
class Activations(Transient):
    """Outputs of modules.

    Args:
        glob: on module names, as `over_arch.*`. A module that holds others which match too is left out (its output is mostly
            the last one's); an exact name means that module. `"embedding"` means the pooled embeddings: the outputs of all
            embedding modules.
        per: errors are drawn for each `"call"`, or for each `"sample"` (row) of it on its own.

    Tensors, TorchRec's KeyedTensor and JaggedTensor, and tuples, lists and dicts of them are hit. The next module sees a
    changed copy; gradients pass through it as if it were the original.
    """

    glob: str
    per: str = "call"

    def __post_init__(self) -> None:
        _one_of("way to draw (per)", self.per, _PER)

    def __str__(self) -> str:
        return f"Activations({self.glob}{_per(self.per)})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Any]:
        modules = self._modules(model)
        _refuse_compiled(model, [name for name, _ in modules])
        for name, module in modules:

            def hook(module: nn.Module, args: tuple, output: Any, name: str = name) -> Any:
                return self._change(output, name, draw)

            yield module.register_forward_hook(hook)

    def _modules(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        every = [(name, module) for name, module in named_modules(model) if name]
        exact = [(name, module) for name, module in every if name == self.glob]
        if exact:
            return exact
        if self.glob == "embedding":
            found = [(n, m) for n, m in every if isinstance(m, nn.Embedding | nn.EmbeddingBag) or _is_collection(m)]
            found = [(n, m) for n, m in found if not any(n.startswith(f"{outer}.") for outer, _ in found)]
        else:
            found = [(n, m) for n, m in every if fnmatchcase(n, self.glob)]
            found = [(n, m) for n, m in found if not any(inner.startswith(f"{n}.") for inner, _ in found)]
        if not found:
            raise ValueError(f"no module matches {self.glob!r}; there are: {', '.join(name for name, _ in every)}")
        return found

    def _change(self, value: Any, where: str, draw: Draw) -> Any:
        if isinstance(value, torch.Tensor):
            return draw.hit(where, value, _rows(value) if self.per == "sample" else None)
        if type(value).__name__ == "KeyedTensor":
            values = value.values()
            hit = draw.hit(where, values, _rows(values) if self.per == "sample" else None)
            if hit is values:
                return value
            return type(value)(
                keys=value.keys(), length_per_key=value.length_per_key(), values=hit, key_dim=value.key_dim()
            )
        if type(value).__name__ == "JaggedTensor":
            values = value.values()
            return _jagged_with(value, draw.hit(where, values, _rows(values) if self.per == "sample" else None))
        if isinstance(value, dict):
            return type(value)({key: self._change(part, f"{where}[{key}]", draw) for key, part in value.items()})
        if isinstance(value, tuple | list):
            parts = [self._change(part, f"{where}[{number}]", draw) for number, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        raise ValueError(f"module {where!r} gives a {type(value).__name__}, which cannot be hit; name another module")


@dataclass(frozen=True)
class Gradients(Transient):
    """Gradients of parameters, as they come out of a backward pass, before they are added to `.grad`.

    Gradients that a fused optimizer uses up inside the backward pass (TorchRec's fused tables) are never seen.

    Args:
        glob: on names of parameters; an exact name means that one.
    """

    glob: str = "*"

    def __str__(self) -> str:
        return f"Gradients({self.glob})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Any]:
        every = [
            (n, t) for n, t in named_tensors(model, buffers=False) if isinstance(t, nn.Parameter) and t.requires_grad
        ]
        found = [(n, t) for n, t in every if n == self.glob] or [(n, t) for n, t in every if fnmatchcase(n, self.glob)]
        if not found:
            names = ", ".join(name for name, _ in every) or "none"
            raise ValueError(f"no parameter with a gradient matches {self.glob!r}; there are: {names}")
        for name, tensor in found:

            def hook(gradient: torch.Tensor, where: str = f"gradient of {name}") -> torch.Tensor:
                if gradient.is_sparse:
                    values = draw.hit(where, gradient._values())
                    about = {
                        "is_coalesced": gradient.is_coalesced(),
                        "check_invariants": False,
                    }  # its indices are as they were
                    return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, **about)
                return draw.hit(where, gradient)

            yield tensor.register_hook(hook)


class Counted:
    """Names for several tensors of a kind among a call's arguments: `dense`, `dense[1]`, ..."""

    def __init__(self) -> None:
        self.n = 0

    def name(self, kind: str) -> str:
        """The next one's name."""
        self.n += 1
        return kind if self.n == 1 else f"{kind}[{self.n - 1}]"


def _one_of(thing: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown(thing, value, known)


def _per(per: str) -> str:
    return "" if per == "call" else f", per {per}"


def _rows(tensor: torch.Tensor) -> list[np.ndarray]:
    """The words of each row of a tensor."""
    if not tensor.dim():
        return [np.zeros(1, np.int64)]
    return list(np.arange(tensor.numel()).reshape(tensor.shape[0], -1)) if tensor.shape[0] else []


def _is_jagged(value: Any) -> bool:
    return type(value).__name__ == "KeyedJaggedTensor"


def _is_collection(module: nn.Module) -> bool:
    return type(module).__name__.endswith(("EmbeddingBagCollection", "EmbeddingCollection"))


def _samples_of_ids(jagged: Any) -> list[np.ndarray]:
    """Where the ids of each sample lie among a KeyedJaggedTensor's values."""
    lengths = jagged.lengths().cpu().numpy()
    samples = jagged.stride()
    sample = np.repeat(np.arange(len(lengths)) % samples, lengths)
    order = np.argsort(sample, kind="stable")
    return np.split(order, np.cumsum(np.bincount(sample, minlength=samples))[:-1])


def _jagged_with(jagged: Any, values: torch.Tensor) -> Any:
    """The same KeyedJaggedTensor or JaggedTensor with other values."""
    if values is jagged.values():
        return jagged
    given = {"keys": jagged.keys(), "stride": jagged.stride()} if _is_jagged(jagged) else {}
    return type(jagged)(values=values, weights=jagged.weights_or_none(), lengths=jagged.lengths(), **given)


def _refuse_compiled(model: nn.Module, names: list[str]) -> None:
    """Raises ValueError for a module inside a compiled one: hooks put on after compiling are silently left out there."""
    for outer, module in unwrapped(model).named_modules():
        compiled = getattr(module, "_orig_mod", None) is not None or module._compiled_call_impl is not None
        inside = [name for name in names if not outer or name == outer or name.startswith(f"{outer}.")]
        if compiled and inside:
            raise ValueError(
                f"{inside[0]} is compiled, which leaves out hooks; inject into the module before torch.compile"
            )
    if unwrapped(model) is not model and hasattr(model, "_orig_mod"):
        raise ValueError(f"{names[0]} is compiled, which leaves out hooks; inject into the module before torch.compile")
