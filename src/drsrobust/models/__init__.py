"""TorchRec models: forward(dense_features, sparse_features) -> logits [B]; components have the same names in all of them.

Names are imported at first use, so that the list of models needs no PyTorch. `drsrobust._names` lists them.
"""

from drsrobust._names import face

__getattr__, __dir__, __all__ = face(__name__)
