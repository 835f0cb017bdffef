"""The table of protections in docs/protection.md, and what the page says of it."""

import pytest

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
