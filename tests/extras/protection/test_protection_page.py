"""The Python of docs/protection.md runs as written, one block after the other."""

import pytest


@pytest.mark.long
def test_python_runs(capsys, run_page):
    names = run_page("protection.md", blocks=9)
    printed = capsys.readouterr().out
    found = names["recovered"]
    assert "recovery_low" in printed and "detected: False" in printed
    assert set(found["mitigation"]) == {one.name for one in names["choices"]}
    best = found[(found["ber"] == 1e-3) & (found["mitigation"] == names["checks"].name)]
    assert found["lost"].max() > 0.05 and best["recovery"].item() > 0.99
    assert not any(module._forward_hooks for module in names["model"].modules())
