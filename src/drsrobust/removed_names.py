"""Names that version 0.5 removed. For one version their use raises an error of one line with what to write instead."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

_OWN_MODEL = "write an error model of your own (docs/extending.md)"
_TRIALS = "give trials= (docs/campaigns.md)"
_PROTECTED = "the map of `inject` holds the errors that remain; `mitigation.screen` says what was detected"
_STRATA = "use drsrobust.statistics.strata.Strata"

# Module or class -> removed name -> what to write instead.
INSTEAD = {
    "drsrobust": {
        "study": "import drsrobust_study",
        "check_parameters": "use drsrobust_study.check_parameters",
        "FieldMixture": _OWN_MODEL,
        "Strided": _OWN_MODEL,
    },
    "drsrobust.injection": dict.fromkeys(("FieldMixture", "Pattern", "Strided"), _OWN_MODEL),
    "drsrobust.campaign": {"strata": "use drsrobust.campaign.bit_partition"},
    "drsrobust.statistics": {
        **dict.fromkeys(("required_trials", "checkpoints", "is_precise", "stopping_interval"), _TRIALS),
        **dict.fromkeys(("error_count_grid", "curve_from_counts", "binomial_weights"), 'run sampling="stratified"'),
        **dict.fromkeys(("stratified_mean", "stratified_proportion"), _STRATA),
    },
    "Campaign": {"protocol": "give label=", "precision": _TRIALS, "max_trials": _TRIALS},
    "[campaign]": {"precision": _TRIALS, "max_trials": _TRIALS},
    "ActivationClipping": {
        "places": "give sites=",
        "kinds": "use .sites",
        "as_released": "use drsrobust_study.as_released.clippings",
    },
    "BitProtection": {"as_released": "use drsrobust_study.as_released.AppliedTooEarly"},
    "StorageProtection": {"report": "use .screen"},
    "ErrorMap": {
        **dict.fromkeys(("drawn", "drawn_bits", "detected", "repaired", "stopped", "with_detection"), _PROTECTED),
        "remaining": "use .with_words",
    },
    "mitigated_auc": {"protocol": "give label="},
    "recovery_vs_ber": {"protocol": "give label="},
}

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def removed(where: str, name: str) -> str | None:
    """The line on a removed name; None for any other name."""
    instead = INSTEAD.get(where, {}).get(name)
    return instead and f"{where} has no {name!r} since version 0.5; {instead}"


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
    where = function.__qualname__.split(".")[0]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if line := removed(where, name):
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
    for name in INSTEAD[cls.__name__]:
        setattr(cls, name, _Removed(str(removed(cls.__name__, name))))
    return cls
