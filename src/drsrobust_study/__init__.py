"""The study of D. Ma et al., ISSRE 2025 (doi 10.1109/ISSRE66568.2025.00016; preprint arXiv:2307.10244): numbers and wording of
the notebooks that repeat it, one module per topic.

Only notebooks, `reproduce/` and `benchmarks/` import it. `figures` draws what the modules compute.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
