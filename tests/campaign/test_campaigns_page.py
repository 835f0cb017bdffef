"""The Python of docs/campaigns.md runs as written, one block after the other."""

import numpy as np
import pytest


@pytest.mark.long
def test_python_runs(capsys, run_page):
    names = run_page("campaigns.md", blocks=7)
    printed = capsys.readouterr().out
    assert 0 < names["result"].rows_reached < len(names["data"].test) / 2
    assert "interpolation_error" in printed and "incorrect" in printed
    summary = names["campaign"].summary()
    assert (summary["n"] <= 200).all() and {"ndcg", "decision_changed"} < set(names["table"].columns)
    assert np.isfinite(names["values"]).all()
