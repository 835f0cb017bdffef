"""Where a module comes from: the user, or an installed distribution, whose name and version stand for its code."""

import functools
import importlib.util
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, packages_distributions, version

OWN_PACKAGES = ("drsrobust", "drsrobust_extras")
_PLACES = tuple(
    {sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {f"{place}/" for place in sys.path if place.endswith(("site-packages", "dist-packages"))}
)


@functools.lru_cache(maxsize=4096)
def is_installed(module: str) -> bool:
    """Whether a module belongs to Python, an installed distribution or this package, and not to the user. One that is not
    imported yet is judged by its package."""
    if module.partition(".")[0] in OWN_PACKAGES:
        return True
    if module == "__main__":
        return False
    if (loaded := sys.modules.get(module)) is None:
        return _top_is_installed(module.partition(".")[0])
    file = getattr(loaded, "__file__", None)
    if file is None:  # a namespace package, or compiled into Python
        return not hasattr(loaded, "__path__")
    return file.startswith(_PLACES)


def _top_is_installed(package: str) -> bool:
    """Whether a package or module that may not be imported yet is installed; finding it runs no code of it."""
    try:
        found = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):  # also of a module in sys.modules that says nothing of its origin
        return False
    return found is not None and (found.origin in ("built-in", "frozen") or (found.origin or "").startswith(_PLACES))


@functools.cache
def origin(module: str) -> tuple[str, str]:
    """A module's name, and the version of its distribution; the name alone of a module of Python or of the user."""
    if not is_installed(module):
        return module, ""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return module, ""
    try:
        return module, version(top)
    except PackageNotFoundError:
        return module, ", ".join(f"{name} {version(name)}" for name in packages_distributions().get(top, ()))
