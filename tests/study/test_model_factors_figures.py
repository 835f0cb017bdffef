import itertools
import json

import numpy as np
import pandas as pd
import pytest

from drsrobust_extras.pages import plots
from drsrobust_study import figures
from drsrobust_study.captions import dummy_details
from drsrobust_study.figures.model_factors import percent

WIDTHS, DIMS, DEPTHS, DENSITIES, RATES = (64, 128), (64, 256, 512), (1, 2), (0.001, 0.01), (1e-7, 1e-6)


@pytest.fixture
def table():
    """Two models, one map each, of which huge: those of the first model in wide cells; of both at dimension 512."""
    rows = []
    for width, dim, depth, density, ber, drawn, target, lookup in itertools.product(
        WIDTHS, DIMS, DEPTHS, DENSITIES, RATES, (0, 1), ("all", "mlp"), ("corrected", "as_released")
    ):
        row = {"width": width, "depth": depth, "embedding_dim": dim, "density": density, "ber": ber, "drawn": drawn}
        huge = float(lookup == "corrected" and ber == 1e-6 and (dim == 512 or (width == 128 and drawn == 0)))
        row |= {"target": target, "lookup": lookup, "trial": 0, "words_read": 100_000, "bits_flipped": 2, "huge": huge}
        row |= {"rmse": 1e9 if huge else 10.0 * depth + drawn, "moved": 0.1 * depth * (1 + (density == 0.01))}
        rows.append(row | {"n_inputs": 500 if lookup == "corrected" else 100})
    return pd.DataFrame(rows)


def test_a_cell_of_a_heat_map_is_a_mean_over_depths_densities_and_models(table):
    data = figures.model_factors_data(table)
    assert len(data) == 2 * 2 * 2 * 3
    cells = data[(data["target"] == "all") & (data["ber"] == 1e-6)].set_index(["width", "embedding_dim"])
    assert cells["huge"].to_dict() == {
        (64, 64): 0, (64, 256): 0, (64, 512): 1, (128, 64): 0.5, (128, 256): 0.5, (128, 512): 1,
    }  # fmt: skip
    assert (cells["maps"] == 8).all() and cells["moved"].tolist() == pytest.approx([0.225] * 6)
    assert cells["formula"].tolist() == pytest.approx([1 - (1 - 1e-6) ** 100_000] * 6)
    assert cells.loc[(64, 64), "rmse_of_others"] == pytest.approx(15.5)  # of 10, 11, 20, 21, twice each
    assert cells.loc[(128, 64), "rmse_of_others"] == 16.0 and np.isnan(cells.loc[(64, 512), "rmse_of_others"])


def test_a_heat_map_for_each_depth_and_density(table):
    data = figures.model_factors_data(table[table["ber"] == 1e-6], over=())
    assert len(data) == 2 * 2 * 3 * 4
    means = data.groupby(["depth", "density"])["moved"].mean().to_dict()
    assert means == pytest.approx({(1, 0.001): 0.1, (1, 0.01): 0.2, (2, 0.001): 0.2, (2, 0.01): 0.4})


def test_what_is_drawn(table, tmp_path):
    data = figures.model_factors_data(table)
    axes = plots.new_panels(2, rows=2, scale=0.5)
    for ax, (target, ber) in zip(axes, itertools.product(("all", "mlp"), RATES), strict=True):
        figures.model_factors(data[(data["target"] == target) & (data["ber"] == ber)], ax, title=f"rate {ber:g}")
    shares = axes[1].collections[0].get_array()
    assert np.asarray(shares).tolist() == [[0, 0, 1], [0.5, 0.5, 1]]
    assert [text.get_text() for text in axes[1].texts] == ["0", "0", "100", "50", "50", "100"]
    assert [tick.get_text() for tick in axes[2].get_xticklabels()] == ["64", "256", "512"]
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == ["width 64", "width 128"]
    assert axes[1].get_title("left") == "rate 1e-06" and axes[3].get_title("left") == ""
    assert (axes[0].get_ylabel(), axes[2].get_ylabel()) == ("errors in all parameters", "errors in the MLPs")
    plots.save(axes[0], "map", data, "Maps.", folder=tmp_path)
    words = json.loads((tmp_path / "data" / "map.json").read_text())
    assert "from 0 at 64 (width 64) to 1 at 512 (width 64)" in words["alt"]
    empty = figures.model_factors(data[:0])
    assert not empty.collections and not empty.texts


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0"), (1e-4, "<.1"), (5e-4, ".1"), (0.003, ".3"), (0.0094, ".9"), (0.0095, "1"), (0.016, "2"), (1, "100")],
)
def test_percent(share, text):
    assert percent(share) == text


def test_details(table):
    text = dummy_details(table)
    assert text.startswith(
        "Data: synthetic-dummy (generated inputs, not real clicks), densities 0.001, 0.01; 500 inputs"
    )
    assert "(100 with the released look-up)" in text and "2 drawn per cell; 2 error maps per cell" in text
    assert "released" not in dummy_details(table.assign(n_inputs=500))
