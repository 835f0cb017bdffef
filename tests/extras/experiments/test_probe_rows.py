"""Probe rows: which words they read, how they are chosen, what they detect and why not, and their place among protections."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.base import Screened
from drsrobust_extras.experiments.probe_rows import MASKED, NOT_READ, OUTCOMES, ROUNDED, _cover
from tests.refusals import refuses

ROWS = 90  # of the probe rows in most tests


@pytest.fixture(scope="module")
def evaluator(trained, data):
    return dr.Evaluator(trained, data.test)


@pytest.fixture(scope="module")
def probes(evaluator, data):
    return dr.ProbeRows.fit(evaluator, data.train, ROWS)


def table_of(model, feature):
    """The tensor of the table that one feature is looked up in."""
    return next(name for name, _ in model.named_parameters() if f".t_{feature}." in name or f".{feature}." in name)


def ids_by_table(model, split):
    """Table's tensor -> for each row of a split the set of its ids, from the split alone."""
    features = {}
    for name in split.sparse:
        ids = split.sparse[name]
        ends = np.arange(1, len(split) + 1) if ids.lengths is None else ids.ends()
        starts = np.append(0, ends[:-1])
        features[table_of(model, name)] = [set(ids.values[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]
    return features


def random_sets(seed, n_rows=12, n_items=10):
    random = np.random.default_rng(seed)
    reads = random.random((n_rows, n_items)) < 0.3
    weights = random.integers(1, 5, n_items).astype(float)
    return reads, weights, random.permutation(n_rows)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_cover_is_plain_greedy_and_within_its_bound(seed):
    """Against greedy choice with all gains computed at each step, and against the best of all sets."""
    reads, weights, order = random_sets(seed)
    chosen = _cover(*np.nonzero(reads), weights, 4, order)
    left, expected = weights.copy(), []
    for _ in range(4):
        gains = reads @ left
        if not gains.max():  # all that can be read is read: the next round
            left, gains = weights.copy(), reads @ weights
        gains[expected] = -1
        best = next(row for row in order if gains[row] == gains.max())
        expected.append(best)
        left[reads[best]] = 0
    assert chosen.tolist() == expected
    value = weights[reads[chosen].any(axis=0)].sum()
    best = max(weights[reads[list(rows)].any(axis=0)].sum() for rows in itertools.combinations(range(12), 4))
    assert (1 - 1 / np.e) * best <= value <= best


def test_greedy_cover_goes_on_after_all_is_read():
    """In rounds that each read everything again; all rows are chosen once, and the first of n are those of a smaller n."""
    reads, weights, order = random_sets(3)
    every = _cover(*np.nonzero(reads), weights, 12, order)
    assert sorted(every) == list(range(12))
    for n in range(1, 12):
        assert np.array_equal(_cover(*np.nonzero(reads), weights, n, order), every[:n])
    nothing = np.empty(0, np.int64)
    assert np.array_equal(_cover(nothing, nothing, np.empty(0), 5, order), order[:5])  # no tables at all


def test_coverage_is_that_of_the_ids(trained, probes):
    """Of tables the looked-up rows, of all other layers everything."""
    found = probes.coverage().set_index("component")
    tables = ids_by_table(trained, probes.rows)
    shapes = {name: p.shape for name, p in trained.named_parameters()}
    read = sum(len(set().union(*ids)) * shapes[table][1] for table, ids in tables.items())
    words = sum(shapes[table].numel() for table in tables)
    assert (found.loc["embedding", "read"], found.loc["embedding", "words"]) == (read, words)
    assert found.loc["embedding", "share"] == pytest.approx(read / words) and 0.05 < read / words < 1
    dense = found.drop("embedding")
    assert (dense["share"] == 1).all() and dense["words"].sum() == sum(s.numel() for s in shapes.values()) - words
    table = max(tables, key=lambda name: shapes[name][0])
    seen = sorted(set().union(*tables[table]))
    some = probes.coverage(dr.Rows(table, [*seen[:3], *(set(range(shapes[table][0])) - set(seen))]))
    assert some["read"].item() == 3 * shapes[table][1] and some["words"].item() > 3 * shapes[table][1]


def test_cover_reads_more_than_random_rows_and_all_rows_read_all(evaluator, data):
    split = data.train.head(400)
    shares = {}
    for how in ("cover", "random"):
        chosen = dr.ProbeRows.fit(evaluator, split, 40, how=how, seed=1)
        shares[how] = chosen.coverage("embedding")["share"].item()
        first = dr.ProbeRows.fit(evaluator, split, 10, how=how, seed=1)
        assert np.array_equal(first.rows.rows, chosen.rows.rows[:10])
    assert shares["cover"] > 1.05 * shares["random"]
    every = {how: dr.ProbeRows.fit(evaluator, split, 400, how=how) for how in ("cover", "random")}
    assert all(sorted(probes.rows.rows) == sorted(split.rows) for probes in every.values())
    whole = dr.ProbeRows(evaluator, split).coverage()
    assert all(whole.equals(probes.coverage()) for probes in every.values())
    again = dr.ProbeRows.fit(evaluator, split, 40, seed=1)
    other = dr.ProbeRows.fit(evaluator, split, 40, seed=2)
    assert again.identity() == dr.ProbeRows.fit(evaluator, split, 40, seed=1).identity() != other.identity()


def test_weights_decide_what_is_read(trained, evaluator, data):
    """With all weight on one row of a table, the first row of data looks it up; weights of words are summed over rows."""
    split = data.train.head(500)
    tables = ids_by_table(trained, split)
    table = max(tables, key=lambda name: len(set().union(*tables[name])))
    shape = trained.get_parameter(table).shape
    rare = min(set().union(*tables[table]), key=lambda one: sum(one in ids for ids in tables[table]))
    weight = np.zeros(shape[0])
    weight[rare] = 1
    chosen = dr.ProbeRows.fit(evaluator, split, 3, weights={table: weight})
    assert rare in ids_by_table(trained, chosen.rows)[table][0]
    by_word = dr.ProbeRows.fit(evaluator, split, 3, weights={table: np.repeat(weight[:, None], shape[1], axis=1)})
    assert np.array_equal(by_word.rows.rows, chosen.rows.rows)


def single_errors(model, n, target, bits=None):
    space = dr.resolve(model, target)
    return [dr.FixedCount(1, bits=bits).sample(space, seed=seed) for seed in range(n)]


def test_detection_is_a_full_comparison_of_scores(trained, probes, data):
    """With what an evaluator's run gives for the same rows, bit for bit; the first changed row is the number that is needed."""
    direct = dr.Evaluator(trained, probes.rows)
    seen = set()
    for errors in [*single_errors(trained, 60, "embedding"), *single_errors(trained, 40, "mlp")]:
        with errors.applied(trained):
            after = direct.run().scores
            needed = probes.rows_needed(errors)
            assert probes.detects(errors) == (needed is not None)
        changed = np.flatnonzero(direct.golden.scores.view(np.uint32) != after.view(np.uint32))
        assert needed == (changed[0] + 1 if len(changed) else None)
        seen.add(needed is None)
    assert seen == {True, False}


def test_what_is_detected_is_read(trained, probes):
    """All outcomes, each against what it says: ids of the rows, and the scores after a large change of the word."""
    tables = ids_by_table(trained, probes.rows)
    counts = dict.fromkeys(OUTCOMES, 0)
    errors_in = [*single_errors(trained, 150, "embedding"), *single_errors(trained, 150, "mlp", range(12))]
    for errors in errors_in:
        outcome, name, word = probes.outcome(errors), errors.targets[errors.tensor[0]], int(errors.word[0])
        counts[outcome] += 1
        ids = set().union(*tables[name]) if name in tables else None
        is_read = ids is None or word // trained.get_parameter(name).shape[1] in ids
        assert (outcome == NOT_READ) == (not is_read)
        if outcome in (MASKED, ROUNDED):
            # A step small enough not to wake a dead ReLU and large enough to be no rounding.
            wide = copy.deepcopy(trained).double()
            batch = probes.rows.batch()
            batch.dense_features = batch.dense_features.double()
            with torch.no_grad():
                before = wide(batch.dense_features, batch.sparse_features)
                wide.get_parameter(name).view(-1)[word] += 1e-9
                changed = not torch.equal(before, wide(batch.dense_features, batch.sparse_features))
            assert changed == (outcome == ROUNDED), (name, word)
    assert all(counts.values()), counts


def test_rows_that_no_probe_reads_are_blind_spots(trained, probes):
    tables = ids_by_table(trained, probes.rows)
    unseen = {t: sorted(set(range(len(trained.get_parameter(t)))) - set().union(*ids)) for t, ids in tables.items()}
    table = max(unseen, key=lambda name: len(unseen[name]))
    with dr.inject(trained, dr.BitFlip(0.3), target=dr.Rows(table, unseen[table]), seed=1) as errors:
        assert not probes.detects(errors) and len(errors) > 100
        with dr.inject(trained, dr.FixedCount(1, bits=[30]), target="over_arch.model.1.bias", seed=1):
            assert probes.detects(errors)  # all that is in the model counts
    assert probes.outcome(errors) == NOT_READ


def test_errors_of_the_computation_are_detected(trained, probes):
    with dr.inject(trained, dr.BitFlip(1e-3), target=dr.Activations("over_arch*"), seed=1) as errors:
        assert probes.detects(errors)
    with dr.inject(trained, dr.BitFlip(0.0), target=dr.Activations("over_arch*"), seed=1) as errors:
        assert not probes.detects(errors)


def test_a_model_that_raises_is_detected(data):
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("unused", torch.tensor(1.0))

        def forward(self, dense_features, sparse_features):
            if not 0.5 < self.weight.item() < 2:
                raise ArithmeticError("not sane")
            return dense_features.sum(1) * self.weight

    model = Refusing()
    probes = dr.ProbeRows(dr.Evaluator(model, data.test.head(500), output="logit"), data.train.head(5))
    with dr.inject(model, dr.FixedCount(1, bits=[30]), seed=0) as errors:
        assert probes.rows_needed(errors) == 1
    everything = probes.coverage("everything")[["words", "read"]].sum()
    assert (everything["words"], everything["read"]) == (2, 2)  # a branch may be why no row reads the buffer


def test_one_row_and_rows_over_several_batches(trained, evaluator, data):
    """The number of rows changes no bit of a row's score, so what few rows detect more rows detect at the same place."""
    many = dr.ProbeRows(evaluator, data.train.head(900))
    few = {n: dr.ProbeRows(evaluator, data.train.head(n)) for n in (1, 64, 300)}
    for errors in single_errors(trained, 25, "all"):
        with errors.applied(trained):
            needed = many.rows_needed(errors)
            for n, probes in few.items():
                assert probes.rows_needed(errors) == (needed if needed is not None and needed <= n else None)


def test_a_period_leaves_young_errors(trained, evaluator, data):
    """By the errors' ages: of those that are detected the share `exposure` is left; what is not detected stays as it is."""
    space = dr.resolve(trained, "over_mlp")
    probes = dr.ProbeRows.fit(evaluator, data.train, 64, period=0.4, window=2.0)
    assert probes.exposure == 0.1 and dr.ProbeRows(evaluator, data.train.head(1)).exposure == 0
    left = drawn = 0
    for seed in range(200):
        errors = dr.FixedCount(30, bits=range(24, 31)).sample(space, seed=seed)
        screened = Screened.by(probes, errors, space, seed=seed)
        assert screened.detected and screened.repaired
        assert set(screened.remaining.word.tolist()) <= set(errors.word.tolist())
        left, drawn = left + screened.remaining.bits, drawn + errors.bits
    assert left / drawn == pytest.approx(probes.exposure, abs=0.015)  # the phase of a trial is common to its errors
    tables = ids_by_table(trained, probes.rows)
    table = max(tables, key=lambda name: len(tables[name]))
    unseen = sorted(set(range(len(trained.get_parameter(table)))) - set().union(*tables[table]))
    hidden = dr.BitFlip(0.1).sample(dr.resolve(trained, dr.Rows(table, unseen[:50])), seed=1)
    screened = Screened.by(probes, hidden, dr.resolve(trained, table), seed=1)
    assert screened.remaining is hidden and screened.detected is False


def test_a_campaign_takes_them_as_any_protection(trained, data, evaluator):
    """Alone and with a protection of the computation; a worker gets a pickled copy, which it attaches to its own model."""
    rows = dr.Evaluator(trained, data.test.head(400))
    probes = dr.ProbeRows.fit(rows, data.train, 64)
    choices = [None, probes, probes + dr.ActivationClipping.fit(trained, data.train)]
    options = {"errors": [dr.FixedCount(1, bits=[30])], "targets": ["mlp"], "trials": 12, "seed": 4}
    table = dr.Campaign(rows, mitigations=choices, **options).run()
    plain, guarded = (table[table["mitigation"] == name].set_index("seed") for name in ("none", probes.name))
    detected = guarded["detected"].astype(bool)
    assert detected.any() and not detected.all()  # a huge weight of an input that is always 0 does nothing
    assert guarded["bits_left"].tolist() == np.where(detected, 0, 1).tolist()
    assert (guarded["auc_drop"] == plain["auc_drop"].where(~detected, 0.0)).all()
    assert plain["auc_drop"].max() > 0.01 > guarded["auc_drop"].max()
    assert dr.mitigation.storage_overhead(trained, [probes])["stored_bits"].item() == probes.cost(trained).stored_bits
    dense, ids = probes.rows.dense.size, sum(len(column.values) for column in probes.rows.sparse.values())
    assert probes.cost(trained).stored_bits == 32 * (64 + dense + ids)
    errors = dr.FixedCount(1, bits=[30]).sample(dr.resolve(trained, "mlp"), seed=1)
    away = pickle.loads(pickle.dumps(probes))
    for use in (away.coverage, lambda: away.outcome(errors), lambda: away.screen(errors, dr.resolve(trained), seed=1)):
        refuses(use, ValueError, "came from another process")
    assert away.cost(trained) == probes.cost(trained)
    with away.attach(trained):
        assert away.screen(errors, dr.resolve(trained, "mlp"), seed=1).detected
    assert away.identity() == probes.identity()


def test_models_of_which_no_probes_can_be_made(trained, evaluator, probes, data):
    errors = dr.FixedCount(1).sample(dr.resolve(trained), seed=1)
    with errors.applied(trained):
        refuses(lambda: probes.outcome(errors), ValueError, "errors are in the model now")
    refuses(lambda: probes.detects(errors), ValueError, "is not in the model")
    other = copy.deepcopy(trained)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    for use in (probes.check, lambda model: probes.attach(model).__enter__()):
        refuses(lambda use=use: use(other), ValueError, "golden scores of a model with state")
    noisy = dr.models.build_model("dlrm", data.schema)
    noisy.forward = lambda **batch: type(noisy).forward(noisy, **batch) + torch.rand(1)
    changing = dr.Evaluator(noisy, data.test.head(300), output="logit")
    refuses(lambda: dr.ProbeRows(changing, data.train.head(60)), ValueError, "change from run to run")
