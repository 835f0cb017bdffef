"""claims.toml, mistakes in it, and the table that a made-up run gives."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from drsrobust_study import messages
from drsrobust_study.findings import number
from reproduce.claims import evaluate_claims, load_claims, write_claims
from reproduce.notebooks import all_notebooks
from reproduce.readme_tables import claims_page, with_claims

ROOT = Path(__file__).resolve().parents[2]
CLAIM = """
[[claim]]
id = "C1"
text = "|w| falls"
source = "somewhere"
sentence = "It is {1}, {1:%} or {1:x}: {1.detail}."
[[claim.check]]
main = true
why = "it is the number"
what = "it falls with width"
figure = "10_test"
quantity = { value = "loss", low = "loss_low", high = "loss_high", where = { width = 64, target = "all", dataset = "m*" } }
reads = "loss of the narrowest"
expected = "over 0.25"
rule = { kind = "above", bound = 0.25 }
"""
SIDE = """
[[claim.check]]
what = "as the notebook found"
figure = "10_test_second"
table = "10_test_claims"
quantity = { by = ["kind"] }
reads = "a share"
expected = "much"
rule = { kind = "up_to", bound = 0.3 }
"""
CSV = """model,dataset,target,width,loss,loss_low,loss_high,detail
m,movielens-1m/full,all,64,0.4,0.3,0.5,wide enough
m,movielens-1m/full,all,512,0.1,0.05,0.2,
m,movielens-1m/full,mlp,64,0,0,0,
m,synthetic-x/ids,all,64,0.4,0.3,0.5,
m,synthetic-x/ids,all,512,0.5,0.45,0.6,
"""
TABLE = """kind,third,value,low,high,n,reason,detail
a,0,0.5,0.4,0.6,30,,all of it
a,1,0.5,0.3,0.7,10,,
a,2,0.4,-0.1,0.7,10,,
a,3,0.6,0.5,0.7,10,,
b,0,,,,0,nothing lost,
c,0,0.3,0.2,0.4,30,,
c,1,0.5,0.4,0.6,10,,
c,2,0.1,0.05,0.2,10,,
"""


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


def test_the_main_check_is_the_claim(made_up):
    whole, main, *sides = made_up(CLAIM + SIDE).itertuples()
    assert (whole.check, whole.claim, whole.what) == (0, "C1", "|w| falls") and whole.main and main.main
    assert (whole.verdict, whole.value, whole.low, whole.high) == ("reproduced", 0.4, 0.3, 0.5)
    assert whole.sentence == "It is 0.4 [0.3, 0.5], 40 % [30, 50] or 0.4: wide enough."
    assert [side.main for side in sides] == [False] * 3 and {side.sentence for side in sides} == {""}
    # Whatever side checks say, the claim's verdict is that of its main check.
    assert [side.verdict for side in sides] == ["reproduced", "not testable here", "seed-dependent"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{2}", "0.3 to 0.5 (unknown in 1 of 3)"),  # not the first row of three
        ("{2:%x}", "30 to 50 % (unknown in 1 of 3)"),
        ("{2[a]:%}", "50 % [40, 60]"),
        ("{2[c]:x}", "0.3"),
        ("{2[b]}", "an unknown number of"),
        ("{2[not run here]}", "an unknown number of"),
        ("{2.detail}", "all of it; "),
    ],
)
def test_a_sentence_says_all_numbers_of_a_check_or_names_one(made_up, written, said):
    text = (CLAIM + SIDE).replace("It is {1}, {1:%} or {1:x}: {1.detail}.", f"{{1:x}}: {written}.")
    assert made_up(text)["sentence"][0] == f"0.4: {said}."


def test_equal_numbers_of_a_check_are_said_once(made_up):
    """With the widest of their intervals."""
    (made_up.folder / "figures" / "10_test_claims.csv").write_text("kind,value,low,high\na,1,0.8,1\nb,1,0.9,1\n")
    text = (CLAIM + SIDE).replace("It is {1}, {1:%} or {1:x}: {1.detail}.", "{1:x}, {2:%}.")
    assert made_up(text)["sentence"][0] == "0.4, 100 % [80, 100]."


def published():
    return json.loads((ROOT / "figures" / "run.json").read_text()), load_claims(all_notebooks())


def test_sentences_of_the_published_run():
    """C7 by the least of all cells of its CSV, C5 and C6 by all rows of a check, on the CSVs of the published run."""
    run, claims = published()
    table = evaluate_claims(claims, ROOT / "figures", run)
    said = table[table["check"] == 0].set_index("claim")["sentence"]
    assert not said.str.contains("unknown").any()
    cells = pd.read_csv(ROOT / "figures" / "data" / "09_injection_speed.csv", comment="#")
    times = cells.pivot(index=["panel", "parameters", "dtype", "rate"], columns="method", values="total_ms")
    least = (times["dense error map"] / times["drsrobust"]).min()
    assert f"drsrobust is at least {number(least)} times as fast" in said["C7"]
    assert f" {number(least)} to " in messages.speed(cells)
    checks = table.set_index(["claim", "check"]).sort_index()["value"]
    for check in (3, 4):
        values = 100 * checks["C5", check]
        ends = " to ".join(dict.fromkeys([number(values.min()), number(values.max())]))
        assert f" {ends} % of the " in said["C5"]
    for value in checks["C6", 6]:
        assert f"{number(value)} % (" in said["C6"]


def test_verdicts_on_thirds(made_up):
    """One third that is merely wider does not count, two that contradict each other do."""
    _, _, wider, nothing, contrary = made_up(CLAIM + SIDE).itertuples()
    assert (wider.verdict, wider.thirds) == ("reproduced", "reproduced, in part, reproduced")
    assert (contrary.verdict, contrary.thirds) == ("seed-dependent", "reproduced, contradicted")
    assert (nothing.thirds, nothing.reason, wider.where, wider.n) == ("", "nothing lost", "a", 30)


def test_generated_data_are_no_test_of_a_claim_about_real_ones(made_up):
    generated = CLAIM.replace('"m*"', '"synthetic*"')
    whole, row = made_up(generated).itertuples()
    assert (row.verdict, row.reason) == ("not testable here", "generated data (as it is: reproduced)")
    assert row.value == 0.4 and row.detail == ""
    assert made_up(generated + "generated = true\n")["verdict"].tolist() == ["reproduced"] * 2


def test_data_sets_of_the_study_that_were_not_run_are_named(made_up):
    more = CLAIM.replace('id = "C1"', 'id = "C1"\ndatasets = ["movielens-1m/*", "criteo-kaggle/*"]')
    whole = made_up(more).iloc[0]
    assert (whole["verdict"], whole["reason"]) == ("reproduced", "not run here: criteo-kaggle")


def test_without_a_number_there_is_no_sentence(made_up):
    table = made_up(CLAIM.replace('"all"', '"cross"'))
    assert table["sentence"][0].startswith("Not testable here: no values of width 64, target cross")


def test_several_rows_need_a_choice(made_up):
    several = CLAIM.replace("width = 64, ", "")
    with pytest.raises(
        ValueError, match="check 1: 2 rows; `where` and `by` must leave one, or `worst` must choose one"
    ):
        made_up(several)
    assert made_up(several.replace("} }", '}, worst = "min" }'))["value"][0] == 0.1
    with pytest.raises(ValueError, match="the main check has 2 numbers"):
        made_up(several.replace("} }", '}, by = ["width"] }'))


def test_division_of_rows_by_others(made_up):
    """With intervals: 30 [27, 33] / 3 [2.7, 3] and 80 [40, 90] / 2 [1, 2]; of 80 / 5 [-1, 11] nothing is sure."""
    (made_up.folder / "figures" / "data" / "10_test.csv").write_text(
        "method,rate,ms,least,most\nslow,1,30,27,33\nslow,2,80,40,90\nfast,2,2,1,2\nfast,1,3,2.7,3\n"
        "slow,3,80,80,80\nfast,3,5,-1,11\n"
    )
    exact = CLAIM.partition("quantity")[0] + (
        'quantity = { value = "ms", where = { method = "slow", rate = [1, 2] }, over = { method = "fast" }, '
        'match = ["rate"], worst = "min" }\n'
        'reads = "slow over fast"\nexpected = "9 times"\ngenerated = true\nrule = { kind = "above", bound = 9.5 }\n'
    ).replace("main = true", "main = true")
    found = made_up(exact.replace("{1.detail}", "")).iloc[1]
    assert found[["value", "low", "high", "verdict"]].tolist() == [10, 10, 10, "reproduced"]
    ends = exact.replace('value = "ms",', 'value = "ms", low = "least", high = "most",')
    found = made_up(ends).iloc[1]
    assert (found["low"], found["high"]) == pytest.approx((27 / 3, 33 / 2.7)) and found["verdict"] == "in part"
    unsure = made_up(ends.replace("rate = [1, 2]", "rate = 3")).iloc[1]
    assert unsure["verdict"] == "not testable here" and unsure["reason"] == "no interval" and np.isnan(unsure["low"])


def test_what_was_not_made(made_up):
    for changes, reason in (
        ({"notebooks": []}, "10_test was not run"),
        ({"notebooks": [made_up.outcome | {"ok": False, "figures": []}]}, "10_test failed"),
        ({"profile": "smoke"}, "a smoke run is too small for a verdict (as it is: reproduced)"),
    ):
        table = made_up(CLAIM, **changes)
        assert set(table["verdict"]) == {"not testable here"} and set(table["reason"]) == {reason}
    table = made_up(CLAIM.replace('"all"', '"cross"'))
    assert set(table["verdict"]) == {"not testable here"} and "target cross" in table["reason"].iloc[1]


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
        ('"above"', '"abov"', "unknown kind in claims.toml, C1, check 1, rule 'abov'; did you mean"),
        ('"above", ', '"above", least = 1, ', "unknown key in claims.toml, C1, check 1, rule above 'least'"),
        (", bound = 0.25", "", "claims.toml, C1, check 1, rule above: no bound"),
        ("main = true", "", "unknown key in claims.toml, C1, check 1 'why'"),
        ('why = "it is the number"', "", "claims.toml, C1, check 1: no why"),
        ('sentence = "It is {1}, {1:%} or {1:x}: {1.detail}."', "", "claims.toml, C1: no sentence"),
        ('"loss"', '"los"', "10_test.csv in claims.toml, C1, check 1, quantity.value 'los'; did you mean 'loss'?"),
        ('"loss"', '"loss - "', "quantity.value 'loss - '"),
        (" target =", " targets =", "claims.toml, C1, check 1, quantity.where 'targets'; did you mean 'target'?"),
        ("} }", '}, by = ["data"] }', "claims.toml, C1, check 1, quantity 'data'; did you mean 'dataset'?"),
        ("} }", '}, per = ["data"] }', "unknown key in claims.toml, C1, check 1, quantity 'per'"),
        ("} }", '}, over = { target = "mlp" } }', "give both `over` (the rows to divide by)"),
        ("expected =", "awaited =", "unknown key in claims.toml, C1, check 1 'awaited'; known: "),
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


def test_an_old_table_does_not_outlive_a_mistake(made_up):
    figures = made_up.folder / "figures"
    (figures / "claims.csv").write_text("old")
    (made_up.folder / "claims.toml").write_text(CLAIM.replace('"loss"', '"los"'))
    with pytest.raises(ValueError):
        write_claims(load_claims(["10_test"], made_up.folder / "claims.toml"), figures, made_up.run)
    assert not (figures / "claims.csv").exists()


def test_all_claims_of_the_study_are_there():
    """In the order of the notebooks of their main checks, each with numbers in its sentence."""
    claims = load_claims(all_notebooks())
    assert {claim.id for claim in claims} == {f"C{number}" for number in (*range(1, 14), 19)}
    notebooks = [claim.checks[0].notebook for claim in claims]
    assert notebooks == sorted(notebooks)
    for claim in claims:
        assert "{1" in claim.sentence and claim.source and claim.checks[0].why


def test_the_published_pages_are_those_of_the_published_table():
    figures = ROOT / "figures"
    run = json.loads((figures / "run.json").read_text())
    text = (ROOT / "README.md").read_text()
    assert with_claims(text, figures / "claims.csv") == text
    assert (figures / "CLAIMS.md").read_text() == claims_page(figures / "claims.csv", run)
    assert not re.search(r"(?<![\w.])/\w+/|~/", (figures / "CLAIMS.md").read_text().replace("](../", "]("))
