"""Labels as people have them: text, booleans, categories, and those of a task that were not observed."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.data import from_batches, from_frame, from_tensors
from drsrobust.metrics import auc, log_loss, normalised_entropy

CLICKED = [1, 0, 0, 1]


def frame(values, **columns):
    return pd.DataFrame({"y": values, "d": [0.5, 1.0, 2.0, 3.0], **columns})


@pytest.mark.parametrize(
    "values",
    [
        ["yes", "no", "no", "yes"],
        ["True", "False", "False", "True"],
        [" Y", "n", "N", "y"],
        ["1", "0", "0", "1"],
        [True, False, False, True],
        np.array([True, False, False, True], object),
        pd.Categorical([1, 0, 0, 1]),
        pd.Categorical(["yes", "no", "no", "yes"], ["yes", "no"]),
        pd.Categorical([True, False, False, True]),
        pd.array([1, 0, 0, 1], "Int64"),
        pd.array([True, False, False, True], "boolean"),
    ],
)
def test_labels_of_two_values(values):
    """Before: "dense columns are numbers (text belongs in sparse=)"."""
    labels = from_frame(frame(values), label="y", dense=["d"]).test.labels
    assert labels.dtype == np.float32 and labels.tolist() == CLICKED
    array = np.asarray(values)
    assert from_tensors(label=array).test.labels.tolist() == CLICKED
    assert from_batches([(0, array[:2]), (0, array[2:])]).labels.tolist() == CLICKED
    table = pa.table({"y": pa.array(frame(values)["y"], from_pandas=True), "d": [0.5, 1.0, 2.0, 3.0]})
    assert from_frame(table, label="y", dense=["d"]).test.labels.tolist() == CLICKED


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["buy", "skip", "skip", "buy"], "label 'y' holds 'buy' in row 0; labels are 0 or 1.*say which .* column == 'buy'"),
        (["yes", "no", "perhaps", "yes"], "label 'y' holds 'perhaps' in row 2"),
        (pd.Categorical(["low", "high", "low", "low"]), "label 'y' holds 'low' in row 0|label 'y' holds 'high' in row 1"),
        ([1, 0, 2, 0], "label 'y' holds 2 in row 2; labels must be 0 or 1$"),
        ([1.0, 0.0, np.nan, 0.0], "label 'y': 1 values are missing, the first in row 2"),
        (["yes", "no", None, "no"], "label 'y': 1 values are missing, the first in row 2"),
        (pd.to_datetime(["2026-01-01"] * 4), "label 'y' is timestamp.*; labels are 0 or 1, booleans, or text"),
    ],
)  # fmt: skip
def test_labels_that_are_refused(values, said):
    with pytest.raises((TypeError, ValueError), match=said):
        from_frame(frame(values), label="y", dense=["d"])


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([1.0, np.nan, 0.0, np.nan], {}),
        ([1, -1, 0, -1], {"unobserved": -1}),
        ([1.0, -1.0, 0.0, np.nan], {"unobserved": -1}),
        (["yes", None, "no", None], {}),
        (["yes", "?", "no", "?"], {"unobserved": "?"}),
        (pd.array([1, None, 0, None], "Int64"), {}),
        (pd.Categorical([1, None, 0, None]), {}),
    ],
)
def test_labels_of_a_task_that_were_not_observed(values, options):
    expected = [1.0, np.nan, 0.0, np.nan]
    options = options if options.get("unobserved") != "?" else options  # of both tasks alike
    clicked = CLICKED if "unobserved" not in options or options["unobserved"] == -1 else ["yes", "no", "no", "yes"]
    data = from_frame(frame(clicked, buy=values), label=["y", "buy"], dense=["d"], **options)
    np.testing.assert_array_equal(data.test.labels, np.stack([CLICKED, expected], axis=1))
    assert data.test.prior == 0.5 and "click rate 0.500" in repr(data.test)


def test_a_value_that_is_not_observed_is_named():
    with pytest.raises(ValueError, match="label 'buy' holds -1 in row 1; .*; unobserved=-1 leaves such rows out"):
        from_frame(frame(CLICKED, buy=[1, -1, 0, -1]), label=["y", "buy"], dense=["d"])
    with pytest.raises(ValueError, match="unobserved is -1, and there is one label"):
        from_frame(frame([1, -1, 0, 1]), label="y", dense=["d"], unobserved=-1)
    with pytest.raises(TypeError, match="unobserved is '.', and label 'y' is int64"):
        from_frame(frame(CLICKED, buy=CLICKED), label=["y", "buy"], dense=["d"], unobserved="?")
    with pytest.raises(ValueError, match="task 'buy' has 0 clicks in 2 rows with an observed label"):
        rows = from_frame(frame(CLICKED, buy=[0, np.nan, 0, np.nan]), label=["y", "buy"], dense=["d"])
        dr.Evaluator(nn.Linear(1, 2), rows, forward=lambda model, batch: model(batch.dense_features), task="multi")


@pytest.mark.parametrize("kind", ["frame", "batches"])
def test_metrics_of_a_task_are_over_its_observed_rows(kind):
    random, n = np.random.default_rng(3), 256
    dense = random.normal(size=(n, 4)).astype(np.float32)
    labels = (dense[:, :2] + random.normal(size=(n, 2)) > 0).astype(np.float32)
    labels[labels[:, 0] == 0, 1] = np.nan  # a purchase is seen after a click alone
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2, 4))
    if kind == "frame":
        rows = from_tensors(label=labels, dense=dense, tasks=("click", "buy"))
        forward = lambda model, batch: model(batch.dense_features)  # noqa: E731
    else:
        batches = [
            (torch.tensor(dense[i : i + 64]), torch.tensor(labels[i : i + 64]).nan_to_num(-1))
            for i in (0, 64, 128, 192)
        ]
        rows = from_batches(iter(batches), tasks=("click", "buy"), unobserved=-1)
        forward = lambda model, batch: model(batch[0])  # noqa: E731
    evaluator = dr.Evaluator(model, rows, forward=forward, task="multi", output="logit", scores="logit")
    observed = ~np.isnan(labels[:, 1])
    names = ["auc/click", "auc/buy", "logloss/buy", "ne/buy", "score_changed/buy"]

    def expected(scores):
        click, buy = labels[observed, 1], scores[observed, 1]
        rate = float(np.nanmean(labels, axis=0)[1])
        losses = [log_loss(click, buy, rate), normalised_entropy(click, buy, rate)]
        return [auc(labels[:, 0], scores[:, 0]), auc(click, buy), *losses]

    assert list(evaluator.golden.metrics(names).values()) == [*expected(evaluator.golden.scores), 0.0]
    for seed in range(6):
        with dr.inject(model, dr.FixedCount(2, bits=[30]), seed=seed) as error_map:
            run, rerun = evaluator.run(), evaluator.rerun(error_map)
            assert run.metrics(names) == rerun.metrics(names)
            assert list(run.metrics(names).values())[:4] == expected(run.scores)
    evaluator.verify()
    assert evaluator.golden.auc == pytest.approx(np.mean(expected(evaluator.golden.scores)[:2]))


def test_changed_rows_of_a_task_are_found_among_its_own():
    """Rows are known by their numbers in the data, and a task's metrics by those of its observed rows."""
    random, n = np.random.default_rng(4), 400
    labels = random.integers(0, 2, (n, 2)).astype(np.float32)
    labels[random.random(n) < 0.5, 1] = np.nan
    golden = random.normal(size=(n, 2))
    metrics = dr.metrics.tasks.MultiMetrics(labels, golden, [0.5, 0.5], ["a", "b"], random.integers(0, 9, n))
    for _ in range(20):
        scores, rows = golden.copy(), random.choice(n, 7, replace=False)
        scores[rows] = random.normal(size=(7, 2))
        names = ["auc/b", "logloss/b", "ndcg/b", "overlap/b", "score_changed/b"]
        assert metrics.measures(names, scores, rows) == metrics.measures(names, scores)
