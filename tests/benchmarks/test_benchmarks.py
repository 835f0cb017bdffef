"""Every benchmark with its smallest sizes, by its command: documented columns and finite ratios."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import drsrobust as dr
from benchmarks import (
    campaign,
    cluster,
    coverage,
    encoding,
    gpu,
    injection,
    mitigation,
    peers,
    quality,
    screening,
    sharding,
    training,
)
from benchmarks.__main__ import main, write
from benchmarks.common import LAST, OURS, large_case
from benchmarks.mitigation import clean_auc
from benchmarks.training_methods import Fused, Plain
from drsrobust.campaign.store import JOINED_CHUNKS
from drsrobust.injection import BitFlip
from drsrobust.training import Settings
from drsrobust_study import abft, injection_speed, mitigations
from drsrobust_study.injection_speed import study_model
from drsrobust_study.mitigations import Case

SIZES = {"dense_mlp": [16, 16], "over_mlp": [16, 1]}
QUICK = Settings(epochs=1, batch_size=256)


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Runs a benchmark whose functions get other arguments; checks the columns of its tables; returns them and the text."""

    def run(module, columns, **functions):
        for name, arguments in functions.items():
            monkeypatch.setattr(module, name, partial(getattr(module, name), **arguments))
        assert main([module.__name__.removeprefix("benchmarks."), "--out", str(tmp_path)]) == 0
        tables = {path.stem: pd.read_csv(path) for path in tmp_path.glob("*.csv")}
        assert {name: tuple(table.columns) for name, table in tables.items()} == columns
        return tables, capsys.readouterr().out

    return run


def positive(values):
    return bool((np.isfinite(values) & (values > 0)).all(axis=None))


@pytest.mark.long
def test_injection(bench, monkeypatch):
    monkeypatch.setattr(injection, "STUDY_SIZE", 30_000)
    small = {"sizes": [30_000, 60_000], "int8_sizes": [], "rates": [1e-3], "counts": [1000]}
    tables, text = bench(
        injection,
        {"injection": injection_speed.COLUMNS},
        injection_speed=small | {"methods": [OURS, "dense error map"]},
        ratios={"parameters": 30_000},
        growth={"counts": [1000], "smallest": 0},
    )
    assert len(tables["injection"]) == 8 and positive(tables["injection"][["errors", "cpu_ms"]])
    assert "dense error map_ratio" in text and "1,000 errors: growth of time" in text and "nan" not in text


@pytest.mark.long
def test_encoding(bench, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 3000)
    tables, text = bench(
        encoding, {"encoding": encoding.COLUMNS}, encoding_memory={"lines": (1000, 3000), "progress": False}
    )
    table = tables["encoding"].set_index(["method", "lines"])
    assert len(table) == 4 and positive(table[["peak_rss_mib", "seconds", "lines_per_s", "vocabulary_rows"]])
    ours = table.loc[OURS]
    assert (ours["parse_seconds"] + ours["encode_seconds"]).to_numpy() == pytest.approx(ours["seconds"], rel=1e-4)
    assert ours["peak_anon_mib"].between(20, 2000).all() and "for the 45,840,617 lines of the Kaggle file: " in text


@pytest.mark.long
def test_training(bench, monkeypatch):
    monkeypatch.setattr(training, "cores", lambda: 1)  # more threads slow tiny models down
    monkeypatch.setattr(training, "SIZES", SIZES)
    small = {
        "large": {"table_rows": 1300, "rows": 20_100, "valid": 4000, "batch": 256},
        "small": {"models": ["fm"], "steps": 2, "scored": 500, "settings": Settings(batch_size=128), "repeats": 1},
        **{"dataset": "synthetic-movielens/ids", "table_rows": 1300, "parts_of": ("fm",), "progress": False},
    }
    columns = {"training": training.COLUMNS, "training_auc": training.AUC_COLUMNS}
    tables, text = bench(training, columns, training_speed=small)
    speeds, areas = tables["training"], tables["training_auc"].set_index("method")["valid_auc"]
    assert positive(speeds["rows_per_s"]) and {OURS, Plain.name, Fused.name} <= set(speeds["method"])
    assert positive(training.ratios(speeds).xs("dlrm")["best"])
    # The same kernels from the same weights on the same rows: what differs is how they are called.
    assert areas[OURS] == pytest.approx(areas[Fused.name], abs=2e-3) and areas.min() > 0.55
    assert "Scoring 2,048 rows: fm" in text and "look-ups" in text


@pytest.mark.long
def test_quality(bench, tmp_path):
    """The label of these lines hangs on I1 and C1, which logistic regression on hashed features has to find."""
    random, lines = np.random.default_rng(0), []
    for _ in range(3000):
        counts, ids = random.integers(-1, 50, 13).tolist(), random.integers(0, 20, 26).tolist()
        click = random.random() < 1 / (1 + np.exp(4.0 - 0.1 * counts[0] - 0.5 * (ids[0] % 7)))
        lines.append("\t".join([str(int(click)), *map(str, counts), *(f"{value:08x}" for value in ids)]))
    path = tmp_path / "criteo_sample.txt"
    path.write_text("\n".join(lines) + "\n")
    tables, text = bench(
        quality,
        {"quality": quality.COLUMNS, "quality_delong": quality.DIFFERENCES},
        against_torchfm={"dataset": "synthetic-movielens/ids", "models": ["fm"], "settings": QUICK},
        against_linear={"models": ["fm"], "splits": [0], "path": path, "settings": QUICK},
        quality={"progress": False},
    )
    table = tables["quality"].set_index(["dataset", "method"])
    assert positive(table[["auc_valid", "auc", "logloss", "seconds"]])
    assert table.loc[("criteo-sample/fields", quality.LINEAR), "auc"] > 0.6
    assert "The best, fm, is" in text and ("torchfm not run" in text) is not quality.installed()


@pytest.mark.long
def test_campaign(bench, monkeypatch):
    monkeypatch.setattr("benchmarks.trial_cost.TURNS", 2)
    made = partial(large_case, 700, 1300, SIZES)
    small = {"cases": [lambda: [made()]], "rates": [1e-6], "targets": ["embedding", LAST], "make": lambda *_: made()}
    small |= {"seconds": 0.01, "loop_trials": 1, "growth_rows": [700], "growth_table_rows": [1300], "progress": False}
    columns = {
        "campaign": campaign.COLUMNS,
        "campaign_growth": campaign.GROWTH_COLUMNS,
        "campaign_profile": campaign.PROFILE_COLUMNS,
    }
    tables, text = bench(campaign, columns, campaign_cost=small | {"workers": [1], "workers_seconds": 0.1, "opened": 3})
    table = tables["campaign"]
    ours = table[table["method"] == OURS]
    assert positive(table[["ms_per_trial", "forward_ms", "auc_ms"]]) and positive(ours[["over_sum", "over_loop"]])
    assert ours["over_late"].notna().tolist() == [False, False, True, True]
    assert positive(tables["campaign_growth"]["wall_ms_per_trial"])
    shares = tables["campaign_profile"].fillna({"rate": 0}).groupby(["target", "error_model", "rate"])["share"].sum()
    assert shares.to_numpy() == pytest.approx(1, abs=1e-5) and "Targets" in text and "Where the time goes" in text
    assert "a finished campaign of 3 conditions opens in " in text


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_mitigation(bench):
    datasets = {"datasets": ["synthetic-movielens/full"], "models": ["dlrm"], "rows": 4000}
    small = {
        "make_large": partial(mitigations.large, 1300, 400, SIZES),
        "make_trained": partial(mitigations.trained, **datasets, settings=QUICK),
        **{"batches": [64], "turns": 1, "injections": 320, "int8_injections": 96, "test_rows": 300},
        **{"generated_rows": 2048, "trials": 3, "progress": False},
    }
    columns = {
        "mitigation": mitigations.COLUMNS,
        "detection": abft.COLUMNS,
        "mitigation_repair": mitigation.REPAIR_COLUMNS,
        "mitigation_clean": ("mitigation", "model", "data", "auc", "difference", "low", "high", "bit_equal"),
        "mitigation_storage": ("mitigation", "model", "stored_bits_percent", "scrub_ms"),
        "mitigation_screening": screening.COLUMNS,
    }
    tables, text = bench(mitigation, columns, mitigation_cost=small)
    time, detection, clean = tables["mitigation"], tables["detection"], tables["mitigation_clean"]
    assert positive(time[["plain_ms", "protected_ms"]]) and "Targets" in text
    assert not time.duplicated(["mitigation", "model", "scope", "batch"]).any()
    # Numbers of docs/protection.md: what is detected, without false alarms, repaired, and left as it was.
    assert (detection["false_alarms"] == 0).all()
    high = detection[~detection["mitigation"].eq("ABFT EmbeddingBag") | (detection["bit"] >= 23)]
    assert (high["significant_detected"] == high["significant"]).all() and high["significant"].sum() > 100
    assert (tables["mitigation_repair"]["largest_difference"] < 1e-4).all()
    exact = clean["mitigation"].str.startswith(("ABFT", "NaN"))
    assert clean[exact]["bit_equal"].all() and (clean[exact]["difference"] == 0).all()
    assert (clean["low"] <= clean["difference"]).all() and (clean["difference"] <= clean["high"]).all()
    stored = tables["mitigation_storage"].set_index(["model", "mitigation"])["stored_bits_percent"]
    assert stored[("dlrm", "SECDED (72,64)")] == pytest.approx(12.5, abs=0.1)


@pytest.mark.long
def test_coverage(bench, monkeypatch, trained, data):
    monkeypatch.setattr(coverage, "CASES", (("dlrm", "full", 1e-5),))
    monkeypatch.setattr(coverage, "SMALL_CASES", coverage.SMALL_CASES[-1:])
    monkeypatch.setattr(coverage, "load_dataset", lambda name: data)
    monkeypatch.setattr(coverage, "load_models", lambda models: [trained])
    few = [(coverage.skewness, "losses", {"maps": 8}), (coverage.skewness, "coverage", {"samples": 20})]
    few += [(coverage.row_coverage, "scores_under", {"maps": 5})]
    few += [(coverage.row_coverage, "coverage", {"subsets": 3, "rows": 200, "trials": 4})]
    for module, name, arguments in few:
        monkeypatch.setattr(module, name, partial(getattr(module, name), **arguments))
    shares = coverage.recovery_coverage
    monkeypatch.setattr(coverage, "recovery_coverage", lambda *about: shares(*about[:3], resamples=2))
    tables, text = bench(
        coverage,
        {
            "coverage": (*coverage.COLUMNS, "mean", "error"),
            "coverage_recovery": ("harmed", "recovered", "trials", "given", "coverage"),
            "coverage_skewed": ("values", "skewness", "n", "t_above", "t_below", "above", "below", "wider"),
            "coverage_rows": ("metric", "maps", "maps_and_rows", "error_maps", "error_rows", "deviation", "errors"),
        },
        real_population={"maps": 6},
        coverage={"resamples": 8},
    )
    table = tables["coverage"]
    assert len(table) == 4 * 2 * 3 and table["coverage"].between(0, 1).all() and positive(table["half_width"])
    assert "Mean losses" in text and positive(table["plain_trials"].dropna())


def test_memory_faults(bench, monkeypatch):
    from benchmarks import memory_faults

    monkeypatch.setattr(memory_faults, "PARAMETERS", 64_000)
    columns = ("mode", "mapping", "words", "first_ms", "ms", "dense_ms")
    tables, text = bench(memory_faults, {"memory_faults": columns})
    assert len(tables["memory_faults"]) == 6 and positive(tables["memory_faults"].drop(columns=["mode", "mapping"]))
    assert "bank: draw, apply, undo" in text


def test_planning(bench, monkeypatch):
    from benchmarks import planning

    monkeypatch.setattr(planning, "SIZES", ((8, 3),))
    tables, text = bench(planning, {"planning": ("tensors", "options", "seconds", "loss", "gap", "greedy_gap")})
    table = tables["planning"]
    assert positive(table[["seconds", "loss"]]) and (table["gap"] >= 0).all()
    assert (table["greedy_gap"] >= table["gap"] - 1e-12).all() and "8 tensors, 3 options" in text


@pytest.mark.long
def test_rows(bench, monkeypatch):
    """Of which a part was finished."""
    from benchmarks import rows
    from drsrobust._files import cache_folder

    monkeypatch.setenv("ROWS", "3000")
    folder = cache_folder("bench", "rows-3000")
    folder.mkdir(parents=True)
    (folder / "steps.jsonl").write_text('{"step": "generate", "rows": 3000, "seconds": 7.5}\n')
    (folder / "peaks.json").write_text('{"generate": 1048576}')
    monkeypatch.setattr(encoding, "CHUNK", 3000)
    encoding.write_lines(folder / "criteo.txt", 3000)
    tables, text = bench(rows, {"rows": rows.COLUMNS})
    table = tables["rows"].set_index("step")
    assert table.index.tolist() == list(rows.STEPS) and positive(table) and not folder.exists()
    assert table.loc["generate"].tolist() == [3000, 7.5, 1] and "Targets" in text and "MISSED" not in text


def test_an_unknown_benchmark_data_that_are_absent_and_an_interrupt(tmp_path, capsys, monkeypatch):
    assert main(["injektion", "--out", str(tmp_path)]) == 2
    assert "'injektion'; did you mean 'injection'" in capsys.readouterr().err
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    assert main(["quality", "--out", str(tmp_path)]) == 2 and "DRSROBUST_DATA" in capsys.readouterr().err

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(injection, "run", interrupted)
    assert main(["injection", "--out", str(tmp_path)]) == 130
    assert "nothing was written" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_csv_is_whole_or_absent(tmp_path):
    path = tmp_path / "bench" / "table.csv"
    write(pd.DataFrame({"errors": [7], "undo_cpu_ms": [None], "rate": [1e-3]}), path)
    assert path.read_text() == "errors,undo_cpu_ms,rate\n7,,0.001\n"
    with pytest.raises(AttributeError):
        write(None, path)
    assert [file.name for file in path.parent.iterdir()] == ["table.csv"]
    assert path.read_text() == "errors,undo_cpu_ms,rate\n7,,0.001\n"


@pytest.mark.long
def test_cluster(bench):
    tables, text = bench(cluster, {"cluster": cluster.COLUMNS}, cluster={"workers": 8, "trials": 800, "dying": 0.25})
    table = tables["cluster"].set_index("way")
    assert table.index.tolist() == ["executor", "shards"]
    assert (table["trials"] == 800).all() and (table["deaths"] == 2).all()
    assert table["busy_share"].between(0.5, 1).all() and (table["minutes"] >= 800 / 8 / 60 * 0.9).all()
    assert table.loc["shards", "merged_chunks"] == 1 and "simulated" in text
    assert 1 <= table.loc["executor", "chunks"] < 2 * JOINED_CHUNKS


@pytest.mark.long
def test_sharding(bench):
    columns = {"sharding": sharding.COLUMNS, "sharding_blocks": sharding.BLOCKS}
    small = {"sharding": {"sizes": (64_000,), "worlds": (1, 2), "rows": 256}, "own_blocks": {"sizes": (64_000,)}}
    tables, text = bench(sharding, columns, **small)
    trials, blocks = tables["sharding"], tables["sharding_blocks"]
    assert trials["ranks"].tolist() == [1, 1, 2, 2] and blocks["ranks"].tolist() == [2, 4, 2, 4]
    assert positive(trials.drop(columns="overhead_ms")) and positive(blocks)
    assert (trials["overhead_ms"] < trials["trial_ms"]).all() and "1 of 4" in text


def test_gpu(tmp_path):
    """Without a GPU, in a process of its own: Triton's interpreter is chosen when kernels are imported."""
    pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch's CUDA wheels")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "benchmarks", "gpu", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "gpu.csv")
    assert tuple(table.columns) == gpu.COLUMNS and set(table["device"]) == {gpu.INTERPRETER}
    assert table["why"].isna().all(), table["why"].dropna().tolist()
    assert set(table["section"]) == {"machine", "equality", "speed", "cpu_draw", "evaluation", "campaign"}
    equal = table[table["unit"].isin(["equal", "0 or 1"])]
    assert len(equal) > 12 and (equal[equal["measured"] != "same bits in batches of a quarter"]["value"] == 1).all()
    assert "no GPU: tiny sizes" in done.stdout and "graph" not in done.stdout and "MISSED" not in done.stdout


def test_the_auc_of_the_gpu_benchmark():
    from sklearn.metrics import roc_auc_score

    scores, labels = torch.randint(0, 40, (500,)).float(), (torch.rand(500) < 0.3).numpy()
    assert gpu.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


TOOL = """
from pathlib import Path
import torch

class Injector:
    def __init__(self, targets, p):
        self.names, self.p = Path(targets).read_text().split(), p

    def inject(self, model):
        for name, parameter in model.named_parameters():
            if name in self.names:
                words = parameter.view(-1).view(torch.int32)
                words[: round(32 * self.p * len(words))] ^= 1
"""


@pytest.fixture
def absent(monkeypatch):
    for variable, *_ in peers.PLACES.values():
        monkeypatch.delenv(variable, raising=False)


def test_tools_are_measured_or_named(tmp_path, monkeypatch, absent):
    (tmp_path / "pytei").mkdir()
    (tmp_path / "pytei" / "pytei.py").write_text(TOOL)
    monkeypatch.setenv("DRSROBUST_PYTEI", str(tmp_path))
    monkeypatch.setattr(peers, "version", lambda name: "1.0")
    monkeypatch.setattr(peers.sys, "path", [*peers.sys.path])
    rows = peers.measure("PyTEI", 30_000, 1e-3, 60.0)
    assert [row["repetition"] for row in rows] == [0, 1, 2] and all(row["cpu_s"] > 0 for row in rows)
    sizes = [parameter.numel() for parameter in study_model(30_000).parameters()]
    assert {row["errors"] for row in rows} == {sum(round(32 * 1e-3 * size) for size in sizes)}


def test_a_call_over_the_limit_is_not_run(monkeypatch):
    """A call that never ends by itself."""

    def endless(*_):
        while True:
            pass

    monkeypatch.setattr(peers.Sparse, "inject", endless)
    (row,) = peers.measure("drsrobust", 30_000, 1e-3, 0.05)
    assert row["note"] == "not run: one call took over 0.05 s" and row["cpu_s"] is None


def test_the_table(tmp_path, monkeypatch, absent):
    """Without any tool: ours alone has times, and nothing has a factor."""
    run = peers.run
    monkeypatch.setattr(peers, "run", lambda: run(30_000, 1e-3, 60.0))
    assert main(["peers", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "peers.csv")
    assert tuple(table.columns) == peers.COLUMNS and table["factor"].isna().all()
    assert table["tool"].value_counts()["drsrobust"] == 3 and table["cpu_s"].notna().sum() >= 3
    assert table[table["tool"] == "PyTEI"]["note"].str.contains("DRSROBUST_PYTEI names no checkout").all()


def test_a_population_of_a_trained_model(trained, data):
    population = coverage.real_population(trained, data.test, BitFlip(1e-5), maps=6)
    drawn, pilots = ([s for s in population.strata if s.is_pilot == pilot] for pilot in (False, True))
    assert {len(population.losses[s.name]) for s in drawn} == {6} and {
        len(population.losses[s.name]) for s in pilots
    } == {1}
    assert population.probabilities.sum() == pytest.approx(1)
    first, last = (population.losses[s.name] for s in (drawn[0], drawn[-1]))
    assert last.mean() > 10 * abs(first.mean())
    assert set(population.draw(drawn[0].name, 50, np.random.default_rng(0))) <= set(first)


def test_both_samples_have_the_mean_of_the_population():
    population, random = coverage.made_up(0.0), np.random.default_rng(1)
    table = coverage.stratified_sample(population, 200, random)
    assert (table["weight"] * table["auc_drop"]).sum() == pytest.approx(population.mean, abs=1e-4)
    assert coverage.plain_sample(population, 20_000, random)["auc_drop"].mean() == pytest.approx(
        population.mean, abs=1e-3
    )


@pytest.mark.long
def test_students_t_misses_rare_losses_and_the_others_do_not():
    rows = {row["method"]: row for row in coverage.coverage(coverage.made_up(0.0), 60, 120)}
    assert rows["plain, Student's t"]["coverage"] < 0.6 < 0.9 < rows["plain"]["coverage"]
    assert rows["stratified"]["coverage"] > 0.85 and rows["stratified"]["half_width"] < rows["plain"]["half_width"] / 20
    shares = coverage.recovery_coverage(0.2, coverage.PARTS["half of the losses"], 60, 40)
    assert shares["given"] > 0.8 and shares["coverage"] > 0.85


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")
def test_clean_auc_is_that_of_the_protected_model(data, trained, monkeypatch):
    clip = dr.ActivationClipping(0.3)
    monkeypatch.setattr("benchmarks.mitigation.clipping", lambda case: [clip])
    case = Case("dlrm", data.name, trained, data.train, data.test)
    row = clean_auc([case], progress=False).set_index("mitigation").loc["clip 0.3"]
    evaluator = dr.Evaluator(trained, data.test)
    with evaluator.under(clip) as guarded:
        # Rounding at the clip decides a rank: the evaluator may score the last batch without padding.
        assert row["auc"] == pytest.approx(guarded.golden.auc, abs=2e-5) and not row["bit_equal"]
    assert row["difference"] == pytest.approx(row["auc"] - evaluator.golden.auc) and row["difference"] != 0
    assert row["low"] < row["difference"] < row["high"]
