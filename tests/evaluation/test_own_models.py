"""A user's own model on her own rows, in every form that a user has tried: each test does what the user did."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drsrobust as dr
from drsrobust.evaluation import ReachWarning

N, USERS, MOVIES = 300, 20, 30


@pytest.fixture(scope="module")
def frame():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.normal(size=N),
            "user": random.integers(USERS, size=N),
            "movie": random.integers(MOVIES, size=N),
        }
    )
    return frame.assign(clicked=(random.random(N) < 0.3 + 0.4 * (frame["movie"] % 2)).astype(int))


class Towers(nn.Module):
    """Two towers; forward takes its own names."""

    def __init__(self, outputs: int = 1):
        super().__init__()
        torch.manual_seed(1)
        self.user, self.movie = nn.Embedding(USERS, 8), nn.Embedding(MOVIES, 8)
        self.top = nn.Sequential(nn.Linear(17, 8), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, age, user, movie):
        return self.top(torch.cat((age[:, None], self.user(user), self.movie(movie)), dim=1))


def flips(evaluator, target="all", seeds=range(8), ber=1e-3, **inject):
    """AUC of full runs and of reruns for the same errors."""
    found = []
    for seed in seeds:
        with dr.inject(evaluator.model, dr.BitFlip(ber), target=target, seed=seed, **inject) as error_map:
            full, fast = evaluator.run(), evaluator.rerun(error_map)
        np.testing.assert_allclose(full.scores, fast.scores, rtol=1e-5, atol=1e-5)
        found.append(fast)
    return found


def by_column(model, batch):
    ids = batch.sparse_features
    return model(batch.dense_features[:, 0], ids["user"].values(), ids["movie"].values())


def test_a_frame_and_other_argument_names(frame):
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"], user="user")
    model = Towers()
    evaluator = dr.Evaluator(model, data, forward=by_column)
    with torch.no_grad():
        age, user, movie = (torch.tensor(frame[name].to_numpy()) for name in ("age", "user", "movie"))
        expected = model(age.float(), user, movie)[:, 0].numpy()
    np.testing.assert_allclose(evaluator.golden.scores, expected, rtol=1e-5, atol=1e-6)
    assert evaluator.golden.auc == pytest.approx(roc_auc_score(frame["clicked"], 1 / (1 + np.exp(-expected))), abs=1e-6)
    results = flips(evaluator, "movie*", ber=1e-4)
    assert all(result.rows_reached < N for result in results)  # rows that look up a wrong row of the table
    table = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], targets=["embedding", "top"], trials=4).run(
        progress=False
    )
    assert len(table) == 8


def test_a_data_loader(frame):
    tensors = TensorDataset(*(torch.tensor(frame[name].to_numpy()) for name in ("age", "user", "movie", "clicked")))
    batches = dr.data.from_batches(DataLoader(tensors, batch_size=64))
    evaluator = dr.Evaluator(Towers(), batches, forward=lambda model, batch: model(batch[0].float(), *batch[1:3]))
    assert len(evaluator.rows) == N and evaluator.full_run is None
    reached = [result.rows_reached for result in flips(evaluator, "movie*", ber=1e-4)]
    assert {0 < rows <= N for rows in reached} and all(rows % 64 in (0, N % 64) for rows in reached)


def test_a_list_of_batches_without_forward(frame, data):
    model = dr.load_model("dlrm", data)
    split = data.test.head(300)
    batches = [(batch.dense_features, batch.sparse_features, batch.labels) for batch in split.batches(100)]
    evaluator = dr.Evaluator(model, dr.data.from_batches(batches))
    np.testing.assert_allclose(evaluator.golden.scores, dr.Evaluator(model, split).golden.scores, rtol=1e-5, atol=1e-5)
    assert evaluator.golden.auc == dr.Evaluator(model, dr.data.from_batches(split.batches(100))).golden.auc
    flips(evaluator)
    with pytest.raises(TypeError, match="pass forward=lambda model, batch"):
        dr.Evaluator(Towers(), dr.data.from_batches([(torch.rand(4, 3), torch.tensor([0.0, 1, 0, 1]))]))


def test_outputs_of_other_kinds(frame):
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"])
    plain = dr.Evaluator(Towers(), data, forward=by_column)
    in_dict = dr.Evaluator(Towers(), data, forward=lambda model, batch: {"ctr": by_column(model, batch)}["ctr"])
    assert in_dict.golden.auc == plain.golden.auc

    def probability(model, batch):
        return torch.sigmoid(by_column(model, batch))

    served = dr.Evaluator(Towers(), data, forward=probability, output="probability")
    np.testing.assert_allclose(served.golden.probabilities, plain.golden.probabilities, rtol=1e-6)
    assert served.golden.logloss == pytest.approx(plain.golden.logloss, rel=1e-6)
    flips(served)
    for forward, seen in (
        (lambda model, batch: {"ctr": by_column(model, batch)}, "a dictionary of 'ctr'"),
        (lambda model, batch: by_column(model, batch).expand(-1, 2), r"a tensor \[64, 2\] for 64 rows"),
        (lambda model, batch: by_column(model, batch)[:5], r"a tensor \[5, 1\] for 64 rows"),
    ):
        with pytest.raises(ValueError, match=f"the model gave {seen}; task='click' takes"):
            dr.Evaluator(Towers(), data.test.head(64), forward=forward)


def test_saturated_probabilities_are_finite(frame):
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"])

    def hard(model, batch):
        return (by_column(model, batch) > 0).float()

    golden = dr.Evaluator(Towers(), data, forward=hard, output="probability").golden
    assert set(np.unique(golden.probabilities > 0.5)) == {False, True}
    assert golden.probabilities.max() == 1.0 and golden.probabilities.min() < 1e-37 and np.isfinite(golden.scores).all()


def test_several_tasks(frame):
    frame = frame.assign(bought=frame["clicked"] * (frame["user"] % 2))
    data = dr.data.from_frame(frame, label=["clicked", "bought"], dense=["age"], sparse=["user", "movie"])
    model = Towers(outputs=2)
    evaluator = dr.Evaluator(model, data, forward=by_column, task="multi")
    own = {"bought": lambda output: output[:, 1], "clicked": lambda output: output[:, 0]}
    as_dict = dr.Evaluator(
        model,
        data,
        forward=lambda model, batch: {name: pick(by_column(model, batch)) for name, pick in own.items()},
        task="multi",
    )
    scores = evaluator.golden.scores
    assert scores.shape == (N, 2) and (as_dict.golden.scores == scores).all()
    expected = [roc_auc_score(frame[task], scores[:, i]) for i, task in enumerate(("clicked", "bought"))]
    assert evaluator.golden.metric("auc/bought") == pytest.approx(expected[1], abs=1e-6)
    assert evaluator.golden.auc == pytest.approx(np.mean(expected), abs=1e-6)
    flips(evaluator)
    grid = {"errors": [dr.BitFlip(1e-3)], "metrics": ["auc/clicked", "auc/bought"], "trials": 3}
    table = dr.Campaign(evaluator, **grid).run(progress=False)
    np.testing.assert_allclose(table["auc"], (table["auc/clicked"] + table["auc/bought"]) / 2)
    with pytest.raises(ValueError, match="the labels of rows are those of task='multi', and this is task='click'"):
        dr.Evaluator(model, data, forward=by_column)


class Retrieval(nn.Module):
    """A GRU over the last movies, scored against all movies: [B, items]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.items = nn.Embedding(MOVIES, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, history):
        _, last = self.gru(self.items(history))
        return last[0] @ self.items.weight.T


def test_a_sequence_model_over_all_items():
    random = np.random.default_rng(3)
    history = torch.tensor(random.integers(MOVIES, size=(N, 5)))
    following = torch.tensor(random.integers(MOVIES, size=N))
    batches = dr.data.from_batches(DataLoader(TensorDataset(history, following), batch_size=50))
    model = Retrieval()
    evaluator = dr.Evaluator(model, batches, forward=lambda model, batch: model(batch[0]), task="ranking", k=10)
    assert evaluator.golden.auc is None and evaluator.golden.scores.shape == (N, MOVIES)
    with torch.no_grad():
        rank = (model(history).argsort(dim=1, descending=True) == following[:, None]).int().argmax(dim=1)
    assert evaluator.golden.metric("hit_rate") == pytest.approx((rank < 10).double().mean().item())
    assert evaluator.golden.metric("recall@3") == pytest.approx((rank < 3).double().mean().item())
    with pytest.warns(ReachWarning, match="it reads the table outside of the look-up too"):  # the scores of all items
        flips(evaluator)
    campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-3)], metrics=["ndcg@10", "overlap"], trials=4)
    table = campaign.run(progress=False)
    assert table["auc"].isna().all() and table["ndcg@10"].between(0, 1).all()
    summary = campaign.summary(["ndcg@10"])
    assert (summary["ndcg@10_low"] <= summary["ndcg@10"]).all() and (
        summary["ndcg@10"] <= summary["ndcg@10_high"]
    ).all()
    guarded = dr.Campaign(
        evaluator,
        errors=[dr.FixedCount(1)],
        mitigations=[None, dr.WeightRange.fit(model)],
        metrics=["ndcg@10"],
        trials=2,
    )
    with pytest.raises(ValueError, match="recovery is of AUC, which these trials do not have"):
        dr.recovery(guarded.run(progress=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(frame, dtype):
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"])

    def forward(model, batch):
        ids = batch.sparse_features
        return model(batch.dense_features[:, 0].to(dtype), ids["user"].values(), ids["movie"].values())

    evaluator = dr.Evaluator(Towers().to(dtype), data, forward=forward)
    assert evaluator.golden.scores.dtype == np.float32
    flips(evaluator)


def test_torchrec_dlrm_has_the_components_of_the_readme(data):
    from torchrec.models.dlrm import DLRM, DLRMTrain

    ours = dr.load_model("dlrm", data)
    model = DLRM(
        embedding_bag_collection=ours.sparse_arch.embedding_bag_collection,
        dense_in_features=len(data.schema.dense),
        dense_arch_layer_sizes=[64, 16],
        over_arch_layer_sizes=[64, 32, 1],
    )
    wrapped = DLRMTrain(model)
    for one in (model, wrapped):
        assert set(dr.components(one)["component"]) == {"embedding", "dense_mlp", "interaction", "over_mlp"}
        for target in ("all", "embedding", "mlp", "over_mlp"):
            assert dr.resolve(one, target).words == dr.resolve(ours, target).words
    evaluator = dr.Evaluator(model, data.test.head(500))
    table = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], targets=["all", "embedding", "mlp"], trials=2).run(
        progress=False
    )
    assert len(table) == 6
    by_batch = dr.Evaluator(wrapped, data.test.head(500), forward=lambda model, batch: model(batch)[1][1])
    assert by_batch.golden.auc == evaluator.golden.auc
    with pytest.raises(
        ValueError,
        match="did you mean 'over_mlp' or 'mlp'. components: dense_mlp, embedding, interaction, over_mlp, mlp; 19 tensors",
    ):
        dr.resolve(model, "top_mlp")
    with pytest.raises(ValueError, match="; 22 tensors, named as '0.bias'"):
        dr.resolve(nn.Sequential(*(nn.Linear(2, 2) for _ in range(11))), "top_mlp")


class Named(nn.Module):
    COMPONENTS = {"first": ("a.*",), "last": ("b.*",)}
    GROUPS = {"both": ("a.weight", "b.weight")}

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.net, self.loss = inner, nn.BCEWithLogitsLoss()


def test_wrappers_with_one_child_are_looked_through():
    assert set(dr.components(Around(Around(Named())))["component"]) == {"first", "last"}
    assert [one.name for one in dr.resolve(Around(Named()), "both").tensors] == ["net.a.weight", "net.b.weight"]
    assert set(dr.components(Around(Towers()))["component"]) == {"embedding", "top"}
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    assert set(dr.components(Around(layers))["component"]) == {"net"}  # "0" and "1" would say less
    assert set(dr.components(Around(nn.Linear(2, 1)))["component"]) == {"net"}


NOTEBOOK = """
import numpy as np, pandas as pd, torch
from torch import nn
import drsrobust as dr

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(50, 4), nn.Linear(5, 1)
        self.shift = torch.ones(1)  # neither a parameter nor a buffer
    def forward(self, x, ids):
        return self.top(torch.cat((x, self.table(ids)), dim=1)) + self.shift

torch.manual_seed(0)
random = np.random.default_rng(0)
frame = pd.DataFrame({"x": random.normal(size=200), "item": random.integers(50, size=200), "y": random.integers(2, size=200)})
data = dr.data.from_frame(frame, label="y", dense=["x"], sparse=["item"])
model = Mine()
call = lambda model, batch: model(batch.dense_features, batch.sparse_features["item"].values())
grid = dict(errors=[dr.BitFlip(1e-2)], targets=["all", "embedding"], trials=6)
for rows in (data, dr.data.from_batches(list(data.test.batches(64)))):
    evaluator = dr.Evaluator(model, rows, forward=call)
    tables = [
        dr.Campaign(evaluator, **grid, store=f"{type(rows).__name__} {workers}").run(progress=False, workers=workers)
        for workers in (1, 2)
    ]
    pd.testing.assert_frame_equal(*tables)
    print(len(tables[0]), tables[0]["auc"].nunique() > 3)
"""


@pytest.mark.long
def test_workers_make_a_model_of_a_notebook(tmp_path, warm_python):
    """On rows of a frame, and on batches."""
    done = warm_python.run("-c", NOTEBOOK, cwd=tmp_path)
    assert done.stdout.split() == ["12", "True"] * 2, done.stderr


def test_protections_are_fitted_on_own_batches(frame):
    tensors = TensorDataset(*(torch.tensor(frame[name].to_numpy()) for name in ("age", "user", "movie", "clicked")))
    rows = dr.data.from_batches(DataLoader(tensors, batch_size=64))

    def forward(model, batch):
        return model(batch[0].float(), *batch[1:3])

    model = Towers()
    clipping = dr.ActivationClipping.fit(model, rows, forward=forward)
    checks = dr.ABFTLinear.fit(model, rows, mode="calibrated", forward=forward)
    evaluator = dr.Evaluator(model, rows, forward=forward)
    with evaluator.under(clipping) as guarded:
        assert (guarded.golden.scores == evaluator.golden.scores).all()
    grid = {"errors": [dr.BitFlip(1e-3)], "mitigations": [None, clipping, checks, dr.WeightRange.fit(model)]}
    table = dr.Campaign(evaluator, **grid, trials=6).run(progress=False)
    assert len(table) == 24
    assert table.loc[table["mitigation"] == checks.name, "detected"].any()


def test_rows_that_cannot_be_evaluated(frame):
    with pytest.raises(TypeError, match="rows must be a Dataset, as of dr.data.from_frame.* got "):
        dr.Evaluator(Towers(), frame)
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"])
    with pytest.raises(ValueError, match="has no rows"):
        dr.Evaluator(Towers(), data.train, forward=by_column)
    with pytest.raises(TypeError, match="Towers.forward takes age, user, movie, not dense_features .*; pass forward="):
        dr.Evaluator(Towers(), data)
    short = Towers()
    short.user = nn.Embedding(7, 8)
    with pytest.raises(
        IndexError, match="rows of the model's tables: user 7, movie 30; largest ids: user 19, movie 29"
    ):
        dr.Evaluator(short, data, forward=by_column)
    ones = dr.data.from_frame(frame[frame["clicked"] == 1], label="clicked", dense=["age"], sparse=["user", "movie"])
    with pytest.raises(ValueError, match="AUC needs rows of both classes"):
        dr.Evaluator(Towers(), ones, forward=by_column)
    with pytest.raises(ValueError, match="scores is 'probability'; task='ranking' compares"):
        batches = dr.data.from_batches([(torch.zeros(4, 5, dtype=torch.long), torch.tensor([1, 2, 3, 4]))])
        dr.Evaluator(
            Retrieval(), batches, forward=lambda model, batch: model(batch[0]), task="ranking", scores="probability"
        )


def test_a_dictionary_of_tasks_is_read_by_their_names(frame):
    frame = frame.assign(liked=1 - frame["clicked"])
    data = dr.data.from_frame(frame, label=["clicked", "liked"], dense=["age"], sparse=["user", "movie"])

    def forward(model, batch, names=("liked", "clicked")):
        score = by_column(model, batch)
        return {names[0]: -score, names[1]: score}

    evaluator = dr.Evaluator(Towers(), data, forward=forward, task="multi")
    plain = dr.Evaluator(
        Towers(), dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"]), forward=by_column
    )
    assert evaluator.golden.metric("auc/clicked") == evaluator.golden.metric("auc/liked") == plain.golden.auc
    with pytest.raises(ValueError, match="tasks 'clicked', 'liked': there is no 'clicked'; forward="):
        dr.Evaluator(Towers(), data, forward=lambda model, batch: forward(model, batch, ("a", "b")), task="multi")


def test_batches_with_another_number_of_scores_and_metrics_without_users(frame):
    inputs = [torch.tensor(frame[name].to_numpy()) for name in ("age", "user", "movie", "clicked")]
    whole = [tuple(one[start : start + 100] for one in inputs) for start in (0, 100, 200)]
    short = dr.data.from_batches([(*batch[:3], batch[3][:99].clone()) for batch in whole])

    def call(model, batch):
        return model(batch[0].float(), *batch[1:3])

    with pytest.raises(ValueError, match="batch 0 has 99 labels, and the model gave 100 scores for it"):
        dr.Evaluator(Towers(), short, forward=call)
    evaluator = dr.Evaluator(Towers(), dr.data.from_batches(whole), forward=call)
    with pytest.warns(
        UserWarning, match="ndcg@10: no value on these rows, so the columns will be empty; .* need users"
    ):
        dr.Campaign(evaluator, errors=[dr.FixedCount(1)], metrics=["ndcg@10"], trials=1)
    with pytest.raises(TypeError, match="metrics must be a list of names, .* got <"):
        dr.Campaign(evaluator, errors=[dr.FixedCount(1)], metrics=call, trials=1)
