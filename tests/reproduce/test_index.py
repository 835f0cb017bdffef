import re

import nbformat
import pytest

from reproduce.defaults import LIMIT, read_times
from reproduce.index import INDEX, TIMES, claims_of, index_notebook, main
from reproduce.notebooks import ROOT, all_notebooks, read_notebook
from tests.reproduce.test_parameters import write

README = (ROOT / "README.md").read_text()


def test_the_committed_index_is_what_is_known_of_the_notebooks():
    made = index_notebook(all_notebooks(), README, read_times(TIMES))
    assert nbformat.read(INDEX, as_version=4) == made, "notebooks/index.ipynb is old: python -m reproduce.index"


def test_it_lists_and_links_every_notebook_and_keeps_no_output():
    index = nbformat.read(INDEX, as_version=4)
    nbformat.validate(index)
    links = re.findall(r"^\| \[(\w+)\]\((\w+)\.ipynb\)", index.cells[0].source, re.MULTILINE)
    assert links == [(name, name) for name in all_notebooks()]
    assert [cell.cell_type for cell in index.cells] == ["markdown"]


def test_measured_times_are_under_the_limit_and_of_notebooks_that_are_there():
    rows = read_times(TIMES)
    assert {row["notebook"] for row in rows} == set(all_notebooks())
    assert all(0 < float(row["seconds"]) < LIMIT and int(row["peak_mib"]) > 0 and not row["error"] for row in rows)


def test_a_line_has_question_claim_and_times(tmp_path):
    notebook = read_notebook(write(tmp_path, "a: int = 1"))
    measured = [{"notebook": "10_test", "seconds": "90.0", "peak_mib": "1536", "machine": "2 cores", "error": ""}]
    said = "| `10_test` | why it is so |\n"
    text = index_notebook({"10_test": notebook}, said, measured).cells[0].source
    assert "| [10_test](10_test.ipynb) | why it is so | - | 1.5 | 1.5 GiB |" in text and "on 2 cores." in text
    text = index_notebook({"10_test": notebook}, said, []).cells[0].source
    assert "| why it is so | - |  |  |" in text and "Times were not measured yet." in text
    with pytest.raises(ValueError, match="README.md does not say what 10_test answers"):
        index_notebook({"10_test": notebook}, "", [])


def test_claims_stand_in_the_first_cell(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# T\n\n**Claim C9 (x): y. Claim C2: z.** Not C3.")]
    nbformat.write(notebook, tmp_path / "10_test.ipynb")
    known = all_notebooks()["03_ber_sweep"]
    assert claims_of(known) == ["C3"]
    assert claims_of(type(known)("10_test", tmp_path / "10_test.ipynb", "T", {})) == ["C2", "C9"]


def test_a_new_table_of_times_is_taken_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reproduce.index.TIMES", tmp_path / "kept.csv")
    monkeypatch.setattr("reproduce.index.INDEX", tmp_path / "index.ipynb")
    head = "notebook,seconds,peak_mib,machine,error\n"
    (tmp_path / "kept.csv").write_text(head + "00_models,1.0,5,m,\n99_gone,1.0,5,m,\n")
    (tmp_path / "new.csv").write_text(head + "00_quickstart,66.0,1024,m,\n03_ber_sweep,6.0,5,m,it failed\n")
    assert main([str(tmp_path / "new.csv")]) == 0
    assert [row["notebook"] for row in read_times(tmp_path / "kept.csv")] == ["00_models", "00_quickstart"]
    assert "| 1.1 | 1.0 GiB |" in (tmp_path / "index.ipynb").read_text()
