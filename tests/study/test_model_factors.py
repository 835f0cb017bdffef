"""The dummy model over its design space: outputs against plain forward passes, and values of statements computed by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust.injection import BitFlip, inject
from drsrobust.models import build_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.pages import plots
from drsrobust_study import figures, model_factors
from drsrobust_study.captions import dummy_details
from drsrobust_study.figures.model_factors import percent
from drsrobust_study.model_factors import DummyOutputs, averaged, deviation, dummy_trials, factor_grid, statement_values
from reproduce.statements import load_rules

CELL = {"width": 8, "depth": 2, "embedding_dim": 16, "density": 0.001}
OPTIONS = {"bers": [1e-6, 1e-5], "inputs": 300, "released_inputs": 100, "models": 2, "trials": 2}


def drawn(lookup="corrected", *, density=0.001, dim=16, inputs=300):
    """A model with the released look-up or not, of the same parameters, and its inputs."""
    data = load_dataset(f"synthetic-dummy/{density:g}", rows=2 * inputs, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        sizes = {"width": 8, "depth": 2, "embedding_dim": dim, "as_released": lookup == "as_released"}
        return build_model("dummy", data.schema, **sizes).eval(), data.train.head(inputs).batch()


def forward(model, batch):
    with torch.no_grad():
        return model(batch.dense_features, batch.sparse_features).numpy()


@pytest.mark.parametrize("lookup", ["corrected", "as_released"])
@pytest.mark.parametrize("target", ["all", "mlp", "embedding", "dense_mlp", "deep_mlp"])
def test_outputs_are_those_of_a_plain_forward_pass(lookup, target):
    (model, batch), (plain, _) = drawn(), drawn(lookup)
    outputs, moved = DummyOutputs(model, batch, lookup), 0
    np.testing.assert_allclose(outputs.golden, forward(plain, batch), rtol=1e-5)
    for seed in range(6):
        ber = 1e-3 if target != "embedding" else (1e-5, 0.02)[lookup == "as_released"]
        with inject(model, BitFlip(ber), target, seed=seed) as error_map:
            found = outputs.under(error_map)
        with inject(plain, BitFlip(ber), target, seed=seed):
            expected = forward(plain, batch)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
        moved += not np.array_equal(found, outputs.golden)
    assert moved
    with inject(model, BitFlip(0.0), target, seed=0) as error_map:
        assert np.array_equal(outputs.under(error_map), outputs.golden)


def test_the_words_that_are_read():
    model, batch = drawn()
    mlp = 128 * 8 + 8 + 8 * 8 + 8 + 8 * 32 + 32 + 48 * 8 + 8 + 8 * 8 + 8 + 8 + 1
    rows = len(set(batch.sparse_features.values().tolist()))
    assert DummyOutputs(model, batch).words_read == {"all": mlp + 16 * rows, "mlp": mlp, "embedding": 16 * rows}
    released = DummyOutputs(model, batch, "as_released")
    assert released.words_read == {"all": mlp + 32, "mlp": mlp, "embedding": 32}


def recorded(cells, **options):
    """A table of trials, and what was injected for each of its error maps."""
    calls, real = [], model_factors.inject

    def inject(model, error_model, target, *, seed):
        calls.append((model, error_model, target, seed))
        return real(model, error_model, target, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_factors, "inject", inject)
        return dummy_trials(cells, **options, progress=False), calls


@pytest.fixture(scope="module")
def injected():
    return recorded([CELL, CELL | {"width": 16}], **OPTIONS)


def test_trials_are_measured_on_the_maps_that_were_injected(injected):
    table, calls = injected
    correct = table[table["lookup"] == "corrected"]
    assert len(table) == 2 * len(calls) == 2 * (2 * 2 * 3 * 2 * 2)
    for row, (model, error_model, target, seed) in zip(correct.itertuples(), calls, strict=True):
        assert (error_model.ber, target) == (row.ber, row.target)
        data = load_dataset("synthetic-dummy/0.001", rows=385, seed=model_factors._derived(0, row.drawn))
        batch = data.train.head(300).batch()
        golden = forward(model, batch)
        with inject(model, error_model, target, seed=seed) as error_map:
            found = deviation(forward(model, batch), golden)
        assert row.bits_flipped == error_map.bits and row.moved == pytest.approx(found["moved"], abs=0.01)
        assert row.huge == found["huge"]


def test_maps_are_nested_over_rates_and_independent_between_cells(injected):
    _, calls = injected
    by_rate = [calls[start::2] for start in (0, 1)]
    for (model, low, target, seed), (_, high, _, same) in zip(*by_rate, strict=True):
        assert seed == same
        with inject(model, low, target, seed=seed) as few, inject(model, high, target, seed=seed) as many:
            assert set(zip(few.tensor, few.word, strict=True)) <= set(zip(many.tensor, many.word, strict=True))
    assert len({seed for *_, seed in calls}) == 2 * 2 * 3 * 2
    assert len({id(model) for model, *_ in calls}) == 4


def test_a_table_is_the_same_each_time_and_both_look_ups_share_maps(injected):
    table, _ = injected
    pd.testing.assert_frame_equal(dummy_trials([CELL, CELL | {"width": 16}], **OPTIONS, progress=False), table)
    correct, released = (table[table["lookup"] == name] for name in model_factors.LOOKUPS)
    assert correct["bits_flipped"].tolist() == released["bits_flipped"].tolist()
    assert set(correct["n_inputs"]) == {300} and set(released["n_inputs"]) == {100}
    other = dummy_trials([CELL, CELL | {"width": 16}], **OPTIONS, seed=1, progress=False)
    assert other["bits_flipped"].tolist() != table["bits_flipped"].tolist()


def test_a_huge_rmse_counts_flips_of_bit_30_in_words_that_are_read():
    cell = {"width": 16, "depth": 1, "embedding_dim": 64, "density": 0.001}
    options = {"bers": [1e-6], "targets": ["embedding"], "inputs": 800, "models": 2, "trials": 100}
    table, calls = recorded([cell], **options)
    table, expected = table[table["lookup"] == "corrected"], []
    for drawn_model, (model, error_model, target, seed) in zip(table["drawn"], calls, strict=True):
        seed_of_data = model_factors._derived(0, drawn_model)
        rows = load_dataset("synthetic-dummy/0.001", rows=1010, seed=seed_of_data).train.head(800).batch()
        read = set(rows.sparse_features.values().tolist())
        with inject(model, error_model, target, seed=seed) as error_map:
            top = error_map.word[(error_map.mask >> np.uint64(30)) & np.uint64(1) == 1] // 64
        expected.append(bool(read & set(top.tolist())))
    assert np.mean(table["huge"] == expected) >= 0.99 and 0.1 < np.mean(expected) < 0.5
    found = averaged(table, ["ber"]).iloc[0]
    words = table.groupby("drawn")["words_read"].first()
    assert found["formula"] == pytest.approx(np.mean([1 - (1 - 1e-6) ** int(number) for number in words]))
    assert abs(found["huge"] - found["formula"]) < 3.5 * np.sqrt(0.25 / 200)


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ([1.0, 2.0, 4.0, 8.0], (0.0, 0.0, 0.0)),
        ([1.0, 2.01, 4.3, 8.4], (0.5, np.sqrt((0.01**2 + 0.3**2 + 0.4**2) / 4), 0.0)),
        ([1.0, 2.0, 4.0, 2e6 + 8], (0.25, 1e6, 0.0)),
        ([1.0, 2.0, 4.0, 3e6], (0.25, (3e6 - 8) / 2, 1.0)),
        ([1.0, np.nan, 4.0, np.inf], (0.5, np.inf, 1.0)),
        ([3e38, -3e38, 4.0, 8.0], (0.5, 3e38 / np.sqrt(2), 1.0)),
    ],
)
def test_measures_of_a_map(scores, found):
    measured = deviation(np.array(scores, np.float32), np.array([1.0, 2.0, 4.0, 8.0], np.float32))
    assert tuple(measured.values()) == pytest.approx(found, rel=1e-5)


LEVELS = {"width": [64, 512], "depth": [1, 2], "embedding_dim": [64, 512], "density": [0.001, 0.01]}
RATES = (1e-8, 1e-7, 1e-6)


@pytest.fixture
def made():
    """Shares that are sums of known effects, which are larger by a tenth in the second of three models."""
    rows = []
    for cell, drawn_model, target, lookup, ber in itertools.product(
        factor_grid(LEVELS), range(3), ("all", "mlp", "embedding"), model_factors.LOOKUPS, RATES
    ):
        wide, deep, large = cell["width"] == 512, cell["depth"] == 2, cell["embedding_dim"] == 512
        scale = (1.1 if drawn_model == 1 else 1.0) * {1e-8: 0.01, 1e-7: 0.1, 1e-6: 1.0}[ber]
        moved = 0.1 + 0.3 * wide + 0.05 * deep + 0.1 * large
        huge = 0.2 + 0.1 * wide + 0.4 * large
        if target == "embedding":
            moved, huge = 0.02 * (1 + 5 * (cell["density"] == 0.01)), 0.4 * large
        if lookup == "as_released":
            moved, huge = moved / 2, huge / 4
        row = {**cell, "drawn": drawn_model, "target": target, "trial": 0, "ber": ber, "bits_flipped": 3.0}
        row |= {"lookup": lookup, "n_inputs": 100, "words_read": 1000, "rmse": 0.5}
        rows.append(row | {"moved": scale * moved, "huge": scale * huge})
    return pd.DataFrame(rows)


def test_values_of_statements(made):
    found = statement_values(made)
    first = found[found["unit"] == 0]
    of_first = {statement: group.set_index("part")["value"] for statement, group in first.groupby("statement")}
    mean_moved, mean_huge = 0.1 + 0.15 + 0.025 + 0.05, 0.2 + 0.05 + 0.2  # at 1e-6, errors in all
    rises = first[first["statement"] == "S1"].set_index("item")["value"]
    for measure, mean in (("moved outputs", mean_moved), ("huge RMSE", mean_huge)):
        steps = [rises[f"{measure}, 1e-08 to 1e-07"], rises[f"{measure}, 1e-07 to 1e-06"]]
        assert steps == pytest.approx([0.09 * mean, 0.9 * mean])
    values = {"moved outputs, corrected": 0.3 - 0.1, "moved outputs, as released": 0.1}
    values |= {"huge RMSE, corrected": 0.1 - 0.4, "huge RMSE, as released": -0.075}
    parts = {f"{target}, {part}": value for target in ("all", "mlp") for part, value in values.items()}
    assert of_first["S3"].to_dict() == pytest.approx(parts)
    assert of_first["S4"].tolist() == pytest.approx([0.05]) and of_first["S5"].tolist() == pytest.approx([6.0])
    of_second = found[found["unit"] == 1].set_index("statement")["value"]
    assert (of_second["S4"], of_second["S5"]) == pytest.approx((0.055, 6.0))
    assert sorted(set(found["unit"])) == [0, 1, 2] and not found["value"].isna().any()


def test_values_are_those_that_the_rules_ask_for(made):
    asked = {(rule.statement, rule.part) for rule in load_rules() if rule.figure == "02_model_factors"}
    assert {*statement_values(made)[["statement", "part"]].itertuples(index=False, name=None)} == asked


def test_factors_with_one_level_give_no_values(made):
    few = made[(made["depth"] == 1) & (made["density"] == 0.01) & (made["width"] == 64)]
    assert set(statement_values(few)["statement"]) == {"S1"}


def test_settings_in_which_depth_moves_more(made):
    assert model_factors.deeper_moves_more(made) == (8, 8)
    less = made.assign(moved=made["moved"].mask((made["depth"] == 2) & (made["width"] == 64), 0.0))
    assert model_factors.deeper_moves_more(less) == (4, 8)


@pytest.mark.parametrize("levels", [[], [2, 1], [1, 1]])
def test_levels_that_are_refused(levels):
    with pytest.raises(ValueError, match="depth"):
        factor_grid({"width": [1], "depth": levels})
    with pytest.raises(ValueError, match="bers"):
        dummy_trials([CELL], **OPTIONS | {"bers": levels})


WIDTHS, DIMS, DEPTHS, DENSITIES, RATES_DRAWN = (64, 128), (64, 256, 512), (1, 2), (0.001, 0.01), (1e-7, 1e-6)


@pytest.fixture
def table():
    """Two models, one map each, of which huge: those of the first model in wide cells; of both at dimension 512."""
    rows = []
    for width, dim, depth, density, ber, drawn, target, lookup in itertools.product(
        WIDTHS, DIMS, DEPTHS, DENSITIES, RATES_DRAWN, (0, 1), ("all", "mlp"), ("corrected", "as_released")
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
    cells = data[(data["target"] == "all") & (data["ber"] == 1e-6)].set_index(["width", "embedding_dim"]).sort_index()
    assert cells["huge"].tolist() == [0, 0, 1, 0.5, 0.5, 1]
    assert (cells["maps"] == 8).all() and cells["moved"].tolist() == pytest.approx([0.225] * 6)
    assert cells["formula"].tolist() == pytest.approx([1 - (1 - 1e-6) ** 100_000] * 6)
    assert cells.loc[(64, 64), "rmse_of_others"] == pytest.approx(15.5)  # of 10, 11, 20, 21, twice each
    assert cells.loc[(128, 64), "rmse_of_others"] == 16.0 and np.isnan(cells.loc[(64, 512), "rmse_of_others"])


def test_what_is_drawn(table):
    data = figures.model_factors_data(table)
    axes = plots.new_panels(2, rows=2, scale=0.5)
    for ax, (target, ber) in zip(axes, itertools.product(("all", "mlp"), RATES_DRAWN), strict=True):
        figures.model_factors(data[(data["target"] == target) & (data["ber"] == ber)], ax, title=f"rate {ber:g}")
    shares = axes[1].collections[0].get_array()
    assert np.asarray(shares).tolist() == [[0, 0, 1], [0.5, 0.5, 1]]
    assert [text.get_text() for text in axes[1].texts] == ["0", "0", "100", "50", "50", "100"]
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
    assert "densities 0.001, 0.01; 500 inputs (100 with the released look-up)" in text
    assert "2 drawn per cell; 2 error maps per cell" in text
