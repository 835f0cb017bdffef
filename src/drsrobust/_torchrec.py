"""TorchRec, imported at first use and without its noise.

Importing TorchRec logs on the root logger, which would install a handler and turn a user's later
`logging.basicConfig` into a silent no-op; its first forward logs one more line.
"""

import logging
import warnings
from functools import cache
from types import ModuleType


@cache
def torchrec() -> ModuleType:
    """The `torchrec` package.

    Raises:
        ImportError: TorchRec or FBGEMM cannot be imported; the message holds the command that installs them.
    """
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            import torchrec
            import torchrec.datasets.utils
            import torchrec.models.dlrm
    except (ImportError, OSError) as error:
        raise ImportError(
            f"drsrobust needs TorchRec here, and importing it failed: {error}. Install the pinned versions with "
            "`pip install -r requirements/cpu.txt` from the repository root (requirements/gpu.txt with an NVIDIA GPU)"
        ) from error
    finally:
        root.removeHandler(silent)
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    return torchrec
