"""For every notebook: checked parameters, the concluding paragraph with its verdict, and a line on provenance."""

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from drsrobust._environment import machine, unknown, versions
from drsrobust._types import fits, type_name

if TYPE_CHECKING:
    from drsrobust.evaluation import Evaluator


def check_parameters(namespace: dict[str, Any]) -> None:
    """Checks the annotated parameters of a notebook before anything is loaded or trained.

    papermill checks nothing: `1e-5` in YAML and a list after `-p` become text, a misspelt name becomes a new variable.

    Args:
        namespace: `globals()` of the notebook.

    Raises:
        TypeError: a parameter of another type; the message says how to pass it.
        ValueError: a name set by papermill that is no parameter; a value that `check_values` refuses.
        FileNotFoundError: the files of a data set are missing.
    """
    annotations = namespace.get("__annotations__", {})
    for name in _injected(namespace.get("In", ())):
        if name not in annotations:
            raise unknown("parameter", name, annotations)
    values = {name: namespace[name] for name in annotations if name in namespace}
    check_values(values, annotations)
    for dataset in datasets_of(values):
        from drsrobust.data.registry import find_files

        find_files(dataset)


def check_values(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Checks the type of each parameter by its annotation, and its value by its name: `trials` is at least 1 in every notebook,
    `bers` are over 0, `models` are registered. Names that no notebook of this project uses may have any value.

    Args:
        values: of the parameters, by name.
        annotations: types by name; further names are ignored.

    Raises:
        TypeError: a value of another type.
        ValueError: a value out of range, an empty list, an unknown model or data set, values that contradict each other.
    """
    for name, value in values.items():
        if not fits(value, annotations[name]):
            raise TypeError(mismatch(name, value, annotations[name]))
        for item in _items(name, value) if name in _RULES else ():
            rule, required = _RULES[name]
            if isinstance(item, str if rule in _OF_TEXT else (int, float)) and not rule(item):
                text = f" is {item!r}" if item is value else f" holds {item!r}"
                raise ValueError(f"parameter {name!r}{text}; it must be {required}")
    for name, many in (("front_ber", "bers"), ("compare_at", "sizes")):
        if name in values and values[name] not in values.get(many, [values[name]]):
            raise ValueError(f"parameter {name!r} is {values[name]!r}; it must be one of {many}: {values[many]!r}")


def datasets_of(parameters: Mapping[str, Any]) -> list[str]:
    """The data sets that a notebook with these parameters reads."""
    if "datasets" in parameters:
        return parameters["datasets"]
    return [parameters["dataset"]] if "dataset" in parameters else []


def _injected(cells: Iterable[str]) -> Iterator[str]:
    """Names set by papermill's own cell: the last one in IPython's list of executed cells."""
    for source in [cell for cell in cells if cell.startswith("# Parameters\n")][-1:]:
        names = (target.id for node in ast.parse(source).body for target in getattr(node, "targets", ()))
        yield from (name for name in names if not name.startswith("PAPERMILL_"))  # its option --inject-paths


def _items(name: str, value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
    elif not value and name not in _MAY_BE_EMPTY:
        raise ValueError(f"parameter {name!r} is or holds an empty list; it must hold at least one value")
    else:
        for item in value:
            yield from _items(name, item)


def _dataset(value: str) -> bool:
    """Raises ValueError with the nearest name for an unknown data set; so does `_model`."""
    from drsrobust.data.registry import split_name

    return bool(split_name(value))


def _model(value: str) -> bool:
    from drsrobust.models.registry import MODELS

    if value not in MODELS:
        raise unknown("model", value, MODELS)
    return True


def _pair(value: str) -> bool:
    model, gap, dataset = value.partition(" ")
    return bool(gap) and _model(model) and _dataset(dataset)


def _fault(value: str) -> bool:
    """Raises ValueError with the nearest mode for an unknown one."""
    from drsrobust.rates import FIT

    if value not in FIT:
        raise unknown("mode of a memory fault", value, FIT)
    return True


# Name of a parameter -> a test of its value, or of each value of a list, and what the value must be.
_OF_TEXT = (_dataset, _model, _pair, _fault)
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = dict.fromkeys(("dataset", "datasets"), (_dataset, ""))
_RULES |= dict.fromkeys(("models", "model_name", "shown"), (_model, ""))
_RULES |= dict.fromkeys(("leave_out", "reseeded"), (_pair, "a model and a data set, as 'afm movielens-1m/full'"))
_RULES["fault"] = (_fault, "")
_RULES["densities"] = (lambda value: _dataset(f"synthetic-dummy/{value:g}"), "")
_RULES |= dict.fromkeys(("seed", "train_seeds"), (lambda value: 0 <= value < 2**63, "0 to 2**63 - 1"))
_RULES |= dict.fromkeys(
    ("tables", "target"), (lambda value: True, "")
)  # names are known only after loading data and model
for _names, _test, _required in (
    ("bit bits protected", lambda value: 0 <= value <= 31, "a bit, 0 (the lowest) to 31"),
    ("trials single_trials sweep_trials row_trials search_trials proof_trials rule_trials shape_trials drawn_models epochs "
     "small_trials flip_trials pair_trials flip_maps large_trials "
     "parameters bit_trials hosts memory_gib accelerators fault_trials afn_neurons anywhere injections int8_injections "
     "counts test_rows table_rows timed_rows rows inputs batch batches turns repeats widths depths embedding_dims",
     lambda value: value >= 1, "at least 1"),
    ("sizes int8_sizes compare_at", lambda value: value >= 28_017, "at least 28017, the smallest model of this shape"),
    ("ber bers front_ber search_ber rates hot quantile loss losses claimed", lambda value: 0 < value <= 1,
     "over 0, at most 1"),
    ("bounds margin limit recommendations push_interval repair_time days", lambda value: 0 < value < math.inf,
     "a finite number over 0"),
    ("budget_bits budget_time budgets claimed_cost", lambda value: 0 <= value < math.inf, "a share, 0 or more"),
    ("bounds margin limit", lambda value: 0 < value < math.inf, "a finite number over 0"),
):  # fmt: skip
    _RULES |= dict.fromkeys(_names.split(), (_test, _required))
_MAY_BE_EMPTY = ("leave_out", "reseeded", "int8_sizes")


def mismatch(name: str, value: Any, annotation: Any) -> str:
    """The message for a parameter of another type."""
    text = f"parameter {name!r} is {value!r} ({type(value).__name__}); it must be {type_name(annotation)}"
    texts = [leaf for leaf in _leaves(value) if isinstance(leaf, str)]
    if texts and annotation is not str and (isinstance(value, str) or "str" not in type_name(annotation)):
        number = _as_number(texts[0]) if "float" in type_name(annotation) else None
        text += f". In YAML {texts[0]} is text; write {number}" if number else ". In YAML write 1.0e-5, not 1e-5"
        if isinstance(value, str):
            text += f"; `papermill -p` passes lists as text: use `python -m reproduce NOTEBOOK '{name}=...'`"
    return text


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _as_number(text: str) -> str | None:
    """A number in scientific notation as YAML reads it: 1e-6 as 1.0e-6, 2.5e6 as 2.5e+6; None for other text."""
    match = re.fullmatch(r"([+-]?\d+)(\.\d+)?[eE]([+-]?)(\d+)", text)
    if match is None:
        return None
    whole, fraction, sign, power = match.groups()
    return f"{whole}{fraction or '.0'}e{sign or '+'}{power}"


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
