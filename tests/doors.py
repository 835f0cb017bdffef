"""What one owns with an entry point: the modules that it imports, and theirs, in all packages of src, in functions too; lazy
names are those of their modules. What registers itself (`drsrobust._registrations`) is not imported by name."""

import ast
from functools import cache
from pathlib import Path

from drsrobust._names import NAMES, homes_of

SOURCES = Path(__file__).resolve().parent.parent / "src"


def _module(path):
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(path): path for path in SOURCES.rglob("*.py")}


def _home(module, name):
    """The module of a name that is imported from a module or a face; None outside of src."""
    if f"{module}.{name}" in FILES:
        return f"{module}.{name}"
    return homes_of(module).get(name, module) if module in NAMES else module if module in FILES else None


@cache
def _imports(module):
    tree = ast.parse(FILES[module].read_text())
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    left_out = {id(inner) for node in typing for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in left_out:
            homes = {_home(node.module, alias.name) for alias in node.names}
            while faces := {home for home in homes if home in NAMES}:  # a face's name of another face
                names = {alias.name for alias in node.names}
                homes = homes - faces | {homes_of(face)[name] for face in faces for name in names & set(homes_of(face))}
            found |= homes - {None}
    return found


def owned(*modules):
    """All modules behind some."""
    seen, pending = set(), list(modules)
    while pending:
        if (module := pending.pop()) not in seen:
            seen.add(module)
            pending += _imports(module)
    return seen


def lines(modules):
    return sum(len(FILES[module].read_text().splitlines()) for module in modules)
