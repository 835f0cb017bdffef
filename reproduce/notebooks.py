"""The notebooks and their parameters, read without running anything and without importing PyTorch."""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drsrobust._choices import unknown
from drsrobust_extras.pages.annotated_types import fits
from drsrobust_study.notebook import check_values

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "figures"  # the published ones
# In a list: a quoted text, or a word, whose quotes a shell takes away.
_WORD = re.compile(r"""'[^']*'|"[^"]*"|([^\s\[\](),'"]+)""")
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "None": None}


def progress_file(folder: Path, notebook: str) -> Path:
    """The file in which the kernel of a notebook counts (`drsrobust._progress.count_done`), and the run that it
    `started` and `ended`."""
    return folder / ".progress" / notebook


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook: its annotation, default and comment."""

    name: str
    annotation: Any
    default: Any
    comment: str


@dataclass(frozen=True)
class Notebook:
    """A numbered notebook; `result` is what a sweep of it shows, as `reproduce.sweep_result.read_result` reads it."""

    name: str
    path: Path
    title: str
    parameters: dict[str, Parameter]
    result: str = ""

    def check(self, values: dict[str, Any]) -> None:
        """Checks names, types and bounds of values.

        Raises:
            ValueError: an unknown parameter, or a number out of its bounds.
            TypeError: a value of another type.
        """
        for name in values:
            if name not in self.parameters:
                raise unknown(f"parameter of {self.name}", name, self.parameters)
        try:
            check_values(
                {name: value for name, value in values.items() if value != self.parameters[name].default},
                {name: parameter.annotation for name, parameter in self.parameters.items()},
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None


def all_notebooks() -> dict[str, Notebook]:
    """The numbered notebooks by name, in their order."""
    return {path.stem: read_notebook(path) for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))}


def read_notebook(path: Path) -> Notebook:
    """A notebook's title (first heading), parameters, and `drsrobust.result` of its metadata.

    Raises:
        ValueError: no cell, or several, tagged `parameters`, or a line in it that is not `name: type = literal`.
    """
    notebook = json.loads(path.read_text())
    cells, result = notebook["cells"], notebook["metadata"].get("drsrobust", {}).get("result", "")
    tagged = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise ValueError(f"{path}: {len(tagged)} cells are tagged `parameters`; there must be one")
    first = "".join(cells[0]["source"]).splitlines()
    return Notebook(path.stem, path, first[0].lstrip("# ").strip(), _parameters(path, tagged[0]), result)


def _parameters(path: Path, source: str) -> dict[str, Parameter]:
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        line = lines[node.lineno - 1]
        if (
            not isinstance(node, ast.AnnAssign)
            or not isinstance(node.target, ast.Name)
            or node.lineno != node.end_lineno
        ):
            raise ValueError(f"{path}, parameters: {line!r} is not one line of the form `name: type = literal  # ...`")
        annotation = eval(compile(ast.Expression(node.annotation), str(path), "eval"), {"__builtins__": {}}, _TYPES)
        comment = line[node.end_col_offset :].strip().removeprefix("#").strip()
        found[node.target.id] = Parameter(node.target.id, annotation, ast.literal_eval(node.value), comment)
    return found


def parse_assignment(text: str, notebook: Notebook) -> tuple[str, Any]:
    """A `name=value` of the command line: a Python literal, or a plain word; for a list also `a,b,c`.

    Raises:
        ValueError: no `=`, or an unknown parameter.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not of the form name=value")
    if name not in notebook.parameters:
        raise unknown(f"parameter of {notebook.name}", name, notebook.parameters)
    annotation = notebook.parameters[name].annotation
    for reading in (literal(value), value, [literal(item.strip()) for item in value.split(",")]):
        # A text with a bracket or a gap in it is a mistyped list rather than a list of such words.
        words = [item for item in reading if isinstance(item, str)] if isinstance(reading, list) else []
        if fits(reading, annotation) and not any(set(word) & set("[]() '\"") or not word for word in words):
            return name, reading
    return name, literal(value)  # of a wrong type, as `check` will say


def literal(text: str) -> Any:
    """A Python literal, in whose lists words need no quotes, or the text itself."""
    quoted = _WORD.sub(_quoted, text) if text.startswith("[") else text
    try:
        return ast.literal_eval(quoted)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: of very deep lists
        return text


def _quoted(match: re.Match) -> str:
    word = match[1]
    return match[0] if word is None or not isinstance(literal(word), str) else repr(word)
