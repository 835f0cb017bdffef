"""The article and its PDF, the artifact appendix, the RO-Crate, the files that archives read, and which runs are published."""

import json
import math
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

import drsrobust
from drsrobust._hashing import file_digest
from reproduce import publish as publishing
from reproduce.article import SOURCE, build_article, to_typst
from reproduce.bundle import figure_sums
from reproduce.notebooks import all_notebooks
from reproduce.package import article, crate
from reproduce.profiles import load_profile
from reproduce.publish import checked_run
from reproduce.statements import load_rules, verdicts_of
from tests.reproduce.test_quantities import published_run

ROOT = Path(__file__).resolve().parents[2]
DOI = "10.1109/ISSRE66568.2025.00016"
SETTINGS = {
    profile: load_profile(profile, all_notebooks(), None).parameters for profile in ("smoke", "laptop", "paper")
}
RUN = {
    "profile": "laptop",
    "started": "2026-01-02 03:04 UTC",
    "seconds": 2400.0,
    "seconds_from_empty": 2400.0,
    "cpu_seconds": 4321.0,
    "cached": False,
    "commit": "0123456789ab",
    "rules_sha256": "fedcba9876543210",
    "datasets": ["movielens-1m/ids", "criteo-sample/fields"],
    "versions": {"torch": "2", "torchrec": "1", "drsrobust": "9.9"},
    "machine": {"cores": 2},
    "notebooks": [{"notebook": "03_ber_sweep", "seconds": 90.0, "cpu_seconds": 120.0, "peak_mib": 2048}],
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Figures of a run in which every item of every rule meets its conditions clearly, but for DCN of S6, which none meets."""
    folder = tmp_path_factory.mktemp("figures")
    (folder / "data").mkdir()
    keys, rows = ["statement", "part", "dataset", "item", "what", "unit", "value", "error"], {}
    for rule in load_rules():
        names = ["fm", "dcn", *(f"item {at}" for at in range(rule.items - 2))][: rule.items]
        for one in rule.conditions:
            ends = one.above, one.below
            met = sum(ends) / 2 if all(map(math.isfinite, ends)) else one.below / 2
            met = met if math.isfinite(met) else (one.above + 1) / 2 if one.share else one.above + 1
            for dataset in RUN["datasets"]:
                for item in names:
                    missed = 2 * one.below if math.isfinite(one.below) else one.above / 2
                    value = missed if (rule.statement, item) == ("S6", "dcn") else met
                    for unit, near in enumerate((0.999, 1.0, 1.001)):
                        row = (rule.statement, rule.part, dataset, item, one.what, unit, near * value, float("nan"))
                        rows.setdefault(rule.figure, []).append(row)
    tables = {figure: pd.DataFrame(own, columns=keys) for figure, own in rows.items()}
    verdicts_of(load_rules(), tables).to_csv(folder / "statements.csv", index=False, float_format="%.6g")
    (folder / "models.csv").write_text("model,dataset\nfm,d\ndlrm,d\n")
    (folder / "data" / "01_bit_sensitivity.csv").write_text("bit\n30\n")
    return folder


def written(figures, profile):
    notebooks = [{"notebook": name, "parameters": own} for name, own in SETTINGS[profile].items()]
    return article(figures, ROOT / "paper", RUN | {"notebooks": notebooks})


@pytest.fixture(scope="module")
def text(figures):
    return written(figures, "laptop")


def test_every_number_of_the_article_comes_from_the_run(text):
    text = " ".join(text.split())
    # S6: DCN alone is against it
    assert "in at least 4 of 5 models | reproduced (4 of 5) | reproduced (4 of 5) |" in text
    assert "*reproduced*, clearly in 4 of 5. Lost at 0.0001: FM 1.05 [1.05, 1.05], DCN 0.025 [0.0249, 0.0251]" in text
    assert "on 2 trained models and on d, and give" in text
    assert "commit `0123456789ab`" in text and "(`fedcba987654`)" in text
    template = (ROOT / "paper" / "article.md.j2").read_text()
    results = template[template.index("## 4. Results") : template.index("## 6.")]
    own = r"(?s)\{.*?\}|```typst.*?```|!\[.*?\)|`[^`]*`|\bS\d+|MovieLens-1M|#+ \d[.\d]*"
    own += r"|(?:Figure|Table|Fig\.|Notebooks) \d+(?: to \d+)?"
    # Intervals, the measure, stress rates; what can be read of the study; examples.
    said = {"95", "0.01", "1e-4", "171K", "0.813", "5", "30", "6", "4"}
    assert set(re.findall(r"\d(?:[\w.-]*\w)?", re.sub(own, "", results))) <= said


@pytest.mark.parametrize("profile", SETTINGS)
def test_the_article_is_written_with_the_settings_of_each_profile(figures, profile):
    assert f"{SETTINGS[profile]['03_ber_sweep']['trials']} stratified and" in written(figures, profile)


def test_the_crate_describes_every_file(figures):
    found = crate(figures, RUN)
    entities = {entity["@id"]: entity for entity in found["@graph"]}
    files = {path.relative_to(figures).as_posix() for path in figures.rglob("*") if path.is_file()}
    assert {part["@id"] for part in entities["./"]["hasPart"]} == files <= set(entities)
    assert entities["./"]["datePublished"] == "2026-01-02T03:04Z" and entities["#drsrobust"]["softwareVersion"] == "9.9"
    references = set(re.findall(r'\{"@id": "([^"]+)"\}', json.dumps(found["@graph"])))
    assert {name for name in references if not name.startswith("https://w3id.org")} <= set(entities)


def test_files_for_archives_agree():
    """Version and licence, and the study by its two identifiers."""
    codemeta, zenodo = (json.loads((ROOT / name).read_text()) for name in ("codemeta.json", ".zenodo.json"))
    citation, metadata = (yaml.safe_load((ROOT / name).read_text()) for name in ("CITATION.cff", "paper/metadata.yaml"))
    assert codemeta["version"] == zenodo["version"] == citation["version"] == drsrobust.__version__
    licences = codemeta["license"].rpartition("/")[2], citation["license"], zenodo["license"].capitalize()
    assert set(licences) == {"Apache-2.0"}
    for text in map(str, (codemeta, zenodo, citation, metadata)):
        assert 0 <= text.index(DOI) < text.index("2307.10244")  # the reviewed edition first
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["tests"]["steps"]]


FIGURES = ["02_model_factors", "03_ber_sweep", "03_ber_sweep_rates", "08_mitigation_recovery"]
FIGURES += ["04_component_vulnerability_layers"]
# What a template leaves where a number, a word or a blank is missing.
LEFT_OVER = re.compile(
    r"[{}]|\b(?:nan|None|undefined|without a number)\b|\w\)\w|[a-z][.;]\(|(?<!et al)[.,;]{2}|\b([a-zA-Z]+) \1\b"
)


@published_run
def test_the_committed_article_is_that_of_the_published_run():
    run = json.loads((ROOT / "figures" / "run.json").read_text())
    assert SOURCE.read_text() == article(ROOT / "figures", ROOT / "paper", run), "run make article"
    assert all((ROOT / "figures" / f"{name}.svg").is_file() for name in FIGURES)


def test_no_blank_is_left_open(text):
    """Neither in paragraphs, without links, formulas and rules of tables, nor between words."""
    plain = re.sub(r"```typst\n.*?```|\$[^$]*\$|(?<=\])\([^) ]*\)", "", text, flags=re.DOTALL)
    parts = [part for part in re.split(r"\n\n|\n(?=[|#>-]|\d+\. )", plain) if "| ---" not in part]
    prose = [" ".join(part.split()) for part in parts]
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


@pytest.fixture
def built_run(tmp_path, monkeypatch):
    """A repository with one commit, and in its folder `build` a laptop run of it; gives a function that changes the record."""
    monkeypatch.setattr(publishing, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    rules = tmp_path / "reproduce" / "rules.toml"
    rules.parent.mkdir()
    rules.write_text("frozen")
    monkeypatch.setattr(publishing, "RULES", rules)
    for command in (["init", "-q"], ["add", "reproduce"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    describe = [*git, "describe", "--always", "--abbrev=12"]
    described = subprocess.run(describe, capture_output=True, text=True, check=True)
    figures = tmp_path / "build" / "laptop" / "figures"
    (figures / "data").mkdir(parents=True)
    for name in ("statements.csv", "a.svg", "data/a.csv"):
        (figures / name).write_text(name)
    run = {"real": True, "complete": True, "commit": described.stdout.strip(), "figure_sha256": figure_sums(figures)}
    run |= {"notebooks": [{"notebook": "03_ber_sweep", "ok": True}], "rules_sha256": file_digest(rules)}

    def changed(**changes):
        (tmp_path / "build" / "laptop" / "run.json").write_text(json.dumps(run | changes))
        return tmp_path / "build"

    return changed


def test_a_run_of_a_commit_with_its_own_figures(built_run):
    assert checked_run("laptop", built_run())["complete"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"real": False}, "generated data"),
        ({"complete": False}, "not whole"),
        ({"notebooks": [{"notebook": "03_ber_sweep", "ok": False}]}, "03_ber_sweep"),
        ({"commit": "0123456789ab-dirty"}, "uncommitted changes"),
        ({"commit": None}, "no commit"),
        ({"commit": ""}, "no commit"),
        ({"commit": "0123456789ab"}, "0123456789ab, which is not in"),
        ({"commit": "HEAD"}, "HEAD, which is not in"),
        ({"rules_sha256": "0" * 64}, "0{64}"),
        ({"rules_sha256": None}, "rules of SHA-256 unknown"),
        ({"figure_sha256": {}}, r"figures/a\.svg is not of this run"),
    ],
)
def test_what_is_not_published(changes, says, built_run):
    with pytest.raises(ValueError, match=says):
        checked_run("laptop", built_run(**changes))


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("data/a.csv", "better numbers", r"figures/data/a\.csv differs"),
        ("b.csv", "", r"figures/b\.csv is not of this run"),
        ("data/b.csv", "", r"figures/data/b\.csv is not of this run"),
        ("a.svg", None, r"figures/a\.svg is missing"),
        ("statements.csv", None, r"no statements\.csv"),
    ],
)
def test_figures_that_were_changed_added_or_removed(file, text, says, built_run):
    path = built_run() / "laptop" / "figures" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ValueError, match=says):
        checked_run("laptop", built_run())


@pytest.mark.parametrize(("profile", "error"), [("paper", FileNotFoundError), ("smoke", ValueError)])
def test_runs_that_are_not_there(profile, error, built_run):
    with pytest.raises(error, match=profile):
        checked_run(profile, built_run())
