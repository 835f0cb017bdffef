"""Tables of README.md and docs/protection.md, and what the guide says of its table."""

import json
import re

import pytest

from reproduce.figures_page import figures_page
from reproduce.notebooks import ROOT
from reproduce.quantities import Quantity, Selection, messages
from reproduce.readme_tables import (
    END,
    FRONT,
    MODELS_BEGIN,
    PROTECTIONS_BEGIN,
    PROTECTIONS_END,
    RANKING,
    RESULT_BEGIN,
    RESULT_END,
    taken,
    with_gallery,
    with_models,
    with_protections,
    with_result,
    with_statements,
)

MODELS = """# How it was measured, in words.
dataset,model,parameters,auc,auc_low,auc_high,n,logloss,cpu_seconds
movielens,fm,164000,0.81234,0.8001,0.82,5,0.51234,12.345
criteo,fm,5,0.76,,,1,0.48,
"""
RANKED = """mitigation,stored_percent,flips,faults
clip 6,0.0005,0.6,0.021
chipkill,12.5,0.5,1
"""
RESULT = f"\n- **A** {{loss}}.\n- {' '.join(27 * ['word'])}\n"
COSTS = """# Timed
mitigation,lost,lost_low,lost_high,recovery,overhead_percent,stored_percent,timed
"bits 30, SECDED",0.2,0.1,0.3,0.985,0,12.5,False
clip 6,0.2,0.1,0.3,-0.001,12.6,0.0005,True
"""


def test_models(tmp_path):
    (tmp_path / "models.csv").write_text(MODELS)
    text = with_models(f"before\n{MODELS_BEGIN}\nold\n{END}\nafter\n", tmp_path / "models.csv")
    assert text.splitlines()[4:-2] == [
        "| movielens | fm | 0.812 [0.8, 0.82] | 5 | 0.5123 | 164,000 | 12 |",
        "| criteo | fm | 0.76 | 1 | 0.4800 | 5 |  |",
    ]
    assert text.startswith(f"before\n{MODELS_BEGIN}\n| data set") and text.endswith(f"|  |\n{END}\nafter\n")
    with pytest.raises(ValueError, match="no place for the table of models"):
        with_models("no marks", tmp_path / "models.csv")


def test_protections(tmp_path):
    (tmp_path / FRONT).write_text(COSTS)
    (tmp_path / RANKING).write_text(RANKED)
    text = with_protections(f"{PROTECTIONS_BEGIN}\n{PROTECTIONS_END}", tmp_path)
    assert text.splitlines()[3:-1] == [
        "| *none: AUC lost* | *0.2* |  |  |  |",
        "| bit 30, SECDED | 0.98 |  | 12.5 % | none |",
        "| clip 6 | 0.00 | 0.02 | under 0.01 % | 13 % |",
        "| chipkill | 0.50 | 1.00 | 12.5 % | none |",
    ]


def test_the_result_is_bullets_and_a_line_on_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduce.readme_tables.messages", lambda: {"readme": {"result": RESULT}})
    monkeypatch.setattr(
        "reproduce.quantities.quantities", lambda: {"loss": Quantity("t", Selection(where={"model": "fm"}))}
    )
    run = {"seconds": 2400.0, "seconds_from_empty": 2400.0, "machine": {"cores": 2}, "cached": False}
    run |= {"versions": {"drsrobust": "0.7.1"}, "commit": "abc1234"}
    page = f"a\n{RESULT_BEGIN}\nold\n{RESULT_END}\nb"
    assert "has no results for this page: no table t." in with_result(page, tmp_path, run)
    (tmp_path / "t.csv").write_text("model,value\nfm,0.25\n")
    lines = with_result(page, tmp_path, run).splitlines()
    assert lines[2] == "- **A** 0.25." and lines[3].startswith("- word") and lines[4] == "  word word"
    assert (
        lines[6] == "(Results, figures and verdicts of version 0.7.1, commit abc1234: one run, 40 minutes on 2 cores.)"
    )
    assert (lines[1], lines[7]) == (RESULT_BEGIN, RESULT_END) and max(map(len, lines)) <= 128


def test_the_message_of_the_readme_has_four_bullets_and_few_numbers():
    bullets = messages()["readme"]["result"].strip().splitlines()
    assert len(bullets) == 4 and all(bullet.startswith("- **") for bullet in bullets)
    assert len(re.findall(r"\{\w+\.value\}|\d[\d.,]*", "".join(bullets))) <= 12 and "[" not in "".join(bullets)


@pytest.mark.skipif(
    not (ROOT / "figures" / "statements.csv").is_file(), reason="the published run is of before version 0.10"
)
def test_the_pages_hold_the_published_numbers():
    figures, run = ROOT / "figures", json.loads((ROOT / "figures" / "run.json").read_text())
    readme, *guides = ((ROOT / name).read_text() for name in ("README.md", "docs/models.md", "docs/protection.md"))
    assert with_models(guides[0], figures / "00_models_table.csv") == guides[0]
    assert with_protections(guides[1], figures / "data") == guides[1]
    assert with_result(readme, figures, run) == readme == with_statements(readme, figures / "statements.csv")
    names = [name for one in run["notebooks"] for name in one["figures"]]
    assert with_gallery(readme, figures, names) == readme
    assert (figures / "README.md").read_text() == figures_page(figures, run)


def test_the_time_says_whether_the_cache_was_empty():
    run = {"seconds": 1200.0, "seconds_from_empty": 2400.0, "machine": {"cores": 2}}
    assert taken(run | {"cached": False}) == "40 minutes on 2 cores"
    assert taken(run | {"cached": False, "cpu_seconds": 4321.6}) == "40 minutes on 2 cores, 4,322 CPU seconds"
    assert taken(run | {"cached": True}) == (
        "40 minutes on 2 cores (20 minutes with models and trials of an earlier run at hand)"
    )
