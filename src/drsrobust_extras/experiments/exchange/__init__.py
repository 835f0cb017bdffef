"""Error maps of and for other tools: a JSON file that any program can read and write, and the maps of PyTEI, PyTorchFI and
MRFI."""

from drsrobust_extras.experiments.exchange.files import read, write
from drsrobust_extras.experiments.exchange.other_tools import from_mrfi, from_pytei, from_pytorchfi
from drsrobust_extras.experiments.exchange.places import between

__all__ = ["between", "from_mrfi", "from_pytei", "from_pytorchfi", "read", "write"]
