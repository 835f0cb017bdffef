"""What every notebook needs from the library: checked parameters, a paragraph at its end that holds what was seen against
the paper, and a line that says where its numbers are from."""

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from drsrobust._environment import machine, unknown, versions

if TYPE_CHECKING:
    from drsrobust.evaluation import Evaluator


def check_parameters(namespace: dict[str, Any]) -> None:
    """Checks the annotated parameters of a notebook, before anything is loaded or trained.

    papermill sets whatever it is given: a rate written `1e-5` in YAML arrives as a text, a list given by `-p` too, and a
    misspelt name as a new variable, next to the default of the right one.

    Args:
        namespace: `globals()` of the notebook.

    Raises:
        TypeError: a parameter of another type; the message says how to pass it.
        ValueError: a name set by papermill that is no parameter; a value that `check_values` refuses.
        FileNotFoundError: the files of a data set are not there.
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
    """Checks the type of each parameter by its annotation, and its value by its name: `trials` is 1 or more in every notebook,
    `bers` are over 0, `models` are registered. Names that no notebook of this project uses may have any value.

    Args:
        values: of the parameters, by name.
        annotations: their types, by name; more of them are ignored.

    Raises:
        TypeError: a value of another type.
        ValueError: a value out of range, an empty list, an unknown model or data set, values that contradict each other.
    """
    for name, value in values.items():
        if not fits(value, annotations[name]):
            raise TypeError(mismatch(name, value, annotations[name]))
        for one in _items(name, value) if name in _RULES else ():
            kinds = str if _RULES[name] in (_dataset, _model, _pair) else (int, float)
            if isinstance(one, kinds) and (wanted := _RULES[name](one)):
                of = f" is {one!r}" if one is value else f" holds {one!r}"
                raise ValueError(f"parameter {name!r}{of}; it must be {wanted}")
    for one, many in (("front_ber", "bers"), ("compare_at", "sizes")):
        if one in values and values[one] not in values.get(many, [values[one]]):
            raise ValueError(f"parameter {one!r} is {values[one]!r}; it must be one of {many}: {values[many]!r}")


def datasets_of(parameters: Mapping[str, Any]) -> list[str]:
    """The data sets that a notebook with these parameters reads."""
    if "datasets" in parameters:
        return parameters["datasets"]
    return [parameters["dataset"]] if "dataset" in parameters else []


def _injected(cells: Iterable[str]) -> Iterator[str]:
    """The names that papermill's own cell sets, the last one that was run of IPython's list of cells."""
    for source in [cell for cell in cells if cell.startswith("# Parameters\n")][-1:]:
        names = (target.id for node in ast.parse(source).body for target in getattr(node, "targets", ()))
        yield from (name for name in names if not name.startswith("PAPERMILL_"))  # its option --inject-paths


def _items(name: str, value: Any) -> Iterator[Any]:
    """A value, or the values of a list, nested or not."""
    if not isinstance(value, list):
        yield value
    elif not value and name not in _MAY_BE_EMPTY:
        raise ValueError(f"parameter {name!r} is or holds an empty list; it must hold one value or more")
    else:
        for item in value:
            yield from _items(name, item)


def _count(value: int) -> str:
    return "" if value >= 1 else "1 or more"


def _share(value: float) -> str:
    return "" if 0 < value <= 1 else "over 0, at most 1"


def _positive(value: float) -> str:
    return "" if 0 < value < math.inf else "a finite number over 0"


def _size(value: int) -> str:
    return "" if value >= 28_017 else "28017 or more, the size of the smallest model of this shape"


def _bit(value: int) -> str:
    return "" if 0 <= value <= 31 else "a bit, 0 (the lowest) to 31"


def _seed(value: int) -> str:
    return "" if 0 <= value < 2**63 else "0 to 2**63 - 1"


def _dataset(value: str) -> str:
    from drsrobust.data.registry import split_name

    split_name(value)
    return ""


def _density(value: float) -> str:
    return _dataset(f"synthetic-dummy/{value:g}")


def _model(value: str) -> str:
    from drsrobust.models.registry import MODELS

    if value not in MODELS:
        raise unknown("model", value, MODELS)
    return ""


def _pair(value: str) -> str:
    model, gap, dataset = value.partition(" ")
    return (_model(model) or _dataset(dataset)) if gap else "a model and a data set, as 'afm movielens-1m/full'"


# What is wrong with a value, by the parameter's name.
_RULES: dict[str, Callable[[Any], str]] = {
    "dataset": _dataset,
    "datasets": _dataset,
    "models": _model,
    "model_name": _model,
    "leave_out": _pair,
    "densities": _density,
    "bits": _bit,
    "protected": _bit,
    "seed": _seed,
}
_RULES |= dict.fromkeys(("trials", "single_trials", "sweep_trials", "row_trials", "search_trials"), _count)
_RULES |= dict.fromkeys(("epochs", "afn_neurons", "anywhere", "injections", "int8_injections", "counts"), _count)
_RULES |= dict.fromkeys(("test_rows", "table_rows", "timed_rows", "inputs", "batch", "batches"), _count)
_RULES |= dict.fromkeys(("turns", "repeats", "widths", "depths", "embedding_dims"), _count)
_RULES |= dict.fromkeys(("sizes", "int8_sizes", "compare_at"), _size)
_RULES |= dict.fromkeys(("ber", "bers", "front_ber", "search_ber", "rates"), _share)
_RULES |= dict.fromkeys(("hot", "quantile", "loss", "losses", "claimed"), _share)
_RULES |= dict.fromkeys(("bounds", "margin", "limit"), _positive)
_RULES["tables"] = lambda _: ""  # a table's name is known once the data are loaded
_MAY_BE_EMPTY = ("leave_out", "int8_sizes")


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type: int, float (an int will do), bool, str, None, lists and unions of these."""
    if isinstance(annotation, UnionType):
        return any(fits(value, part) for part in get_args(annotation))
    if get_origin(annotation) is list:
        return isinstance(value, list) and all(fits(item, get_args(annotation)[0]) for item in value)
    if annotation is None or annotation is NoneType:
        return value is None
    if annotation in (int, float):
        return isinstance(value, (int, float) if annotation is float else int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def mismatch(name: str, value: Any, annotation: Any) -> str:
    """The message for a parameter of another type."""
    wanted = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    text = f"parameter {name!r} is {value!r} ({type(value).__name__}); it must be {wanted}"
    if isinstance(value, str) and annotation is not str:
        text += (
            ". In YAML write 1.0e-5, not 1e-5; `papermill -p` passes lists as text: use "
            f"`python -m reproduce NOTEBOOK '{name}=...'`"
        )
    return text


def provenance(evaluator: "Evaluator | None" = None) -> str:
    """One line on where the numbers come from: data, rows, model state, versions; without a judge, machine and versions."""
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    if evaluator is None:
        return f"{machine()['cores']} cores {machine()['architecture']}; {made_with}"
    return (
        f"data {evaluator.rows.dataset} {evaluator.rows.part}, {len(evaluator.rows):,} rows, "
        f"{evaluator.rows.fingerprint[:12]}; "
        f"model {evaluator.name}, state {evaluator.checkpoint[:12]}; {made_with}"
    )
