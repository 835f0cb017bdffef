"""The coverage benchmark in a tiny form: its populations and samples."""

import numpy as np
import pytest

from benchmarks.coverage import (
    PARTS,
    coverage,
    made_up,
    plain_sample,
    real_population,
    recovery_coverage,
    stratified_sample,
)


@pytest.fixture(scope="module")
def population(trained, data):
    return real_population(trained, data.test, 1e-5, maps=6)


def test_a_population_of_a_trained_model(population):
    assert [len(part) for part in population.losses] == [
        6,
        6,
        6,
        2,
    ] and population.probabilities.sum() == pytest.approx(1)
    assert population.losses[3].mean() > 10 * abs(population.losses[0].mean())
    assert [one.name for one in population.strata] == ["0", "1+"]
    assert set(population.draw("0", 50, np.random.default_rng(0))) <= set(population.losses[0])
    assert set(population.draw("2+", 50, np.random.default_rng(0))) <= {*population.losses[2], *population.losses[3]}


def test_both_samples_have_the_mean_of_the_population():
    population, random = made_up(0.0), np.random.default_rng(1)
    table = stratified_sample(population, 200, random)
    assert (table["weight"] * table["auc_drop"]).sum() == pytest.approx(population.mean, abs=1e-4)
    assert plain_sample(population, 20_000, random)["auc_drop"].mean() == pytest.approx(population.mean, abs=1e-3)


def test_students_t_misses_rare_losses_and_the_others_do_not():
    rows = {row["method"]: row for row in coverage(made_up(0.0), 60, 120)}
    assert rows["plain, Student's t"]["coverage"] < 0.6 < 0.9 < rows["plain"]["coverage"]
    assert rows["stratified"]["coverage"] > 0.85 and rows["stratified"]["half_width"] < rows["plain"]["half_width"] / 20
    found = recovery_coverage(0.2, PARTS["half of the losses"], 60, 40)
    assert found["given"] > 0.8 and found["coverage"] > 0.85
