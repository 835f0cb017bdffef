"""A public option has a notebook, a guide, an example or a benchmark that sets it, or a page that says who needs it."""

import ast
import inspect
import json
import re
import textwrap
from collections import defaultdict
from pathlib import Path

import drsrobust as dr

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONTRACTS = {  # what a base class passes to the methods of its subclasses, and users do not call
    *("sample", "sample_check_bits", "strata", "extent", "wrong_bits", "clock", "expected_share"),
    *("attach", "register_hooks", "screen", "decode"),
}


def public_callables():
    """Name as users write it -> callable, of all names in `dr`: functions, constructors and methods that a class adds."""
    for name in dr.__all__:
        thing = getattr(dr, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            if thing is not dr.ErrorMap:  # error models make it
                yield name, thing
            for method, value in vars(thing).items():
                function = getattr(value, "__func__", value)
                if inspect.isfunction(function) and not method.startswith("_") and method not in CONTRACTS:
                    yield f"{name}.{method}", getattr(thing, method)


def options(function):
    """Names of the arguments with a default, and of all in order."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    order = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return [p.name for p in parameters if p.default is not p.empty and not p.name.startswith("_")], order


def sources():
    """The Python of notebooks, pages, the study, the batch run and benchmarks."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for path in PAGES:
        yield from re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    for folder in ("src/drsrobust_study", "reproduce", "benchmarks", "tests/users"):
        yield from (path.read_text() for path in (ROOT / folder).rglob("*.py"))
    for path in (ROOT / "tests" / "users").glob("*.toml"):
        text = path.read_text()
        yield "\n".join(f"read_campaign(**{{{key!r}: 0}})" for key in re.findall(r"^(\w+) *=", text, re.MULTILINE))


def settings():
    """Called name -> keywords, and the largest number of positional arguments; keys of dictionaries under None."""
    keywords, positions = defaultdict(set), defaultdict(int)
    for source in sources():
        for node in ast.walk(ast.parse(textwrap.dedent(source))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                keywords[name] |= {keyword.arg for keyword in node.keywords if keyword.arg}
                positions[name] = max(positions[name], len(node.args))
            elif isinstance(node, ast.Dict):
                keywords[None] |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    return keywords, positions


def test_every_option_is_set_somewhere_or_has_its_line():
    keywords, positions = settings()
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    unused = []
    for name, function in public_callables():
        called, (optional, order) = name.rpartition(".")[2], options(function)
        set_by = keywords[called] | keywords[None] | set(order[: positions[called]])
        for option in optional:
            own = re.compile(rf"\b{re.escape(name)}\([^)]*\b{option}=")
            if option not in set_by and not any(own.search(line) for line in lines):
                unused.append(f"{name}({option}=)")
    assert not unused, unused
