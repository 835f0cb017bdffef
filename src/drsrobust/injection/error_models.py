"""What an error model is, and sums of error models.

An error model is a frozen dataclass that draws error maps: it defines `rate`, `expected_share` and `sample`, and inherits the
rest. Models of single bits are in `bit_errors`, those of several in `field_errors`."""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drsrobust._arguments import check_instance, check_items
from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import AddressSpace
from drsrobust.injection.critical_bits import CriticalBits, Stratum
from drsrobust.injection.error_clock import ErrorClock
from drsrobust.injection.error_map import ErrorMap, Fingerprint, MapSource, first_of_runs, union
from drsrobust.introspection.devices import accelerator_of

UNITS = ("bit", "word", "row")  # from the smallest


class ErrorModel(ABC):
    """A rule for how stored bits go wrong. `a + b` is both: the union of their flips.

    To write one: derive a frozen dataclass, name in `RATE` (or `COUNT`) the field that sets how many errors there are, and
    define `rate` (None for models of a fixed count), `expected_share` and `sample`. Further methods say how it draws in check
    bits, which strata it has, and what tables hold of it; their defaults suit errors of whole words at a rate.

    Attributes:
        unit: what goes wrong at one time: a `bit`, a `word`, or a `row` (neighbouring words).
            `Scrubbing` lets the bits of a unit arrive together.
    """

    RATE: ClassVar[str | None] = None
    COUNT: ClassVar[str | None] = None
    unit: ClassVar[str] = "word"

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        @property
        def rate(self) -> float | None: ...

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits of a space that this model may flip."""
        return space

    @abstractmethod
    def expected_share(self, space: AddressSpace) -> float | None:
        """Expected share of the space's eligible bits that flip; None where it depends on the words in memory.

        Raises:
            ValueError: the model cannot hit this space (as a bit that the targeted words do not have).
        """

    @abstractmethod
    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        """The error map of one trial. For one seed, the map at a lower rate or count is part of the map at a higher one.

        Args:
            space: what may be hit.
            seed: 0 .. 2**64 - 1; decides everything.
            copy: how many equal models draw before this one in the same trial, so that each draws from streams of its own.
                `a + b` and `inject` count them.

        Raises:
            ValueError: the model cannot hit this space, or a seed out of range.
        """

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        """The errors of the same trial in the memory of a protection (check bits, checksums, copies): by default those that
        `sample` draws there. None: that memory stays clean, as under models that cannot hit its words.

        Args:
            checks: that memory. Copies have tensors in memory, check bits have not.
            data: what the errors of the data were drawn over, with `data_seed`.
            seed: for errors in `checks`.
            data_seed: of the trial.
            copy: as of `sample`.
        """
        try:
            self.expected_share(checks)
        except ValueError:  # such as more bits per word than these words have
            return None
        return self.sample(checks, seed=seed, copy=copy)

    def transient_share(self) -> float | None:
        """Expected share of bits that flip in values that exist only while the model runs; None (the default): it depends on
        their shape or contents."""
        return None

    def columns(self) -> dict[str, Any]:
        """What a campaign's table says of this model, so that no label is parsed: `error_kind`, and those that apply of
        `error_bit`, `error_count`, `error_mode`, `error_chips` and `error_mapping`."""
        return {"error_kind": type(self).__name__}

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """The parts of this model's maps that have trials of their own in a stratified campaign; their probabilities sum to 1.
        One stratum `all` where plain maps do as well; none (the default) if the model cannot be stratified.

        Args:
            space: what may be hit.
            critical_bits: whose flips strata may count.

        Raises:
            ValueError: a target without critical bits, of a model that needs them.
        """
        return []

    def critical_probe(self, critical_bits: CriticalBits) -> "ErrorModel | None":
        """A model whose maps hold one critical error alone. Where a mitigation removes such errors from memory, plain maps
        replace the strata. None (the default): strata hold under every mitigation.

        Args:
            critical_bits: that the strata count.
        """
        return None

    def summands(self) -> Sequence["ErrorModel"]:
        """The models of a sum; the model alone otherwise."""
        return (self,)

    def __add__(self, other: "ErrorModel") -> "ErrorModel":
        return Sum((self, other)) if isinstance(other, ErrorModel) else NotImplemented

    @property
    def label(self) -> str:
        """The model without its rate, as in tables, which have a column for the rate."""
        settings = self._settings(without=self.RATE)
        return type(self).__name__ + (f"({settings})" if settings else "")

    def __str__(self) -> str:
        return f"{type(self).__name__}({self._settings()})"

    def _settings(self, without: str | None = None) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != without)
        settings = ((name, list(value) if isinstance(value, tuple) else value) for name, value in values)
        return ", ".join(f"{name}={value!r}" for name, value in settings if value is not None)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def canonical(self) -> str:
        """The model without its rate or count, from which seeds are derived: JSON without blanks, keys sorted, of
        `error_model` (the class's name) and every other field; tuples are arrays."""
        names = (field.name for field in fields(self) if field.name not in (self.RATE, self.COUNT))
        return canonical_json({"error_model": type(self).__name__, **{name: getattr(self, name) for name in names}})

    def clock(self, places: int, seed: int, copy: int = 0, stream: str = "") -> ErrorClock:
        """The error clock of this model. Its summand is the first 4 bytes (big-endian) of SHA-256 over the canonical form and
        the name of a further stream, plus the number of equal models before it, modulo 2**32."""
        number = int.from_bytes(hashlib.sha256((self.canonical() + stream).encode()).digest()[:4], "big")
        return ErrorClock(places, seed=seed, summand=(number + copy) % 2**32)


def from_bits(
    model: ErrorModel, space: AddressSpace, positions: Iterable[np.ndarray], seed: int, **about: Any
) -> ErrorMap:
    """The error map of flips at ascending, distinct positions, in parts; `about` holds further attributes of the map."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    bits = 0
    for part in positions:
        tensor, word, mask = space.locate_masks(part)
        if parts and len(word) and (parts[-1][0][-1], parts[-1][1][-1]) == (tensor[0], word[0]):
            parts[-1][2][-1] |= mask[0]  # two parts share a word
            tensor, word, mask = tensor[1:], word[1:], mask[1:]
        if len(word):
            parts.append((tensor, word, mask))
        bits += len(part)
    if not parts:
        parts.append(space.locate_masks(np.empty(0, np.int64)))
    tensor, word, mask = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return from_sorted_words(model, space, tensor, word, mask, seed, **{"n_events": bits} | about)


def from_rate(model: ErrorModel, space: AddressSpace, rate: float, seed: int, copy: int) -> ErrorMap:
    """The error map of eligible bits that flip independently at a rate. A device may draw those of tensors that it holds."""
    clock = model.clock(space.bits, seed, copy)
    about: dict[str, Any] = {"requested_rate": rate, "n_sites": space.bits}
    accelerator = accelerator_of(space.device)
    if accelerator is None or (words := accelerator.drawn(space, clock, rate)) is None:
        return from_bits(model, space, clock.until_in_parts(rate), seed, **about)
    none = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64)
    return from_sorted_words(model, space, *none, seed, n_events=words.bits, **about).lying_on(words)


def from_words(
    model: ErrorModel,
    space: AddressSpace,
    tensor: np.ndarray,
    word: np.ndarray,
    mask: np.ndarray,
    seed: int,
    **about: Any,
) -> ErrorMap:
    """The error map of masks in any order; masks of one word are joined, empty ones dropped."""
    is_wrong = mask != 0
    tensor, word, mask = tensor[is_wrong], word[is_wrong], mask[is_wrong]
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    if len(starts) < len(word):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    return from_sorted_words(model, space, tensor, word, mask, seed, **about)


def from_sorted_words(
    model: ErrorModel,
    space: AddressSpace,
    tensor: np.ndarray,
    word: np.ndarray,
    mask: np.ndarray,
    seed: int,
    **about: Any,
) -> ErrorMap:
    """The error map of masks that are sorted by tensor and word, one per word, none of them 0."""
    return ErrorMap(
        tensor.astype(np.int32, copy=False),
        word,
        mask,
        space.once(
            Fingerprint, lambda: tuple(Fingerprint(t.name, t.shape, t.format.name, t.component) for t in space.tensors)
        ),
        seed=int(seed),
        error_model=model.label,
        eligible_bits=space.bits,
        rank=space.rank,
        sources=(MapSource(model, {t.name: t.rows for t in space.tensors}),),
        **about,
    )


@dataclass(frozen=True)
class Sum(ErrorModel):
    """Several error models at once, made by `a + b`: a bit is wrong if one or more of them hit it.

    Each draws from streams of its own, so that the sum's map holds its summands' maps of the same seed, and `a + b` equals
    `b + a`. Of models that differ only in their rate or count, the one with the larger draws first: its map holds the maps of
    the others of the same seed. (Exception: of two `RowError`, one of which has the higher rate and the other the higher
    density, the sum holds the map of the one with the higher rate.)

    Args:
        parts: the summands.
    """

    rate = None

    parts: tuple[ErrorModel, ...]

    def __post_init__(self) -> None:
        parts = check_items("parts", self.parts, "a tuple of error models")
        parts = [check_instance("each part of a sum", part, ErrorModel, "an error model") for part in parts]
        summands = [summand for part in parts for summand in part.summands()]
        if not summands:
            raise ValueError("a sum needs at least 1 error model, got 0")
        self._set(parts=tuple(sorted(summands, key=drawing_order)))

    @property
    def label(self) -> str:
        """The summands with their rates, for which tables have no column."""
        return " + ".join(repr(part) for part in self.parts)

    def summands(self) -> Sequence[ErrorModel]:
        return self.parts

    @property
    def unit(self) -> str:  # type: ignore[override]  # a class has one unit, and each sum its own
        """The largest unit of its summands."""
        return max((part.unit for part in self.parts), key=UNITS.index)

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    def canonical(self) -> str:
        """The canonical forms of its summands."""
        return canonical_json({"error_model": "Sum", "parts": [part.canonical() for part in self.parts]})

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits that any of the summands may flip."""
        chosen: list[Any] = [part.eligible(space).chosen_bits for part in self.parts]
        return space if None in chosen else space.only({bit for bits in chosen for bit in bits})

    def expected_share(self, space: AddressSpace) -> None:
        """None: the overlap of the summands' bits is not counted."""
        for part in self.parts:
            part.expected_share(space)

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        """The union of the summands' maps."""
        before = equal_before(self.parts)
        maps = [part.sample(space, seed=seed, copy=copy + more) for part, more in zip(self.parts, before, strict=True)]
        return replace(union(maps), error_model=self.label, eligible_bits=self.eligible(space).bits)


def equal_before(models: Sequence[ErrorModel]) -> list[int]:
    """The `copy` of each model of one trial: how many equal ones come before it; of a sum, before any of its parts. So equal
    models draw from streams of their own."""
    if len(models) == 1:
        return [0]
    count: Counter[str] = Counter()
    copies = []
    for model in models:
        forms = [part.canonical() for part in model.summands()]
        copies.append(max(count[form] for form in forms))
        for form in forms:
            count[form] = max(count[form], copies[-1]) + 1
    return copies


def drawing_order(model: ErrorModel) -> tuple[str, float, float]:
    """Sort key of the models of one trial: canonical form, then descending rate or count, then descending density."""
    size = model.rate if model.COUNT is None else getattr(model, model.COUNT)
    return model.canonical(), -(size or 0.0), -getattr(model, "density", 0.0)
