"""What notebooks check and say: parameters, provenance, captions."""

import re
from dataclasses import replace

import pandas as pd
import pytest

import drsrobust as dr
from drsrobust_study.captions import details, single_error_details
from drsrobust_study.components import layer_partition, single_errors
from drsrobust_study.notebook import check_parameters, provenance


def check(value, annotation):
    check_parameters({"__annotations__": {"own": annotation}, "own": value})


FITS = [(1e-5, float), (1, float), (3, int), ("x", str), (True, bool), ([1e-5, 1], list[float]), ([], list[str])]


@pytest.mark.parametrize(("value", "annotation"), [*FITS, (None, str | None)])
def test_values_that_fit(value, annotation):
    check(value, annotation)


MISFITS = [("1e-5", float), (["1e-6"], list[float]), ([1.0, "2.5e6"], list[float]), ([["-1E3"]], list[list[float]])]
MISFITS += [(["1e3"], list[int]), ("a", list[str]), ([3, "a"], list[str]), ("[1]", list[int]), (1.5, int), (True, int)]
MISFITS += [(True, float), ("true", bool), ([1, "x"], list[int]), (3, str | None)]


@pytest.mark.parametrize(("value", "annotation"), MISFITS)
def test_values_that_do_not(value, annotation):
    with pytest.raises(TypeError) as caught:
        check(value, annotation)
    kind = getattr(annotation, "__name__", "") if isinstance(annotation, type) else str(annotation)
    assert f"'own' is {value!r} ({type(value).__name__})" in str(caught.value) and kind in str(caught.value)


@pytest.mark.parametrize("text, number", [("1e-5", "1.0e-5"), ("2.5e6", "2.5e+6"), ("-1E3", "-1.0e+3")])
def test_numbers_that_are_text_to_yaml_have_a_hint(text, number):
    for value, annotation in ((text, float), ([text], list[float]), ([[text]], list[list[float]])):
        with pytest.raises(TypeError, match=re.escape(f"In YAML {text} is text; write {number}")):
            check(value, annotation)


def test_data_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("DRSROBUST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="movielens-1m: there is no"):
        check_parameters({"__annotations__": {"dataset": str}, "dataset": "movielens-1m/ids"})


def test_a_name_that_papermill_sets_and_the_notebook_lacks():
    """The last cell of papermill's counts: in JupyterLab it can be mended and run again."""
    namespace = {"__annotations__": {"trials": int}, "trials": 3, "trails": 5}
    cells = ["", "trials: int = 3", "# Parameters\ntrails = 5\n", "x = 1"]
    with pytest.raises(ValueError, match="unknown parameter 'trails'; did you mean 'trials'"):
        check_parameters(namespace | {"In": cells})
    check_parameters(namespace | {"In": [*cells, '# Parameters\ntrials = 3\nPAPERMILL_INPUT_PATH = "a"']})


def test_provenance(evaluator):
    line = provenance(evaluator)
    assert "data synthetic-movielens/full test, 600 rows" in line and evaluator.checkpoint[:12] in line
    assert "torch 2.13" in line
    # Of what needs no data.
    assert re.fullmatch(r"\d+ cores \w+; python 3\.11.*, torch 2\.13.*", provenance())


@pytest.fixture
def shell():
    """IPython, as a notebook's kernel runs it."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    yield InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    InteractiveShell.clear_instance()


def test_the_traceback_of_a_refused_value_ends_in_the_notebook(shell, capsys):
    shell.run_line_magic("colors", "nocolor")
    shell.run_cell("import drsrobust as dr, drsrobust_study as study, numpy as np\nstudy.check_parameters(globals())")
    assert not shell.run_cell("errors = dr.BitFlip(ber=2)").success
    refused = capsys.readouterr().out
    assert "errors = dr.BitFlip(ber=2)" in refused
    assert "ArgumentError: ber must be a number from 0 to 1, got 2" in refused
    assert "error_models.py" not in refused and refused.count("\n") < 9
    # What another library raised, and faults of code, keep the library's entries.
    assert not shell.run_cell("from drsrobust_study import captions\ncaptions.details('x', {'a': 1})").success
    assert "captions.py" in capsys.readouterr().out


def test_data_trials_intervals_and_stress_rates(data):
    summary = pd.DataFrame({"model": "m", "dataset": data.name, "rate": 1e-3, "auc_golden": 0.8, "n": [3, 1]})
    text = details(data.test.head(123), summary, "", "More.")
    assert text.startswith("Data: synthetic-movielens/full (generated data, not real clicks), 123 of 600 test rows.")
    assert "m 0.8000" in text and "1 to 3 trials per point" in text and "stress range" in text
    assert "stress" not in details(data.test, summary.assign(rate=1e-6))
    other = replace(data.test, dataset="criteo-sample/fields")
    both = details([data.test, other], pd.concat([summary, summary.assign(dataset=other.dataset, auc_golden=0.7)]))
    assert both.count("Data: ") == 2 and "m 0.7000" in both and both.count("generated") == 1
    assert details(data.test).endswith(", 600 test rows.")


def test_single_errors(evaluator, tmp_path):
    options = {"metrics": ["decision_changed"], "trials": 2, "sampling": "plain", "store": tmp_path / "s"}
    conditions = single_errors(layer_partition(evaluator.model))[:2]
    table = dr.Campaign(evaluator, conditions=conditions, **options).run(progress=False)
    assert "2 trials for each layer" in single_error_details(table, evaluator)
    assert "probability 0.5." in single_error_details(table, evaluator, ["decision_changed"])
    assert single_error_details(table, evaluator, []).endswith("of stratified samples.")
