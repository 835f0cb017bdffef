"""The report of a small made-up run: what it says, that it needs nothing from elsewhere, and what it leaves out."""

import html
import json
import re
import zipfile

import nbformat
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_extras.pages.report import write_page
from reproduce import executed, report
from reproduce.report import write_report

CELLS = [("markdown", "# E0: a title\n\n**Claim C0: `x` < y.** More."), ("code", "plot()")]
CELLS += [("markdown", "## Results\n\nWords."), ("code", "print(1)"), ("markdown", "## Else"), ("code", "print(2)")]
OUTPUTS = {
    1: [
        ("stderr", "training:   0%|   | 0/4\rtraining: 100%|###| 4/4\n"),
        ("stderr", "UserWarning: odd\n"),
        ("image/png", "iVBORw0KGgo="),
    ],
    3: [
        ("stdout", "a <b> c\n"),
        ("stdout", "one\ntwo\ndata d; python 3.11, torch 1\n"),
        ("text/markdown", "It *holds*."),
    ],
    5: [("stdout", "not here\n")],
}


@pytest.fixture
def notebook():
    made = nbformat.v4.new_notebook()
    for number, (kind, source) in enumerate(CELLS):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        made.cells.append(make(source))
        for name, text in OUTPUTS.get(number, []):
            stream = name in ("stdout", "stderr")
            output = nbformat.v4.new_output("stream", name=name, text=text) if stream else None
            made.cells[-1].outputs.append(output or nbformat.v4.new_output("display_data", {name: text}))
    return made


@pytest.fixture
def folder(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setattr(report, "FIGURES", tmp_path / "nothing published")
    ax = plots.new_panels()[0]
    ax.plot([1, 2], [3, 4], label="all")
    ax.set(xlabel="rate", ylabel="AUC")
    plots.save(ax, "00_one", pd.DataFrame({"auc": [3, 4]}), "AUC < 5.", details="Data: d, 5 < 6 rows.")
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "00_one.ipynb")
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def run(**changes):
    done = {"notebook": "00_one", "title": "E0: a title", "ok": True, "seconds": 3.2, "parameters": {"seed": 5}}
    done |= {
        "output": "notebooks/00_one.ipynb",
        "figures": ["00_one"],
        "error": "",
        "peak_mib": 2560,
        "cpu_seconds": 240,
    }
    failed = {"notebook": "01_two", "title": "E1", "ok": False, "seconds": 200.0, "parameters": {"dataset": "d"}}
    failed |= {"output": "notebooks/01_two.failed.ipynb", "figures": [], "error": "ValueError: <no>", "peak_mib": 0}
    machine = {"system": "Linux", "architecture": "x86_64", "cores": 2, "memory_gib": 8}
    made = {
        "profile": "smoke",
        "real": False,
        "datasets": ["d"],
        "complete": True,
        "started": "today",
        "seconds": 204.0,
    }
    made |= {"versions": {"torch": "1"}, "commit": None, "machine": machine, "notebooks": [done, failed]}
    return made | changes


def test_what_the_page_says(folder):
    page = write_report(folder, run()).read_text()
    assert "All data of this run are generated" in page and "its numbers mean nothing" in page
    assert "<summary>AUC &lt; 5.</summary><p>Data: d, 5 &lt; 6 rows.</p>" in page
    shown = json.loads(html.unescape(re.search(r'data-points="([^"]+)"', page)[1]))
    assert [text for *_, text in shown] == ["all: 3 at 1", "all: 4 at 2"] and shown[0][0] < shown[1][0]
    assert shown[0][1] > shown[1][1]  # from the top
    assert "This notebook failed: ValueError: &lt;no&gt;" in page
    real = write_report(folder, run(real=True, profile="laptop")).read_text()
    assert "generated" not in real and "mean nothing" not in real and "DATA=folder<" in real


def test_the_page_needs_nothing_from_elsewhere_and_its_headings_are_in_order(folder):
    index = write_report(folder, run())
    assert {path.name for path in index.parent.iterdir()} == {"index.html", "00_one.html", "numbers.zip"}
    with zipfile.ZipFile(index.parent / "numbers.zip") as archive:
        assert archive.namelist() == ["data/00_one.csv"]
    for path in index.parent.glob("*.html"):
        page = path.read_text()
        for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
            assert link.startswith("data:") or (path.parent / link).is_file(), link
        targets = re.findall(r'href="#([^"]+)"', page)
        assert set(targets) <= set(re.findall(r'id="([^"]+)"', page))
        assert not re.search(r"https?:|<script src|@import|url\(", page)
        levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
        assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_a_page_of_figures_alone(folder):
    """`drsrobust_extras.pages.report` needs no notebook and no run."""
    write_page(folder / "figures", folder / "pages" / "all.html", "My <figures>")
    page = (folder / "pages" / "all.html").read_text()
    assert "<h1>My &lt;figures&gt;</h1>" in page and "<summary>AUC &lt; 5.</summary>" in page
    for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
        assert (folder / "pages" / link).is_file(), link


def test_progress_bars_are_left_out_and_warnings_are_not(notebook):
    page = executed.body(notebook)
    assert "training" not in page and "No description" not in page and "UserWarning: odd" in page
    assert "a &lt;b&gt; c" in page
    assert len(notebook.cells[1].outputs) == 3  # the notebook itself stays as it was


HARM = """<p id="kept" onclick="x()">text</p><script>steal()</script><img src="https://a.b/c.png" onerror="x()">
<iframe src="https://a.b"></iframe><a href="javascript:x()">one</a> <a href="https://a.b">two</a>
<style>p { color: harm }</style><svg onload="x()"><script>y()</script></svg></main></body>"""
TABLE = (
    '<table class="dataframe"><thead><tr><th></th><th colspan="2">AUC</th></tr></thead><tr><td>0.5</td></tr></table>'
)


def test_html_of_notebooks_runs_and_loads_nothing(folder, notebook):
    """In the first cell, in Markdown cells and in outputs of all kinds; tables, images and links stay."""
    notebook.cells[0].source += "\n\n" + HARM
    notebook.cells[2].source += "\n\n" + HARM
    for kind, text in {
        "text/markdown": HARM + "\n\n[three](javascript:x())\n\n![](https://a.b/d.png)\n\n| a |\n| - |\n| b |",
        "text/html": HARM + TABLE,
        "application/javascript": "steal()",
        "image/svg+xml": HARM,
    }.items():
        notebook.cells[3].outputs.append(nbformat.v4.new_output("display_data", {kind: text, "text/plain": "plain"}))
    nbformat.write(notebook, folder / "notebooks" / "00_one.ipynb")
    index = write_report(folder, run(profile="laptop", complete=False))
    for path in index.parent.glob("*.html"):
        page = path.read_text()
        assert page.count("<script") == 1  # the page's own
        for harm in ("steal", "x()", "y()", "<iframe", "<svg", "javascript:", "color: harm", 'src="http'):
            assert harm not in page, (path.name, harm)
        assert page.count("</main>") == page.count("</body>") == 1 and 'href="https://a.b"' in page
    page = (index.parent / "00_one.html").read_text()
    kept = '<p id="kept">text</p>', 'class="dataframe"', '<th colspan="2">AUC</th>', "<td>0.5</td>", "<td>b</td>"
    assert [text for text in kept if text not in page] == []
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in page and "It <em>holds</em>." in index.read_text()


def statements(folder, verdict, what="4 of 5"):
    """S8 of a run: a verdict on each data set, with one curve."""
    rule = {"statement": "S8", "part": "", "item": "", "what": what, "n": 5, "known_before": "yes"}
    curve = {"statement": "S8", "part": "", "item": "fm", "what": "lost at 0.0001, tables", "value": 0.0021, "n": 5}
    rows = []
    for dataset, word in (("movielens-1m/ids", verdict), ("criteo-sample/fields", "contradicted")):
        rows += [rule | {"dataset": dataset, "verdict": word}]
        rows += [curve | {"dataset": dataset, "low": 0.002, "high": 0.0025, "verdict": "clearly"}]
    columns = ["statement", "part", "dataset", "item", "what", "value", "low", "high", "n", "verdict", "known_before"]
    folder.mkdir(exist_ok=True)
    pd.DataFrame(rows, columns=[*columns, "by_construction"]).to_csv(folder / "statements.csv", index=False)


def test_statements_come_first(folder):
    statements(folder / "figures", "reproduced")
    page = write_report(folder, run(profile="laptop", complete=False)).read_text()
    assert 'href="#statements"' in page and page.index("Tables hold until 1e-3") < page.index('id="00_one"')
    assert '<span class="badge reproduced">reproduced (4 of 5)</span>' in page and "installation" not in page
    assert '<span class="badge contradicted">contradicted (4 of 5)</span>' in page
    assert "<td>0.0021 [0.002, 0.0025]</td>" in page


def test_a_smoke_report_says_what_the_published_run_found(folder, monkeypatch, tmp_path):
    """And no verdict, message or result of generated rows."""
    statements(folder / "figures", "not run", "0 of 1")
    statements(tmp_path / "published", "undecided")
    monkeypatch.setattr(report, "FIGURES", tmp_path / "published")
    page = write_report(folder, run()).read_text()
    whole = write_report(folder, run(notebooks=run()["notebooks"][:1])).read_text()
    assert "Everything ran here: 1 notebook without an error." in whole
    assert "<h2>What the published run found</h2>" in page and "Not everything ran here" in page
    assert "undecided (4 of 5)" in page and ">not run<" not in page
    assert "<h3>Results</h3>" not in page and "Rules and checks" not in page
