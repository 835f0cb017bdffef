"""A notebook in shards: each ends after its campaigns, and the merged one draws the figure of one process."""

import pandas as pd
import pytest

from drsrobust_study.shards import end_of_shard, run_campaign
from reproduce.notebooks import all_notebooks
from reproduce.runner import Run, side_by_side

SMALL = {"rows": 2000, "bers": [1e-3], "trials": 4, "epochs": 1}


@pytest.mark.long
def test_a_notebook_in_shards_draws_the_figure_of_one_process(tmp_path, empty_cache, monkeypatch):
    def run(**parameters):
        runs = {
            name: Run(all_notebooks()["10_your_model"], SMALL | own, tmp_path / name)
            for name, own in parameters.items()
        }
        for _, outcome in side_by_side(runs, 1):
            assert outcome.ok, outcome.error
            yield outcome.figures

    assert list(run(first={"shard": "0/2"}, second={"shard": "1/2"})) == [[], []]
    assert list(run(merged={"merge": [str(empty_cache / "campaigns")]})) == [["10_your_model"]]
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    assert list(run(alone={})) == [["10_your_model"]]
    merged, alone = (
        pd.read_csv(tmp_path / name / "figures" / "data" / "10_your_model.csv") for name in ("merged", "alone")
    )
    pd.testing.assert_frame_equal(merged, alone, check_exact=True)


def test_a_shard_or_a_merge(capsys):
    with pytest.raises(ValueError, match="0/2"):
        run_campaign(None, "0/2", ["folder"])
    end_of_shard("")
    with pytest.raises(SystemExit) as ended:
        end_of_shard("0/2")
    assert ended.value.code == 0 and "shard 0/2 has finished" in capsys.readouterr().out
