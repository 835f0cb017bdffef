"""Prints which build of PyTorch is installed, and how to get the small one."""

from importlib.metadata import requires, version

if any(line.startswith("nvidia-") for line in requires("torch") or ()):
    print(
        f"PyTorch {version('torch')} is the CUDA build, 5 GB with NVIDIA's libraries; it runs on a CPU too. For the CPU build "
        "of 0.7 GB: rm -r .venv, then make setup PIP_EXTRA_INDEX_URL=<its index: https://pytorch.org/get-started/locally/>"
    )
else:
    print(f"PyTorch {version('torch')} is a build without NVIDIA's libraries")
