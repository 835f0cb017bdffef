"""One weight, bit by bit: values are those of IEEE 754, scores those of a model with the changed weight."""

import copy

import numpy as np
import pytest
import torch

import drsrobust as dr
from drsrobust_extras.pages.plots import alt_text
from drsrobust_study.figures import one_flip as figure
from drsrobust_study.one_flip import flip, one_flip


@pytest.fixture(scope="module")
def flips(data, trained):
    return one_flip(dr.Evaluator(trained, data.test), "over_mlp", seed=3)


def test_each_row_is_a_model_with_one_changed_weight(flips, data, trained):
    assert flips["flipped"].tolist() == [-1, *range(31, -1, -1)]
    stored = int(flips["word"][0], 2)
    name, place = flips.attrs["weight"].rstrip("]").split("[")
    assert [int(word, 2) ^ stored for word in flips["word"][1:]] == [1 << bit for bit in range(31, -1, -1)]
    users = data.test.users
    own = np.flatnonzero(users == flips.attrs["user"])
    assert flips.attrs["items"] == len(own) and flips.attrs["row"] in own
    for row in flips[flips["flipped"].isin([-1, 31, 30, 25])].to_dict("records"):
        other = copy.deepcopy(trained)
        weight = other.get_parameter(name).detach().reshape(-1)
        assert row["flipped"] >= 0 or weight[int(place)].item() == row["value"]
        weight[int(place)] = row["value"]
        golden = dr.Evaluator(other, data.test).golden if np.isfinite(row["auc"]) else None
        assert row["auc"] == golden.auc
        assert row["probability"] == golden.probabilities[flips.attrs["row"]]
        better = int((golden.scores[own] > golden.scores[flips.attrs["row"]]).sum())
        assert better < row["rank"] <= better + int((golden.scores[own] == golden.scores[flips.attrs["row"]]).sum())


def test_the_item_is_the_first_of_a_list_and_moves_most(flips, data, trained):
    """Of all users' first items; without any that moves it would be that of the longest list."""
    evaluator, users = dr.Evaluator(trained, data.test), data.test.users
    with flip(trained, "over_mlp", 30, seed=3).applied(trained) as error_map:
        moved = abs(evaluator.rerun(error_map).probabilities - evaluator.golden.probabilities)
    ids, counts = np.unique(users, return_counts=True)
    firsts = []
    for user in ids[counts >= min(10, counts.max())]:
        own = np.flatnonzero(users == user)
        firsts.append(own[evaluator.golden.scores[own].argmax()])
    assert flips.attrs["row"] in firsts
    assert np.nan_to_num(moved[flips.attrs["row"]]) == np.nan_to_num(moved[firsts]).max()


def test_one_word_for_every_bit(trained):
    places = {(one.tensor[0], one.word[0]) for one in (flip(trained, "over_mlp", bit, seed=5) for bit in range(32))}
    assert len(places) == 1
    assert (flip(trained, "over_mlp", 3, seed=5).mask == 8).all()


def test_the_figure(flips):
    drawn = figure(flips, marked_bit=30).figure
    assert len(drawn.axes) == 4 and "bit 30" in alt_text.text(drawn)
    figure(flips.assign(value=np.where(flips["flipped"] == 30, np.nan, flips["value"])))  # NaN can be drawn


def test_rows_without_users_are_refused(data):
    rows = dr.data.from_tensors(label=data.test.labels, dense=data.test.dense)
    model = torch.nn.Linear(data.test.dense.shape[1], 1)
    evaluator = dr.Evaluator(model, rows, forward=lambda model, batch: model(batch.dense_features))
    with pytest.raises(ValueError, match="users"):
        one_flip(evaluator, "all")
