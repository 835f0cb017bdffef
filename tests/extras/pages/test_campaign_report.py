"""The report of a campaign: its numbers are the campaign's, its links lead to files, it loads nothing from elsewhere. How
objects look in a notebook."""

import copy
import csv
import hashlib
import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from drsrobust.statistics import FEW_TRIALS, Headline, Strata
from drsrobust_extras.pages.plots.save import write_csv
from drsrobust_extras.pages.report import own_files
from drsrobust_extras.pages.report.campaign import WIDE, _needed
from tests.refusals import refuses

ERRORS = [dr.BitFlip(1e-5), dr.BitFlip(1e-3)]


def written(folder, evaluator, **options):
    """A campaign, its table, and the text of its report."""
    campaign = dr.Campaign(evaluator, **options)
    table = campaign.run(progress=False)
    return campaign, table, dr.report.write(campaign, folder).read_text()


def mean_score(labels, scores, golden_scores, users):
    return float(scores[scores == scores].mean())


@pytest.mark.long
def test_curves_protections_and_other_errors(evaluator, tmp_path):
    grid = {"errors": [*ERRORS, dr.SingleBit(30)], "mitigations": [None, dr.WeightRange.fit(evaluator.model)]}
    grid |= {"targets": ["all", "embedding"], "metrics": {"mean_score": mean_score, "ndcg@5": None}, "trials": 6}
    campaign = dr.Campaign(evaluator, **grid)
    table = campaign.run(progress=False)
    page = dr.report.write(campaign, tmp_path / "out", bounds={"mean_score": (0, 1)})
    assert page == tmp_path / "out" / "index.html"
    text = page.read_text()
    assert f"Without errors its AUC is {evaluator.golden.auc:.4f}. {len(table)} error maps in 12 conditions," in text
    assert "12 conditions, 600 rows." in text
    figures = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert {"auc", "protected_0", "protected_1", "conditions"} <= figures and text.count("<figure>") == len(figures)
    for link in re.findall(r'(?:href|src)="([^"#]+)"', text):
        assert (tmp_path / "out" / link).is_file(), link
    assert not re.search(r'(?:href|src)="https?:', text)
    worst = dr.summarise(table).query("mitigation == 'none'").sort_values("auc_drop").iloc[-1]
    assert f"costs an AUC of {worst['auc_drop']:.3g} [" in text and "Best protection" in text
    assert all(name in text for name in ("mean_score", "ndcg@5", "range per tensor", "SingleBit(bit=30) in all"))
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert (summary["mean_score_high"] <= 1).tolist() == [True] * 12
    assert len(pd.read_csv(tmp_path / "out" / "trials.csv")) == len(table)
    own = pd.read_csv(tmp_path / "out" / "figures" / "data" / "metric_1.csv", comment="#")
    assert {"mean_score", "mean_score_low", "mean_score_high"} <= set(own) and len(own) == 12


def test_a_report_says_how_many_trials_would_do(evaluator, tmp_path):
    options = {"errors": [dr.BitFlip(1e-7), dr.SingleBit(30)], "trials": 40}
    _, table, text = written(tmp_path / "plain", evaluator, sampling="plain", **options)
    harmed = (table["auc_drop"] > 0.001).groupby(table["error_model"]).sum()
    assert harmed["BitFlip"] == 0 < harmed["SingleBit(bit=30)"] < 10
    needed = int(re.search(r"About ([\d,]+) trials per condition would do \(40 now\)", text)[1].replace(",", ""))
    assert needed > 40 * FEW_TRIALS / harmed["SingleBit(bit=30)"]
    assert "1 of these conditions showed none in 40 trials." in text and "sampling=&#34;plain&#34;" in text
    assert "BitFlip at 1e-07 in all: 40 of 40 maps harmless." in text
    drawn = pd.read_csv(tmp_path / "plain" / "figures" / "data" / "conditions.csv", comment="#")
    assert drawn["harmless"].fillna("").tolist() == ["40 of 40 maps harmless", ""]
    campaign, table, text = written(tmp_path / "default", evaluator, **options)
    assert "sampling=" not in text and f"{len(table)} error maps in 2 conditions" in text
    assert "2 conditions" in repr(campaign) and len(campaign.conditions) > 2


@pytest.mark.parametrize("rate", [0.03, 0.1])
@pytest.mark.parametrize("loss", ["equal", "uniform", "exponential"])
def test_so_many_trials_do(rate, loss):
    """Campaigns of 40 trials that go on to the stated number: the mean is known within a factor in 9 of 10 of them."""
    random = np.random.default_rng(0)
    losses = {"equal": lambda n: np.full(n, 0.05), "uniform": lambda n: random.uniform(0.002, 0.3, n)}
    losses["exponential"] = lambda n: np.minimum(0.0011 + random.exponential(0.05, n), 0.3)

    def trials(former, n):
        lost = np.append(former, np.where(random.random(n) < rate, losses[loss](n), 0))
        return pd.DataFrame({"auc": 0.8 - lost, "auc_drop": lost, "auc_golden": 0.8, "outcome": "ok"})

    enough = []
    for _ in range(120):
        table = trials([], 40)
        if needed := _needed(table, Headline.of(table)[0]):
            table = trials(table["auc_drop"], needed - 40)
            strata = Strata.of(table)
            mean, _, high = strata.mean_interval(table["auc_drop"].to_numpy(), (-0.2, 0.8))
            enough.append(not strata.few_harmful.any() or high <= WIDE * mean)
    assert len(enough) > 50 and np.mean(enough) >= 0.9


def test_one_rate_is_a_point_and_no_curve(evaluator, tmp_path):
    mitigations = [None, dr.WeightRange.fit(evaluator.model)]
    written(tmp_path, evaluator, errors=[dr.BitFlip(1e-3), dr.MultiBit(1e-3, 2)], mitigations=mitigations, trials=4)
    assert [path.name for path in (tmp_path / "figures").glob("*.svg")] == ["conditions.svg"]
    assert len(pd.read_csv(tmp_path / "figures" / "data" / "conditions.csv", comment="#")) == 4


def test_text_is_escaped_and_a_campaign_without_trials_is_refused(evaluator, tmp_path):
    campaign = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], trials=1, store=tmp_path / "s")
    refuses(lambda: dr.report.write(campaign, tmp_path / "out"), ValueError, "has no finished trial; call run")
    assert not (tmp_path / "out").exists()
    campaign.run(progress=False)
    campaign.evaluator.name = "<b>model</b>"
    text = dr.report.write(campaign, tmp_path / "out").read_text()
    assert "<b>model</b>" not in text and "&lt;b&gt;model" in text


@pytest.fixture
def campaign(evaluator):
    campaign = dr.Campaign(evaluator, errors=dr.FixedCount(1), targets=["over_mlp"], trials=4)
    campaign.run(progress=False)
    return campaign


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"sampling": "stratified", "errors": ERRORS}])
def test_trials_csv_can_be_summarised_again(evaluator, tmp_path, options):
    options = {"errors": ERRORS, "targets": ["embedding", "over_mlp"], "trials": 40} | options
    campaign, table, _ = written(tmp_path, evaluator, **options)
    exact = pd.read_csv(tmp_path / "trials.csv")
    assert exact["auc"].tolist() == table["auc"].tolist() and exact["seed"].tolist() == table["seed"].tolist()
    metrics = ["auc", "auc_drop", "logloss"]
    found, expected = dr.summarise(exact, metrics), campaign.summary(metrics)
    found, expected = (one.astype(object).where(one.notna(), None) for one in (found, expected))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["index.html", "figures/data/conditions.json"])
def test_files_of_others_are_never_overwritten(campaign, tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("my own")
    said = f"{name} exists, and is not as a report of drsrobust left it; move it away, or"
    refuses(lambda: dr.report.write(campaign, tmp_path), FileExistsError, said)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [tmp_path / name] and left[0].read_text() == "my own"
    left[0].unlink()
    (tmp_path / "notes.txt").write_text("my own")
    dr.report.write(campaign, tmp_path)
    dr.report.write(campaign, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "my own"
    (tmp_path / name).write_text("edited")
    refuses(lambda: dr.report.write(campaign, tmp_path), FileExistsError, said)
    assert (tmp_path / name).read_text() == "edited"


@pytest.mark.long
def test_figures_of_a_former_report_go(evaluator, tmp_path):
    written(tmp_path, evaluator, errors=[*ERRORS, dr.FixedCount(1)], trials=2)
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {"auc.svg", "conditions.svg"}
    (tmp_path / "figures" / "mine.svg").write_text("my own")
    (tmp_path / "figures" / "auc.png").write_text("edited")
    written(tmp_path, evaluator, errors=[dr.FixedCount(2)], trials=2)
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    pages = {".drsrobust-report.json", "index.html", "trials.csv", "summary.csv"}
    figures = {"mine.svg", "auc.png", "conditions.svg", "conditions.png", "data/conditions.csv", "data/conditions.json"}
    assert there == pages | {f"figures/{name}" for name in figures}


def test_a_marker_of_others_leads_nowhere_else(campaign, tmp_path):
    """A folder that someone sent: its marker lists files elsewhere, or its figures are a link."""
    (tmp_path / "own.txt").write_text("my own")
    (tmp_path / "elsewhere").mkdir()
    sha256 = hashlib.sha256(b"my own").hexdigest()
    out = tmp_path / "out"
    out.mkdir()
    names = ["../own.txt", str(tmp_path / "own.txt"), "link/own.txt"]
    (out / "link").symlink_to(tmp_path)
    (out / ".drsrobust-report.json").write_text(json.dumps({"files": {name: [sha256] for name in names}}))
    dr.report.write(campaign, out)
    assert (tmp_path / "own.txt").read_text() == "my own"
    shutil.rmtree(out / "figures")
    (out / "figures").symlink_to(tmp_path / "elsewhere")
    said = "out/figures is a link; remove it, or pass another folder"
    refuses(lambda: dr.report.write(campaign, out), FileExistsError, said)
    assert not list((tmp_path / "elsewhere").iterdir())
    for text in ("no marker", "[]", '{"files": 1}', "[" * 100_000):
        (out / ".drsrobust-report.json").write_text(text)
        said = "report.json is damaged ", "; delete it and the report's files, or pass another"
        refuses(lambda: dr.report.write(campaign, out), ValueError, *said)


@pytest.mark.long
def test_a_killed_report_can_be_written_again(campaign, tmp_path, monkeypatch):
    moved = []

    def killed(part, place):
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(place)
        os.rename(part, place)

    dr.report.write(campaign, tmp_path)
    before = (tmp_path / "index.html").read_text()
    campaign.evaluator.name = "renamed"
    monkeypatch.setattr(own_files, "move", killed)
    with pytest.raises(KeyboardInterrupt):
        dr.report.write(campaign, tmp_path)
    monkeypatch.undo()
    assert len(moved) == 3 and (tmp_path / "index.html").read_text() == before  # the page is the last
    assert "renamed" in dr.report.write(campaign, tmp_path).read_text()


def test_a_folder_that_is_a_file_and_home_folders(campaign, tmp_path, monkeypatch):
    file, said = tmp_path / "file", "file is a file; it must be a folder"
    file.write_text("")
    refuses(lambda: dr.report.write(campaign, file), NotADirectoryError, said)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dr.report.write(campaign, "~/out") == tmp_path / "out" / "index.html"


def test_quoted_texts(tmp_path):
    texts = ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "plain", "1+", "-0.1", None]
    write_csv(pd.DataFrame({"=head": texts, "number": [-0.1] * 9}), tmp_path / "t.csv", digits=None)
    with (tmp_path / "t.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))
    assert [row[0] for row in rows] == [
        "'=head", "'=1+1", "'+cmd", "'-cmd", "'@SUM(A1)", "'\t=1", "plain", "1+", "-0.1", ""
    ]  # fmt: skip
    assert {row[1] for row in rows[1:]} == {"-0.1"}


@pytest.mark.parametrize("rate", [0.1, 1e-4])
def test_trials_that_raised_are_said(data, trained, tmp_path, rate):
    """Also where all of them did, so that there is no number."""

    class Picky(type(trained)):
        def forward(self, dense_features, sparse_features):
            logits = super().forward(dense_features, sparse_features)
            if not logits.abs().max() < 20:  # NaN too
                raise ArithmeticError("too <large>")
            return logits

    picky = copy.deepcopy(trained)
    picky.__class__ = Picky
    options = {"errors": [dr.BitFlip(rate)], "trials": 12, "store": tmp_path / "trials"}
    with pytest.warns(UserWarning, match="of 12 trials raised"):
        campaign, _, text = written(tmp_path / "out", dr.Evaluator(picky, data.test), **options)
    n = len(campaign.raised())
    assert n == 12 if rate == 0.1 else 0 < n < 12
    assert f"{n} of 12 trials raised, and have no scores; the first: BitFlip in all, trial " in text
    assert "ArithmeticError: too &lt;large&gt;" in text


def test_views(evaluator, trained, tmp_path):
    shown = evaluator._repr_html_()
    assert "AUC without errors</th><td>0." in shown and "affected rows and modules" in shown and "probability" in shown
    with dr.inject(trained, dr.BitFlip(1e-4), seed=1) as error_map:
        view = error_map._repr_html_()
    assert f"{error_map.bits:,} of {error_map.eligible_bits:,}" in view and "bits in embedding" in view
    with dr.inject(trained, dr.BitFlip(1e-3), target=dr.Inputs("dense"), seed=1) as error_map:
        evaluator.run()
    assert "while the model runs" in error_map._repr_html_()
    campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-4)], trials=3, sampling="stratified", store=tmp_path / "s")
    assert "0 of " in campaign._repr_html_() and "stratified by CriticalBits" in campaign._repr_html_()
    campaign.run(progress=False, workers=1)
    assert "finished" in campaign._repr_html_() and str(tmp_path) in campaign._repr_html_()
