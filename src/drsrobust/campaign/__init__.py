"""Campaigns: grids of trials, run in this process or in workers, stored as they finish.

Names are imported at first use, so that reading a store needs no PyTorch. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
