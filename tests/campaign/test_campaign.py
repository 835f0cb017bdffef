import copy
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.campaign import Campaign, StoreError, decades, repeat, schedule, store
from drsrobust.campaign import trial as running
from drsrobust.campaign.trial import SCHEMA, audit, count_bits, errors_by_bit
from drsrobust.evaluation import Evaluator
from drsrobust.injection import AppliedMap, BitFlip, FixedCount, Injection, SingleBit, applied_maps, inject, resolve
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust.mitigation import ECC, NaNGuard
from tests.campaign.writer import killed
from tests.conftest import long_but
from tests.refusals import refuses

# fmt: off
COLUMNS = [
    "model", "dataset", "protocol", "error_model", "rate", "ber", "target", "mitigation", "trial", "seed", "outcome",
    "bits_flipped", "words_hit", "realised_rate", "bits_left", "auc", "auc_golden", "auc_drop", "logloss", "ne",
    "nan_rows", "inf_rows", "rows_reached", "detected", "repaired", "checkpoint", "data", "n_sites", "n_events", "stopped",
    "mitigation_id", *(f"{name}_rows_{k}" for name in ("auc", "auc_drop") for k in range(1, 9)), "error_kind",
    "error_bit", "error_count", "error_mode", "error_chips",
    "error_mapping", "target_table", "target_rows", "target_share",
    "mitigation_kind", "corrects_mode", "n_bits",
]
# fmt: on


def campaign(evaluator, folder, **options):
    grid = {"errors": [BitFlip(1e-7), BitFlip(1e-3), SingleBit(30)], "targets": ["all", "embedding"], "trials": 6}
    return Campaign(evaluator, store=folder, **({"sampling": "plain"} | grid | options))


def run(*arguments, **options):
    return campaign(*arguments, **options).run(progress=False)


@pytest.fixture(scope="module")
def undisturbed(trained, data, tmp_path_factory):
    """The campaign that most tests here disturb."""
    runner = campaign(Evaluator(trained, data.test), tmp_path_factory.mktemp("undisturbed") / "s")
    runner.run(progress=False)
    return runner


def test_table(evaluator, undisturbed):
    table = undisturbed.table()
    assert list(table.columns) == COLUMNS and SCHEMA.names == COLUMNS[:47] and len(table) == 36
    assert table["trial"].tolist() == list(range(6)) * 6
    assert table["seed"].dtype == np.uint64
    single = table[table["error_model"] == "SingleBit(bit=30)"]
    assert single["bits_flipped"].tolist() == [1] * 12 and single["rate"].isna().all()
    assert single["ber"].iloc[0] == 1 / resolve(evaluator.model).words
    assert table["detected"].isna().all()
    assert (table["auc_golden"] - table["auc"] - table["auc_drop"]).abs().max() < 1e-12
    untouched = table[table["bits_flipped"] == 0]
    assert len(untouched) and (untouched["auc"] == evaluator.golden.auc).all()
    assert untouched["rows_reached"].tolist() == [0] * len(untouched)
    assert applied_maps(evaluator.model) == ()


def test_decisions_by_every_rule_for_nan(evaluator, tmp_path):
    """A user who asks for wrong decisions gets them with NaN as wrong and as no click, and the share of NaN rows."""
    threshold = float(np.median(evaluator.golden.probabilities))  # as many clicks as none
    evaluator = Evaluator(evaluator.model, evaluator.rows, threshold=threshold)
    grid = {"errors": [BitFlip(1e-3)], "targets": ["all"], "metrics": "decision_changed"}
    table = run(evaluator, tmp_path / "s", **grid)
    assert table["nan_share"].tolist() == (table["nan_rows"] / len(evaluator.rows)).tolist()
    row = table[table["nan_rows"] > 0].iloc[0]
    golden = evaluator.golden.probabilities > np.float32(threshold)
    with inject(evaluator.model, BitFlip(1e-3), "all", seed=int(row["seed"])):
        scores = evaluator.run().probabilities
    changed = (scores > np.float32(threshold)) != golden
    assert row["decision_changed"] == np.mean(np.isnan(scores) | changed)
    assert row["decision_changed_no_click"] == np.mean(changed) < row["decision_changed"]


def test_seeds(evaluator, undisturbed, tmp_path):
    table = undisturbed.table()
    seeds = table.pivot(index=["error_model", "rate", "target"], columns="trial", values="seed")
    flips = seeds.loc["BitFlip"].droplevel(0)
    assert (flips.groupby(level="target").nunique() == 1).all().all()  # rates share nested maps
    assert table["seed"].nunique() == 6 * 4  # trials, targets and error models do not
    assert run(evaluator, tmp_path / "t", coupled=False)["seed"].nunique() == 36
    counts = {"errors": [FixedCount(1), FixedCount(2), BitFlip(1e-3) + SingleBit(30), BitFlip(1e-4) + SingleBit(30)]}
    assert run(evaluator, tmp_path / "v", coupled=False, **counts)["seed"].nunique() == 48
    assert run(evaluator, tmp_path / "u", seed=1)["seed"].isin(table["seed"]).sum() == 0


def noted(monkeypatch, owner, name, place):
    """One argument of each call of a function from now on."""
    real, given = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda *a, **options: given.append(a[place]) or real(*a, **options))
    return given


def test_nothing_is_computed_twice(evaluator, undisturbed, tmp_path, monkeypatch):
    first = run(evaluator, tmp_path / "s", trials=3)
    more = run(evaluator, tmp_path / "s")
    pd.testing.assert_frame_equal(more[more["trial"] < 3].reset_index(drop=True), first)
    pd.testing.assert_frame_equal(more, undisturbed.table())
    computed, read = noted(monkeypatch, running, "run_trial", 2), noted(monkeypatch, store, "read_chunk", 0)
    again = campaign(evaluator, tmp_path / "s")
    pd.testing.assert_frame_equal(again.run(progress=False), more)
    # To check the store the most harmed trial of each kind, once for each object; each chunk is read once.
    harmed = more[more["rows_reached"] > 0].sort_values(["outcome", "auc"], kind="stable")  # nonfinite, ok
    expected = harmed.drop_duplicates(["error_kind", "target"])["trial"].tolist()
    assert computed == expected and len(expected) == 4
    assert len(read) == len(list(again.store.folder.glob("*.parquet"))) + 4
    again.run(progress=False)
    assert computed == expected
    # In a run with other trials also those of each condition and the first ones, if there is time.
    each = harmed.drop_duplicates(["error_model", "rate", "target"])["trial"]
    for share, repeated in ((0.0, 4), (1e9, 6 + (each > 0).sum())):
        shutil.copytree(tmp_path / "s", folder := tmp_path / f"{share}")
        monkeypatch.setattr(repeat, "SHARE", share)
        computed.clear()
        campaign(evaluator, folder, trials=8).run(workers=1, progress=False)
        assert len(computed) == 6 * 2 + repeated
    pd.testing.assert_frame_equal(run(evaluator, tmp_path / "s", trials=3), first)
    timings = campaign(evaluator, tmp_path / "s").timings()
    assert len(timings) == 36 and (timings["seconds"] > 0).all()


STEPS = {
    "a trial": (running, "run_trial"),
    "errors": (AppliedMap, "apply"),
    "scores": (Evaluator, "rerun"),
    "undo": (AppliedMap, "undo"),
}


@pytest.mark.parametrize("step", long_but(["a trial"], STEPS))
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.filterwarnings("ignore:1 error map")
def test_an_interrupted_run_goes_on(step, after, evaluator, undisturbed, tmp_path, monkeypatch):
    """KeyboardInterrupt before or after each step of a trial; the next run gives what an undisturbed one gives."""
    owner, name = STEPS[step]
    real, calls = getattr(owner, name), iter(range(1000))

    def interrupted(*given, **options):
        if next(calls) != 10:
            return real(*given, **options)
        if after:
            real(*given, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    monkeypatch.setattr(running, "CHUNK_TRIALS", 4)
    with pytest.raises(KeyboardInterrupt):
        run(evaluator, tmp_path / "s")
    monkeypatch.undo()
    if step == "a trial":
        assert len(campaign(evaluator, tmp_path / "s").table()) == 10
    pd.testing.assert_frame_equal(run(evaluator, tmp_path / "s"), undisturbed.table())


def test_another_campaign_is_refused(evaluator, trained, tmp_path):
    """Models of equal weights whose code differs are other models."""
    campaign(evaluator, tmp_path / "s", trials=1).run(progress=False)

    class Shifted(type(trained)):
        def forward(self, dense_features, sparse_features):
            return super().forward(dense_features, sparse_features) + 1.0

    shifted = copy.deepcopy(trained)
    shifted.__class__ = Shifted
    for other, options, differing in (
        (evaluator, {"seed": 5}, "seed"),
        (evaluator, {"coupled": False}, "coupled"),
        (evaluator, {"label": "mine"}, "protocol"),
        (evaluator, {"errors": [BitFlip(0.5)]}, "conditions"),
        (evaluator, {"mitigations": [NaNGuard(prior=0.2)]}, "conditions, mitigations"),
        (Evaluator(trained, evaluator.rows, scores="logit"), {}, ".*scores"),
        (Evaluator(shifted, evaluator.rows), {}, "golden, (model, )?model code"),
    ):
        with pytest.raises(StoreError, match=f"another campaign; they differ in {differing}.\n"):
            campaign(other, tmp_path / "s", trials=1, **options)


def test_errors_by_tensor_and_bit(evaluator, undisturbed):
    table, errors = undisturbed.table(), undisturbed.errors()
    key = ["error_model", "rate", "target", "trial"]
    assert errors.columns[-5:].tolist() == ["trial", "component", "tensor", "bit", "count"] and len(errors.columns) >= 8
    sums = errors.groupby(key, dropna=False)["count"].sum().to_dict()
    flipped = table[table["bits_flipped"] > 0].groupby(key, dropna=False)["bits_flipped"].sum().to_dict()
    assert {str(k): v for k, v in sums.items()} == {str(k): v for k, v in flipped.items()}
    row = table[(table["rate"] == 1e-3) & (table["target"] == "all")].iloc[2]
    drawn = BitFlip(1e-3).sample(resolve(evaluator.model), seed=int(row["seed"]))
    here = errors[(errors["rate"] == 1e-3) & (errors["target"] == "all") & (errors["trial"] == 2)]
    assert here.groupby("bit")["count"].sum().to_dict() == drawn.counts("bit").to_dict()
    for by in ("component", "tensor"):
        counts = drawn.counts(by)
        assert here.groupby(by)["count"].sum().to_dict() == counts[counts > 0].to_dict()


def test_decades():
    assert decades(1e-9, 1e-2) == [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert decades(1.0, 1.0) == [1.0]


def test_reordered_targets_are_another_campaign(evaluator, empty_cache):
    """An interrupted grid, then the same with its targets in another order: nothing is taken for something else."""
    grid = {"errors": [BitFlip(1e-3)], "trials": 3}
    Campaign(evaluator, targets=["all"], **grid).run(progress=False)
    one = Campaign(evaluator, targets=["all", "mlp"], **grid).run(progress=False)
    other = Campaign(evaluator, targets=["mlp", "all"], **grid).run(progress=False)
    assert other["target"].tolist() == ["mlp"] * 3 + ["all"] * 3
    assert other["auc"].tolist() == one["auc"].tolist()[3:] + one["auc"].tolist()[:3]


def test_what_an_interrupt_left_does_not_reach_the_results(evaluator, undisturbed, tmp_path):
    """A map is left open between two runs, and before a campaign is made, as an interrupted cell leaves it."""
    warned = r"1 error map\(s\) or hooks were still in the model"
    before, between = inject(evaluator.model, BitFlip(1e-2), seed=1), inject(evaluator.model, BitFlip(1e-2), seed=2)
    before.__enter__()
    with pytest.warns(UserWarning, match=warned):
        runner = campaign(evaluator, tmp_path / "t")
    between.__enter__()
    with pytest.warns(UserWarning, match=warned):
        pd.testing.assert_frame_equal(runner.run(progress=False), undisturbed.table())


def test_a_changed_model_is_refused(trained, data, tmp_path):
    changed = copy.deepcopy(trained)
    runner = campaign(Evaluator(changed, data.test), tmp_path / "s")
    BitFlip(1e-3).sample(resolve(changed), seed=1).apply(changed)
    refuses(runner.run, ValueError, "the model has changed since its Evaluator was made")


def test_models_that_raise_are_listed(trained, data, tmp_path):
    class Picky(type(trained)):
        def forward(self, dense_features, sparse_features):
            logits = super().forward(dense_features, sparse_features)
            if not logits.isfinite().all():
                raise ArithmeticError("not finite")
            return logits

    picky = copy.deepcopy(trained)
    picky.__class__ = Picky
    runner = campaign(Evaluator(picky, data.test), tmp_path / "s", errors=[BitFlip(0.1)])
    with pytest.warns(UserWarning) as said:
        table = runner.run(progress=False)
    text = "12 of 12 trials raised, and have no scores; the first: BitFlip in all, trial 0: ArithmeticError: not finite"
    assert [str(one.message) for one in said] == [text]
    assert (table["outcome"] == "raised").all() and table[["auc", "auc_drop", "nan_rows"]].isna().all().all()
    assert runner.raised()["error"].unique().tolist() == ["ArithmeticError: not finite"] and len(runner.raised()) == 12


def test_a_model_whose_tensors_moved_is_hit_where_they_are_now(data, trained, tmp_path):
    """The same words elsewhere: errors in the old memory would reach nothing."""
    model = copy.deepcopy(trained)
    grid = {"errors": [BitFlip(1e-2)], "trials": 2}
    expected = Campaign(Evaluator(model, data.test), store=tmp_path / "a", **grid).run(progress=False)
    moved = Campaign(Evaluator(model, data.test), store=tmp_path / "b", **grid)
    old = moved.conditions[0]
    last = model.over_arch.model[1]
    last.weight = torch.nn.Parameter(last.weight.detach().clone())
    assert moved.run(progress=False).equals(expected) and (expected["auc_drop"] != 0).all()
    with pytest.raises(ValueError, match="of a tensor that was replaced since it was resolved"):
        Injection(model, [(old.error_model, old.space)], seed=1)


def run_in_small_chunks(folder):
    from drsrobust.training import Settings, load_model
    from drsrobust_extras.data.load import load_dataset

    schedule.SHORTEST_CHUNK = 0.02
    data = load_dataset("synthetic-movielens/full", rows=6000)
    model = load_model("dlrm", data, settings=Settings(epochs=2, batch_size=512), progress=False)
    Campaign(Evaluator(model, data.test), store=folder, **KILLED).run(progress=False)


KILLED = {"errors": [BitFlip(1e-4), BitFlip(1e-3)], "targets": ["all", "mlp"], "trials": 150}


@pytest.mark.long
def test_kill_9_loses_and_doubles_nothing(evaluator, tmp_path):
    def chunks():
        return len(list((tmp_path / "killed").glob("*.parquet")))

    for pause in (0.0, 0.02):
        enough = chunks() + 2  # it goes on where it was
        killed(run_in_small_chunks, tmp_path / "killed", when=lambda n=enough: chunks() >= n, pause=pause)
        assert chunks() >= enough
    stored, found = chunks(), {}
    for name in ("killed", "whole"):
        found[name] = Campaign(evaluator, store=tmp_path / name, **KILLED).run(progress=False).to_csv(index=False)
    assert found["killed"] == found["whole"] and chunks() > stored
    assert not list((tmp_path / "killed").glob(".*.part"))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10).bfloat16(), nn.Linear(10, 5).double())


@pytest.mark.parametrize("few", [0, running._FEW_IN_ALL])
def test_as_the_map_counts(model, few, monkeypatch):
    """Of a small map all words at once, else tensor by tensor."""
    monkeypatch.setattr(running, "_FEW_IN_ALL", few)
    for error in (BitFlip(1e-1), BitFlip(1e-3), SingleBit(14), BitFlip(0.5, bits="sign"), FixedCount(0)):
        error_map = error.sample(resolve(model), seed=3)
        tensor, bit, count = errors_by_bit(error_map)
        assert (np.diff(64 * tensor + bit) > 0).all() and (count > 0).all() and count.sum() == error_map.bits
        by_bit, by_tensor = np.bincount(bit, count, 64), np.bincount(tensor, count, len(error_map.targets))
        assert {k: n for k, n in enumerate(by_bit) if n} == error_map.counts("bit").to_dict()
        assert dict(zip(error_map.targets, by_tensor, strict=True)) == error_map.counts("tensor").to_dict()


def test_transient_errors(model):
    """By place, over all calls of it."""
    lower = nn.Sequential(model[0], nn.ReLU())
    for target, places in ((dr.Activations("*"), {"0", "1"}), (dr.Inputs("dense"), {"dense"})):
        with inject(lower, BitFlip(0.05), target, seed=1) as error_map:
            for _ in range(3):
                lower(torch.rand(8, 30))
        entries = audit(error_map).to_pylist()
        assert {entry["tensor"] for entry in entries} == {entry["component"] for entry in entries} == places
        for place in places:
            masks = np.concatenate([hit.mask for hit in error_map.log.hits if hit.site == place])
            expected = {bit: int(((masks >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(32)}
            assert {entry["bit"]: entry["count"] for entry in entries if entry["tensor"] == place} == expected


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 200_000])
def test_count_bits(size):
    masks = np.random.default_rng(size).integers(0, 2**64, 2 * size, dtype=np.uint64)[::2]  # not contiguous
    expected = [int(((masks >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert count_bits(masks).tolist() == expected
    low = masks >> np.uint64(41)
    assert count_bits(low).tolist() == expected[41:] + [0] * 41


FLIP = BitFlip(0.1)
STRATIFIED = {"errors": BitFlip(1e-6), "sampling": "stratified"}


def of_one_text(*numbers):
    rows = dr.Rows("movie", numbers)
    object.__setattr__(rows, "label", "some")
    return rows


def injected(critical, ber=0.0):
    return lambda evaluator: inject(evaluator.model, BitFlip(ber, critical=critical), seed=0).__enter__()


class OldSample(BitFlip):
    def sample(self, space, *, seed, before=()):
        return super().sample(space, seed=seed)


class OldScreen(ECC):
    def screen(self, error_map, model, *, seed):
        return error_map


OF_ONE_TEXT = {"errors": None, "conditions": [(FLIP, of_one_text(1)), (FixedCount(1), of_one_text(1, 2))]}
# Options of a campaign, or a call; the type of the error, and what its message holds. More are in tests/test_arguments.py.
REFUSED = [
    ({"targets": "all"}, ValueError, "targets", "'all'"),
    ({"errors": []}, ValueError, "0 errors", "1 targets"),
    ({"errors": [FLIP, FLIP]}, ValueError, "duplicate", "BitFlip(ber=0.1", "'all'", "'none'"),
    ({"targets": [["embedding", "mlp"], ["mlp", "embedding"]]}, ValueError, "duplicate"),
    ({"mitigations": [ECC(), ECC()]}, ValueError, "duplicate", f"'{ECC().name}'"),
    ({"targets": ["tables"]}, ValueError, "target", "'tables'"),
    ({"errors": [SingleBit(40)]}, ValueError, "bit 40"),
    ({"errors": [BitFlip(0.1, bits=(32,))]}, ValueError, "bit 32"),
    ({"conditions": [(FLIP, "all")]}, ValueError, "errors", "conditions"),
    ({"errors": None, "conditions": [7]}, ValueError, "conditions", "7"),
    ({"errors": None, "conditions": []}, ValueError, "conditions"),
    (OF_ONE_TEXT, ValueError, "targets", "some"),
    ({"metrics": ["ndgc"]}, ValueError, "metric", "'ndgc'", "'ndcg'"),
    ({"metrics": {"auc": lambda *_: 0.5}}, ValueError, "auc"),
    ({"sampling": "strata"}, ValueError, "sampling", "'strata'", "'stratified'"),
    (STRATIFIED | {"targets": [dr.Rows("user", range(5))]}, ValueError, "Rows", "no critical bits"),
    (STRATIFIED | {"errors": SingleBit(30)}, TypeError, "strata", "SingleBit(bit=30)"),
    ({"errors": BitFlip(1e-6, bits=(30,)), "sampling": CriticalBits((29, 30))}, ValueError, "bits"),
    ({"errors": OldSample(0.1)}, TypeError, "OldSample.sample(self, space, seed, before)", "sample(self, space, "),
    ({"mitigations": OldScreen()}, TypeError, "OldScreen.screen(", "screen(self, error_map, space, *, seed)"),
    (lambda _: decades(1e-4, 2e-3), ValueError, "0.002"),
    (lambda _: decades(1e-2, 1e-3), ValueError, "0.01", "0.001"),
    *((lambda _, c=c: BitFlip(1e-6, critical=c), ValueError, "critical") for c in (-1, 1.5, True, "+", "two", "-1+")),
    (injected(10**7, 1e-6), ValueError, "critical", "10000000"),
    (injected("1+"), ValueError, "critical", "'1+'"),
    *(
        (lambda e, shard=shard: Campaign(e, errors=FLIP).run(shard=shard), ValueError, "shard", shown)
        for shard, shown in [((3, 3), "3/3"), ("-1/3", "-1/3"), ((0, 0), "0/0"), ("1", "'1'"), ("1/x", "'1/x'")]
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [(call, error, words) for call, error, *words in REFUSED])
def test_what_no_campaign_can_be(call, error, words, evaluator, empty_cache):
    made = call if callable(call) else lambda evaluator: Campaign(evaluator, **{"errors": FLIP} | call)
    refuses(lambda: made(evaluator), error, *words)
    assert not list(empty_cache.rglob("*.parquet"))
