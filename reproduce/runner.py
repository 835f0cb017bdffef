"""Runs one notebook by papermill, strictly: what papermill lets pass (unknown parameters, dead kernels, half-written
output, a notebook that ends early) is a failure here."""

import logging
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce.memory import PeakMemory
from reproduce.notebooks import Notebook


@dataclass
class Outcome:
    """How the run of one notebook ended."""

    notebook: str
    title: str
    ok: bool
    seconds: float
    parameters: dict[str, Any]
    output: str  # the executed notebook, relative to the run's folder
    figures: list[str] = field(default_factory=list)  # names, without ending
    error: str = ""
    peak_mib: int = 0  # the most memory that its processes had


def run_notebook(notebook: Notebook, parameters: dict[str, Any], folder: Path) -> Outcome:
    """Executes a notebook into `folder`: notebooks/<name>.ipynb, figures/, figures/data/.

    The executed notebook appears under its name only when every cell ran and its figures are there; after a failure it is
    kept as <name>.failed.ipynb, up to the cell that failed.

    Raises:
        ValueError, TypeError: as `Notebook.check`, before a kernel starts.
    """
    notebook.check(parameters)
    outputs, figures = folder / "notebooks", folder / "figures"
    outputs.mkdir(parents=True, exist_ok=True)
    done, failed = outputs / f"{notebook.name}.ipynb", outputs / f"{notebook.name}.failed.ipynb"
    part = outputs / f".{notebook.name}.part.ipynb"
    for old in (done, failed, part, *figures.glob(f"{notebook.name}*.*"), *figures.glob(f"data/{notebook.name}*.*")):
        old.unlink(missing_ok=True)
    start = time.monotonic()
    with PeakMemory() as memory:
        error = _execute(notebook, parameters, part, figures)
    if error is None:
        names = sorted(path.stem for path in figures.glob(f"{notebook.name}*.svg"))
        complete = [n for n in names if (figures / f"{n}.png").is_file() and (figures / "data" / f"{n}.csv").is_file()]
        if not complete or complete != names:
            error = f"ended without its figure (there must be figures/{notebook.name}*.svg, .png and data/*.csv)"
    kept = done if error is None else failed
    if part.exists():
        part.rename(kept)
    return Outcome(
        notebook.name,
        notebook.title,
        error is None,
        time.monotonic() - start,
        parameters,
        f"notebooks/{kept.name}",
        names if error is None else [],
        error or "",
        memory.mib,
    )


# At its end a kernel is interrupted, and now and then it or its event loop says so as if it were an error.
_QUIET_END = ["--log-level=50", "--IPKernelApp.exec_lines=__import__('logging').getLogger('asyncio').setLevel(50)"]


def _execute(notebook: Notebook, parameters: dict[str, Any], output: Path, figures: Path) -> str | None:
    """None, or what went wrong in one line. A kernel that never started (a race for ports) is tried once more."""
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    quiet = Config({"KernelManager": {"transport_encryption": "auto"}})  # ipykernel 7 remarks on plain TCP otherwise
    for attempt in (1, 2):
        try:
            with _environment(DRSROBUST_FIGURES=str(figures), DRSROBUST_BATCH="1", JUPYTER_PREFER_ENV_PATH="1"):
                papermill.execute_notebook(
                    str(notebook.path),
                    str(output),
                    parameters=parameters,
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    config=quiet,
                    extra_arguments=_QUIET_END,
                )
            return None
        except PapermillExecutionError as error:
            return f"{error.ename}: {error.evalue}".splitlines()[0]
        except Exception as error:  # the kernel died, or never came: papermill's own metadata cannot be trusted here
            cells = nbformat.read(output, as_version=4).cells if output.exists() else []
            started = any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
            if started or attempt == 2:
                return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def _environment(**values: str):
    """Variables for the kernel, which inherits this process's environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
