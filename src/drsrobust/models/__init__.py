"""TorchRec models: forward(dense_features, sparse_features) -> logits [B]; components have the same names in all of them.

Names are imported at first use, so that the list of models needs no PyTorch. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
