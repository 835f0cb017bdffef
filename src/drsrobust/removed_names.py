"""Names that version 0.5 removed. For one version their use raises an error of one line with what to write instead."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

_OWN_MODEL = "write an error model of your own (docs/extending.md)"
_TRIALS = "give trials= (docs/campaigns.md)"
_PROTECTED = "the map of `inject` holds the errors that remain; `mitigation.screen` says what was detected"
_STRATA = "use drsrobust.statistics.strata.Strata"

# Module (of classes and functions, that which defines them) -> removed name -> what to write instead.
INSTEAD = {
    "drsrobust": {
        "study": "import drsrobust_study",
        "check_parameters": "use drsrobust_study.check_parameters",
        "FieldMixture": _OWN_MODEL,
        "Strided": _OWN_MODEL,
    },
    "drsrobust.injection": {
        **dict.fromkeys(("FieldMixture", "Pattern", "Strided"), _OWN_MODEL),
        "Application": "use AppliedMap",
    },
    "drsrobust.campaign": {"strata": "use drsrobust.campaign.bit_partition"},
    "drsrobust.statistics": {
        **dict.fromkeys(("required_trials", "checkpoints", "is_precise", "stopping_interval"), _TRIALS),
        **dict.fromkeys(("error_count_grid", "curve_from_counts", "binomial_weights"), 'run sampling="stratified"'),
        **dict.fromkeys(("stratified_mean", "stratified_proportion"), _STRATA),
    },
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


def removed(where: str, name: str, thing: str | None = None) -> str | None:
    """The line on a removed name; None for any other name.

    Args:
        where: key of `INSTEAD`.
        name: that was used.
        thing: what the message says of whose name it is; None: `where`.
    """
    instead = INSTEAD.get(where, {}).get(name)
    return instead and f"{thing or where} has no {name!r} since version 0.5; {instead}"


def module_getattr(module: str, load: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """A module's `__getattr__`, which raises AttributeError for removed names and loads others by `load`."""

    def attribute(name: str) -> Any:
        if line := removed(module, name):
            raise AttributeError(line)
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
