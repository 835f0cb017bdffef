"""The error models again, from what their docstrings say: one word and one bit at a time, in Python's own numbers.

Slow on purpose, and no part of the package: of the error models it reads the settings, of an error map the entries.
"""

import hashlib
import json
import math
import struct
from dataclasses import dataclass, fields
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import count

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


@lru_cache(maxsize=10_000)
def philox(counter, low_key, high_key):
    """The four words of a step of Philox4x64-10 (Salmon et al., SC 2011)."""
    a, b, c, d = counter, 0, 0, 0
    for _ in range(10):
        high, low = divmod(a * 0xD2E7470EE14C6C93, 1 << 64)
        other_high, other_low = divmod(c * 0xCA5A826395121157, 1 << 64)
        a, b, c, d = other_high ^ b ^ low_key, other_low, high ^ d ^ high_key, low
        low_key, high_key = (low_key + 0x9E3779B97F4A7C15) % (1 << 64), (high_key + 0xBB67AE8584CAA73B) % (1 << 64)
    return a, b, c, d


class Clock:
    """The error clock: places by their number, with the (block, number) of each one's first arrival."""

    def __init__(self, places, seed, summand):
        self.n_sites, self.seed, self.summand = places, seed, summand
        self.bits = min(max((places - 1).bit_length(), 1), 20)

    def word(self, stream, number):
        return philox(number // 4, self.seed, self.summand << 32 | stream)[number % 4]

    def arrivals(self, block, rate):
        """How many arrivals a block has: the least number k for which the word of the block is below 2**64 P(K <= k)."""
        with localcontext(prec=80):
            mean = -(1 - Decimal(rate)).ln() * 2**self.bits
            weight = up_to = (-mean).exp()
            for k in count(1):
                if self.word(0, block) < int(up_to * 2**64):
                    return k - 1
                weight *= mean / k
                up_to += weight

    @staticmethod
    def stream(arrival):
        """The number of the streams of an arrival, their first arrival and their words a block."""
        first = 0
        for number in count():
            words = max(4, first // 96 * 4)
            if arrival < first + 3 * words:
                return number, first, words
            first += 3 * words

    def place(self, block, arrival):
        stream, first, words = self.stream(arrival)
        part, lane = divmod(arrival - first, words)
        raw = (self.word(1 + stream, words * block + lane) << 20 * part) % 2**64
        return (block << self.bits) + (raw >> 64 - self.bits)

    def reached(self, rate):
        first = {}
        for block in range(math.ceil(self.n_sites / 2**self.bits)):
            inside = range(block << self.bits, min(block + 1 << self.bits, self.n_sites))
            for arrival in count() if rate == 1 else range(self.arrivals(block, rate)):
                if (place := self.place(block, arrival)) in inside:
                    first.setdefault(place, (block, arrival))
                if rate == 1 and all(place in first for place in inside):
                    break
        return first

    def first(self, k):
        """The first k places, one after the other."""
        stream = PCG64(SeedSequence(self.seed, spawn_key=(self.summand, 1)))
        shift, first = 64 - (self.n_sites - 1).bit_length(), {}
        while len(first) < k:
            place = 0 if self.n_sites == 1 else int(stream.random_raw()) >> shift
            if place < self.n_sites:
                first.setdefault(place)
        return first

    def brought(self, arrival, words):
        """The raw words that an arrival brings, when each brings so many."""
        block, number = arrival
        stream, first, width = self.stream(number)
        begin = (3 * width * block + number - first) * words
        return [self.word(2**31 + stream, begin + k) for k in range(words)]


def canonical(model):
    """A model without its rate or count: its class's name and its other fields, as JSON."""
    left = {"BitFlip": {"ber"}, "FixedCount": {"k"}, "RowError": {"rate", "density"}}
    name = type(model).__name__
    given = {f.name: getattr(model, f.name) for f in fields(model) if f.name not in left.get(name, {"rate"})}
    for part in ("critical", "critical_bits", "others", "mild"):
        if given.get(part, 0) is None:
            del given[part]
    if "critical" in given:
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
        reached = ticking.first(getattr(model, "k", 1))
    else:
        reached = ticking.reached(model.ber if kind == "BitFlip" else model.rate)
    drawn = Drawn()
    if getattr(model, "critical", None) is not None:
        return _critical(model, memories, places, reached, seed, occurrence)
    drawn.n_sites, drawn.n_events = len(places), len(reached)
    for place, arrival in reached.items():
        _EFFECTS[kind](model, drawn, lambda words, arrival=arrival: ticking.brought(arrival, words), *places[place])
    return drawn


def _critical(model, memories, places, reached, seed, occurrence):
    """Numbers of critical and of other flips of sign and exponent, by clocks of their own, and the flips of the plain map that
    are neither; no memory here is an embedding table."""

    def kind(memory, bit):
        if bit in (top(memory.form) if b == "exponent_top" else b for b in model.critical_bits.bits):
            return "critical"
        integer = memory.form not in FLOATS
        return "others" if integer or memory.form == "float8_e4m3fn" or bit >= FLOATS[memory.form][1] else "mild"

    flips, counted = [], 0
    kinds = [one for one in ("critical", "others", "mild") if getattr(model, one, None) is not None]
    for one in kinds:
        chosen = [(m, word, bit) for m, word, bit in places if kind(m, bit) == one]
        counted += len(chosen)
        if count := getattr(model, one):
            ticking = clock(model, len(chosen), seed, occurrence, one)
            flips += [chosen[place] for place in ticking.first(count)]
    drawn = Drawn()
    others = [places[place] for place in reached if kind(places[place][0], places[place][2]) not in kinds]
    drawn.n_sites, drawn.n_events = len(places) - counted, len(others)
    for memory, word, bit in [*others, *flips]:
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


def _flip(model, drawn, brought, memory, word, bit):
    drawn.flip(memory, word, [bit])


def _stuck(model, drawn, brought, memory, word, bit):
    if memory.words[word] >> bit & 1 != model.value:
        drawn.flip(memory, word, [bit])


def _burst(model, drawn, brought, memory, word, bit):
    run = next(run for run in memory.runs if word in run)
    behind = [(w, b) for w in run for b in memory.eligible() if (w, b) >= (word, bit)]
    for w, b in behind[: model.length]:
        drawn.flip(memory, w, [b])


def _multi_bit(model, drawn, brought, memory, word):
    drawn.flip(memory, word, some_of(memory.eligible(), brought(model.bits_per_word)))


def _random_word(model, drawn, brought, memory, word):
    (value,) = brought(1)
    drawn.flip(memory, word, [bit for bit in memory.eligible() if value >> bit & 1])


def _random_value(model, drawn, brought, memory, word):
    (value,) = brought(1)
    if memory.form in FLOATS:
        share = (value >> 11) * 2.0**-53
        new = encoded(model.low * (1 - share) + model.high * share, memory.form)
    else:
        low, high = math.ceil(model.low), math.floor(model.high)
        new = (low + below(high - low + 1, value)) % 2 ** width(memory.form)
    drawn.flip(memory, word, [bit for bit in memory.eligible() if (new ^ memory.words[word]) >> bit & 1])


def _row(model, drawn, brought, memory, row):
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
    """The word of a number, rounded by PyTorch to float32 (but for float64), then to the format, ties to even."""
    first = torch.float64 if form == "float64" else torch.float32
    return raw(torch.tensor([value], dtype=first).to(getattr(torch, form)))[0]
