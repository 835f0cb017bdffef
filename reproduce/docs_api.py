"""Pages of the site for all public names: a page each with an example, a page for each package, and their index."""

import inspect
import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from drsrobust._names import MODULES, NAMES, homes_of

# Packages in the order of the index.
GROUPS = ("injection", "mitigation", "planning", "evaluation", "campaign", "statistics", "plots", "report", "data")
GROUPS += (
    "models",
    "training",
    "training_errors",
    "metrics",
    "introspection",
    "rates",
    "fleet_risk",
    "probe_rows",
    "chosen_flips",
    "allowed_flips",
    "file_checksums",
    "memories",
    "exchange",
    "timing",
)
_EVERYWHERE = ("drsrobust", "drsrobust.extend")  # faces with names of several packages
FURTHER = ("fleet_risk.Fleet", "timing.overhead")  # of modules that are no attributes of `drsrobust`
HOMES = MODULES | {
    "": "drsrobust",
    **{name: f"drsrobust_extras.risk.{name}" for name in ("fleet_risk", "timing")},
    **{name: f"drsrobust_extras.experiments.{name}" for name in ("allowed_flips", "chosen_flips", "probe_rows")},
    **{name: f"drsrobust_extras.protection.{name}" for name in ("file_checksums", "memories")},
}
SHOWN = 6  # links to sections that use a name
HEADING = re.compile(r"^```.*?^```|^#+ ([^\n]*)", re.DOTALL | re.MULTILINE)  # outside of code


class Section(NamedTuple):
    """A section of a guide, or a notebook: where it is, its title, its text, and its blocks of Python."""

    link: str
    title: str
    text: str
    blocks: list[str]


def public_names() -> dict[str, Any]:
    """Public classes and functions as users write them after `dr.`, the shortest way, in alphabetical order."""
    import drsrobust as dr

    names = sorted(dr.__all__)
    modules = [name for name in names if inspect.ismodule(getattr(dr, name))]
    paths = [name for name in names if name not in modules]
    for name in modules:
        paths += [f"{name}.{inner}" for inner in _names_of(getattr(dr, name))]
    found: dict[int, tuple[str, Any]] = {}
    for path in (*paths, *FURTHER):
        package, _, name = path.rpartition(".")
        value = getattr(import_module(HOMES[package]), name)
        if inspect.isclass(value) or inspect.isfunction(value):
            found.setdefault(id(value), (path, value))
    return dict(sorted(found.values(), key=lambda pair: pair[0].rpartition(".")[2].lower()))


def _names_of(module: Any) -> list[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in getattr(module, "__all__", own) if not name.startswith("_")]


def group(path: str, value: Any) -> str:
    """The package whose page lists a name."""
    face = next((face for face in NAMES if face not in _EVERYWHERE and path in homes_of(face)), value.__module__)
    parts = face.split(".")
    module = path.split(".")[0] if "." in path else parts[2 if parts[0] == "drsrobust_extras" else 1]
    return "campaign" if module == "campaign_file" else module


def sections(pages: Mapping[str, str]) -> list[Section]:
    """The sections of Markdown pages.

    Args:
        pages: file name in the site -> text.
    """
    found = []
    for page, text in pages.items():
        headings = [heading for heading in HEADING.finditer(text) if heading[1]]
        ends = [heading.start() for heading in headings[1:]] + [len(text)]
        for heading, end in zip(headings, ends, strict=True):
            part, first = text[heading.start() : end], heading is headings[0]
            title = heading[1] if first else f"{headings[0][1]}: {heading[1]}"
            blocks = re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
            found.append(Section(page if first else f"{page}#{slug(heading[1])}", title, part, blocks))
    return found


def notebook_section(path: Path) -> Section:
    """A notebook as one section."""
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    blocks = [source + "\n" for cell, source in zip(cells, sources, strict=True) if cell["cell_type"] == "code"]
    return Section(path.name, f"Notebook {path.stem}", "\n".join(sources), blocks)


def slug(heading: str) -> str:
    """The anchor of a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def write_api(folder: Path, guides: list[Section]) -> None:
    """Writes the pages.

    Args:
        folder: for them, new.
        guides: where examples are taken from, and links lead to, the most important first.
    """
    folder.mkdir()
    names = public_names()
    about = "All are attributes of `drsrobust`, in the examples `dr`, but for those of `drsrobust_extras.risk`."
    parts = ["# Public names", "", about, ""]
    for package in GROUPS:
        listed = {path: value for path, value in names.items() if group(path, value) == package}
        about = first_sentence(import_module(HOMES[package]))
        table = ["| name | what it is |", "| --- | --- |"]
        table += [f"| [{path}]({path}.md) | {_cell(first_sentence(value))} |" for path, value in listed.items()]
        toctree = ["```{toctree}", ":hidden:", "", *(f"{path.rpartition('.')[2]} <{path}>" for path in listed), "```"]
        (folder / f"{package}.md").write_text("\n".join([f"# {package}", "", about, "", *table, "", *toctree, ""]))
        parts += [f"## [{package}]({package}.md)", "", about, "", *table, ""]
    parts += ["```{toctree}", ":hidden:", "", *GROUPS, "```", ""]
    (folder / "index.md").write_text("\n".join(parts))
    made_by = sources(names)
    for path, value in names.items():
        (folder / f"{path}.md").write_text(_page(path, value, guides, made_by.get(path, [])))


def sources(names: Mapping[str, Any]) -> dict[str, list[str]]:
    """Classes, and the names that return or raise each, themselves or by a method."""
    words = {path: _results(value) for path, value in names.items()}
    return {
        path: [other for other in names if other != path and value.__name__ in words[other]]
        for path, value in names.items()
        if inspect.isclass(value)
    }


def _results(value: Any) -> set[str]:
    """Words of the annotated results, and exceptions that docstrings name, of a function or of a class's public methods."""
    public = [member for name, member in vars(value).items() if name[0] != "_"] if inspect.isclass(value) else []
    functions = [getattr(member, "__func__", getattr(member, "fget", member)) for member in (value, *public)]
    texts = [str(getattr(function, "__annotations__", {}).get("return", "")) for function in functions]
    for function in functions:
        raised = re.search(r"^Raises:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(function) or "", re.DOTALL | re.MULTILINE)
        texts += re.findall(r"^ +([\w, ]+):", raised[1], re.MULTILINE) if raised else []
    return set(re.findall(r"\w+", " ".join(texts)))


def first_sentence(value: Any) -> str:
    """The first sentence of a docstring."""
    first = (inspect.getdoc(value) or "").split("\n\n")[0]
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(first.split()))[0]


def example(path: str, value: Any, guides: list[Section]) -> tuple[Section, str] | None:
    """The shortest block of the first guide or notebook that uses a name; None if its own docstrings have an example."""
    members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
    if any(">>>" in (getattr(getattr(member, "__func__", member), "__doc__", None) or "") for member in members):
        return None
    used = _use(path, value)
    found = [(section, block) for section in guides for block in section.blocks if used.search(block)]
    ranked = sorted(found, key=lambda pair: (pair[0].link.endswith(".ipynb"), pair[1].count("\n")))
    return ranked[0] if ranked else None


def _use(path: str, value: Any) -> re.Pattern:
    """Finds a name as users write it: by its package, by `dr`, or imported."""
    package, name = group(path, value), path.rpartition(".")[2]
    way = rf"{package}\." if "." in path else rf"(?:{package}\.)?"
    return re.compile(rf"\bdr\.{way}{name}\b|from drsrobust(?:\.{package})? import .*\b{name}\b")


def _page(path: str, value: Any, guides: list[Section], made_by: list[str]) -> str:
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    members = ["   :members:", "   :show-inheritance:"] if kind == "autoclass" else []
    package, _, last = path.rpartition(".")
    full = f"{HOMES[package]}.{last}"  # Sphinx imports it
    parts = [f"# dr.{path}", "", "```{eval-rst}", f".. {kind}:: {full}", *members, "```", ""]
    shown = example(path, value, guides)
    if shown:
        section, block = shown
        parts += ["## Example", "", f"From [{section.title}](../{section.link}):", ""]
        parts += ["```python", block.rstrip("\n"), "```", ""]
    if made_by:
        parts += ["## Where it comes from", "", *(f"- [dr.{other}]({other}.md)" for other in made_by[:SHOWN]), ""]
    name = path.rpartition(".")[2]
    named = re.compile(rf"{_use(path, value).pattern}|`(?:dr\.)?(?:{re.escape(path)}|{name})\b")
    links = [section for section in guides if named.search(section.text)][:SHOWN]
    if links:
        parts += ["## Read more", "", *(f"- [{section.title}](../{section.link})" for section in links), ""]
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
