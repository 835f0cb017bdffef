"""The Python of docs/from_other_tools.md runs as written; the other tools' too, where they are installed."""

import re

import pytest

from tests.conftest import ROOT


@pytest.mark.long
def test_python_runs(run_page, capsys):
    names = run_page("from_other_tools.md", blocks=4)
    summary = names["summary"].set_index(["ber", "mitigation"])["hit_rate@1"]
    assert names["evaluator"].golden.metric("hit_rate@1") > 0.95
    assert summary[1e-3, "none"] < 0.9 < summary[1e-3, "range per tensor"]
    assert "1073741824" in capsys.readouterr().out  # the mask of bit 30


@pytest.mark.parametrize("tool", ["pytorchfi", "mrfi"])
def test_lines_of_other_tools(tool, capsys):
    pytest.importorskip(tool)
    page = (ROOT / "docs" / "from_other_tools.md").read_text()
    blocks = re.findall(r"```(?:py|python)\n(.*?)```", page, re.DOTALL)
    namespace = {}
    for block in [blocks[0], *(block for block in blocks if f"from {tool}" in block)]:
        exec(block, namespace)
    assert capsys.readouterr().out
