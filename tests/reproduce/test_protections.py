"""The table of protections in docs/protection.md, and what the page says of it."""

import pytest

from reproduce.marked import read_rows
from reproduce.notebooks import ROOT
from reproduce.protections import FRONT, RECOVERY, protections_table, with_protections

RECOVERIES = """# Data: somewhere
mitigation,ber,lost,recovery
"bits 30, SECDED",0.0001,0.01234,
"bits 30, SECDED",0.001,0.2,0.985
clip 6,0.0001,0.01234,
clip 6,0.001,0.2,-0.001
"""
COSTS = """# Timed
mitigation,overhead_percent,stored_percent,timed
clip 6,12.6,0.0005,True
"bits 30, SECDED",0,12.5,False
"""


def test_rows_of_the_figure(tmp_path):
    (tmp_path / RECOVERY).write_text(RECOVERIES)
    (tmp_path / FRONT).write_text(COSTS)
    assert protections_table(tmp_path).splitlines()[2:] == [
        "| *none: AUC lost* | *0.012* | *0.2* |  |  |",
        "| bit 30, SECDED |  | 0.98 | 12.5 % | none |",
        "| clip 6 |  | 0.00 | under 0.01 % | 13 % |",
    ]
    with pytest.raises(ValueError, match="no place for the table of protections"):
        with_protections("no marks", tmp_path)


def test_the_page_is_that_of_the_published_figures():
    text = (ROOT / "docs" / "protection.md").read_text()
    assert with_protections(text, ROOT / "figures" / "data") == text


@pytest.mark.parametrize(
    ("name", "rate", "said"),
    [
        ("range per tensor", 1e-3, "{} of the lost AUC back at 1e-3, for two numbers a tensor"),
        ("SECDED (72,64)", 1e-4, "{} of the lost AUC back at 1e-4, for 12.5 % more bits"),
        ("SECDED (72,64)", 1e-3, "{} alone at 1e-3"),
        ("clip profiled to zero", 1e-4, "{} at 1e-4, 0.93 at 1e-3, two numbers a place"),
        ("clip profiled to zero", 1e-3, "0.99 at 1e-4, {} at 1e-3, two numbers a place"),
        ("clip profiled", 1e-3, "often large: {} at 1e-3"),
        ("clip 6", 1e-3, "Fixed bounds of 6 give {}"),
        ("clip 100", 1e-3, "of 100 only {}"),
        ("ABFT EmbeddingBag (restore)", 1e-3, "**Checksums of tables alone** ({} here)"),
        ("bits 23-31, SECDED", 1e-3, "so at 1e-3 it gives back {}"),
        ("bits 23-31, TMR", 1e-3, "the same bits three times (TMR, 56 %) {}"),
        ("ABFT Linear (provable, restore) + ABFT EmbeddingBag (restore)", 1e-2, "recovery {} at all rates"),
    ],
)
def test_what_is_said_of_them_was_measured(name, rate, said):
    rows = read_rows(ROOT / "figures" / "data" / RECOVERY)
    (share,) = [row["recovery"] for row in rows if row["mitigation"] == name and float(row["ber"]) == rate]
    text = " ".join((ROOT / "docs" / "protection.md").read_text().split())
    assert said.format(f"{float(share):.2f}") in text
