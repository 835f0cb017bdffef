"""Ids that a table does not have: found before the look-up, in TorchRec's collections and PyTorch's embedding modules.

What puts transient errors in: hooks on a model, and the drawing of errors at each of their calls.

Transient targets: what is hit while the model runs, through hooks, at each call or for each sample.

Errors are drawn anew each time. The n-th call (or sample) of a place draws with a seed of its own, raw word n (from 0) of
`PCG64(SeedSequence(seed, spawn_key=(place, 3)))`, where `place` is the first 4 bytes (big-endian) of SHA-256 over the place's
name: so what is hit depends on the seed and on how many calls there were, on nothing else."""

import copy
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection.address_space import AddressSpace, Stored, TargetTensor, Words, check, hittable
from drsrobust.injection.apply import LOCK, OPEN, refuse_other_threads, share_modules
from drsrobust.injection.error_clock import HOOK
from drsrobust.injection.error_map import Hit, Log
from drsrobust.injection.error_models import Before, ErrorModel
from drsrobust.injection.number_formats import plain
from drsrobust.introspection.tensors import listed, named_modules, plain_name, unwrapped

OUT_OF_RANGE = ("raise", "first", "wrap", "as_is")


def guard(model: nn.Module, out_of_range: str) -> Iterator[Any]:
    """Puts hooks on all look-ups of a model that treat ids out of range.

    Args:
        model: any module.
        out_of_range: `raise` (IndexError), `first` (row 0) or `wrap` (modulo the number of rows).

    Yields:
        the hooks' handles.

    Raises:
        ValueError: the model has no look-up that is known here, or it is compiled.
    """
    lookups, inside = [], []
    for name, module in dict(reversed(named_modules(model))).items():
        if (rows := _rows_by_feature(module)) is not None:
            lookups.append((name, module, _of_collection(name, rows, out_of_range)))
            inside.append(f"{name}." if name else "")
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            lookups.append((name, module, _of_module(name, module.num_embeddings, out_of_range)))
    lookups = [one for one in lookups if not any(one[0].startswith(outer) and one[0] != outer[:-1] for outer in inside)]
    if not lookups:
        raise ValueError(
            "the model has no nn.Embedding, nn.EmbeddingBag or TorchRec collection whose ids could be checked; "
            "out_of_range='as_is' leaves ids as they are, at your own risk"
        )
    refuse_compiled(model, [name for name, *_ in lookups])
    for _, module, hook in lookups:
        yield module.register_forward_pre_hook(hook, with_kwargs=True)


def refuse_compiled(model: nn.Module, names: list[str]) -> None:
    """Raises ValueError when one of these modules is compiled, or inside a compiled one: hooks put on after compiling are
    silently left out there."""
    inner = unwrapped(model)
    for outer, module in [("", model), *((plain_name(name), module) for name, module in inner.named_modules())]:
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        inside = [name for name in names if not outer or name == outer or name.startswith(f"{outer}.")]
        if compiled and inside:
            place = inside[0] or type(inner).__name__
            raise ValueError(
                f"{place} is compiled, which leaves out hooks; inject into the module before torch.compile"
            )


def _rows_by_feature(module: nn.Module) -> dict[str, int] | None:
    """Feature -> rows of the smallest table that it reads; None for modules that are no collection."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, method, None)
        if callable(configs):
            rows: dict[str, int] = {}
            for config in configs():
                for feature in config.feature_names:
                    rows[feature] = min(config.num_embeddings, rows.get(feature, config.num_embeddings))
            return rows
    return None


def _of_collection(name: str, rows: Mapping[str, int], out_of_range: str) -> Callable:
    def within(jagged: Any) -> Any:
        if type(jagged).__name__ != "KeyedJaggedTensor":
            return jagged
        keys, values = jagged.keys(), jagged.values()
        counts = torch.tensor(jagged.length_per_key(), device=values.device)
        limit = torch.tensor([rows.get(key, -1) for key in keys], device=values.device)  # -1: no table reads it
        changed = _within(name, values, torch.repeat_interleave(limit, counts), out_of_range)
        if changed is values:
            return jagged
        given = {"keys": keys, "weights": jagged.weights_or_none(), "lengths": jagged.lengths()}
        return type(jagged)(values=changed, stride=jagged.stride(), **given)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return tuple(within(value) for value in args), {key: within(value) for key, value in kwargs.items()}

    return hook


def _of_module(name: str, rows: int, out_of_range: str) -> Callable:
    def within(ids: torch.Tensor) -> torch.Tensor:
        return _within(name, ids, torch.tensor(rows, device=ids.device), out_of_range)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (within(args[0]), *args[1:]), kwargs
        return args, kwargs | {"input": within(kwargs["input"])}

    return hook


def _within(name: str, ids: torch.Tensor, rows: torch.Tensor, out_of_range: str) -> torch.Tensor:
    """Ids, all of which their tables have (those of tables with -1 rows are left alone).

    Raises:
        IndexError: an id out of range, where that is asked for.
    """
    outside = ((ids < 0) | (ids >= rows)) & (rows >= 0)
    if not outside.any():
        return ids
    if out_of_range == "raise":
        first = ids[outside][0].item()
        limit = rows.expand(ids.shape)[outside][0].item()
        raise IndexError(f"{name}: id {first} is out of range; the table has rows 0 to {limit - 1}")
    other = ids % rows if out_of_range == "wrap" else torch.zeros_like(ids)
    return torch.where(outside, other.to(ids.dtype), ids)


class InjectionError(ValueError):
    """Errors could not be drawn while a model ran: a mistake in what was asked for, not something that the model did."""


class Attachable(Protocol):
    """What hooks are put on for: a transient target."""

    def attach(self, model: nn.Module, draw: "Draw") -> Iterator[tuple[str | None, Any]]:
        """Puts hooks on the model, and gives the place (None: none of its own) and the handle of each as soon as it is on."""


class Draw:
    """Draws the errors of each call of one (error model, transient target) pair, and writes them down."""

    def __init__(self, error_model: ErrorModel, seed: int, before: Before, log: Log) -> None:
        self.error_model, self.seed, self.before, self.log = error_model, seed, before, log
        self.over = True  # a hook that an interrupt left behind does nothing any more
        self.begin()

    def begin(self) -> None:
        """Starts from the first call (again)."""
        self._seeds: dict[str, np.random.PCG64] = {}
        self._calls: dict[str, int] = {}
        self._samples: dict[str, int] = {}

    def reached(self, place: str) -> bool:
        """Whether something of that place was there to be hit, at any call."""
        return any(call == place or call.startswith(f"{place}[") for call in self._calls)

    def hit(self, where: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None = None) -> torch.Tensor:
        """A copy of a tensor with the errors of this call in it; the tensor itself when there are none.

        Args:
            where: the place's name.
            tensor: any plain tensor.
            samples: for each sample, which words (flat indices) are its own; None: errors are drawn per call.
        """
        if torch.compiler.is_compiling():  # a compiler would trace the drawing of errors, and draw them once for ever
            return torch.compiler.disable(self._hit)(where, tensor, samples)
        return self._hit(where, tensor, samples)

    def _hit(self, where: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None) -> torch.Tensor:
        if self.over:
            return tensor
        call = self._calls.get(where, 0)
        self._calls[where] = call + 1
        self.log.calls[where] = self.log.calls.get(where, 0) + 1
        flat = tensor.detach().reshape(-1)
        found = []
        for part in [None] if samples is None else samples:
            number = None
            seed = self._next_seed(where)
            if part is not None:
                number = self._samples.get(where, 0)
                self._samples[where] = number + 1
            memory = flat if part is None else flat[torch.from_numpy(part).to(flat.device)]
            if not memory.numel():
                continue
            shape = tuple(tensor.shape) if part is None else (memory.numel(),)
            try:
                check(where, tensor)
                target = TargetTensor(where, where, shape or (1,), plain(tensor.dtype), None, Stored(memory))
                drawn = self.error_model.sample(AddressSpace([target]), seed=seed, before=self.before)
            except ValueError as error:
                raise InjectionError(f"{self.error_model} cannot hit {where}: {error}") from error
            self._count(drawn)
            if len(drawn):
                self.log.hits.append(Hit(where, call, number, drawn.word, drawn.mask))
                found.append((drawn.word if part is None else part[drawn.word], drawn.mask))
        if not found:
            return tensor
        copy = tensor.clone(memory_format=torch.contiguous_format)
        words = Words(copy)
        index = torch.from_numpy(np.concatenate([word for word, _ in found])).to(words.device)
        words.write(index, words.read(index) ^ words.masks(np.concatenate([mask for _, mask in found])))
        return copy

    def _next_seed(self, where: str) -> int:
        if where not in self._seeds:
            place = int.from_bytes(hashlib.sha256(where.encode()).digest()[:4], "big")
            self._seeds[where] = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(place, HOOK)))
        return int(self._seeds[where].random_raw())

    def _count(self, drawn: Any) -> None:
        self.log.eligible_bits += drawn.eligible_bits
        for name in ("n_sites", "n_events"):
            now, more = getattr(self.log, name), getattr(drawn, name)
            setattr(self.log, name, None if now is None or more is None else now + more)


@dataclass(eq=False)
class Hooks:
    """The hooks of one transient target on one model. `undo` may run twice."""

    model: nn.Module
    target: Attachable
    draw: Draw
    handles: list[Any] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def apply(self) -> None:
        """Puts the hooks on.

        Raises:
            RuntimeError: they are on already, or another thread has errors in the model.
        """
        with LOCK:
            if self in OPEN:
                raise RuntimeError(f"{self.target} has its hooks on the model already")
            self.thread = threading.get_ident()
            refuse_other_threads(self.model)
            OPEN.append(self)
        self.draw.begin()
        self.draw.over, self.places = False, []
        for place, handle in self.target.attach(self.model, self.draw):
            self.handles.append(handle)
            self.places += [] if place is None else [place]

    def undo(self) -> None:
        """Takes them off."""
        self.draw.over = True
        while self.handles:
            self.handles[-1].remove()
            self.handles.pop()
        with LOCK:
            if self in OPEN:
                OPEN.remove(self)

    def unreached(self) -> list[str]:
        """Places that were never called."""
        return [place for place in self.places if not self.draw.reached(place)]

    def concerns(self, model: nn.Module, spans: list[tuple[int, int]]) -> bool:
        """Whether the model is, holds or is held by the one that has the hooks."""
        return share_modules(model, self.model)


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
_CheckHit = Callable[[str, torch.Tensor, Callable[[], list[np.ndarray]]], torch.Tensor]


def _changed(value: Any, where: str, hit: _CheckHit) -> Any:
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
