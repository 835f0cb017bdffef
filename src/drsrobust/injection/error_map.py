"""Error maps: the sampled errors of one trial."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust._choices import check_choice
from drsrobust._files import expanded, new_file
from drsrobust._html import facts
from drsrobust.injection.apply import AppliedMap, apply_for_good
from drsrobust.injection.error_clock import VERSION
from drsrobust.injection.number_formats import Format, bit_set, format_named
from drsrobust.injection.stored import stored
from drsrobust.introspection.devices import HeldWords

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = 2  # of saved files
# The attributes that are saved, with their types; null where None is allowed.
_ARRAYS = {"tensor": np.int32, "word": np.int64, "mask": np.uint64, "original": np.uint64, "depends": np.bool_}
_NUMBERS = {"eligible_bits": int, "requested_rate": float, "n_sites": int, "n_events": int, "clock": int, "rank": int}
_ON_DEVICE = ("tensor", "word", "mask")  # arrays that a device may hold
_BY = ("component", "tensor", "row", "bit", "field")


@dataclass(frozen=True)
class Fingerprint:
    """The name, shape (in words) and format that a targeted tensor must have for a map to fit; its component is for reports."""

    name: str
    shape: tuple[int, ...]
    format: str
    component: str


@dataclass(frozen=True)
class MapSource:
    """How an error map was drawn: the error model, and the targeted rows (None: all) of each tensor. Protections draw the same
    errors over their own memory."""

    error_model: Any
    rows: Mapping[str, np.ndarray | None]


class _Fetched:
    """An array of an error map's words, which is fetched from the device that holds them when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, error_map: "ErrorMap | None", owner: type) -> np.ndarray:
        if error_map is None:
            raise AttributeError(self._name)  # so the field has no default
        values = vars(error_map)
        if values[self._name] is None and error_map.on_device is not None:
            values[self._name] = error_map.on_device.fetched(self._name)
        return values[self._name]

    def __set__(self, error_map: "ErrorMap", array: np.ndarray) -> None:
        vars(error_map)[self._name] = array


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """Which bits of which words are wrong.

    Attributes:
        tensor: int32 [n], index into `targets`.
        word: int64 [n], flat index of the word in its tensor.
        mask: uint64 [n], XOR mask of the word. Entries are sorted by (tensor, word), one per word.
        fingerprint: the targeted tensors, in the order of `targets`.
        seed: what it was drawn with.
        error_model: what it was drawn from, as text.
        eligible_bits: how many bits could have been hit; None for a union (`a | b`) of maps whose targets overlap.
        requested_rate: expected share of them; None where it depends on the words in memory, or is not known.
        n_sites, n_events: of an error model with one rate, the number of places (bits, words, rows) where errors could begin,
            and of places where they did. `n_events` is Binomial(`n_sites`, rate), or a fixed number.
        original: uint64 [n], the words that masks were made from (`StuckAt`, `RandomValue`); else None.
        depends: bool [n], which masks depend on `original`; None: all.
        clock: version of the error clock that drew it; None: of several.
        rank: of a sharded model, whose replicas are hit; None: every one.
        log: transient errors by call; None without transient targets.
        sources: how it was drawn, one for each summand; not saved, so empty for a loaded map.
        on_device: its words on the device that drew them, from where `tensor`, `word` and `mask` are fetched when read;
            None: they were here from the start.
    """

    tensor: np.ndarray
    word: np.ndarray
    mask: np.ndarray
    fingerprint: tuple[Fingerprint, ...]
    seed: int
    error_model: str
    eligible_bits: int | None
    requested_rate: float | None = None
    n_sites: int | None = None
    n_events: int | None = None
    original: np.ndarray | None = None
    depends: np.ndarray | None = None
    clock: int | None = VERSION
    rank: int | None = None
    log: Any = None
    sources: tuple[MapSource, ...] = field(default=(), repr=False)
    on_device: HeldWords | None = field(default=None, init=False, repr=False)
    if not TYPE_CHECKING:  # where they would count as defaults
        tensor, word, mask = _Fetched(), _Fetched(), _Fetched()

    def lying_on(self, words: HeldWords) -> "ErrorMap":
        """This map with words that lie on a device. Their arrays are fetched when they are first read."""
        error_map = replace(self)
        vars(error_map).update(dict.fromkeys(_ON_DEVICE), on_device=words)
        return error_map

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled with its arrays, which other machines can read."""
        return vars(self) | {name: getattr(self, name) for name in _ON_DEVICE} | {"on_device": None}

    def __len__(self) -> int:
        """How many words are hit (in memory; for transient errors see `log`)."""
        return int(self._ends[-1])

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targeted tensors."""
        return tuple(entry.name for entry in self.fingerprint)

    @property
    def words(self) -> int:
        """How many words are hit, as `len`."""
        return len(self)

    @cached_property
    def bits(self) -> int:
        """How many bits are flipped."""
        return int(np.bitwise_count(self.mask).sum()) if self.on_device is None else self.on_device.bits

    @cached_property
    def _ends(self) -> np.ndarray:
        """Where the entries of each tensor begin, and the end of the last one's: int64 [tensors + 1]."""
        if self.on_device is not None:
            return self.on_device.ends
        return np.searchsorted(self.tensor, np.arange(len(self.fingerprint) + 1))

    @property
    def realised_rate(self) -> float | None:
        """Flipped bits over eligible bits; None where the latter are not known."""
        if not self.eligible_bits:
            return None if self.eligible_bits is None else 0.0
        return self.bits / self.eligible_bits

    def __repr__(self) -> str:
        text = f"<ErrorMap {self.error_model}, seed {self.seed}: "
        if self.fingerprint or self.log is None:
            text += f"{self.bits:,} bits in {len(self):,} words of {len(self.targets)} tensors"
            text += "" if self.realised_rate is None else f", rate {self.realised_rate:.3g}"
        if self.log is not None:
            text += f"{'; ' if self.fingerprint else ''}{self.log}"
        return text + ">"

    def _repr_html_(self) -> str:
        by_component = self.counts("component") if len(self) else {}
        return facts(
            "Error map",
            {
                "error model": self.error_model,
                "seed": self.seed,
                "flipped bits": f"{self.bits:,} of {self.eligible_bits:,}" if self.eligible_bits else f"{self.bits:,}",
                "bit error rate": None if self.realised_rate is None else f"{self.realised_rate:.3g}",
                "words": f"{len(self):,} in {len(self.targets)} tensors",
                **{f"bits in {name}": f"{count:,}" for name, count in by_component.items()},
                "while the model runs": self.log,
            },
        )

    def by_tensor(self) -> Iterator[tuple[int, slice]]:
        """The index of each tensor that is hit, and its entries."""
        for index, (start, end) in enumerate(pairwise(self._ends.tolist())):
            if end > start:
                yield index, slice(start, end)

    @cached_property
    def _formats(self) -> tuple[Format, ...]:
        return tuple(format_named(entry.format) for entry in self.fingerprint)

    def frame(self) -> "pd.DataFrame":
        """One row per word: tensor, component, row (of the tensor's first dimension), word, mask, bits (how many are flipped
        in it)."""
        import pandas as pd

        row_words = np.array([prod(entry.shape[1:]) for entry in self.fingerprint] or [1], np.int64)
        return pd.DataFrame(
            {
                "tensor": np.array(self.targets, object)[self.tensor],
                "component": np.array([entry.component for entry in self.fingerprint], object)[self.tensor],
                "row": self.word // row_words[self.tensor],
                "word": self.word,
                "mask": self.mask,
                "bits": np.bitwise_count(self.mask).astype(np.int64),
            }
        )

    def counts(self, by: str) -> "pd.Series":
        """How many bits are flipped, by `component`, `tensor`, `row` (of each tensor), `bit` (0 the lowest of its word) or
        `field` (sign, exponent, mantissa, value, scale, bias, padding). Components and tensors without errors count 0; rows,
        bits and fields without errors are absent.

        Example:
            >>> import drsrobust as dr
            >>> from torch import nn
            >>> with dr.inject(nn.Linear(9, 9), dr.FixedCount(5, bits="sign"), seed=1) as error_map:
            ...     print(error_map.counts("bit").to_dict(), error_map.counts("tensor").to_dict())
            {31: 5} {'bias': 1, 'weight': 4}
        """
        import pandas as pd

        check_choice("way to count", by, _BY)
        if by in ("bit", "field"):
            counts: dict[Any, int] = {}
            for index, entries in self.by_tensor():
                tensor_format = self._formats[index]
                unit_word = self.word[entries] % tensor_format.period
                keys: Iterable[Any] = range(tensor_format.width) if by == "bit" else tensor_format.fields
                for key in keys:
                    chosen = np.uint64(1 << key) if by == "bit" else tensor_format.fields[key][unit_word]
                    if count := int(np.bitwise_count(self.mask[entries] & chosen).sum()):
                        counts[key] = counts.get(key, 0) + count
            return pd.Series(dict(sorted(counts.items())), dtype=np.int64, name="bits").rename_axis(by)
        frame = self.frame()
        if by == "row":
            return frame.groupby(["tensor", "row"])["bits"].sum()
        names = sorted({getattr(entry, "name" if by == "tensor" else by) for entry in self.fingerprint})
        return frame.groupby(by)["bits"].sum().reindex(pd.Index(names, name=by), fill_value=0)

    def restrict(self, bits: Iterable[int | str] | str) -> "ErrorMap":
        """The errors in these bits alone.

        Args:
            bits: numbers (0 the lowest) and fields of the format, as in `BitFlip`.

        Raises:
            ValueError: a bit that a hit tensor's words do not have.
        """
        chosen = bit_set(bits)
        mask = np.zeros_like(self.mask)
        for index, entries in self.by_tensor():
            tensor_format = self._formats[index]
            mask[entries] = (
                self.mask[entries] & tensor_format.eligible(chosen)[self.word[entries] % tensor_format.period]
            )
        return self._part(mask != 0, mask)

    def drop(self, words: np.ndarray) -> "ErrorMap":
        """The errors without those of some words.

        Args:
            words: bool [len], true for entries to drop (as `error_map.frame().row < 100`).

        Raises:
            ValueError: another shape or type.
        """
        words = np.asarray(words)
        if words.shape != (len(self),) or words.dtype != bool:
            raise ValueError(
                f"words is {words.dtype} {list(words.shape)}; it must be bool [{len(self)}], true for entries to drop"
            )
        return self._part(~words, self.mask)

    def _part(self, chosen: np.ndarray, mask: np.ndarray) -> "ErrorMap":
        arrays = {name: getattr(self, name) for name in _ARRAYS} | {"mask": mask}
        return replace(self, **{name: array[chosen] for name, array in arrays.items() if array is not None})

    def with_words(self, tensor: np.ndarray, word: np.ndarray, mask: np.ndarray) -> "ErrorMap":
        """The same map with other errors, as protected memory leaves them; a code may miscorrect words that were right.

        Args:
            tensor: int32 [n], index into `targets`.
            word: int64 [n], flat index; entries in any order, one per word.
            mask: uint64 [n]; entries with 0 are dropped.
        """
        ascending = (tensor[1:] > tensor[:-1]) | ((tensor[1:] == tensor[:-1]) & (word[1:] > word[:-1]))
        if not ascending.all():
            order = np.lexsort((word, tensor))
            tensor, word, mask = tensor[order], word[order], mask[order]
        is_wrong, arrays = mask != 0, {"tensor": tensor, "word": word, "mask": mask}
        left: dict[str, Any] = {name: array[is_wrong].astype(_ARRAYS[name]) for name, array in arrays.items()}
        return replace(self, **left, original=None, depends=None)

    def __or__(self, other: "ErrorMap") -> "ErrorMap":
        """The errors of either map: the union of their flips.

        Raises:
            ValueError: the maps were made for different models (a tensor of both has two shapes or formats), or for one model
                in two states.
        """
        return union([self, other]) if isinstance(other, ErrorMap) else NotImplemented

    @contextmanager
    def applied(self, model: nn.Module, *, optimizer: Any = None) -> Iterator["ErrorMap"]:
        """Applies the errors inside the block; afterwards every word is what it was.

        Args:
            model: the one it was drawn for, or another with the same tensors.
            optimizer: whose states the map hits, if it does.

        Raises:
            ErrorMapMismatch: a targeted tensor is missing in the model or has another shape or format, or a word that a mask
                was made from differs.
        """
        applied = AppliedMap(self, stored(model, optimizer), model)
        try:
            applied.apply()
            yield self
        finally:
            applied.undo()

    def apply(self, model: nn.Module, *, optimizer: Any = None) -> None:
        """Applies the errors for good; `applied` undoes them."""
        apply_for_good(self, stored(model, optimizer))

    def save(self, path: str | Path) -> None:
        """Writes an .npz file (arrays and JSON, no pickle), complete or not at all, without the log of transient errors, which
        the same seed reproduces."""
        header: dict[str, Any] = {"format": _FORMAT, "seed": self.seed, "error_model": self.error_model}
        header |= {name: getattr(self, name) for name in _NUMBERS}
        header["arrays"] = [name for name in _ARRAYS if getattr(self, name) is not None]
        header["fingerprint"] = [[e.name, list(e.shape), e.format, e.component] for e in self.fingerprint]
        arrays = {name: getattr(self, name) for name in header["arrays"]}
        with new_file(expanded("path", path)) as part, open(part, "wb") as handle:
            np.savez_compressed(handle, about=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "ErrorMap":
        """Reads a file of `save`.

        Raises:
            ValueError: not a file of an error map, or a damaged one.
        """
        path = expanded("path", path)
        try:
            with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
                header = json.loads(file["about"].tobytes())
                if (version := header.pop("format")) != _FORMAT:
                    raise ValueError(f"format {version}; this version reads format {_FORMAT}")
                header = {"clock": 1, "rank": None} | header  # of versions before 0.8
                header["fingerprint"] = tuple(Fingerprint(n, tuple(s), f, c) for n, s, f, c in header["fingerprint"])
                names = header.pop("arrays")
                if set(file.files) != {"about", *names}:
                    raise ValueError(f"it should hold {', '.join(names)} and holds {', '.join(file.files)}")
                header |= {name: file[name] for name in names}
                if extra := set(header) - {"fingerprint", "seed", "error_model", *_NUMBERS, *_ARRAYS}:
                    raise ValueError(f"it holds {', '.join(sorted(extra))}, which no error map has")
                loaded = cls(**header)
                loaded._check()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} is not an error map of this version, or is damaged: {error}") from error
        return loaded

    def _check(self) -> None:
        """Raises ValueError for attributes that no error map has."""
        for name, kind in {"seed": int, "error_model": str, **_NUMBERS}.items():
            value = getattr(self, name)
            if value is None and name in _NUMBERS:
                continue
            is_kind = type(value) is kind or (kind is float and type(value) is int)
            if not is_kind or (kind is not str and not 0 <= value <= (1 if kind is float else 2**64 - 1)):
                raise ValueError(f"{name} is {value!r}")
        for name, kind in _ARRAYS.items():
            array = getattr(self, name)
            if array is not None and (array.dtype != kind or array.shape != self.word.shape):
                raise ValueError(f"{name} is {array.dtype} {list(array.shape)}")
        sizes = np.array([prod(entry.shape) for entry in self.fingerprint] or [0], np.int64)
        if len(self) and not (self.tensor.min() >= 0 and self.tensor.max() < len(self.fingerprint)):
            raise ValueError("an entry names a tensor that is not in the fingerprint")
        if (self.word < 0).any() or (self.word >= sizes[self.tensor]).any():
            raise ValueError("a word lies outside of its tensor")
        tensor_step, word_step = np.diff(self.tensor.astype(np.int64)), np.diff(self.word)
        if not ((tensor_step > 0) | ((tensor_step == 0) & (word_step > 0))).all():
            raise ValueError("entries are not sorted, or a word has two entries")
        widths = np.array([tensor_format.width for tensor_format in self._formats] or [64], np.uint64)[self.tensor]
        if ((self.mask >> (widths - np.uint64(1))) > 1).any() or (self.mask == 0).any():
            raise ValueError("a mask is empty, or wider than its word")


def union(maps: list[ErrorMap]) -> ErrorMap:
    """The union of at least one map's errors. Its error model is their sum; seed and log are the first one's.

    Raises:
        ValueError: the maps do not fit together.
    """
    fingerprints: dict[str, Fingerprint] = {}
    for entry in (entry for error_map in maps for entry in error_map.fingerprint):
        other = fingerprints.setdefault(entry.name, entry)
        if (other.shape, other.format) != (entry.shape, entry.format):
            raise ValueError(
                f"the maps were made for different models: {entry.name!r} is {list(other.shape)} {other.format} in one, "
                f"{list(entry.shape)} {entry.format} in the other"
            )
    if len(hit_ranks := {error_map.rank for error_map in maps}) > 1:
        raise ValueError(
            f"the maps hit replicas of different ranks: {', '.join(map(str, hit_ranks))}; apply them one by one"
        )
    names = sorted(fingerprints)
    index = {name: number for number, name in enumerate(names)}
    tensor = np.concatenate([np.array([index[name] for name in m.targets] or [0], np.int32)[m.tensor] for m in maps])
    word, mask = (np.concatenate([getattr(m, name) for m in maps]) for name in ("word", "mask"))
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    original = depends = None
    if any(m.original is not None for m in maps):
        original = np.concatenate([np.zeros(len(m), np.uint64) if m.original is None else m.original for m in maps])
        depends = np.concatenate(
            [np.full(len(m), m.original is not None) if m.depends is None else m.depends for m in maps]
        )
        original, depends = original[order], depends[order]
        run = np.cumsum(np.isin(np.arange(len(word)), starts)) - 1
        value = np.zeros(len(starts), np.uint64)
        value[run[depends]] = original[depends]
        if (value[run[depends]] != original[depends]).any():
            raise ValueError("the maps were made for two states of a model: a word that both were made from differs")
        original, depends = value, np.logical_or.reduceat(depends, starts) if len(starts) else depends
    if len(starts):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    # Where targets overlap, bits that are eligible in both would count twice.
    targets = [name for error_map in maps for name in error_map.targets]
    sizes: list[Any] = [error_map.eligible_bits for error_map in maps]
    return ErrorMap(
        tensor,
        word,
        mask,
        tuple(fingerprints[name] for name in names),
        maps[0].seed,
        " + ".join(sorted(error_map.error_model for error_map in maps)),
        sum(sizes) if len(set(targets)) == len(targets) and None not in sizes else None,
        original=original,
        depends=depends,
        rank=maps[0].rank,
        clock=maps[0].clock if len({error_map.clock for error_map in maps}) == 1 else None,
        log=next((error_map.log for error_map in maps if error_map.log is not None), None),
        sources=tuple(source for error_map in maps for source in error_map.sources),
    )


def first_of_runs(tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Index of the first entry of each word, in entries sorted by (tensor, word)."""
    if not len(word):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], (word[1:] != word[:-1]) | (tensor[1:] != tensor[:-1]))))
