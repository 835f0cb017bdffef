"""The built wheel in an environment of its own, without TorchRec, used from a folder outside of the repository."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parent.parent
USERS = ROOT / "tests" / "users"
SCRIPTS = sorted(path.stem for path in USERS.glob("*.py") if path.stem not in ("shop", "torchrec_dlrm"))

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    return next(folder.glob("drsrobust-*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, and of this environment's packages only what the wheel requires."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("drsrobust-*.dist-info")
    for source in required(Distribution.at(metadata)):
        if not (packages / source.name).exists():
            (packages / source.name).symlink_to(source)
    return python


def required(wheel):
    """Files and folders of all that a distribution requires, directly or not, without extras."""
    waiting, names, sources = [wheel], set(), set()
    while waiting:
        for text in waiting.pop().requires or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and (name := requirement.name.lower().replace("_", "-")) not in names:
                names.add(name)
                waiting.append(found := distribution(name))
                tops = {file.parts[0] for file in found.files} - {"..", "__pycache__"}
                sources |= {Path(found.locate_file(top)) for top in tops}
    return sources


@pytest.fixture(scope="module")
def warm(python):
    """The interpreter, which has imported what the package requires, and the package."""
    warm = WarmPython(python)
    yield warm
    warm.close()


def run(python, script, folder):
    """Runs a script as a user does: in a folder of her own, with nothing of this repository on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"DRSROBUST_CACHE": str(folder / "cache"), "MPLBACKEND": "Agg", "PYTHONNOUSERSITE": "1"}
    for path in (USERS / "shop.py", USERS / f"{script}.py"):
        (folder / path.name).write_text(path.read_text())
    done = python.run(f"{script}.py", cwd=folder, env=environment)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_it_holds_the_package_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
        endings = {Path(name).suffix for name in archive.namelist() if name.startswith("drsrobust")}
    packages = {name for name in folders if not name.endswith(".dist-info")}
    assert packages == {"drsrobust", "drsrobust_extras"} and len(folders) == 3  # the study stays in the checkout
    assert ".ipynb" not in endings and {".j2", ".pyi", ".py"} <= endings


def test_there_is_no_torchrec(python):
    assert subprocess.run([python, "-c", "import torchrec"], capture_output=True).returncode
    done = subprocess.run(
        [
            python,
            "-c",
            "import drsrobust as dr; dr.load_model('dlrm', dr.load_dataset('synthetic-movielens', rows=500))",
        ],
        capture_output=True,
        text=True,
    )
    assert "drsrobust needs TorchRec here" in done.stderr and "drsrobust[torchrec]" in done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_user(warm, tmp_path, script):
    run(warm, script, tmp_path)


def test_a_user_of_torchrec(warm_python, tmp_path):
    run(warm_python, "torchrec_dlrm", tmp_path)


def test_the_command(python, tmp_path):
    for name in ("shop.py", "study.toml"):
        (tmp_path / name).write_text((USERS / name).read_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"DRSROBUST_CACHE": str(tmp_path / "cache"), "PYTHONNOUSERSITE": "1"}
    command = [python.with_name("drsrobust"), "campaign", "study.toml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "range per tensor" in done.stdout and (tmp_path / "report" / "index.html").is_file()
