"""Which trials are next: each once, in order, whatever is given back, found in a store or left to other shards; and what a
person sees of a running campaign."""

import numpy as np
import pyarrow as pa
import pytest

from drsrobust.campaign import Campaign
from drsrobust.campaign.progress import CampaignProgress
from drsrobust.campaign.schedule import LONGEST_CHUNK, SHORTEST_CHUNK, Chunk, Schedule, chunk_seconds
from drsrobust.campaign.shards import Shard
from drsrobust.injection import BitFlip


def finished(condition, trials, seconds=1.0):
    n = len(trials)
    columns = {"condition": np.full(n, condition), "trial": np.array(trials, np.int64)}
    return pa.table(columns | {"auc": np.full(n, 0.8), "seconds": np.full(n, seconds)})


def everything(schedule, size):
    taken = []
    while (work := schedule.take(size)) is not None:
        taken.append(work)
        schedule.add(finished(*work))
    return taken


def test_each_trial_once_condition_by_condition():
    schedule = Schedule([[0, 2], [1]], 10)
    schedule.add(finished(2, [0, 3, 9]))
    schedule.add(finished(1, range(10)))
    taken = everything(schedule, 4)
    assert taken == [
        Chunk(0, (0, 1, 2, 3)),
        Chunk(0, (4, 5, 6, 7)),
        Chunk(0, (8, 9)),
        Chunk(2, (1, 2, 4, 5)),
        Chunk(2, (6, 7, 8)),
    ]
    assert schedule.done and schedule.total == schedule.computed == 30 and schedule.conditions_done == 3


def test_what_is_taken_back_comes_again():
    schedule = Schedule([[0], [1]], 6)
    first, other = schedule.take(2), schedule.take(2)
    schedule.take_back(first)
    schedule.add(finished(*other))
    assert [work for work in everything(schedule, 8)] == [Chunk(0, (0, 1, 4, 5)), Chunk(1, tuple(range(6)))]
    schedule.take_back(other)  # it has finished meanwhile: nothing to do
    assert schedule.take(1) is None and schedule.done


def test_trials_beyond_the_limit_count_when_more_are_asked_for():
    schedule = Schedule([[0]], 3)
    schedule.add(finished(0, [0, 5]))
    assert (schedule.total, schedule.computed) == (3, 1)
    schedule._ask(0, 7)
    assert (schedule.total, schedule.computed, schedule.lacking(0)) == (7, 2, [1, 2, 3, 4, 6])
    assert everything(schedule, 10) == [Chunk(0, (1, 2, 3, 4, 6))]


def test_shards_share_out_all_trials_but_the_pilot():
    shards = [Schedule([[0], [1]], 10, Shard(i, 3), pilots=[0, 4]) for i in range(3)]
    for schedule in shards:
        assert schedule.limit(1) == 4  # until the pilot has decided
        schedule._ask(1, 8)
    parts = [everything(schedule, 100) for schedule in shards]
    assert [part[0].trials for part in parts] == [(0, 3, 6, 9), (1, 4, 7), (2, 5, 8)]
    assert [part[1].trials for part in parts] == [(0, 1, 2, 3, 6), (0, 1, 2, 3, 4, 7), (0, 1, 2, 3, 5)]
    assert [schedule.total for schedule in shards] == [9, 9, 8]


def test_a_trial_of_another_shard_that_is_merged_is_not_missing():
    schedule = Schedule([[0]], 9, Shard(0, 3))
    schedule.add(finished(0, [0, 1, 2]))
    assert (schedule.total, schedule.computed) == (5, 3) and everything(schedule, 9) == [Chunk(0, (3, 6))]


@pytest.mark.parametrize(("age", "seconds"), [(0, SHORTEST_CHUNK), (100, 5), (1e6, LONGEST_CHUNK)])
def test_long_runs_make_long_chunks(age, seconds):
    assert chunk_seconds(age) == seconds


def test_the_time_left_is_of_missing_trials():
    schedule = Schedule([[0], [1]], 10)
    assert schedule.seconds_left() is None and schedule.seconds_per_trial() is None
    schedule.add(finished(0, range(4), seconds=2.0))
    assert schedule.seconds_left() == 6 * 2 + 10 * 2 and schedule.seconds_per_trial() == 2
    schedule.add(finished(1, [0], seconds=1.0))
    assert schedule.seconds_left() == 6 * 2 + 9 * 1 and schedule.seconds_since() == 1


def test_conditions_and_time_left(monkeypatch):
    monkeypatch.setattr("drsrobust._progress.sys.stderr.isatty", lambda: True, raising=False)
    schedule = Schedule([[0], [1]], 32)
    schedule.add(finished(0, []))
    report = CampaignProgress(schedule, "dlrm")
    assert report.text(0.0) == "0/2 conditions"
    schedule.add(finished(0, range(20), seconds=2.0))
    # 12 trials of this condition and 32 of the other, of 2 s each; 20 trials took 20 s: two workers
    assert report.text(20.0).split(", ") == ["0:44 left", "0/2 conditions", "1 trials/s"]
    schedule.add(finished(0, range(20, 32), seconds=2.0))
    schedule.add(finished(1, range(32), seconds=2.0))
    assert report.text(32.0).startswith("2/2 conditions") and report.text(32.0).endswith("0:00 left")


def test_a_batch_run_is_quiet(evaluator, tmp_path, monkeypatch, capsys):
    """Under papermill a line every half minute at most; with progress=False nothing at all."""
    monkeypatch.setenv("DRSROBUST_BATCH", "1")
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=40, store=tmp_path / "s").run()
    assert capsys.readouterr().err.count("\r") <= 3
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=40, store=tmp_path / "t").run(progress=False)
    assert capsys.readouterr().err == ""
