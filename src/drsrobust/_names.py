"""One way to say that a name is unknown: the thing, the name, the nearest known one and all there are."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(thing: str, name: object, known: Iterable[str], error: type[Exception] = ValueError) -> Exception:
    """The exception to raise for a name that is not among `known`."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return error(f"unknown {thing} {name!r}{hint} known: {', '.join(known) or 'none'}")
