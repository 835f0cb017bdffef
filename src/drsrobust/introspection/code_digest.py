"""A digest of code and settings: what a model, a function or another object does beyond the values in its state.

Functions and classes of the user's files, notebooks and scripts count by their bytecode, and with them everything that they
name: constants, defaults, closures, globals, helpers in modules of the user. Code of installed distributions and of Python
counts by name and version. File names, line numbers, comments and docstrings of functions do not count, nor does anything in a
file that is not named. Objects count by class and attributes.
"""

import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import random
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust.introspection.embedding_modules import table_configs
from drsrobust.introspection.origin import OWN_PACKAGES, is_installed, origin
from drsrobust.introspection.patched import patched_in, patched_members
from drsrobust.introspection.spread import is_sharded_module
from drsrobust.introspection.tensors import sparse_parts
from drsrobust.introspection.wrappers import unwrapped

# Set by Python or by a decorator, and no code: names, places and documentation.
_NO_CODE = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__type_params__"),
    *("__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__"),
    *("__dataclass_params__", "__match_args__", "__slots__", "__slotnames__", "__firstlineno__"),
    "__static_attributes__",
}
# Attributes of modules that decide nothing: the mode, which evaluation sets; what is attached now; what PyTorch sets in a
# module that is compiled or scripted.
_NO_SETTINGS = {"training", "_attached_mitigations", "_compiled_call_impl", "_is_torch_compile", "__overloads__"}
# Of the modules of a package alone: how a checkpoint was made; a number that FBGEMM draws for each of its modules.
_NO_SETTINGS_OF = dict.fromkeys(OWN_PACKAGES, {"manifest"}) | {"fbgemm_gpu": {"uuid"}}
# Their state moves with each number that is drawn.
_RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, random.Random)
_PLAIN = (type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype)
_LRU_CACHE = type(functools.lru_cache(len))
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_DEEPEST = 4  # dots in the name of an installed module that code can reach
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}


class CodeDigest(NamedTuple):
    """A digest of code.

    Attributes:
        text: SHA-256 (hex).
        missing: the path of the first object that cannot be digested, and why; None if everything is in the digest.
    """

    text: str
    missing: str | None


def code_digest(value: Any, state: Iterable[torch.Tensor] = ()) -> CodeDigest:
    """The digest of a value: equal in every process, on every machine with the same versions, for equal code and settings.

    Args:
        value: a module, function or any object.
        state: tensors that count by dtype and shape alone, as those of a model's checkpoint.

    Example:
        >>> def scaled(value, by=2):
        ...     return value * by
        >>> before = code_digest(scaled)
        >>> scaled.__defaults__ = (3,)
        >>> code_digest(scaled).text == before.text
        False
    """
    walk = _Walk({id(tensor) for tensor in state})
    try:
        walk.add(value, type(value).__name__)
    except RecursionError:
        walk.missing = walk.missing or "it is nested too deep"
    return CodeDigest(walk.total.hexdigest(), walk.missing)


def short_digest(value: Any, state: Iterable[torch.Tensor] = (), *, missing: list[str]) -> str:
    """The first 16 digits of `code_digest`; what has no digest is added to `missing`."""
    whole = code_digest(value, state)
    missing += [] if whole.missing is None else [whole.missing]
    return whole.text[:16]


class _Walk:
    """One pass over an object and all that it names."""

    def __init__(self, state: set[int]) -> None:
        self.total, self.missing = hashlib.sha256(), None
        self._state = state
        self._seen: dict[int, int] = {}  # number of each mutable object, by id
        self._alive: list[Any] = []  # so that no id is used twice

    def _write(self, *parts: Any) -> None:
        for part in parts:
            content = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
            self.total.update(b"%d:" % len(content))
            self.total.update(content)

    def add(self, value: Any, path: str) -> None:
        """Adds a value; `path` names it for messages."""
        kind = type(value)
        if kind in _PLAIN:
            return self._write(kind.__name__, value if kind is bytes else repr(value))
        if kind in (tuple, list):
            if kind is list and self._again(value):
                return None
            self._write(kind.__name__, len(value))
            return self._each(value, path)
        if kind in (set, frozenset):
            return self._write(kind.__name__, *sorted(self._alone(item, path) for item in value))
        if isinstance(value, types.CodeType):
            return self._code(value, path)
        if isinstance(value, _NAMED):
            return self._write(kind.__name__, value)
        if isinstance(value, _RANDOM):
            return self._write("random numbers", kind.__qualname__)
        if self._again(value):
            return None
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.ModuleType):
            return self._write("module", *origin(value.__name__))
        if isinstance(value, _NotImported):
            return self._write("module", *origin(value.name))
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, path)
        if kind in (dict, types.MappingProxyType):
            self._write(kind.__name__, len(value))
            return self._each((part for item in value.items() for part in item), path)
        if kind is types.MethodType:
            return self._each(("method", value.__func__, value.__self__), path)
        if kind is functools.partial:
            return self._each(("partial", value.func, value.args, value.keywords), path)
        if isinstance(value, staticmethod | classmethod):
            return self._each((kind.__name__, value.__func__), path)
        if isinstance(value, property):
            return self._each(("property", value.fget, value.fset, value.fdel), path)
        if isinstance(value, functools.cached_property):
            return self._each(("property", value.func), path)
        if isinstance(value, weakref.ReferenceType):  # as nn.RNN holds of its weights
            return self._each(("reference", value()), path)
        if isinstance(value, _LRU_CACHE):
            return self._each(("function", value.__wrapped__), path)
        return self._object(value, path)

    def _again(self, value: Any) -> bool:
        """Writes the number of an object that was added before."""
        if id(value) in self._seen:
            self._write("again", self._seen[id(value)])
            return True
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return False

    def _each(self, values: Iterable[Any], path: str) -> None:
        for value in values:
            self.add(value, path)

    def _alone(self, value: Any, path: str) -> str:
        """The digest of an element of a set, which has no place among the others."""
        walk = _Walk(self._state)
        walk.add(value, path)
        self.missing = self.missing or walk.missing
        return walk.total.hexdigest()

    def _function(self, function: types.FunctionType, path: str) -> None:
        code, module = function.__code__, function.__globals__.get("__name__", "")
        path = f"{function.__module__}:{function.__qualname__}"
        self._write("function")
        if is_installed(module):
            self._write(*origin(module), code.co_qualname)
        else:
            documentation = function.__doc__ if code.co_consts[:1] == (function.__doc__,) else None
            self._code(code, path, documentation)
            cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
            held = {name: module for name, cell in cells if (module := _held_module(cell)) is not None}
            for name, value in _named(code, function.__globals__, held):
                self._write("global", name)
                self.add(value, f"{path} uses {name}")
        self._each((function.__defaults__, function.__kwdefaults__), path)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._write("closure", name)
            try:
                self.add(cell.cell_contents, f"{path} uses {name}")
            except ValueError:  # an empty cell
                self._write("empty")
        self._attributes({name: part for name, part in vars(function).items() if name not in _NO_CODE}, path)

    def _code(self, code: types.CodeType, path: str, documentation: str | None = None) -> None:
        flags = code.co_flags & ~inspect.CO_NESTED  # where it was defined
        self._write("code", code.co_code, code.co_exceptiontable, flags, code.co_name)
        self._write(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._each((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars), path)
        constants = code.co_consts if documentation is None else (None, *code.co_consts[1:])
        self._write(len(constants))
        self._each(constants, path)

    def _class(self, kind: type, path: str) -> None:
        self._write("class", kind.__name__)
        if is_installed(kind.__module__):
            self._write(*origin(kind.__module__))
            return self._attributes(patched, path) if (patched := patched_members(kind)) else None
        self._each((kind.__bases__, type(kind)), path)
        members = {name: value for name, value in vars(kind).items() if name not in _NO_CODE}
        return self._attributes(members, f"{kind.__module__}:{kind.__qualname__}")

    def _attributes(self, attributes: Mapping[str, Any], path: str) -> None:
        self._write(len(attributes))
        for name in sorted(attributes, key=str):
            self._write(name)
            self.add(attributes[name], f"{path}.{name}")

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in (types.MemberDescriptorType, types.GetSetDescriptorType):
            return self._write("slot", value.__name__)
        self.add(kind, path)
        if (said := _said(value)) is not None:
            return self._write("said", said)
        if (
            isinstance(value, nn.Module) and (inner := unwrapped(value)) is not value
        ):  # as compiled: what is inside counts
            return self.add(inner, path)
        if isinstance(value, nn.Module) and is_sharded_module(value):  # the plan does not count, nor which rank this is
            tables = [(c.name, c.num_embeddings, c.embedding_dim, list(c.feature_names)) for c in table_configs(value)]
            return self._write("sharded", tables)
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            return self._attributes(_module_settings(value), path)
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            if callable(value) and is_installed(kind.__module__) and hasattr(value, "__name__"):
                return self._write(
                    "callable", getattr(value, "__module__", ""), value.__name__
                )  # of a compiled extension
            if kind not in copyreg.dispatch_table:
                self.missing = self.missing or f"{path} ({error})"
                return None
            reduced = copyreg.dispatch_table[kind](value)  # as pickle does, of a compiled regular expression
        self._alive.append(reduced)
        if isinstance(reduced, str):
            return self._write("global", *origin(getattr(value, "__module__", None) or kind.__module__), reduced)
        function, arguments, settings, *items = (*reduced, *(None,) * (5 - len(reduced)))[:5]
        self._each((function, arguments), path)
        for part in settings if isinstance(settings, tuple) else (settings,):
            if type(part) is dict:
                cached = {
                    name for name in part if isinstance(getattr(kind, str(name), None), functools.cached_property)
                }
                self._attributes({name: content for name, content in part.items() if name not in cached}, path)
            else:
                self.add(part, path)
        for item in items:
            self.add(None if item is None else list(item), path)
        return None

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        self._write("tensor", tensor.dtype, list(tensor.shape), tensor.layout)
        if id(tensor) in self._state or tensor.is_meta:
            return
        try:
            for part in sparse_parts(tensor.detach()):
                self._write(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        except (RuntimeError, TypeError, AttributeError) as error:
            self.missing = self.missing or f"{path} ({error})"

    def _array(self, array: Any, path: str) -> None:
        self._write("array", array.dtype, array.shape)
        if array.dtype.hasobject:
            self.add(array.tolist(), path)
        else:
            self._write(array.tobytes())


def _said(value: Any) -> str | None:
    """The digest that an object of this package has of itself: a mitigation's identity, the fingerprint of rows. A combination
    has none, since its parts may be of the user's classes."""
    if type(value).__module__.partition(".")[0] not in OWN_PACKAGES or hasattr(value, "parts"):
        return None
    if isinstance(said := getattr(value, "fingerprint", None), str):
        return said
    identity = getattr(value, "identity", None)
    return identity() if callable(identity) else None


def _module_settings(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module. Hooks have their order in place of their handles' numbers, which count through the process."""
    packages = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    none = _NO_SETTINGS.union(*(_NO_SETTINGS_OF.get(package, ()) for package in packages))
    settings = {name: value for name, value in vars(module).items() if name not in none}
    numbers = sorted({key for name, value in settings.items() if name.endswith("_hooks") and value for key in value})
    order = {number: place for place, number in enumerate(numbers)}
    for name, value in settings.items():
        if "_hooks" in name and isinstance(value, Mapping):
            settings[name] = {order.get(key, key): hook for key, hook in value.items()}
    return settings


def _held_module(cell: types.CellType) -> types.ModuleType | None:
    try:
        return cell.cell_contents if isinstance(cell.cell_contents, types.ModuleType) else None
    except ValueError:  # an empty cell
        return None


def _named(
    code: types.CodeType, namespace: Mapping[str, Any], held: Mapping[str, types.ModuleType]
) -> Iterator[tuple[str, Any]]:
    """Globals that a function's code names, what it takes from modules of the user, and what of the user it finds in installed
    ones, by name. `held` are modules in its closure."""
    names, attributes, imports = _names(code)
    named = {name: namespace[name] for name in names if name in namespace}
    package = namespace.get("__package__") or ""
    for name, level in imports:
        try:
            name = importlib.util.resolve_name("." * level + name, package) if level else name
        except ImportError:
            continue
        if (module := _imported(name)) is not None:
            named[name] = module
    pending = [*named.items(), *held.items()]
    for name, value in pending:
        if not isinstance(value, types.ModuleType):
            continue
        inner = {part: vars(value)[part] for part in attributes if part in vars(value)}
        if is_installed(value.__name__):
            below = {part: each for part, each in inner.items() if isinstance(each, types.ModuleType)}
            pending += [
                (f"{name}.{part}", each) for part, each in below.items() if f"{name}.{part}".count(".") < _DEEPEST
            ]
            inner = patched_in(value, attributes)
            named |= {f"{name}.{part}": each for part, each in inner.items()}
            continue
        inner = {f"{name}.{part}": each for part, each in inner.items()}
        pending += [item for item in inner.items() if item[0] not in named]
        named |= inner
    return iter(sorted(named.items()))


class _NotImported(NamedTuple):
    """An installed module that code names and that nobody has imported yet."""

    name: str


_not_imported = functools.cache(_NotImported)  # one object each, as a module is


def _imported(name: str) -> types.ModuleType | _NotImported | None:
    """A module that code imports when it runs, so that its digest does not depend on whether it ran. One of the user is
    imported; None if it cannot be."""
    if name in sys.modules:
        return sys.modules[name]
    if is_installed(name):
        return _not_imported(name)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit):
        return None


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[tuple[str, int]]]:
    """Names of globals, of attributes, and of modules that are imported (with the level of relative imports)."""
    names, attributes, imports, level = set(), set(), set(), 0
    constants: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            names.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTES:
            attributes.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":  # after two constants: the level, and the names
            level = next((value for value in constants[-2:] if isinstance(value, int)), 0)
            imports.add((instruction.argval, level))
        constants.append(instruction.argval if instruction.opname == "LOAD_CONST" else None)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for target, inner in zip((names, attributes, imports), _names(constant), strict=True):
                target |= inner
    return frozenset(names), frozenset(attributes), frozenset(imports)
