"""The Python of docs/campaigns.md runs as written, one block after the other."""

import pytest


@pytest.mark.long
def test_python_runs(capsys, run_page):
    names = run_page("campaigns.md", blocks=7)
    printed = capsys.readouterr().out
    assert 0 < names["result"].rows_reached < len(names["data"].test) / 2
    assert "incorrect" in printed and "train_seeds" in printed
    table = names["table"]
    assert {"ndcg", "decision_changed"} < set(table.columns) and set(table["stratum"]) > {"0, others 0"}
    assert table.groupby(["target", "rate"])["weight"].sum().tolist() == pytest.approx([1] * 4)
    assert (names["summary"]["n"] >= 60).all() and names["summary"]["auc_drop_high"].notna().all()
