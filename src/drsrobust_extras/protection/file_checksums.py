"""Checksums of a model's words, block by block: of a file before it is loaded (`verify`), and of a model's memory when it was
loaded and while it serves (`checksums`). They detect, and name what is wrong; the repair is to load it again."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust.extend import check_choice, check_instance, check_whole, digest, expanded, new_file
from drsrobust.injection import restore_leftovers
from drsrobust.introspection import is_sharded
from drsrobust.training import register_writer

SUFFIX = ".checksums.json"  # of the file of checksums next to a checkpoint
KINDS = {"crc32": lambda block: f"{zlib.crc32(block):08x}", "sha256": lambda block: hashlib.sha256(block).hexdigest()}
_FORMAT = "drsrobust-checksums 1"
_FOLDER = 0x10  # in the external attributes of a record of a zip archive


class Damage(NamedTuple):
    """A tensor, or a record of a file, that is wrong; the block of it (None: as a whole) and the bytes of the tensor that the
    block holds; and what is wrong with it."""

    name: str
    block: int | None
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        place = "" if self.block is None else f", block {self.block} (bytes {self.start:,} to {self.end:,})"
        return f"{self.name}{place}: {self.why}"


class DamagedError(ValueError):
    """A file that is not what was written; `damage` lists the places, and the message names the first ones."""

    def __init__(self, path: Path, damage: list[Damage]) -> None:
        more = f"; and {len(damage) - 3} more" if len(damage) > 3 else ""
        super().__init__(f"{path} is damaged: {'; '.join(map(str, damage[:3]))}{more}; fetch or write it again")
        self.damage = damage


class Verified(NamedTuple):
    """A file that is as it was written: how many records of a zip archive agree with their CRC-32, and how many blocks with the
    checksums next to the file."""

    path: Path
    records: int
    blocks: int


@dataclass(frozen=True)
class TensorSums:
    """The checksums of one tensor: its dtype and shape, and the sum of each block, as hexadecimal text."""

    dtype: str
    shape: tuple[int, ...]
    sums: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Checksums:
    """Checksums of tensors, in blocks of bytes as they lie in memory, row by row; `checksums` makes them.

    Attributes:
        tensors: name -> its checksums.
        kind: `crc32` or `sha256`.
        block: bytes of a block.
    """

    tensors: Mapping[str, TensorSums]
    kind: str
    block: int

    def __repr__(self) -> str:
        count = sum(len(about.sums) for about in self.tensors.values())
        return f"<Checksums ({self.kind}) of {len(self.tensors)} tensors in {count} blocks of {self.block:,} bytes>"

    def check(self, model: nn.Module | Mapping[str, torch.Tensor]) -> list[Damage]:
        """What differs now from what was summed, in the order of the tensors: missing and further ones, other dtypes and
        shapes, and blocks; empty if nothing does.

        Args:
            model: a module, or tensors by name as in its state dict.
        """
        tensors = self._matched(_tensors(model))
        damage = [
            _whole(name, "it is not among those that were summed") for name in tensors if name not in self.tensors
        ]
        return damage + [found for name in self.tensors for found in self._of(name, tensors) if found is not None]

    def scrubber(self, model: nn.Module) -> Iterator[Damage | None]:
        """Checks a model while it serves, one block at each `next`, round after round without an end: the damage, or None. A
        parameter that was replaced meanwhile is checked as it is now, from its first block on; of one that is not contiguous a
        copy is checked, made when its first block is.

        Example:
            >>> layer = nn.Linear(64, 64)
            >>> scrubber = checksums(layer, block=4096).scrubber(layer)
            >>> with torch.no_grad():
            ...     layer.weight[40, 0] += 1
            >>> [next(scrubber) for _ in range(5)][2]
            Damage(name='weight', block=2, start=8192, end=12288, why='its crc32 differs')
        """
        while True:
            for name in self.tensors:
                place: int | None = -1
                while place != (place := _place(model, name)):
                    for found in self._of(name, self._matched(_tensors(model))):
                        yield found
                        if place != _place(model, name):
                            break

    def _matched(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors by the names that were summed, where theirs are others only by a wrapper (torch.compile, DataParallel)."""
        others = {_plain(name): name for name in self.tensors if name not in tensors}
        return {
            name if name in self.tensors else others.get(_plain(name), name): tensor for name, tensor in tensors.items()
        }

    def _of(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[Damage | None]:
        """For each block of one tensor (once for a tensor that is another) its damage, or None."""
        about, tensor = self.tensors[name], tensors.get(name)
        if tensor is None:
            yield _whole(name, "it is missing")
        elif (found := (_dtype(tensor), tuple(tensor.shape))) != (about.dtype, about.shape):
            yield _whole(name, f"it is {found[0]} {list(found[1])}, and was {about.dtype} {list(about.shape)}")
        else:
            for number, (block, expected) in enumerate(zip(_blocks(name, tensor, self.block), about.sums, strict=True)):
                start = number * self.block
                wrong = Damage(name, number, start, start + len(block), f"its {self.kind} differs")
                yield None if KINDS[self.kind](block) == expected else wrong

    def save(self, path: str | Path) -> None:
        """Writes JSON, complete or not at all. `verify("model.pt")` reads `model.pt.checksums.json`."""
        tensors = {name: [about.dtype, list(about.shape), list(about.sums)] for name, about in self.tensors.items()}
        content: dict[str, Any] = {"format": _FORMAT, "kind": self.kind, "block": self.block, "tensors": tensors}
        with new_file(expanded("path", path)) as part:
            part.write_text(json.dumps(content | {"sha256": digest(content)}))

    @classmethod
    def load(cls, path: str | Path) -> "Checksums":
        """Reads a file of `save`.

        Raises:
            ValueError: not such a file, or a damaged one, by its own SHA-256.
        """
        path = expanded("path", path)
        try:
            content = json.loads(path.read_text())
            if content.pop("sha256") != digest(content) or content["format"] != _FORMAT:
                raise ValueError(f"its SHA-256 is wrong, or it is not {_FORMAT!r}")
            tensors = {
                name: TensorSums(dtype, tuple(shape), tuple(sums))
                for name, (dtype, shape, sums) in content["tensors"].items()
            }
            return cls(tensors, content["kind"], content["block"])
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} holds no checksums of this version, or is damaged: {error}") from error


def checksums(model: nn.Module | Mapping[str, torch.Tensor], *, kind: str = "crc32", block: int = 1 << 20) -> Checksums:
    """The checksums of a model's parameters and persistent buffers, as its state dict names them; errors that an interrupted
    `with` left are undone first.

    Args:
        model: a module without errors, or tensors by name, as the file of a checkpoint holds them.
        kind: `crc32` (zlib's), which notices every single wrong bit, and all but 2^-32 of other accidents; or `sha256`,
            which chosen changes do not pass either, while their author cannot change the file of checksums.
        block: bytes of a block, which is what a check names.

    Raises:
        ValueError: an unknown kind, a block under 1 byte, or a model without tensors or with one that has no words of its own
            (sparse, quantized or packed, on the meta device, sharded over ranks).
    """
    check_choice("kind", kind, KINDS)
    check_whole("block", block, 1)
    if isinstance(model, nn.Module):
        restore_leftovers(model)
    tensors = {
        name: TensorSums(
            sums=tuple(map(KINDS[kind], _blocks(name, one, block))), dtype=_dtype(one), shape=tuple(one.shape)
        )
        for name, one in _tensors(model).items()
    }
    if not any(about.sums for about in tensors.values()):
        raise ValueError(f"model must hold a tensor with words, got {type(model).__name__} without")
    return Checksums(tensors, kind, block)


def verify(path: str | Path) -> Verified:
    """Checks a file of a checkpoint before it is loaded: by the CRC-32 of each record, which `torch.save` and `numpy.savez`
    write and `torch.load` does not check, and by the checksums next to it (`model.pt.checksums.json`, of `Checksums.save`).

    Args:
        path: of a file of `torch.save` (it is loaded with `weights_only=True`, and only to compare checksums), `.safetensors`
            or `.npz`.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it is not what was written; the message names records, tensors and blocks.
        ValueError: it holds no checksums, and there are none next to it; or there are, and it holds other things than tensors
            by name, as a pickled or scripted module.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.pt"
        >>> torch.save(nn.Linear(64, 64).state_dict(), path)
        >>> verify(path).records > 2
        True
        >>> content = bytearray(path.read_bytes())
        >>> content[len(content) // 2] ^= 1
        >>> _ = path.write_bytes(content)
        >>> verify(path)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        drsrobust_extras.protection.file_checksums.DamagedError: ...model.pt is damaged: record model/data/0 (weight): ...
    """
    path = expanded("path", path)
    with open(path, "rb") as file:  # a .safetensors file may begin with any length of its header
        is_zip = path.suffix != ".safetensors" and (file.read(4) == b"PK\3\4" or zipfile.is_zipfile(path))
    records, damage = _records(path) if is_zip else (0, [])
    if damage:
        raise DamagedError(path, damage)
    sums_file = path.with_name(path.name + SUFFIX)
    if not sums_file.is_file():
        if is_zip:
            return Verified(path, records, 0)
        raise ValueError(
            f"{path} holds no checksums, and there is no {sums_file.name}; dr.checksums(model).save(...) writes it"
        )
    sums = Checksums.load(sums_file)
    try:
        tensors = _in_file(path, set(sums.tensors), is_zip)
    except Exception as error:
        why = str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
        of_reader = isinstance(error, RuntimeError) and "TorchScript" not in why  # torch.load's, of a wrong archive
        if is_zip and not of_reader:  # its records agree with their CRC-32
            raise ValueError(
                f"{path} holds other things than tensors by name ({why}); load it, then "
                f"Checksums.load({sums_file.name!r}).check(model)"
            ) from error
        raise DamagedError(path, [_whole("the file", f"it cannot be read ({why})")]) from error
    if damage := sums.check(tensors):
        raise DamagedError(path, damage)
    return Verified(path, records, sum(len(about.sums) for about in sums.tensors.values()))


def _records(path: Path) -> tuple[int, list[Damage]]:
    """How many records of a zip archive agree with their CRC-32, and those that do not."""
    damage = []
    try:
        with zipfile.ZipFile(path) as file:
            entries, count = file.infolist(), _count(path)
            if count not in (len(entries), 0xFFFF):  # the most that it can say
                raise ValueError(f"it holds {len(entries)} records, and should hold {count}")
            for entry in entries:
                try:
                    with file.open(entry) as record:
                        while record.read(1 << 20):
                            pass
                    if entry.external_attr & _FOLDER and not entry.is_dir():
                        raise ValueError("it has the mark of a folder, whose content torch.load does not read")
                except Exception as error:  # of another CRC, name or length, or of a method that it does not have
                    damage.append((entry, error))
    except Exception as error:
        return 0, [_whole("the list of records", str(error))]
    if not damage:
        return len(entries), []
    if len(damage) == sum(entry.file_size > 0 for entry in entries) > 1:  # of nothing any sum is right
        why = f"{damage[0][1]}; was it written with torch.serialization.set_crc32_options(False)?"
        return 0, [_whole("every record", why)]
    names = _names_in(path)
    return len(entries), [
        _whole(f"record {one.filename}" + names.get(one.header_offset, ""), str(error)) for one, error in damage
    ]


def _count(path: Path) -> int:
    """How many records the end of a zip archive says that there are; a wrong length in their list hides some from `zipfile`."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16) - 22))
        end = file.read().rpartition(b"PK\5\6")[2]
    return int.from_bytes(end[6:8], "little")


def _names_in(path: Path) -> dict[int, str]:
    """Where the records of a file of `torch.save` begin -> the tensors in them, as text; empty where nothing says so."""
    try:
        with zipfile.ZipFile(path) as file:
            starts = np.array(sorted(entry.header_offset for entry in file.infolist()))
        content, names = torch.load(path, map_location="meta", weights_only=True), {}
        for name, tensor in _named(content).items():
            offset = tensor.untyped_storage()._checkpoint_offset
            names.setdefault(int(starts[np.searchsorted(starts, offset) - 1]), []).append(name)
        return {start: f" ({', '.join(of)})" for start, of in names.items()}
    except Exception:  # its list of tensors may be what is damaged
        return {}


def _in_file(path: Path, names: set[str], is_zip: bool) -> dict[str, torch.Tensor]:
    """The tensors of a file. Of dictionaries in dictionaries, as of model and optimizer, those of the one that holds most of
    the names."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            same = file.metadata() or {}  # of `save_model`: other name of a tensor -> its name in the file
            return {name: found[same[name]] for name in names if name not in found and same.get(name) in found} | found
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    if not isinstance(content, Mapping):
        raise TypeError(f"it is a {type(content).__name__}")
    return max(map(_named, _dictionaries(content)), key=lambda tensors: len(names & set(tensors)))


def _dictionaries(content: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
    yield content
    for part in content.values():
        if isinstance(part, Mapping):
            yield from _dictionaries(part)


def _named(content: Any, start: str = "") -> dict[str, torch.Tensor]:
    """The tensors in a dictionary of dictionaries, by their keys joined by dots."""
    found = {}
    for key, part in content.items():
        found |= _named(part, f"{start}{key}.") if isinstance(part, Mapping) else {}
        found |= {f"{start}{key}": part} if isinstance(part, torch.Tensor) else {}
    return found


def _tensors(model: nn.Module | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    check_instance("model", model, (nn.Module, Mapping), "a module, or tensors by name")
    if isinstance(model, Mapping):
        return {name: check_instance(str(name), tensor, torch.Tensor, "a tensor") for name, tensor in model.items()}
    if is_sharded(model):
        raise ValueError(
            f"this {type(model).__name__} is sharded over ranks; take the checksums of each rank's own tensors"
        )
    state = type(model).state_dict(model)  # `model.state_dict` warns while injected errors are in the model
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) and _holds_tensors(value):
            raise ValueError(
                f"{name} is a {type(value).__name__} of packed or nested tensors, which no checksum covers"
            )
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def _holds_tensors(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return isinstance(value, torch.Tensor | torch.ScriptObject) or any(map(_holds_tensors, parts))


def _plain(name: str) -> str:
    """The name of a tensor without wrappers around the model or its parts."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod").removeprefix("module.")


def _place(model: Any, name: str) -> int | None:
    """Where the words of a model's tensor lie; None where its name is no path of attributes."""
    for part in name.split("."):
        model = getattr(model, part, None)
    return model.data_ptr() if isinstance(model, torch.Tensor) else None


def _blocks(name: str, tensor: torch.Tensor, size: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor, row by row, in blocks."""
    try:
        if tensor.is_quantized:
            raise TypeError("its words have a scale")
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), size):
            yield flat[start : start + size].cpu().numpy()
    except (NotImplementedError, RuntimeError, TypeError) as error:
        kind = f"{type(tensor).__name__} ({tensor.layout}, {_dtype(tensor)}, {tensor.device})"
        raise ValueError(f"{name} is a {kind}, which has no words of its own to sum") from error


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _whole(name: str, why: str) -> Damage:
    return Damage(name, None, 0, 0, why)


@register_writer
def _write_checksums(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Checksums next to the weights of this library's checkpoints."""
    checksums(tensors).save(file.with_name(file.name + SUFFIX))
