"""The command, and campaigns from TOML files: what runs, and how mistakes are answered."""

import os
import re
import runpy
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner

import drsrobust as dr
from drsrobust_extras.pages.campaign_file import read_campaign_file
from drsrobust_extras.pages.command import main
from tests.conftest import ROOT
from tests.refusals import refuses

MODULE = """
import torch
import drsrobust as dr

class Towers(torch.nn.Module):
    def __init__(self, users, movies):
        super().__init__()
        self.user, self.movie = torch.nn.Embedding(users, 16), torch.nn.Embedding(movies, 16)
        self.top = torch.nn.Sequential(torch.nn.Linear(33, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, age, user, movie):
        return self.top(torch.cat((age[:, None], self.user(user), self.movie(movie)), dim=1)).squeeze(1)

def forward(model, batch):
    ids = batch.sparse_features
    return model(batch.dense_features[:, 0], ids["user"].values(), ids["movie"].values())

def wrong(model, batch):
    return {"user": 1}["reader"]

def clicks(labels, scores, golden_scores, users):
    return float((scores > 0.5).mean())

def rows():
    return dr.load_dataset("synthetic-movielens/ids", rows=3000)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What docs/your_model.md has in its folder: a module, rows, a checkpoint, and the file of its example."""
    (tmp_path / "own_towers.py").write_text(MODULE)
    page = (ROOT / "docs" / "your_model.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    few = 'trials = 4\nsampling = "plain"\nstore = "trials"'
    text = example.replace("my_models", "own_towers").replace("trials = 100", few)
    (tmp_path / "study.toml").write_text(text)
    generator = torch.Generator().manual_seed(0)
    columns = {"age": torch.randn(600, generator=generator).numpy()}
    columns |= {
        name: torch.randint(n, (600,), generator=generator).numpy() for name, n in (("user", 100), ("movie", 50))
    }
    frame = pd.DataFrame(columns)
    frame.assign(clicked=frame["movie"] % 2).to_parquet(tmp_path / "rows.parquet")
    namespace = {}
    exec(MODULE, namespace)
    torch.manual_seed(0)
    torch.save(namespace["Towers"](100, 50).state_dict(), tmp_path / "towers.pt")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_towers", None)


def edit(folder, *changes):
    """Writes something else in place of parts of the example."""
    text = (folder / "study.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "study.toml").write_text(text)


PROTECTIONS = 'mitigations = ["none", { kind = "WeightRange" }]\n'


class Harm:
    """What a checkpoint may hold that was pickled by others."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def run(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["drsrobust", "--version"])
    with pytest.raises(SystemExit):
        runpy.run_module("drsrobust", run_name="__main__")
    assert dr.__version__ in capsys.readouterr().out


@pytest.mark.long
def test_the_page_s_example_runs_and_goes_on(folder):
    done = run("campaign", folder / "study.toml")
    assert done.exit_code == 0, done.output
    assert (folder / "out" / "index.html").is_file() and f"report: {folder / 'out' / 'index.html'}" in done.output
    assert re.search(r"embedding +range per tensor +BitFlip +0.0001 +4 +", done.output)
    assert len(pd.read_csv(folder / "out" / "trials.csv")) == 3 * 3 * 2 * 4
    more = run("campaign", folder / "study.toml", "--trials", 5, "--workers", 2)
    assert more.exit_code == 0, more.output
    campaign = dr.read_campaign(folder / "study.toml")
    assert len(campaign.table()) == 3 * 3 * 2 * 4 and campaign.store.folder == folder / "trials"
    done = run("report", folder / "study.toml", "--folder", folder / "again")
    assert done.exit_code == 0 and (folder / "again" / "summary.csv").is_file()
    assert "18 of 90 stored trials are left out, those beyond the first 4 of" in done.output
    assert "18 of 90 stored trials are left out" in (folder / "again" / "index.html").read_text()
    done = run("report", folder / "study.toml", "--folder", folder / "again", "--trials", 5)
    assert len(pd.read_csv(folder / "again" / "trials.csv")) == 90 and "left out" not in done.output


def test_a_report_needs_trials_and_a_check_runs_none(folder):
    done = run("campaign", folder / "study.toml", "--check")
    assert done.exit_code == 0 and "<Campaign Towers on rows: 18 conditions" in done.output
    done = run("report", folder / "study.toml")
    assert done.exit_code == 1 and "has no finished trial" in done.output and not (folder / "out").exists()


def test_metrics_bounds_and_protections_that_act_together(folder):
    protections = """metrics = { high = "own_towers:clicks" }
        mitigations = ["none", "ECC",
            ["ECC", { kind = "ActivationClipping", mode = "zero" }], { kind = "ActivationClipping", bound = 6 }]
    """
    union = ('"all", "embedding"', '"all", ["embedding", "top.0.bias"]')
    edit(folder, (PROTECTIONS, protections), union, ('folder = "out"', 'folder = "out"\nbounds = { high = [0, 1] }'))
    found = dr.read_campaign(folder / "study.toml").run(progress=False)
    assert found["target"].drop_duplicates().tolist()[:2] == ["all", "embedding | top.0.bias"]
    assert found["mitigation"].nunique() == 4 and set(found["high"].between(0, 1)) == {True}
    assert read_campaign_file(folder / "study.toml").report.ends() == {"high": (0, 1)}


def test_ids_as_text_and_missing_ones(folder):
    """The same scores, whether movies are numbers or titles in the order of a vocabulary."""
    numbers = dr.read_campaign(folder / "study.toml").evaluator.golden.scores
    frame = pd.read_parquet(folder / "rows.parquet")
    titles = [f"title {number % 7} of {number}" for number in range(50)]
    frame["user"] = frame["user"].astype(float).where(frame["user"] < 99)  # user 99 is missing
    frame.assign(movie=[titles[number] for number in frame["movie"]]).to_parquet(folder / "rows.parquet")
    known = f"vocabulary = {{ movie = {titles} }}"
    options = f'missing = "category"\ncardinalities = {{ user = 100 }}\n{known}'
    edit(folder, ('label = "clicked"', f'label = "clicked"\n{options}'))
    with pytest.warns(UserWarning, match="column 'user': [0-9]+ missing values have id 99"):
        campaign = dr.read_campaign(folder / "study.toml")
    assert (campaign.evaluator.golden.scores == numbers).all()


def test_a_model_and_rows_of_this_library(folder):
    (folder / "study.toml").write_text("""
        [model]
        name = "wide_deep"
        [rows]
        make = "own_towers:rows"
        head = 200
        [campaign]
        errors = [{ kind = "MemoryFault", mode = "row", memory = "hbm4" }, { kind = "SingleBit", bit = [29, 30] },
            { kind = "FixedCount", k = 3 }]
        trials = 2
        store = "trials"
    """)
    campaign = dr.read_campaign(folder / "study.toml")
    assert len(campaign.evaluator.rows) == 200 and campaign.evaluator.name == "wide_deep"
    assert campaign.conditions[-1].stratum.name != "all"  # the default
    found = list(dict.fromkeys(str(one.error_model) for one in campaign.conditions))
    assert found == ["MemoryFault('row', memory='hbm4')", "SingleBit(bit=29)", "SingleBit(bit=30)", "FixedCount(k=3)"]


# What is written in place of what, and what the message says of it.
MISTAKES = [
    ("trials = 4", "trails = 4", r"\[campaign\] 'trails'; did you mean 'trials'"),
    ("[report]", "[rapport]", "'rapport'; did you mean 'report'"),
    ("trials = 4", 'trials = "4"', r"campaign.trials is '4' \(str\)"),
    ("BitFlip", "BitFlop", "campaign.errors 'BitFlop'; did you mean 'BitFlip'"),
    ("ber = [", "bers = [", "BitFlip 'bers'; did you mean 'ber'"),
    ("1e-5, 1e-4", "2.0, 1e-4", "campaign.errors, BitFlip: "),
    ('kind = "WeightRange"', 'kind = "WeightRange", margins = 2', "WeightRange 'margins'"),
    ("towers.pt", "tower.pt", "model.checkpoint: .*tower.pt"),
    ("own_towers:Towers", "own_towers:Tower", "model.make: .*own_towers.py has no 'Tower'"),
    ("own_towers:Towers", "own_towers", "model.make is 'own_towers'"),
    ("own_towers:Towers", "no_such_module:Towers", "'no_such_module'"),
    ("users = 100", "users = 90", "user.weight"),
    ('label = "clicked"', 'label = "clicked"\nmissing = "drop"', "missing 'drop'"),
    ('label = "clicked"', 'label = "click"', "'click'; did you mean 'clicked'"),
    ('file = "rows.parquet"', "", r"\[rows\] has none of file, dataset, make"),
    ('"all", "embedding"', '"all", "embeddings"', "target 'embeddings'"),
    ("[model]", "[model", "study.toml: "),
    ("trials = 4", f"trials = {'[' * 5000}", "study.toml: .* nested too deep"),
    ("trials = 4", f"trials = {'1' * 5000}", "study.toml: "),
    ('"rows.parquet"', '"towers.pt"', "rows.file is 'towers.pt'"),
    ('"towers.pt"', '"rows.parquet"', "model.checkpoint: .*rows.parquet is not a state dict"),
    ('"rows.parquet"', '"spark"', "rows.file: .*spark is a folder"),
    ('"rows.parquet"', '"latin.csv"', "rows.file: .*latin.csv: .*0xe9"),
    ('"towers.pt"', '"lfs.pt"', "model.checkpoint: .*lfs.pt: .*Git LFS"),
    ('"rows.parquet"', '"damaged.parquet"', "rows.file: .*damaged.parquet"),
    ('"towers.pt"', '"pickle.pt"', "model.checkpoint: .*pickle.pt is not a state dict"),
    ('"towers.pt"', '"damaged.safetensors"', "model.checkpoint: .*damaged.safetensors is not a state dict"),
    ('store = "trials"', 'store = "~no_such_user/trials"', "campaign.store is '~no_such_user/trials'"),
    ('"rows.parquet"', '"~no_such_user/rows"', "rows.file is '~no_such_user/rows'"),
    ('store = "trials"', 'store = ""', "campaign.store .*got ''"),
    ('store = "trials"', 'store = "towers.pt"', "towers.pt is a file"),
    ('folder = "out"', 'folder = "out"\nbounds = { high = [0] }', r"report.bounds.high is \[0\]"),
    ("own_towers:forward", "own_towers:wrong", r"own_towers.py:\d+ `return .*`: KeyError: 'reader'\n"),
    ('forward = "own_towers:forward"', 'task = "ranking"', "campaign.metrics is missing; task='ranking'"),
]


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES)
def test_mistakes_are_named(folder, old, new, said):
    for name in ("damaged.parquet", "damaged.safetensors"):
        (folder / name).write_bytes(b"damaged")
    (folder / "spark").mkdir()
    (folder / "latin.csv").write_bytes("clicked,name\n1,caf\u00e9\n".encode("latin-1"))
    (folder / "lfs.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    torch.save({"weight": Harm(folder / "harm")}, folder / "pickle.pt")
    edit(folder, (old, new))
    done = run("campaign", folder / "study.toml")
    assert done.exit_code == 1 and re.search(said, done.output), done.output
    assert len(re.findall("^Error: ", done.output, re.MULTILINE)) == 1 and len(done.output.splitlines()) <= 3
    assert not any((folder / name).exists() for name in ("trials", "out", "harm"))


def test_modules_next_to_the_file_replace_no_package(folder, monkeypatch):
    """Its folder was the first on the path, so a seaborn.py there was run in place of the package."""
    for name in ("seaborn.py", "scipy.py", "yaml.py"):
        (folder / name).write_text("raise RuntimeError('replaced')")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    dr.read_campaign(folder / "study.toml")
    assert sys.path[-1] == str(folder)
    for name in ("seaborn", "scipy", "yaml"):
        assert not PathFinder.find_spec(name).origin.startswith(str(folder))
    assert PathFinder.find_spec("own_towers").origin.startswith(str(folder))


def test_a_module_of_another_file_is_not_taken(folder):
    """Two files with a module of one name each: Python imports a name once."""
    dr.read_campaign(folder / "study.toml")
    other = folder / "other"
    other.mkdir()
    for name in ("study.toml", "rows.parquet", "towers.pt", "own_towers.py"):
        (other / name).write_bytes((folder / name).read_bytes())
    said = f"own_towers is {folder}/own_towers.py, not {other}/own_towers.py; rename the latter"
    refuses(lambda: dr.read_campaign(other / "study.toml"), ImportError, said)


def test_rates():
    output = run("ber", "--fit-per-mbit", 25_000, "--hours", 24).output
    assert output.startswith("5.72e-10 at the end of 24 h; 2.86e-10")
    assert "Error" in run("ber", "--fit-per-mbit", -1, "--hours", 24).output


@pytest.mark.long
def test_shards_and_merge(folder):
    """The same lines as in one process, shard by shard, from the batch scripts of examples/."""
    edit(folder, (PROTECTIONS, ""))
    run("campaign", folder / "study.toml")
    expected = pd.read_csv(folder / "out" / "trials.csv")
    edit(folder, ('store = "trials"', 'store = "sharded"'))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def start(command, **environment):
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(folder)} | environment
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)

    script = ["bash", str(ROOT / "examples" / "slurm_shards.sh"), "study.toml"]
    start(script, SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_TASK_MAX="2")
    lacking = run("merge", folder / "study.toml")
    assert lacking.exit_code == 1 and "shard 1/3 lacks" in lacking.output and lacking.output.count("\n") == 1
    done = run("campaign", folder / "study.toml", "--shard", "1/3")
    assert done.exit_code == 0 and "shard 1/3: 9 trials finished; when all are: drsrobust merge" in done.output
    job = yaml.safe_load((ROOT / "examples" / "kubernetes_shards.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    command = [part.replace("/study/", "").replace(f"/{job['completions']}", "/3") for part in container["command"]]
    start(command, JOB_COMPLETION_INDEX="2")
    done = run("merge", folder / "study.toml")
    assert done.exit_code == 0 and "report: " in done.output
    pd.testing.assert_frame_equal(pd.read_csv(folder / "out" / "trials.csv"), expected, check_exact=True)
    assert "3 processes of 1 machine" in (folder / "out" / "index.html").read_text()
    again = run("merge", folder / "study.toml", *sorted(folder.glob("sharded.shard-*-of-3")))
    assert again.exit_code == 0, again.output
    refused = run("campaign", folder / "study.toml", "--shard", "3/3")
    assert refused.exit_code == 1 and "of 3 shards the first is 0/3 and the last 2/3" in refused.output


def test_a_reader_that_has_gone_ends_nothing():
    """As of `drsrobust ... | head -0`: no traceback, no error."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "drsrobust", "ber", "--fit-per-mbit", "1", "--hours", "1"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
