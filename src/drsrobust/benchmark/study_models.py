"""How fast the study's five models are trained and scored: ours, and torchfm's classes in torchfm's way."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from drsrobust._processes import cores, threads
from drsrobust._progress import progress
from drsrobust.benchmark.torchfm_models import MODELS, NAME, NOT_INSTALLED, Rows, installed, torchfm_model
from drsrobust.data import Dataset, load_dataset
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training.fused import fused_tables
from drsrobust.training.settings import Settings
from drsrobust.training.step import Trainer

OURS = "drsrobust"
STEPS, SCORED, SCORE_BATCH, REPEATS = 40, 100_000, 2048, 2


class Ours:
    """Our model, trained by `Trainer` on `Split.batches` in a random order, scored by `padded_batches` and `score`."""

    def __init__(self, name: str, data: Dataset, settings: Settings) -> None:
        self.data, self.settings = data, settings
        self.model = build_model(name, data.schema)
        self.order = np.random.default_rng(settings.seed)

    def train(self, steps: int) -> float:
        """Rows per second of so many steps after a first one."""
        order = self.order.permutation(len(self.data.train))
        batches = self.data.train.batches(self.settings.batch_size, order=order)
        self.model.train()
        with fused_tables(self.model, self.settings) as fused:
            trainer = Trainer(self.model, self.settings, fused)
            return after_the_first(islice(batches, steps + 1), trainer.step, lambda batch: len(batch.labels))

    def score(self, split, batch: int) -> tuple[np.ndarray, float]:
        """Logits of the rows, and rows per second of all of it."""
        start = time.perf_counter()
        scores = score(self.model, padded_batches(split, batch), len(split))
        return scores, len(split) / (time.perf_counter() - start)


class Torchfm:
    """torchfm's model, fed row by row by a DataLoader, with probabilities and `BCELoss`."""

    def __init__(self, name: str, data: Dataset, settings: Settings, workers: int) -> None:
        self.data, self.settings, self.workers = data, settings, workers
        self.model = torchfm_model(name, data.schema)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.rows = Rows(data.train)

    def train(self, steps: int) -> float:
        """Rows per second of so many steps after a first one, whose wait for the workers to start does not count."""
        loss = torch.nn.BCELoss()

        def step(batch) -> None:
            ids, labels = batch
            value = loss(self.model(ids), labels)
            self.model.zero_grad()
            value.backward()
            self.optimizer.step()
            value.item()

        # Workers make no more than what is counted: a loader over just these rows.
        taken = (steps + 1) * self.settings.batch_size
        rows = torch.utils.data.Subset(self.rows, range(min(taken, len(self.rows))))
        self.model.train()
        loader = torch.utils.data.DataLoader(rows, self.settings.batch_size, shuffle=True, num_workers=self.workers)
        return after_the_first(loader, step, lambda batch: len(batch[1]))

    def score(self, split, batch: int) -> tuple[np.ndarray, float]:
        """Probabilities of the rows, and rows per second of all batches after the first."""
        parts = []
        self.model.eval()
        loader = torch.utils.data.DataLoader(Rows(split), batch, num_workers=self.workers)
        with torch.no_grad():
            rate = after_the_first(loader, lambda made: parts.append(self.model(made[0])), lambda made: len(made[1]))
        return torch.cat(parts).numpy(), rate


def after_the_first(batches: Iterable[Any], work: Callable[[Any], Any], rows: Callable[[Any], int]) -> float:
    """Rows per second of all batches but the first, of waiting for them and of work on them."""
    iterator = iter(batches)
    work(next(iterator))
    seen, start = 0, time.perf_counter()
    for batch in iterator:
        work(batch)
        seen += rows(batch)
    return seen / (time.perf_counter() - start)


def study_models(
    dataset: str,
    models: Sequence[str] = MODELS,
    *,
    steps: int = STEPS,
    scored: int = SCORED,
    settings: Settings | None = None,
    repeats: int = REPEATS,
    workers: int | None = None,
    show: bool = True,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Trains and scores each model by each method, in turns; of the repeats the fastest counts, for all alike.

    Args:
        dataset: `movielens-1m/ids` or `synthetic-movielens/ids`.
        models: of the study's five.
        steps: of training that are counted, in each repeat.
        scored: rows that are scored, in each repeat.
        settings: of training; None: the study's.
        repeats: how often all is measured.
        workers: of torchfm's loader beside 0; None: one per core.
        show: a progress bar.

    Returns:
        rows of the table (`method`, `model`, `phase`, `batch`, `rows_per_s`), and remarks for a reader.
    """
    data, settings = load_dataset(dataset), settings or Settings()
    split = data.train.head(scored)  # of these there are enough in either data set
    workers = cores() if workers is None else workers
    remarks = [f"{', '.join(models)} on {dataset}; scored: {len(split):,} rows in batches of {SCORE_BATCH}"]
    methods: dict[str, Callable[[str], Any]] = {OURS: lambda name: Ours(name, data, settings)}
    if installed():
        for number, words in ((0, "0 workers"), (workers, f"{workers} worker{'s' if workers != 1 else ''}")):
            methods[f"{NAME}, {words}"] = lambda name, number=number: Torchfm(name, data, settings, number)
    else:
        remarks.append(f"not run: {NOT_INSTALLED}")
    rows = []
    with (
        threads(cores()),
        torch.random.fork_rng(devices=[]),
        progress(len(models) * len(methods) * repeats, "models", show=show) as bar,
    ):
        torch.manual_seed(settings.seed)
        for name in models:
            made = {method: make(name) for method, make in methods.items()}
            rates: dict[tuple[str, str], list[float]] = {}
            for _ in range(repeats):
                for method, one in made.items():
                    rates.setdefault((method, "train"), []).append(one.train(steps))
                    rates.setdefault((method, "score"), []).append(one.score(split, SCORE_BATCH)[1])
                    bar.update()
            for (method, phase), found in rates.items():
                batch = settings.batch_size if phase == "train" else SCORE_BATCH
                rows.append({"method": method, "model": name, "phase": phase, "batch": batch, "rows_per_s": max(found)})
    return rows, remarks
