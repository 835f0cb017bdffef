"""A notebook in shards: each ends after its campaigns, and the merged one draws the figure of one process."""

import json
import os

import pandas as pd
import pytest

from drsrobust_study.shards import end_of_shard, run_campaign
from reproduce import __main__

SMALL = ["rows=2000", "bers=[1e-3]", "trials=4", "epochs=1"]


@pytest.mark.long
def test_a_notebook_in_shards_draws_the_figure_of_one_process(tmp_path, empty_cache, capsys):
    def run(out, *words):
        status = __main__.main(["10_your_model", *SMALL, *words, "--profile", "smoke", "--out", str(tmp_path / out)])
        folder = tmp_path / out / "smoke-part"
        (outcome,) = json.loads((folder / "run.json").read_text())["notebooks"]
        assert status == 0 and outcome["ok"], capsys.readouterr()
        return outcome, folder / "figures" / "data" / "10_your_model.csv"

    for i in range(2):
        outcome, figure = run(f"shard{i}", f"shard={i}/2")
        assert outcome["figures"] == [] and not figure.exists()
    folders = {
        path.name.partition(".")[2]: path for path in (empty_cache / "campaigns").glob("*.shard-*") if path.is_dir()
    }
    assert sorted(folders) == ["shard-0-of-2", "shard-1-of-2"]
    merged, figure = run("merged", f"merge=['{empty_cache / 'campaigns'}']")
    assert merged["figures"] == ["10_your_model"]
    os.environ["DRSROBUST_CACHE"] = str(tmp_path / "other")  # `empty_cache` takes it back
    _, alone = run("alone")
    pd.testing.assert_frame_equal(pd.read_csv(figure), pd.read_csv(alone), check_exact=True)


def test_a_shard_or_a_merge(capsys):
    with pytest.raises(ValueError, match="shard is '0/2' and merge is .* a notebook computes a shard, or merges all"):
        run_campaign(None, "0/2", ["folder"])
    end_of_shard("")
    with pytest.raises(SystemExit) as ended:
        end_of_shard("0/2")
    assert ended.value.code == 0 and "shard 0/2 has finished" in capsys.readouterr().out
