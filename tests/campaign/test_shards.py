"""A campaign in shards, merged: the table of one process, bit for bit; and all that must not be merged."""

import json
import os
import shutil

import pandas as pd
import pyarrow.compute as pc
import pytest

from drsrobust.campaign import Campaign, StoreError, merge
from drsrobust.campaign.shards import Shard, full_run_of, shard_folders
from drsrobust.evaluation import CoupledRowsError, Evaluator
from drsrobust.injection import BitFlip
from drsrobust.mitigation import WeightRange
from tests.conftest import long_but
from tests.refusals import refuses

PLAIN = {"errors": [BitFlip(1e-4), BitFlip(1e-3)], "targets": ["embedding", "over_mlp"], "trials": 10}
PLAIN["sampling"] = "plain"
STRATIFIED = {"errors": [BitFlip(1e-6), BitFlip(1e-4)], "trials": 40, "sampling": "stratified"}


def campaign(evaluator, folder, **options):
    return Campaign(evaluator, store=folder, **(PLAIN | options))


def run_shards(evaluator, folder, n, **options):
    """The tables of all shards, each by a campaign of its own, as on its machine."""
    made = [campaign(evaluator, folder, **options) for _ in range(n)]
    return [one.run(shard=(i, n), workers=1, progress=False) for i, one in enumerate(made)]


def unmerged(whole, *said, of=None):
    """The shards, or those of some folders, are refused."""
    refuses(lambda: merge(whole, of), StoreError, *said)


def chunks(folder):
    return sorted(path.name for path in folder.glob("*.parquet"))


@pytest.fixture(scope="module")
def expected(trained, data, tmp_path_factory):
    return campaign(Evaluator(trained, data.test), tmp_path_factory.mktemp("one") / "s").run(workers=1, progress=False)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_table_is_that_of_one_process(n, evaluator, expected, tmp_path):
    tables = run_shards(evaluator, tmp_path / "s", n)
    assert [table["trial"].tolist() for table in tables] == [[*range(i, 10, n)] * 4 for i in range(n)]
    whole = campaign(evaluator, tmp_path / "s")
    pd.testing.assert_frame_equal(merge(whole), expected, check_exact=True)
    assert [name[:5] for name in chunks(tmp_path / "s")] == [f"0000{c}" for c in range(4)]
    before = chunks(tmp_path / "s")
    pd.testing.assert_frame_equal(merge(campaign(evaluator, tmp_path / "s")), expected, check_exact=True)
    assert chunks(tmp_path / "s") == before
    timings = whole.timings()
    assert timings["worker"].unique().tolist() == [f"{os.uname().nodename}:{os.getpid()}"] and len(timings) == 40


@pytest.mark.long
def test_stratified_shards_share_the_pilot(evaluator, tmp_path):
    options = STRATIFIED | {"mitigations": [None, WeightRange.fit(evaluator.model)], "targets": ["all"]}
    expected = campaign(evaluator, tmp_path / "one", **options).run(workers=1, progress=False)
    run_shards(evaluator, tmp_path / "s", 3, **options)
    manifest = json.loads((tmp_path / "s.shard-1-of-3" / "manifest.json").read_text())
    assert manifest["shard"]["index"] == 1 and manifest["shard"]["of"] == 3 and max(manifest["shard"]["pilots"]) == 8
    merged = merge(campaign(evaluator, tmp_path / "s", **options))
    pd.testing.assert_frame_equal(pd.DataFrame(merged), pd.DataFrame(expected), check_exact=True)


def test_finished_trials_are_never_computed_again(evaluator, expected, tmp_path, monkeypatch):
    merge_of = lambda trials: merge(campaign(evaluator, tmp_path / "s", trials=trials))  # noqa: E731
    run_shards(evaluator, tmp_path / "s", 2, trials=4)
    merge_of(4)
    for folder in shard_folders(tmp_path / "s"):
        shutil.rmtree(folder)
    assert sorted(run_shards(evaluator, tmp_path / "s", 2)[0]["trial"].unique()) == [4, 6, 8]  # 0 to 3 are merged
    monkeypatch.setattr("drsrobust.campaign.trial.run_trial", lambda *_, **__: pytest.fail("a trial was computed"))
    pd.testing.assert_frame_equal(merge_of(10), expected, check_exact=True)


def test_what_must_not_be_merged(evaluator, tmp_path):
    whole, store = campaign(evaluator, tmp_path / "s"), tmp_path / "s"
    unmerged(whole, "there are no shards next to")
    whole.run(shard="0/3", progress=False)
    unmerged(whole, "1/3 lacks 12 trials (as do shards 2/3): 1, 4, 7 of ", " in embedding; run")
    campaign(evaluator, tmp_path / "other", seed=1).run(shard=(1, 3), progress=False)
    both = [*shard_folders(store), *shard_folders(tmp_path / "other")]
    unmerged(whole, "holds the results of another campaign; they differ in seed", of=both)
    whole.run(shard=(1, 4), progress=False)
    unmerged(whole, "shards of 3 and of 4 cannot be merged")
    unmerged(whole, "holds no shard of a campaign", of=[tmp_path])
    folder = tmp_path / "s.shard-1-of-4"
    refuses(lambda: campaign(evaluator, folder), StoreError, f"{folder} holds shard 1/4, not a whole campaign")
    edited(folder, shard={"index": 4, "of": 4, "pilots": [0] * 4})
    unmerged(whole, "s.shard-1-of-4 holds no shard of a campaign: ", of=[folder])
    said = f"{folder}/manifest.json is damaged, or is not of a campaign"
    refuses(lambda: whole.run(shard=(1, 4), progress=False), StoreError, said)
    assert not chunks(store)


def test_a_shard_that_is_written_to(evaluator, tmp_path, monkeypatch):
    monkeypatch.setattr("drsrobust.campaign.store.PATIENCE", 0.2)
    whole = campaign(evaluator, tmp_path / "s")
    whole.run(shard=(0, 1), progress=False)
    with whole._of_shard(Shard(0, 1)).store.writing():
        again = campaign(evaluator, tmp_path / "s")
        unmerged(again, "shard-0-of-1 is in use: another process is writing to it")
        refuses(lambda: again.run(shard=(0, 1)), StoreError, "in use")


def test_a_shard_that_needs_full_runs_makes_the_others_again(trained, data, tmp_path, monkeypatch):
    """Trials of a model whose rows affect each other are full runs in all shards, or in none."""
    evaluator = Evaluator(trained, data.test)
    whole = campaign(evaluator, tmp_path / "s")
    whole.run(shard=(0, 2), progress=False)

    def coupled(*_, **__):
        monkeypatch.undo()
        raise CoupledRowsError("rows are coupled")

    monkeypatch.setattr("drsrobust.campaign.trial.run_trial", coupled)
    with pytest.warns(UserWarning, match="all trials of this campaign are computed again, as full runs"):
        whole.run(shard=(1, 2), progress=False)
    assert full_run_of(shard_folders(tmp_path / "s")) == "rows are coupled"
    unmerged(whole, "shard 1/2 in ", " must be full runs ", ", and shard 0/2 in ", " had ended before")
    other = campaign(Evaluator(trained, data.test), tmp_path / "s")
    with pytest.warns(UserWarning, match="reruns are full runs: rows are coupled"):
        other.run(shard=(0, 2), progress=False)
    assert len(merge(campaign(Evaluator(trained, data.test), tmp_path / "s"))) == 40


def edited(folder, **changed):
    """The manifest of a shard with other entries."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changed))


def changed_copy(evaluator, folder, to, loss):
    """A copy of a shard's folder in which one AUC is another."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.parquet"))
    shard = Shard.of_manifest(json.loads((to / "manifest.json").read_text())["shard"])
    good, store = (campaign(evaluator, to.parent / "unused")._of_shard(shard, place).store for place in (folder, to))
    table = good.read()
    auc = table["auc"].to_pylist()
    auc[-1] -= loss
    table = table.set_column(table.column_names.index("auc"), "auc", [auc])
    with store.writing():
        for number in range(4):
            store.write(table.filter(pc.field("condition") == number).combine_chunks())


@pytest.mark.parametrize("order", long_but([(1, 0, 2)], [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1)]))
def test_copies_of_a_shard_with_different_results(order, evaluator, tmp_path):
    run_shards(evaluator, tmp_path / "s", 2)
    good, other = shard_folders(tmp_path / "s")
    changed_copy(evaluator, good, tmp_path / "bad", 1e-9)
    folders = [(good, tmp_path / "bad", other)[place] for place in order]
    said = "trial 8 of condition 3 has other results in ", good, tmp_path / "bad"
    unmerged(campaign(evaluator, tmp_path / "s"), *said, of=folders)
    assert not chunks(tmp_path / "s")


@pytest.mark.parametrize("stale_first", long_but([True], [True, False]))
def test_copies_of_a_shard_that_are_equal_or_incomplete(stale_first, evaluator, expected, tmp_path):
    """As a copy of before the end, and one of a backup; one shard was made with another PyTorch."""
    campaign(evaluator, tmp_path / "s", trials=4).run(shard=(0, 2), progress=False)
    stale, whole = tmp_path / "stale", campaign(evaluator, tmp_path / "s")
    first = shutil.copytree(tmp_path / "s.shard-0-of-2", stale)
    run_shards(evaluator, tmp_path / "s", 2)
    again = shutil.copytree(tmp_path / "s.shard-1-of-2", tmp_path / "again")
    folders = [first, *shard_folders(tmp_path / "s"), again, str(first)]  # one folder twice
    about = json.loads((folders[2] / "manifest.json").read_text())["about"]
    edited(folders[2], about=about | {"versions": about["versions"] | {"torch": "1.13.0"}})
    with pytest.warns(UserWarning, match=r"shard 1/2 in .* was made with other torch than .*; its results are taken"):
        table = merge(whole, folders if stale_first else folders[::-1])
    pd.testing.assert_frame_equal(table, expected, check_exact=True)


def test_a_refused_merge_keeps_what_was_merged(evaluator, tmp_path):
    """A shard of full runs makes the merged trials again, but only if all shards are there."""
    run_shards(evaluator, tmp_path / "s", 2, trials=4)
    merge(campaign(evaluator, tmp_path / "s", trials=4))
    before, (folder, other) = chunks(tmp_path / "s"), shard_folders(tmp_path / "s")
    shutil.rmtree(other)
    edited(folder, full_run="rows are coupled")
    unmerged(campaign(evaluator, tmp_path / "s", trials=4), "shard 1/2 lacks 8 trials")
    assert chunks(tmp_path / "s") == before
