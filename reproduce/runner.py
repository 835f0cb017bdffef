"""Runs one notebook by papermill, strictly: what papermill lets pass (unknown parameters, dead kernels, half-written
output, a notebook that ends early) is a failure here."""

import errno
import logging
import os
import re
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drsrobust._files import cache_folder
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


MEMORY = "the machine's or that of `ulimit -v`; --jobs 1 runs one notebook at a time"


def run_notebook(notebook: Notebook, parameters: dict[str, Any], folder: Path) -> Outcome:
    """Executes a notebook into `folder`: notebooks/<name>.ipynb, figures/, figures/data/.

    The executed notebook appears under its name only when every cell ran and its figures are there; after a failure it is
    kept as <name>.failed.ipynb, up to the cell that failed, unless the disk had no room for it.

    Raises:
        ValueError, TypeError: as `Notebook.check`, before a kernel starts.
    """
    notebook.check(parameters)
    outputs, figures = folder / "notebooks", folder / "figures"
    done, failed = outputs / f"{notebook.name}.ipynb", outputs / f"{notebook.name}.failed.ipynb"
    part = outputs / f".{notebook.name}.part.ipynb"
    drawn = [*figures.glob(f"{notebook.name}*.*"), *figures.glob(f"data/{notebook.name}*.*")]
    for old in (done, failed, part, *drawn, *tables_of(notebook.name, figures)):
        old.unlink(missing_ok=True)
    start = time.monotonic()
    with PeakMemory() as memory:
        try:
            outputs.mkdir(parents=True, exist_ok=True)
            error = _execute(notebook, parameters, part, figures)
        except OSError as problem:
            error = explained(type(problem).__name__, str(problem), folder)
    if error is None:
        names = sorted(path.stem for path in figures.glob(f"{notebook.name}*.svg"))
        complete = [n for n in names if (figures / f"{n}.png").is_file() and (figures / "data" / f"{n}.csv").is_file()]
        if not complete or complete != names:
            error = f"ended without its figure (there must be figures/{notebook.name}*.svg, .png and data/*.csv)"
    kept = done if error is None else failed
    if _read(part) is not None:
        part.rename(kept)
    part.unlink(missing_ok=True)
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


def tables_of(notebook: str, figures: Path) -> list[Path]:
    """The tables that a notebook wrote: they have its name, but for the models' table of `00_models`."""
    named = figures.glob("models.csv") if notebook == "00_models" else ()
    return sorted([*figures.glob(f"{notebook}*.csv"), *named])


# At its end a kernel is interrupted, and now and then it or its event loop says so as if it were an error.
_QUIET_END = ["--log-level=50", "--IPKernelApp.exec_lines=__import__('logging').getLogger('asyncio').setLevel(50)"]


def _execute(notebook: Notebook, parameters: dict[str, Any], output: Path, figures: Path) -> str | None:
    """None, or what went wrong in one line. A kernel that never started (a race for ports) is tried once more."""
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
            name, text = error.ename, error.evalue
            if name == "CellExecutionError":  # IPython itself failed to say which, as it may when memory runs out
                name, text = _printed(output)
            return explained(name, text, figures.parent)
        except Exception as error:  # the kernel died, or never came: papermill's own metadata cannot be trusted here
            executed = _read(output)
            cells = [] if executed is None else executed.cells
            started = any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
            if started or attempt == 2 or isinstance(error, OSError):
                return explained(type(error).__name__, str(error), figures.parent)


def _read(path: Path) -> Any | None:
    """The notebook in a file; None where there is none, or only the part of one that fitted on the disk."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (FileNotFoundError, nbformat.reader.NotJSONError):
        return None


def _printed(output: Path) -> tuple[str, str]:
    """Name and message of the first exception in the error streams of an executed notebook."""
    executed = _read(output)
    outputs = [one for cell in executed.cells for one in cell.get("outputs", ())] if executed else []
    text = "".join(one.text for one in outputs if one.get("name") == "stderr")
    found = re.search(r"^(\w*(?:Error|Exception))(?:: (.*))?$", text, re.MULTILINE)
    return (found[1], found[2] or "") if found else ("CellExecutionError", "see the notebook")


def explained(name: str, text: str, folder: Path) -> str:
    """An error in one line. A full disk is named by the space that is free where a run writes, lacking memory as such.

    Args:
        name: the exception's type.
        text: its message, which may be empty.
        folder: of the run.
    """
    line = f"{name}: {text}".splitlines()[0].rstrip(": ")
    if any(os.strerror(code) in text for code in (errno.ENOSPC, errno.EDQUOT)):
        return f"{line}; free space: {free_space(folder)}"
    if name == "MemoryError" or "allocate memory" in text:
        return f"{line}; memory ran out, {MEMORY}"
    return f"{line}; memory may have run out, {MEMORY}" if "Kernel died" in text else line


def free_space(folder: Path) -> str:
    """MiB that are free where a run writes: its folder, the cache, and the folder of temporary files."""
    places = []
    for place in (folder, cache_folder(), Path(tempfile.gettempdir())):
        there = next(above for above in (place, *place.parents) if above.exists())
        places.append(f"{shutil.disk_usage(there).free / 2**20:,.1f} MiB in {place}")
    return ", ".join(dict.fromkeys(places))


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
