"""The table of experiment E9, what is read from it, and the command."""

import pandas as pd
import pytest

from benchmarks.__main__ import main, write
from benchmarks.injection import describe
from drsrobust.study.captions import speed_details
from drsrobust.study.injection_speed import COLUMNS, STUDY_SIZE, growth, injection_speed, ratios, speed_claim
from drsrobust.study.injectors import cannot


@pytest.fixture
def fake(monkeypatch):
    """Measuring without a process: one millisecond per ten thousand parameters, ours with an undo; the calls made."""
    calls = []

    def measure(spec):
        calls.append(spec)
        for parameters, dtype, rates in spec["models"]:
            for rate in rates:
                row = {"method": spec["method"], "parameters": parameters, "dtype": dtype, "rate": rate, "note": ""}
                row |= {"errors": 7, "cpu_ms": parameters / 1e4, "undo_cpu_ms": None, "peak_mib": 1.0}
                if why := cannot(spec["method"], dtype):
                    row |= dict.fromkeys(COLUMNS[4:]) | {"note": f"not run: {why}"}
                elif spec["method"] == "drsrobust":
                    row["undo_cpu_ms"] = 0.5
                yield row

    monkeypatch.setattr("drsrobust.study.injection_speed._in_a_process", measure)
    return calls


def test_the_grid(fake):
    table = injection_speed(
        [100_000, 50_000], [400_000], [1e-3], [10], ["drsrobust", "dense error map"], progress=False
    )
    assert tuple(table.columns) == COLUMNS and COLUMNS[:-1] == (
        *("method", "parameters", "dtype", "rate", "errors", "cpu_ms", "undo_cpu_ms", "peak_mib"),
    )
    ours = table[table["method"] == "drsrobust"]
    assert ours[["parameters", "dtype"]].drop_duplicates().to_numpy().tolist() == [
        *([50_000, "float32"], [100_000, "float32"], [400_000, "int8"]),
    ]
    assert ours["rate"].tolist() == pytest.approx([10 / 1.6e6, 1e-3, 10 / 3.2e6, 1e-3, 10 / 3.2e6, 1e-3])
    dense = table[(table["method"] == "dense error map") & (table["dtype"] == "int8")]
    assert dense["note"].tolist() == ["not run: it hits float32 only"] * 2 and dense["cpu_ms"].isna().all()
    assert table["errors"].dtype == "Int64" and len(fake) == 2


def test_tools_that_are_not_installed_are_not_run(fake, monkeypatch):
    monkeypatch.setattr("drsrobust.study.injectors.find_spec", lambda name: None)
    table = injection_speed([30_000], [], [1e-3], [], progress=False)
    notes = table.set_index("method")["note"]
    assert notes["MRFI"] == notes["PyTorchFI"] == "not run: not installed (pip install -e '.[benchmark]')"
    assert [spec["method"] for spec in fake] == [
        "drsrobust",
        "dense error map",
        "per element loop",
    ]  # no process for them
    assert tuple(table.columns) == COLUMNS and table["cpu_ms"].notna().sum() == 3
    words, memory = speed_details(table), speed_details(table, "peak_mib")
    assert "MRFI: not run: not installed" in words and words.startswith("CPU time of one injection")
    assert memory.startswith("Most memory") and "CPU time" not in memory
    with pytest.raises(ValueError, match="unknown quantity 'mib'"):
        speed_details(table, "mib")


def test_wrong_calls(fake):
    with pytest.raises(ValueError, match="unknown method 'dense map'; did you mean 'dense error map'"):
        injection_speed(methods=["dense map"], progress=False)
    with pytest.raises(ValueError, match="rate must be over 0 and at most 1, got 0"):
        injection_speed(rates=[0], progress=False)
    assert fake == []


def test_a_process_that_fails_is_told():
    with pytest.raises(
        RuntimeError, match=r"measuring drsrobust failed: ValueError: parameters must be at least 28,017"
    ):
        injection_speed([20_000], [], [1e-3], [], ["drsrobust"], progress=False)


def test_a_real_table():
    table = injection_speed([30_000], [30_000], [1e-3], [], ["drsrobust"], progress=False)  # in a process of its own
    assert table["dtype"].tolist() == ["int8", "float32"] and table["errors"].gt(100).all()
    assert table[["cpu_ms", "undo_cpu_ms", "peak_mib"]].notna().all(axis=None) and (table["note"] == "").all()


def test_ratios_and_growth(fake):
    sizes = [1_000_000, STUDY_SIZE]
    methods = ["drsrobust", "dense error map", "per element loop"]
    table = injection_speed(sizes, [], [1e-6, 1e-4], [1000], methods, progress=False)
    table.loc[table["method"] == "dense error map", "cpu_ms"] *= 50
    found = ratios(table)
    time = STUDY_SIZE / 1e4
    assert found.loc[1e-4, "dense error map_ratio"] == pytest.approx(50 * time / (time + 0.5))
    assert found["drsrobust_ms"].to_numpy() == pytest.approx([time + 0.5] * 3)
    assert found["loop_over_dense"].to_numpy() == pytest.approx([1 / 50] * 3)
    larger = growth(table, [1000, 77])
    assert larger.index.tolist() == [1000] and larger.loc[1000, "to_parameters"] == STUDY_SIZE
    assert larger.loc[1000, "ratio"] == pytest.approx((time + 0.5) / 100.5)
    text = describe(table)
    assert "at an equal number of errors" in text and f"{STUDY_SIZE:,} float32" in text


@pytest.mark.parametrize(
    ("times", "verdict", "detail"),
    [
        ([100, 290], "reproduced", "2 sizes and rates"),
        ([20, 40, 50], "in part", "3 sizes and rates"),
        ([2.5], "contradicted", "1 sizes and rates"),
    ],
)
def test_the_claim_about_speed(times, verdict, detail):
    rows = [
        {"method": name, "parameters": 10, "dtype": "float32", "rate": 10.0**-i, "cpu_ms": ms, "undo_cpu_ms": 1.0}
        for i, time in enumerate(times)
        for name, ms in (("drsrobust", 1.0), ("dense error map", 2.0), ("per element loop", 2.0 * time))
    ]
    found = speed_claim(pd.DataFrame(rows)).iloc[0]
    assert (found["value"], found["verdict"]) == (sorted(times)[len(times) // 2] if len(times) != 2 else 195, verdict)
    assert found["detail"].startswith(detail)
    tool = [rows[0], rows[1] | {"method": "MRFI", "cpu_ms": 20.0}, *rows[1:3]]
    assert speed_claim(pd.DataFrame(tool))["method"].tolist() == ["per element loop", "MRFI"]
    assert speed_claim(pd.DataFrame(rows[:2])).empty  # without the loop


def test_the_csv_is_whole_or_absent(fake, tmp_path):
    table = injection_speed([30_000], [], [1e-3], [], ["drsrobust", "MRFI"], progress=False)
    path = tmp_path / "bench" / "injection.csv"
    write(table, path)
    assert path.read_text().splitlines()[:2] == [
        "method,parameters,dtype,rate,errors,cpu_ms,undo_cpu_ms,peak_mib,note",
        "drsrobust,30000,float32,0.001,7,3,0.5,1,",
    ]
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        write(None, path)
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == ["injection.csv"]


def test_the_command(fake, tmp_path, capsys):
    assert main(["injection", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "injection.csv")
    assert tuple(table.columns) == COLUMNS and table["parameters"].max() == 1_000_000_000
    out = capsys.readouterr().out
    assert "CPU time of one injection (ms)" in out and out.endswith(f"wrote {tmp_path / 'injection.csv'}\n")


def test_an_unknown_benchmark_and_an_interrupt(capsys, tmp_path, monkeypatch):
    assert main(["injektion", "--out", str(tmp_path)]) == 2
    known = "injection, encoding, training, quality, campaign, mitigation, coverage, memory_faults, planning"
    expected = f"bench: unknown benchmark 'injektion'; did you mean 'injection'? known: {known}\n"
    assert capsys.readouterr().err == expected

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("drsrobust.study.injection_speed._in_a_process", interrupted)
    assert main(["injection", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("\nbench: stopped; nothing was written\n") and not list(tmp_path.iterdir())
