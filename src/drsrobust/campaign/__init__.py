"""Campaigns: grids of trials, run in this process or in workers, stored as they finish.

Names are imported at first use, so that reading a store needs no PyTorch. `drsrobust._names` lists them.
"""

from drsrobust._names import face

__getattr__, __dir__, __all__ = face(__name__)
