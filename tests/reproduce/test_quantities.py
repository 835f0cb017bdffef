"""Measured numbers of texts: each is one cell of one CSV, and none is written by hand."""

import json
import re

import pandas as pd
import pytest

from reproduce import readme_tables as made
from reproduce.figures_page import figures_page
from reproduce.notebooks import FIGURES, ROOT
from reproduce.other_papers import NOT_RUN, as_markdown, table
from reproduce.quantities import Number, Quantity, Selection, filled, message, messages, quantities, with_message

TABLE = """model,value,low,high,loss,loss_low,loss_high
dlrm,0.463821,0.300958,0.608954,0.1,0.01,0.9
fm,2,,,1234.5,1234.5,1234.5
"""
published_run = pytest.mark.skipif(
    not (FIGURES / "statements.csv").is_file(), reason="the published run is of before version 0.10"
)


@pytest.fixture
def figures(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "t.csv").write_text(TABLE)
    ends = {end: f"loss{suffix}" for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))}
    named = {
        "share": Quantity("t", Selection(where={"model": "dlrm"}), percent=True),
        "loss": Quantity("t", Selection(where={"model": "dlrm"}, **ends), digits=1),
        "rest": Quantity(
            "t", Selection(value="1 - loss", low="1 - loss_high", high="1 - loss_low", where={"model": "dlrm"})
        ),
        "exact": Quantity("t", Selection(where={"model": "fm"}, **ends), digits=4),
        "other": Quantity("t", Selection(where={"model": "dcn"})),
        "nowhere": Quantity("u", Selection()),
        "twice": Quantity("t", Selection()),
    }
    monkeypatch.setattr("reproduce.quantities.quantities", lambda: named)
    return tmp_path


def test_texts_are_filled(figures):
    text = "{share}, {share.value}, {loss.value}, {rest}, {exact}"
    # A number whose interval spans over a factor of 3 is never printed without it.
    assert filled(text, figures) == "46 % [30, 61], 46 %, 0.1 [0.01, 0.9], 0.9 [0.1, 0.99], 1,234"


NOT_MEASURED = [("other", LookupError, "t has no row of quantity other"), ("nowhere", LookupError, "no table u")]
MISTAKES = [("shares", ValueError, "'shares'; did you mean 'share'"), ("twice", ValueError, "twice: 2 rows")]


@pytest.mark.parametrize(("name", "error", "says"), NOT_MEASURED + MISTAKES)
def test_what_was_not_measured_is_not_told_and_mistakes_are_named(figures, name, error, says):
    with pytest.raises(error, match=says):
        filled(f"{{{name}}}", figures)


def test_an_alternative_text_begins_with_the_message():
    words = {"title": "What is drawn.", "alt": "What is drawn. AUC: from 0.5 at 1 to 0.8 at 2. Loss: 0 throughout."}
    assert with_message(words, "") == words["alt"]
    assert with_message(words, "It falls.") == "It falls. AUC: from 0.5 at 1 to 0.8 at 2. Loss: 0 throughout."
    long = 350 * "a" + "."
    assert with_message(words, long) == f"{long} AUC: from 0.5 at 1 to 0.8 at 2."
    assert with_message(words, 2 * long) == 2 * long


def test_mistakes_of_a_file_are_named(tmp_path):
    for text, says in (("a = { csv = 'x', digit = 3 }", "'digit'; did you"), ("a = {}", "q.toml, a: no csv")):
        (tmp_path / "q.toml").write_text(text)
        with pytest.raises(ValueError, match=says):
            quantities(tmp_path / "q.toml")


def test_a_number_without_a_value_is_not_told():
    with pytest.raises(LookupError, match="not measured"):
        str(Number(float("nan"), 0, 1))
    assert Number(-2.0, -3.0, -1.5).value == "-2" and Number(0.0, 0.0, 0.0).value == "0"


@published_run
def test_messages_are_of_figures_and_the_published_run_has_their_numbers():
    run = json.loads((FIGURES / "run.json").read_text())
    names = {name for one in run["notebooks"] for name in one["figures"]}
    told = {name: message(name, FIGURES) for name in messages() if name != "readme"}
    assert set(told) <= names and all(told.values()) and all(len(text) < 330 for text in told.values())
    assert not any("nan" in text or "{" in text for text in told.values())


def numbers(text, *ignored):
    """Numbers of a text without what these patterns find."""
    for pattern in ignored:
        text = re.sub(pattern, " ", text, flags=re.DOTALL)
    return set(re.findall(r"\d[\d.,]*\d|\d", text))


# Numbers of texts that were not measured: settings, limits, sources and dates.
SETTINGS = (
    r"C\d+\w?|C\d+|arXiv:[\d.]+|https?:\S+|\b20\d\d\b|\d\d_\w+|bits? \d+(?: to \d+)?|8 KB|devices of \d+ Gb"
    r"|float32|int8|CRC32|HR@10|1e-?\d+|0\.625|2\.13e38|[a-z]+\d+(?:m\d)?"
)


@pytest.mark.parametrize("name", [name for name in messages() if name != "readme"])
def test_no_number_of_a_message_is_written_by_hand(name):
    set_by_notebooks = {"0.1", "0.001", "0.005", "0.01", "0.5", "5", "30", "31", "100", "10,000"}
    assert numbers(messages()[name], r"\{[^}]*\}", SETTINGS) <= set_by_notebooks


def test_no_measured_number_of_the_readme_is_written_by_hand():
    """Outside of generated blocks, code and links; of the article: test_package.py."""
    blocks = r"(?:doi|arXiv):[\w./]+", r"<!--.*?by make publish -->.*?<!-- end of.*?-->", r"```.*?```", r"`[^`]*`"
    found = numbers((ROOT / "README.md").read_text(), *blocks, r"\]\([^)]*\)|#{3,} [^\n]*")
    assert found <= {"2025", "2.0", "4", "5", "2015", "3.11", "1", "0.5"}  # years, licences, a journal, Python, AUC


@published_run
def test_the_pages_hold_the_published_numbers():
    figures, run = ROOT / "figures", json.loads((ROOT / "figures" / "run.json").read_text())
    readme, *guides = ((ROOT / name).read_text() for name in ("README.md", "docs/models.md", "docs/protection.md"))
    assert made.with_models(guides[0], figures / "00_models_table.csv") == guides[0]
    assert made.with_protections(guides[1], figures / "data") == guides[1]
    assert made.with_result(readme, figures, run) == readme == made.with_statements(readme, figures / "statements.csv")
    names = [name for one in run["notebooks"] for name in one["figures"]]
    assert made.with_gallery(readme, figures, names) == readme
    assert (figures / "README.md").read_text() == figures_page(figures, run)


TEXTS = {"what": "a share", "source": "a paper", "setting": "another model", "published": "94 %", "same": "yes"}


def test_numbers_are_those_of_the_cells(tmp_path):
    (tmp_path / "data").mkdir()
    effects = {"effect": ["a", "b"], "value": [0.3, 0.5], "low": [0.2, None], "high": [0.4, None], "n": [5, 5]}
    effects |= {"interval": ["trainings", ""], "why": ["", "the same in all"]}
    pd.DataFrame(effects).to_csv(tmp_path / "e.csv", index=False)
    points = pd.DataFrame({"ber": [1e-3, 1e-4], "auc": [0.6, 0.7], "auc_low": [0.5, 0.6], "auc_high": [0.7, 0.8]})
    points.to_csv(tmp_path / "data" / "points.csv", index=False)
    cells = [{"csv": "e", "effect": "a"}, {"csv": "e", "effect": "b"}, {"csv": "points", "value": "auc", "ber": 1e-3}]
    cells += [{"csv": "missing", "effect": "a"}, {"csv": "e", "effect": "z"}]
    lines = []
    for cell in cells:
        where = [f"where.{key} = {cell.pop(key)!r}" for key in ("effect", "ber") if key in cell]
        lines += ["[[row]]", *(f"{key} = {value!r}" for key, value in (TEXTS | cell).items()), *where]
    (tmp_path / "rows.toml").write_text("\n".join(lines))
    found = table(tmp_path, tmp_path / "rows.toml")
    assert found["value"].tolist()[:3] == [0.3, 0.5, 0.6] and found["low"].tolist()[:3:2] == [0.2, 0.5]
    assert found["why"].tolist() == ["", "the same in all", "", NOT_RUN, NOT_RUN] and found["n"].tolist()[:2] == [5, 5]
    lines = as_markdown(found).splitlines()
    assert len(lines) == 7
    assert lines[2] == "| a share | 94 % | a paper: another model | 0.3 [0.2, 0.4] (trainings, n = 5) | yes |"
    assert "| 0.5 (the same in all) |" in lines[3] and "| 0.6 [0.5, 0.7] |" in lines[4] and f"| {NOT_RUN} |" in lines[5]
