"""Sequences as data of next items, the models HSTU and SASRec on them, their training, and both protocols of ranking."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust.training import Settings
from drsrobust_extras.data import next_item_training
from drsrobust_extras.data.next_items import untied
from drsrobust_extras.data.sampled_negatives import SampledNegatives
from drsrobust_extras.data.sequences import next_items
from tests.refusals import refuses

QUICK = Settings(learning_rate=1e-2, weight_decay=0.0, batch_size=512, epochs=6, patience=6)


def sequences(split):
    """User -> (history, next item)."""
    history, ends = split.sparse["history"], split.sparse["history"].ends()
    starts = ends - history.lengths
    rows = zip(split.users.tolist(), starts, ends, split.labels.values.tolist(), strict=True)
    return {user: (history.values[start:end].tolist(), item) for user, start, end, item in rows}


def test_the_last_items_are_left_out():
    user = np.array([7, 3, 7, 7, 9, 3, 7, 7, 3])
    item = np.array([50, 20, 10, 50, 40, 10, 30, 20, 60])  # user 7 has item 50 twice, user 9 one item
    data = next_items("shop/sequences", user, item, 0)
    assert data.schema.features[0].cardinality == 7  # items 10, 20, ..., 60 are 1 to 6
    assert sequences(data.test) == {7: ([5, 1, 3], 2), 3: ([2, 1], 6)}
    assert sequences(data.valid) == {7: ([5, 1], 3), 3: ([2], 1)}
    assert sequences(data.train) == {7: ([5], 1)}
    assert dict(zip(data.test.users.tolist(), data.test.rows.tolist(), strict=True)) == {7: 7, 3: 8}
    assert next_items("shop/sequences", user, item, 0).fingerprint == data.fingerprint
    refuses(lambda: next_items("shop/sequences", user[:2], item[:2], 0), ValueError, "shop/sequences", "three items")
    few = next_items("shop/sequences", np.array([1, 1, 1]), np.array([5, 6, 7]), 0)
    model = dr.models.build_model("hstu", few.schema, dim=2)
    refuses(lambda: next_item_training.fit(model, few, QUICK), ValueError, "shop/sequences", "0 training rows")


LOG = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,play_time_ms,"
LOG += "duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab\n"
VIEWS = [(0, 30, 900, 1), (0, 10, 100, 1), (0, 99, 400, 0), (0, 20, 500, 1)]
VIEWS = "".join(f"{u},{v},20220409,900,{t},{c}{',0' * 12},1\n" for u, v, t, c in VIEWS)
FILES = {
    "amazon-games": {"amazon-games/Video.txt": "1 10\n1 20\n1 30\n2 10\n"},
    "kuairand-1k": {
        "KuaiRand-1K/data/log_standard_4_08_to_4_21_1k.csv": LOG + VIEWS,
        "KuaiRand-1K/data/log_standard_4_22_to_5_08_1k.csv": f"{LOG}5,10,20220423,900,100,1{',0' * 12},1\n",
    },
    "movielens-1m/sequences": {
        "ml-1m/ratings.dat": "1::30::5::978302000\n1::99::3::0\n1::10::1::978301000\n1::20::4::978301000\n2::10::4::978300000\n"
    },
    "movielens-32m/sequences": {
        "ml-32m/ratings.csv": "userId,movieId,rating,timestamp\n1,30,0.5,978302000\n1,10,4.5,978300000\n1,20,4.0,978301000\n"
    },
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_in_the_order_of_time(tmp_path, name):
    for file, text in FILES[name].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    ((history, item),) = sequences(dr.load_dataset(name, tmp_path).test).values()
    assert (history, item) == ([1, 2], 3)
    (tmp_path / file).write_text(text.splitlines(keepends=True)[0] + "1;2\n")
    refuses(lambda: dr.load_dataset(name, tmp_path), ValueError, file, "line 2")


def test_real_sequences(real_data):
    for name, rows, items in (("amazon-games", 30_901, 23_715), ("movielens-1m/sequences", 5_755, 3_527)):
        data = dr.load_dataset(name, real_data)
        assert (len(data.test), data.schema.features[0].cardinality - 1) == (rows, items)


@pytest.fixture(scope="module")
def generated():
    return dr.load_dataset("synthetic-kuairand", rows=20_000)


def norm(x, layer):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.eps)
    return x * array(layer.weight) + array(layer.bias)


def array(tensor):
    return tensor.detach().double().numpy()


def linear(x, layer):
    return x @ array(layer.weight).T + (0 if layer.bias is None else array(layer.bias))


def silu(x):
    return x / (1 + np.exp(-x))


def expected(name, model, items):
    """The scores after a history, by the papers' equations, position by position in float64."""
    table = array(model.items.weight)
    x, n = table[items], len(items)
    if name == "sasrec":
        x = x * np.sqrt(table.shape[1]) + array(model.positions.weight)[-n:]
    for block in model.blocks:
        normed, attention = norm(x, block.attention.norm), block.attention
        attended = np.zeros_like(x)
        if name == "sasrec":
            q, k, v = (linear(normed, layer) for layer in (attention.query, attention.key, attention.value))
            for i in range(n):
                weights = np.exp(k[: i + 1] @ q[i] / np.sqrt(x.shape[1]))
                attended[i] = weights / weights.sum() @ v[: i + 1]
            x = x + attended
            hidden = np.maximum(linear(norm(x, block.feed_forward.norm), block.feed_forward.hidden), 0)
            x = x + linear(hidden, block.feed_forward.projection)
        else:
            u, v, q, k = np.split(silu(linear(normed, attention.projection)), 4, axis=1)
            bias = array(attention.bias)
            for i in range(n):
                for j in range(i + 1):
                    attended[i] += silu(q[i] @ k[j] + bias[i - j]) / model.length * v[j]
            x = x + linear(norm(attended, block.feed_forward.norm) * u, block.feed_forward.projection)
    scores = table @ norm(x[-1], model.last_norm)
    scores[[0, *items]] = -np.inf
    return scores


@pytest.mark.parametrize("name", ["hstu", "sasrec"])
def test_scores_are_those_of_the_equations(name, generated):
    torch.manual_seed(0)
    model = dr.models.build_model(name, generated.schema, dim=8, length=12, std=0.5).eval()
    for parameter in model.parameters():  # norms and biases begin at 1 and 0
        torch.nn.init.normal_(parameter, std=0.5)
    short = generated.test.take(generated.test.sparse["history"].lengths <= 12)
    batch = short.batch(slice(4))
    with torch.no_grad():
        scores = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features).numpy()
        items, present = torch.arange(10, 18)[None], torch.arange(8)[None] >= 3
        later = torch.where(items == 17, 77, items)
        states, others = (model.states(model.items(ids), present) for ids in (items, later))
        assert torch.equal(states[:, :-1], others[:, :-1])  # nothing sees what is later
        assert not torch.equal(states[:, -1], others[:, -1])
    for row, (history, _) in enumerate(list(sequences(short).values())[:4]):
        assert np.allclose(scores[row], expected(name, model, history), rtol=1e-3, atol=1e-4)
    first = int(batch.sparse_features["history"].values()[0])
    others = [row for row, (history, _) in enumerate(list(sequences(short).values())[:4]) if first not in history]
    with torch.no_grad():  # an error in a row that some histories look up leaves the others as they are
        model.items.weight[first] = np.inf
        now = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features).numpy()
    assert others and np.array_equal(np.delete(now, first, 1)[others], np.delete(scores, first, 1)[others])
    clicks = dr.load_dataset("synthetic-movielens", rows=200).schema
    refuses(lambda: dr.models.build_model(name, clicks), ValueError, "user")
    attention = model.blocks[0].attention
    with torch.no_grad():  # padding does not take part, whatever an error made
        if name == "hstu":
            attention.bias[5:] = np.inf  # at distances that five items do not have
        else:
            attention.norm.weight.zero_(), attention.norm.bias.fill_(1.0)
            attention.query.weight.copy_(torch.eye(8) * 1e10), attention.key.weight.copy_(torch.eye(8) * -1e10)
        vectors = torch.randn(1, 8, 8)
        padded, alone = model.states(vectors, present), model.states(vectors[:, 3:], present[:, 3:])
    assert torch.allclose(padded[:, -1], alone[:, -1], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def trained(generated):
    return dr.load_model("hstu", generated, settings=QUICK, progress=False)


def test_training_learns_and_one_seed_gives_one_model(generated, trained):
    curve, manifest = trained.manifest["curve"], trained.manifest
    assert curve[-1]["valid_ne"] < curve[0]["valid_ne"] < 1 and curve[-1]["valid_auc"] > curve[0]["valid_auc"] + 0.05
    assert 0.1 < manifest["test_hit_rate@10"] <= generated.facts["best_hit_rate@10"] < 0.7
    few = replace(generated, train=generated.train.head(200))
    torch.manual_seed(1)
    states = []
    for _ in range(2):
        model = dr.models.build_model("hstu", generated.schema, dim=8)
        torch.manual_seed(2)
        model.load_state_dict({name: torch.randn_like(tensor) * 0.1 for name, tensor in model.state_dict().items()})
        next_item_training.fit(model, few, replace(QUICK, epochs=1), progress=False)
        states.append(dr.models.state_digest(model))
    assert states[0] == states[1]
    with torch.no_grad():  # the last step of an epoch can leave NaN, which no loss of a batch shows
        model.last_norm.bias.fill_(np.nan)
    assert next_item_training.quality(model, few.valid.head(9)).hit_rate == 0.0
    for name, value in (("precision", "bfloat16"), ("table_optimizer", "sgd")):
        settings = replace(QUICK, **{name: value})
        refuses(lambda settings=settings: next_item_training.fit(model, few, settings), ValueError, name, value)


def test_rankings_by_both_protocols(generated, trained):
    rows = generated.test.head(200)
    golden = dr.Evaluator(trained, rows, task="ranking", k=10).golden
    found = next_item_training.quality(trained, rows)
    assert golden.metric("hit_rate@10") == found.hit_rate and golden.metric("ndcg@10") == pytest.approx(found.ndcg)
    for measure in ("hit_rate", "ndcg"):
        metric, values = SampledNegatives(rows, measure, n=20, seed=3), []
        for row, (history, item) in enumerate(sequences(rows).values()):
            others = metric.drawn[row]
            assert not {*others.tolist()} & {0, item, *history}
            place = sum(golden.scores[row, others] >= golden.scores[row, item])
            values.append((place < 10) * (1 if measure == "hit_rate" else 1 / np.log2(place + 2)))
        assert metric(rows.labels, golden.scores, golden.scores, None) == pytest.approx(np.mean(values))
    assert SampledNegatives(rows)(rows.labels, np.full_like(golden.scores, np.nan)) == 0.0
    other = generated.valid.head(200)
    refuses(lambda: SampledNegatives(other)(rows.labels, golden.scores), ValueError, "SampledNegatives", "200")
    refuses(lambda: SampledNegatives(rows, "recall"), ValueError, "measure", "recall")


@pytest.mark.filterwarnings("ignore:errors in items.weight count as affecting every row")  # it is the output, too
def test_errors_in_parts(generated, trained):
    rows, ranges = generated.valid.head(100), dr.WeightRange.fit(trained)
    evaluator = dr.Evaluator(trained, rows, task="ranking", k=10)
    for model in (trained, untied(trained)):
        one = dr.Evaluator(model, rows, task="ranking", k=10)
        assert np.array_equal(one.golden.scores, evaluator.golden.scores)
        for target in ("embedding", "attention"):
            with dr.inject(model, dr.BitFlip(1e-4), target=target, seed=1) as error_map:
                assert np.array_equal(one.rerun(error_map).scores, one.run().scores, equal_nan=True)
    metrics = {"hit_rate@10": None, "ndcg@10": None, "of_100": SampledNegatives(rows)}
    options = {"targets": ["all", "attention"], "mitigations": [None, ranges], "metrics": metrics, "trials": 6}
    table = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-3)], sampling="plain", **options).run(workers=1)
    lost = dr.summarise(table).set_index(["target", "mitigation"])["hit_rate@10_drop"]
    assert lost["all", "none"] > 0.1 > lost["all", ranges.name]
    back = dr.recovery(table, metric="ndcg@10").set_index("target")["recovery"]
    assert back["attention"] > 0.7 and set(table["of_100"].between(0, 1)) == {True}
    plan = dr.plan(
        trained, rows, errors=dr.BitFlip(1e-6), candidates=[ranges], budget_bits=0.05, budget_time=0, trials=8, task="ranking",
        k=10, additive="warn",
    )  # fmt: skip
    assert "items.weight" in set(plan.table()["tensor"])
    parts = dr.components(untied(trained)).set_index("component")["bits"]
    assert parts["output"] == parts["embedding"]
