"""What a person sees of a running campaign."""

import pyarrow as pa

from drsrobust.campaign import Campaign
from drsrobust.campaign.progress import CampaignProgress
from drsrobust.campaign.schedule import Schedule
from drsrobust.injection import BitFlip


def trials(condition, numbers, auc=0.8, seconds=2.0):
    n = len(numbers)
    return pa.table(
        {"condition": [condition] * n, "trial": list(numbers), "auc": [auc] * n, "seconds": [seconds] * n},
        schema=pa.schema({"condition": pa.int64(), "trial": pa.int64(), "auc": pa.float64(), "seconds": pa.float64()}),
    )


def test_conditions_and_time_left(monkeypatch):
    monkeypatch.setattr("drsrobust._progress.sys.stderr.isatty", lambda: True, raising=False)
    schedule = Schedule([[0], [1]], 32)
    schedule.add(trials(0, []))
    report = CampaignProgress(schedule, "dlrm", 2)
    assert report.text(0.0) == "0/2 conditions"
    schedule.add(trials(0, range(20)))
    # 12 trials of this condition and 32 of the other, of 2 s each; 20 trials took 20 s: two workers
    assert report.text(20.0).split(", ") == ["0/2 conditions", "1 trials/s", "0:44 left"]
    schedule.add(trials(0, range(20, 32)))
    schedule.add(trials(1, range(32)))
    assert report.text(32.0).startswith("2/2 conditions") and report.text(32.0).endswith("0:00 left")


def test_a_batch_run_is_quiet(evaluator, tmp_path, monkeypatch, capsys):
    """Under papermill a line every half minute at most; with progress=False nothing at all."""
    monkeypatch.setenv("DRSROBUST_BATCH", "1")
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=40, store=tmp_path / "s").run()
    assert capsys.readouterr().err.count("\r") <= 3
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=40, store=tmp_path / "t").run(progress=False)
    assert capsys.readouterr().err == ""
