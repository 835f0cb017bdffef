"""The benchmark of memory faults on a small model."""

from benchmarks.memory_faults import describe, fault_times


def test_every_mode_and_map_is_timed():
    table = fault_times(64_000, repeats=2)
    assert table[["mode", "mapping"]].drop_duplicates().shape[0] == 6 and (table["words"] > 0).all()
    assert (table[["first_ms", "ms", "dense_ms"]] > 0).all(axis=None) and "bank: draw, apply, undo" in describe(table)
