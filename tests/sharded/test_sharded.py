"""Models that TorchRec shards over 1, 2 and 4 ranks, against the unsharded model."""

from datetime import timedelta

import pytest

from tests.sharded import checks
from tests.sharded.group import run_ranks

WORLDS = (1, 2, 4)
ALL = (*checks.KINDS, checks.MIXED)
# The parts of a bag of several ids are added in another order.
OTHER_ORDER = {"row_wise", "table_row_wise", "grid_shard", checks.MIXED}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """World size -> what each rank found, by kind and ids in a bag."""
    compared = {}
    for world in WORLDS:
        # Four ranks take longest: of each kind the bags whose logits have the bits of one rank.
        bags = (1, 20) if world < 4 else ()
        cases = [(kind, bag) for kind in ALL for bag in bags or ((1,) if kind in OTHER_ORDER else (20,))]
        compared[world], _ = run_ranks(world, checks.compare_all, cases, folder=tmp_path_factory.mktemp("ranks"))
        assert all(isinstance(result, dict) for result in compared[world]), compared[world]
    return compared


@pytest.mark.long
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bag", [1, 20])
def test_maps_words_and_logits_equal_the_unsharded_models(compared, kind, bag):
    """Of one id a bag every bit; sums of several within 1e-5 (1 + |logit|), which FBGEMM adds in another order than PyTorch.
    Those of row-wise kinds apart they have the same bits on any number of ranks."""
    for world, results in compared.items():
        if (kind, bag) not in results[0]:
            continue
        first = results[0][kind, bag]  # which measured the unsharded model, too
        for rank, result in enumerate(results):
            facts = dict(result[kind, bag])
            digest, golden, ranges = (facts.pop(name) for name in ("digest", "golden", "ranges"))
            assert ranges and digest == compared[1][0]["table_wise", bag]["digest"]
            assert golden[0] == first["golden"][0] and (len({*first["golden"]}) == 1 or bag > 1)
            for name, case in facts.items():
                assert all(case[what] for what in ("map", "undo", "words")), (world, rank, name, case)
                assert {*case["reached"]} == {first[name]["reached"][-1]}, (world, rank, name, case)
                if rank == 0:
                    assert case["rerun"] and case["equal" if bag == 1 else "near"], (world, name, case)
                    if bag == 1 or kind not in OTHER_ORDER:
                        assert case["scores"] == compared[1][0][kind, bag][name]["scores"], (world, name)


@pytest.mark.long
def test_each_word_is_held_by_its_rank(tmp_path):
    results, _ = run_ranks(2, checks.held_by_ranks, folder=tmp_path)
    assert all(isinstance(result, dict) for result in results), results
    for result in results:
        for name, parts in result["words"].items():
            sharded = ".t0." in name or ".t1." in name
            assert len(parts) == 2
            union = set(parts[0]) | set(parts[1])
            assert len(union) == result["sizes"][name]
            assert len(parts[0]) + len(parts[1]) == (1 if sharded else 2) * result["sizes"][name]
        assert result["union"] and all(of_rank["equal"] for of_rank in result["wrong"])
        assert result["wrong"][0]["auc"] != result["wrong"][1]["auc"]
    for rank, result in enumerate(results):  # the errors of a rank are in its memory alone
        for number, of_rank in enumerate(result["wrong"]):
            assert bool(of_rank["changed"]) == (number == rank)


def differing(table, other):
    return [name for name in table if repr(table[name].tolist()) != repr(other[name].tolist())]


@pytest.mark.long
def test_a_campaign_equals_the_unsharded_ones(tmp_path, session_cache):
    reference = checks.unsharded_campaign(f"{tmp_path}/plain")
    for world in WORLDS:
        results, _ = run_ranks(world, checks.campaign, "column_wise", f"{tmp_path}/{world}", folder=tmp_path)
        table, timings = results[0]
        assert results[1:] == [None] * (world - 1)
        assert differing(table, reference) == ["checkpoint"] and len(timings) == len(table)


def test_rows_that_affect_each_other_are_found(tmp_path):
    results, _ = run_ranks(2, checks.coupled, folder=tmp_path)
    assert results == ["an error in one row of a batch changes the scores of other rows"] * 2


def test_what_is_refused(tmp_path):
    results, _ = run_ranks(2, checks.refused, folder=tmp_path)
    for messages in results:
        assert [words for words, message in messages if words not in message] == [], messages


@pytest.mark.parametrize(("minutes", "warns"), [(30, True), (10, True), (1, False)])
def test_a_long_timeout_is_warned_of(tmp_path, minutes, warns):
    results, _ = run_ranks(2, checks.warnings_of_evaluator, folder=tmp_path, limit=timedelta(minutes=minutes))
    text = f"the process group's timeout is {minutes} minutes, for which all ranks wait if one hangs"
    assert [[message[: len(text)] for message in messages] for messages in results] == [[text] * warns] * 2


def test_replicas_are_hit_alike(tmp_path):
    results, _ = run_ranks(2, checks.replicas, folder=tmp_path)
    assert results == [True, True]


def test_ranks_of_two_hosts(tmp_path):
    """Rows of a table over the ranks of one host, of two hosts with two ranks each."""
    results, _ = run_ranks(4, checks.compare, "table_row_wise", 1, folder=tmp_path, per_host=2)
    for rank, facts in enumerate(results):
        for name, case in facts.items():
            if isinstance(case, dict):
                what = ("map", "undo", "words", "reached") + (("rerun", "equal") if rank == 0 else ())
                assert all(case[fact] for fact in what), (rank, name, case)


@pytest.mark.long
@pytest.mark.parametrize("how", ["raises", "killed", "hangs"])
def test_a_rank_that_fails_ends_all(tmp_path, how):
    """Within the group's timeout; the trial is not stored, and the campaign continues."""
    store = f"{tmp_path}/store"
    hanging = [1] * (how == "hangs")
    results, codes = run_ranks(2, checks.fail_in_trial, store, how, folder=tmp_path, timeout=40, hanging=hanging)
    said = [result and result.strip().splitlines()[-1] for result in results]
    assert "RankFailedError: rank 0, condition 1, trial 1: " in said[0] and codes[0] == 1
    if how == "raises":
        assert said[1].endswith("RankFailedError: rank 1, condition 1, trial 1: ValueError: a bit too many")
    if how == "killed":
        finished, _ = run_ranks(2, checks.campaign, "table_wise", store, "plain", folder=tmp_path)
        whole = checks.unsharded_campaign(f"{tmp_path}/other", "plain")
        assert differing(finished[0][0], whole) == ["checkpoint"]
