"""The error models again, from what their docstrings say: one word and one bit at a time, in Python's own numbers.

Slow on purpose, and no part of the package: of the error models it reads the settings, of an error map the entries.
"""

import hashlib
import json
import math
import struct
from dataclasses import dataclass, fields
from itertools import islice

import torch
from numpy.random import PCG64, SeedSequence

FLOATS = {  # bits of the exponent, bits of the mantissa
    "float64": (11, 52),
    "float32": (8, 23),
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float8_e4m3fn": (4, 3),
    "float8_e5m2": (5, 2),
}
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8}
FORMATS = (*FLOATS, *INTEGERS)
LETTERS = {8: "B", 16: "H", 32: "I", 64: "Q"}  # of unsigned integers, in the struct module
GAP, POSITION, VALUE = 0, 1, 2


def width(form):
    return 1 + sum(FLOATS[form]) if form in FLOATS else INTEGERS[form]


def field(form, bit):
    """What a bit stands for."""
    if bit == width(form) - 1 and form != "uint8":
        return "sign"
    if form not in FLOATS:
        return "value"
    return "mantissa" if bit < FLOATS[form][1] else "exponent"


@dataclass
class Memory:
    """A targeted tensor: its words in row-major order, and which of its rows are targeted (None: all)."""

    name: str
    form: str
    shape: tuple
    words: list
    rows: list | None = None

    @classmethod
    def of(cls, name, tensor, rows=None):
        """What a tensor holds."""
        form = str(tensor.dtype).removeprefix("torch.")
        return cls(
            name, form, tuple(tensor.shape), raw(tensor), None if rows is None else sorted({int(r) for r in rows})
        )

    @property
    def runs(self):
        """The targeted words, in runs of neighbouring rows."""
        if self.rows is None:
            return [list(range(len(self.words)))]
        length, runs = math.prod(self.shape[1:]), []
        for row in self.rows:
            if row - 1 not in self.rows:
                runs.append([])
            runs[-1] += range(row * length, (row + 1) * length)
        return runs

    @property
    def targeted(self):
        return [word for run in self.runs for word in run]

    def eligible(self, bits=None):
        """The eligible bits of each word, from the lowest."""
        every = range(width(self.form))
        return [bit for bit in every if bits is None or bit in bits or field(self.form, bit) in bits]


def raw(tensor):
    """A tensor's words as unsigned integers, in row-major order."""
    content = bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
    letter = LETTERS[8 * tensor.element_size()]
    return list(struct.unpack(f"<{len(content) // tensor.element_size()}{letter}", content))


def flipped(words, masks):
    """Words with the bits of masks (by word) flipped, one at a time."""
    words = list(words)
    for word, mask in masks.items():
        for bit in range(64):
            if mask >> bit & 1:
                words[word] ^= 1 << bit
    return words


def entries(error_map):
    """The masks of an error map by (tensor, word)."""
    arrays = zip(error_map.tensor.tolist(), error_map.word.tolist(), error_map.mask.tolist(), strict=True)
    return {(error_map.targets[tensor], word): mask for tensor, word, mask in arrays}


class Clock:
    """The error clock: places by their number, in the order in which they are reached."""

    def __init__(self, places, seed, summand):
        self.n_sites, self.seed, self.summand = places, seed, summand

    def stream(self, use):
        words = PCG64(SeedSequence(self.seed, spawn_key=(self.summand, use)))
        while True:
            yield int(words.random_raw())

    def reached(self, rate=None, k=None):
        """Place -> number of its first arrival: at a rate, or the first k places."""
        gaps, positions = self.stream(GAP), self.stream(POSITION)
        shift, now, arrival, first = 64 - (self.n_sites - 1).bit_length(), 0.0, 0, {}
        k = self.n_sites if rate == 1 else k
        while k is None or len(first) < k:
            if k is None:
                now += -math.log(((next(gaps) >> 12) + 0.5) * 2.0**-52) / self.n_sites
                if now >= -math.log1p(-rate):
                    break
            place = 0 if self.n_sites == 1 else next(positions) >> shift
            while place >= self.n_sites:
                place = next(positions) >> shift
            first.setdefault(place, arrival)
            arrival += 1
        return first

    def brought(self, arrival, words):
        """The raw words that an arrival brings, when each brings so many."""
        return list(islice(self.stream(VALUE), arrival * words, (arrival + 1) * words))


def canonical(model):
    """A model without its rate or count: its class's name and its other fields, as JSON."""
    left = {"BitFlip": {"ber"}, "FixedCount": {"k"}, "RowError": {"rate", "density"}}
    name = type(model).__name__
    given = {f.name: getattr(model, f.name) for f in fields(model) if f.name not in left.get(name, {"rate"})}
    if given.get("critical", 0) is None:
        del given["critical"], given["critical_bits"]
    elif "critical" in given:
        given["critical_bits"] = {name: getattr(model.critical_bits, name) for name in ("bits", "table_rows")}
    return json.dumps({"error_model": name, **given}, sort_keys=True, separators=(",", ":"))


def clock(model, places, seed, occurrence, stream=""):
    """The clock of a model."""
    number = int.from_bytes(hashlib.sha256((canonical(model) + stream).encode()).digest()[:4], "big")
    return Clock(places, seed, (number + occurrence) % 2**32)


class Drawn(dict):
    """Masks by (tensor, word); `n_sites` and `n_events` as of an error map."""

    n_sites = n_events = None

    def flip(self, memory, word, bits):
        """Bits that are wrong, whether they were already or not."""
        for bit in bits:
            self[memory.name, word] = self.get((memory.name, word), 0) | 1 << bit


def sample(model, memories, seed, occurrence=0):
    """What an error model draws."""
    memories = sorted(memories, key=lambda memory: memory.name)
    if type(model).__name__ == "Sum":
        return _sum(model, memories, seed, occurrence)
    kind = type(model).__name__
    if kind in ("BitFlip", "FixedCount", "SingleBit", "StuckAt", "Burst"):
        bits = (model.bit,) if kind == "SingleBit" else getattr(model, "bits", None)
        places = [(m, word, bit) for m in memories for word in m.targeted for bit in m.eligible(bits)]
    elif kind == "RowError":
        places = [(m, row) for m in memories for row in _storage_rows(m, model.row_bytes)]
    else:
        places = [(m, word) for m in memories for word in m.targeted]
    if not places or getattr(model, "k", 0) > len(places):
        raise ValueError("not so many eligible bits")
    ticking = clock(model, len(places), seed, occurrence)
    if kind in ("FixedCount", "SingleBit"):
        reached = ticking.reached(k=getattr(model, "k", 1))
    else:
        reached = ticking.reached(rate=model.ber if kind == "BitFlip" else model.rate)
    drawn = Drawn()
    if getattr(model, "critical", None) is not None:
        return _critical(model, memories, places, reached, seed, occurrence)
    drawn.n_sites, drawn.n_events = len(places), len(reached)
    for place, arrival in reached.items():
        _EFFECTS[kind](model, drawn, places[place], lambda words, arrival=arrival: ticking.brought(arrival, words))
    return drawn


def _critical(model, memories, places, reached, seed, occurrence):
    """A number of critical flips, by a clock of their own, and the flips of the plain map that are not critical; no memory here
    is an embedding table."""
    chosen = [
        (m, word, bit)
        for m in memories
        for word in m.targeted
        for bit in m.eligible(model.bits)
        if bit in (top(m.form) if b == "exponent_top" else b for b in model.critical_bits.bits)
    ]
    drawn = Drawn()
    others = [places[place] for place in reached if places[place] not in chosen]
    drawn.n_sites, drawn.n_events = len(places) - len(chosen), len(others)
    ticking = clock(model, len(chosen), seed, occurrence, "critical")
    for memory, word, bit in [*others, *(chosen[place] for place in ticking.reached(k=model.critical))]:
        drawn.flip(memory, word, [bit])
    return drawn


def top(form):
    """The highest bit of the exponent; None without one."""
    return sum(FLOATS[form]) - 1 if form in FLOATS else None


def _sum(model, memories, seed, occurrence):
    drawn, seen = Drawn(), {}
    for part in model.parts:
        text = canonical(part)
        for key, mask in sample(part, memories, seed, occurrence + seen.get(text, 0)).items():
            drawn[key] = drawn.get(key, 0) | mask
        seen[text] = seen.get(text, 0) + 1
    return drawn


def _flip(model, drawn, place, brought):
    memory, word, bit = place
    drawn.flip(memory, word, [bit])


def _stuck(model, drawn, place, brought):
    memory, word, bit = place
    if memory.words[word] >> bit & 1 != model.value:
        drawn.flip(memory, word, [bit])


def _burst(model, drawn, place, brought):
    memory, word, bit = place
    run = next(run for run in memory.runs if word in run)
    behind = [(w, b) for w in run for b in memory.eligible() if (w, b) >= (word, bit)]
    for w, b in behind[: model.length]:
        drawn.flip(memory, w, [b])


def _multi_bit(model, drawn, place, brought):
    memory, word = place
    drawn.flip(memory, word, some_of(memory.eligible(), brought(model.bits_per_word)))


def _random_word(model, drawn, place, brought):
    memory, word = place
    (value,) = brought(1)
    drawn.flip(memory, word, [bit for bit in memory.eligible() if value >> bit & 1])


def _random_value(model, drawn, place, brought):
    memory, word = place
    (value,) = brought(1)
    if memory.form in FLOATS:
        share = (value >> 11) * 2.0**-53
        new = encoded(model.low * (1 - share) + model.high * share, memory.form)
    else:
        low, high = math.ceil(model.low), math.floor(model.high)
        new = (low + below(high - low + 1, value)) % 2 ** width(memory.form)
    drawn.flip(memory, word, [bit for bit in memory.eligible() if (new ^ memory.words[word]) >> bit & 1])


def _row(model, drawn, place, brought):
    memory, row = place
    bits, wide = 8 * model.row_bytes, width(memory.form)
    for number, value in enumerate(brought(bits)):
        word, bit = divmod(row * bits + number, wide)
        if (value >> 11) * 2.0**-53 < model.density and word in memory.targeted:
            drawn.flip(memory, word, [bit])


_EFFECTS = {
    "BitFlip": _flip,
    "FixedCount": _flip,
    "SingleBit": _flip,
    "StuckAt": _stuck,
    "Burst": _burst,
    "MultiBit": _multi_bit,
    "RandomWord": _random_word,
    "RandomValue": _random_value,
    "RowError": _row,
}


def _storage_rows(memory, row_bytes):
    """The rows of storage that hold a targeted word."""
    size = width(memory.form) // 8
    held = ((word * size + byte) // row_bytes for word in memory.targeted for byte in range(size))
    return sorted(set(held))


def below(n, value):
    """An integer below n from a raw word."""
    return value * n >> 64


def some_of(bits, values):
    """Floyd's choice of as many bits as there are raw words."""
    chosen = []
    for step, value in enumerate(values):
        last = len(bits) - len(values) + step
        number = below(last + 1, value)
        chosen.append(last if number in chosen else number)
    return [bits[number] for number in chosen]


def encoded(value, form):
    """The word of a number: rounded to float32 (but for float64), then to the format, ties to even."""
    if form == "float64":
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    value = struct.unpack("<f", struct.pack("<f", value))[0]
    if form == "float32":
        return struct.unpack("<I", struct.pack("<f", value))[0]
    if form == "float16":
        return struct.unpack("<H", struct.pack("<e", value))[0]
    exponent_bits, mantissa_bits = FLOATS[form]
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
    units = round(abs(value) / 2.0 ** (exponent - mantissa_bits))  # of the last place
    # With the hidden one counted in, a carry runs into the exponent by itself.
    word = units + (exponent + bias - 1 << mantissa_bits)
    return word | (math.copysign(1, value) < 0) << width(form) - 1
