"""The Python of docs/your_model.md runs as written, one block after the other."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your_model.md"


def test_python_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "user_mlp" in printed
    assert "['user.weight', 'user_mlp.0.bias', 'user_mlp.0.weight', 'user_mlp.2.bias', 'user_mlp.2.weight']" in printed
    assert "<ErrorMap BitFlip, seed 7" in printed and len(names["table"]) == 3 * 2 * 5
    assert {t.name for t in names["space"].tensors} == {"user_mlp.2.weight", "user_mlp.2.bias"}
    assert hasattr(names["dr"].training, "fit") and hasattr(names["dr"].training, "Settings")
