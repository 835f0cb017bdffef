"""The table of docs/protection.md, made from the numbers behind `08_mitigation_recovery`: nobody types a recovery."""

from pathlib import Path

from drsrobust.plots.curves import mitigation_label
from reproduce.checks import number
from reproduce.marked import line, read_rows, replaced

BEGIN, END = "<!-- from figures/data/08_mitigation_recovery.csv, by make publish -->", "<!-- end of the protections -->"
RECOVERY, FRONT = "08_mitigation_recovery.csv", "08_mitigation_recovery_front.csv"


def protections_table(data: Path) -> str:
    """What is lost at each rate, the share of it that comes back, and what that costs: a Markdown table in the figure's order.

    Args:
        data: folder of the numbers behind figures; the two tables read hold one model, data set and protocol.

    Raises:
        FileNotFoundError: a table is not there.
        KeyError: a mitigation of the first is not in the second.
    """
    recovery = read_rows(data / RECOVERY)
    costs = {row["mitigation"]: row for row in read_rows(data / FRONT)}
    rates = sorted({float(row["ber"]) for row in recovery})
    lost = {float(row["ber"]): round(float(row["lost"]), 3) for row in recovery}
    found = {(row["mitigation"], float(row["ber"])): row["recovery"] for row in recovery}
    lines = [
        line(
            "protection",
            *(f"{rate:.0e}".replace("e-0", "e-") for rate in rates),
            "extra bits",
            "longer inference, this small model",
        ),
        line(*["---"] * (len(rates) + 3)),
        line("*none: AUC lost*", *(f"*{number(lost[rate])}*" for rate in rates), "", ""),
    ]
    for name in dict.fromkeys(row["mitigation"] for row in recovery):
        shares = [found.get((name, rate)) for rate in rates]
        cost = costs[name]
        lines.append(
            line(
                mitigation_label(name),
                *(f"{round(float(share), 2) + 0:.2f}" if share else "" for share in shares),
                _percent(float(cost["stored_percent"])),
                f"{float(cost['overhead_percent']):.0f} %" if cost["timed"] == "True" else "none",
            )
        )
    return "\n".join(lines)


def with_protections(text: str, data: Path) -> str:
    """A docs/protection.md with this table between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    return replaced(text, BEGIN, END, protections_table(data), "protections")


def _percent(share: float) -> str:
    return "under 0.01 %" if 0 < share < 0.01 else f"{number(share)} %"
