"""One weight, bit by bit: values are those of IEEE 754, scores those of a model with the changed weight; losses by bit."""

import copy
import math
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t
from torch import nn

import drsrobust as dr
from drsrobust_extras.pages.plots import alt_text
from drsrobust_study import figures
from drsrobust_study.bit_sensitivity import exponent_flips, flipped, loss_by_bit
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


def test_flips_are_those_of_the_stored_bits():
    for value in (0.625, -0.1, 1.5, 3e-39):
        for bit in range(32):
            word = struct.unpack("<I", struct.pack("<f", value))[0] ^ (1 << bit)
            found = flipped(np.float32([value]), bit)
            assert found.tobytes() == struct.pack("<I", word)
    assert float(flipped(np.float32([0.625]), 30)[0]) == math.ldexp(1.25, 127)  # the study's 2.13e38
    with pytest.raises(ValueError, match="bit must be 0 to 31 for float32, got 32"):
        flipped(np.float32([1]), 32)


def test_what_exponent_flips_make_of_weights():
    """Bit 30: 1 becomes infinite, 1.5 NaN, 0.5 is 2^127, 2 becomes 0. Bit 23: exponents 127, 126 and 128 change by one."""
    layer = nn.Linear(4, 1, bias=False).requires_grad_(False)
    layer.weight.copy_(torch.tensor([[1.0, 1.5, 0.5, -2.0]]))
    found = exponent_flips([layer]).set_index("bit")
    assert found.index.tolist() == list(range(30, 22, -1)) and set(found["words"]) == {4}
    assert found.loc[30, ["infinite", "nan", "huge", "smaller"]].tolist() == [0.25] * 4
    assert found.loc[23, ["infinite", "nan", "huge", "smaller"]].tolist() == [0, 0, 0, 0.5]  # 1 and 1.5 are halved
    assert exponent_flips([layer.half()]).empty


def test_losses_by_bit_count_components_by_their_words():
    model = nn.ModuleDict({"small": nn.Linear(3, 1, bias=False), "large": nn.Linear(9, 1, bias=False)})
    given, rows = {"small": [0.4, 0.2, 0.3], "large": [0.01, 0.03, 0.05]}, []
    for target, losses in given.items():
        for seed, loss in enumerate(losses):
            for drop in (0, 2 * loss):  # two trials each
                rows.append({"train_seed": seed, "target": target, "error_bit": 30.0, "auc_drop": drop})
                rows.append(rows[-1] | {"error_bit": 2.0, "auc_drop": 0.0})
    table = pd.DataFrame(rows).assign(model="ModuleDict", dataset="d")
    found = loss_by_bit(table, [model]).set_index("bit")
    means = (3 * np.array(given["small"]) + 9 * np.array(given["large"])) / 12
    half = t.ppf(0.975, 2) * means.std(ddof=1) / math.sqrt(3)
    ends = found.loc[30, ["auc_drop", "auc_drop_low", "auc_drop_high"]].tolist()
    assert ends == pytest.approx([means.mean(), means.mean() - half, means.mean() + half])
    assert found["loss_share"].to_dict() == {30: 1, 2: 0} and set(found["n"]) == {3}


@pytest.fixture
def drawn_data():
    rows = []
    for model in ("fm", "dlrm"):
        for target in ("embedding", "mlp"):
            for bit, share in ((30, 0.1), (3, 1e-4)):
                row = {"model": model, "dataset": "d", "target": target, "error_bit": float(bit), "n": 9, "pvf": share}
                row |= {"pvf_low": share / 2, "pvf_high": 2 * share, "definition": "decision_changed"}
                rows += [row, row | {"definition": "score_changed", "pvf": 1.0}]
    return figures.bit_sensitivity_data(pd.DataFrame(rows))


def test_shares_by_bit(drawn_data):
    expected = [["dlrm", "embedding", 3], ["dlrm", "embedding", 30]]
    assert drawn_data[["model", "target", "bit"]].to_numpy().tolist()[:2] == expected
    ax = figures.bit_sensitivity(drawn_data[drawn_data["model"] == "fm"], lowest=16)
    assert [bars.lines[0].get_ydata().tolist() for bars in ax.containers] == [[0.1], [0.1]]
    figures.bit_sensitivity(drawn_data.iloc[:0])


def test_bit_map(drawn_data):
    ax = figures.bit_map(drawn_data)
    assert [text.get_text() for text in ax.get_yticklabels()][0] == "dlrm  embedding" and len(ax.get_yticks()) == 4
    drawn = ax.collections[0].get_array().reshape(4, 32)
    assert drawn[3, 3] == pytest.approx(1e-4) and drawn[0, 30] == 0.1
    figures.bit_map(drawn_data.iloc[:0])
