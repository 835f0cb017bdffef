"""Files of weights with one flipped bit (notebook 21)."""

import pytest
from torch import nn

from drsrobust_study.checkpoint_flips import costs, flipped, outcomes
from drsrobust_study.figures import checkpoint_flips


@pytest.fixture(scope="module")
def table():
    return outcomes(nn.Linear(64, 64), tries=60)


def test_who_loads_wrong_words_without_an_error(table):
    """Most bits of these files are of weights; only what compares checksums refuses them."""
    found = table.set_index("reader")
    assert (found["silent"] + found["same"] + found["refused"] == 60).all() and (found["n"] == 60).all()
    assert found.loc["torch.load", "silent"] > 48 and found.loc["safetensors", "silent"] > 56
    assert found.loc["numpy.load", "silent"] == 0
    assert found.loc[["dr.verify, torch.load", "dr.verify, safetensors"], "silent"].tolist() == [0, 0]
    assert found.loc["dr.verify, torch.load", "refused"] > 54
    assert found.loc["torch.load", ["share_low", "share", "share_high"]].is_monotonic_increasing
    assert flipped(b"\x00\x01", 8) == b"\x00\x00"


def test_the_figure(table):
    ax = checkpoint_flips(table)
    assert [text.get_text() for text in ax.get_yticklabels()] == table["reader"].tolist()
    assert sum(patch.get_width() for patch in ax.patches) == pytest.approx(len(table))
    assert f"{table['silent'][0]} of 60" in ax.texts[0].get_text()
    checkpoint_flips(table.head(0))


def test_costs():
    table = costs(1, turns=2)
    assert table["kind"].tolist() == ["crc32", "sha256"]
    assert (table["seconds_low"] > 0).all() and (table["seconds_low"] <= table["seconds_high"]).all()
