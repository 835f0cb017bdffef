"""What notebooks import, imported: for a process that forks their kernels."""

import gc
import os
from importlib import import_module

from drsrobust.introspection.embedding_modules import torchrec

gc.disable()  # it would go through a growing heap again and again
# A figure chooses its backend when the first is drawn, by this variable as it was when matplotlib was imported.
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
for name in (
    "ipykernel.kernelapp",
    "seaborn",
    "drsrobust.campaign.workers",
    "drsrobust_extras.risk.planning",
    "drsrobust_extras.pages.plots",
):
    import_module(name)
for name in ("drsrobust.training.load", "drsrobust_study.figures"):
    import_module(name)
torchrec()
gc.collect()
gc.enable()
gc.freeze()  # a collection in a forked process need not go through all this
