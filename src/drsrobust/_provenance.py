"""Versions, commit and machine, for manifests."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from drsrobust import __version__

# The packages that decide the numbers.
PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "numpy", "pandas", "matplotlib", "seaborn")


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(*more: str) -> dict[str, str]:
    """Versions of Python, of this package's code, of `PACKAGES` and of further packages (`absent` if not installed)."""
    own = {"python": platform.python_version(), "drsrobust": __version__}  # metadata may be of an earlier checkout
    return own | {package: _version(package) for package in (*PACKAGES, *more)}


@cache
def commit() -> str | None:
    """The commit of this package's checkout, with `-dirty` if files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    """Its model, as Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def machine() -> dict[str, str | int | None]:
    """Operating system, architecture, processor, number of cores, and memory in GiB."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
