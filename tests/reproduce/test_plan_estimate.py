"""Times of parameters that have no record, by hand."""

from dataclasses import replace

import pytest

from reproduce.notebooks import all_notebooks
from reproduce.plan import Record, estimate, print_plan
from reproduce.plan_estimate import growth, trainings
from reproduce.profiles import load_profile


def test_lists_multiply_and_the_number_that_grows_most_counts():
    old = {"datasets": ["a"], "models": ["fm"], "others": ["afn"], "trials": 10, "lead_maps": 2, "test_rows": 500}
    old |= {"seed": 1, "leave_out": ["x"], "hosts": 3}
    assert growth(old, old) == 1
    new = {"datasets": ["a", "b", "c"], "models": ["fm", "dcn"], "others": ["afn"], "trials": 40, "lead_maps": 4}
    new |= {"test_rows": 5000, "seed": 7, "leave_out": ["x", "y"], "hosts": 30}
    assert growth(old, new) == 3 * 1.5 * 4 * 10


def test_trainings_by_row(tmp_path):
    models = tmp_path / "models.csv"
    lines = ["fm,movielens-1m/ids,800000,8", "fm,movielens-1m/ids,800000,12", "afn,criteo-sample/fields,80000,400"]
    models.write_text("model,dataset,train_rows,cpu_seconds\n" + "\n".join(lines))
    asked = {"models": ["fm", "afn"], "datasets": ["movielens-1m/ids", "movielens-20m/ids", "criteo-kaggle/fields"]}
    asked |= {"leave_out": ["afn movielens-1m/ids", "afn movielens-20m/ids", "fm criteo-kaggle/fields"]}
    asked |= {"train_seeds": [0, 1], "afn_neurons": 1500}
    fm = 2 * 10 + 2 * 10 / 800_000 * 2_000_000  # two trainings on each of two sets
    assert trainings(asked, models) == pytest.approx(fm + 15 * 400 / 80_000 * 2_000_000)  # AFN once
    others = asked | {"models": ["dcn", "dlrm"], "datasets": ["synthetic-criteo"], "leave_out": []}
    assert trainings(others, models) == pytest.approx(4 * 400 / 80_000 * 2_000_000)  # the longest that is known


def test_a_profile_without_a_record_is_scaled(capsys):
    profile = load_profile("smoke", all_notebooks(), None)
    name = "05_activation_clipping"
    other = profile.parameters[name] | {"trials": 2 * profile.parameters[name]["trials"]}
    record = Record(name, other, 60.0, 700, [], "a run", cpu_seconds=106.0)
    assert estimate(record, other | {"trials": 10 * other["trials"]}) == 6 + 10 * 100
    few = replace(profile, parameters={name: other | {"trials": 500 * other["trials"]}})
    print_plan(few, [record], 2, [])
    said = capsys.readouterr().out
    assert "about 13.9 hours of CPU time, scaled from: a run" in said and "about 14 hours of CPU time\n" in said
