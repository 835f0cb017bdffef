"""The article as text and as a PDF (`make article`)."""

import json
import re
from pathlib import Path

import pytest
import yaml

from reproduce.article import SOURCE, build_article, to_typst
from reproduce.package import article
from reproduce.verdicts import VERDICTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = range(7, 14)
FIGURES, TABLES = 5, 3
# What a template leaves where a number, a word or a blank is missing.
LEFT_OVER = re.compile(
    r"[{}]|\b(?:nan|none|None|undefined|an unknown number of|undecided factors)\b|\w\)\w|[a-z][.;]\(|(?<!et al)[.,;]{2}"
    r"|\b(\w+) \1\b"
)


@pytest.fixture(scope="module")
def text():
    return article(ROOT / "figures", ROOT / "paper", json.loads((ROOT / "figures" / "run.json").read_text()))


@pytest.fixture(scope="module")
def prose(text):
    """The text without links, formulas and rules of tables, each paragraph on one line."""
    plain = re.sub(r"```typst\n.*?```|\$[^$]*\$|(?<=\])\([^) ]*\)", "", text, flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=[|#>-]|\d+\. )", plain) if "| ---" not in part]


def test_the_committed_article_is_that_of_the_published_run(text):
    assert SOURCE.read_text() == text, "run make article"


def test_no_blank_is_left_open(text, prose):
    assert [(found[0], part) for part in prose for found in LEFT_OVER.finditer(part)] == []
    assert re.findall(r"(?m)[^\s|]  +[^\s|]", re.sub(r"(?m)^ +", "", text)) == []
    for part in prose:
        for opening, closing in ("()", "[]"):
            if not part.startswith("!["):
                assert part.count(opening) == part.count(closing), part


@pytest.mark.parametrize(
    "part", ["{1:%} of", "nan [0, 1]", "none of", "(not run)On thirds", "lost.. In", "found.(not", "of of"]
)
def test_an_open_blank_would_be_seen(part):
    assert LEFT_OVER.search(part)


def test_what_could_not_be_read_is_said_first_and_then_no_more(prose):
    said = [at for at, part in enumerate(prose) if "full text" in part]
    assert said == [2]  # after title and authors
    assert not any(
        "not available" in part and at not in said and "MovieLens-20M" not in part for at, part in enumerate(prose)
    )


def test_every_claim_is_in_one_table_and_told_once(text):
    import pandas as pd

    claims = pd.read_csv(ROOT / "figures" / "claims.csv", comment="#")
    for name in claims["claim"].unique():
        assert len(re.findall(rf"(?m)^\| \*\*{name}\*\*: ", text)) == 1
        assert len(re.findall(rf"\*\*{name}: [a-z -]+\.\*\*", text)) == 1


def test_every_verdict_word_has_a_meaning(text):
    for word in VERDICTS:
        assert f"- *{word}*: " in text


def test_references_are_cited_and_complete(text):
    body = text[text.index("## 1.") : text.index("## 4.")]  # elsewhere brackets hold intervals
    listed = re.findall(r"(?m)^(\d+)\. ", text.partition("## References\n")[2])
    cited = {number for group in re.findall(r"\[(\d+(?:, \d+)*)\]", body) for number in group.split(", ")}
    assert listed == [str(at) for at in range(1, len(listed) + 1)] and cited == set(listed)


def test_figures_exist_and_their_captions_count(text):
    images = re.findall(r"!\[([^]]*)\]\(([^)]*)\)\n\nFigure (\d+): ", text)
    assert [int(number) for *_, number in images] == list(range(1, FIGURES + 1)) and text.count("![") == FIGURES
    for words, path, _ in images:
        assert 40 < len(words) < 200 and (ROOT / "paper" / path).is_file()


def test_authors_and_editor_are_placeholders(text):
    metadata = yaml.safe_load((ROOT / "paper" / "metadata.yaml").read_text())
    assert metadata["contributors"][0]["name"] is None and "are placeholders" in text
    assert text.partition("\n")[0] == f"# {metadata['title']}"


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


def test_the_pdf_has_all_pages_and_figures(tmp_path):
    """PDF/UA-1 asks for the text of each figure and formula, so a PDF is only written if they are there."""
    pytest.importorskip("typst", reason="make article installs typst")
    target = tmp_path / "article.pdf"
    pages, figures = build_article(target=target)
    assert pages in PAGES and figures == FIGURES + TABLES
    pdf = target.read_bytes()
    assert pdf.startswith(b"%PDF-") and b"pdfuaid" in pdf
    assert build_article(target=target) == (pages, figures) and target.read_bytes() == pdf
