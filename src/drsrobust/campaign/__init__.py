"""Campaigns: grids of trials, run in this process or in workers, stored as they finish.

Names are imported at first use, so that reading a store needs no PyTorch. `__init__.pyi` lists them.
"""

import lazy_loader

from drsrobust.removed_names import module_getattr

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = module_getattr(__name__, {"strata": "use drsrobust.campaign.bit_partition"}, _load)
