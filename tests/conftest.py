"""Shared fixtures: a cache of its own for each test run, a tiny data set and model, and the real data where it lies."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")  # no window, wherever tests run
ROOT = Path(__file__).resolve().parent.parent

# Files of tests by their seconds, the most first.
LONGEST = (
    "reproduce/test_reproduce.py",
    "campaign/test_scale_page.py",
    "benchmarks/test_benchmarks.py",
    "test_wheel.py",
    "reproduce/test_sweep.py",
    "sharded/test_sharded.py",
    "extras/pages/test_command.py",
    "reproduce/test_runner.py",
    "test_pages.py",
    "campaign/test_code_identity.py",
    "extras/experiments/test_chosen_flips.py",
    "extras/protection/test_protection_page.py",
)


def long_but(few, values):
    """Parameters of a test, of which all but a few are long."""
    return [value if value in few else pytest.param(value, marks=pytest.mark.long) for value in values]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The files that take longest are the first, so that no worker is left alone with one at the end."""
    place = {(ROOT / "tests" / name).resolve(strict=True): number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported here stays: the garbage collector need not go through it again and again, neither while it is imported
    nor in the tests, 6 % of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("DRSROBUST_CACHE")
    os.environ["DRSROBUST_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["DRSROBUST_CACHE"]
    else:
        os.environ["DRSROBUST_CACHE"] = before


@pytest.fixture(autouse=True)
def same_weights():
    """Models that a test builds without training have the same weights whichever tests ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRSROBUST_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def warm_python():
    """Runs scripts in processes that need not import PyTorch: see `WarmPython.run`."""
    from tests.warm_python import MODULES, WarmPython

    python = WarmPython(modules=(*MODULES, "torchrec"))
    yield python
    python.close()


@pytest.fixture(scope="session")
def data():
    """Generated ratings in the schema `full`: dense columns, single- and multi-hot features."""
    from drsrobust_extras.data.load import load_dataset

    return load_dataset("synthetic-movielens/full", rows=6000)


@pytest.fixture(scope="session")
def trained(data):
    """A DLRM after two epochs. Tests leave it as it was (`trained_stays`)."""
    from drsrobust.training import Settings, load_model

    return load_model("dlrm", data, settings=Settings(epochs=2, batch_size=512), progress=False)


@pytest.fixture(autouse=True)
def trained_stays(request):
    """A test that leaves errors in the shared model would fail others, far away."""
    if "trained" not in request.fixturenames:
        yield
        return
    from drsrobust.models import state_digest

    model = request.getfixturevalue("trained")
    before = state_digest(model)
    yield
    assert state_digest(model) == before


@pytest.fixture
def evaluator(trained, data):
    from drsrobust.evaluation import Evaluator

    return Evaluator(trained, data.test)


@pytest.fixture(scope="session")
def real_data():
    """The folder with the real data sets."""
    folder = os.environ.get("DRSROBUST_DATA")
    if not folder:
        pytest.skip("real data: set DRSROBUST_DATA to the folder that holds ml-1m/ and criteo/")
    return Path(folder)


@pytest.fixture
def start():
    """Starts a process in a group of its own. The group is killed when the test ends, so a failed test leaves none behind."""
    started = []

    def popen(command, **options):
        started.append(subprocess.Popen(command, start_new_session=True, **options))
        return started[-1]

    yield popen
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # closes its pipes and waits for it
            pass


@pytest.fixture(autouse=True)
def close_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def fewer_rows(monkeypatch):
    """Pages load `synthetic-movielens` with its default number of rows, and train on it until nothing is gained."""
    from drsrobust import training
    from drsrobust_extras.data import synthetic

    def short(*names, **options):
        return replace(defaults(*names, **options), epochs=10)

    defaults = training.default_settings
    for module in (training, training.load):
        monkeypatch.setattr(module, "default_settings", short)
    monkeypatch.setitem(synthetic.ROWS, "synthetic-movielens", 20_000)


@pytest.fixture
def run_page(monkeypatch, tmp_path, fewer_rows):
    """Runs the Python of a page of docs/ as written, one block after the other, in an empty folder and
    without the study, as from a wheel; gives its names."""

    def run(name: str, blocks: int) -> dict:
        monkeypatch.chdir(tmp_path)
        found = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)
        assert len(found) == blocks
        page = types.ModuleType("page")  # classes of the page can be imported from it, by the registry say
        monkeypatch.setitem(sys.modules, "page", page)
        monkeypatch.setitem(sys.modules, "drsrobust_study", None)
        for block in found:
            exec(compile(block, name, "exec"), vars(page))
        return vars(page)

    return run
