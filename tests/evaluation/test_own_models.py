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


def flips(evaluator, target="all", ber=1e-3):
    """Reruns, compared with full runs."""
    found = []
    for seed in range(8):
        with dr.inject(evaluator.model, dr.BitFlip(ber), target=target, seed=seed) as error_map:
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


def test_probabilities(frame):
    """Also saturated ones, which have finite scores."""
    data = dr.data.from_frame(frame, label="clicked", dense=["age"], sparse=["user", "movie"])
    plain = dr.Evaluator(Towers(), data, forward=by_column)

    def served(model, batch):
        return torch.sigmoid(by_column(model, batch))

    def hard(model, batch):
        return (by_column(model, batch) > 0).float()

    evaluator = dr.Evaluator(Towers(), data, forward=served, output="probability")
    np.testing.assert_allclose(evaluator.golden.probabilities, plain.golden.probabilities, rtol=1e-6)
    assert evaluator.golden.logloss == pytest.approx(plain.golden.logloss, rel=1e-6)
    flips(evaluator)
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
    guarded = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], mitigations=[None, dr.WeightRange.fit(model)], trials=2)
    with pytest.raises(ValueError, match="FixedCount.* has no metric without errors"):
        dr.recovery(guarded.run(progress=False))


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
    by_batch = dr.Evaluator(wrapped, data.test.head(500), forward=lambda model, batch: model(batch)[1][1])
    assert by_batch.golden.auc == evaluator.golden.auc


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
