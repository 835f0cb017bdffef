"""`rerun` held to `run`: the same scores and metrics, for less work; which features a table is read with."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.inference.modules import quantize_embeddings

import drsrobust as dr
from drsrobust.evaluation import Evaluator, affected_rows, lookups
from drsrobust.evaluation.affected_rows import with_witnesses
from drsrobust.injection import Activations, BitFlip, FixedCount, Inputs, StuckAt, inject, resolve
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.introspection.tensors import components, listed
from drsrobust.metrics import NAMES
from drsrobust.models import build_model, state_digest
from drsrobust_extras.data.load import load_dataset
from tests.click_models import CLICK_MODELS
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
@pytest.mark.parametrize(
    "name", long_but(("dlrm", "deepfm", "afm"), [name for name in CLICK_MODELS if name != "dummy"])
)
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


class Branches(nn.Module):
    """A table, a layer for each domain (a batch is of one), and a layer that nothing reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.table, self.idle = nn.Embedding(40, 4), nn.Linear(4, 1)
        self.domains = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))

    def forward(self, ids, domain):
        return self.domains[domain](self.table(ids))[:, 0]


def in_domains(sizes=(64, 32, 64, 48)):
    """Batches of alternate domains; those of domain 0 have even ids."""
    random, made = np.random.default_rng(4), []
    for number, size in enumerate(sizes):
        ids = torch.from_numpy(random.integers(0, 20, size) * 2 + number % 2)
        made.append({"ids": ids, "domain": number % 2, "label": (ids > 20).float()})
    return made


def test_rows_of_batches_that_read_different_tensors():
    """Batches are scored whole: those with a wrong row of the table, or of a domain whose layer is wrong."""
    batches = in_domains()
    ids = torch.cat([batch["ids"] for batch in batches]).numpy()
    sizes = [len(batch["ids"]) for batch in batches]
    domains, number = (np.repeat(one, sizes) for one in ([batch["domain"] for batch in batches], range(len(batches))))
    evaluator = Evaluator(
        Branches().eval(),
        dr.data.from_batches(batches),
        forward=lambda model, batch: model(batch["ids"], batch["domain"]),
    )
    model, reach, golden = evaluator.model, evaluator._reach, evaluator.golden.scores
    assert not reach.flow.uniform and reach.few_rows() is None and evaluator.full_run is None
    for target in ("table*", "domains.0*", "domains.1*", "idle*", "all"):
        for seed in range(6):
            with inject(model, FixedCount(1 + seed % 2, bits=(29,)), target, seed=seed) as error_map:
                result = evaluator.rerun(error_map)
                assert equal(result, evaluator.run())
            hits = error_map.frame()
            affected = np.isin(number, number[np.isin(ids, hits["row"][hits["tensor"] == "table.weight"])])
            for domain in range(2):
                affected |= hits["tensor"].str.startswith(f"domains.{domain}").any() & (domains == domain)
            assert result.rows_reached == affected.sum(), (target, seed)
    ends = np.cumsum([0, *sizes])
    for number, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        assert np.array_equal(reach.one_batch(number).scores, golden[start:end])
    some = np.array([1, 3])
    parts = [golden[start:end] for start, end in (ends[1:3], ends[3:5])]
    assert np.array_equal(reach.scores_of(some), np.concatenate(parts))
    assert np.array_equal(reach.again(some), np.concatenate(parts))
    leaves = [entry for entry in listed(model) if entry.tensor.is_floating_point()]
    first = {"table.weight", "domains.0.weight", "domains.0.bias"}
    assert reach.read_again(leaves) == (first, first)
    assert reach.intact()
    for changed in (model.domains[0].bias, model.domains[1].bias):  # the first batch is scored without what is kept
        with torch.no_grad():
            changed += 1
        assert reach.intact() == (changed is model.domains[1].bias)
        with torch.no_grad():
            changed -= 1


def test_rows_by_themselves_and_all_of_them(splits, monkeypatch):
    """Few rows are scored with witnesses alone; rows of probes and batches have their golden scores."""
    data = splits["full"]
    torch.manual_seed(1)
    evaluator = Evaluator(build_model("dlrm", data.schema), data.test)
    reach, model, n, scored = evaluator._reach, evaluator.model, len(data.test), []
    real = reach._scored
    monkeypatch.setattr(reach, "_scored", lambda batches, rows: scored.append(rows) or real(batches, rows))
    weight = "sparse_arch.embedding_bag_collection.embedding_bags.movie.weight"
    table, other = (dr.Rows(weight.replace("movie", n), data.test.sparse[n].values[:1]) for n in ("movie", "user"))
    for errors, expected in (
        ([(FixedCount(1), table)], [64]),
        ([(FixedCount(1), "over_mlp")], [n]),
        ([(FixedCount(1), table), (FixedCount(1), "over_mlp")], [n, 64]),
        ([(FixedCount(1), table), (FixedCount(1), other), (FixedCount(1), "over_mlp")], [n, 64]),
        ([(BitFlip(0.2), weight)], [n]),
    ):
        with inject(model, errors, seed=3) as error_map:
            assert equal(evaluator.rerun(error_map), evaluator.run())
        assert scored[: len(expected)] == expected, errors
        scored.clear()
    bits = sum(1 << number for name, number in reach.flow.number.items() if name.startswith("over_arch"))
    for dense, count, expected in (
        *((0, n // 2, [320]), (0, n // 2 + 1, [n])),
        *((bits, n // 10, [n, 96]), (bits, n // 10 + 1, [n])),
    ):
        reach.score(affected_rows.Affected(dense, 0, np.arange(count)))
        assert scored == expected, (dense, count)
        scored.clear()
    monkeypatch.setattr(reach._units, "changed", lambda _, rows, most: np.arange(3) if rows == [n] else None)
    for count, expected in ((n // 10, [96]), (n // 10 + 1, [n])):
        reach.score(affected_rows.Affected(bits, 0, np.arange(count)))
        assert scored == expected, count
        scored.clear()
    assert np.allclose(reach.few_rows().scores, reach.scores[np.linspace(0, n - 1, 64).astype(int)], atol=1e-5)
    assert np.array_equal(reach.one_batch(0).scores, reach.scores) and reach.intact()
    with torch.no_grad():
        model.over_arch.model[1].bias += 1
    assert not reach.intact()
    for limit in (n, n - 1):
        monkeypatch.setattr(affected_rows, "IN_MEMORY", limit)
        assert isinstance(Evaluator(model, data.test)._reach.batches, list) == (limit == n)


@pytest.mark.parametrize(("rows", "n"), [([5], 8), ([0, 1, 2], 4), (range(0, 100, 2), 100), (range(3000), 6000)])
def test_witnesses_are_unaffected_rows_between_the_affected_ones(rows, n):
    numbers, is_witness = with_witnesses(np.array(rows), n)
    assert numbers[~is_witness].tolist() == list(rows) and not np.isin(numbers[is_witness], rows).any()
    assert len(numbers) % 32 == 0 and is_witness[0] and is_witness[-1] and is_witness.sum() >= 14
    assert len(set(numbers[is_witness].tolist())) > min(n - len(rows), is_witness.sum()) / 2
    batches = np.array_split(is_witness, range(2048, len(numbers), 2048))
    assert all(batch.sum() > 10 for batch in batches)


def test_one_rerun_in_fifty_is_compared_with_a_full_run(splits, monkeypatch):
    """Time is counted in calls: each rerun and each full run takes 2."""
    model = build_model("deepfm", splits["ids"].schema)
    monkeypatch.setattr(affected_rows.time, "process_time", itertools.count(100, 2).__next__)
    evaluator, full = Evaluator(model, splits["ids"].test), []
    real = evaluator._reach.full
    monkeypatch.setattr(evaluator._reach, "full", lambda: full.append(trial) or real())
    with inject(model, FixedCount(1, bits=(3,)), "deep_mlp", seed=1) as error_map:
        for trial in range(1, 160):  # noqa: B007
            evaluator.rerun(error_map)
    assert full == [51, 102, 153] and evaluator.full_run is None


class Idle(Tables):
    """Looks up its first table alone, and never calls a quantized collection."""

    def __init__(self, names):
        super().__init__(names)
        config = torchrec().EmbeddingBagConfig(name="t", embedding_dim=2, num_embeddings=50, feature_names=names)
        idle = nn.Sequential(torchrec().EmbeddingBagCollection(tables=[config]))
        self.idle = quantize_embeddings(idle, dtype=torch.int8, inplace=True)

    def forward(self, dense_features, sparse_features):
        first = self.tables[0](sparse_features.to_dict()[self.names[0]].values().long())
        return self.top(first.repeat(1, len(self.names)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_a_table_without_an_effect_has_no_readers(monkeypatch):
    random = np.random.default_rng(1)
    data = data_of({name: random.integers(0, 50, ROWS) for name in ("one", "two")})
    reach = Evaluator(Idle(["one", "two"]), data.test)._reach
    assert reach.features() == {"tables.0.weight": ["one"]}
    assert reach.looked_up("tables.0.weight").tolist() == np.unique(data.test.sparse["one"].values).tolist()
    assert len(reach.looked_up("tables.1.weight")) == 0 and reach.looked_up("top.weight") is None
    for name, number in reach.flow.number.items():  # of which nothing is known, of its neighbours as before
        monkeypatch.setattr(type(reach.flow), "unknown", 1 << number)
        assert (reach.looked_up("tables.0.weight") is None) == (name == "tables.0.weight")
