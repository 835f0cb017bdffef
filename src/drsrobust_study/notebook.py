"""For every notebook of the study: checked parameters, short tracebacks of refused ones, and a line on provenance."""

import ast
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import drsrobust
from drsrobust.extend import machine, unknown, versions
from drsrobust_extras.pages.annotated_types import fits, type_name

if TYPE_CHECKING:
    from drsrobust.evaluation import Evaluator

# How the library refuses a value. Other errors are faults of code, and keep all of their traceback.
_REFUSALS = (ValueError, TypeError, FileNotFoundError)
_PACKAGES = (Path(drsrobust.__file__).parent, Path(__file__).parent)
_BETWEEN = (Path("<string>"), Path(contextlib.__file__))  # a dataclass's __init__, a context manager's __enter__
# Least and greatest number of a first cell, by the parameter's name; others: whole numbers are at least 1, numbers over 0.
_SEED, _BIT, _SHARE, _ANY = (0, 2**64 - 1), (0, 31), (0.0, 1.0), (0, inf)
BOUNDS = {"seed": _SEED, "train_seeds": _SEED, "bit": _BIT, "bits": _BIT, "protected": _BIT, "sizes": (28_017, inf)}
BOUNDS |= dict.fromkeys(("ber", "bers", "search_ber", "front_ber", "flip_rates", "rates"), _SHARE)
BOUNDS |= dict.fromkeys(("lane_bits", "seen_bits", "trained_bits"), _BIT) | {"lane": _ANY, "shares": _SHARE}
BOUNDS |= dict.fromkeys(("densities", "hot", "quantile", "published"), _SHARE)
BOUNDS |= dict.fromkeys(("accelerators", "budget_bits", "budget_time", "budgets"), _ANY)


def check_parameters(namespace: dict[str, Any]) -> None:
    """Checks the annotated parameters of a notebook before anything is loaded or trained. From then on the traceback of a value
    that the library refuses ends at the line of the notebook.

    papermill checks nothing: `1e-5` in YAML and a list after `-p` become text, a misspelt name becomes a new variable.

    Args:
        namespace: `globals()` of the notebook.

    Raises:
        TypeError: a parameter of another type; the message says how to pass it.
        ValueError: a name set by papermill that is no parameter; a number out of its bounds; an unknown data set.
        FileNotFoundError: the files of a data set are missing.
    """
    if "IPython" in sys.modules:
        from IPython import get_ipython

        if shell := get_ipython():
            shell.set_custom_exc(_REFUSALS, _show_refusal)
    annotations = namespace.get("__annotations__", {})
    for name in _injected(namespace.get("In", ())):
        if name not in annotations:
            raise unknown("parameter", name, annotations)
    values = {name: namespace[name] for name in annotations if name in namespace}
    check_values(values, annotations)
    for dataset in datasets_of(values):
        from drsrobust_extras.data.registry import find_files

        find_files(dataset)


def _show_refusal(
    shell: Any, kind: type, error: Exception, traceback: TracebackType, tb_offset: int | None = None
) -> Any:
    """IPython's handler of `_REFUSALS`."""
    entry, last = traceback, None
    while entry is not None:
        file = Path(entry.tb_frame.f_code.co_filename)
        if file not in _BETWEEN and not any(file.is_relative_to(package) for package in _PACKAGES):
            last = entry
        entry = entry.tb_next
    if last is not None:  # an error that another library raised keeps all entries
        last.tb_next = None
    return shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def check_values(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Checks the type of each parameter by its annotation, and its numbers by `BOUNDS`.

    Args:
        values: of the parameters, by name.
        annotations: types by name; further names are ignored.

    Raises:
        TypeError: a value of another type.
        ValueError: a number out of its bounds.
    """
    for name, value in values.items():
        if not fits(value, annotations[name]):
            raise TypeError(mismatch(name, value, annotations[name]))
        least, most = BOUNDS.get(name, (sys.float_info.min if "float" in type_name(annotations[name]) else 1, inf))
        for number in _leaves(value):
            if isinstance(number, int | float) and not isinstance(number, bool) and not least <= number <= most:
                bounds = f"from {least} to {most}" if most < inf else "over 0" if 0 < least < 1 else f"at least {least}"
                raise ValueError(f"parameter {name!r} has {number!r}; it must be {bounds}")


def datasets_of(parameters: Mapping[str, Any]) -> list[str]:
    """The data sets that a notebook with these parameters reads."""
    one = [parameters["dataset"]] if "dataset" in parameters else []
    return list(dict.fromkeys([*parameters.get("datasets", ()), *one]))


def _injected(cells: Iterable[str]) -> Iterator[str]:
    """Names set by papermill's own cell: the last one in IPython's list of executed cells."""
    for source in [cell for cell in cells if cell.startswith("# Parameters\n")][-1:]:
        names = (target.id for node in ast.parse(source).body for target in getattr(node, "targets", ()))
        yield from (name for name in names if not name.startswith("PAPERMILL_"))  # its option --inject-paths


def mismatch(name: str, value: Any, annotation: Any) -> str:
    """The message for a parameter of another type."""
    text = f"parameter {name!r} is {value!r} ({type(value).__name__}); it must be {type_name(annotation)}"
    number = next((found for leaf in _leaves(value) if (found := _as_number(leaf))), None)
    if number and "float" in type_name(annotation):
        text += f". In YAML {number[0]} is text; write {number[1]}"
    if isinstance(value, str) and value[:1] + value[-1:] == "[]" and "list" in type_name(annotation):
        text += f"; `papermill -p` passes lists as text: use `python -m reproduce NOTEBOOK '{name}=...'`"
    return text


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _as_number(text: Any) -> tuple[str, str] | None:
    """A text that is a number in scientific notation, and the number as YAML reads it: 1e-6 as 1.0e-6, 2.5e6 as 2.5e+6."""
    match = re.fullmatch(r"([+-]?\d+)(\.\d+)?[eE]([+-]?)(\d+)", text) if isinstance(text, str) else None
    if match is None:
        return None
    integer, fraction, sign, power = match.groups()
    return text, f"{integer}{fraction or '.0'}e{sign or '+'}{power}"


def provenance(evaluator: "Evaluator | None" = None) -> str:
    """One line on the origin of numbers: data, rows, model state, versions; without an evaluator machine and versions."""
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    if evaluator is None:
        return f"{machine()['cores']} cores {machine()['architecture']}; {made_with}"
    return (
        f"data {evaluator.rows.dataset} {evaluator.rows.part}, {len(evaluator.rows):,} rows, "
        f"{evaluator.rows.fingerprint[:12]}; "
        f"model {evaluator.name}, state {evaluator.checkpoint[:12]}; {made_with}"
    )
