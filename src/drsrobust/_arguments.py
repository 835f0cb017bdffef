"""Whether arguments are what they must be. Each message names the argument, what is right, and the value."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any, TypeVar

Kind = TypeVar("Kind")

_SHOWN = 80  # characters of a value in a message
_LARGEST = 2**63 - 1  # of an int64, as arrays and tables hold


class ArgumentError(ValueError, TypeError):
    """An argument that is not what it must be, in type or in value."""


def wrong(name: str, right: str, value: object) -> ArgumentError:
    """The exception for an argument.

    Example:
        >>> wrong("trials", "a whole number, at least 1", 2.5)
        ArgumentError('trials must be a whole number, at least 1, got 2.5')
    """
    return ArgumentError(f"{name} must be {right}, got {shown(value)}")


def shown(value: object) -> str:
    """A value in one short line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a user's class; whole numbers of over 4,300 digits have none
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def check_whole(name: str, value: Any, least: int | None = None, most: int = _LARGEST) -> int:
    """A whole number as an int, of any type that Python takes as an index, but True and False.

    Example:
        >>> import numpy as np
        >>> check_whole("trials", np.int32(3), 1)
        3
    """
    bounds = "" if least is None else f", at least {least}" if most == _LARGEST else f" from {least} to {most}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise wrong(name, f"a whole number{bounds}", value) from None
    if least is not None and number < least:
        raise wrong(name, f"at least {least}", number)
    if number > most:
        raise wrong(name, f"at most {most}", number)
    return number


def check_seed(value: Any, name: str = "seed") -> int:
    """A seed as an int, from 0 to 2**64 - 1."""
    try:
        return check_whole(name, value, 0, 2**64 - 1)
    except ArgumentError:
        raise wrong(name, "a whole number from 0 to 2**64 - 1", value) from None


def check_number(
    name: str, value: Any, right: str = "a finite number", holds: Callable[[float], bool] = lambda value: True
) -> float:
    """A finite number as a float, of any real type but True and False.

    Args:
        name: of the argument.
        value: its value.
        right: what it must be.
        holds: whether a finite number is that.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            converted = float(value)
        except OverflowError:
            converted = math.inf
        if math.isfinite(converted) and holds(converted):
            return converted
    raise wrong(name, right, value)


def check_rate(name: str, value: Any) -> float:
    """A number from 0 to 1, as a float."""
    return check_number(name, value, "a number from 0 to 1", lambda rate: 0 <= rate <= 1)


def check_truth(name: str, value: Any) -> bool:
    """True or False, of Python or NumPy."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise wrong(name, "True or False", value)


def check_text(name: str, value: Any, right: str = "text") -> str:
    """Text that files can hold: without NUL, and in Unicode."""
    if isinstance(value, str) and "\0" not in value:
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise wrong(name, f"{right} in Unicode", value) from None
        return value
    raise wrong(name, f"{right} without NUL" if isinstance(value, str) else right, value)


def check_instance(name: str, value: Any, kind: type[Kind] | tuple[type[Kind], ...], right: str) -> Kind:
    """An object of a class, or of one of several; the message for the class itself says to make one of it."""
    if isinstance(value, kind):
        return value
    error = wrong(name, right, value)
    if isinstance(value, type) and issubclass(value, kind):
        error = ArgumentError(f"{error}; make an object of it, as {value.__name__}(...)")
    raise error


def check_items(name: str, values: Any, right: str, alone: Any = ()) -> list:
    """The entries of a list, tuple, array or another iterable; neither of text nor of a mapping.

    Args:
        name: of the argument.
        values: its value.
        right: what it must be.
        alone: a class, or several; one object of it means a list of it.
    """
    if isinstance(values, alone):
        return [values]
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | type):
        try:
            return list(values)
        except TypeError:  # an array without dimensions
            pass
    raise wrong(name, right, values)


def check_names(name: str, values: Any) -> tuple[str, ...]:
    """A list of names, or one, as a tuple."""
    return tuple(check_text(f"each of {name}", value) for value in check_items(name, values, "a list of names", str))


def check_function(name: str, value: Any, right: str) -> None:
    """Raises ArgumentError for what cannot be called."""
    if not callable(value):
        raise wrong(name, right, value)
