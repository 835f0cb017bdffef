"""The report of a campaign: its numbers are the campaign's, its links lead to files, it loads nothing from elsewhere."""

import re

import pandas as pd
import pytest

import drsrobust as dr

ERRORS = [dr.BitFlip(1e-5), dr.BitFlip(1e-3)]


def mean_score(labels, scores, golden_scores, users):
    return float(scores[scores == scores].mean())


def test_curves_protections_and_other_errors(evaluator, tmp_path):
    mitigations = [None, dr.WeightRange.fit(evaluator.model)]
    campaign = dr.Campaign(
        evaluator,
        errors=[*ERRORS, dr.SingleBit(30)],
        targets=["all", "embedding"],
        mitigations=mitigations,
        metrics={"mean_score": mean_score, "ndcg@5": None},
        trials=6,
    )
    table = campaign.run(progress=False)
    page = dr.report.write(campaign, tmp_path / "out", bounds={"mean_score": (0, 1)})
    assert page == tmp_path / "out" / "index.html"
    text = page.read_text()
    assert f"Without errors its AUC is {evaluator.golden.auc:.4f}. 72 error maps in 12 conditions, 600 rows." in text
    figures = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert {"auc", "protected_0", "protected_1", "conditions"} <= figures and text.count("<figure>") == len(figures)
    for link in re.findall(r'(?:href|src)="([^"#]+)"', text):
        assert (tmp_path / "out" / link).is_file(), link
    assert not re.search(r'(?:href|src)="https?:', text)
    worst = dr.summarise(table).query("mitigation == 'none'").sort_values("auc_drop").iloc[-1]
    assert f"costs an AUC of {worst['auc_drop']:.3g} [" in text and "Best protection" in text
    assert all(name in text for name in ("mean_score", "ndcg@5", "range per tensor", "SingleBit(bit=30) in all"))
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert len(summary) == 12 and summary["mean_score_high"].max() <= 1
    assert len(pd.read_csv(tmp_path / "out" / "trials.csv")) == len(table)
    rows = re.findall(r"<tr><td>(all|embedding)</td>", text)
    assert len(rows) == 12


def test_a_page_is_replaced_whole(evaluator, tmp_path):
    one = dr.Campaign(evaluator, errors=ERRORS, trials=2)
    one.run(progress=False)
    dr.report.write(one, tmp_path)
    other = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], trials=2)
    other.run(progress=False)
    text = dr.report.write(other, tmp_path).read_text()
    assert text.count("<figure>") == 1 and "FixedCount(k=1)" in text and "BitFlip" not in text


def test_text_is_escaped_and_a_campaign_without_trials_is_refused(evaluator, tmp_path):
    campaign = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], trials=1, store=tmp_path / "s")
    with pytest.raises(ValueError, match="has no finished trial; call run"):
        dr.report.write(campaign, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    campaign.run(progress=False)
    evaluator_name = campaign.evaluator.name
    try:
        campaign.evaluator.name = "<b>model</b>"
        text = dr.report.write(campaign, tmp_path / "out").read_text()
    finally:
        campaign.evaluator.name = evaluator_name
    assert "<b>model</b>" not in text and "&lt;b&gt;model" in text
