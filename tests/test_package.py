import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import drsrobust
from drsrobust.introspection import embedding_modules


def python(code, *flags):
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)


HEAVY = {"torch", "torchrec", "pandas", "scipy", "seaborn", "matplotlib"}


@pytest.mark.parametrize(
    ("module", "heavy"), [("drsrobust", HEAVY | {"numpy", "pyarrow"}), ("drsrobust.campaign.store", HEAVY)]
)
def test_import_brings_nothing_heavy(module, heavy):
    """What makes it quick: these come at first use."""
    done = python(f"import sys, {module}; print({heavy} & set(sys.modules))")
    assert done.stdout == "set()\n" and done.stderr == ""


@pytest.mark.parametrize("package", [drsrobust, drsrobust.campaign], ids=lambda package: package.__name__)
def test_every_name_of_the_stub_is_there(package):
    tree = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    names = {name.asname or name.name for node in tree.body for name in getattr(node, "names", [])}
    assert set(package.__all__) == names
    for name in package.__all__:
        assert getattr(package, name) is not None and name in dir(package)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.long
def test_first_use_of_torchrec_is_silent():
    code = """
import logging, drsrobust as dr
from drsrobust.models import build_model, padded_batches, score
for name in ("dlrm", "wide_deep"):
    data = dr.load_dataset("synthetic-movielens", rows=500)
    score(build_model(name, data.schema), padded_batches(data.test), 50)
assert not logging.getLogger().handlers, "basicConfig would do nothing"
"""
    done = python(code, "-W", "default")
    assert done.returncode == 0 and done.stdout == "" and done.stderr == ""


@pytest.mark.parametrize(
    ("torch", "torchrec", "fits"),
    [
        ("2.13.0+cpu", "1.8.0", True),
        ("2.14.1", "1.9.2", True),
        ("2.14.1+cu130", "1.8.0", False),
        ("2.13.0", "1.9.2", False),
        ("2.15.0", "1.9.2", False),
        ("2.14.0", "1.7.0", False),
        ("2.99.0", "1.99.0", True),  # what is not known may fit
        ("2.15.0", None, True),  # the import says that TorchRec is missing
    ],
)
def test_a_torchrec_of_another_pytorch_is_one_line(torch, torchrec, fits, monkeypatch):
    def version(name):
        found = {"torch": torch, "torchrec": torchrec}[name]
        if found is None:
            raise embedding_modules.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(embedding_modules, "version", version)
    if fits:
        assert embedding_modules.torchrec.__wrapped__()
        return
    with pytest.raises(ImportError) as refused:
        embedding_modules.torchrec.__wrapped__()
    said = f"TorchRec {torchrec} does not fit PyTorch {torch}: install TorchRec 1.8 with PyTorch 2.13 or "
    assert str(refused.value) == said + "TorchRec 1.9 with PyTorch 2.14"


def test_the_extra_and_the_lock_are_tested_pairs():
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extra = {need.name: need.specifier for need in map(Requirement, project["optional-dependencies"]["torchrec"])}
    fitting = {
        (torch, torchrec) for torch, torchrec in embedding_modules.PAIRS if extra["torch"].contains(f"{torch}.1")
    }
    assert [torchrec for _, torchrec in fitting] == ["1.9"] and extra["torchrec"].contains("1.9.2")
    pinned = dict(re.findall(r"(?m)^(torch|torchrec)==(\d+\.\d+)", (root / "requirements" / "cpu.txt").read_text()))
    assert (pinned["torch"], pinned["torchrec"]) in embedding_modules.PAIRS
    (core,) = (need for need in map(Requirement, project["dependencies"]) if need.name == "torch")
    assert all(core.specifier.contains(found) for found in ("2.13.0", "2.14.1", "2.15.0", "3.0"))
