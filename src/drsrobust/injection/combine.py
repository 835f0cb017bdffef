"""Several error models in one trial."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from drsrobust._storage import canonical_json
from drsrobust.injection.base import NONE, Before, ErrorModel
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.flips import SingleBit
from drsrobust.injection.space import AddressSpace
from drsrobust.injection.union import union


@dataclass(frozen=True)
class Sum(ErrorModel):
    """Error models side by side, as `a + b` makes it: a bit is wrong when one of them hits it (once, if several do).

    Each draws from streams of its own, so that a sum's map holds its summands' maps of the same seed, and `a + b` equals
    `b + a`. Of models that differ in their rate or count alone, the one with the larger draws first: its map holds the maps of
    the others of the same seed. (`RowError`s that differ in rate and in density the other way round are the exception: such a
    sum holds the map of the one with the larger rate.)

    Args:
        parts: the summands.
    """

    rate = None

    parts: tuple[ErrorModel, ...]

    def __post_init__(self) -> None:
        flat = [part for one in self.parts for part in (one.parts if isinstance(one, Sum) else (one,))]
        for part in flat:
            if not isinstance(part, ErrorModel):
                raise TypeError(f"a sum of error models holds {part!r}")
        if not flat:
            raise ValueError("a sum of no error models was asked for")
        object.__setattr__(self, "parts", tuple(sorted(flat, key=order)))

    @property
    def label(self) -> str:
        """The summands with their rates, which no column of a table holds."""
        return " + ".join(repr(part) for part in self.parts)

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    def canonical(self) -> str:
        """The canonical forms of its summands."""
        return canonical_json({"error_model": "Sum", "parts": [part.canonical() for part in self.parts]})

    def eligible(self, space: AddressSpace) -> AddressSpace:
        """The bits that any of the summands may flip."""
        bits = [(part.bit,) if isinstance(part, SingleBit) else getattr(part, "bits", None) for part in self.parts]
        return space if None in bits else space.only({bit for some in bits for bit in some})

    def expected_share(self, space: AddressSpace) -> None:
        """None: how the summands' bits overlap is not counted."""
        for part in self.parts:
            part.expected_share(space)

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        """The union of the summands' maps."""
        seen = Counter(before)
        maps = []
        for part in self.parts:
            maps.append(part.sample(space, seed=seed, before=seen))
            seen.update(parts_of(part))
        return replace(union(maps), error_model=self.label, eligible_bits=self.eligible(space).bits)


def parts_of(model: ErrorModel) -> Iterator[str]:
    """The canonical forms of the models that draw: the summands of a sum, else the model itself."""
    return (part.canonical() for part in (model.parts if isinstance(model, Sum) else (model,)))


def order(model: ErrorModel) -> tuple[str, float, float]:
    """By what summands are sorted: their canonical form, then the largest rate or count first, then the largest density."""
    size = model.rate if model.COUNT is None else getattr(model, model.COUNT)
    return model.canonical(), -(size or 0.0), -getattr(model, "density", 0.0)
