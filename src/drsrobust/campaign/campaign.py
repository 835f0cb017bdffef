"""A campaign: all trials of a grid of error models and targets on one evaluator, stored as they finish."""

import time
from collections.abc import Sequence
from itertools import product
from math import log10
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from drsrobust._progress import progress
from drsrobust._storage import cache_folder, digest
from drsrobust._versions import commit, machine, versions
from drsrobust.campaign.store import Store
from drsrobust.campaign.trials import SCHEMA, Condition, run_trial
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorModel, Target, Transient, resolve, restore_leftovers
from drsrobust.models import state_digest

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2  # of what a trial computes: raise it when that changes
CHUNK_TRIALS, CHUNK_SECONDS = 256, 3.0  # a chunk is written when either is reached


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, both included.

    Raises:
        ValueError: an end that is not a power of ten, or low > high.

    Example:
        >>> decades(1e-4, 1e-2)
        [0.0001, 0.001, 0.01]
    """
    ends = []
    for value in (low, high):
        exponent = round(log10(value)) if value > 0 else 0
        if value != float(f"1e{exponent}"):
            raise ValueError(f"decades({low!r}, {high!r}): {value!r} is not a power of ten")
        ends.append(exponent)
    if ends[0] > ends[1]:
        raise ValueError(f"decades({low!r}, {high!r}): the first is larger than the second")
    return [float(f"1e{exponent}") for exponent in range(ends[0], ends[1] + 1)]


class Campaign:
    """All trials of errors x targets.

    A trial depends on the model's state, the rows, its condition and its number alone, so that a campaign may be stopped
    at any time and goes on where it was; one with more trials goes on from one with fewer.

    Args:
        judge: the evaluator.
        errors: error models, as `[BitFlip(b) for b in decades(1e-9, 1e-2)]`.
        targets: as in `inject`.
        trials: how many for each condition.
        seed: all error maps follow from it.
        protocol: a label for the table (`corrected` or `as_released` in the study).
        coupled: trials of one number at different rates share nested error maps; False: all are independent.
        store: folder of the results; None: one in the cache, named by the definition.

    Raises:
        TypeError: something among `errors` that is no error model.
        ValueError: an empty axis, a number of trials under 1, a target that matches nothing, a bit that its words do not
            have, or a condition that stands twice.
        StoreError: `store` holds another campaign.
    """

    def __init__(
        self,
        judge: Evaluator,
        *,
        errors: Sequence[ErrorModel],
        targets: Sequence[str | Target | Transient] = ("all",),
        trials: int = 100,
        seed: int = 0,
        protocol: str = "corrected",
        coupled: bool = True,
        store: str | PathLike | None = None,
    ) -> None:
        if isinstance(targets, str):
            raise ValueError(f"targets is the text {targets!r}; it must be a list, as [{targets!r}]")
        errors, targets = list(errors), list(targets)
        for error in errors:
            if not isinstance(error, ErrorModel):
                raise TypeError(f"errors holds {error!r}; each must be an error model, as BitFlip(ber=1e-6)")
        if not errors or not targets or index(trials) < 1:
            raise ValueError(f"{len(errors)} errors x {len(targets)} targets x {trials} trials: nothing to do")
        restore_leftovers(judge.model)
        self.judge, self.trials, self.seed = judge, index(trials), index(seed)
        self.protocol, self.coupled = protocol, coupled
        self._errors, self._targets = errors, targets
        self.conditions = self._resolve()
        if len({(str(c.error_model), c.error_model.rate, str(c.target)) for c in self.conditions}) < len(
            self.conditions
        ):
            raise ValueError("an error model or a target stands twice in the grid")
        for condition in self.conditions:
            condition.check(judge.model)
        definition = {
            "format": FORMAT,
            "model": judge.name,
            "checkpoint": judge.checkpoint,
            "dataset": judge.split.dataset,
            "data": judge.split.fingerprint,
            # Of a foreign model the state is not all: its code decides too. What it computes tells it apart.
            "golden": [round(judge.golden.auc, 6), round(judge.golden.logloss, 6)],
            "errors": [[str(error), error.rate] for error in errors],
            "targets": [[str(c.target), c.resolved] for c in self.conditions[:: len(errors)]],
            "seed": self.seed,
            "coupled": bool(coupled),
            "protocol": protocol,
        }
        if store is None:
            name = f"{judge.name}-{judge.split.dataset.replace('/', '-')}-{digest(definition)[:16]}"
            store = cache_folder("campaigns", name)
        about = {"versions": versions(), "commit": commit(), "machine": machine()}
        self.store = Store(Path(store).expanduser().resolve(), definition, about)

    def _resolve(self) -> list[Condition]:
        """The grid, in the model's present memory."""
        found = [t if isinstance(t, Transient) else resolve(self.judge.model, t) for t in self._targets]
        cells = product(zip(self._targets, found, strict=True), self._errors)
        return [Condition(error, target, hits) for (target, hits), error in cells]

    def run(self, *, show: bool = True) -> "pd.DataFrame":
        """Computes the trials that are not in the store yet, and gives the table of all of them.

        What an interrupted `with dr.inject(...)` left in the model is undone first, with a warning.

        Raises:
            StoreError: another process is writing to the store, or a stored chunk is damaged.
            ValueError: the model is not the one that the evaluator was made for.
        """
        restore_leftovers(self.judge.model)
        if state_digest(self.judge.model) != self.judge.checkpoint:
            raise ValueError("the model has changed since its Evaluator was made; make a new Evaluator for it")
        self.conditions = self._resolve()  # its tensors may have moved
        with self.store.writing():
            done = set(self._stored().select(["condition", "trial"]).to_pandas().itertuples(index=False, name=None))
            total = len(self.conditions) * self.trials
            with progress(total, f"{self.judge.name} on {self.judge.split.dataset}", show=show) as bar:
                bar.update(len(done))
                for number, condition in enumerate(self.conditions):
                    missing = [trial for trial in range(self.trials) if (number, trial) not in done]
                    self._run_condition(number, condition, missing, bar)
        return self.table()

    def _run_condition(self, number: int, condition: Condition, trials: list[int], bar) -> None:
        finished, since = [], time.monotonic()

        def flush() -> None:
            nonlocal since
            if finished:
                self.store.write(number, finished)
                bar.update(len(finished))
                finished.clear()
            since = time.monotonic()

        try:
            for trial in trials:
                options = {"seed": self.seed, "coupled": self.coupled, "protocol": self.protocol}
                finished.append(run_trial(self.judge, condition, trial, **options))
                if len(finished) >= CHUNK_TRIALS or time.monotonic() - since > CHUNK_SECONDS:
                    flush()
        finally:
            flush()  # also after an interrupt, so that finished trials are kept

    def table(self) -> "pd.DataFrame":
        """One row per finished trial, in the order of the grid; the same bit for bit however it was run. May be read
        while another process computes."""
        return _frame(self._stored().select(SCHEMA.names))

    def timings(self) -> "pd.DataFrame":
        """Seconds of each finished trial, with its condition: what is not the same from run to run."""
        columns = ["error_model", "rate", "target", "trial", "seconds"]
        return _frame(self._stored().select(columns))

    def raised(self) -> "pd.DataFrame":
        """The trials in which the model raised, with the text of its error."""
        table = self._stored()
        table = table.filter(pc.field("outcome") == "raised")
        return _frame(table.select(["error_model", "rate", "target", "trial", "seed", "error"]))

    def _stored(self) -> pa.Table:
        """The stored trials of this campaign's numbers (a store may hold more of them)."""
        return self.store.read().filter(pc.field("trial") < self.trials)


def _frame(table: pa.Table) -> "pd.DataFrame":
    """A pandas frame in which absent integers and booleans stay absent."""
    import pandas as pd

    types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=types.get)
