"""The README's table of models, made from `models.csv`: nobody types an AUC."""

import csv
from pathlib import Path

BEGIN, END = "<!-- from figures/models.csv, by make publish -->", "<!-- end of the table -->"


def models_table(path: Path) -> str:
    """`models.csv` as a Markdown table, the best of each data set first."""
    with open(path, newline="") as handle:
        rows = list(csv.DictReader(line for line in handle if not line.startswith("#")))
    order = {dataset: number for number, dataset in enumerate(dict.fromkeys(row["dataset"] for row in rows))}
    rows.sort(key=lambda row: (order[row["dataset"]], -float(row["auc"])))
    lines = [
        "| data set | model | AUC (95 % interval) | log loss | parameters | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        auc, low, high, loss = (float(row[key]) for key in ("auc", "auc_low", "auc_high", "logloss"))
        lines.append(
            f"| {row['dataset']} | {row['model']} | {auc:.4f} ({low:.4f} to {high:.4f}) | {loss:.4f} | "
            f"{int(row['parameters']):,} | {float(row['seconds']):.0f} |"
        )
    return "\n".join(lines)


def with_models(text: str, path: Path) -> str:
    """A README with the table of `models.csv` between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no place for the table of models: {BEGIN!r} and {END!r} mark it")
    return f"{before}{BEGIN}\n{models_table(path)}\n{END}{after}"
