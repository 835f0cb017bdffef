import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_study import figures

NAN = float("nan")


def ends(name, value, low, high):
    return {name: value, f"{name}_low": low, f"{name}_high": high}


@pytest.fixture
def tables():
    about = {"model": "dlrm", "dataset": "d"}
    rows = []
    for mitigation in ("range per tensor", "SECDED (72,64)"):
        for ber, lost, recovery in ((0.0, 0.0, (NAN,) * 3), (1e-5, 0.01, (NAN,) * 3), (1e-3, 0.3, (0.9, 0.8, 1.1))):
            row = about | {"mitigation": mitigation, "ber": ber, "auc_golden": 0.8} | ends("recovery", *recovery)
            rows.append(row | ends("lost", lost, lost - 0.02, lost + 0.02) | ends("gained", 0.9 * lost, NAN, NAN))
    faults = {"none": (0.1, 0.08, 0.12), "on-die ECC": (0.1,) * 3, "SECDED (72,64)": (0.11, 0.09, 0.13)}
    faults |= {"chipkill RS(18,16)": (0.0,) * 3, "selective chipkill": (0.0,) * 3}
    losses = [
        about | {"error_mode": "any", "mitigation": name} | ends("auc_drop", *loss) for name, loss in faults.items()
    ]
    losses.append(losses[0] | {"error_mode": "bank", "auc_drop": 0.3})
    ranking = [about | {"mitigation": "range per tensor"} | ends("faults", 0.4, 0.3, 0.5)]
    return pd.DataFrame(rows), pd.DataFrame(losses), pd.DataFrame(ranking)


def test_both_kinds_of_errors_in_one_table(tables):
    data = figures.lead_data(*tables)
    flips = data[data["errors"] == "flips"].set_index(["mitigation", "ber"])
    assert flips["auc"].tolist() == pytest.approx([0.79, 0.5, 0.799, 0.77])
    assert flips.loc[("range per tensor", 1e-3), ["auc_low", "auc_high"]].tolist() == pytest.approx([0.74, 0.8])
    assert flips.loc[("range per tensor", 1e-5), ["auc_low", "auc_high"]].tolist() == pytest.approx([0.77, 0.8])
    chips = data[data["errors"] == "chips"].set_index("mitigation")
    assert chips["auc"].to_dict() == pytest.approx(
        {"none": 0.7, "SECDED (72,64)": 0.69, "range per tensor": 0.74, "chipkill RS(18,16)": 0.8}
    )
    assert chips.loc["range per tensor", ["auc_low", "auc_high"]].tolist() == pytest.approx([0.73, 0.75])
    assert (data["auc_high"] <= 0.8).all() and list(chips.index)[0] == "none"


def test_a_panel_for_flips_and_one_for_chips(tables):
    data = figures.lead_data(*tables)
    axes = plots.new_panels(2, sharey=False)
    figures.lead(data, axes[0])
    figures.lead(data, axes[1], errors="chips")
    curves = {line.get_label(): line.get_ydata() for line in axes[0].lines if not line.get_label().startswith("_")}
    assert list(curves) == ["no protection", "range check of weights"]
    assert np.allclose(curves["no protection"], [0.79, 0.5])
    for errors in ("flips", "chips"):
        figures.lead(data.iloc[:0], errors=errors)


def test_a_blank_recovery_has_words_in_its_place(tables):
    recovery, losses, ranking = tables
    data = figures.lead_data(recovery, losses, ranking.assign(faults=NAN, faults_low=NAN, faults_high=NAN))
    ax = figures.lead(data, errors="chips")
    assert "too few maps to say" in [text.get_text() for text in ax.texts]
