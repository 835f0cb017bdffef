"""The article, the artifact appendix, the RO-Crate, and the files that archives read."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import drsrobust
from reproduce.claims import COLUMNS
from reproduce.package import appendix, article, crate, write_package

ROOT = Path(__file__).resolve().parents[2]
RUN = {
    "profile": "laptop",
    "started": "2026-01-02 03:04 UTC",
    "seconds": 2400.0,
    "seconds_from_empty": 2400.0,
    "cached": False,
    "commit": "0123456789ab",
    "datasets": ["movielens-1m/full"],
    "versions": {"torch": "2", "torchrec": "1", "drsrobust": "9.9"},
    "machine": {"cores": 2},
    "notebooks": [{"notebook": "01_bit_sensitivity", "seconds": 90.0, "peak_mib": 2048}],
}
# With the settings of the notebooks, which the article names.
WHOLE = RUN | {"notebooks": json.loads((ROOT / "figures" / "run.json").read_text())["notebooks"]}


@pytest.fixture
def figures(tmp_path):
    import pandas as pd

    folder = tmp_path / "figures"
    (folder / "data").mkdir(parents=True)
    row = dict.fromkeys(COLUMNS, "") | {"group": "related", "claim": "C8", "check": 0, "what": "bit 30 dominates"}
    row |= {"verdict": "in part"}
    row |= {
        "sentence": "A flip costs 4,711 times as much.",
        "notebook": "01_bit_sensitivity",
        "figure": "01_bit_sensitivity",
    }
    row |= {"thirds": "in part, reproduced, in part", "source": "ours", "value": 4711.0}
    pd.DataFrame([row]).to_csv(folder / "claims.csv", index=False)
    (folder / "models.csv").write_text("model,dataset\nfm,d\ndlrm,d\n")
    (folder / "data" / "01_bit_sensitivity.csv").write_text("bit\n30\n")
    return folder


def test_every_number_of_the_article_comes_from_the_run(figures):
    text = article(figures, ROOT / "paper", WHOLE)
    assert "| **C8**: bit 30 dominates. *Source: ours.* |" in text
    assert "**C8: in part.** A flip costs 4,711 times as much." in text
    assert "8 trained models (movielens-1m/full)" in text  # 2, and 3 of notebook 03 with two more seeds
    assert "commit `0123456789ab`" in text
    assert "(thirds: 2 in part, 1 reproduced)" in text
    template = (ROOT / "paper" / "article.md.j2").read_text()
    results = template[template.index("## 4. Results") : template.index("## 6.")]
    written = re.sub(r"(?s)\{.*?\}|!\[.*?\)|\bC\d|(?:Figure|Table|Section) [\d.]+|#+ \d[.\d]*", "", results)
    said = {
        "95 %",
        "1 %",
        "1e-4",
        "30 %",
        "2023",
    }  # of intervals, of the measure, of stress rates, of the claim, of a date
    assert set(re.findall(r"\d[\w.-]*(?: %)?", written)) <= said | {"2023."}


@pytest.mark.parametrize("profile", ["smoke", "laptop", "paper"])
def test_the_article_is_written_with_the_settings_of_each_profile(figures, profile):
    settings = tomllib.loads((ROOT / "reproduce" / "profiles" / f"{profile}.toml").read_text())
    outcomes = [{"notebook": name, "parameters": values} for name, values in settings.items()]
    text = article(figures, ROOT / "paper", RUN | {"notebooks": outcomes})
    assert f"{settings['05_activation_clipping']['trials']} maps" in text


@pytest.mark.parametrize(
    ("claim", "group", "title"),
    [("C2a", "study", "Claims of Ma et al."), ("C19", "related", "Claims of related work")],
)
def test_a_claim_is_in_one_of_two_tables(figures, claim, group, title):
    import pandas as pd

    row = pd.read_csv(figures / "claims.csv").assign(claim=claim, group=group)
    row.to_csv(figures / "claims.csv", index=False)
    text = article(figures, ROOT / "paper", WHOLE)
    before, _, after = text.partition(f"| **{claim}**: ")
    assert re.findall(r"(?m)^Table [23]: (Claims of (?:Ma et al\.|related work))", before)[-1] == title
    assert f"**{claim}: in part.** A flip costs" in after


def test_the_appendix_gives_minutes_and_memory_per_claim(figures):
    text = appendix(figures, RUN)
    assert "| C8 | in part | `.venv/bin/python -m reproduce 01_bit_sensitivity` | 1.5 | 2.0 GiB |" in text
    assert "40 minutes on 2 cores, at most 2.0 GiB" in text


def test_the_crate_describes_every_file(figures):
    found = crate(figures, RUN)
    entities = {entity["@id"]: entity for entity in found["@graph"]}
    files = {path.relative_to(figures).as_posix() for path in figures.rglob("*") if path.is_file()}
    assert {part["@id"] for part in entities["./"]["hasPart"]} == files <= set(entities)
    assert entities["./"]["datePublished"] == "2026-01-02T03:04Z" and entities["#drsrobust"]["softwareVersion"] == "9.9"
    for entity in found["@graph"]:  # every reference is defined here
        for value in entity.values():
            for reference in value if isinstance(value, list) else [value]:
                if isinstance(reference, dict) and not reference["@id"].startswith("https://w3id.org"):
                    assert reference["@id"] in entities, reference


def test_all_are_written(figures, tmp_path):
    (tmp_path / "article.md.j2").write_text((ROOT / "paper" / "article.md.j2").read_text())
    write_package(figures, tmp_path, WHOLE)
    assert json.loads((figures / "ro-crate-metadata.json").read_text()) == crate(figures, WHOLE)
    assert {"article.md", "artifact.md"} <= {path.name for path in tmp_path.iterdir()}


def test_files_for_archives_agree():
    """Version and licence, and the study by its identifier."""
    codemeta, zenodo = (json.loads((ROOT / name).read_text()) for name in ("codemeta.json", ".zenodo.json"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    metadata = yaml.safe_load((ROOT / "paper" / "metadata.yaml").read_text())
    assert codemeta["version"] == zenodo["version"] == citation["version"] == drsrobust.__version__
    assert (
        "Apache-2.0" in codemeta["license"]
        and citation["license"] == "Apache-2.0"
        and zenodo["license"] == "apache-2.0"
    )
    for text in (codemeta, zenodo, citation, metadata):
        assert "2307.10244" in str(text)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["tests"]["steps"]]
