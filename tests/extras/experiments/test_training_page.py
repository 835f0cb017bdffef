"""The Python of docs/training.md runs as written."""

import pytest


@pytest.mark.long
def test_python_runs(capsys, run_page):
    names = run_page("training.md", blocks=1)
    table, printed = names["table"], capsys.readouterr().out
    assert "auc_roll_back" in printed and "overhead_percent" in printed and "per_10000" in printed
    assert len(table) == 4 * 2 and set(table["mode"]) - {"harmless"}
    assert (table["auc_drop"] == table["auc_golden"] - table["auc"]).all()
