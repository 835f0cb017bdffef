"""`notebooks/index.ipynb`, and how long every notebook takes with its defaults (`python -m reproduce --times`).

docs/reproduce.md says what each notebook answers, `reproduce/rules.toml` which statements of the study it carries, and
`reproduce/defaults.csv` holds its times.
"""

import csv
import re
import shutil
from pathlib import Path

import nbformat

from drsrobust._files import new_file
from drsrobust._provenance import machine
from reproduce.notebooks import ROOT, Notebook, all_notebooks
from reproduce.published_notebooks import FOLDER, published_folder
from reproduce.runner import environment, locked, run_notebook
from reproduce.statements import statements_of

INDEX = ROOT / "notebooks" / "index.ipynb"
TIMES = ROOT / "reproduce" / "defaults.csv"
LIMIT = 300  # seconds: a notebook that a person opens and runs should take less than five minutes
COLUMNS = ["notebook", "seconds", "cpu_seconds", "peak_mib", "machine"]
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
OPENING = """# The notebooks

What hardware bit errors do to deep recommenders, one question after the other. Click on a name to open it; then
*Run, Run All Cells*. Every notebook begins with a cell of parameters, which you may change, and needs no data: by default it
generates its own.

{table}

{times} Trained models and finished trials are kept, so that a second run takes far less.

New here? Open [00_quickstart](00_quickstart.ipynb). A shell runs any of them too, with other parameters:
`python -m reproduce 03_ber_sweep 'bers=[1e-6,1e-5]' models=dlrm`; `make reproduce` runs them all and writes a report."""

RESULTS = f"With their results, without running anything: [the published run](../figures/{FOLDER})."


def index_notebook(notebooks: dict[str, Notebook], guide: str, measured: list[dict[str, str]]) -> nbformat.NotebookNode:
    """The index: a line for every notebook.

    Args:
        notebooks: as `all_notebooks` gives them.
        guide: the text of docs/reproduce.md, with its table of notebooks.
        measured: rows with `notebook`, `seconds`, `cpu_seconds`, `peak_mib`, `machine`.

    Raises:
        ValueError: a notebook without its line in the guide.
    """
    rows = {row["notebook"]: row for row in measured}
    lines = [
        "| notebook | what it answers | statement | minutes | CPU seconds | memory |",
        "| :-- | :-- | :-- | --: | --: | --: |",
    ]
    lines += [_line(notebook, guide, rows.get(notebook.name)) for notebook in notebooks.values()]
    machines = sorted({row["machine"] for row in measured})
    taken = f"Minutes and memory with the defaults, from an empty cache, on {' and '.join(machines)}."
    words = OPENING.format(table="\n".join(lines), times=taken if measured else "Times were not measured yet.")
    made = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    made.cells = [nbformat.v4.new_markdown_cell(words, id="0")]
    if published_folder():
        made.cells += [nbformat.v4.new_markdown_cell(RESULTS, id="results")]
    return made


def _line(notebook: Notebook, guide: str, row: dict[str, str] | None) -> str:
    answers = re.search(rf"^\| `{notebook.name}` \| (.*) \|$", guide, re.MULTILINE)
    if not answers:
        raise ValueError(
            f"docs/reproduce.md does not say what {notebook.name} answers: a line | `{notebook.name}` | ... |"
        )
    minutes, cpu, memory = "", "", ""
    if row:
        minutes, memory = f"{float(row['seconds']) / 60:.1f}", f"{float(row['peak_mib']) / 1024:.1f} GiB"
        cpu = f"{float(row['cpu_seconds']):.0f}" if row.get("cpu_seconds") else ""
    statements = ", ".join(statements_of(notebook.name)) or "-"
    return f"| [{notebook.name}]({notebook.name}.ipynb) | {answers[1]} | {statements} | {minutes} | {cpu} | {memory} |"


def write_index() -> None:
    """Writes `notebooks/index.ipynb`."""
    made = index_notebook(all_notebooks(), (ROOT / "docs" / "reproduce.md").read_text(), read_times(TIMES))
    with new_file(INDEX) as part, open(part, "w") as handle:
        nbformat.write(made, handle)


def time_notebooks(names: list[str], notebooks: dict[str, Notebook], out: Path) -> int:
    """Runs notebooks one after the other with their defaults, on generated data and from an empty cache; after each one that
    ended well, its row of the table and the index are written.

    Returns:
        exit status: 1 when a notebook failed or took over the limit, else 0.
    """
    rows, status, cache = {row["notebook"]: row for row in read_times(TIMES)}, 0, out / "defaults-cache"
    where = f"{machine()['cores']} cores {machine()['architecture']}"
    with locked(out / "defaults"), environment(DRSROBUST_CACHE=str(cache)):
        for name in names or notebooks:
            shutil.rmtree(cache, ignore_errors=True)
            outcome = run_notebook(notebooks[name], {}, out / "defaults")
            reason = outcome.error or ("" if outcome.seconds < LIMIT else f"over the limit of {LIMIT} s")
            print(
                f"{name}: {outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} CPU s, {outcome.peak_mib:,} MiB {reason}".rstrip(),
                flush=True,
            )
            status = 1 if reason else status
            if not outcome.error:
                values = (name, round(outcome.seconds, 1), outcome.cpu_seconds, outcome.peak_mib, where)
                rows[name] = dict(zip(COLUMNS, values, strict=True))
                write_times([rows[other] for other in notebooks if other in rows], TIMES)
        shutil.rmtree(cache, ignore_errors=True)
    write_index()
    return status


def read_times(path: Path) -> list[dict[str, str]]:
    """The rows of a table of times; none where it is missing."""
    if not path.is_file():
        return []
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def write_times(rows: list[dict], path: Path) -> None:
    """Writes a table of times, whole or not at all."""
    with new_file(path) as part, open(part, "w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    write_index()
