"""The Python of docs/protection.md runs as written, one block after the other."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protection.md"


def test_python_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    found = names["found"]
    assert "recovery_low" in printed and "noticed: False" in printed  # nothing is wrong while it only serves
    assert set(found["mitigation"]) == {one.name for one in names["choices"]}
    best = found[(found["ber"] == 1e-3) & (found["mitigation"] == names["checks"].name)]
    assert found["lost"].max() > 0.05 and best["recovery"].item() > 0.99
    assert not any(module._forward_hooks for module in names["model"].modules())
