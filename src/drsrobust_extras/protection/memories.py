"""Memories by name, from DDR2 of 2012 to HBM4 and LPDDR6: geometry, code stack and failure rates, each number with its source
and how it was read.

What no source gives is None, and what needs it refuses by name. HBM and LPDDR have one device for each channel, so no code can
correct a failed device there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drsrobust.extend import amount, check_instance, unknown
from drsrobust_extras.protection.memory_map import CHIPS, DATA_CHIPS, Geometry
from drsrobust_extras.protection.rates import FIT, MBIT, Fit

if TYPE_CHECKING:
    import pandas as pd

LAYERS = ("on die", "link", "system")
_CERBERUS = (
    "J. Kim et al., Cerberus: Cross-Layer ECC Co-Design for Robust and Efficient Memory Protection, sections II and III"
)
_COMET = f"I. Alam, P. Gupta, COMET, DSN 2022, as cited in {_CERBERUS}"
_TEXT = "its full text, in a public repository"
_CODE = "the presets of a public simulator in a public repository, which cite the standard; the standard was not read"
_HERE = "taken over from dr.rates.FAULTS and Geometry() of version 0.12; not read again"


class Number(NamedTuple):
    """A number or a fact of a memory, with its source.

    Attributes:
        memory: its name.
        what: is said, as `geometry: banks` or `on die: check bits`.
        value: a number, words, or None: no source that was read gives it.
        unit: of the value; "" without one.
        source: of the value.
        read: how the source was read.
    """

    memory: str
    what: str
    value: "float | str | None"
    unit: str
    source: str
    read: str


class Layer(NamedTuple):
    """The code of one layer of a memory.

    Attributes:
        code: in words.
        check_bits, data_bits: of a code word; None: not given.
        passes: the share of errors beyond what it corrects that it does not see, as published; None: not given.
    """

    code: str
    check_bits: int | None
    data_bits: int | None
    passes: float | None = None


class Uncorrectable(NamedTuple):
    """Mean hours between memory errors of one GPU that stopped its job, or that a study counts (`counts` says which, and
    whether codes may have corrected some).

    Attributes:
        hours: of one device.
        of: memory and device.
        counts: what is counted.
    """

    hours: float
    of: str
    counts: str
    source: str
    read: str


@dataclass(frozen=True)
class Memory:
    """A kind of memory; `dr.memory` makes one.

    Attributes:
        name: as of `dr.memory`.
        data_devices, check_devices: that share each word of a channel.
        block: bytes of an access.
        geometry: of the part of it in which a model lies (`geometry_of` says which); None: not given.
        geometry_of: that part, in words.
        layers: `on die`, `link` and `system` -> the codes that sources name, of which a system has one; empty: none.
        fit: mode -> failure rate of a device; None: no source that was read gives rates by mode.
        uncorrectable: published rates of whole devices; none: no such source was read.
    """

    name: str
    data_devices: int
    check_devices: int
    block: int
    geometry: Geometry | None
    geometry_of: str
    layers: Mapping[str, tuple[Layer, ...]]
    fit: Mapping[str, Fit] | None
    uncorrectable: tuple[Uncorrectable, ...]
    sources: tuple[tuple[str, str, str], ...]  # what its numbers say begins with -> source, how it was read

    @property
    def devices(self) -> int:
        """That share each word of a channel."""
        return self.data_devices + self.check_devices

    def table(self) -> "pd.DataFrame":
        """Each number with its source.

        Returns:
            columns `memory`, `what`, `value` (None: no source that was read gives it), `unit`, `source` and `read` (how).

        Example:
            >>> table = memory("hbm4").table().set_index("what")
            >>> table.loc["on die: check bits, 16-bit symbol correction", "value"], table.loc["rates by mode", "value"]
            (32, None)
        """
        import pandas as pd

        return pd.DataFrame(self.numbers(), columns=Number._fields, dtype=object)

    def numbers(self) -> list[Number]:
        """The rows of `table`."""
        found: list[tuple[str, float | str | None, str]] = [("devices: of data", self.data_devices, "of a channel")]
        found += [("devices: of check bits", self.check_devices, "of a channel"), ("block", self.block, "bytes")]
        sizes = ("ranks", "banks", "rows", "columns")
        units = ("", "of a rank", "of a bank", "64-bit words of a row")
        found += [
            (f"geometry: {size}", getattr(self.geometry, size, None), unit)
            for size, unit in zip(sizes, units, strict=True)
        ]
        for name in LAYERS:
            layers = self.layers.get(name, ())
            found += [] if layers else [(f"{name}: code", None, "")]
            for layer in layers:
                of = f"for {layer.data_bits} data bits" if layer.data_bits else ""
                found.append((f"{name}: check bits, {layer.code}", layer.check_bits, of))
                if layer.passes is not None:
                    found.append((f"{name}: errors that pass, {layer.code}", layer.passes, "share"))
        found += [(f"rates: {mode}", rate.total, "FIT of a device") for mode, rate in (self.fit or {}).items()]
        found += [] if self.fit else [("rates by mode", None, "FIT of a device")]
        rows = [Number(self.name, what, value, unit, *self._source(what, value)) for what, value, unit in found]
        rows += [
            Number(
                self.name, f"uncorrectable: {one.of}", one.hours, f"hours of a GPU; {one.counts}", one.source, one.read
            )
            for one in self.uncorrectable
        ]
        if not self.uncorrectable:
            rows.append(Number(self.name, "uncorrectable", None, "hours of a device", *self._source("", None)))
        return rows

    def fit_per_mbit(self, capacity: int | str) -> tuple[float, float]:
        """The published uncorrectable rates as a range, FIT/Mbit.

        Args:
            capacity: memory of a GPU of those studies, in bytes or as "80GB". The texts that were read do not give it.

        Raises:
            ValueError: no published rate, or a capacity that is no amount over 0.

        Example:
            >>> [round(rate, 4) for rate in memory("hbm4").fit_per_mbit(capacity="80GB")]
            [0.0056, 0.0185]
        """
        low, high = self.hourly()
        if not (size := amount(capacity, "capacity")):
            raise ValueError(f"capacity is {capacity!r}; it must be more than 0 bytes")
        return 1e9 * low * MBIT / (8 * size), 1e9 * high * MBIT / (8 * size)

    def hourly(self) -> tuple[float, float]:
        """The published uncorrectable rates of one device as a range, per hour.

        Raises:
            ValueError: no published rate.
        """
        if not self.uncorrectable:
            named = ", ".join(name for name, one in MEMORIES.items() if one.uncorrectable)
            raise ValueError(
                f"memory {self.name!r} has no published uncorrectable rate that was read; {named} has those of HBM3"
            )
        hours = [one.hours for one in self.uncorrectable]
        return 1 / max(hours), 1 / min(hours)

    @property
    def modes(self) -> tuple[str, ...]:
        """Of faults that it can have."""
        return tuple(mode for mode in FIT if mode != "ranks" or self.devices > 1)

    def check_mode(self, mode: str) -> None:
        """Raises ValueError for a mode of faults that this memory cannot have."""
        if mode not in self.modes:
            raise ValueError(
                f"mode is {mode!r}, and {self.name} has one device for each channel, which shares its place with none; give a "
                "mode up to 'banks'"
            )

    def check_chipkill(self) -> None:
        """Raises ValueError where no code can correct a failed device."""
        if not self.check_devices:
            raise ValueError(
                f"{self.name} has one device for each channel, so no chipkill can correct it when it fails; give codes over "
                f"its blocks of {self.block} bytes (dr.BlockCode) and reload what they detect"
            )

    def required_geometry(self) -> Geometry:
        """The geometry.

        Raises:
            ValueError: None is given.
        """
        if self.geometry is None:
            raise ValueError(
                f"memory {self.name!r} has no geometry of a source that was read; give geometry=Geometry(...)"
            )
        return self.geometry

    def required_fit(self) -> Mapping[str, Fit]:
        """The rates by mode.

        Raises:
            ValueError: None are given.
        """
        if self.fit is None:
            raise ValueError(
                f"memory {self.name!r} has no rates by mode of a source that was read; give your own, as an assumption "
                "dr.rates.FAULTS (DDR2, 2012)"
            )
        return self.fit

    def _source(self, what: str, value: object) -> tuple[str, str]:
        if value is None:
            return "", "no source that was read gives it"
        return next((source, read) for start, source, read in self.sources if what.startswith(start))


def memory(name: "str | Memory") -> Memory:
    """A kind of memory: geometry, code stack and rates, each number with its source.

    Args:
        name: `"hbm4"`, `"lpddr6"`, `"ddr5"` or `"ddr2-2012"`, or what this function returned.

    Raises:
        ValueError: another name, or a memory with other numbers. `"ddr4"` is refused, since its field study was not read.

    Example:
        >>> memory("lpddr6").devices, memory("ddr5").devices, memory("hbm4").fit
        (1, 10, None)
    """
    if not isinstance(name, str):
        kind = check_instance("memory", name, Memory, f"the name of a memory, as {', '.join(MEMORIES)}")
        if kind != MEMORIES.get(kind.name):
            raise ValueError(
                f"memory is a changed {kind.name!r}; it must be one of {', '.join(MEMORIES)}: give a geometry and rates of "
                "your own, with its name"
            )
        return kind
    if name == "ddr4":
        raise ValueError(
            "memory is 'ddr4', whose rates by mode (arXiv:2408.15302) were not read, only their abstract; known: "
            + ", ".join(MEMORIES)
        )
    if name not in MEMORIES:
        raise unknown("memory", name, MEMORIES)
    return MEMORIES[name]


_LLAMA = Uncorrectable(
    54 * 24 * 16_384 / 72,
    "HBM3, Llama 3",
    "unexpected stops of a training job put down to HBM3: 72 in 54 days on 16,384 H100",
    "A. Dubey et al., The Llama 3 Herd of Models, arXiv:2407.21783, table 5",
    "table and text, in a public repository",
)
_DELTA = Uncorrectable(
    88_768,
    "HBM3, Delta",
    "mean time between memory errors of an H100, in 11.7 million GPU hours of A100 and H100; the page that was read does not "
    "say whether codes corrected some",
    "S. Cui et al., Story of Two GPUs, SC 2025, arXiv:2503.11901",
    "the abstract (3.2 times less than of an A100); the number on a page that quotes the paper",
)
_SIMULATORS = {
    "ddr5": (
        "Ramulator 2, preset DDR5_16Gb_x4, one rank of a channel of 32 data lines",
        "the presets of that public simulator",
    ),
    "hbm4": ("Ramulator, preset HBM4_32Gb_4Hi (JESD270-4A, table 4), one of two pseudo-channels of a channel", _CODE),
    "lpddr6": ("Ramulator, preset LPDDR6_16Gb_x12 (JESD209-6, tables 2 and 302), one sub-channel", _CODE),
}


def _read(name: str) -> tuple[tuple[str, str, str], ...]:
    return (("geometry", *_SIMULATORS[name]), ("", _CERBERUS, _TEXT))


_CRC16, _SECDED = "CRC16", "SEC-DED"
MEMORIES = {
    "ddr2-2012": Memory(
        "ddr2-2012",
        DATA_CHIPS,
        CHIPS - DATA_CHIPS,
        64,
        Geometry(),
        "four ranks of 18 devices of 1 Gb",
        {},
        FIT,
        (),
        (
            ("rates", "V. Sridharan, D. Liberty, A study of DRAM failures in the field, SC 2012", _HERE),
            ("", "devices of 1 Gb, of that study; 18 of 4 bits for each word as of docs/injection.md", _HERE),
        ),
    ),
    "ddr5": Memory(
        "ddr5",
        8,
        2,
        64,
        Geometry(ranks=1, banks=32, rows=65536, columns=1024),
        "one rank of a channel of 32 data lines: 8 devices of 16 Gb with data, 2 with check bits",
        {
            "on die": (Layer("SEC, faults bounded to 16 bits", 8, 128),),
            "link": (Layer(_CRC16, None, None),),
            "system": (Layer("single-device correction", 128, 512),),
        },
        None,
        (),
        _read("ddr5"),
    ),
    "hbm4": Memory(
        "hbm4",
        1,
        0,
        32,
        Geometry(ranks=1, banks=16, rows=16384, columns=128),
        "one pseudo-channel in a stack of 4 dies of 32 Gb",
        {
            "on die": (Layer("16-bit symbol correction", 32, 272, 3e-4),),
            "link": (Layer("parity", 8, 272),),
            "system": (Layer(_CRC16, 16, 256, 2e-5), Layer(_SECDED, 16, 256, 4e-3)),
        },
        None,
        (_LLAMA, _DELTA),
        _read("hbm4"),
    ),
    "lpddr6": Memory(
        "lpddr6",
        1,
        0,
        32,
        Geometry(ranks=1, banks=16, rows=65536, columns=256),
        "one sub-channel of 12 lines, 16 Gb",
        {
            "on die": (Layer(_SECDED, 16, 272),),
            "link": (Layer("single-error correction or detection", 16, 272),),
            "system": (
                Layer(_SECDED, 16, 256),
                Layer("8-bit symbol correction", 16, 256, 1 - 0.867),
                Layer(_CRC16, 16, 256),
            ),
        },
        None,
        (),
        _read("lpddr6"),
    ),
}
# Of double errors in a word of SEC on die, and of the triple errors that these become, the shares that are miscorrected.
CHAIN = (
    Number("ddr5", "doubles that SEC on die turns into triples", 0.45, "share", _COMET, _TEXT),
    Number("ddr5", "triples that SEC-DED then miscorrects", 0.55, "share", _COMET, _TEXT),
    Number("ddr5", "accesses for one silent error at a raw rate of 1e-4", 3e6, "", _COMET, _TEXT),
)
