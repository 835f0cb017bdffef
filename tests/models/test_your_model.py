"""The Python of docs/your_model.md runs as written, one block after the other."""

import re
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your_model.md"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:column '(section|shelf)'")  # the page shows what is said of its numbering
def test_python_runs(capsys, run_page):
    with pytest.warns(UserWarning, match="column '(section|shelf)': 1 missing values have id 3"):
        names = run_page("your_model.md", blocks=8)
    printed = capsys.readouterr().out
    assert "[0 1 3 0] [2 0 1 3]" in printed
    shown = re.search(r"```text\n( +target.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert shown.splitlines()[0] in printed
    expected = pd.read_csv(StringIO(shown), sep=r"\s+")
    pd.testing.assert_frame_equal(
        names["shown"], expected, rtol=0.1, atol=1e-4
    )  # processors differ in a model's last bits
    assert len(names["table"]) == 3 * 4 * 40 and set(names["table"]["target"]) == {"all", "embedding", "top"}
    assert names["by_batch"].golden.auc == names["evaluator"].golden.auc > 0.7
    assert "['top.0.bias', 'top.0.weight', 'user.weight']" in printed
    assert {one.name for one in names["space"].tensors} == {"top.2.weight", "top.2.bias"}
    assert names["result"]["top_hundred"].between(0, 1).all() and (names["result"]["top_hundred_low"] >= 0).all()
    assert "instead of" in printed and "rows_changed" in printed
    assert len(names["error_map"]) == 1 and names["error_map"].fingerprint[0].name.startswith("optimizer.")
