"""The error for a name that is none of the possible ones."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from drsrobust._arguments import shown


def unknown(thing: str, name: object, choices: Iterable[str], error: type[Exception] = ValueError) -> Exception:
    """The exception for a name that is not in `choices`; its message suggests the nearest one."""
    choices = list(choices)
    near = get_close_matches(name, choices, n=1) if isinstance(name, str) else ()
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return error(f"unknown {thing} {shown(name)}{hint} known: {', '.join(choices) or 'none'}")


def check_choice(kind: str, value: Any, choices: Collection[str]) -> None:
    """Raises ValueError if a value is not among the known ones; `kind` names it in the message."""
    if not isinstance(value, str) or value not in choices:
        raise unknown(kind, value, choices)
