"""The whole way: `python -m reproduce`, its figures, its report, and what may be published."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drsrobust_extras.pages.plots.save import read_words
from reproduce import readme_tables
from reproduce.bundle import figure_sums
from reproduce.publish import publish
from reproduce.statements import load_rules
from tests.reproduce.kernels import few_rows

ROOT = Path(__file__).resolve().parents[2]
# The smoke profile with fewer trials, rows, bits and injections, since its own are the ones that `make same` compares.
FEWER = {
    r"^((?:\w+_)?trials) = \d+": r"\1 = 3",
    "^test_rows = .*": "test_rows = 1000",
    "^anywhere = .*": "anywhere = 20",
    "^maps = .*": "maps = 4",
    "^search_rows = .*": "search_rows = 200",
    "^budget = .*": "budget = 1",
    "^drawn_models = .*": "drawn_models = 1",
    "^warm_up = .*": "warm_up = 5",
    "^evaluate_at = .*": "evaluate_at = [2, 4]",
    "^clean_steps = .*": "clean_steps = 3",
    "^counts = .*300.*": "counts = []",
    "^bits = .*": "bits = [31, 30, 23, 8]",
    "^injections = .*": "injections = 96",
    "^int8_injections = .*": "int8_injections = 32",
    "^protected = .*": "protected = [[30], [23, 24, 25, 26, 27, 28, 29, 30, 31]]",
    "^repeats = .*": "repeats = 1",
    "^rates = .*": "rates = [1e-3]",
    "^sizes = .*": "sizes = [100000]",
    "^bers = .*1e-6, 1e-5, 1e-4.*": "bers = [1e-6, 1e-3, 1e-2]",
    "^bers = .*1e-7, 1e-6.*": "bers = [1e-6]",
    "^bers = .*1e-9, 1e-7.*": "bers = [1e-9, 1e-5, 1e-3, 1e-2]",
}
RUN = "import sys; from pathlib import Path; from reproduce import __main__, profiles; "
RUN += "profiles.FOLDER = Path(sys.argv[1]); sys.exit(__main__.main(sys.argv[2:]))"


def reproduce(*arguments, cache):
    profiles = cache.parent / "profiles"
    profiles.mkdir(exist_ok=True)
    text = (ROOT / "reproduce" / "profiles" / "smoke.toml").read_text()
    for pattern, new in FEWER.items():
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    (profiles / "smoke.toml").write_text(text)
    command = [sys.executable, "-c", RUN, str(profiles), "--profile", "smoke", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ(cache), capture_output=True, text=True)


def environ(cache):
    """For a run that keeps data and models in `cache`, and whose kernels generate fewer rows."""
    own = {"DRSROBUST_CACHE": str(cache), "OMP_NUM_THREADS": "1", "IPYTHONDIR": few_rows(cache.parent)}
    return {name: value for name, value in os.environ.items() if name != "DRSROBUST_DATA"} | own


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    done = reproduce("--out", str(folder / "build"), cache=folder / "cache")
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    return folder / "build" / "smoke"


FIGURES = {
    "00_models": ("",),
    "00_quickstart": ("",),
    "01_bit_sensitivity": ("", "_layout", "_models"),
    "02_model_factors": ("", "_design"),
    "03_ber_sweep": ("", "_rates", "_released"),
    "04_component_vulnerability": ("", "_layers", "_rows", "_shapes"),
    "05_activation_clipping": ("",),
    "06_selective_bit_protection": ("",),
    "07_abft": ("", "_layers", "_overhead", "_tables"),
    "08_mitigation_recovery": ("", "_front", "_given_back", "_places"),
    "09_injection_speed": ("",),
    "10_your_model": ("",),
    "11_one_flip": ("", "_layers"),
    "12_memory_faults": ("", "_lead", "_matrices", "_ranking"),
    "13_fleet_risk": ("_day",),
    "14_protection_plan": ("",),
    "15_number_formats": ("",),
    "16_worst_case": ("",),
    "17_training_errors": ("",),
    "18_probe_rows": ("",),
    "19_sequence_models": ("", "_flips"),
    "20_stuck_unit": ("", "_lanes", "_seen"),
    "21_checkpoints": ("",),
}
TIMED = {"07_abft_overhead", "08_mitigation_recovery_front", "08_mitigation_recovery_places", "09_injection_speed"}
TIMED |= {"14_protection_plan"}  # its budget of time is of measured times
JUDGED = {"02_model_factors", "03_ber_sweep", "04_component_vulnerability", "07_abft", "08_mitigation_recovery"}
JUDGED = {f"{name}_statements" for name in JUDGED | {"09_injection_speed"}}


@pytest.mark.long
def test_figures_and_their_numbers(smoke):
    names = [f"{notebook}{part}" for notebook, parts in FIGURES.items() for part in parts]
    assert sorted(path.stem for path in (smoke / "figures").glob("*.svg")) == sorted(names)
    for name in names:
        assert (smoke / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len((smoke / "figures" / "data" / f"{name}.csv").read_text().splitlines()) > 1
        words = read_words(smoke / "figures", name)
        assert words["timed"] == (name in TIMED) and words["caption"].endswith("."), name
        assert words["title"] and not words["title"].startswith("No values"), name
        # How numbers are stored, counted codes, what is timed on a model of its own, and a model of one's own need no data.
        own = ("01_bit_sensitivity_layout", "07_abft_overhead", "09_injection_speed", "10_your_model")
        if name not in (*own, "12_memory_faults_matrices"):
            assert words["details"].startswith("Data: synthetic-"), name
    tables = {path.stem for path in (smoke / "figures").glob("*.csv")}
    assert {"models", "statements"} < tables and {name for name in tables if name.endswith("_statements")} == JUDGED
    models = (smoke / "figures" / "models.csv").read_text().splitlines()
    assert models[0].startswith("model,dataset,") and len(models) == 3


@pytest.mark.long
def test_the_effects_show_even_here(smoke):
    """Bit 30 is the worst; AUC holds at low rates and is near a coin toss at the highest."""
    import pandas as pd

    bits = pd.read_csv(smoke / "figures" / "01_bit_sensitivity_loss.csv", comment="#")
    assert bits.groupby("bit")["auc_drop"].sum().idxmax() == 30
    curve = pd.read_csv(smoke / "figures" / "data" / "03_ber_sweep.csv", comment="#")
    for _, series in curve[curve["part"] == "all"].groupby("model"):
        assert (series["golden"] - series["auc"])[series["ber"] <= 1e-7].abs().max() < 0.01
        assert abs(series["auc"].iloc[-1] - 0.5) < 0.12


@pytest.mark.long
def test_a_tiny_run_gives_no_verdict(smoke):
    import pandas as pd

    table = pd.read_csv(smoke / "figures" / "statements.csv", keep_default_na=False)
    whole = table[table["item"] == ""]
    assert set(whole["verdict"]) == {"not run"}
    rules = load_rules()
    assert {*zip(whole["statement"], whole["part"], strict=True)} == {(rule.statement, rule.part) for rule in rules}
    values = {*table.loc[table["item"] != "", "statement"]}
    # One training, one data set and few rates: some statements have no values.
    assert {"S4", "S6", "S7", "S8", "S9", "S13", "S14", "S18", "S19", "S20"} - values <= {"S6", "S8", "S19"}


@pytest.mark.long
def test_report(smoke):
    page = (smoke / "report" / "index.html").read_text()
    assert "All data of this run are generated" in page and page.count("<figure>") == sum(map(len, FIGURES.values()))
    assert ('id="statements"' in page) == (ROOT / "figures" / "statements.csv").is_file()
    assert "Everything ran here: 23 notebooks without an error." in page
    for page in (smoke / "report").glob("0*.html"):
        assert "Traceback" not in page.read_text() and "Warning" not in page.read_text()


@pytest.mark.long
def test_another_run_from_nothing_gives_the_same_bytes(smoke, tmp_path):
    trained = smoke.parents[1] / "cache" / "checkpoints"
    shutil.copytree(trained, tmp_path / "cache" / "checkpoints")
    done = reproduce("00_quickstart", "--out", str(tmp_path / "build"), cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "build" / "smoke").exists()  # a part never takes the place of a whole run
    files = [path.relative_to(smoke) for path in (smoke / "figures").rglob("00_quickstart*")]
    assert len(files) == 4  # SVG, PNG, CSV, JSON
    for path in files:
        assert (tmp_path / "build" / "smoke-part" / path).read_bytes() == (smoke / path).read_bytes(), path.name


@pytest.fixture
def laptop(smoke, tmp_path, monkeypatch):
    """The smoke run as if it had been a laptop run on real data; the folder that holds it."""
    folder = tmp_path / "build" / "laptop"
    shutil.copytree(smoke, folder)
    original = json.loads((folder / "run.json").read_text())
    assert original["figure_sha256"] == figure_sums(folder / "figures") and original["bundles"] == []
    original |= {"profile": "laptop", "real": True, "commit": "0123456789ab"}
    monkeypatch.setattr("reproduce.publish._check_commit", lambda *_: None)
    (folder / "run.json").write_text(json.dumps(original))
    return tmp_path / "build"


@pytest.mark.long
def test_publish(laptop, tmp_path):
    target = tmp_path / "figures"
    (target / "data").mkdir(parents=True)
    (target / "old.svg").touch()
    record = json.loads((laptop / "laptop" / "run.json").read_text())
    marks = {
        "README": ("RESULT_BEGIN", "RESULT_END", "STATEMENTS_BEGIN", "STATEMENTS_END", "GALLERY_BEGIN", "GALLERY_END"),
        "protection": ("PROTECTIONS_BEGIN", "PROTECTIONS_END"),
        "models": ("MODELS_BEGIN", "END"),
    }
    readme, guide, models = (tmp_path / f"{name}.md" for name in marks)
    for page, names in zip((readme, guide, models), marks.values(), strict=True):
        page.write_text("\n".join([getattr(readme_tables, name) for name in names]) + "\n")
    shutil.copy(ROOT / "paper" / "article.md.j2", tmp_path)
    names = publish("laptop", laptop, target, readme, tmp_path, tmp_path)
    table = target / "statements.csv"
    assert readme_tables.with_statements(readme.read_text(), table) == readme.read_text()
    assert "## S8: not run" in (target / "CLAIMS.md").read_text()
    run = (target / "run.json").read_text()
    assert json.loads(run)["figure_sha256"] == record["figure_sha256"] and str(tmp_path) not in run  # as it was written
    assert readme_tables.with_protections(guide.read_text(), target / "data") == guide.read_text()
    row = r"^\| range per tensor \|(?:(?: -?[01]\.\d\d| ) \|){2} [\d.]+ % \| none \|$"
    assert re.search(row, guide.read_text(), re.MULTILINE)
    assert readme_tables.with_models(models.read_text(), target / "00_models_table.csv") == models.read_text()
    assert "| synthetic-movielens/full | dlrm | 0." in models.read_text()
    text = " ".join(readme.read_text().split())
    assert 'href="figures/README.md#01_bit_sensitivity_layout"' in text and "01_bit_sensitivity_models" not in text
    assert {"statements.csv", "models.csv", "03_ber_sweep.svg", "data/03_ber_sweep.csv"} < set(names)
    assert "old.svg" not in names
    assert {f"notebooks/{name}.ipynb" for name in FIGURES} < set(names)
    executed = " ".join((target / "notebooks" / f"{name}.ipynb").read_text() for name in FIGURES)
    assert not re.search(rf"{re.escape(str(tmp_path))}|{re.escape(str(ROOT))}|stderr|\d%\||T\d\d:\d\d:\d\d", executed)
    assert "](notebooks/03_ber_sweep.ipynb)" in (target / "README.md").read_text() and "figures/notebooks" in text


@pytest.mark.parametrize("what", ["write_report", "write_statements"])
def test_a_full_disk_costs_only_what_has_no_room(what, tmp_path, monkeypatch, capsys):
    """What failed and what is there is said; a report of an earlier run does not stay."""
    from reproduce import __main__, report, runner

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run_notebook(notebook, parameters, folder):
        good = notebook.name == "00_models"
        return runner.Outcome(notebook.name, notebook.title, good, 1.0, parameters, "notebooks/x.ipynb", error="odd")

    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.setattr(runner, "run_notebook", run_notebook)
    monkeypatch.setattr(__main__ if what == "write_statements" else report, what, full)
    earlier = tmp_path / "smoke-part" / "report" / "index.html"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("earlier")
    call = ["00_models", "07_abft", "--profile", "smoke", "--jobs", "1", "--out", str(tmp_path)]
    assert __main__.main(call) == 1
    out, err = capsys.readouterr()
    name = "report" if what == "write_report" else "table of statements"
    assert f"reproduce: no {name}: OSError: [Errno 28] No space left on device; free space: " in err
    assert "    odd\nreproduce: " in err and "1 of 2 notebooks failed: 07_abft" in err  # no notebook to see
    assert out.endswith("(of 1 of 2 notebooks)\n" + (f"report:  {earlier}\n" if what == "write_statements" else ""))
    assert earlier.exists() == (what == "write_statements") and json.loads(
        (tmp_path / "smoke-part" / "run.json").read_text()
    )
