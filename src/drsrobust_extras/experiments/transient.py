"""Transient targets: inputs, activations and gradients that hooks hit while the model runs, at each call or for each sample.

Errors are drawn at each call. Call (or sample) n of a site draws with a seed of its own, raw word n (from 0) of
`PCG64(SeedSequence(seed, spawn_key=(site, 3)))`, where `site` is the first 4 bytes (big-endian) of SHA-256 over the site's
name: so errors depend only on the seed and the number of the call."""

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from drsrobust.extend import (
    WordView,
    add_forward_hook,
    add_forward_pre_hook,
    check_choice,
    check_text,
    is_compiled,
    is_script,
    sample_in,
    with_tensors,
)
from drsrobust.injection import HOOK, Change, ErrorModel, InjectionError, Transient
from drsrobust.introspection import is_sharded, listed, named_modules, sparse_type, table_configs, unwrapped
from drsrobust_extras.experiments.id_guard import id_guards
from drsrobust_extras.experiments.transient_log import Hit, Log

Site = tuple[str | None, Any]  # name of a place (None for hooks that only help), handle of its hook
_PER = ("call", "sample")
_OUT_OF_RANGE = ("raise", "first", "wrap", "as_is")


class Hooked(Transient):
    """A target that hooks hit.

    Attributes:
        lasts: whether its errors go on, so that a step of training that is computed again has them too.
    """

    lasts: ClassVar[bool] = False

    @abstractmethod
    def attach(self, model: nn.Module, draw: "Draw") -> Iterator[Site]:
        """Registers hooks on the model, and yields each one's site as soon as it is registered.

        Raises:
            ValueError: the model has no such site.
        """

    def change(self, model: nn.Module, error_model: ErrorModel, seed: int, copy: int, log: Log) -> "Hooks":
        """As of `Transient`.

        Raises:
            ValueError: a model that is sharded over ranks.
        """
        if is_sharded(model):
            raise ValueError(f"{self}: errors while a sharded model runs are not supported; hit its memory")
        return Hooks(model, self, Draw(error_model, seed, copy, log))

    def new_log(self, pairs: int) -> Log:
        """As of `Transient`."""
        return Log(pairs)

    def check(self, model: nn.Module, error_model: ErrorModel) -> None:
        """As of `Transient`. Bits are checked when the model runs."""
        hooks = self.change(model, error_model, 0, 0, self.new_log(1))
        try:
            hooks.apply()
        finally:
            hooks.undo()


class Draw:
    """Draws and logs the errors of each call, for one pair of an error model and a transient target."""

    def __init__(self, error_model: ErrorModel, seed: int, copy: int, log: Log) -> None:
        self.error_model, self.seed, self.copy, self.log = error_model, seed, copy, log
        self.active = False  # a hook that an interrupt left behind does nothing
        self.begin()

    def begin(self) -> None:
        """Starts (again) from the first call."""
        self._seeds: dict[str, np.random.PCG64] = {}
        self._calls: dict[str, int] = {}
        self._samples: dict[str, int] = {}

    def reached(self, site: str) -> bool:
        """Whether a site was called."""
        return any(call == site or call.startswith(f"{site}[") for call in self._calls)

    def hit(self, site: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None = None) -> torch.Tensor:
        """A copy of a tensor with the errors of this call; the tensor itself if there are none.

        Args:
            site: its name.
            tensor: any plain tensor.
            samples: the words (flat indices) of each sample; None: errors are drawn per call.
        """
        if torch.compiler.is_compiling():  # a compiler would trace the drawing of errors, and draw them only once
            return torch.compiler.disable(self._hit)(site, tensor, samples)
        return self._hit(site, tensor, samples)

    def _hit(self, site: str, tensor: torch.Tensor, samples: Sequence[np.ndarray] | None) -> torch.Tensor:
        if not self.active:
            return tensor
        call = self.called(site)
        flat = tensor.detach().reshape(-1)
        hits = []
        for part in [None] if samples is None else samples:
            number, seed = None, self.next_seed(site)
            if part is not None:
                number = self._samples.get(site, 0)
                self._samples[site] = number + 1
            memory = flat if part is None else flat[torch.from_numpy(part).to(flat.device)]
            if not memory.numel():
                continue
            words = memory.view(tensor.shape) if part is None else memory
            try:
                error_map = sample_in(site, tensor, words, self.error_model, seed, self.copy)
            except ValueError as error:
                raise InjectionError(f"{self.error_model} cannot hit {site}: {error}") from error
            self.log.count(error_map)
            if len(error_map):
                self.log.hits.append(Hit(site, call, number, error_map.word, error_map.mask))
                hits.append((error_map.word if part is None else part[error_map.word], error_map.mask))
        if not hits:
            return tensor
        changed = tensor.clone(memory_format=torch.contiguous_format)
        words = WordView(changed)
        index = torch.from_numpy(np.concatenate([word for word, _ in hits])).to(words.device)
        words.write(index, words.read(index) ^ words.masks(np.concatenate([mask for _, mask in hits])))
        return changed

    def called(self, site: str) -> int:
        """Counts a call of a site; its number, from 0."""
        call = self._calls.get(site, 0)
        self._calls[site] = call + 1
        self.log.calls[site] = self.log.calls.get(site, 0) + 1
        return call

    def next_seed(self, site: str) -> int:
        """The next raw word of a site's stream."""
        if site not in self._seeds:
            key = int.from_bytes(hashlib.sha256(site.encode()).digest()[:4], "big")
            self._seeds[site] = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(key, HOOK)))
        return int(self._seeds[site].random_raw())


class Hooks(Change):
    """The hooks of one transient target on one model. `undo` may run twice."""

    def __init__(self, model: nn.Module, target: Hooked, draw: Draw) -> None:
        self.model, self.target, self.draw = model, target, draw
        self.spans, self.thread = [], threading.get_ident()
        self._handles: list[Any] = []
        self._sites: list[str] = []

    def apply(self) -> None:
        """Registers the hooks.

        Raises:
            RuntimeError: they are registered already, or another thread has errors in the model.
        """
        self.open(f"{self.target} has its hooks on the model already")
        self.draw.begin()
        self.draw.active, self._sites = True, []
        for site, handle in self.target.attach(self.model, self.draw):
            self._handles.append(handle)
            self._sites += [] if site is None else [site]

    def undo(self) -> None:
        self.draw.active = False
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()
        self.close()

    def unreached(self) -> list[str]:
        """Sites that were never called."""
        return [site for site in self._sites if not self.draw.reached(site)]


@dataclass(frozen=True)
class Inputs(Hooked):
    """The model's inputs. The model sees changed copies of them.

    Args:
        which: `"dense"` (floating tensors among the arguments of its forward, also in lists, tuples, dicts and objects)
            or `"ids"` (the values of KeyedJaggedTensors, and integer tensors of any meaning, offsets too).
        per: errors are drawn for each `"call"`, or separately for each `"sample"` of it (row of a tensor; all ids of a row of
            a KeyedJaggedTensor), which costs some 0.1 ms per sample.
        out_of_range: of `"ids"`, the treatment of an id that its table does not have:

            - `"raise"`: IndexError, before the look-up.
            - `"first"`: it reads row 0.
            - `"wrap"`: it reads the row with the id modulo the table's rows.
            - `"as_is"`: the look-up decides. Found with PyTorch 2.13, TorchRec and FBGEMM 1.8 on a CPU: `nn.Embedding`,
              `nn.EmbeddingBag` and so TorchRec's `EmbeddingBagCollection` raise; FBGEMM's fused tables read row 0 for an id
              that is too large and raise for a negative one; its quantized ones read row 0 for an id that is too large and
              give zeros for -1. On a GPU a plain look-up fails the device for the whole process.

    Example:
        >>> import drsrobust as dr
        >>> model = nn.Flatten()
        >>> with dr.inject(model, dr.SingleBit(31), target=Inputs("dense"), seed=0):
        ...     model(torch.ones(1, 1))
        tensor([[-1.]])
    """

    which: str
    per: str = "call"
    out_of_range: str = "raise"

    def __post_init__(self) -> None:
        check_choice("inputs", self.which, ("dense", "ids"))
        check_choice("way to draw (per)", self.per, _PER)
        check_choice("way to treat ids out of range", self.out_of_range, _OUT_OF_RANGE)

    def __str__(self) -> str:
        return f"Inputs({self.which}{_per(self.per)}{'' if self.out_of_range == 'raise' else f', {self.out_of_range}'})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Site]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            number = count()  # of the call's tensors of this kind: `dense`, `dense[1]`, ...

            def hit(_: str, tensor: torch.Tensor, samples: Callable[[], list[np.ndarray]]) -> torch.Tensor:
                if tensor.dtype.is_floating_point != (self.which == "dense"):
                    return tensor
                index = next(number)
                site = f"{self.which}[{index}]" if index else self.which
                return draw.hit(site, tensor, samples() if self.per == "sample" else None)

            args = tuple(_changed(value, "", hit) for value in args)
            return args, {name: _changed(value, "", hit) for name, value in kwargs.items()}

        yield self.which, add_forward_pre_hook(model, hook, with_kwargs=True)
        if self.which == "ids" and self.out_of_range != "as_is":
            guards, modules = id_guards(model, self.out_of_range), dict(reversed(named_modules(model)))
            _refuse_compiled(model, list(guards))
            for name, guard in guards.items():
                yield None, add_forward_pre_hook(modules[name], guard, with_kwargs=True)


@dataclass(frozen=True)
class Activations(Hooked):
    """Outputs of modules.

    Args:
        glob: on module names, as `over_arch.*`. A module that contains other matches is skipped (its output is mostly
            the last one's); an exact name means that module. `"embedding"` means the pooled embeddings: the outputs of all
            embedding modules.
        per: errors are drawn for each `"call"`, or separately for each `"sample"` (row) of it.

    Tensors, TorchRec's KeyedTensor and JaggedTensor, and those in tuples, lists, dicts and objects are hit. The module's other
    hooks (a mitigation's, as a bound on outputs) and the next module see a changed copy; gradients pass through it as through
    the original. Activation checkpointing computes outputs again, and new errors hit these.

    Example:
        >>> import drsrobust as dr
        >>> model = nn.Sequential(nn.Identity(), nn.Flatten())
        >>> with dr.inject(model, dr.SingleBit(31), target=Activations("0"), seed=0):
        ...     model(torch.ones(1, 1))
        tensor([[-1.]])
    """

    glob: str
    per: str = "call"

    def __post_init__(self) -> None:
        _check_glob(self.glob)
        check_choice("way to draw (per)", self.per, _PER)

    def __str__(self) -> str:
        return f"Activations({self.glob}{_per(self.per)})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Site]:
        modules = self._modules(model)
        _refuse_compiled(model, list(modules))

        def hit(site: str, tensor: torch.Tensor, samples: Callable[[], list[np.ndarray]]) -> torch.Tensor:
            return draw.hit(site, tensor, samples() if self.per == "sample" else None)

        for name, module in modules.items():

            def hook(module: nn.Module, args: tuple, output: Any, name: str = name) -> Any:
                return _changed(output, name, hit)

            # The first of all hooks, so that a bound on the module's outputs sees the errors.
            yield name, add_forward_hook(module, hook, prepend=True)

    def tensors(self, model: nn.Module) -> list[tuple[Transient, int]]:
        return [(Activations(name, self.per), 1) for name in self._modules(model)]

    def _modules(self, model: nn.Module) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {}
        for name, module in named_modules(model):
            if name and getattr(type(module), "forward", None) is not nn.Module.forward:  # a ModuleList has no forward
                modules.setdefault(name, module)  # of a wrapper and its module, the wrapper
        if self.glob in modules:
            return {self.glob: modules[self.glob]}
        # These do not call their children.
        closed = [
            n
            for n, m in modules.items()
            if isinstance(m, nn.MultiheadAttention) or table_configs(m) is not None or is_script(m)
        ]
        called = {n: m for n, m in modules.items() if not any(n.startswith(f"{outer}.") for outer in closed)}
        if self.glob == "embedding":
            matches = {
                n: m
                for n, m in called.items()
                if isinstance(m, nn.Embedding | nn.EmbeddingBag) or table_configs(m) is not None
            }
        else:
            matches = {n: m for n, m in called.items() if fnmatchcase(n, self.glob)}
            matches = {n: m for n, m in matches.items() if not any(inner.startswith(f"{n}.") for inner in matches)}
        if not matches:
            raise ValueError(f"no module matches {self.glob!r}; there are: {', '.join(modules)}")
        return matches


@dataclass(frozen=True)
class Gradients(Hooked):
    """Gradients of parameters in the backward pass, before they are added to `.grad`.

    Gradients that a fused optimizer uses up inside the backward pass (TorchRec's fused tables) cannot be hit.

    Args:
        glob: on names of parameters; an exact name means that one.
    """

    glob: str = "*"

    def __post_init__(self) -> None:
        _check_glob(self.glob)

    def __str__(self) -> str:
        return f"Gradients({self.glob})"

    def check(self, model: nn.Module, error_model: ErrorModel) -> None:
        """Raises ValueError."""
        raise ValueError(f"{self}: an evaluator takes no gradients; use inject while the model is trained")

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Site]:
        for name, parameter in self._parameters(model).items():
            site = f"gradient of {name}"

            def hook(gradient: torch.Tensor, site: str = site) -> torch.Tensor:
                if not gradient.is_sparse:
                    return draw.hit(site, gradient)
                values = draw.hit(site, gradient._values())
                same = {"is_coalesced": gradient.is_coalesced(), "check_invariants": False}
                return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, **same)

            yield site, parameter.register_hook(hook)

    def tensors(self, model: nn.Module) -> list[tuple[Transient, int]]:
        return [(Gradients(name), parameter.numel()) for name, parameter in self._parameters(model).items()]

    def _parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Those that match, by name."""
        parameters = {}  # any name -> first name, parameter
        for entry in listed(model):
            if isinstance(entry.tensor, nn.Parameter) and entry.tensor.requires_grad:
                parameters |= dict.fromkeys((entry.name, *entry.aliases), (entry.name, entry.tensor))
        names = (
            [self.glob] if self.glob in parameters else [name for name in parameters if fnmatchcase(name, self.glob)]
        )
        if not names:
            listing = ", ".join(parameters) or "none"
            raise ValueError(f"no parameter with a gradient matches {self.glob!r}; there are: {listing}")
        return dict(parameters[name] for name in names)


def _check_glob(glob: str) -> None:
    check_text("glob", glob, "a name or a glob, as 'over_arch.*'")


def _per(per: str) -> str:
    return "" if per == "call" else f", per {per}"


# Called with a site, a tensor, and a function that gives the words of each sample; returns the tensor with errors.
_HitFunction = Callable[[str, torch.Tensor, Callable[[], list[np.ndarray]]], torch.Tensor]


def _changed(value: Any, site: str, hit: _HitFunction) -> Any:
    """A value with errors in its tensors, wherever `with_tensors` finds them."""

    def errors(path: str, tensor: torch.Tensor, owner: Any) -> torch.Tensor:
        if tensor.dtype.is_complex or tensor.dtype == torch.bool:  # no bits of numbers
            return tensor
        return hit(path, tensor, lambda: _id_words(owner) if _is_jagged(owner) else _row_words(tensor))

    return with_tensors(value, errors, site)


def _is_jagged(value: Any) -> bool:
    return sparse_type(value) == "KeyedJaggedTensor"


def _row_words(tensor: torch.Tensor) -> list[np.ndarray]:
    """The words of each row of a tensor."""
    if not tensor.dim():
        return [np.zeros(1, np.int64)]
    return list(np.arange(tensor.numel()).reshape(tensor.shape[0], -1)) if tensor.shape[0] else []


def _id_words(jagged: Any) -> list[np.ndarray]:
    """The positions of each sample's ids among a KeyedJaggedTensor's values."""
    lengths = jagged.lengths().cpu().numpy()
    samples = jagged.stride()
    sample = np.repeat(np.arange(len(lengths)) % samples, lengths)
    order = np.argsort(sample, kind="stable")
    return np.split(order, np.cumsum(np.bincount(sample, minlength=samples))[:-1])


def _refuse_compiled(model: nn.Module, names: list[str]) -> None:
    """Raises ValueError if one of these modules is compiled, or inside a compiled one or TorchScript, where new hooks do not
    run."""
    for outer, module in [("", model), *named_modules(model)]:
        inside = [name for name in names if name and name != outer and name.startswith(f"{outer}." if outer else "")]
        if inside and is_script(module):
            raise ValueError(
                f"{inside[0]} is a part of {outer or 'a model'} in TorchScript, which runs no hooks of its parts; inject into "
                "the module before torch.jit.script or torch.jit.trace" + (f", or at {outer!r}" if outer else "")
            )
        compiled = [name for name in names if not outer or name == outer or name.startswith(f"{outer}.")]
        if compiled and is_compiled(module):
            name = compiled[0] or type(unwrapped(model)).__name__
            raise ValueError(
                f"{name} is compiled, so new hooks do not run; inject into the module before torch.compile"
            )
