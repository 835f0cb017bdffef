"""`rerun` held to `run`: the same scores and metrics, for less work."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.evaluation import Evaluator
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


def test_the_index_is_small(data, evaluator, trained):
    with inject(trained, BitFlip(1e-3), "embedding", seed=1) as error_map:
        evaluator.rerun(error_map)
    ids = sum(v.values.nbytes + (0 if v.lengths is None else v.lengths.nbytes) for v in data.test.sparse.values())
    readers = evaluator._reach._lookups._readers.values()
    assert 0 < sum(reader._positions.nbytes + reader._starts.nbytes for reader in readers) <= 1.5 * ids


@pytest.mark.parametrize("memory", [0, "100KB", "2GB"])
def test_budget_of_memory(memory, trained, data):
    evaluator = Evaluator(trained, data.test, memory=memory)
    cached = evaluator._reach.cached
    assert cached.nbytes <= {0: 0, "100KB": 100_000, "2GB": 2e9}[memory]
    assert cached.batches == {0: 0, "100KB": 0, "2GB": 1}[memory]
    with inject(trained, BitFlip(1e-3), "over_mlp", seed=1) as error_map:
        assert equal(evaluator.rerun(error_map), evaluator.run())


def test_only_what_fits_is_kept():
    data = load_dataset("synthetic-movielens/full", rows=60_000)
    model = build_model("dlrm", data.schema)
    whole = Evaluator(model, data.test)
    some = Evaluator(model, data.test, memory=whole._reach.cached.nbytes // 2)
    assert whole._reach.cached.batches == 3 and some._reach.cached.batches == 1
    with inject(model, BitFlip(1e-3), "over_mlp", seed=1) as error_map:
        assert equal(some.rerun(error_map), whole.rerun(error_map))


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


@pytest.mark.parametrize("name", ["deepfm", "wide_deep", "dcn"])
def test_errors_in_an_mlp_look_nothing_up(name, splits):
    """Two collections read one KeyedJaggedTensor, which derives offsets for the first and keeps them for the other."""
    data = splits["full"]
    model = build_model(name, data.schema)
    evaluator = Evaluator(model, data.test)
    evaluator.probe()
    with inject(model, FixedCount(1), "deep_mlp", seed=1) as error_map:
        ran = calls(model, lambda: evaluator.rerun(error_map))
    assert ran and not [module for module in ran if "embedding_bags" in module]


def test_a_map_must_be_in_the_model(trained, evaluator):
    with inject(trained, BitFlip(1e-3), seed=1) as error_map:
        pass
    with pytest.raises(ValueError, match="is not in the model; call this inside"):
        evaluator.rerun(error_map)


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


def test_no_errors(trained, evaluator):
    with inject(trained, BitFlip(0.0), seed=1) as error_map:
        result = evaluator.rerun(error_map)
    assert result.rows_reached == 0 and equal(result, evaluator.golden)


class Foreign(nn.Module):
    """A user's own model: tables of PyTorch's own, glue between modules, several habits to switch on."""

    def __init__(self, schema, habit=""):
        super().__init__()
        self.habit, self.names = habit, [feature.name for feature in schema.features]
        rows = [feature.cardinality for feature in schema.features]
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum") for n in rows)
        self.single = nn.Embedding(rows[0], 8)
        width = 8 * len(rows)
        self.first = nn.Sequential(nn.Linear(width, 16), nn.ReLU(inplace=habit == "inplace"))
        self.second = nn.Linear(16, 1)
        self.side = nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        if habit == "tied":
            self.single.weight = self.tables[0].weight

    def forward(self, dense_features, sparse_features):
        habit = self.habit
        found = []
        for name, table in zip(self.names, self.tables, strict=True):
            jagged = sparse_features[name]
            ids = jagged.values().long()
            if habit == "hashed":
                ids = (ids * 7 + 1) % table.num_embeddings
            found.append(table(ids, jagged.offsets()[:-1].long()))
        x = torch.cat(found, dim=1)
        hidden = self.first(x)
        if habit == "changed later":
            hidden += self.scale
        if habit == "norm":
            hidden = hidden * self.tables[0].weight.norm()
        if habit == "together":
            hidden = hidden - hidden.mean(dim=0)
        if habit == "random":
            hidden = torch.dropout(hidden, 0.5, True)
        if habit == "counts":
            self.seen += 1
        if habit == "numpy":
            hidden = hidden * float(self.scale.detach().numpy()[0])
        if habit == "steered" and bool((self.scale > 0).all()):
            hidden = hidden * 2
        if habit == "picky" and not hidden.isfinite().all():
            raise ArithmeticError(f"{int((~hidden.isfinite()).sum())} are not finite")
        if habit == "behind":
            self.first.left = x * self.scale
            hidden = hidden + self.first.left[:, :16]
        return (
            self.second(hidden) + self.side(x) + self.single(sparse_features[self.names[0]].values().long())[:, :1]
        )[:, 0]


HABITS = ["", "inplace", "tied", "changed later", "steered", "numpy", "behind", "picky", "hashed", "norm"]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.filterwarnings("ignore::drsrobust.evaluation.ReachWarning")
def test_foreign_models(habit, splits):
    data = splits["full"]
    torch.manual_seed(2)
    model = Foreign(data.schema, habit)
    evaluator = Evaluator(model, data.test)
    before = standing(model)
    outcomes = set()
    for target in ("tables*", "single.weight", "first*", "second*", "side*", "scale", "all"):
        if habit == "tied" and target == "single.weight":
            continue
        for error_model in (FixedCount(1), BitFlip(0.03, bits=(30,)), BitFlip(1e-3), BitFlip(3e-2)):
            with inject(model, error_model, target, seed=3) as error_map:
                full, quick = evaluator.run(), evaluator.rerun(error_map)
                assert (quick.outcome, quick.error) == (full.outcome, full.error)
                assert full.outcome == "raised" or equal(quick, full)
            outcomes.add(full.outcome)
    assert ("raised" in outcomes) == (habit == "picky")
    assert standing(model) == before
    with inject(model, FixedCount(1), "tables.0.weight", seed=1) as error_map:
        reached = evaluator.rerun(error_map).rows_reached
    assert (reached == len(data.test)) == (habit in ("hashed", "norm"))


@pytest.mark.parametrize(
    ("habit", "said"),
    [
        ("hashed", "tables.0.weight count as affecting every row: it looks up other ids than the split's"),
        ("norm", "tables.0.weight count as affecting every row: it reads the table outside of the look-up too"),
        ("together", "affecting every row: its scores depend on which rows are scored together"),
        ("counts", "reruns are full runs: it writes to its own tensors while it scores"),
        ("random", "reruns are full runs: its scores change from run to run"),
    ],
)
def test_what_cannot_be_known_is_said_once(habit, said, splits, recwarn):
    data = splits["full"]
    torch.manual_seed(2)
    model = Foreign(data.schema, habit)
    evaluator = Evaluator(model, data.test)
    for _ in range(2):
        with inject(model, FixedCount(1), "tables.0.weight", seed=1) as error_map:
            result = evaluator.rerun(error_map)
            if habit != "random":
                assert equal(result, evaluator.run())
        assert result.rows_reached == len(data.test)
    texts = [str(warning.message) for warning in recwarn if "the AUC without errors is" not in str(warning.message)]
    assert [said in text for text in texts] == [True]


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
    config, pooling = torchrec().EmbeddingBagConfig, torchrec().PoolingType.SUM
    user, movie = data.schema.features[0], data.schema.features[1]

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            rows = max(user.cardinality, movie.cardinality)
            names = [user.name, movie.name]
            one = config(name="t", embedding_dim=8, num_embeddings=rows, feature_names=names, pooling=pooling)
            self.tables = torchrec().EmbeddingBagCollection(tables=[one])
            self.top = nn.Linear(16, 1)

        def forward(self, dense_features, sparse_features):
            return self.top(self.tables(sparse_features).values())

    torch.manual_seed(0)
    model = Shared()
    evaluator = Evaluator(model, data.test)
    with inject(model, FixedCount(3), "tables*", seed=1) as error_map:
        rows = set(error_map.frame()["row"])
        reading = [
            not rows.isdisjoint(pair)
            for pair in zip(data.test.sparse[user.name].values, data.test.sparse[movie.name].values, strict=True)
        ]
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


def test_the_dummy_twin_looks_up_by_weight():
    """`dummy` is given other ids than the data's: every row is reached, and it says so."""
    data = load_dataset("synthetic-dummy", rows=2000)
    model = build_model("dummy", data.schema)
    evaluator = Evaluator(model, data.test)
    with inject(model, FixedCount(2), "embedding", seed=1) as error_map:
        assert equal(evaluator.rerun(error_map), evaluator.run())


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
    data = splits["ids"]
    torch.manual_seed(1)
    model = build_model("deepfm", data.schema)
    split = data.test.head(200)
    evaluator = Evaluator(model, split)
    before, golden = standing(model), evaluator.golden.scores.copy()
    space = {target: resolve(model, target) for target in ("all", "embedding", "deep_mlp")}
    from drsrobust.injection import Injection

    spaces = list(space.values())
    for trial in range(2_000):
        injection = Injection(model, [(FixedCount(1 + trial % 3), spaces[trial % 3])], seed=trial)
        injection.apply()
        try:
            result = evaluator.rerun(injection.error_map)
            if trial % 500 == 0:
                assert equal(result, evaluator.run())
        finally:
            injection.undo()
    evaluator.verify()
    assert standing(model) == before and np.array_equal(evaluator.golden.scores, golden)
    assert equal(evaluator.run(), evaluator.golden) and equal(Evaluator(model, split).golden, evaluator.golden)


def test_bad_memory(trained, data):
    with pytest.raises(ValueError, match="memory is 'lots'; it must be a number of bytes or text as \"500MB\""):
        Evaluator(trained, data.test, memory="lots")


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
