"""The article as text and as a PDF (`make article`)."""

import json
import re
from pathlib import Path

import pytest

from reproduce.article import SOURCE, build_article, to_typst
from reproduce.package import article
from tests.reproduce.test_package import made_figures, with_settings

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ["02_model_factors", "03_ber_sweep", "03_ber_sweep_rates", "08_mitigation_recovery"]
FIGURES += ["04_component_vulnerability_layers"]
# What a template leaves where a number, a word or a blank is missing.
LEFT_OVER = re.compile(
    r"[{}]|\b(?:nan|None|undefined|without a number)\b|\w\)\w|[a-z][.;]\(|(?<!et al)[.,;]{2}|\b([a-zA-Z]+) \1\b"
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return article(made_figures(tmp_path_factory.mktemp("run") / "figures"), ROOT / "paper", with_settings("laptop"))


@pytest.fixture(scope="module")
def prose(text):
    """The text without links, formulas and rules of tables, each paragraph on one line."""
    plain = re.sub(r"```typst\n.*?```|\$[^$]*\$|(?<=\])\([^) ]*\)", "", text, flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=[|#>-]|\d+\. )", plain) if "| ---" not in part]


@pytest.mark.skipif(
    not (ROOT / "figures" / "statements.csv").is_file(), reason="the published run is of before version 0.10"
)
def test_the_committed_article_is_that_of_the_published_run():
    run = json.loads((ROOT / "figures" / "run.json").read_text())
    assert SOURCE.read_text() == article(ROOT / "figures", ROOT / "paper", run), "run make article"
    assert all((ROOT / "figures" / f"{name}.svg").is_file() for name in FIGURES)


def test_no_blank_is_left_open(text, prose):
    assert [(found[0], part) for part in prose for found in LEFT_OVER.finditer(part)] == []
    assert re.findall(r"(?m)[^\s|]  +[^\s|]| $", re.sub(r"(?m)^ +", "", text)) == []
    for part in prose:
        assert part.startswith("![") or all(part.count(a) == part.count(b) for a, b in ("()", "[]")), part


def test_the_converter_writes_text_as_text():
    """A bracket or semicolon after emphasis is not an argument or the end of a call; signs of typst's own are escaped."""
    written = to_typst("A *b*[1]; `c#`; $W_h$; x_1 #d Figure 2 & < 3\n")
    assert '#emph[b];\\[1\\]; #raw("c#");; ' in written and "x\\_1 \\#d Figure~2 & \\< 3" in written
    assert '#math.equation(block: false, alt: "W_h", $ W_h $.body);; ' in written


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("![a](../figures/00_none.svg)\n\nFigure 1: b\n", "image ../figures/00_none.svg is missing"),
        ("![a](../figures/00_models.svg)\n\nFigure 2: b\n", "must begin with 'Figure 1: ', got 'Figure 2: b'"),
        ("| a |\n| --- |\n| b |\n", "no paragraph 'Table 1: ...'"),
        ("<b>\n", "holds a html_block, which the converter does not know"),
        ("a <b>\n", "holds html_inline, which the converter does not know: '<b>'"),
    ],
)
def test_what_the_converter_does_not_know_is_named(page, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        to_typst(page)


def test_the_pdf_has_all_pages_and_figures(text, tmp_path):
    """PDF/UA-1 asks for the text of each figure and formula, so a PDF is only written if they are there."""
    pytest.importorskip("typst", reason="make article installs typst")
    source, target = tmp_path / "paper" / "article.md", tmp_path / "article.pdf"
    for folder in ("paper", "figures"):
        (tmp_path / folder).mkdir()
    source.write_text(text)
    for name in FIGURES:
        svg = '<svg xmlns="http://www.w3.org/2000/svg" width="700" height="400"><rect width="9" height="9"/></svg>'
        (tmp_path / "figures" / f"{name}.svg").write_text(svg)
    pages, figures = build_article(source, target)
    assert pages in range(7, 15) and figures == len(FIGURES) + len(re.findall(r"(?m)^Table \d: ", text))
    assert (pdf := target.read_bytes()).startswith(b"%PDF-") and b"pdfuaid" in pdf
    assert build_article(source, target) == (pages, figures) and target.read_bytes() == pdf
