"""Portable mode: what the kernels of a run see."""

import json
import os
import subprocess
import sys

import pytest

from reproduce.portable import VARIABLES

SHOW = """
import json, os, sys
os.environ["DRSROBUST_CACHE"] = sys.argv[1]
from reproduce.portable import make_portable
make_portable()
import subprocess
show = "import json, numpy, torch, os; from numpy._core import _multiarray_umath as np_cpu;"
show += "kernels = [name for name in np_cpu.__cpu_dispatch__ if np_cpu.__cpu_features__[name]];"
show += "print(json.dumps([torch.backends.cpu.get_cpu_capability(), kernels, dict(os.environ)]))"
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.long
def test_later_processes_have_no_more_than_avx2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path)], capture_output=True, text=True, check=True, env=os.environ
    )
    capability, kernels, variables = json.loads(done.stdout)
    assert capability in ("AVX2", "DEFAULT")  # DEFAULT: another architecture, or no AVX2
    assert not [name for name in kernels if name.startswith(("AVX512", "X86_V4"))]
    assert VARIABLES.items() <= variables.items() and variables["DRSROBUST_CACHE"] == str(tmp_path / "portable")
