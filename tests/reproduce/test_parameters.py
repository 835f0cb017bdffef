import subprocess
import sys

import nbformat
import pytest

from drsrobust_study.notebook import BOUNDS, check_parameters
from reproduce.__main__ import main
from reproduce.notebooks import all_notebooks, parse_assignment, read_notebook
from reproduce.profiles import FOLDER, load_profile

NOTEBOOKS = all_notebooks()


def write(tmp_path, parameters, *cells, name="10_test.ipynb", result=""):
    notebook = nbformat.v4.new_notebook(metadata={"drsrobust": {"result": result}})
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# A title\n\ntext"),
        nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *[nbformat.v4.new_code_cell(cell) for cell in cells],
    ]
    path = tmp_path / name
    nbformat.write(notebook, path)
    return path


def test_parameters_are_read(tmp_path):
    path = write(tmp_path, 'a: int = 3  # how many\nb: list[float] = [1e-5]\nc: str | None = None  # "x#y"')
    notebook = read_notebook(path)
    assert notebook.name == "10_test" and notebook.title == "A title"
    found = [(p.name, p.annotation, p.default, p.comment) for p in notebook.parameters.values()]
    assert found == [("a", int, 3, "how many"), ("b", list[float], [1e-5], ""), ("c", str | None, None, '"x#y"')]


@pytest.mark.parametrize("source", ["a = 3", "a: int = 3 + x", "a: int = (\n3)", "a: Path = 3", "import os"])
def test_parameters_that_are_not_plain_are_refused(tmp_path, source):
    with pytest.raises((ValueError, NameError)):
        read_notebook(write(tmp_path, source))


ASSIGNED = [("bers=[1e-6,1e-5]", [1e-6, 1e-5]), ("bers=1e-6,1e-5", [1e-6, 1e-5]), ("models=dlrm", ["dlrm"])]
SETS = ["movielens-1m/ids", "criteo-sample/fields"]
ASSIGNED += [("trials=7", 7), (f"datasets={','.join(SETS)}", SETS)]


@pytest.mark.parametrize(("text", "value"), ASSIGNED)
def test_assignments(text, value):
    name, parsed = parse_assignment(text, NOTEBOOKS["03_ber_sweep"])
    NOTEBOOKS["03_ber_sweep"].check({name: parsed})
    assert parsed == value


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["03_ber_sweep", "berss=[1e-6]"], "'berss'; did you mean 'bers'"),
        (["03_ber_sweep", "trials=many"], "'trials' is 'many' (str)"),
        (["11_one_flip", "bit=32"], "11_one_flip: parameter 'bit' has 32; it must be from 0 to 31"),
        (["10_your_model", "trials=0"], "'trials' has 0; it must be at least 1"),
        (["03_ber_sweep", "seed=-1"], "'seed' has -1"),
        (["03_ber_sweep", "test_rows=0"], "'test_rows' has 0"),
        (["03_ber_sweep", "bers=[1e-3,1.5]"], "'bers' has 1.5; it must be from 0.0 to 1.0"),
        (["13_fleet_risk", "days=0", "--plan"], "'days' has 0; it must be over 0"),
        (["03_ber_sweep", "models=[1,2]"], "'models' is [1, 2] (list)"),
        (["03_ber_sweep", "datasets=movielens-1n"], "'movielens-1n'; did you mean 'movielens-1m'?"),
        (["03_ber_sweep", "datasets=movielens-1m/ids"], "ml-1m/ratings.dat"),
        (["--profile", "../smoke"], "'../smoke'; did you mean 'smoke'?"),
        (["--data", "/nowhere/at/all"], "/nowhere/at/all/ml-1m/ratings.dat"),
        (["--report", "--profile", "smoke"], "no finished run"),
        (["--publish", "--profile", "smoke"], "laptop and paper"),
    ],
)
def test_wrong_calls_are_refused_before_anything_runs(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.setattr("reproduce.__main__._run", lambda *_: pytest.fail("something was run"))
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_bounds_are_of_parameters():
    assert set(BOUNDS) <= {name for notebook in NOTEBOOKS.values() for name in notebook.parameters}
    with pytest.raises(ValueError, match="'trials' has 0"):
        check_parameters({"__annotations__": {"trials": list[int]}, "trials": [3, 0]})


def test_list_and_refused_calls_never_import_torch():
    code = "import sys; from reproduce.__main__ import main; main(['--list']); "
    code += "main(['01_bit_sensitivity', 'trials=x']); "
    code += "print(sorted({'torch', 'pandas', 'matplotlib', 'lark'} & set(sys.modules)))"
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[-1] == "[]"
    assert [line.split(":")[0] for line in lines if line[0].isdigit()] == list(NOTEBOOKS)
    assert any(line.startswith("    trials = 40  # stratified maps per point") for line in lines)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_profiles_have_every_notebook_and_keep_its_own_values(name):
    profile = load_profile(name, NOTEBOOKS, None)
    assert set(profile.parameters) == set(NOTEBOOKS) and not profile.real
    for notebook, values in profile.parameters.items():
        assert list(values) == list(NOTEBOOKS[notebook].parameters)
        assert values.get("dataset", "synthetic-").startswith("synthetic-")


def test_real_data_is_used_where_it_is_given(real_data):
    profile = load_profile("laptop", NOTEBOOKS, real_data)
    assert profile.real and profile.datasets == (
        *("movielens-1m/full", "movielens-1m/ids", "criteo-sample/fields", "amazon-games/sequences"),
    )
    expected = ["movielens-1m/ids", "criteo-sample/fields", "movielens-1m/full"]
    assert profile.parameters["00_models"]["datasets"] == expected
    assert profile.parameters["03_ber_sweep"]["datasets"] == ["movielens-1m/ids", "criteo-sample/fields"]
    assert profile.parameters["12_memory_faults"]["dataset"] == "movielens-1m/full"


def test_an_interrupt_is_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.setattr("reproduce.runner.run_notebook", interrupted)
    assert main(["--profile", "smoke", "--jobs", "1", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "\nreproduce: stopped; the same command continues\n"
