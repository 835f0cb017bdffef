"""A campaign on a model that is sharded over ranks: rank 0 decides, measures and stores; the others follow, trial by trial."""

from typing import Any

import pyarrow as pa

from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.schedule import SHORTEST_CHUNK, Chunk
from drsrobust.campaign.trial import LocalRunner
from drsrobust.evaluation import CoupledRowsError, Evaluator
from drsrobust.introspection.ranks import RankFailedError

_TRIAL, _VERIFY, _FULL_RUNS, _END = range(4)


class LeadingRunner(LocalRunner):
    """Runs chunks on rank 0, which announces each trial to the others."""

    def __call__(self, work: Chunk, seconds: float = SHORTEST_CHUNK) -> tuple[pa.Table, BaseException | None]:
        table, stopped = super().__call__(work, seconds)
        if stopped is not None and not isinstance(stopped, CoupledRowsError):
            trial = work.trials[len(table)]
            stopped = _failed(self._evaluator.ranks.rank, work.condition, trial, stopped)
        return table, stopped

    def begin(self, condition: int, trial: int) -> None:
        self._evaluator.ranks.broadcast((_TRIAL, condition, trial))

    def verify(self) -> None:
        self._evaluator.ranks.broadcast((_VERIFY,))
        super().verify()

    def use_full_runs(self, why: str) -> None:
        """Makes all later reruns full runs, on every rank."""
        self._evaluator.ranks.broadcast((_FULL_RUNS, why))
        self._evaluator.use_full_runs(why)

    def end(self) -> None:
        """Ends the others' part of the campaign."""
        self._evaluator.ranks.broadcast((_END,))


def follow(evaluator: Evaluator, conditions: list[Condition], options: dict[str, Any]) -> None:
    """Runs the trials that rank 0 names, until it ends.

    Raises:
        RankFailedError: a trial raised here; its message names the rank, the trial and the exception.
    """
    runner, ranks = LocalRunner(evaluator, conditions, options), evaluator.ranks
    while (command := ranks.broadcast(None))[0] != _END:
        what, *about = command
        if what == _VERIFY:
            evaluator.verify()
        elif what == _FULL_RUNS:
            evaluator.use_full_runs(*about)
        else:
            condition, trial = about
            _, stopped = runner.run(Chunk(condition, (trial,)))
            if stopped is not None and not isinstance(stopped, CoupledRowsError):  # which rank 0 has too, and answers
                raise _failed(ranks.rank, condition, trial, stopped)


def _failed(rank: int, condition: int, trial: int, error: BaseException) -> BaseException:
    if not isinstance(error, Exception):
        return error
    failed = RankFailedError(f"rank {rank}, condition {condition}, trial {trial}: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
