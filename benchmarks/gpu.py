"""Flips that are drawn and made on a GPU (`injection.gpu_kernels`), and a DLRM's evaluation there, against one CPU thread.

Without a GPU all sections run at tiny sizes on the CPU, in Triton's interpreter: this shows that the benchmark works, and its
times say nothing of a GPU. A section that fails has one row that says why, and the next one runs.

- `machine`: a copy in memory, and an exclusive-or of all words.
- `equality`: places and words against `ErrorClock`, and the words after undo; 1 means equal.
- `speed`: injection and undo, launched one by one and as a CUDA graph with another seed; `draw`: places alone; `places`:
  sorted and distinct; `inject`: the same by `drsrobust.inject`.
- `cpu_draw`: the simple way: places drawn by one CPU thread, copied, flipped by index and undone.
- `evaluation`: scores and AUC of a DLRM of Criteo's shape, how far scores differ by batch size, from the CPU, and with TF32; a
  trial of errors in the tables, with all rows and with those that read a wrong table row.
- `campaign`: trials of `drsrobust.inject` and `Evaluator.rerun` on such a model, and how many times as fast as on one CPU
  thread."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.common import Result, about, at_least, at_most, text, verdict_text
from drsrobust import BitFlip, Evaluator, FixedCount, inject, resolve
from drsrobust.data.dataset import Ids, Split
from drsrobust.injection import ErrorClock
from drsrobust.injection.error_models import ErrorModel
from drsrobust.metrics.auc import share_won
from drsrobust_extras.scale.device_pairs import twice_won

COLUMNS = ("device", "section", "measured", "words", "rate", "value", "unit", "why")
INTERPRETER = "CPU, Triton's interpreter"
TARGETS = {1e-6: 0.1, 1e-4: 2, 1e-3: 10}  # rate -> ms of injection and undo in 1e9 words, at most
SEED = 2**63 + 5
TRIALS = (
    (FixedCount(10), "embedding"),
    (BitFlip(1e-6), "embedding"),
    (BitFlip(1e-5), "embedding"),
    (BitFlip(1e-4), "embedding"),
    (BitFlip(1e-4), "top"),
    (BitFlip(1e-4), "all"),
    (BitFlip(1e-3), "all"),
)
LEAST_SPEEDUP = 20  # of a campaign's trials over those of one CPU thread

Fact = dict[str, Any]


def run() -> Result:
    """The benchmark `gpu`."""
    table = gpu()
    return Result({"gpu": table}, describe(table))


def describe(table: pd.DataFrame) -> str:
    """The table as text, and the targets, of which those of time are for a GPU alone."""
    device = table["device"].iloc[0]
    remark = "no GPU: tiny sizes, whose times say nothing of a GPU" if device == INTERPRETER else ""
    measured = table.set_index(["section", "measured"])
    verdicts = []
    for (section, name), row in measured[measured["unit"] == "equal"].iterrows():
        verdicts.append(at_least(f"{section}: {name}, {row['words']:,.0f} words, {row['rate']:g}", row["value"], 1))
    times = table[(table["section"] == "speed") & (table["measured"] == "graph") & (device != INTERPRETER)]
    for _, row in times.iterrows():
        verdicts.append(at_most(f"graph at {row['rate']:g}", row["value"], TARGETS[row["rate"]], " ms"))
    for _, row in table[table["measured"].str.endswith("a CPU thread's over it") & (device != INTERPRETER)].iterrows():
        verdicts.append(at_least(row["measured"], row["value"], LEAST_SPEEDUP, " times"))
    shown = measured.drop(columns="device").astype({"words": "Int64", "rate": object})
    return "\n\n".join([about(device, remark), text(shown, "{:,.4g}"), verdict_text(verdicts)])


def gpu() -> pd.DataFrame:
    """Runs the sections.

    Returns:
        one row per measurement: `device` (the GPU, or Triton's interpreter), `section`, `measured`, `words`, `rate`, `value`,
        `unit`, and `why` a section failed.
    """
    cuda = torch.cuda.is_available()
    if not cuda:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
    device = torch.cuda.get_device_name() if cuda else INTERPRETER
    sizes = Sizes(cuda)
    rows: list[Fact] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for section in (machine, equality, speed, cpu_draw, evaluation, campaign):
            start = time.perf_counter()
            name = section.__name__
            try:
                for fact in section(sizes):
                    rows.append({"section": name} | fact)
            except Exception as error:
                rows.append({"section": name, "measured": "failed", "why": f"{type(error).__name__}: {error}"[:300]})
            rows.append(_fact("section", time.perf_counter() - start, "s") | {"section": name})
            if cuda:
                torch.cuda.empty_cache()
    finally:
        torch.set_num_threads(threads)
    return pd.DataFrame([{"device": device} | row for row in rows], columns=list(COLUMNS))


class Sizes:
    """What is measured on a GPU, or at tiny sizes on a CPU.

    Attributes:
        device: of torch.
        words: of the large tensor.
        rates: of its errors.
        maps: words and rates of maps that are compared.
        rows, batch, table_rows, checked: rows that are scored, rows of a batch and of each table, and rows that are scored on
            the CPU too.
        trial_rate: of errors in the tables.
    """

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.device = cuda, "cuda" if cuda else "cpu"
        self.words = 1_000_000_000 if cuda else 40_000
        self.rates = tuple(TARGETS) if cuda else (1e-4,)
        middle = 5_000_000 if cuda else 999
        self.maps = ((33, 0.1), (100_003, 1e-5), (middle, 1e-2), (self.words, 1e-4))
        self.rows, self.batch = (1 << 20, 1 << 16) if cuda else (256, 128)
        self.table_rows, self.checked = (40_000, 1 << 15) if cuda else (20, 256)
        self.trial_rate = 1e-6 if cuda else 1e-5

    def ms(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """The median milliseconds until a call's work is done, after calls that compile."""
        times = []
        for _ in range(3 if self.cuda else 1):
            call()
        for _ in range(repeats if self.cuda else 1):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            times.append((time.perf_counter() - start) * 1e3)
        return float(np.median(times))

    def wait(self) -> None:
        """Until the GPU has done its work."""
        if self.cuda:
            torch.cuda.synchronize()


def machine(sizes: Sizes) -> Iterator[Fact]:
    """What memory gives at most."""
    one = torch.zeros(sizes.words, dtype=torch.int32, device=sizes.device)
    other = torch.zeros_like(one)
    took = sizes.ms(lambda: other.copy_(one))
    yield _fact("copy", 8 * sizes.words / took / 1e6, "GB/s", sizes.words)
    yield _fact("exclusive-or of all words", sizes.ms(lambda: one.bitwise_xor_(other)), "ms", sizes.words)
    if sizes.cuda:
        yield _fact("memory", torch.cuda.get_device_properties(0).total_memory / 2**30, "GiB")


def equality(sizes: Sizes) -> Iterator[Fact]:
    """Maps and words against the clock's."""
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    for words, rate in sizes.maps:
        before = torch.randint(-(2**31), 2**31, (words,), dtype=torch.int32, device=sizes.device)
        memory = before.clone()
        flips = DeviceFlips(memory, rate, seed=SEED)
        flips.inject()
        expected = torch.from_numpy(ErrorClock(32 * words, seed=SEED).until(rate)).to(sizes.device)
        yield _fact("places", float(torch.equal(flips.places(), expected)), "equal", words, rate)
        # Distinct places, so sums of bits are their union; a sum of 2**31 wraps to the sign.
        wrong = torch.zeros_like(before).index_add_(0, expected >> 5, (1 << (expected & 31)).to(torch.int32))
        yield _fact("words", float(torch.equal(memory ^ before, wrong)), "equal", words, rate)
        flips.undo()
        yield _fact("undone", float(torch.equal(memory, before)), "equal", words, rate)


def speed(sizes: Sizes) -> Iterator[Fact]:
    """Injection and undo in the large tensor."""
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    before = torch.randint(-(2**31), 2**31, (sizes.words,), dtype=torch.int32, device=sizes.device)
    memory = before.clone()
    model = nn.Module()
    model.words = nn.Parameter(memory.view(torch.float32))
    space = resolve(model)
    for rate in sizes.rates:
        flips = DeviceFlips(memory, rate, seed=1)

        def both(flips: DeviceFlips = flips) -> None:
            flips.inject()
            flips.undo()

        yield _fact("eager", sizes.ms(both), "ms", sizes.words, rate)
        yield _fact("draw", sizes.ms(flips.draw), "ms", sizes.words, rate)
        if sizes.cuda:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                both()
            flips.reseed(2)
            yield _fact("graph", sizes.ms(graph.replay), "ms", sizes.words, rate)
        yield _fact("places", sizes.ms(flips.places, repeats=5), "ms", sizes.words, rate)

        def library(rate: float = rate) -> None:
            with inject(model, BitFlip(rate), space, seed=1):
                pass

        yield _fact("inject", sizes.ms(library, repeats=5), "ms", sizes.words, rate)
        yield _fact("undone", float(torch.equal(memory, before)), "equal", sizes.words, rate)


def cpu_draw(sizes: Sizes) -> Iterator[Fact]:
    """Places that a CPU draws."""
    memory = torch.zeros(sizes.words, dtype=torch.int32, device=sizes.device)
    for rate in sizes.rates:
        start = time.perf_counter()
        places = ErrorClock(32 * sizes.words, seed=1).until(rate)
        yield _fact("draw on the CPU", (time.perf_counter() - start) * 1e3, "ms", sizes.words, rate)
        word, first = np.unique(places >> 5, return_index=True)
        mask = np.bitwise_or.reduceat(np.left_shift(1, places & 31), first).astype(np.uint32).view(np.int32)

        def flip(word: np.ndarray = word, mask: np.ndarray = mask) -> None:
            at, bits = torch.from_numpy(word).to(sizes.device), torch.from_numpy(mask).to(sizes.device)
            old = memory.index_select(0, at)
            memory.scatter_(0, at, old ^ bits)
            memory.scatter_(0, at, old)

        yield _fact("copy, flip, undo", sizes.ms(flip), "ms", sizes.words, rate)


class Dlrm(nn.Module):
    """A DLRM of Criteo's shape in plain PyTorch, since TorchRec need not be there: 13 dense features, 26 tables of width 64 in
    one tensor, MLPs 512-256-64 and 512-256-1, dot products of pairs."""

    def __init__(self, table_rows: int, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(26 * table_rows, width) / width**0.5)
        self.bottom, self.top = _mlp(13, 512, 256, width), _mlp(width + 351, 512, 256)
        self.last = nn.Linear(256, 1)
        self.register_buffer("pairs", torch.triu_indices(27, 27, 1))
        self.register_buffer("first", torch.arange(26) * table_rows)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits float32 [n] of dense features float32 [n, 13] and ids int64 [n, 26]."""
        x = self.bottom(dense)
        features = torch.cat([x[:, None], self.looked_up(ids)], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.last(self.top(torch.cat([x, products], 1)))[:, 0]

    def looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows float32 [n, 26, width] of the tables."""
        return self.tables[ids + self.first]


class DlrmOfBags(Dlrm):
    """The same with a module a table, whose look-ups an evaluator knows."""

    def __init__(self, table_rows: int) -> None:
        super().__init__(table_rows)
        parts = self.tables.detach().split(table_rows)
        del self.tables
        self.bags = nn.ModuleList(nn.EmbeddingBag(*part.shape, mode="sum", _weight=part.clone()) for part in parts)

    def looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([bag(column[:, None]) for bag, column in zip(self.bags, ids.T, strict=True)], 1)


def _mlp(*widths: int) -> nn.Sequential:
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())))


def auc(scores: torch.Tensor, clicked: np.ndarray) -> float:
    """The exact area under the ROC curve, of pairs that the scores' device counts.

    Args:
        scores: float32 [n].
        clicked: bool [n].
    """
    clicks = int(clicked.sum())
    return share_won(twice_won(clicked, scores.cpu().numpy(), device=scores.device), clicks, len(clicked) - clicks)


@torch.inference_mode()
def _scores(model: Dlrm, dense: torch.Tensor, ids: torch.Tensor, batch: int) -> torch.Tensor:
    return torch.cat([model(dense[i : i + batch], ids[i : i + batch]) for i in range(0, len(dense), batch)])


def evaluation(sizes: Sizes) -> Iterator[Fact]:
    """Scores, AUC and trials of the DLRM."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Dlrm(sizes.table_rows).eval()
    dense = torch.randn(sizes.rows, 13, generator=generator)
    ids = (torch.rand(sizes.rows, 26, generator=generator) ** 3 * sizes.table_rows).long()
    labels = (torch.rand(sizes.rows, generator=generator) < 0.25).numpy()
    start = time.perf_counter()
    on_cpu = _scores(model, dense[: sizes.checked], ids[: sizes.checked], 2048)
    cpu_ms = (time.perf_counter() - start) * 1e3 * sizes.rows / sizes.checked
    yield _fact(f"{sizes.rows:,} rows on one CPU thread, by {sizes.checked:,} of them", cpu_ms, "ms")

    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        model, dense, ids = (thing.to(sizes.device) for thing in (model, dense, ids))
        golden = _scores(model, dense, ids, sizes.batch)
        other = _scores(model, dense, ids, sizes.batch // 4)
        yield _fact("evaluation", sizes.ms(lambda: _scores(model, dense, ids, sizes.batch), repeats=5), "ms")
        yield _fact("AUC", sizes.ms(lambda: auc(golden, labels), repeats=5), "ms")
        again = _scores(model, dense, ids, sizes.batch)
        yield _fact("same bits again", float(torch.equal(golden, again)), "0 or 1")
        yield _fact("same bits in batches of a quarter", float(torch.equal(golden, other)), "0 or 1")
        yield _fact("batches of a quarter", float((golden - other).abs().max()), "largest difference")
        yield _fact("CPU", float((golden[: sizes.checked].cpu() - on_cpu).abs().max()), "largest difference")
        if sizes.cuda:
            torch.backends.cuda.matmul.allow_tf32 = True
            coarse = _scores(model, dense, ids, sizes.batch)
            torch.backends.cuda.matmul.allow_tf32 = False
            yield _fact("TF32", float((golden - coarse).abs().max()), "largest difference")
        yield from _trials(sizes, model, dense, ids, labels, golden, cpu_ms)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def _trials(
    sizes: Sizes,
    model: Dlrm,
    dense: torch.Tensor,
    ids: torch.Tensor,
    labels: np.ndarray,
    golden: torch.Tensor,
    cpu_ms: float,
) -> Iterator[Fact]:
    """A trial of errors in the tables, in full and by the rows that they reach."""
    from drsrobust_extras.scale.gpu_kernels import DeviceFlips

    rate, width = sizes.trial_rate, model.tables.shape[1]
    flips = DeviceFlips(model.tables, rate, seed=5)

    def full() -> torch.Tensor:
        flips.inject()
        scores = _scores(model, dense, ids, sizes.batch)
        flips.undo()
        return scores

    def reached() -> torch.Tensor:
        flips.inject()
        wrong = torch.zeros(len(model.tables), dtype=torch.bool, device=sizes.device)
        wrong[flips.places() // (32 * width)] = True
        rows = wrong[ids + model.first].any(1).nonzero()[:, 0]
        scores = golden.clone()
        if len(rows):
            rows = torch.cat(
                [rows, rows[-1:].expand(-len(rows) % sizes.batch)]
            )  # full batches: the same kernels as in `full`
            scores[rows] = _scores(model, dense[rows], ids[rows], sizes.batch)
        flips.undo()
        return scores

    words = model.tables.numel()
    for name, trial in (("full", full), ("reached rows", reached)):
        took = sizes.ms(lambda trial=trial: auc(trial(), labels), repeats=5)
        yield _fact(f"trial, {name}", took, "ms", words, rate)
        if sizes.cuda:
            yield _fact(f"trial, {name}: one CPU thread's evaluation over it", cpu_ms / took, "times", words, rate)
    one, other = full().view(torch.int32), reached().view(torch.int32)  # bits, since NaN is not equal to NaN
    yield _fact("rows changed", int((one != golden.view(torch.int32)).sum()), "rows", words, rate)
    yield _fact("same bits by reached rows", float(torch.equal(one, other)), "0 or 1", words, rate)
    if sizes.cuda:
        yield _fact("GPU memory at most", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def campaign(sizes: Sizes) -> Iterator[Fact]:
    """Trials of the library."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DlrmOfBags(sizes.table_rows).eval()
    ms = {}
    for device, n in (("cpu", sizes.rows // 16), (sizes.device, sizes.rows)):
        evaluator = Evaluator(model.to(device), _split(n, sizes.table_rows), forward=_forward, output="logit")
        for errors, target in TRIALS:
            ms[errors, target, n] = _trial_ms(evaluator, errors, target, sizes)
    for errors, target in TRIALS:
        name, few, took = f"{errors} in {target}", *(ms[errors, target, n] for n in (sizes.rows // 16, sizes.rows))
        yield _fact(f"trial, {name}", took, "ms", rate=errors.rate)
        if errors.rate is not None:  # then the time grows with the rows
            yield _fact(f"trial, {name}: a CPU thread's over it", 16 * few / took, "times", rate=errors.rate)


def _trial_ms(evaluator: Evaluator, errors: ErrorModel, target: str, sizes: Sizes) -> float:
    """Median milliseconds of a trial, after the first one."""
    times = []
    for seed in range(6 if sizes.cuda else 2):
        start = time.perf_counter()
        with inject(evaluator.model, errors, target, seed=seed) as error_map:
            evaluator.rerun(error_map)
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times[1:]))


def _split(n: int, table_rows: int) -> Split:
    random = np.random.default_rng(0)
    sparse = {f"c{i}": Ids((random.random(n) ** 3 * table_rows).astype(np.int32)) for i in range(26)}
    dense, labels = random.normal(size=(n, 13)).astype(np.float32), (random.random(n) < 0.25).astype(np.float32)
    return Split(dense, sparse, labels, None, np.arange(n), "generated", "test", 0.25, "generated", n)


def _forward(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch.dense_features, batch.sparse_features.values().reshape(26, -1).T.long())


def _fact(measured: str, value: float, unit: str, words: int | None = None, rate: float | None = None) -> Fact:
    return {"measured": measured, "value": value, "unit": unit, "words": words, "rate": rate}
