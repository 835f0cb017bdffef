"""Raw files to encoded, split, memory-mapped data sets: MovieLens, Criteo, and generated ones of both shapes; your own rows.

Names are imported at first use, so that lists of data sets need no PyTorch. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
