"""The study of arXiv:2307.10244: numbers and wording of its notebooks, one module per topic.

Only notebooks, `reproduce/` and `benchmarks/` import it. `figures` draws what the modules compute.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
