"""The parts of a batch: copied as a loader gives them, searched for memory that batches share, and hashed."""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from drsrobust.extend import sparse_parts

_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_NAMED = (torch.dtype, torch.layout, torch.memory_format, np.dtype)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_FROZEN = (*_SCALARS, *_NAMED, *_FUNCTIONS, tuple, frozenset)
# What forward may read of a jagged or keyed tensor of TorchRec. Its attributes also hold what it derives at first use.
_JAGGED = (
    *(
        "keys",
        "values",
        "weights_or_none",
        "lengths",
        "offsets",
        "length_per_key",
        "key_dim",
        "stride_per_key_per_rank",
    ),
    "inverse_indices_or_none",
)


class PartCopies(TorchFunctionMode):
    """Copies batches one by one, so that a loader may use their memory again. A tensor or array that has the same place and
    content in a later batch is copied once.

    Attributes:
        nbytes: of all copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple, Any] = {}  # place -> the last copy of what was there
        self.nbytes = 0

    def of(self, batch: Any) -> Any:
        """A copy of a batch."""
        arrays = [part for _, part, _ in held(batch, 0) if type(part) is np.ndarray]
        with self:
            return copy.deepcopy(batch, {id(array): self._copied(array) for array in arrays})

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__:  # copies all memory that a view is of, and refuses results of autograd
            return self._copied(args[0])
        return func(*args, **(kwargs or {}))

    def _copied(self, part: Any) -> Any:
        place = _place(part)
        last = self._last.get(place) if place else None
        if last is not None and np.array_equal(_bytes(part), _bytes(last)):
            return last
        if isinstance(part, torch.Tensor):
            duplicate = part.detach().clone().requires_grad_(part.requires_grad)
        else:
            duplicate = copy.deepcopy(part)
        self.nbytes += part.nbytes if place else 0
        if place:
            self._last[place] = duplicate
        return duplicate


def held(batch: Any, rows: int) -> Iterator[tuple[str, Any, bool]]:
    """All objects that a batch holds (not those that it makes at each call), each with its path, as `['x'][0]`, and whether it
    holds something of each of the batch's rows: by its length, or as a part of such a list or jagged tensor."""
    yield from _held(batch, rows, "", False, set())


def _held(value: Any, rows: int, path: str, of_rows: bool, visited: set[int]) -> Iterator[tuple[str, Any, bool]]:
    length = _length(value)
    sparse = isinstance(value, torch.Tensor) and value.layout is not torch.strided  # never filled in place
    of_rows = not sparse and (of_rows or (bool(path) and length == rows and not isinstance(value, tuple | dict)))
    yield path, value, of_rows
    leaf = isinstance(value, (*_SCALARS, *_NAMED, *_FUNCTIONS, torch.Tensor, np.ndarray)) or _is_table(value)
    if leaf or id(value) in visited:
        return
    visited.add(id(value))
    parts = [(f".{name}", part) for name, part in _attributes(value).items()]
    if _is_jagged(value):  # its lists of keys may be the same in all batches
        parts = [(name, part) for name, part in parts if isinstance(part, torch.Tensor)]
        lengths = value.lengths() if hasattr(type(value), "lengths") else ()
        of_rows = of_rows or bool(rows and len(lengths) and len(lengths) % rows == 0)
    elif isinstance(value, dict):
        parts += [(f"[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts += [(f"[{number}]", part) for number, part in enumerate(value)]
    for name, part in parts:
        if not isinstance(part, _SCALARS):
            yield from _held(part, rows, path + name, of_rows, visited)


def shared_rows(batches: list[Any], sizes: list[int]) -> tuple[int, int, str] | None:
    """Two batches whose rows are in the same memory, and the path of the part; None if there are none.

    Slices of one tensor share no rows, and a part that is not of rows, such as an adjacency matrix, may be the same in all."""
    owners: dict[tuple, list[tuple[int, int, int]]] = {}
    firsts: dict[tuple, int] = {}
    for number, (batch, rows) in enumerate(zip(batches, sizes, strict=True)):
        for path, part, of_rows in held(batch, rows):
            if isinstance(part, _FROZEN) or not (of_rows or not path):
                continue
            place = _place(part)
            if place is None:  # a list or a frame, which can be filled again
                key = (path, id(part)) if not path or _length(part) == rows else None
            else:
                start, device, shape, strides, _ = place
                key = (path, start, device) if shape and strides[0] else None
            if key is None:
                continue
            if (other := firsts.setdefault(key, number)) != number:
                return other, number, path
            if place is not None:
                first, step = start + min(0, strides[0]) * (shape[0] - 1), abs(strides[0])
                owners.setdefault((path, device, step, first % step), []).append((first, shape[0], number))
    for (path, _, step, _), places in owners.items():
        places.sort()
        for (start, length, number), (following, _, second) in zip(places, places[1:], strict=False):
            if following < start + length * step and number != second:
                return min(number, second), max(number, second), path
    return None


def batch_digest(value: Any, path: str = "the batch") -> str:
    """SHA-256 (hex) of a value's content: of equal values in any process the same.

    Args:
        path: what the value is called in a message.

    Raises:
        TypeError: a part whose content cannot be read, as a lock or an open file.
    """
    return _Digests().of(value, path, ())


class _Digests:
    """Digests of objects and their parts; that of an object that several parts refer to is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # with the objects, so that no two have the same id

    def of(self, value: Any, path: str, above: tuple[int, ...]) -> str:
        """SHA-256 (hex) of a value; `above` are the objects that hold it."""
        if id(value) in self._known:
            return self._known[id(value)][1]
        total = hashlib.sha256(f"{type(value).__qualname__}\n".encode())
        if isinstance(value, torch.Tensor):
            self._add_tensor(total, value, path)
        elif isinstance(value, np.ndarray):
            self._add_array(total, value, path, above)
        elif isinstance(value, np.generic):
            total.update(f"{value.dtype} {value.tobytes()!r}".encode())
        elif type(value) in _SCALARS or isinstance(value, _NAMED) or _is_of_scalars(value):
            total.update(repr(value).encode())
        elif id(value) in above:  # a reference back to what holds it
            total.update(f"up {len(above) - above.index(id(value))}".encode())
        else:
            above = (*above, id(value))
            if type(value) in (set, frozenset):
                parts = sorted(self.of(part, path, above) for part in value)
            else:
                parts = [f"{name} {self.of(part, path + name, above)}" for name, part in _parts(value, path)]
            total.update("\n".join(parts).encode())
            self._known[id(value)] = value, total.hexdigest()
        return total.hexdigest()

    def _add_array(self, total: Any, array: np.ndarray, path: str, above: tuple[int, ...]) -> None:
        total.update(f"{array.dtype} {array.shape}\n".encode())
        if array.dtype.hasobject:
            total.update(self.of(array.tolist(), path, above).encode())
        else:
            total.update(_bytes(array))
        if isinstance(array, np.ma.MaskedArray):
            total.update(_bytes(np.ma.getmaskarray(array)))

    def _add_tensor(self, total: Any, tensor: torch.Tensor, path: str) -> None:
        total.update(f"{tensor.dtype} {tensor.layout}\n".encode())
        if tensor.is_nested:
            parts = list(tensor.unbind())
        elif tensor.is_quantized:
            parts = [tensor.int_repr(), tensor.dequantize()]
        else:
            parts = [part for part in sparse_parts(tensor) if part is not tensor]
        if not tensor.is_nested:
            total.update(f"{list(tensor.shape)}\n".encode())
        if not parts and not tensor.is_meta:
            total.update(_bytes(tensor))
        for part in (*parts, *filter(None, [_attributes(tensor)])):
            total.update(self.of(part, path, ()).encode())


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """The parts of an object that decide its content."""
    if type(value) is dict:
        return [
            (f"[{key!r}]" if isinstance(key, str) else "", part) for pair in value.items() for key, part in _pair(pair)
        ]
    if type(value) in (list, tuple):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if isinstance(value, type | ModuleType | BuiltinFunctionType):
        return [("", f"{getattr(value, '__module__', '')}.{value.__name__}")]
    if isinstance(value, MethodType):
        return [("", value.__self__), ("", value.__func__)]
    if isinstance(value, FunctionType):
        return _function(value)
    if _is_jagged(value):
        jagged = [(f".{name}()", getattr(value, name)()) for name in _JAGGED if hasattr(type(value), name)]
        return jagged + [(f".{name}", part) for name, part in _attributes(value).items() if name[0] != "_"]
    kind = type(value)
    if hasattr(kind, "to_pylist"):  # tables and columns of Arrow
        return [("", str(value.schema if hasattr(kind, "schema") else value.type)), ("", value.to_pylist())]
    if _is_table(value) and hasattr(kind, "columns"):  # frames
        pairs = value.items() if hasattr(value, "items") else zip(value.columns, value.get_columns(), strict=True)
        columns = [(f"[{name!r}]", (name, *_column(column))) for name, column in pairs]
        return [*columns, (".index", getattr(value, "index", None))]
    if _is_table(value):  # columns
        labels = [(f".{name}", getattr(value, name, None)) for name in ("name", "index")]
        return [("", part) for part in _column(value)] + labels
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        if not (attributes := _attributes(value)):
            raise TypeError(
                f"{path} is a {type(value).__name__}, whose content cannot be read ({error}); forward may hold it instead"
            ) from error
        return [(f".{name}", part) for name, part in attributes.items()]
    if isinstance(reduced, str):
        return [("", reduced)]
    call, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)  # a dict, and one of slots
    named = {name: part for attributes in states if isinstance(attributes, dict) for name, part in attributes.items()}
    stored = _without_derived(value, named)
    return [
        ("", [f"{call.__module__}.{call.__qualname__}", arguments]),
        *((f".{name}", part) for name, part in stored.items()),
        *(("", part) for part in states if not isinstance(part, dict)),
        *((f"[{number}]", part) for number, part in enumerate(items or ())),
        *((f"[{key!r}]" if isinstance(key, str) else "", part) for pair in pairs or () for key, part in _pair(pair)),
    ]


def _pair(pair: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """A key, if it is no text, and its value; each with the key."""
    key, part = pair
    return [(key, part)] if isinstance(key, str) else [(key, key), (key, part)]


def _column(column: Any) -> tuple[Any, ...]:
    """What decides the content of a frame's column."""
    categories = getattr(column.dtype, "categories", None)
    return str(column.dtype), None if categories is None else list(categories), column.to_numpy()


def _function(function: FunctionType) -> list[tuple[str, Any]]:
    code = function.__code__
    constants = [part for part in code.co_consts if isinstance(part, _SCALARS)]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [("", part) for part in (code.co_code, constants, code.co_names, function.__defaults__, cells)]


def _attributes(value: Any) -> dict[str, Any]:
    """An object's attributes, in slots too, without those that properties keep."""
    if isinstance(value, _FUNCTIONS):
        return {}
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    return _without_derived(value, {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {}))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _without_derived(value: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    kind = type(value)
    return {name: part for name, part in attributes.items() if not isinstance(_of_class(kind, name), cached_property)}


def _of_class(kind: type, name: Any) -> Any:
    return getattr(kind, name, None) if isinstance(name, str) else None


def _is_jagged(value: Any) -> bool:
    """Whether a value has the methods of TorchRec's jagged and keyed tensors."""
    methods = {name for name in ("values", "lengths", "length_per_key") if callable(getattr(type(value), name, None))}
    return "values" in methods and len(methods) > 1 and not isinstance(value, torch.Tensor)


def _is_of_scalars(value: Any) -> bool:
    """Whether a value is a list or tuple of plain values, whose text is its content."""
    return type(value) in (list, tuple) and all(type(part) in _SCALARS for part in value)


def _is_table(value: Any) -> bool:
    """Whether a value is a frame, or a column or table of Arrow."""
    return hasattr(type(value), "to_pylist") or (hasattr(type(value), "to_numpy") and hasattr(type(value), "shape"))


def _length(value: Any) -> int | None:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.shape[0] if value.ndim and not getattr(value, "is_nested", False) else None
    try:
        return len(value)
    except Exception:
        return None


def _place(part: Any) -> tuple | None:
    """Where a tensor or array lies: address, device, shape, strides in bytes, dtype; None if it has no such memory."""
    if type(part) is np.ndarray and not part.dtype.hasobject and part.size:
        return part.__array_interface__["data"][0], "cpu", part.shape, part.strides, part.dtype
    if not isinstance(part, torch.Tensor) or part.layout is not torch.strided or part.is_nested or part.is_quantized:
        return None
    if part.is_meta or not part.numel() or hasattr(part, "__tensor_flatten__"):
        return None
    strides = tuple(step * part.element_size() for step in part.stride())
    return part.data_ptr(), str(part.device), tuple(part.shape), strides, part.dtype


def _bytes(part: Any) -> np.ndarray:
    """The content of a tensor or array, uint8 [bytes]; a view of it where that is possible."""
    if isinstance(part, torch.Tensor):
        part = part.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8) if part.nbytes else np.empty(0, np.uint8)
