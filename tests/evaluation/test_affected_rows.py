"""`rerun` held to `run`: the same scores and metrics, for less work; which features a table is read with."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.evaluation import Evaluator, lookups
from drsrobust.injection import Activations, BitFlip, FixedCount, Inputs, StuckAt, inject, resolve
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.introspection.tensors import components
from drsrobust.metrics import NAMES
from drsrobust.models import MODELS, build_model, state_digest
from drsrobust_extras.data.load import load_dataset
from tests.conftest import long_but

SMALL = {"afn": {"neurons": 8, "deep_mlp": (16, 16)}}


@pytest.fixture(scope="module")
def splits():
    """Rows in two schemas: with dense columns and multi-hot features, and with ids alone. 450 rows: several padded batches."""
    return {name: load_dataset(f"synthetic-movielens/{name}", rows=6000) for name in ("full", "ids")}


def standing(model):
    """What a rerun must leave as it was."""
    return state_digest(model), [(m.training, sorted(m.__dict__), len(m._forward_hooks)) for m in model.modules()]


def equal(one, other):
    """Whether two evaluations say the same, bit for bit."""
    assert np.array_equal(one.scores, other.scores, equal_nan=True)
    for name in ("outcome", "auc", "logloss", "ne", "nan_rows", "inf_rows"):
        assert getattr(one, name) == getattr(other, name), name
    for name in NAMES:
        assert one.metric(name) == other.metric(name), name
    return True


@pytest.mark.parametrize("schema", ["full", "ids"])
@pytest.mark.parametrize("name", long_but(("dlrm", "deepfm", "afm"), [name for name in MODELS if name != "dummy"]))
def test_rerun_is_run(name, schema, splits):
    data = splits[schema]
    torch.manual_seed(1)
    model = build_model(name, data.schema, **SMALL.get(name, {}))
    evaluator = Evaluator(model, data.test)
    assert evaluator.full_run is None
    before = standing(model)
    outcomes, reached = set(), []
    for target in ("all", *components(model)["component"]):
        for error_model in (FixedCount(1), FixedCount(1, bits=(30,)), BitFlip(1e-5), BitFlip(1e-3), BitFlip(3e-2)):
            for seed in range(2):
                with inject(model, error_model, target, seed=seed) as error_map:
                    full, quick = evaluator.run(), evaluator.rerun(error_map)
                    assert quick.outcome == full.outcome and quick.error == full.error
                    if full.outcome != "raised":
                        assert equal(quick, full)
                        changed = ~((full.scores == evaluator.golden.scores) & ~np.isnan(full.scores))
                        assert changed.sum() <= quick.rows_reached <= len(data.test)
                outcomes.add(quick.outcome)
                reached.append(quick.rows_reached)
    assert {"ok", "nonfinite"} <= outcomes and min(reached) < len(data.test) / 10 and max(reached) == len(data.test)
    assert standing(model) == before


def test_rows_of_tables_reach_their_readers(trained, data, evaluator):
    """Against a plain look through the ids, single- and multi-hot."""
    for feature, values in data.test.sparse.items():
        name = f"sparse_arch.embedding_bag_collection.embedding_bags.{feature}.weight"
        with inject(trained, FixedCount(3), name, seed=5) as error_map:
            rows = set(error_map.frame()["row"])
            ends = np.arange(1, len(data.test) + 1) if values.lengths is None else np.cumsum(values.lengths)
            starts = ends - (1 if values.lengths is None else values.lengths)
            reading = [not rows.isdisjoint(values.values[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]
            assert evaluator.rerun(error_map).rows_reached == sum(reading)


def test_only_what_fits_is_kept():
    data = load_dataset("synthetic-movielens/full", rows=60_000)
    model = build_model("dlrm", data.schema)
    whole = Evaluator(model, data.test)
    size = whole._reach.cached.nbytes
    for memory, batches in ((0, 0), ("100KB", 0), (size // 2, 1), (size, 3)):
        some = Evaluator(model, data.test, memory=memory)
        assert some._reach.cached.batches == batches and some._reach.cached.nbytes <= (size if batches else 100_000)
        with inject(model, BitFlip(1e-3), "over_mlp", seed=1) as error_map:
            assert equal(some.rerun(error_map), whole.run())


def calls(model, action):
    """How often each module's forward hooks ran."""
    counts, handles = {}, []
    for name, module in model.named_modules():
        hook = lambda *_, name=name: counts.__setitem__(name, counts.get(name, 0) + 1)  # noqa: E731
        handles += [child.register_forward_hook(hook) for child in [module] if not list(module.children())]
    try:
        action()
    finally:
        for handle in handles:
            handle.remove()
    return counts


def test_late_errors_cost_late_layers_only(trained, evaluator):
    """With errors in the last layer no table is looked up and no other layer computes."""
    last = [name for name, _ in trained.named_parameters()][-1]
    evaluator.probe()
    with inject(trained, FixedCount(1), last, seed=1) as error_map:
        ran = calls(trained, lambda: evaluator.rerun(error_map))
        everything = calls(trained, evaluator.run)
    assert [name for name in everything if "embedding_bags" in name]
    assert not [name for name in ran if "embedding_bags" in name or "dense_arch" in name]
    linear = [name for name, module in trained.named_modules() if isinstance(module, nn.Linear) and name in ran]
    assert linear == [last.removesuffix(".bias").removesuffix(".weight")]


def test_maps_inside_each_other_count_together(trained, evaluator):
    with (
        inject(trained, FixedCount(2), "embedding", seed=1) as outer,
        inject(trained, FixedCount(1), "over_mlp", seed=2) as inner,
        inject(trained, FixedCount(2), "embedding", seed=3) as last,
    ):
        full = evaluator.run()
        assert all(equal(evaluator.rerun(one), full) for one in (outer, inner, last))
    with inject(trained, [(FixedCount(2), "embedding"), (StuckAt(1, 0.1), "dense_mlp")], seed=1) as error_map:
        assert equal(evaluator.rerun(error_map), evaluator.run())


def test_errors_while_the_model_runs_reach_every_row(trained, evaluator):
    for target in (Activations("over_arch*"), Inputs("dense")):
        with inject(trained, BitFlip(1e-4), target, seed=1) as error_map:
            assert evaluator.rerun(error_map).rows_reached == len(evaluator.rows)
    with inject(trained, [(FixedCount(1), "embedding"), (BitFlip(1e-4), Inputs("dense"))], seed=1) as error_map:
        assert evaluator.rerun(error_map).rows_reached == len(evaluator.rows)


def test_a_compiled_model_is_run_in_full(splits):
    data = splits["ids"]
    model = build_model("wide_deep", data.schema)
    model.deep.compile(backend="eager")
    evaluator = Evaluator(model, data.test)
    with (
        inject(model, FixedCount(1), "embedding", seed=1) as error_map,
        pytest.warns(UserWarning, match="reruns are full runs: the model is compiled"),
    ):
        assert equal(evaluator.rerun(error_map), evaluator.run())


def test_a_shared_table_reaches_the_readers_of_both_features(splits):
    data = splits["full"]
    user, movie = data.schema.features[:2]
    one = torchrec().EmbeddingBagConfig(
        name="t",
        embedding_dim=8,
        num_embeddings=max(user.cardinality, movie.cardinality),
        feature_names=[user.name, movie.name],
    )

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = torchrec().EmbeddingBagCollection(tables=[one])
            self.top = nn.Linear(16, 1)

        def forward(self, dense_features, sparse_features):
            return self.top(self.tables(sparse_features).values())

    model = Shared()
    evaluator = Evaluator(model, data.test)
    with inject(model, FixedCount(3), "tables*", seed=1) as error_map:
        rows = set(error_map.frame()["row"])
        pairs = zip(*(data.test.sparse[feature.name].values for feature in (user, movie)), strict=True)
        reading = [not rows.isdisjoint(pair) for pair in pairs]
        assert evaluator.rerun(error_map).rows_reached == sum(reading)
        assert equal(evaluator.rerun(error_map), evaluator.run())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_quantized_tables(splits):
    from torchrec.inference.modules import quantize_embeddings

    data = splits["full"]
    torch.manual_seed(0)
    model = quantize_embeddings(build_model("dlrm", data.schema), dtype=torch.int8, inplace=True)
    evaluator = Evaluator(model, data.test)
    few = []
    for target in ("embedding", "over_mlp", "all"):
        for error_model in (FixedCount(1), BitFlip(1e-3)):
            with inject(model, error_model, target, seed=1) as error_map:
                result = evaluator.rerun(error_map)
                assert equal(result, evaluator.run())
                few.append(result.rows_reached)
    assert min(few) < len(data.test) / 10


def test_an_interrupt_in_a_rerun_leaves_nothing(trained, evaluator, data):
    model = copy.deepcopy(trained)
    evaluator = Evaluator(model, data.test)
    before = standing(model)

    def stop(*_):
        raise KeyboardInterrupt

    for target in ("over_mlp", "embedding"):
        with inject(model, FixedCount(3), target, seed=1) as error_map:
            handle = model.over_arch.model[1].register_forward_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                evaluator.rerun(error_map)
            handle.remove()
            assert equal(evaluator.rerun(error_map), evaluator.run())
    assert standing(model) == before


@pytest.mark.long
def test_no_drift_in_two_thousand_trials(splits):
    """After 2,000 trials the model, the golden scores and what is kept are what they were."""
    torch.manual_seed(1)
    data = splits["ids"]
    model, split = build_model("deepfm", data.schema), data.test.head(200)
    evaluator = Evaluator(model, split)
    before, golden = standing(model), evaluator.golden.scores.copy()
    spaces = [resolve(model, target) for target in ("all", "embedding", "deep_mlp")]
    for trial in range(2_000):
        with inject(model, FixedCount(1 + trial % 3), spaces[trial % 3], seed=trial) as error_map:
            result = evaluator.rerun(error_map)
            assert trial % 500 or equal(result, evaluator.run())
    evaluator.verify()
    assert standing(model) == before and np.array_equal(evaluator.golden.scores, golden)
    assert equal(evaluator.run(), evaluator.golden) and equal(Evaluator(model, split).golden, evaluator.golden)


def test_what_has_changed_is_found(trained, data):
    model = copy.deepcopy(trained)
    evaluator = Evaluator(model, data.test)
    evaluator.verify()
    cached = evaluator._reach.cached._outputs[0]["over_arch.model.0"][0]
    cached[3, 5] += 1
    with pytest.raises(RuntimeError, match="its scores without errors changed"):
        evaluator.verify()
    cached[3, 5] -= 1
    with torch.no_grad():
        model.over_arch.model[1].bias += 1
    with pytest.raises(RuntimeError, match="its tensors changed"):
        evaluator.verify()


ROWS = 96


class Tables(nn.Module):
    """One table for each feature, of ids or of bags, in any order."""

    def __init__(self, names, kind=nn.Embedding):
        super().__init__()
        self.names = names
        self.tables = nn.ModuleList(kind(50, 2) for _ in names)
        self.top = nn.Linear(2 * len(names), 1)

    def forward(self, dense_features, sparse_features):
        by_name, outputs = sparse_features.to_dict(), []
        for name, table in zip(self.names, self.tables, strict=True):
            ids, ends = by_name[name].values().long(), by_name[name].offsets()
            outputs.append(table(ids) if isinstance(table, nn.Embedding) else table(ids, ends[:-1].long()))
        return self.top(torch.cat(outputs, dim=1))


def features_of(model, data):
    """Table -> the features that it is read with, by a golden run in small batches."""
    seen = lookups.SplitLookups(model, data.test)
    with seen.watched(data.test.batches(32)) as batches, torch.no_grad():
        for batch in batches:
            model(batch.dense_features, batch.sparse_features)
    return [seen.features(f"tables.{number}.weight") for number in range(len(model.tables))]


def data_of(sparse):
    label = np.arange(ROWS) % 2
    return dr.data.from_tensors(label=label, sparse=sparse, cardinalities=dict.fromkeys(sparse, 50))


@pytest.mark.parametrize("digest", [None, lambda ids: 0])
def test_features_that_are_alike_for_a_while_or_whose_digests_collide(monkeypatch, digest):
    """`late` differs from `first` in the last batch alone, `twin` nowhere, and bags of `cut` hold the ids of `bags`."""
    if digest is not None:
        monkeypatch.setattr(lookups, "_digest", digest)
    first = np.random.default_rng(1).integers(0, 50, ROWS)
    late = np.append(first[:-1], (first[-1] + 1) % 50)
    names = ["first", "late", "twin"]
    for order in (names, names[::-1]):
        data = data_of({"first": first, "late": late, "twin": first.copy()})
        known = {"first": "first", "late": "late", "twin": "first"}  # of equal features the first by name
        assert features_of(Tables(order), data) == [[known[name]] for name in order]
    ids, lengths = np.arange(2 * ROWS) % 50, np.full(ROWS, 2)
    other = lengths + np.where(np.arange(ROWS) % 2, 1, -1)
    data = data_of({"bags": (ids, lengths), "cut": (ids, other)})
    assert features_of(Tables(["cut", "bags"], nn.EmbeddingBag), data) == [["cut"], ["bags"]]
