"""What every notebook needs besides the library: checked parameters, a paragraph at its end that holds what was seen against
the paper, and a line that says where its numbers are from."""

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from drsrobust._versions import machine, versions

if TYPE_CHECKING:
    from drsrobust.evaluation import Evaluator

VERDICTS = ("reproduced", "partly", "not")  # on a finding that tests a claim


def check_parameters(namespace: dict[str, Any]) -> None:
    """Holds each annotated parameter of a notebook to its annotation.

    papermill sets whatever it is given: a rate written `1e-5` in YAML arrives as a text, a list given by `-p` too.

    Args:
        namespace: `globals()` of the notebook.

    Raises:
        TypeError: a parameter of another type; the message says how to pass it.
    """
    for name, annotation in namespace.get("__annotations__", {}).items():
        if name in namespace and not fits(namespace[name], annotation):
            raise TypeError(mismatch(name, namespace[name], annotation))


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


def provenance(judge: "Evaluator | None" = None) -> str:
    """One line on where the numbers come from: data, rows, model state, versions; without a judge, machine and versions."""
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    if judge is None:
        return f"{machine()['cores']} cores {machine()['architecture']}; {made_with}"
    return (
        f"data {judge.split.dataset} {judge.split.part}, {len(judge.split):,} rows, {judge.split.fingerprint[:12]}; "
        f"model {judge.name}, state {judge.checkpoint[:12]}; {made_with}"
    )


def conclusion(claim: str, paper: str, here: str | Iterable[str], verdicts: Iterable[str]) -> str:
    """The paragraph that ends a notebook: what the paper says, what is seen here, and the verdict.

    Args:
        claim: its number, as `C8`.
        paper: what the paper says.
        here: what is seen, in one or more findings.
        verdicts: of the findings: `reproduced`, `partly`, `not`; any other word (as `nothing lost`) says why it is no test.

    Returns:
        one line. The verdict is `reproduced` where all findings are, `not reproduced` where none is, not even partly, and
        `partly reproduced` else; without any test, `not tested`.

    Example:
        >>> conclusion("C8", "bit 30 dominates", ["most in 9 of 9 parts", "|w| is 1e37"], ["reproduced", "not"])
        'C8. The paper: bit 30 dominates. Here: most in 9 of 9 parts; |w| is 1e37. Partly reproduced (1 of 2 findings in full).'
    """
    verdicts, here = list(verdicts), [here] if isinstance(here, str) else list(here)
    tested = [verdict for verdict in verdicts if verdict in VERDICTS]
    good = tested.count("reproduced")
    if not tested:
        said = "Not tested"
    elif good == len(verdicts):
        said = "Reproduced"
    elif set(tested) == {"not"}:
        said = "Not reproduced"
    else:
        said = "Partly reproduced"
    if tested:
        said += f" ({good} of {len(verdicts)} findings in full)"
    return f"{claim}. The paper: {paper}. Here: {'; '.join(here) or 'nothing to see'}. {said}."
