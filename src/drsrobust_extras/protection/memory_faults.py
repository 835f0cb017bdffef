"""DRAM faults with an extent: one chip of a memory fails in a bit, a word, a column, a row, a bank or more."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from drsrobust.extend import (
    Stratum,
    TargetTensor,
    canonical_json,
    check_choice,
    check_critical_bits,
    check_instance,
    check_rate,
    check_seed,
    check_whole,
    from_sorted_words,
    from_words,
)
from drsrobust.injection import VALUE, AddressSpace, CriticalBits, ErrorMap, ErrorModel
from drsrobust.statistics import ALL
from drsrobust_extras.protection.chip_strata import SMALL_MODES, strata_by_chip
from drsrobust_extras.protection.memories import Memory, memory
from drsrobust_extras.protection.memory_map import (
    CHECK_BITS,
    CHIP_BITS,
    CHIPS,
    DATA_CHIPS,
    WORD,
    Geometry,
    Layout,
    mapping_of,
)
from drsrobust_extras.protection.rates import FIT, FieldRate, Fit, fits_by_mode

_DRAWS = 10_000  # of a fault, until one has critical bits, or none, as it should

MODES = tuple(FIT)


class Extent(NamedTuple):
    """The words that a fault may change, of those that tensors fill.

    Attributes:
        mode: of the fault.
        chip: 0 to 15 hold data, 16 and 17 check bits.
        address: int64 [n], numbers of the 64-bit words, ascending.
        mask: the wrong bits of the chip (4 bits) where they are drawn with the place: of faults of one bit, and of those with
            `critical`; else None.
    """

    mode: str
    chip: int
    address: np.ndarray
    mask: int | None = None


@dataclass(frozen=True)
class MemoryFault(ErrorModel):
    """One fault of one chip that reaches the targeted tensors.

    The mode is drawn by failure rate and by the share of its places that hold some of the tensors; then the place among these,
    and the chip, uniformly. In the extent each of the chip's bits is wrong with probability `density` (a fault of one bit: it
    flips). A fault of check chips changes no data; `ECC` sees it (`Extent.chip`).

    Faults per time and memory are `hits_per_hour`. Sources: modes and rates by Sridharan and Liberty (SC 2012); extents as
    FaultSim has them; what a failed chip returns is not published, so that half of the bits are wrong is an assumption.

    Args:
        mode: one of `MODES`; None: drawn.
        density: 0 to 1.
        geometry: of the memory.
        fit: mode -> `Fit` of a device, or `dr.rates.FAULTS`, which None means, too. Modes that
            `memory` cannot have are left out: one device for each channel has no mode `ranks`.
        chips: only these chips fail; None: any.
        lines: how many of the chip's 4 data lines (bits of a word) fail, drawn for each fault.
        memory: as of `dr.memory`: its devices are the chips, and geometry and rates are its own. A device
            that holds more than 4 bits of a word has every one of them wrong with probability `density`; check bits of codes
            stay clean. Without rates by mode it takes a mode, and `hits_per_hour` is refused.
        critical: of modes `bit` and `word`: 0, no critical bit is wrong; `"1+"`, at least one is. The fault is one of this
            model in a chip of data under that condition.
        critical_bits: which bits are critical; None: `CriticalBits()`.
        others: with `critical=0`: 0, no other bit of sign and exponent is wrong outside of large tables
            (`CriticalBits.parts`); `"1+"`, at least one is.

    Raises:
        ValueError: another mode, a density outside of 0 to 1, negative failure rates or none, chips other than 0 to 17 (of
            faults with `critical` other than 0 to 15), lines other than 1 to 4, another `critical` or `others`, or one of
            another mode; with `memory` a mode that it cannot have, no mode where it has no rates, and of devices with
            more than 4 bits of a word lines, or `critical`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> with dr.inject(nn.Linear(64, 64), dr.MemoryFault("row", chips=[7]), seed=1) as error_map:
        ...     print(error_map.words > 500, len(error_map.counts("bit")))
        True 4
    """

    rate = None

    mode: str | None = None
    density: float = 0.5
    geometry: Geometry = field(default_factory=Geometry)  # with `memory`: that of the memory, in place of this default
    fit: Mapping[str, Fit] | FieldRate | None = None
    chips: tuple[int, ...] | None = None
    lines: int = CHIP_BITS
    critical: int | str | None = None
    critical_bits: CriticalBits | None = None
    others: int | str | None = None
    memory: str | Memory | None = field(default=None, repr=False)  # identities of others stay what they were

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_choice("mode", self.mode, MODES)
        check_instance("geometry", self.geometry, Geometry, "a Geometry, as Geometry(mapping='spread')")
        if self.memory is not None:
            self._check_memory(memory(self.memory))
        if self.chips is not None:
            chips = list(self.chips) if isinstance(self.chips, Iterable) else [self.chips]
            if not chips:
                raise ValueError(f"chips is {self.chips!r}; it must be one or more of 0 to {self._devices - 1}")
            self._set(chips=tuple(sorted({check_whole("each of chips", chip, 0, self._devices - 1) for chip in chips})))
        self._set(lines=check_whole("lines", self.lines, 1, CHIP_BITS))
        given = FIT if self.fit is None else self.fit
        if isinstance(given, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
            given = dict(given)  # as it is kept
        fit = fits_by_mode(given, "fit")
        modes = MODES if self.memory is None else memory(self.memory).modes
        self._set(fit=tuple((mode, fit[mode]) for mode in modes if mode in fit))
        self._set(density=check_rate("density", self.density))
        if (given or self.mode is None or self.memory is None) and not sum(
            rates.total for mode, rates in self.fit if self.mode in (None, mode)
        ):
            raise ValueError(f"fit has no rate above 0 of {self.mode or 'any mode'}")
        if self.critical_bits is not None:
            check_critical_bits(self.critical_bits)
        if self.others is not None and (
            isinstance(self.others, bool) or self.others not in (0, "1+") or self.critical != 0
        ):
            raise ValueError(
                f"others is {self.others!r}; it must be 0 or '1+', with critical=0 (it is {self.critical!r})"
            )
        if self.critical is None:
            self._set(critical_bits=None)
        else:
            self._check_critical()

    def _check_memory(self, kind: Memory) -> None:
        if self.mode is not None:
            kind.check_mode(self.mode)
        if self.lines != CHIP_BITS and kind.data_devices != DATA_CHIPS:
            raise ValueError(
                f"lines is {self.lines!r}; a device of {kind.name} holds more than 4 bits of a word: leave it at 4"
            )
        if self.critical is not None and kind.data_devices != DATA_CHIPS:
            raise ValueError(
                f"critical is {self.critical!r}; a device of {kind.name} holds more than 4 bits of a word: leave it out"
            )
        geometry = kind.required_geometry() if self.geometry == Geometry() else self.geometry
        fit = self.fit
        if fit is None:
            fit = () if kind.fit is None and self.mode is not None else kind.required_fit()
        self._set(memory=kind.name, geometry=geometry, fit=fit)

    @property
    def _devices(self) -> int:
        return CHIPS if self.memory is None else memory(self.memory).devices

    @property
    def _data_devices(self) -> int:
        return DATA_CHIPS if self.memory is None else memory(self.memory).data_devices

    @property
    def _bits(self) -> int:
        """Bits of a word that a device holds: of chips of 4 bits with numbers that differ by the data devices."""
        return WORD // self._data_devices

    def _check_critical(self) -> None:
        if type(self.critical) not in (int, str) or self.critical not in (0, "1+"):
            raise ValueError(f"critical is {self.critical!r}; it must be 0 or '1+', the critical bits of one fault")
        if self.mode not in SMALL_MODES:
            raise ValueError(f"critical={self.critical!r} is for faults of mode 'bit' or 'word', not {self.mode!r}")
        if self.mode == "word" and (self.critical or self.others) and not self.density:
            raise ValueError(f"critical is {self.critical!r}; a fault of density 0 has no wrong bit")
        chips = tuple(range(DATA_CHIPS)) if self.chips is None else self.chips
        if chips[-1] >= DATA_CHIPS:
            raise ValueError(f"chips is {chips}; only those of data, 0 to {DATA_CHIPS - 1}, hold critical bits")
        self._set(chips=chips, critical_bits=self.critical_bits or CriticalBits())

    def canonical(self) -> str:
        """With the geometry as a table, without failure rates for a given mode; `critical` and `critical_bits` where they are
        not None."""
        fit = None if self.mode else [[mode, *rates] for mode, rates in self.fit]
        form = {"error_model": "MemoryFault", "mode": self.mode, "density": self.density, "fit": fit}
        form |= {"geometry": asdict(self.geometry), "chips": self.chips, "lines": self.lines}
        if self.critical is not None:
            form |= {"critical": self.critical, "critical_bits": asdict(self.critical_bits)}
        if self.others is not None:
            form |= {"others": self.others}
        if self.memory is not None:
            form |= {"memory": self.memory}
        return canonical_json(form)

    def __str__(self) -> str:
        parts = [
            *([repr(self.mode)] if self.mode else []),
            *([f"density={self.density}"] if self.density != 0.5 else []),
        ]
        usual = Geometry() if self.memory is None else memory(self.memory).geometry
        changed = {k: v for k, v in asdict(self.geometry).items() if v != getattr(usual, k, None)}
        parts += [f"{name}={value!r}" for name, value in changed.items()]
        parts += [f"memory={self.memory!r}"] if self.memory is not None else []
        if self.mode is None and self.fit != tuple(FIT.items()):
            parts.append(f"fit={ {mode: tuple(rates) for mode, rates in self.fit} }")
        parts += [f"chips={list(self.chips)}"] if self.chips is not None else []
        parts += [f"lines={self.lines}"] if self.lines != CHIP_BITS else []
        if self.critical is not None:
            parts.append(f"critical={self.critical!r}, critical_bits={self.critical_bits}")
        parts += [f"others={self.others!r}"] if self.others is not None else []
        return f"MemoryFault({', '.join(parts)})"

    @property
    def label(self) -> str:
        """As text; it has no rate."""
        return str(self)

    def expected_share(self, space: AddressSpace) -> None:
        """None: it depends on the drawn mode.

        Raises:
            ValueError: the memory has no room for the tensors.
        """
        self.places(space)

    @property
    def n_chips(self) -> int:
        """How many chips of a rank may fail."""
        return self._devices if self.chips is None else len(self.chips)

    def places(self, space: AddressSpace) -> dict[str, int]:
        """How many places of each mode hold some of the tensors, in one chip.

        Raises:
            ValueError: the memory has no room for the tensors.
        """
        words = self.geometry.held(Layout(space).words)
        rows, columns = -(-words // self.geometry.columns), np.minimum(words, self.geometry.columns)
        counts = {"bit": self._bits * words.sum(), "word": words.sum(), "column": columns.sum(), "row": rows.sum()}
        counts |= {"bank": (words > 0).sum(), "banks": (words > 0).any(axis=1).sum(), "ranks": 1}
        return {mode: int(count) for mode, count in counts.items()}

    def strata(self, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
        """As `strata_by_chip`; chosen chips, and devices that hold more than 4 bits of a word, have none."""
        if self.chips is not None or self._data_devices != DATA_CHIPS:
            return [Stratum(ALL, 1.0, self)]
        return strata_by_chip(self, space, critical_bits)

    def columns(self) -> dict[str, Any]:
        chips = None if self.chips is None else ", ".join(map(str, self.chips))
        return {
            **super().columns(),
            "error_mode": self.mode,
            "error_chips": chips,
            "error_mapping": mapping_of(self.geometry, self.memory),
        }

    def hits_per_hour(self, space: AddressSpace) -> dict[str, Fit]:
        """Faults per hour that reach the tensors, of each mode, in all chips of the memory, or in those of `chips`.

        Raises:
            ValueError: a memory without rates by mode.
        """
        geometry = self.geometry
        if not self.fit:
            memory(self.memory).required_fit()  # raises
        total = {"bit": self._bits * geometry.words, "word": geometry.words, "ranks": 1, "banks": geometry.ranks}
        total |= {"column": geometry.ranks * geometry.banks * geometry.columns, "bank": geometry.ranks * geometry.banks}
        total |= {"row": geometry.ranks * geometry.banks * geometry.rows}
        places, devices = self.places(space), geometry.ranks * self.n_chips
        share = {mode: places[mode] / total[mode] * devices * 1e-9 for mode in MODES}
        return {mode: Fit(*(rate * share[mode] for rate in rates)) for mode, rates in self.fit}

    def extent(self, space: AddressSpace, *, seed: int, copy: int = 0) -> Extent:
        """The fault of a trial.

        Raises:
            ValueError: `critical` of a target without critical bits, or of one in which such a fault was not found.
        """
        random = self._random(seed, copy)
        if self.critical is not None:
            return self._with_condition(space, random)
        mode = self.mode
        if mode is None:
            rates = self.hits_per_hour(space)
            ends = np.cumsum([rate.total for rate in rates.values()])
            mode = list(rates)[int(np.searchsorted(ends, random.random() * ends[-1], side="right"))]
        chips = range(self._devices) if self.chips is None else self.chips
        words, chip = Layout(space).words, int(chips[random.integers(len(chips))])
        held_words = self.geometry.held(words)
        place = int(random.integers(self.places(space)[mode]))
        if mode == "bit":
            return Extent(mode, chip, np.array([place // self._bits]), 1 << place % self._bits)
        if mode == "word":
            return Extent(mode, chip, np.array([place]))
        return Extent(mode, chip, self._reached(mode, place, held_words))

    def _with_condition(self, space: AddressSpace, random: np.random.Generator) -> Extent:
        """A fault of one word with a critical bit, or without, by rejection. One with such bits is proposed by one of them, so
        one with k of them k times as often, and taken with probability 1 / k (Karp, Luby, Madras, J. Algorithms 10, 1989)."""
        layout, parts = Layout(space), self.critical_bits.parts(space)
        # The bits of which one must be wrong, and those of which none may be.
        required = parts.critical if self.critical else parts.others if self.others else None
        clean = None if self.critical else parts.critical if self.others or self.others is None else parts.harmful
        if required is not None and not required.bits:
            raise ValueError(f"{self}: the target has no such bits")
        self.geometry.held(layout.words)  # raises
        for _ in range(_DRAWS):
            if required is not None:
                address, chip, bit = layout.place(required, int(random.integers(required.bits)))
                mask = self._mask(random, bit)
            else:
                chip, address = self.chips[random.integers(len(self.chips))], int(random.integers(layout.words))
                mask = self._mask(random)
            if chip not in self.chips or (clean is not None and mask & layout.bits_of(clean, address, chip)):
                continue
            hit = 0 if required is None else (mask & layout.bits_of(required, address, chip)).bit_count()
            if required is None or random.random() * hit < 1:
                return Extent(self.mode, chip, np.array([address]), mask)
        raise ValueError(f"{self}: none of {_DRAWS:,} faults was such a one; give it other chips or critical_bits")

    def _mask(self, random: np.random.Generator, bit: int | None = None) -> int:
        """The wrong bits of the chip of a fault of one word; under the condition that this bit is wrong."""
        if self.mode == "bit":
            return 1 << (int(random.integers(CHIP_BITS)) if bit is None else bit)
        lines = random.permutation(CHIP_BITS)
        first = 0 if bit is None else 1 << bit
        if bit is not None:
            lines = np.append(bit, lines[lines != bit])
        failing = int(np.bitwise_or.reduce(1 << lines[: self.lines]))
        return first | int(_bernoulli(random, 1, self.density)[0]) & failing

    def _reached(self, mode: str, place: int, words: np.ndarray) -> np.ndarray:
        """The words of a column, a row, a bank or more, by the number of its place."""
        geometry, columns = self.geometry, self.geometry.columns
        full = np.argwhere(words > 0)
        if mode == "ranks":
            return np.arange(words.sum())
        if mode == "banks":
            rank = np.unique(full[:, 0])[place]
            start = int(words[:rank].sum())
            return np.arange(start, start + int(words[rank].sum()))
        sizes = {"bank": words > 0, "row": -(-words // columns), "column": np.minimum(words, columns)}
        counts = sizes[mode].astype(int)
        ends = np.cumsum(counts.ravel())
        number = int(np.searchsorted(ends, place, side="right"))
        rank, bank = divmod(number, geometry.banks)
        within, filled = place - int(ends[number] - counts.ravel()[number]), int(words[rank, bank])
        if mode == "bank":
            offset = np.arange(filled)
        elif mode == "row":
            offset = np.arange(within * columns, min((within + 1) * columns, filled))
        else:
            offset = np.arange(within, filled, columns)
        return geometry.address(rank, bank, offset)

    def tensors_of(self, space: AddressSpace, extent: Extent) -> Iterator[tuple[TargetTensor, slice, int]]:
        """The tensors that an extent reaches: each with its part of the addresses, and the number of its first word."""
        for index, entries, first in Layout(space).by_tensor(extent.address):
            yield space.tensors[index], entries, first

    def wrong_bits(self, extent: Extent, *, seed: int, copy: int = 0) -> np.ndarray:
        """The wrong bits of the chip (uint8 [n], 4 bits each) in the words of an extent; of a device with more bits of a word
        uint8 [n, parts], of its parts of 4 bits."""
        parts = self._bits // CHIP_BITS
        if extent.mask is not None:
            if parts == 1:
                return np.array([extent.mask], np.uint8)
            return np.array([[extent.mask >> CHIP_BITS * part & 15 for part in range(parts)]], np.uint8)
        random = self._random(seed, copy, "bits")
        n = len(extent.address)
        if parts > 1:
            return _bernoulli(random, n * parts, self.density).reshape(n, parts) & np.uint8(15)
        failing = np.bitwise_or.reduce(1 << random.permutation(CHIP_BITS)[: self.lines])
        packed = _bernoulli(random, ceil(n / 2), self.density) & np.uint8(failing * 17)  # two words per byte
        return np.stack((packed & np.uint8(15), packed >> np.uint8(4)), axis=1).ravel()[:n]

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        """The wrong bits of a fault in a chip of check bits, of codes that hold 8 of these for 64 bits of data. Memory of other
        protections lies elsewhere, and stays clean. Which it is, all whole tensors say: of small ones other memory may have
        the same size."""
        if self._data_devices != DATA_CHIPS:
            return None
        number = {tensor.name: index for index, tensor in enumerate(checks.tensors)}
        per = {name: checks.tensors[index].format.width // CHECK_BITS for name, index in number.items()}
        units = {one.name: -(-one.size * one.format.width // WORD) for one in data.tensors if one.name in number}
        fitting = {name for name, n in units.items() if checks.tensors[number[name]].size == -(-n // per[name])}
        extent = self.extent(data, seed=data_seed, copy=copy)
        whole = {tensor.name for tensor in data.tensors if tensor.rows is None}
        if extent.chip < DATA_CHIPS or whole & units.keys() - fitting:
            return None
        wrong = self.wrong_bits(extent, seed=data_seed, copy=copy).astype(np.uint64)
        wrong <<= np.uint64(CHIP_BITS * (extent.chip - DATA_CHIPS))
        parts = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))]
        for tensor, entries, first in self.tensors_of(data, extent):
            if tensor.name not in fitting:
                continue
            index, unit = number[tensor.name], extent.address[entries] - first
            exists = unit < units[tensor.name]
            word, shift = np.divmod(unit[exists], per[tensor.name])
            mask = wrong[entries][exists] << (CHECK_BITS * shift).astype(np.uint64)
            parts.append((np.full(len(word), index, np.int32), word, mask & checks.eligible[index].mask_of(word)))
        return from_words(self, checks, *map(np.concatenate, zip(*parts, strict=True)), data_seed)

    def _random(self, seed: int, copy: int, stream: str = "") -> np.random.Generator:
        check_seed(seed)
        return np.random.Generator(self.clock(1, seed, copy, stream).stream(VALUE))

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        extent = self.extent(space, seed=seed, copy=copy)
        address, wrong = extent.address, self.wrong_bits(extent, seed=seed, copy=copy)
        counts = {"n_sites": self.n_chips * self.places(space)[extent.mode], "n_events": 1}
        if extent.chip >= self._data_devices:
            address = address[:0]
        wrong = wrong[: len(address)]
        if wrong.ndim == 1:
            parts = Layout(space).located(address, wrong, extent.chip)
            return from_sorted_words(self, space, *parts, seed, **counts)
        chips = range(extent.chip % self._data_devices, DATA_CHIPS, self._data_devices)
        of_chips = [Layout(space).located(address, wrong[:, part], chip) for part, chip in enumerate(chips)]
        return from_words(self, space, *map(np.concatenate, zip(*of_chips, strict=True)), seed, **counts)


def _bernoulli(random: np.random.Generator, n: int, density: float) -> np.ndarray:
    """Bytes whose bits are 1 with a probability, exact to 2**-32: its binary digits choose between AND and OR of fair bits."""
    digits = round(density * 2**32)
    if digits in (0, 2**32):
        return np.full(n, 255 if digits else 0, np.uint8)
    bits: Any = np.zeros(n, np.uint8)
    lowest = (digits & -digits).bit_length() - 1
    for place in range(lowest, 32):
        fair = np.frombuffer(random.bytes(n), np.uint8)
        bits = fair | bits if digits >> place & 1 else fair & bits
    return bits
