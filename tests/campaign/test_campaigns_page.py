"""The Python of docs/campaigns.md runs as written, one block after the other."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "docs" / "campaigns.md"


def test_python_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert 0 < names["result"].rows_reached < len(names["data"].test) / 2
    assert "interpolation_error" in printed and "incorrect" in printed
    summary = names["campaign"].summary()
    assert (summary["n"] <= 200).all() and {"ndcg", "flipped"} < set(names["table"].columns)
    assert np.isfinite(names["values"]).all()
