"""Names that version 0.5 removed. For one version their use raises an error of one line with what to write instead."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

_TRIALS = "give trials= (docs/campaigns.md)"
_PROTECTED = "the map of `inject` holds the errors that remain; `mitigation.screen` says what was detected"

# Module that defines the class or function -> removed attribute or argument -> what to write instead.
INSTEAD = {
    "drsrobust.campaign.campaign": {"protocol": "give label=", "precision": _TRIALS, "max_trials": _TRIALS},
    "[campaign]": {"precision": _TRIALS, "max_trials": _TRIALS},
    "drsrobust.mitigation.activations.clipping": {
        "places": "give sites=",
        "kinds": "use .sites",
        "as_released": "use drsrobust_study.as_released.clippings",
    },
    "drsrobust.mitigation.memory.bit_protection": {"as_released": "use drsrobust_study.as_released.AppliedTooEarly"},
    "drsrobust.mitigation.memory.base": {"report": "use .screen"},
    "drsrobust.injection.error_map": {
        **dict.fromkeys(("drawn", "drawn_bits", "detected", "repaired", "stopped", "with_detection"), _PROTECTED),
        "remaining": "use .with_words",
    },
    "drsrobust.plots.curves": {"protocol": "give label="},
}

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _line(thing: str, name: str, instead: str) -> str:
    return f"{thing} has no {name!r} since version 0.5; {instead}"


def removed(where: str, name: str, thing: str | None = None) -> str | None:
    """The line on a removed name; None for any other name.

    Args:
        where: key of `INSTEAD`.
        name: that was used.
        thing: what the message says of whose name it is; None: `where`.
    """
    instead = INSTEAD.get(where, {}).get(name)
    return instead and _line(thing or where, name, instead)


def module_getattr(
    module: str, instead: Mapping[str, str], load: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """A module's `__getattr__`.

    Args:
        module: its name.
        instead: removed name -> what to write instead; these raise AttributeError.
        load: loads the other names; None: there are none.
    """

    def attribute(name: str) -> Any:
        if name in instead:
            raise AttributeError(_line(module, name, instead[name]))
        if load is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return load(name)

    return attribute


def refuses_arguments(function: F) -> F:
    """Decorator: removed keyword arguments raise TypeError. A method is named by its class."""
    thing = function.__qualname__.split(".")[0]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if line := removed(function.__module__, name, thing):
                raise TypeError(line)
        return function(*args, **options)

    return checked  # type: ignore[return-value]


class _Removed:
    """An attribute that raises AttributeError."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise AttributeError(self._line)


def refuses_attributes(cls: C) -> C:
    """Decorator of a class: its removed attributes raise AttributeError."""
    for name in INSTEAD[cls.__module__]:
        setattr(cls, name, _Removed(str(removed(cls.__module__, name, cls.__name__))))
    return cls
