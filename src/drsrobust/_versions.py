"""What a manifest records of where numbers were made: versions, commit, machine."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("drsrobust", "torch", "torchrec", "fbgemm-gpu", "numpy", "pandas", "matplotlib", "seaborn")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers; `absent` for those that are not installed."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


@cache
def commit() -> str | None:
    """The commit of the checkout this package lies in, with `-dirty` when it has changes; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, str | int | None]:
    """Architecture, number of cores, and memory in GiB."""
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
    }
