"""What notebooks import, imported: for a process that forks their kernels."""

import os

# A figure chooses its backend when the first is drawn, by this variable as it was when matplotlib was imported.
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

import ipykernel.kernelapp  # noqa: E402, F401
import seaborn  # noqa: E402, F401

import drsrobust.campaign.workers  # noqa: E402
import drsrobust.planning  # noqa: E402
import drsrobust.plots  # noqa: E402
import drsrobust.training.load  # noqa: E402
import drsrobust_study.figures  # noqa: E402, F401
from drsrobust.introspection.embedding_modules import torchrec  # noqa: E402

torchrec()
