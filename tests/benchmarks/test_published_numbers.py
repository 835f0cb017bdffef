"""What numbers in docs/ rest on: samples of `coverage`, generated lines of `encoding`, clean AUC of `mitigation`."""

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from benchmarks import coverage as samples
from benchmarks import encoding
from benchmarks.mitigation import clean_auc
from drsrobust.injection import BitFlip
from drsrobust_study.mitigations import Case


def test_a_population_of_a_trained_model(trained, data):
    population = samples.real_population(trained, data.test, BitFlip(1e-5), maps=6)
    drawn, pilots = ([s for s in population.strata if s.is_pilot == pilot] for pilot in (False, True))
    assert {len(population.losses[s.name]) for s in drawn} == {6} and {
        len(population.losses[s.name]) for s in pilots
    } == {1}
    assert population.probabilities.sum() == pytest.approx(1)
    first, last = (population.losses[s.name] for s in (drawn[0], drawn[-1]))
    assert last.mean() > 10 * abs(first.mean())
    assert set(population.draw(drawn[0].name, 50, np.random.default_rng(0))) <= set(first)


def test_both_samples_have_the_mean_of_the_population():
    population, random = samples.made_up(0.0), np.random.default_rng(1)
    table = samples.stratified_sample(population, 200, random)
    assert (table["weight"] * table["auc_drop"]).sum() == pytest.approx(population.mean, abs=1e-4)
    assert samples.plain_sample(population, 20_000, random)["auc_drop"].mean() == pytest.approx(
        population.mean, abs=1e-3
    )


@pytest.mark.long
def test_students_t_misses_rare_losses_and_the_others_do_not():
    rows = {row["method"]: row for row in samples.coverage(samples.made_up(0.0), 60, 120)}
    assert rows["plain, Student's t"]["coverage"] < 0.6 < 0.9 < rows["plain"]["coverage"]
    assert rows["stratified"]["coverage"] > 0.85 and rows["stratified"]["half_width"] < rows["plain"]["half_width"] / 20
    shares = samples.recovery_coverage(0.2, samples.PARTS["half of the losses"], 60, 40)
    assert shares["given"] > 0.8 and shares["coverage"] > 0.85


@pytest.mark.long
def test_generated_lines_are_like_those_of_the_real_sample(tmp_path):
    """As many as the sample has that the generator was fitted to."""
    path = tmp_path / "lines.txt"
    encoding.write_lines(path, encoding.SAMPLE)
    columns = pd.read_csv(path, sep="\t", header=None, dtype={number: "str" for number in range(14, 40)})
    assert len(columns) == encoding.SAMPLE and columns[0].mean() == pytest.approx(0.257, abs=0.01)
    for number, (empty, *_) in enumerate(encoding._INTEGERS, 1):
        assert columns[number].isna().mean() == pytest.approx(empty, abs=0.01)
    for number, (empty, _, distinct, whole) in enumerate(encoding._CATEGORIES, 14):
        assert columns[number].isna().mean() == pytest.approx(empty, abs=0.01)
        count = columns[number].nunique()
        assert count == pytest.approx(distinct, rel=0.2) if distinct > 10_000 else count <= whole


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_clean_auc_is_that_of_the_protected_model(data, trained, monkeypatch):
    clip = dr.ActivationClipping(0.3)
    monkeypatch.setattr("benchmarks.mitigation.clipping", lambda case: [clip])
    case = Case("dlrm", data.name, trained, data.train, data.test)
    row = clean_auc([case], progress=False).set_index("mitigation").loc["clip 0.3"]
    evaluator = dr.Evaluator(trained, data.test)
    with evaluator.under(clip) as guarded:
        # Rounding at the clip decides a rank: the evaluator may score the last batch without padding.
        assert row["auc"] == pytest.approx(guarded.golden.auc, abs=2e-5) and not row["bit_equal"]
    assert row["difference"] == pytest.approx(row["auc"] - evaluator.golden.auc) and row["difference"] != 0
    assert row["low"] < row["difference"] < row["high"]
