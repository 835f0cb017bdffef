"""What transient errors hit, call by call.

The sampled errors of one trial: sparse, ordered, saved without pickle, applied and undone exactly.

The union of error maps."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from drsrobust._environment import unknown
from drsrobust._files import new_file
from drsrobust.injection.address_space import stored
from drsrobust.injection.apply import LOCK, Application, hits
from drsrobust.injection.number_formats import Format, bit_set, format_named

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.injection.error_models import ErrorModel


@dataclass(frozen=True, eq=False)
class Hit:
    """The errors of one call (of one sample of it).

    Attributes:
        where: what was hit, as `dense`, `ids`, `over_arch.model.0` or `gradient of 0.weight`.
        call: number of the call, from 0.
        sample: number of the sample over all calls, from 0; None where errors are drawn per call.
        word: int64 [n], flat index of the word in the tensor of that call (or in the sample's words).
        mask: uint64 [n], XOR mask of the word.
    """

    where: str
    call: int
    sample: int | None
    word: np.ndarray
    mask: np.ndarray


@dataclass(eq=False)
class Log:
    """All calls of all transient targets of one injection. It grows while the model is used.

    Attributes:
        pairs: how many transient (error model, target) pairs it is of.
        hits: calls (or samples) with at least one error, in the order in which they came.
        calls: how many calls there were, by what could be hit.
        eligible_bits: over all calls.
        places, events: over all calls, as in `ErrorMap`; None for sums of error models, and where several pairs are drawn.
    """

    pairs: int = 1
    hits: list[Hit] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    eligible_bits: int = 0
    n_sites: int | None = 0
    n_events: int | None = 0

    def __post_init__(self) -> None:
        if self.pairs > 1:
            self.n_sites = self.n_events = None

    @property
    def words(self) -> int:
        """How many words were hit."""
        return sum(len(hit.word) for hit in self.hits)

    @property
    def bits(self) -> int:
        """How many bits were flipped."""
        return sum(int(np.bitwise_count(hit.mask).sum()) for hit in self.hits)

    @property
    def realised_rate(self) -> float:
        """Flipped bits over eligible bits."""
        return self.bits / self.eligible_bits if self.eligible_bits else 0.0

    def __str__(self) -> str:
        return f"{self.bits:,} bits in {self.words:,} words in {sum(self.calls.values()):,} calls"

    def frame(self) -> "pd.DataFrame":
        """One row per word: where, call, sample (absent where errors are drawn per call), word, mask."""
        import pandas as pd

        sizes = [len(hit.word) for hit in self.hits]
        columns = {
            "where": np.repeat(np.array([hit.where for hit in self.hits], object), sizes),
            "call": np.repeat(np.array([hit.call for hit in self.hits], np.int64), sizes),
            "sample": pd.array(
                [h.sample for h, n in zip(self.hits, sizes, strict=True) for _ in range(n)], pd.Int64Dtype()
            ),
            "word": np.concatenate([np.empty(0, np.int64), *(hit.word for hit in self.hits)]),
            "mask": np.concatenate([np.empty(0, np.uint64), *(hit.mask for hit in self.hits)]),
        }
        return pd.DataFrame(columns)


_FORMAT = 2  # of saved files
_ARRAYS = ("tensor", "word", "mask", "original", "depends")
_SAVED = {
    *_ARRAYS,
    "fingerprint",
    "seed",
    "error_model",
    "eligible_bits",
    "requested_rate",
    "n_sites",
    "n_events",
    "drawn_bits",
}
_BY = ("component", "tensor", "row", "bit", "field")


@dataclass(frozen=True)
class Fingerprint:
    """What a targeted tensor must be for a map to fit: name, shape (in words), format; and its component, for reports."""

    name: str
    shape: tuple[int, ...]
    format: str
    component: str


class Source(NamedTuple):
    """What an error map was drawn from: an error model, over which rows of each targeted tensor (None: all). By it the same
    errors are drawn over what a protection stores itself."""

    error_model: "ErrorModel"
    rows: Mapping[str, np.ndarray | None]


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
        requested_rate: expected share of them; None where it depends on what the memory holds, or is not known.
        places, events: of an error model with one rate: how many places (bits, words, rows) its errors could begin at, and at
            how many they did. Events are Binomial(places, rate), or of a fixed number.
        original: uint64 [n], the words as they were, where masks were made from them (`StuckAt`, `RandomValue`); else None.
        depends: bool [n], which entries were; None: all, where `original` is there.
        log: what transient errors hit, call by call; None where there are none.
        sources: what it was drawn from, one for each summand; none for a loaded map.
        detected, repaired: whether a protection of the memory noticed errors, and put right all that it noticed (see
            `noted`); None where none was there that could tell. Like `sources` no part of what is saved.
    """

    tensor: np.ndarray
    word: np.ndarray
    mask: np.ndarray
    fingerprint: tuple[Fingerprint, ...]
    seed: int
    error_model: str
    eligible_bits: int | None
    requested_rate: float | None
    n_sites: int | None = None
    n_events: int | None = None
    original: np.ndarray | None = None
    depends: np.ndarray | None = None
    log: Log | None = None
    sources: tuple[Source, ...] = field(default=(), repr=False)
    detected: bool | None = None
    repaired: bool | None = None
    drawn_bits: int | None = field(default=None, repr=False)
    _drawn: "ErrorMap | None" = field(default=None, repr=False)

    def __len__(self) -> int:
        """How many words are hit (in memory; what transient errors hit is in `log`)."""
        return len(self.word)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targeted tensors."""
        return tuple(entry.name for entry in self.fingerprint)

    @property
    def words(self) -> int:
        """How many words are hit, as `len`."""
        return len(self.word)

    @cached_property
    def bits(self) -> int:
        """How many bits are flipped."""
        return int(np.bitwise_count(self.mask).sum())

    @property
    def drawn(self) -> "ErrorMap":
        """The map that this one was made from by `restrict` or `drop`; itself, when it was not. (A loaded map does not know
        it any more, but still its rate.)"""
        return self if self._drawn is None else self._drawn

    @property
    def realised_rate(self) -> float | None:
        """Flipped bits over eligible bits, as drawn: before `restrict` or `drop`; None where the latter are not known."""
        if not self.eligible_bits:
            return None if self.eligible_bits is None else 0.0
        return (self.bits if self.drawn_bits is None else self.drawn_bits) / self.eligible_bits

    def __repr__(self) -> str:
        text = f"<ErrorMap {self.error_model}, seed {self.seed}: "
        if self.fingerprint or self.log is None:
            text += f"{self.bits:,} bits in {len(self):,} words of {len(self.targets)} tensors"
            text += "" if self.realised_rate is None else f", rate {self.realised_rate:.3g}"
        if self.log is not None:
            text += f"{'; ' if self.fingerprint else ''}{self.log}"
        return text + ">"

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
        `field` (sign, exponent, mantissa, value, scale, bias, padding). What was not hit is left out, save components and
        tensors, which stand with 0.

        Example:
            >>> import drsrobust as dr
            >>> from torch import nn
            >>> with dr.inject(nn.Linear(9, 9), dr.FixedCount(5, bits="sign"), seed=1) as error_map:
            ...     print(error_map.counts("bit").to_dict(), error_map.counts("tensor").to_dict())
            {31: 5} {'bias': 1, 'weight': 4}
        """
        import pandas as pd

        if by not in _BY:
            raise unknown("way to count", by, _BY)
        if by in ("bit", "field"):
            found: dict[Any, int] = {}
            for number, here in self.by_tensor():
                form = self._formats[number]
                unit = self.word[here] % form.period
                for key in range(form.width) if by == "bit" else form.fields:
                    chosen = np.uint64(1 << key) if by == "bit" else form.fields[key][unit]
                    if count := int(np.bitwise_count(self.mask[here] & chosen).sum()):
                        found[key] = found.get(key, 0) + count
            return pd.Series(dict(sorted(found.items())), dtype=np.int64, name="bits").rename_axis(by)
        frame = self.frame()
        if by == "row":
            return frame.groupby(["tensor", "row"])["bits"].sum()
        everyone = sorted({getattr(entry, "name" if by == "tensor" else by) for entry in self.fingerprint})
        return frame.groupby(by)["bits"].sum().reindex(pd.Index(everyone, name=by), fill_value=0)

    def restrict(self, bits: Iterable[int | str] | str) -> "ErrorMap":
        """The errors in these bits alone.

        Args:
            bits: numbers (0 the lowest) and fields of the format, as in `BitFlip`.

        Raises:
            ValueError: a bit that a hit tensor's words do not have.
        """
        chosen = bit_set(bits)
        mask = np.zeros_like(self.mask)
        for number, here in self.by_tensor():
            form = self._formats[number]
            mask[here] = self.mask[here] & form.eligible(chosen)[self.word[here] % form.period]
        return self._part(mask != 0, mask)

    def drop(self, words: np.ndarray) -> "ErrorMap":
        """The errors without those of some words.

        Args:
            words: bool [len], which entries are left out (as `error_map.frame().row < 100`).

        Raises:
            ValueError: it has another shape or type.
        """
        words = np.asarray(words)
        if words.shape != (len(self),) or words.dtype != bool:
            raise ValueError(
                f"words is {words.dtype} {list(words.shape)}; it must be bool [{len(self)}], true for entries to leave out"
            )
        return self._part(~words, self.mask)

    def left(self, tensor: np.ndarray, word: np.ndarray, mask: np.ndarray) -> "ErrorMap":
        """The errors that protected memory left of these: other words may be wrong than before, where a code miscorrected.

        Args:
            tensor: int32 [n], index into `targets`.
            word: int64 [n], flat index; entries in any order, one per word.
            mask: uint64 [n]; those that are 0 are left out.

        Returns:
            a map that remembers this one as `drawn`, with its rate.
        """
        ascending = (tensor[1:] > tensor[:-1]) | ((tensor[1:] == tensor[:-1]) & (word[1:] > word[:-1]))
        if not ascending.all():
            order = np.lexsort((word, tensor))
            tensor, word, mask = tensor[order], word[order], mask[order]
        kept = mask != 0
        arrays = {"tensor": tensor[kept].astype(np.int32), "word": word[kept].astype(np.int64)}
        arrays |= {"mask": mask[kept].astype(np.uint64), "original": None, "depends": None}
        drawn_bits = self.bits if self.drawn_bits is None else self.drawn_bits
        return replace(self, **arrays, drawn_bits=drawn_bits, _drawn=self.drawn)

    def noted(self, *, detected: bool, repaired: bool | None = None) -> "ErrorMap":
        """The same errors, and what a protection of the memory noticed: together with what others noticed before.

        Args:
            detected: whether it noticed any error.
            repaired: whether it put right all that it noticed; None: it noticed nothing, or nobody tried.
        """
        if self.repaired is not None:
            repaired = self.repaired if repaired is None else self.repaired and repaired
        told = {"detected": bool(self.detected) or detected, "repaired": repaired}
        drawn_bits = self.bits if self.drawn_bits is None else self.drawn_bits
        return replace(self, **told, drawn_bits=drawn_bits, _drawn=self.drawn)

    def __or__(self, other: "ErrorMap") -> "ErrorMap":
        """The errors of either map: the union of their flips.

        Raises:
            ValueError: the maps were made for different models (a tensor of both has two shapes or formats), or for one model
                in two states.
        """
        if not isinstance(other, ErrorMap):
            return NotImplemented
        pass

        return union([self, other])

    @contextmanager
    def applied(self, model: nn.Module, *, optimizer: Any = None) -> Iterator["ErrorMap"]:
        """The errors are in the model inside the block; afterwards every word is what it was.

        Args:
            model: the one it was drawn for, or another with the same tensors.
            optimizer: whose states the map hits, if it does.

        Raises:
            ErrorMapMismatch: a targeted tensor is missing in the model or has another shape or format, or a word that a mask
                was made from is another one.
        """
        application = Application(self, stored(model, optimizer), model)
        try:
            application.apply()
            yield self
        finally:
            application.undo()

    def apply(self, model: nn.Module, *, optimizer: Any = None) -> None:
        """Puts the errors into the model, for good (`applied` takes them out again, also after an interrupt)."""
        with LOCK:
            for hit in hits(self, stored(model, optimizer)):
                hit.words.write(hit.index, hit.words.read(hit.index) ^ hit.mask)

    def save(self, path: str | Path) -> None:
        """Writes an .npz file (arrays and JSON, no pickle), complete or not at all. The log of transient errors is not part of
        it: the same seed makes them again."""
        about = {"format": _FORMAT, "seed": self.seed, "error_model": self.error_model}
        about |= {"eligible_bits": self.eligible_bits, "requested_rate": self.requested_rate}
        about |= {"n_sites": self.n_sites, "n_events": self.n_events, "drawn_bits": self.drawn_bits}
        about["arrays"] = [name for name in _ARRAYS if getattr(self, name) is not None]
        about["fingerprint"] = [[e.name, list(e.shape), e.format, e.component] for e in self.fingerprint]
        arrays = {name: getattr(self, name) for name in about["arrays"]}
        with new_file(Path(path).expanduser()) as part, open(part, "wb") as handle:
            np.savez_compressed(handle, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "ErrorMap":
        """Reads what `save` wrote.

        Raises:
            ValueError: not a file of an error map, or a damaged one.
        """
        try:
            with open(Path(path).expanduser(), "rb") as handle, np.load(handle, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                if (version := about.pop("format")) != _FORMAT:
                    raise ValueError(f"format {version}; this version reads format {_FORMAT}")
                about["fingerprint"] = tuple(Fingerprint(n, tuple(s), f, c) for n, s, f, c in about["fingerprint"])
                names = about.pop("arrays")
                if set(file.files) != {"about", *names}:
                    raise ValueError(f"it should hold {', '.join(names)} and holds {', '.join(file.files)}")
                about |= {name: file[name] for name in names}
                if unknown_names := set(about) - _SAVED:
                    raise ValueError(f"it holds {', '.join(sorted(unknown_names))}, which no error map has")
                loaded = cls(**about)
                loaded._check()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path} is not an error map of this version, or is damaged: {error}") from error
        return loaded

    @cached_property
    def _formats(self) -> tuple[Format, ...]:
        return tuple(format_named(entry.format) for entry in self.fingerprint)

    def _check(self) -> None:
        """Raises ValueError when this is not what an error map holds."""
        kinds = {"seed": int, "error_model": str, "eligible_bits": int, "requested_rate": float, "n_sites": int}
        kinds |= {"n_events": int, "drawn_bits": int}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is None and name not in ("seed", "error_model"):
                continue
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ValueError(f"{name} is {value!r}")
            if kind is not str and not 0 <= value <= (1 if kind is float else 2**64 - 1):
                raise ValueError(f"{name} is {value!r}")
        for name, kind in zip(_ARRAYS, (np.int32, np.int64, np.uint64, np.uint64, np.bool_), strict=True):
            array = getattr(self, name)
            if array is not None and (array.dtype != kind or array.shape != self.word.shape):
                raise ValueError(f"{name} is {array.dtype} {list(array.shape)}")
        sizes = np.array([prod(entry.shape) for entry in self.fingerprint] or [0], np.int64)
        if len(self) and not (self.tensor.min() >= 0 and self.tensor.max() < len(self.fingerprint)):
            raise ValueError("an entry names a tensor that is not in the fingerprint")
        if (self.word < 0).any() or (self.word >= sizes[self.tensor]).any():
            raise ValueError("a word lies outside of its tensor")
        key = self.tensor.astype(np.int64)
        if not ((np.diff(key) > 0) | ((np.diff(key) == 0) & (np.diff(self.word) > 0))).all():
            raise ValueError("entries are not sorted, or a word stands twice")
        widths = np.array([form.width for form in self._formats] or [64], np.uint64)[self.tensor]
        if ((self.mask >> (widths - np.uint64(1))) > 1).any() or (self.mask == 0).any():
            raise ValueError("a mask is empty, or wider than its word")

    def by_tensor(self) -> Iterator[tuple[int, slice]]:
        """The number of each tensor that was hit, and its entries."""
        bounds = np.searchsorted(self.tensor, np.arange(len(self.fingerprint) + 1))
        for number, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            if end > start:
                yield number, slice(start, end)

    def _part(self, kept: np.ndarray, mask: np.ndarray) -> "ErrorMap":
        arrays = {"tensor": self.tensor, "word": self.word, "mask": mask}
        arrays |= {"original": self.original, "depends": self.depends}
        arrays = {name: None if array is None else array[kept] for name, array in arrays.items()}
        drawn_bits = self.bits if self.drawn_bits is None else self.drawn_bits
        return replace(self, **arrays, drawn_bits=drawn_bits, _drawn=self.drawn)


def union(maps: list[ErrorMap]) -> ErrorMap:
    """The errors of some maps (at least one) in one. Its error model is their sum; seed and log are the first one's.

    Raises:
        ValueError: the maps do not fit together.
    """
    known: dict[str, Fingerprint] = {}
    for entry in (entry for one in maps for entry in one.fingerprint):
        other = known.setdefault(entry.name, entry)
        if (other.shape, other.format) != (entry.shape, entry.format):
            raise ValueError(
                f"the maps were made for different models: {entry.name!r} is {list(other.shape)} {other.format} in one, "
                f"{list(entry.shape)} {entry.format} in the other"
            )
    names = sorted(known)
    number = {name: index for index, name in enumerate(names)}
    places = [np.array([number[name] for name in one.targets] or [0], np.int32)[one.tensor] for one in maps]
    tensor, word = np.concatenate(places), np.concatenate([one.word for one in maps])
    mask = np.concatenate([one.mask for one in maps])
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    original = depends = None
    if any(one.original is not None for one in maps):
        nothing = [np.zeros(len(one), np.uint64) for one in maps]
        original = np.concatenate(
            [z if o.original is None else o.original for o, z in zip(maps, nothing, strict=True)]
        )[order]
        depends = np.concatenate([_depends(one) for one in maps])[order]
        run = np.cumsum(np.isin(np.arange(len(word)), starts)) - 1
        value = np.zeros(len(starts), np.uint64)
        value[run[depends]] = original[depends]
        if (value[run[depends]] != original[depends]).any():
            raise ValueError("the maps were made for two states of a model: a word that both were made from differs")
        original, depends = value, np.logical_or.reduceat(depends, starts) if len(starts) else depends
    if len(starts):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    first = maps[0]
    # Where targets overlap, how many bits are eligible in both is not known any more.
    hit = [name for one in maps for name in one.targets]
    sizes = [one.eligible_bits for one in maps]
    eligible = sum(sizes) if len(set(hit)) == len(hit) and None not in sizes else None
    joined = ErrorMap(
        tensor,
        word,
        mask,
        tuple(known[name] for name in names),
        first.seed,
        " + ".join(sorted(one.error_model for one in maps)),
        eligible,
        None,
        original=original,
        depends=depends,
        log=next((one.log for one in maps if one.log is not None), None),
        sources=tuple(source for one in maps for source in one.sources),
    )
    if any(one.drawn is not one for one in maps):  # of parts of maps: what all were drawn as
        drawn = union([one.drawn for one in maps])
        return replace(joined, drawn_bits=drawn.bits, _drawn=drawn)
    return joined


def first_of_runs(tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Where each word's entries begin, in entries sorted by (tensor, word)."""
    if not len(word):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], (word[1:] != word[:-1]) | (tensor[1:] != tensor[:-1]))))


def _depends(error_map: ErrorMap) -> np.ndarray:
    if error_map.original is None:
        return np.zeros(len(error_map), bool)
    return np.ones(len(error_map), bool) if error_map.depends is None else error_map.depends
