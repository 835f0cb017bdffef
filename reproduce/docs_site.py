"""`make docs`: the guides, all public names with their examples, and the notebooks of the last run, as a site.

Sphinx reports broken links and references as errors. The site needs no network.
"""

import argparse
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from drsrobust._files import new_folder
from reproduce.notebooks import ROOT

GUIDES = ("reproduce", "sweeps", "your_model", "from_other_tools", "campaigns", "injection", "protection")
GUIDES += ("models", "data", "library", "extending", "glossary")
PAGES = ("CONTRIBUTING", "SECURITY", "CHANGELOG")  # of the project's top folder
SETTINGS = {
    "project": "drsrobust",
    "author": "The drsrobust authors",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "pydata_sphinx_theme",
    "html_theme_options": {"show_toc_level": 2, "navigation_with_keys": False},
    "html_show_sourcelink": False,
    "html_sidebars": {"**": []},
    "myst_heading_anchors": 3,
    "nb_execution_mode": "off",
    "nb_render_markdown_format": "myst",
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "none",
    "suppress_warnings": ["mystnb.unknown_mime_type", "misc.highlighting_failure"],
    "exclude_patterns": ["figures"],
}


def write_source(folder: Path, notebooks: Path | None) -> None:
    """Writes the pages that Sphinx reads.

    Args:
        folder: for them.
        notebooks: folder with executed notebooks; None: those of the project, without outputs.
    """
    import drsrobust as dr

    lines = [f"{name} = {value!r}" for name, value in (SETTINGS | {"release": dr.__version__}).items()]
    (folder / "conf.py").write_text("\n".join([*lines, "from reproduce.docs_site import setup"]) + "\n")
    shutil.copytree(ROOT / "figures", folder / "figures")
    for name in GUIDES:
        text = re.sub(r"\]\(\.\./", "](", (ROOT / "docs" / f"{name}.md").read_text())
        # The page of figures is no page of the site, which has the notebooks.
        (folder / f"{name}.md").write_text(re.sub(r"\[([^]]+)\]\((figures/README\.md)\)", r"\1 (`\2`)", text))
    for name in PAGES:
        text = re.sub(r"\]\(docs/", "](", (ROOT / f"{name}.md").read_text())
        (folder / f"{name}.md").write_text(text)
    shown = sorted((notebooks or ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for path in shown:
        if not path.stem.endswith(".failed"):
            shutil.copy(path, folder / path.name)
    names = sorted((name for name in dr.__all__ if not inspect.ismodule(getattr(dr, name))), key=str.lower)
    (folder / "api.md").write_text(_api(names))
    toctrees = {
        "Guides": GUIDES,
        "Library": ("api",),
        "Notebooks": [path.stem for path in shown if not path.stem.endswith(".failed")],
        "Project": PAGES,
    }
    (folder / "index.md").write_text(_index(toctrees))


def _api(names: list[str]) -> str:
    """A page with the documentation of each public name."""
    import drsrobust as dr

    parts = ["# Public names", "", "All are attributes of `drsrobust`, which the examples call `dr`.", ""]
    for name in names:
        value = getattr(dr, name)
        if isinstance(value, str):
            continue
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        members = ["   :members:", "   :show-inheritance:"] if kind == "autoclass" else []
        parts += ["```{eval-rst}", f".. {kind}:: {value.__module__}.{value.__qualname__}", *members, "```", ""]
    return "\n".join(parts)


def _index(toctrees: dict[str, tuple[str, ...] | list[str]]) -> str:
    readme = (ROOT / "README.md").read_text()
    opening = readme[: readme.index("## Two commands")]
    opening = re.sub(r"<!--.*?-->\n?", "", opening)
    parts = [opening.strip(), ""]
    for caption, pages in toctrees.items():
        parts += ["```{toctree}", f":caption: {caption}", ":maxdepth: 1", "", *pages, "```", ""]
    return "\n".join(parts)


def setup(app: Any) -> None:
    """Called by Sphinx: in docstrings |x| is a magnitude, not the name of a substitution."""
    app.connect("autodoc-process-docstring", lambda app, what, name, obj, options, lines: _escape(lines))


def _escape(lines: list[str]) -> None:
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = line.replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Builds the site into build/docs/html.

    Returns:
        1 if a link or a reference is broken.
    """
    from sphinx.cmd.build import build_main

    parser = argparse.ArgumentParser(prog="python -m reproduce.docs_site", description=__doc__)
    parser.add_argument("--profile", default="laptop", help="whose executed notebooks are shown, if there are any")
    options = parser.parse_args(arguments)
    executed = ROOT / "build" / options.profile / "notebooks"
    build = ROOT / "build" / "docs"
    with new_folder(build / "source") as source:
        write_source(source, executed if any(executed.glob("*.ipynb")) else None)
    failed = build_main(["-q", "-W", "--keep-going", "-b", "html", str(build / "source"), str(build / "html")])
    if not failed:
        print(f"documentation: {build / 'html' / 'index.html'}")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
