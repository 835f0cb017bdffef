"""Both protocols of the dummy study: rates that pile up, batches as one trial, maps that stay."""

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust.campaign import Campaign
from drsrobust.campaign import trial as running
from drsrobust.data import load_dataset
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject
from drsrobust.metrics import deviated, median_change, spearman
from drsrobust.models import build_model
from drsrobust_study.model_factors import accumulated, dummy_trials, factor_grid, ladders

CELL = {"width": 8, "depth": 1, "embedding_dim": 4, "density": 0.001}
SIZES = {name: CELL[name] for name in ("width", "depth", "embedding_dim")}
OPTIONS = {
    "bers": [1e-5, 1e-4],
    "targets": ["all", "mlp"],
    "inputs": 300,
    "models": 1,
    "trials": 3,
    "seed": 5,
    "progress": False,
}


@pytest.fixture(scope="module")
def tables():
    return {name: dummy_trials([CELL], protocol=name, batch=128, **OPTIONS) for name in ("corrected", "as_released")}


def model_and_rows(as_released):
    data = load_dataset("synthetic-dummy/0.001", rows=385, seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return build_model("dummy", data.schema, **SIZES, as_released=as_released).eval(), data.train.head(300)


def test_rates_pile_up_as_if_every_map_were_drawn():
    rng, bits, bers, batches = np.random.default_rng(0), 2_000_000, [0.001, 0.01], 3
    wrong, shares = np.zeros(bits, bool), []
    for ber in bers:
        for _ in range(batches):
            wrong ^= rng.random(bits) < ber
            shares.append(wrong.mean())
    expected = accumulated(bers, batches)
    assert expected.shape == (2, 3) and (np.diff(expected.ravel()) > 0).all()
    assert np.array(shares) == pytest.approx(expected.ravel(), abs=5 * np.sqrt(0.05 / bits))
    assert accumulated([1e-6], 1)[0, 0] == pytest.approx(1e-6, rel=1e-9)


def test_corrected_trials_are_fresh_maps_on_one_model(tables):
    table = tables["corrected"]
    assert len(table) == 2 * 2 * 3 and (table["present"] == table["ber"]).all() and (table["n_inputs"] == 300).all()
    model, rows = model_and_rows(as_released=False)
    evaluator = Evaluator(model, rows)
    plain = Campaign(evaluator, errors=[BitFlip(1e-4)], targets=["all"], trials=3, seed=5).run(progress=False)
    here = table[(table["target"] == "all") & (table["ber"] == 1e-4)]
    for (_, found), trial_seed in zip(here.iterrows(), plain["seed"], strict=True):
        with inject(model, BitFlip(1e-4), seed=int(trial_seed)) as error_map:
            scores, golden = evaluator.run().scores, evaluator.golden.scores
        assert found["deviated_0.01"] == deviated(scores, golden, 0.01) > 0
        assert found["median_change"] == median_change(scores, golden)
        assert found["spearman"] == spearman(scores, golden)
        assert found["bits_flipped"] == error_map.bits and found["bits"] == error_map.eligible_bits
        assert found["nan_inputs"] == np.isnan(scores).mean() and found["inf_inputs"] == np.isinf(scores).mean()


@pytest.mark.filterwarnings("ignore::drsrobust.evaluation.ReachWarning")  # `dummy_trials` says nothing of it
def test_as_released_errors_stay_from_batch_to_batch_and_rate_to_rate(tables):
    """The means over batches are those of a model that is never restored."""
    table = tables["as_released"]
    rates = accumulated([1e-5, 1e-4], 3)
    weights = np.array([128, 128, 44]) / 300
    model, rows = model_and_rows(as_released=True)
    evaluators = [Evaluator(model, rows.take(slice(at, at + 128))) for at in (0, 128, 256)]
    trial_seed = int(
        Campaign(evaluators[0], errors=[BitFlip(1e-4)], trials=1, seed=5).run(progress=False)["seed"].iloc[0]
    )
    before = set()
    for number, ber in enumerate([1e-5, 1e-4]):
        found = table[(table["target"] == "all") & (table["ber"] == ber)].set_index("trial").loc[0]
        shares, bits = [], []
        for batch, evaluator in enumerate(evaluators):
            with inject(model, BitFlip(rates[number, batch]), seed=trial_seed) as error_map:
                hit = set(zip(error_map.tensor.tolist(), error_map.word.tolist(), strict=True))
                assert before <= hit
                before = hit
                shares.append(evaluator.run().metric("deviated_0.01"))
                bits.append(error_map.bits)
        assert found["deviated_0.01"] == pytest.approx(weights @ shares)
        assert found["bits_flipped"] == pytest.approx(weights @ bits)
        assert found["present"] == pytest.approx(weights @ rates[number]) and found["n_inputs"] == 300
    assert len(before) > 10


def test_a_second_run_checks_two_trials_of_each_condition_at_most(tables, monkeypatch):
    computed, real = [], running.run_trial

    def counted(evaluator, condition, trial, **options):
        computed.append(trial)
        return real(evaluator, condition, trial, **options)

    monkeypatch.setattr(running, "run_trial", counted)
    for protocol, table in tables.items():
        again = dummy_trials([CELL], protocol=protocol, batch=128, **OPTIONS)
        pd.testing.assert_frame_equal(again, table)
    assert set(computed) <= {0, 2}  # the first and the most harmed ones


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocol": "released"}, "unknown protocol 'released'; did you mean 'as_released'"),
        ({"bers": [1e-4, 1e-5]}, r"bers must hold one value or more, ascending, .* got \[0.0001, 1e-05\]"),
        ({"bers": []}, r"bers must .* got \[\]"),
    ],
)
def test_what_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        dummy_trials([CELL], **OPTIONS | change)


def test_a_density_there_is_not():
    with pytest.raises(ValueError, match="unknown schema of synthetic-dummy '0.5'"):
        dummy_trials([CELL | {"density": 0.5}], **OPTIONS)


LEVELS = {"width": [64, 128, 256, 512], "depth": [1, 2], "embedding_dim": [64], "density": [0.001, 0.01, 0.1]}


def test_one_factor_at_a_time():
    cells = factor_grid(LEVELS)
    middle = {"width": 128, "depth": 1, "embedding_dim": 64, "density": 0.01}
    assert cells[0] == middle and len(cells) == 1 + 3 + 1 + 0 + 2
    assert all(sum(cell[name] != middle[name] for name in cell) == 1 for cell in cells[1:])
    assert [[cell["density"] for cell in ladder] for ladder in ladders(cells, "density")] == [[0.001, 0.01, 0.1]]


def test_every_combination():
    cells = factor_grid(LEVELS, full=True)
    assert len(cells) == 4 * 2 * 1 * 3 == len({tuple(cell.values()) for cell in cells})
    assert cells[0] == factor_grid(LEVELS)[0]
    assert len(list(ladders(cells, "width"))) == 6 and all(len(ladder) == 4 for ladder in ladders(cells, "width"))


@pytest.mark.parametrize("levels", [[], [2, 1], [1, 1]])
def test_levels_that_are_refused(levels):
    with pytest.raises(ValueError, match=r"levels of depth must hold one value or more, ascending"):
        factor_grid({"width": [1], "depth": levels})
