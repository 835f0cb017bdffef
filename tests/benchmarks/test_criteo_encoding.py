"""Generated Criteo files, and the memory and time of encoding them."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import encoding as criteo
from benchmarks.__main__ import main
from drsrobust.data import click_logs


def read(path):
    """All columns of a file, as parsed."""
    blocks = list(click_logs.TABLES["fields"].blocks(path))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """As many generated lines as the sample has that the generator was fitted to."""
    path = tmp_path_factory.mktemp("criteo") / "lines.txt"
    criteo.write_lines(path, criteo.SAMPLE)
    return read(path)


def test_lines_are_like_those_of_the_real_sample(sample):
    assert len(sample["label"]) == criteo.SAMPLE
    assert sample["label"].mean() == pytest.approx(0.257, abs=0.01)
    for name, (empty, *_) in zip(click_logs.INTEGERS, criteo._INTEGERS, strict=True):
        assert np.mean(sample[name] == click_logs.NO_BUCKET) == pytest.approx(empty, abs=0.01)
    for name, (empty, _, distinct, whole) in zip(click_logs.CATEGORIES, criteo._CATEGORIES, strict=True):
        values = sample[name][sample[name] != click_logs.NO_CATEGORY]
        assert 1 - len(values) / len(sample[name]) == pytest.approx(empty, abs=0.01)
        found = len(np.unique(values))
        assert found == pytest.approx(distinct, rel=0.2) if distinct > 10_000 else found <= whole


def test_categories_grow_as_the_law_says():
    for field in (2, 3, 15):
        empty, head, sample, whole = criteo._CATEGORIES[field]
        rng = np.random.default_rng(field)
        values = criteo.categories(rng, 1_000_000, 0, head, sample, whole)[rng.random(1_000_000) >= empty]
        growth = np.log(whole / sample) / np.log(criteo.WHOLE / criteo.SAMPLE)
        expected = sample * (1_000_000 / criteo.SAMPLE) ** growth
        assert len(np.unique(values)) == pytest.approx(expected, rel=0.2 if empty else 0.1)


def test_a_longer_file_begins_with_the_shorter(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo, "CHUNK", 100)
    short, long, other = (tmp_path / name for name in ("short", "long", "other"))
    criteo.write_lines(short, 150)
    criteo.write_lines(long, 320)
    criteo.write_lines(other, 150, seed=1)
    assert len(short.read_bytes().splitlines()) == 150 and long.read_bytes().startswith(short.read_bytes())
    assert other.read_bytes() != short.read_bytes()


def test_measuring(tmp_path):
    path = tmp_path / "lines.txt"
    criteo.write_lines(path, 20_000)
    found = criteo.measure(path)
    assert 20 < found["encode_anon_mib"] <= found["peak_anon_mib"] < found["peak_rss_mib"] < 2000
    assert 0 < found["parse_seconds"] < found["seconds"]
    assert found["seconds"] == pytest.approx(found["parse_seconds"] + found["encode_seconds"])
    assert found["vocabulary_rows"] > 26 and not list(tmp_path.glob("*/data"))
    pandas = criteo.measure(path, method="pandas")
    assert pandas["peak_rss_mib"] > 20 and pandas["vocabulary_rows"] >= found["vocabulary_rows"]
    path.write_text("no such line\n")
    with pytest.raises(RuntimeError, match=r"encoding .*lines.txt failed: drsrobust.*DataError: .*line 1: 1 fields"):
        criteo.measure(path)


def test_the_larger_stage_makes_the_peak():
    table = pd.DataFrame({"method": "drsrobust", "lines": [1e6, 2e6], "seconds": [10.0, 19.0]})
    table["peak_rss_mib"], table["peak_anon_mib"] = 400.0, 300.0
    table["encode_rss_mib"], table["encode_anon_mib"] = [110.0, 130.0], [60.0, 80.0]
    assert criteo.extrapolated(table, 10_000_000) == pytest.approx(
        {"peak_rss_mib": 400, "peak_anon_mib": 300, "seconds": 91}
    )
    assert criteo.extrapolated(table, 40_000_000)["peak_rss_mib"] == pytest.approx(890)
    with pytest.raises(ValueError, match="at least two are needed"):
        criteo.extrapolated(table[:1])


def test_the_command(tmp_path, capsys, monkeypatch):
    def fake(path, schema, method):
        n = len(path.read_bytes().splitlines())
        return dict.fromkeys(criteo.COLUMNS[2:], 7.0) | {"seconds": n / 10, "encode_rss_mib": n}

    monkeypatch.setattr(criteo, "measure", fake)
    monkeypatch.setattr(criteo.encoding_memory, "__defaults__", ((200, 400),))
    assert main(["encoding", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "encoding.csv")
    assert table.columns.tolist() == list(criteo.COLUMNS) and table["method"].tolist() == ["drsrobust", "pandas"] * 2
    assert table["lines"].tolist() == [200, 200, 400, 400] and (table["lines_per_s"] == 10).all()
    assert "for the 45,840,617 lines of the Kaggle file: 45,840,617 MiB (7 MiB" in capsys.readouterr().out
