"""`make docs`: home, guides, a page for each public name, the notebooks of the last run and the figures, as a site.

Home is taken from README.md and docs/install.md. Sphinx reports broken links and references as errors. The site needs no
network.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat

from drsrobust._files import new_folder
from drsrobust_extras.pages.plots.save import read_words
from reproduce.docs_api import notebook_section, sections, write_api
from reproduce.notebooks import FIGURES, ROOT, all_notebooks
from reproduce.published_notebooks import FOLDER, published_folder
from reproduce.readme_tables import GALLERY_BEGIN, GALLERY_END

GUIDES = {  # in the order of the navigation, and in which examples of public names are looked for
    "Your own model": ("your_model", "from_other_tools", "library"),
    "Errors and campaigns": ("injection", "campaigns", "training", "scale", "sweeps"),
    "Protection": ("protection",),
    "The study": ("reproduce", "models", "data"),
    "Reference": ("glossary", "extending"),
}
PROJECT = ("CONTRIBUTING", "SECURITY", "CHANGELOG")  # of the project's top folder
TOP = {  # the bar at the top of each page
    "Install": "install",
    "Guides": "guides",
    "Library": "api/index",
    "Notebooks": "notebooks",
    "Figures": "figures",
    "Statements": "claims",
    "Project": "project",
}
SETTINGS = {
    "project": "drsrobust",
    "author": "The drsrobust authors",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "default_role": "code",
    "html_title": "drsrobust",
    "html_theme": "pydata_sphinx_theme",
    "html_theme_options": {
        "header_links_before_dropdown": len(TOP),
        "navbar_align": "left",
        "navigation_with_keys": False,
        "show_toc_level": 2,
    },
    "html_show_sourcelink": False,
    "html_sidebars": {"index": [], "install": [], "figures": [], "claims": []},
    "html_static_path": ["site.css"],
    "html_css_files": ["site.css"],
    "myst_heading_anchors": 3,
    "nb_execution_mode": "off",
    "nb_render_markdown_format": "myst",
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "none",
    "napoleon_use_ivar": True,  # since autodoc lists attributes, too
    "suppress_warnings": ["mystnb.unknown_mime_type", "misc.highlighting_failure"],
}
# A link, or code, to skip it. Words may hold code and brackets with a backslash.
LINK = re.compile(r"```.*?```|(!?)\[((?:\\.|[^][`\\]|`[^`]*`)*)\]\(([^)\s]+)\)|`[^`\n]*`", re.DOTALL)
VERDICTS = re.compile(r"<!-- [^>]*figures/statements\.csv[^>]*-->.*?<!-- end of the \w+ -->", re.DOTALL)


def write_source(folder: Path, notebooks: Path | None) -> None:
    """Writes the pages that Sphinx reads.

    Args:
        folder: for them.
        notebooks: folder with executed notebooks; a notebook that it lacks is shown without outputs.

    Raises:
        ValueError: README.md or docs/install.md lacks a part that home shows.
    """
    import drsrobust as dr

    lines = [f"{name} = {value!r}" for name, value in (SETTINGS | {"release": dr.__version__}).items()]
    (folder / "conf.py").write_text("\n".join([*lines, "from reproduce.docs_site import setup"]) + "\n")
    shutil.copy(Path(__file__).with_name("site.css"), folder)
    shutil.copytree(FIGURES, folder / "figures", ignore=shutil.ignore_patterns("*.md", FOLDER))
    names = list(all_notebooks())
    for name in names:
        _write_notebook(folder / f"{name}.ipynb", notebooks)
    _write_index(folder / "notebooks.ipynb", names)
    texts = {name: f"docs/{name}.md" for name in ("install", *(name for group in GUIDES.values() for name in group))}
    texts |= {name: f"{name}.md" for name in PROJECT} | {"claims": "figures/CLAIMS.md", "figures": "figures/README.md"}
    pages = {path: f"{name}.md" for name, path in texts.items()} | {"README.md": "index.md"}
    pages |= {f"notebooks/{name}.ipynb": f"{name}.ipynb" for name in names} | {
        "notebooks/index.ipynb": "notebooks.ipynb"
    }
    pages |= {f"figures/{FOLDER}": "notebooks.ipynb"} | {
        f"figures/{FOLDER}/{name}.ipynb": f"{name}.ipynb" for name in names
    }
    read = {path: (ROOT / path).read_text() for path in ("README.md", *texts.values())}
    for name, path in texts.items():
        text = _pictures(read[path]) if name == "figures" else read[path]
        text = re.sub(r'<a id="(\w+)"></a>', r"(\1)=", text)  # anchors that Sphinx knows
        text = _glossary(text) if name == "glossary" else text
        (folder / f"{name}.md").write_text(_searched(relinked(text, Path(path).parent, pages)))
    (folder / "guides.md").write_text("\n".join(["# Guides", "", *_toctrees(GUIDES)]))
    (folder / "project.md").write_text("\n".join(["# Project", "", *_toctrees({"": PROJECT})]))
    home = home_page(
        relinked(read["README.md"], Path(), pages), relinked(read["docs/install.md"], Path("docs"), pages), names
    )
    top = [f"{title} <{page}>" for title, page in TOP.items()]
    (folder / "index.md").write_text("\n".join([home, "", "```{toctree}", ":hidden:", "", *top, "```", ""]))
    shown = {f"{name}.md": read[path] for name, path in texts.items() if path.startswith("docs/")}
    write_api(folder / "api", [*sections(shown), *(notebook_section(folder / f"{name}.ipynb") for name in names)])


def home_page(readme: str, install: str, notebooks: list[str]) -> str:
    """Home: the README's opening, first code with its output, gallery and verdicts, and how to install.

    Args:
        readme: the text of README.md, relinked.
        install: of docs/install.md, relinked; home has what is above its first section.
        notebooks: whose pages the gallery leads to.

    Raises:
        ValueError: a part is missing.
    """
    opening = readme.partition("\n## ")[0]
    code = re.search(r"```python\n.*?```\s*```text\n.*?```", readme, re.DOTALL)
    verdicts = VERDICTS.findall(readme)
    gallery = readme.partition(GALLERY_BEGIN)[2].partition(GALLERY_END)[0]
    figures = re.findall(r'<img src="([^"]+)"[^>]*? alt="([^"]*)"', gallery)
    parts = {
        "a picture above the first section": "![" in opening,
        "a block of Python, followed by its output": code,
        f"pictures between {GALLERY_BEGIN} and {GALLERY_END}": figures,
        "verdicts between <!-- from figures/statements.csv, ... --> and <!-- end of the ... -->": verdicts,
    }
    for part, there in parts.items():
        if not there:
            raise ValueError(f"home of the documentation needs of README.md {part}; there is none")
    cells = []
    for picture, message in figures:
        page = next((name for name in notebooks if Path(picture).stem.startswith(name)), None)
        if page is None:
            raise ValueError(f"the gallery of README.md shows {picture}, which is of no notebook")
        cells += [f"[![{Path(picture).stem}]({picture}) {_text(message)}]({page}.ipynb)", ""]
    steps = install.partition("\n## ")[0].partition("\n")[2].strip()
    parts = {"An example": code[0], "Install": f"{steps}\n\n[More ways to install](install.md)"}
    parts["Figures"] = "\n".join(["````{container} gallery", *cells, "````"])
    parts["Statements of the study"] = "\n".join(verdicts)
    text = f"{opening}\n" + "\n\n".join(f"## {title}\n\n{part}" for title, part in parts.items())
    return re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)


def relinked(text: str, folder: Path, pages: dict[str, str]) -> str:
    """Markdown with links that lead to pages of the site; of a file that is none the path is shown.

    Args:
        text: with links relative to `folder`.
        folder: in the repository, relative to its top.
        pages: file in the repository -> page.
    """

    def replaced(link: re.Match) -> str:
        picture, words, target = link.groups()
        if target is None or re.match(r"[a-z]+:|#", target):
            return link[0]
        file, _, anchor = target.partition("#")
        path = (ROOT / folder / file).resolve().relative_to(ROOT).as_posix()
        if path in pages:
            return f"[{words}]({pages[path]}{'#' * bool(anchor)}{anchor})"
        if path.startswith("figures/") and not path.endswith(".md"):
            return f"{picture}[{words}]({path})"
        return words if words.strip("`") == path else f"{words} (`{path}`)"

    return LINK.sub(replaced, text)


def _searched(text: str) -> str:
    """A comment `<!-- search: words; words -->` becomes entries of the index, which the search shows first."""

    def entries(comment: re.Match) -> str:
        return "\n".join(f"```{{index}} ! {words.strip()}\n```" for words in comment[1].split(";"))

    return re.sub(r"<!-- search: (.*?) -->", entries, text)


def _glossary(text: str) -> str:
    """The table of words as a glossary, each of whose words the search finds."""
    before, _, rows = text.partition("| word | meaning |\n| --- | --- |\n")
    words = [re.fullmatch(r"\| (.*?) \| (.*) \|", row).groups() for row in rows.strip().splitlines()]
    terms = [line for word, meaning in words for line in (word, f"  {meaning}", "")]
    return "\n".join([before, "```{glossary}", *terms, "```", ""])


def _pictures(text: str) -> str:
    """The page of figures with pictures that Sphinx knows."""
    return re.sub(r'<img src="([^"]+)"[^>]*? alt="([^"]*)">', lambda m: f"![{_text(m[2])}]({m[1]})", text)


def _text(words: str) -> str:
    """Words that Markdown shows as they are."""
    return re.sub(r"([][*_`|<])", r"\\\1", words)


def _write_notebook(path: Path, executed: Path | None) -> None:
    """Writes a notebook as it was executed, or without outputs and with its published figures."""
    if executed and (executed / path.name).is_file():
        shutil.copy(executed / path.name, path)
        return
    notebook = nbformat.read(ROOT / "notebooks" / path.name, as_version=4)
    pictures = [
        f"![{_text(read_words(FIGURES, figure.stem)['alt'])}](figures/{figure.name})"
        for figure in sorted(FIGURES.glob(f"{path.stem}*.svg"))
    ]
    if pictures:
        words = "\n\n".join(["## The published figures", *pictures])
        notebook.cells.append(nbformat.v4.new_markdown_cell(words, id="published"))
    nbformat.write(notebook, path)


def _write_index(path: Path, names: list[str]) -> None:
    """Writes the index of notebooks, with their pages below it."""
    index = nbformat.read(ROOT / "notebooks" / "index.ipynb", as_version=4)
    index.cells = [cell for cell in index.cells if cell.id != "results"]  # the site's pages have them
    index.cells.append(nbformat.v4.new_markdown_cell("\n".join(_toctree(names, ":hidden:")), id="pages"))
    nbformat.write(index, path)


def _toctrees(groups: dict[str, tuple[str, ...]]) -> list[str]:
    return [line for caption, pages in groups.items() for line in _toctree(pages, ":maxdepth: 1", caption)]


def _toctree(pages: tuple[str, ...] | list[str], option: str, caption: str = "") -> list[str]:
    captions = [f":caption: {caption}"] if caption else []
    return ["```{toctree}", option, *captions, "", *pages, "```", ""]


def setup(app: Any) -> None:
    """Called by Sphinx: in docstrings |x| is a magnitude, not the name of a substitution; private bases are not shown."""
    app.connect("autodoc-process-docstring", lambda app, what, name, obj, options, lines: _escape(lines))
    app.connect("autodoc-process-bases", lambda app, name, obj, options, bases: _show_public(bases))


def _escape(lines: list[str]) -> None:
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = line.replace("|", "\\|")


def _show_public(bases: list[type]) -> None:
    while any(base.__name__.startswith("_") for base in bases):
        bases[:] = [new for base in bases for new in (base.__bases__ if base.__name__.startswith("_") else (base,))]


def main(arguments: list[str] | None = None) -> int:
    """Builds the site into build/docs/html.

    Returns:
        1 if a link or a reference is broken.
    """
    from sphinx.cmd.build import build_main

    parser = argparse.ArgumentParser(prog="python -m reproduce.docs_site", description=__doc__)
    parser.add_argument(
        "--profile", default="laptop", help="whose executed notebooks are shown where none are published"
    )
    options = parser.parse_args(arguments)
    executed = published_folder() or ROOT / "build" / options.profile / "notebooks"
    build = ROOT / "build" / "docs"
    with new_folder(build / "source") as source:
        write_source(source, executed)
    failed = build_main(["-q", "-W", "--keep-going", "-b", "html", str(build / "source"), str(build / "html")])
    if not failed:
        print(f"documentation: {build / 'html' / 'index.html'}")
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
