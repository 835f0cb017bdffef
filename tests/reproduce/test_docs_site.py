"""The pages that `make docs` gives to Sphinx, which checks their links."""

import base64
import inspect
import io
import os
import re
import tomllib
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from PIL import Image

import drsrobust as dr
from reproduce.__main__ import main
from reproduce.docs_api import example, public_names, sections
from reproduce.docs_site import TOP, home_page, relinked, write_source
from reproduce.notebook_index import INDEX, TIMES, index_notebook, read_times
from reproduce.notebooks import ROOT, all_notebooks
from reproduce.published_notebooks import FOLDER, published_folder, write_notebooks
from reproduce.runner import Outcome

README = (ROOT / "README.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_source(folder, None)
    return folder


def test_every_page_is_in_a_list_of_pages(source):
    listed = {"index"}
    for path in source.rglob("*.*"):
        if path.suffix in (".md", ".ipynb"):
            text = path.read_text().replace("\\n", "\n").replace('",\n', "\n")
            for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
                names = [line.strip(' "') for line in block.splitlines()]
                names = [name for name in names if name and not name.startswith(":")]
                names = [re.sub(r".*<(.*)>", r"\1", name) for name in names]
                listed |= {(path.parent / name).relative_to(source).as_posix() for name in names}
    pages = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.md")}
    notebooks = {path.stem for path in source.glob("*.ipynb")}
    assert listed == pages | notebooks and set(TOP.values()) < listed
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert guides | set(all_notebooks()) < listed


def test_every_public_name_has_a_page_with_its_summary(source):
    names = public_names()
    for name in dr.__all__:
        value = getattr(dr, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert names[name] is value
        for inner in getattr(value, "__all__", ()):
            if inspect.isclass(getattr(value, inner)) or inspect.isfunction(getattr(value, inner)):
                assert any(getattr(value, inner) is known for known in names.values()), f"{name}.{inner}"
    index = (source / "api" / "index.md").read_text()
    for path in names:
        assert re.search(rf"^\| \[{re.escape(path)}\]\({re.escape(path)}\.md\) \| \S.* \|$", index, re.MULTILINE), path
        page = (source / "api" / f"{path}.md").read_text()
        module, name = re.search(r"^\.\. auto\w+:: (\S+)\.(\w+)$", page, re.MULTILINE).groups()
        assert getattr(import_module(module), name) is names[path]
    assert len({path.lower() for path in names}) == len(names)  # files of a disk that ignores case


def test_examples_come_from_docstrings_and_guides(source):
    names = public_names()
    page = "# Title\n\n## Part\n\n```python\nx = dr.Campaign(1)\n# no heading\n```\n\n```text\ndr.Campaign()\n```\n"
    first, second = sections({"page.md": page})
    assert (first.link, second.link, second.title) == ("page.md", "page.md#part", "Title: Part")
    assert example("Campaign", dr.Campaign, [first, second]) == (second, "x = dr.Campaign(1)\n# no heading\n")
    for name in (name for name in dr.__all__ if name in names):
        page = (source / "api" / f"{name}.md").read_text()
        members = [getattr(dr, name), *vars(getattr(dr, name)).values()]
        assert "## Example" in page or any(">>>" in (inspect.getdoc(member) or "") for member in members), name


def test_home_has_what_the_readme_has(source):
    home = (source / "index.md").read_text()
    pictures = re.findall(r'<img src="(figures/\w+\.png)"', README)
    assert pictures and all(re.search(rf"\]\({picture}\).*\]\(\w+\.ipynb\)", home) for picture in pictures)
    (verdicts,) = re.findall(r"statements\.csv, .*?-->\n(.*?)\n<!--", README, re.DOTALL)
    assert verdicts.partition("([")[0] in home  # links lead elsewhere
    assert "pip install git+" in home and "<!--" not in home
    with pytest.raises(ValueError, match="README.md"):
        gallery = r"<!-- gallery.*?end of the gallery -->"
        home_page(re.sub(gallery, "", README, flags=re.DOTALL), INSTALL, list(all_notebooks()))


def test_published_notebooks_have_results_and_no_trace_of_the_machine(tmp_path, monkeypatch):
    """They are on the site, and the index leads to them, where the folder exists."""
    when, output = {"papermill": {"start_time": "2026-01-01T00:00:00"}}, nbformat.v4.new_output
    cell = nbformat.v4.new_code_cell("x", metadata=when, execution_count=3)
    picture = io.BytesIO()
    Image.effect_noise((300, 300), 50).convert("RGB").save(picture, "PNG")
    data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "application/javascript": "alert()"}
    cell.outputs = [output("stream", name="stderr", text="50%|"), output("display_data", data=data)]
    text = f"AUC 0.8 in {tmp_path}/run/x.csv and {ROOT}"
    cell.outputs.insert(1, output("stream", name="stdout", text=text))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python"}}
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata=kernel)
    source = tmp_path / "run" / "notebooks" / "00_quickstart.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(notebook, source)
    figures = tmp_path / "figures"
    write_notebooks([source], figures / FOLDER)
    (made,) = nbformat.read(figures / FOLDER / source.name, as_version=4).cells
    printed, shown = made.outputs
    assert printed.text == "AUC 0.8 in .../x.csv and ..." and list(shown.data) == ["image/png"]
    assert len(shown.data["image/png"]) < len(data["image/png"]) and not made.metadata and made.execution_count is None
    monkeypatch.setattr("reproduce.published_notebooks.LIMIT", 100)
    with pytest.raises(ValueError, match="at most 100"):
        write_notebooks([source], tmp_path / "large")
    monkeypatch.setattr("reproduce.published_notebooks.FIGURES", figures)
    assert f"figures/{FOLDER}" in index_notebook(all_notebooks(), GUIDE, []).cells[-1].source
    site = tmp_path / "site"
    site.mkdir()
    write_source(site, published_folder())
    assert "AUC 0.8 in" in (site / "00_quickstart.ipynb").read_text()


@pytest.mark.parametrize(
    ("words", "page"), [("Hugging Face", "your_model"), ("resume", "campaigns"), ("papermill", "sweeps")]
)
def test_what_people_search_for_is_an_entry_of_one_page(source, words, page):
    """The search shows entries of the index first."""
    found = [path.stem for path in source.glob("*.md") if f"```{{index}} ! {words}\n" in path.read_text()]
    assert found == [page]


def test_links_lead_to_pages_and_code_stays():
    pages = {"docs/data.md": "data.md"}
    text = "[`a`](data.md#x) [b](../LICENSE) [c](https://a.b) `[d](data.md)` ![e](../figures/a.svg) [f](#g)"
    text += r" ![0.1 \[0, 1\]](../figures/b.svg)"
    assert relinked(text, Path("docs"), pages) == (
        "[`a`](data.md#x) b (`LICENSE`) [c](https://a.b) `[d](data.md)` ![e](figures/a.svg) [f](#g)"
        r" ![0.1 \[0, 1\]](figures/b.svg)"
    )


def test_the_page_on_installing_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", INSTALL, re.MULTILINE)) == set(extras)


GUIDE = (ROOT / "docs" / "reproduce.md").read_text()


def test_the_committed_index_is_what_is_known_of_the_notebooks():
    made = index_notebook(all_notebooks(), GUIDE, read_times(TIMES))
    assert nbformat.read(INDEX, as_version=4) == made, (
        "notebooks/index.ipynb is old: python -m reproduce.notebook_index"
    )


def test_times_of_all_are_kept_and_some_measured_again(tmp_path, capsys, monkeypatch):
    """Each notebook, which is not run, takes the time given here, and has an empty cache of its own."""
    seconds, seen = {}, []

    def run(notebook, parameters, folder):
        cache = os.environ["DRSROBUST_CACHE"]
        assert parameters == {} and not os.path.exists(cache)
        os.makedirs(cache)
        seen.append((notebook.name, cache))
        took = seconds.get(notebook.name, 9.96)
        error = "" if took else "ValueError: no"
        about = notebook.name, notebook.title, not error, took, {}, "notebooks/x.ipynb", [], error
        return Outcome(*about, peak_mib=700, cpu_seconds=8.0)

    monkeypatch.setattr("reproduce.notebook_index.run_notebook", run)
    monkeypatch.setattr("reproduce.notebook_index.TIMES", tmp_path / "defaults.csv")
    monkeypatch.setattr("reproduce.notebook_index.INDEX", tmp_path / "index.ipynb")
    monkeypatch.setenv("DRSROBUST_CACHE", "as it was")
    assert main(["--times", "--out", str(tmp_path)]) == 0
    rows = read_times(tmp_path / "defaults.csv")
    assert [row["notebook"] for row in rows] == [name for name, _ in seen] and len(rows) >= 10
    assert all(row["seconds"] == "10.0" and row["peak_mib"] == "700" and "cores" in row["machine"] for row in rows)
    assert os.environ["DRSROBUST_CACHE"] == "as it was" and not os.path.exists(seen[0][1])
    seconds["03_ber_sweep"] = 301.0
    assert main(["--times", "03_ber_sweep", "--out", str(tmp_path)]) == 1  # over the limit
    again = {row["notebook"]: row["seconds"] for row in read_times(tmp_path / "defaults.csv")}
    assert again == {row["notebook"]: row["seconds"] for row in rows} | {"03_ber_sweep": "301.0"}
    assert "| 5.0 | 8 | 0.7 GiB |" in (tmp_path / "index.ipynb").read_text()
