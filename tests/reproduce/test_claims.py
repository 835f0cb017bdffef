"""claims.toml, mistakes in it, and the table that a made-up run gives."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduce.claims import FILE, evaluate_claims, load_claims, write_claims
from reproduce.notebooks import all_notebooks
from reproduce.readme_tables import CLAIMS_BEGIN, CLAIMS_END, claims_page, claims_table, with_claims

ROOT = Path(__file__).resolve().parents[2]
CLAIM = """
[[claim]]
id = "C1"
text = "|w| falls"
source = "somewhere"
[[claim.check]]
what = "it falls with width"
figure = "10_test"
quantity = { value = "loss", low = "loss_low", high = "loss_high", where = { target = "all" }, by = ["dataset"] }
reads = "loss of the narrowest"
expected = "falls"
rule = { kind = "largest_is", column = "width", named = 64 }
"""
FINDINGS = """
[[claim.check]]
what = "as the notebook found"
figure = "10_test_second"
table = "10_test_claims"
quantity = { by = ["kind"] }
reads = "a share"
expected = "much"
rule = { kind = "recovers", bound = 0.3 }
"""
CSV = """# Made up, "quoted": data
model,dataset,target,width,loss,loss_low,loss_high
m,movielens-1m/full,all,64,0.4,0.3,0.5
m,movielens-1m/full,all,512,0.1,0.05,0.2
m,movielens-1m/full,mlp,64,0,0,0
m,synthetic-x/ids,all,64,0.4,0.3,0.5
m,synthetic-x/ids,all,512,0.5,0.45,0.6
"""
TABLE = "# made up\nkind,value,low,high,reason,detail\na,0.5,0.4,0.6,,\nb,,,,nothing lost,\n"


@pytest.fixture
def made_up(tmp_path):
    """A run with one notebook, and a function that evaluates claims on it."""
    (tmp_path / "figures" / "data").mkdir(parents=True)
    (tmp_path / "figures" / "data" / "10_test.csv").write_text(CSV)
    (tmp_path / "figures" / "10_test_claims.csv").write_text(TABLE)
    outcome = {"notebook": "10_test", "ok": True, "seconds": 90.0, "figures": ["10_test", "10_test_second"]}
    outcome["parameters"] = {"dataset": "movielens-1m/full"}
    run = {"profile": "laptop", "started": "2026-01-01 00:00 UTC", "commit": "0123456789ab", "notebooks": [outcome]}
    run["datasets"] = ["movielens-1m/full"]

    def evaluator(text, **changes):
        (tmp_path / "claims.toml").write_text(text)
        claims = load_claims(["10_test"], tmp_path / "claims.toml")
        return evaluate_claims(claims, tmp_path / "figures", run | changes)

    evaluator.run, evaluator.outcome, evaluator.folder = run, outcome, tmp_path
    return evaluator


def test_a_row_for_the_claim_and_one_per_combination(made_up):
    table = made_up(CLAIM)
    assert table["check"].tolist() == [0, 1, 1] and table["claim"].eq("C1").all()
    whole, real, generated = table.itertuples()
    assert (real.verdict, real.reason, real.data) == ("reproduced", "", "movielens-1m/full")
    assert (real.value, real.low, real.high) == pytest.approx((0.4, 0.3, 0.5))
    # Generated data are no test of a claim about real ones; what was found there is told all the same.
    assert (generated.verdict, generated.reason) == ("not tested", "generated data")
    assert generated.value == pytest.approx(0.4) and generated.detail.startswith("as it is: not; less than 512")
    assert (
        whole.verdict == "partly"
        and whole.reason == "1 of 2 checks reproduced; not tested: “it falls with width” (1 of 2)"
    )
    assert whole.value == pytest.approx(0.4) and whole.data == "movielens-1m/full" and whole.what == "|w| falls"


def test_where_the_study_generates_too(made_up):
    table = made_up(CLAIM + "generated = true\n")
    assert table["verdict"].tolist() == ["partly", "reproduced", "not"]


def test_findings_of_a_notebook(made_up):
    table = made_up(CLAIM.replace('by = ["dataset"]', 'by = ["dataset"]').replace('"all" }', '"mlp" }') + FINDINGS)
    assert table["verdict"].tolist() == ["partly", "not tested", "reproduced", "not tested"]
    assert table["reason"].tolist()[1:] == ["1 rows of width 64, 1 in all", "", "nothing lost"]


def test_what_could_not_be_made_does_not_save_a_claim(made_up):
    table = made_up(CLAIM.replace("named = 64 }", "named = 512 }"))
    assert table["verdict"].tolist() == ["not", "not", "not tested"]
    single = made_up(
        CLAIM.replace("named = 64 }", "named = 512 }")
        .replace(", by = [", ', by = ["model", ')
        .replace('target = "all"', 'target = "all", dataset = "movielens*"')
    )
    assert single["verdict"].tolist() == ["not", "not"] and single["reason"].iloc[0] == "expected: falls"


def test_on_fewer_data_sets_partly_at_best(made_up):
    real = CLAIM.replace('where = { target = "all" }', 'where = { target = "all", dataset = "movielens*" }')
    assert made_up(real)["verdict"].tolist() == ["reproduced", "reproduced"]
    more = real.replace('id = "C1"', 'id = "C1"\ndatasets = ["movielens-1m/*", "criteo-kaggle/*"]')
    whole = made_up(more).iloc[0]
    assert (
        whole["verdict"] == "partly"
        and whole["reason"] == "data sets of the study that are missing here: criteo-kaggle"
    )


def test_a_check_beside_the_claim_has_no_part_in_the_verdict(made_up):
    """What lies beside is shown, and neither saves nor spoils the claim."""
    other = CLAIM.replace("named = 64 }", "named = 512 }").replace("\n[[claim]]", "").replace('id = "C1"', "")
    other = other.partition("[[claim.check]]")[2]
    table = made_up(CLAIM + "generated = true\n[[claim.check]]" + other + "generated = true\ncounts = false\n")
    assert table["verdict"].tolist() == ["partly", "reproduced", "not", "not", "partly"]
    assert table["reason"].iloc[0] == "1 of 2 checks reproduced; not: “it falls with width” (1 of 2)"


def test_division_of_rows_by_others(made_up):
    (made_up.folder / "figures" / "data" / "10_test.csv").write_text(
        "method,rate,ms\nslow,1,30\nslow,2,80\nslow,3,\nfast,2,2\nfast,1,3\n"
    )
    text = CLAIM.partition("quantity")[0] + (
        'quantity = { value = "ms", where = { method = "slow" }, over = { method = "fast" }, match = ["rate"] }\n'
        'reads = "slow over fast"\nexpected = "10 times"\ngenerated = true\n'
        'rule = { kind = "at_least", bound = 10.0, along = "rate" }\n'
    )
    whole, check = made_up(text).itertuples()
    detail = "at rate 1, the values hold, their intervals are not known"
    assert (check.verdict, check.value, check.detail) == ("partly", 10, detail) and np.isnan(check.low)
    # With intervals: 30 [27, 33] / 3 [2.7, 3] and 80 [40, 90] / 2 [1, 2]; of 80 / 5 [-1, 11] nothing is sure.
    (made_up.folder / "figures" / "data" / "10_test.csv").write_text(
        "method,rate,ms,least,most\nslow,1,30,27,33\nslow,2,80,40,90\nfast,2,2,1,2\nfast,1,3,2.7,3\n"
        "slow,3,80,80,80\nfast,3,5,-1,11\n"
    )
    text = text.replace('value = "ms",', 'value = "ms", low = "least", high = "most",')
    one, two, three = (made_up(text.replace("= 10.0", f"= {x}")).iloc[1] for x in (9.0, 9.5, 20.0))
    assert (one["low"], one["high"]) == pytest.approx((27 / 3, 33 / 2.7)) and one["verdict"] == "partly"
    assert two["detail"].startswith("at rate 1, the values hold") and three["detail"] == "at rate 1, 1 of 3 hold"
    sure = text.replace('method = "slow" }', 'method = "slow", rate = [1, 2] }')
    assert made_up(sure.replace("= 10.0", "= 9.0"))["verdict"].iloc[1] == "reproduced"
    assert made_up(sure.replace("= 10.0", "= 9.5"))["detail"].iloc[1].endswith("their intervals do not")
    made_up.outcome["parameters"] = {}
    assert made_up(text)["data"].tolist() == ["", ""]


def test_the_figure_of_a_second_data_set(made_up):
    """05 and 06 make figures of their own for each further data set; rows of it name these."""
    table = "dataset,target,value,low,high\ncriteo-sample/fields,all,1,1,2\nmovielens-1m/full,all,1,1,2\n"
    (made_up.folder / "figures" / "data" / "10_test_second.csv").write_text(table)
    text = CLAIM.partition("quantity")[0].replace('"10_test"', '"10_test_second"') + (
        'quantity = { by = ["dataset"] }\nreads = "ms"\nexpected = "1"\nrule = { kind = "at_least", bound = 1.0 }\n'
    )
    assert made_up(text)["figure"].tolist()[1:] == ["10_test_second"] * 2  # one figure for both
    made_up.outcome["figures"].append("10_test_criteo-sample_second")
    assert made_up(text)["figure"].tolist()[1:] == ["10_test_criteo-sample_second", "10_test_second"]


def test_what_was_not_made(made_up):
    for changes, reason in (
        ({"notebooks": []}, "10_test was not run"),
        ({"notebooks": [made_up.outcome | {"ok": False, "figures": []}]}, "10_test failed"),
        ({"profile": "smoke"}, "a smoke run is too small for a verdict"),
    ):
        table = made_up(CLAIM, **changes)
        assert set(table["verdict"]) == {"not tested"} and set(table["reason"]) == {reason}
    table = made_up(CLAIM.replace('"all"', '"cross"'))
    assert set(table["verdict"]) == {"not tested"} and table["reason"].iloc[1] == "no values of target cross"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            '"10_test"',
            '"10_tset"',
            "unknown notebook in claims.toml, C1, check 1, figure '10_tset'; did you mean '10_t",
        ),
        ('"10_test"', '"10_test_curve"', "unknown figure in claims.toml, C1, check 1, figure '10_test_curve'"),
        (
            'figure = "10_test"',
            'figure = "10_test"\ntable = "10_test_claim"',
            "unknown table in claims.toml, C1, check 1",
        ),
        (
            '"largest_is"',
            '"largest"',
            "unknown kind in claims.toml, C1, check 1, rule 'largest'; did you mean",
        ),
        (
            '"largest_is", ',
            '"largest_is", bound = 1, ',
            "unknown key in claims.toml, C1, check 1, rule largest_is 'bo",
        ),
        (", named = 64", "", "claims.toml, C1, check 1, rule largest_is: no named"),
        (
            '"width"',
            '"breadth"',
            "unknown column of 10_test.csv in claims.toml, C1, check 1, rule largest_is 'breadth'",
        ),
        ('"loss"', '"los"', "10_test.csv in claims.toml, C1, check 1, quantity.value 'los'; did you mean 'loss'?"),
        ('"loss"', '"loss - "', "quantity.value 'loss - '"),
        ("target =", "targets =", "claims.toml, C1, check 1, quantity.where 'targets'; did you mean 'target'?"),
        ('["dataset"]', '["data"]', "claims.toml, C1, check 1, quantity 'data'; did you mean 'dataset'?"),
        ("by =", "per =", "unknown key in claims.toml, C1, check 1, quantity 'per'"),
        ("by =", 'over = { target = "mlp" }, by =', "give both `over` (the rows to divide by)"),
        ("expected =", "awaited =", "unknown key in claims.toml, C1, check 1 'awaited'; known: counts, expected"),
        ('reads = "loss of the narrowest"', "", "claims.toml, C1, check 1: no reads"),
        ('source = "somewhere"', "", "claims.toml, C1: no source"),
        ('id = "C1"', "", "claims.toml, claim 1: no id"),
        ("[[claim]]", "[about]\n[[claim]]", "unknown key in claims.toml 'about'"),
    ],
)
def test_mistakes_are_named_with_file_and_key(made_up, old, new, says):
    assert CLAIM.count(old) == 1
    with pytest.raises(ValueError, match=re.escape(says)):
        made_up(CLAIM.replace(old, new))


def test_duplicate_claims_are_refused(made_up):
    with pytest.raises(ValueError, match=re.escape("claims.toml: duplicate claim C1")):
        made_up(CLAIM + CLAIM)


def test_pages_from_the_table(made_up):
    made_up(CLAIM + FINDINGS)
    claims = load_claims(["10_test"], made_up.folder / "claims.toml")
    path = write_claims(claims, made_up.folder / "figures", made_up.run)
    assert path.read_text().startswith(
        "# Claims as a laptop run finds them; check 0 is the claim as a whole. Data: mov"
    )
    line = claims_table(path).splitlines()[2]
    assert line.startswith("| C1: \\|w\\| falls | **partly** | loss of the narrowest: 0.4 [0.3, 0.5], 2 cases")
    assert line.endswith("| movielens-1m/full |")
    page = claims_page(path, made_up.run)
    assert "[10_test](../notebooks/10_test.ipynb) | `.venv/bin/python -m reproduce 10_test` | 1.5 |" in page
    assert "| as the notebook found | a | much | a share: 0.5 [0.4, 0.6] | reproduced |" in page
    assert "| [10_test_second](10_test_second.svg) |" in page and "\n## C1\n" in page
    text = with_claims(f"before\n{CLAIMS_BEGIN}\nold\n{CLAIMS_END}\nafter\n", path)
    assert text == f"before\n{CLAIMS_BEGIN}\n{claims_table(path)}\n{CLAIMS_END}\nafter\n"
    with pytest.raises(ValueError, match="no place for the table of claims"):
        with_claims("no marks", path)


def test_an_old_table_does_not_outlive_a_mistake(made_up):
    figures = made_up.folder / "figures"
    (figures / "claims.csv").write_text("old")
    (made_up.folder / "claims.toml").write_text(CLAIM.replace('"loss"', '"los"'))
    with pytest.raises(ValueError):
        write_claims(load_claims(["10_test"], made_up.folder / "claims.toml"), figures, made_up.run)
    assert not (figures / "claims.csv").exists()


def test_the_speed_claim_divides_as_the_notebook_does(made_up):
    """`over` and `match` against `benchmark.ratios`."""
    from drsrobust.study.injection_speed import ratios, speed_claim

    methods = {"drsrobust": (1.0, 0.5), "dense error map": (60.0, None), "per element loop": (300.0, None)}
    given = [
        {"panel": "rate", "method": name, "parameters": 10, "dtype": "float32", "rate": rate, "cpu_ms": ms * rate * 1e6}
        | {"undo_cpu_ms": undo}
        for name, (ms, undo) in methods.items()
        for rate in (1e-6, 1e-4)
    ]
    table = pd.DataFrame(given)
    table["total_ms"] = table["cpu_ms"] + table["undo_cpu_ms"].fillna(0)
    table.to_csv(made_up.folder / "figures" / "data" / "10_test.csv", index=False)
    speed_claim(table).to_csv(made_up.folder / "figures" / "10_test_claims.csv", index=False)
    speed = next(one for one in tomllib.loads(FILE.read_text())["claim"] if one["id"] == "C7")
    checks = (
        FILE.read_text().partition('id = "C7"')[2].partition("[[claim]]")[0].replace("09_injection_speed", "10_test")
    )
    found = made_up(f'[[claim]]\nid = "C7"{checks}')
    wanted = ratios(table, 10)
    assert found["value"].iloc[1] == pytest.approx(wanted["loop_over_dense"].median()) == 5
    assert found["value"].iloc[2] == pytest.approx(wanted["dense error map_ratio"].min())
    assert found["value"].iloc[3] == pytest.approx(wanted["per element loop_ratio"].min())
    assert len(speed["check"]) == 3 and found["verdict"].iloc[0] == "not"


def test_all_claims_of_the_study_are_there():
    claims = load_claims(all_notebooks())
    assert [claim.id for claim in claims] == [f"C{number}" for number in range(1, 10)]
    for claim in claims:
        assert "2307.10244" in claim.source or "2405.01741" in claim.source


def test_the_published_pages_are_those_of_the_published_table():
    figures = ROOT / "figures"
    run = json.loads((figures / "run.json").read_text())
    text = (ROOT / "README.md").read_text()
    assert with_claims(text, figures / "claims.csv") == text
    assert (figures / "CLAIMS.md").read_text() == claims_page(figures / "claims.csv", run)
    assert not re.search(r"(?<![\w.])/\w+/|~/", (figures / "CLAIMS.md").read_text().replace("](../", "]("))
