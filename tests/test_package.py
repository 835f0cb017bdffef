import subprocess
import sys

import pytest

import drsrobust


def python(code, *flags):
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)


def test_import_brings_nothing_heavy():
    """What makes `import drsrobust` quick: these come at first use."""
    heavy = "{'torch', 'torchrec', 'numpy', 'pandas', 'pyarrow', 'seaborn', 'matplotlib', 'scipy'}"
    done = python(f"import sys, drsrobust; print({heavy} & set(sys.modules))")
    assert done.stdout == "set()\n" and done.stderr == ""


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


def test_every_name_of_the_stub_is_there():
    for name in drsrobust.__all__:
        assert getattr(drsrobust, name) is not None and name in dir(drsrobust)
    with pytest.raises(AttributeError, match="No drsrobust attribute nothing"):
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
