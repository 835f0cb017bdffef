"""The strata of faults of one chip: which chip fails, and whether a critical bit is wrong."""

from dataclasses import replace
from math import comb, lcm
from typing import Any

import numpy as np

from drsrobust.extend import Stratum, pilots_of
from drsrobust.injection import AddressSpace, BitFlip, CriticalBits
from drsrobust.statistics import ALL
from drsrobust_extras.protection.memory_map import CHIP_BITS, CHIPS, DATA_CHIPS, WORD, Layout, exponent_chips

SMALL_MODES = ("bit", "word")  # of one 64-bit word


def strata_by_chip(fault: Any, space: AddressSpace, critical_bits: CriticalBits) -> list[Stratum]:
    """The strata of a fault in any chip of a memory of 16 chips of data and two of check bits.

    By the chip that fails: of low mantissa bits, of `exponent_chips`, of check bits (where there are formats other than floats:
    of data and of check bits). Faults of one bit or word with a critical bit are a stratum of their own, and so are those with
    other bits of sign and exponent alone.

    Args:
        fault: a `MemoryFault`, of which `mode`, `lines` and `density` count; strata are drawn by copies of it with other
            `chips`, `critical` and `others`.
        space: what it may hit.
        critical_bits: which are critical.
    """
    try:
        bits = critical_bits.parts(space)
        chance, harmful = (critical_chance(fault, space, part) for part in (bits.critical, bits.harmful))
    except ValueError:  # the target has no critical bits
        chance = harmful = np.zeros(DATA_CHIPS)
    top = exponent_chips(space)
    if not top and not chance.any():
        return [Stratum(ALL, 1.0, fault)]
    others = [chip for chip in range(DATA_CHIPS) if chip not in top]
    # Mantissa chips move a number by under an eighth of itself, unless a range check then sets it to 0.
    groups = {"mantissa chips" if top else "data chips": (others, "chip" if top else None)}
    groups |= {"exponent chips": ([*top], None), "check chips": (list(range(DATA_CHIPS, CHIPS)), "word")}
    if not chance.any():
        strata = ((name, len(chips) / CHIPS, {"chips": chips}, within) for name, (chips, within) in groups.items())
        return [Stratum(name, share, replace(fault, **new), within) for name, share, new, within in strata if share]
    # Flips of each kind in a fault: a bit of these is one of a place's 4, or wrong in a word by lines and density.
    wrong = (1 if fault.mode == "bit" else fault.lines * fault.density) / CHIP_BITS / (CHIPS * Layout(space).words)
    pilots = pilots_of(BitFlip(0.0), bits, (wrong * bits.others.bits, wrong * bits.mild.bits), critical_bits)
    harm = {name: tuple(one.name for one in pilots if name in one.name) for name in ("others", "mild")}
    none = {"critical_bits": critical_bits, "critical": 0, "others": 0}
    found = []
    for name, (chips, within) in groups.items():
        if not chips:
            continue
        if name == "check chips":
            found.append(Stratum(name, len(chips) / CHIPS, replace(fault, chips=chips), within))
        else:
            share, drawn = float((1 - harmful[chips]).sum()) / CHIPS, replace(fault, **none, chips=chips)
            found.append(Stratum(f"{name}, not critical", share, drawn, "word", harm["mild"]))
    share, drawn = float((harmful - chance).sum()) / CHIPS, replace(fault, **none | {"others": "1+"})
    found.append(Stratum("other bits of sign and exponent", share, drawn, "word", harm["others"]))
    drawn = replace(fault, critical="1+", critical_bits=critical_bits)
    found.append(Stratum("critical bits", float(chance.sum()) / CHIPS, drawn))
    return [one for one in found if one.probability > 1e-15] + pilots  # but for rounding


def critical_chance(fault: Any, space: AddressSpace, part: AddressSpace) -> np.ndarray:
    """The probability that a fault of one bit or word in each of the data chips makes a bit of a part of the space wrong (0
    for other modes): float64 [16]."""
    chance, words = np.zeros(DATA_CHIPS), Layout(space).words
    if fault.mode not in SMALL_MODES:
        return chance
    right = 1 - round(fault.density * 2**32) / 2**32  # of a bit whose line fails
    hit = np.arange(CHIP_BITS + 1) / CHIP_BITS  # by the number k of critical bits among the chip's 4
    if fault.mode == "word":  # j of them lie in lines that fail, by the hypergeometric distribution
        for k in range(CHIP_BITS + 1):
            ways = [comb(k, j) * comb(CHIP_BITS - k, fault.lines - j) * right**j for j in range(fault.lines + 1)]
            hit[k] = 1 - sum(ways) / comb(CHIP_BITS, fault.lines)
    for bits in part.eligible:
        tensor, width = bits.tensor, bits.tensor.format.width
        per, period = width // CHIP_BITS, len(bits.masks)
        residue = np.arange(lcm(period, WORD // width))  # words with one residue have their bits in the same chips
        first = np.zeros(1, np.int64) if tensor.rows is None else tensor.rows * tensor.row_words
        length = tensor.size if tensor.rows is None else tensor.row_words
        starts, counts = np.unique(first % len(residue), return_counts=True)
        after = (residue - starts[:, None]) % len(residue)
        n_critical = counts @ ((length - 1 - after) // len(residue) + 1)
        shifts = np.arange(0, width, CHIP_BITS, dtype=np.uint64)
        nibbles = bits.masks[residue % period, None] >> shifts & np.uint64(15)
        chips = per * (residue % (WORD // width))[:, None] + np.arange(per)
        np.add.at(chance, chips, n_critical[:, None] * hit[np.bitwise_count(nibbles)])
    return chance / words
