"""Which trials are next: each once, in order, whatever is given back, found in a store or left to other shards; and what a
person sees of a running campaign."""

import numpy as np
import pyarrow as pa
import pytest

from drsrobust.campaign import Campaign
from drsrobust.campaign.progress import CampaignProgress
from drsrobust.campaign.schedule import LONGEST_CHUNK, SHORTEST_CHUNK, Chunk, Schedule, chunk_seconds, chunk_size
from drsrobust.campaign.shards import Shard
from drsrobust.injection import BitFlip


def finished(condition, trials, seconds=1.0):
    n = len(trials)
    columns = {"condition": np.full(n, condition), "trial": np.array(trials, np.int64)}
    return pa.table(columns | {"auc": np.full(n, 0.8), "seconds": np.full(n, seconds)})


@pytest.mark.parametrize("window", [1, 3, 4096])
@pytest.mark.parametrize("of", [None, 1, 3])
def test_against_plain_sets(window, of, monkeypatch):
    """Whatever is taken, given back, finished (also beyond the limit, or by others) and asked for."""
    monkeypatch.setattr("drsrobust.campaign.schedule._WINDOW", window)
    random = np.random.default_rng(window)
    for _ in range(30):
        index, pilot = int(random.integers(of or 1)), int(random.integers(4))
        schedule = Schedule([[0, 2], [1]], 9, of and Shard(index, of), [0, pilot])
        limits, taken, done, out = {0: 9, 1: pilot or 9, 2: 9}, set(), set(), []
        for action in random.integers(5, size=40):
            condition, size = int(random.integers(3)), int(random.integers(1, 6))
            mine = [
                (c, t)
                for c in (0, 2, 1)
                for t in range(limits[c])
                if (c, t) in done or of is None or t % of == index or (c == 1 and t < pilot)
            ]
            assert (schedule.total, schedule.computed) == (len(mine), len(done.intersection(mine)))
            assert schedule.done == (schedule.total == schedule.computed)
            lacking = {c: [t for one, t in mine if one == c and (c, t) not in done] for c in limits}
            assert [schedule.lacking(c) for c in range(3)] == [lacking[c] for c in range(3)]
            assert schedule.conditions_done == 2 * (not lacking[0] and not lacking[2]) + (not lacking[1])
            if action < 2:
                free = [key for key in mine if key not in done | taken]
                chunk = [t for c, t in free if c == free[0][0]][:size]
                assert schedule.take(size) == (Chunk(free[0][0], tuple(chunk)) if free else None)
                out += [Chunk(free[0][0], tuple(chunk))] if free else []
                taken |= {(free[0][0], t) for t in chunk}
            elif action == 2 and out:
                back = out.pop(int(random.integers(len(out))))
                schedule.take_back(back)
                taken -= {(back.condition, t) for t in back.trials}
            elif action == 3:
                trials = np.sort(random.choice(16, size, replace=False)).tolist()
                trials = [t for t in trials if (condition, t) not in done]
                schedule.add(finished(condition, trials))
                done |= {(condition, t) for t in trials}
            elif action == 4:
                group = (0, 2) if condition != 1 else (1,)
                limits |= dict.fromkeys(group, limits[condition] + size)
                schedule._ask(int(condition == 1), limits[condition])
                assert schedule.limit(condition) == limits[condition]
        out += iter(lambda schedule=schedule: schedule.take(5), None)
        for work in out:
            schedule.add(finished(*work))
        assert schedule.done and schedule.total == schedule.computed and schedule.conditions_done == 3


@pytest.mark.parametrize(("age", "seconds"), [(0, SHORTEST_CHUNK), (100, 5), (1e6, LONGEST_CHUNK)])
def test_long_runs_make_long_chunks(age, seconds):
    assert chunk_seconds(age) == seconds


@pytest.mark.parametrize(
    ("trials", "seconds", "age", "workers", "size"),
    [
        (100, None, 99, 1, 8),  # nothing is known
        (100, 0.5, SHORTEST_CHUNK - 0.1, 1, 8),
        (100, 0.5, SHORTEST_CHUNK, 1, 6),
        (100, 0.5, 100, 1, 10),
        (41, 0.5, 100, 3, 6),  # half of what a worker would get of the other 31
        (100, 1000.0, 100, 1, 1),
        (10, 0.5, 100, 1, 1),
        (10_000, 0.0, 100, 1, 1024),
    ],
)
def test_how_many_trials_a_chunk_has(trials, seconds, age, workers, size):
    schedule = Schedule([[0]], trials)
    if seconds is not None:
        schedule.add(finished(0, range(10), seconds))
    assert chunk_size(schedule, age, workers) == size


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
    assert report.text(32.0).split(", ")[:2] == ["0:00 left", "2/2 conditions"]


def test_a_batch_run_is_quiet(evaluator, tmp_path, monkeypatch, capsys):
    """Under papermill a line every half minute at most; with progress=False nothing at all."""
    monkeypatch.setenv("DRSROBUST_BATCH", "1")
    for shown, lines in ((True, 3), (False, 0)):
        Campaign(evaluator, errors=[BitFlip(1e-3)], trials=40, store=tmp_path / f"{lines}").run(progress=shown)
        assert (said := capsys.readouterr().err).count("\r") <= lines and bool(said) == shown
