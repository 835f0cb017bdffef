import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from tests.refusals import refuses


def table(shares, *, raised=None, **columns):
    """As of `dr.trace`: modules a.0, a, b, (model) or the names that are given, with a flipped bit in the first."""
    n = len(shares)
    names = ["a.0", "a", "b", "(model)"] if n == 4 else [f"m{i}" for i in range(n - 1)] + ["(model)"]
    columns = {"module": names, "type": "Linear", "call": 0} | columns
    frame = pd.DataFrame(columns | {"share_changed": shares, "outputs": 10})
    defaults = {
        "depth": [0 if name == "(model)" else name.count(".") + 1 for name in frame["module"]],
        "largest_change": [2.0 * (share > 0) for share in shares],
        "nan": 0,
        "inf": 0,
        "rows_changed": shares,
        "own_errors": [1] + [0] * (n - 1),
    }
    frame = frame.assign(**{name: value for name, value in defaults.items() if name not in columns})
    frame["nan"] = frame["nan"].astype("Int64")
    frame.attrs["raised"] = raised
    return frame


G, TWICE, THREE = {"module": ["g", "h"]}, {"call": [0, 1, 0]}, {"own_errors": [2, 0, 1, 0]}
MESSAGES = [
    (table([0.2, 0.2, 0.5, 0.25]), "error enters at a.0 (Linear)", "25 % of the scores."),
    (table([0, 0.2, 1, 1]), "error enters at a ", "100 % of the scores."),
    (table([0, 0, 1, 0.9999]), "error enters at b ", "over 99 % of the scores."),
    (table([0.2, 0.2, 0, 0]), "error enters at a.0 (Linear)", "is masked after a: no score changes."),
    (table([0.2, 0.2, 1, 1], **THREE), "errors enter first at a.0 (Linear)", "100 % of the scores."),
    (table([0, 0.2, 0, 0], **THREE), "errors enter first at a ", "are masked after a: no score changes."),
    (table([0, 0, 0, 0]), "No output", "changes."),
    (table([0.2, 0.2, 1, 1], nan=[0, 0, 3, 1]), "error enters at a.0 (Linear)", "the first NaN is at b."),
    (table([0.2, 0.2, np.nan, np.nan]), "error enters at a.0 (Linear)", "changes the shape of the scores."),
    (table([0, 0.5, 0.5], module=["g", "g", "h"], **TWICE), "error enters at g (call 1)", "50 % of the scores."),
    (table([0.5, 0, 0.5], module=["g", "g", "(model)"], **TWICE), "error enters at g (call 0)", "50 % of the scores."),
    (table([0.5, 0.5, np.nan], module=["g", "(model)", "h"]), "error enters at g ", "50 % of the scores."),
    (table([0, 0.5], raised="ValueError: no", **G), "error enters at h ", "raise ValueError: no."),
    (table([0, 0], raised="ValueError: no", **G), "The error makes", "raise ValueError: no."),
]


@pytest.mark.parametrize(("frame", "where", "end"), MESSAGES)
def test_message(frame, where, end):
    message = plots.propagation_message(frame)
    assert where in message and message.endswith(end)
    assert plots.propagation_message(plots.propagation_data(frame)) == message
    assert plots.propagation(frame).figure.get_suptitle().split() == message.split()


def test_figure_shows_the_numbers_in_order():
    frame = table([0.25, 0.5, np.nan, 1], largest_change=[3e36, np.inf, np.nan, np.nan], nan=[0, 0, None, 4])
    ax = plots.propagation(frame)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["a.0 (Linear)  [1 bit flipped]", "a", "b", "(model)"]
    colours = [label.get_color() for label in ax.get_yticklabels()]
    assert colours[0] == plots.style.COLOURS[1] and colours[0] not in colours[1:]
    (bars,) = ax.containers
    assert [bar.get_width() for bar in bars] == [0.25, 0.5, 0, 1]
    low, high = ax.get_ylim()
    assert low > high  # the first call at the top
    texts = {round(text.xy[1], 2): text.get_text() for text in ax.texts}
    assert texts == {-1.1: "largest change", 0: "3e+36", 1: "inf", 2: "other shape or calls", 3: "NaN  first NaN"}
    texts = [text.get_text() for text in plots.propagation(table([1.0, 1, 1, 1], nan=[0, 2, 2, 2])).texts]
    assert texts == ["2", "2  first NaN", "2", "2", "largest change"]


def test_darker_is_larger_on_a_logarithmic_scale():
    frame = table([1.0, 1, 1, 1], largest_change=[1e-6, 1.0, 1e6, np.inf])
    bars = plots.propagation(frame).containers[0]
    light, middle, dark, infinite = (np.array(bar.get_facecolor()[:3]) for bar in bars)
    assert light.sum() > middle.sum() > dark.sum()
    assert light.sum() - middle.sum() > 0.2 * (light.sum() - dark.sum())  # a linear scale would show two alike
    assert infinite[0] > infinite[2]  # red, not blue
    signs = plots.propagation(table([1.0, 1, 1, 1], largest_change=[0.0, 0.0, 0.0, 1.0])).containers[0]  # 0 became -0
    assert signs[0].get_facecolor()[0] < signs[0].get_facecolor()[2]


def test_small_shares_are_seen():
    given = plots.new_panels()[0]
    ax = plots.propagation(table([1e-4, 1e-4, 2e-4, 1e-4]), ax=given)
    assert ax is given and ax.get_title(loc="left") and not ax.figure.get_suptitle()
    assert ax.get_xlim()[1] == pytest.approx(2e-4, rel=0.1)
    assert plots.propagation(table([0, 0, 0, 0])).get_xlim()[1] == 1


def test_deep_models_are_cut_at_the_depth_that_fits():
    names = [f"block{i}.{part}" for i in range(30) for part in ("in.0", "in", "out")] + [f"block{i}" for i in range(30)]
    frame = table([0.5] * 121, module=[*names, "(model)"], own_errors=[3, 2] + [0] * 119)
    data = plots.propagation_data(frame)
    assert data["module"].tolist() == [f"block{i}" for i in range(30)] + ["(model)"]
    assert data.set_index("module")["own_errors"].to_dict()["block0"] == 5 and data["own_errors"].sum() == 5
    pd.testing.assert_frame_equal(plots.propagation_data(data), data)
    alone = table([0.5] * 61, own_errors=[0] * 61)
    assert len(plots.propagation_data(alone)) == 61  # all at depth 1
    exact = table([0.5] * 60, module=[f"m{i}.x" for i in range(59)] + ["(model)"])
    assert len(plots.propagation_data(exact)) == 60
    loose = table([0.5] * 62, module=[f"list.{i}" for i in range(60)] + ["head", "(model)"])
    assert plots.propagation_data(loose).set_index("module")["own_errors"].to_dict() == {"head": 0, "(model)": 1}


def test_errors_of_a_module_called_twice_count_once():
    names = [f"m{i}.x" for i in range(70)]
    frame = table([0.5] * 142, module=[*names, *names, "m0", "(model)"], call=[0] * 70 + [1] * 70 + [0, 0])
    frame["own_errors"] = [7 * (name == "m0.x") for name in frame["module"]]
    assert plots.propagation_data(frame)["own_errors"].tolist() == [7, 0]


def test_long_names_lose_their_middle():
    name = "sparse_arch.embedding_bag_collection.embedding_bags.occupation"
    ax = plots.propagation(table([0, 1.0], module=[name, "(model)"], own_errors=[0, 0]))
    assert ax.get_yticklabels()[0].get_text() == "sparse_arch…embedding_bags.occupation"


def test_other_tables_are_refused():
    other = table([0, 0, 0, 0]).drop(columns="share_changed")
    said = "no column 'share_changed'; give the table of dr.trace(model, batch"
    refuses(lambda: plots.propagation(other), ValueError, said)
