import matplotlib as mpl
import pandas as pd
import pytest

from drsrobust_study import figures, messages

mpl.use("Agg")
FRONTIER = pd.DataFrame(
    {
        "budget_bits": [0.0, 0.01, 0.05],
        "stored_percent": [0.0, 0.9, 4.7],
        "time_percent": 0.0,
        "loss": [0.012, 1e-5, -1e-6],
        "bound": [0.03, 0.002, 0.0019],
        "least": [0.012, 1e-6, -2e-6],
    }
)
MEASURED = pd.DataFrame(
    {
        "mitigation": ["range per tensor", "plan, 5 % bits, 0 % time", "plan by means, 5 % bits, 0 % time", "none"],
        "kind": ["uniform", "plan", "plan by means", "none"],
        "stored_percent": [0.02, 4.7, 3.6, 0.0],
        "time_percent": 0.0,
        "n": 9,
        "auc_drop": [1e-6, 3e-5, 4e-4, 0.012],
        "auc_drop_low": [-1e-4, -1e-4, 0.0, 0.01],
        "auc_drop_high": [1e-3, 1e-3, 2e-3, 0.014],
    }
)


@pytest.mark.parametrize(("budgets", "points"), [(0, 0), (1, 1), (3, 0), (3, 4)])
def test_none_one_and_many(budgets, points):
    data = figures.protection_plan_data(FRONTIER.head(budgets), MEASURED.head(points))
    ax = figures.protection_plan(data)
    assert len(data) == budgets + points
    assert [line.get_xdata().tolist() for line in ax.lines[:3]] == [
        FRONTIER["stored_percent"].head(budgets).tolist()
    ] * 3
    heights = [bars.lines[0].get_ydata().tolist() for bars in ax.containers]
    assert sorted(sum(heights, [])) == sorted(MEASURED["auc_drop"].head(points))
    ax.figure.canvas.draw()


def test_message():
    text = messages.protection_plan(MEASURED)
    assert text.startswith(
        "A plan for 4.7 % more bits cuts the loss of AUC from 0.012 to 3e-5; the one that looks best"
    )
    assert text.endswith("on its own error maps leaves 4e-4.")
    assert messages.protection_plan(MEASURED[MEASURED["kind"] != "plan by means"]).endswith("to 3e-5.")
    assert messages.protection_plan(MEASURED[MEASURED["kind"] == "none"]).startswith("Expected loss")
