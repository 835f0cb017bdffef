import pandas as pd
import pytest

from drsrobust_study import figures
from drsrobust_study.protection_plan import best_uniform, candidates, effects, shares

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


@pytest.mark.parametrize("rows", [[], [3], [1, 3], [0, 1, 2, 3]])
def test_none_one_and_many(rows):
    data = figures.protection_plan_data(MEASURED.iloc[rows])
    assert data["kind"].tolist() == [kind for kind in MEASURED["kind"].iloc[rows] if kind != "plan by means"]
    ax = figures.protection_plan(data)
    lengths = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}
    assert [lengths[place] for place in sorted(lengths)] == sorted(data["auc_drop"])
    ax.figure.canvas.draw()


def test_the_best_uniform_protection_at_no_more_bits():
    assert best_uniform(MEASURED, 4.7)["mitigation"] == "range per tensor"
    assert best_uniform(MEASURED, 0.01) is None
    dear = MEASURED.iloc[[0]].assign(mitigation="ECC", stored_percent=4.0, auc_drop=1e-7)
    assert best_uniform(pd.concat([MEASURED, dear], ignore_index=True), 4.7)["mitigation"] == "ECC"


class Measured:
    """A plan by what it measured."""

    name, stored_percent = "plan, 5 % bits, 0 % time", 4.7

    def __init__(self, **columns):
        self.table = MEASURED.assign(**columns)

    def compare(self, trials):
        return self.table


def test_the_plan_against_the_best_uniform_protection(monkeypatch):
    recovered = {"mitigation": Measured.name, "recovery": [0.99], "recovery_low": 0.9, "recovery_high": 1.0}
    monkeypatch.setattr("drsrobust_study.protection_plan.recovery", lambda trials: pd.DataFrame(recovered))
    over = {"over_plan": [0.006, 0, 0, 0.1], "over_plan_low": [0.003, 0, 0, 0.1], "over_plan_high": [0.012, 0, 0, 0.1]}
    found = shares(pd.DataFrame(), Measured(**over))
    assert found["mitigation"].tolist() == [Measured.name, "range per tensor"]
    assert found.loc[0, ["value", "low", "high"]].tolist() == [0.99, 0.9, 1.0]
    assert found.loc[1, ["value", "low", "high"]].tolist() == pytest.approx([0.5, 0.25, 1.0])  # of 0.012
    table = effects(dict.fromkeys(range(2), found)).set_index("effect")
    assert table["value"][["removed", "against uniform", "bits removed"]].tolist() == pytest.approx([0.99, 0.5, 4.7])
    none = shares(pd.DataFrame(), Measured(**over, stored_percent=[9.0, 4.7, 3.6, 0.0]))
    assert none.loc[1, "mitigation"] == "" and pd.isna(none.loc[1, "value"])  # none stores so little


def test_candidates_of_memory_and_of_the_computation(trained, data):
    """Those of memory take no multiplications; each can be confined to the tensors of one part."""
    memory, computing = candidates(trained, data.train)
    assert not any(one.cost(trained).multiply_adds for one in memory) and len({one.name for one in memory}) == 6
    assert all(one.cost(trained).multiply_adds for one in computing)
