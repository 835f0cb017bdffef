"""Kernels of notebooks that generate fewer rows."""

from pathlib import Path


def few_rows(folder: Path) -> str:
    """IPYTHONDIR of kernels whose ratings are 20,000, made in a folder."""
    startup = folder / "ipython" / "profile_default" / "startup" / "rows.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text("from drsrobust_extras.data import synthetic; synthetic.ROWS['synthetic-movielens'] = 20_000")
    return str(folder / "ipython")
