import ast
import subprocess
import sys
from pathlib import Path

import pytest

import drsrobust

SOURCE = Path(drsrobust.__file__)


def python(code, *flags):
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)


def test_import_brings_nothing_heavy():
    """What makes `import drsrobust` quick: these come at first use."""
    heavy = "{'torch', 'torchrec', 'numpy', 'pandas', 'pyarrow', 'seaborn', 'matplotlib', 'scipy'}"
    done = python(f"import sys, drsrobust; print({heavy} & set(sys.modules))")
    assert done.stdout == "set()\n" and done.stderr == ""


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


def test_names_for_editors_and_for_use_are_the_same():
    tree = ast.parse(SOURCE.read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {(node.module, name.name) for node in block.body for name in node.names}
    lazy = {(module, name) for name, module in drsrobust._HOME.items()}
    assert typed == lazy | {("drsrobust", name) for name in drsrobust._PACKAGES}
    for name in drsrobust.__all__:
        assert getattr(drsrobust, name) is not None and name in dir(drsrobust)
    with pytest.raises(AttributeError, match="module 'drsrobust' has no attribute 'nothing'"):
        drsrobust.nothing  # noqa: B018


def test_without_torchrec_one_error_says_how_to_install_it():
    code = """
import sys
sys.modules["torchrec"] = None
import drsrobust as dr
data = dr.load_dataset("synthetic-movielens", rows=500)
try:
    dr.load_model("dlrm", data)
except ImportError as error:
    print(error)
"""
    assert "pip install -r requirements/cpu.txt" in python(code).stdout
