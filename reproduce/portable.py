"""Portable mode: processors with more than AVX2 compute what processors with AVX2 do.

PyTorch, oneDNN, FBGEMM, MKL, OpenBLAS and NumPy choose their kernels by the processor, and kernels round differently, so that a
model trained on another processor is another model. Here all are held to AVX2, MKL to its branch for any processor, each to one
thread. The variables are read when the libraries are loaded, so they are set before notebooks start.
"""

import os

from drsrobust._files import cache_folder

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
VARIABLES = _ONE_THREAD | {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
}


def make_portable() -> None:
    """Sets the environment of all processes that start later. Models and trials are cached apart from those of other runs."""
    from numpy._core._multiarray_umath import __cpu_dispatch__

    above = [name for name in __cpu_dispatch__ if name.startswith(("AVX512", "AVX10", "X86_V4"))]
    os.environ.update(VARIABLES | {"DRSROBUST_CACHE": str(cache_folder("portable"))})
    if above:
        os.environ["NPY_DISABLE_CPU_FEATURES"] = " ".join(above)
