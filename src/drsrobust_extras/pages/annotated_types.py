"""Whether values from outside, as of a TOML file or of papermill, have an annotated type."""

from types import NoneType, UnionType
from typing import Any, get_args, get_origin


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value has an annotated type: int, float (or int), bool, str, None, Any, lists, dictionaries with text as keys,
    and unions of these."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, UnionType):
        return any(fits(value, part) for part in parts)
    if annotation is Any:
        return True
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, parts[1]) for item in value.values())
    if annotation is None or annotation is NoneType:
        return value is None
    if annotation in (int, float):
        return isinstance(value, (int, float) if annotation is float else int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def type_name(annotation: Any) -> str:
    """An annotated type as text."""
    is_plain = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__name__ if is_plain else str(annotation).replace("typing.", "")
