"""The README's table of models, made from `models.csv`: nobody types an AUC."""

from pathlib import Path

from reproduce.marked import read_rows, replaced

BEGIN, END = "<!-- from figures/models.csv, by make publish -->", "<!-- end of the table -->"


def models_table(path: Path) -> str:
    """`models.csv` as a Markdown table, the best of each data set first."""
    rows = read_rows(path)
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
    return replaced(text, BEGIN, END, models_table(path), "models")
