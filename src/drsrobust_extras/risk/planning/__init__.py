"""Protection plans: which protection each tensor gets, within budgets of memory and time.

Names are imported at first use. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
