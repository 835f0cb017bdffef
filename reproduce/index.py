"""`notebooks/index.ipynb`, written from what is known of the notebooks: `python -m reproduce.index`.

What each one answers stands in the README, its claim in its first cell, and how long it takes in `reproduce/defaults.csv`:
measured by `make bench BENCH=defaults`, and taken over by `python -m reproduce.index build/bench/defaults.csv`.
"""

import json
import re
import sys
from pathlib import Path

import nbformat

from drsrobust._files import new_file
from reproduce.defaults import read_times, write_times
from reproduce.notebooks import ROOT, Notebook, all_notebooks

INDEX = ROOT / "notebooks" / "index.ipynb"
TIMES = ROOT / "reproduce" / "defaults.csv"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
OPENING = """# The notebooks

What hardware bit errors do to deep recommenders, one question after the other. Click on a name to open it; then
*Run, Run All Cells*. Every notebook begins with a cell of parameters, to be changed at will, and needs no data: by default it
generates its own.

{table}

{times} Trained models and finished trials are kept, so that a second run takes far less.

New here? Open [00_quickstart](00_quickstart.ipynb). A shell runs any of them too, with other parameters:
`python -m reproduce 03_ber_sweep 'bers=[1e-6,1e-5]' models=dlrm`; `make reproduce` runs them all and writes a report."""


def index_notebook(
    notebooks: dict[str, Notebook], readme: str, measured: list[dict[str, str]]
) -> nbformat.NotebookNode:
    """The index: a line for every notebook.

    Args:
        notebooks: as `all_notebooks` gives them.
        readme: the text of README.md, whose table says what each one answers.
        measured: rows with `notebook`, `seconds`, `peak_mib`, `machine`.

    Raises:
        ValueError: a notebook without its line in the README.
    """
    rows = {row["notebook"]: row for row in measured}
    lines = ["| notebook | what it answers | claim | minutes | memory |", "| :-- | :-- | :-- | --: | --: |"]
    lines += [_line(notebook, readme, rows.get(notebook.name)) for notebook in notebooks.values()]
    machines = sorted({row["machine"] for row in measured})
    taken = f"Minutes and memory with the defaults, from an empty cache, on {' and '.join(machines)}."
    words = OPENING.format(table="\n".join(lines), times=taken if measured else "Times were not measured yet.")
    made = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    made.cells = [nbformat.v4.new_markdown_cell(words, id="0")]
    return made


def _line(notebook: Notebook, readme: str, row: dict[str, str] | None) -> str:
    answers = re.search(rf"^\| `{notebook.name}` \| (.*) \|$", readme, re.MULTILINE)
    if not answers:
        raise ValueError(f"README.md does not say what {notebook.name} answers: a line | `{notebook.name}` | ... |")
    minutes, memory = "", ""
    if row:
        minutes, memory = f"{float(row['seconds']) / 60:.1f}", f"{float(row['peak_mib']) / 1024:.1f} GiB"
    claims = ", ".join(claims_of(notebook)) or "-"
    return f"| [{notebook.name}]({notebook.name}.ipynb) | {answers[1]} | {claims} | {minutes} | {memory} |"


def claims_of(notebook: Notebook) -> list[str]:
    """The claims that a notebook's first cell says it checks: `C3`, ..."""
    first = "".join(json.loads(notebook.path.read_text())["cells"][0]["source"])
    return sorted(set(re.findall(r"\bClaims? (C\d+)\b", first)))


def main(arguments: list[str] | None = None) -> int:
    """Writes the index, with the times of `reproduce/defaults.csv`, or of the table that is named, which becomes it."""
    names, notebooks = sys.argv[1:] if arguments is None else arguments, all_notebooks()
    if names:
        new = {row["notebook"]: row for row in [*read_times(TIMES), *read_times(Path(names[0]))]}
        write_times([row for name, row in new.items() if name in notebooks and not row["error"]], TIMES)
    made = index_notebook(notebooks, (ROOT / "README.md").read_text(), read_times(TIMES))
    with new_file(INDEX) as part, open(part, "w") as handle:
        nbformat.write(made, handle)
    print(INDEX)
    return 0


if __name__ == "__main__":
    sys.exit(main())
