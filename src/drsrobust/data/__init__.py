"""Raw files to encoded, split, memory-mapped data sets: MovieLens, Criteo, and generated ones of both shapes; your own rows.

Names are imported at first use, so that lists of data sets need no PyTorch. `drsrobust._names` lists them.
"""

from drsrobust._names import face

__getattr__, __dir__, __all__ = face(__name__)
