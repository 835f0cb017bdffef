"""A campaign on a model that is sharded over ranks: rank 0 decides, measures and stores; the others follow, trial by trial."""

from typing import Any

import pyarrow as pa

from drsrobust.campaign import SHORTEST_CHUNK, Chunk, LocalRunner, register_runner
from drsrobust.evaluation import CoupledRowsError, Evaluator
from drsrobust_extras.scale.ranks import RankFailedError

_TRIAL, _VERIFY, _FULL_RUNS, _END = range(4)


class LeadingRunner(LocalRunner):
    """Runs chunks on rank 0, which announces each trial to the others."""

    alone = "a sharded model's trials run on its own ranks"
    _failed = False  # then the others have ended, or wait in the same trial

    @staticmethod
    def follows(evaluator: Evaluator) -> bool:
        """As of `LocalRunner`: on all ranks but the first."""
        return not evaluator.ranks.is_first

    @staticmethod
    def check_same(evaluator: Evaluator, definition: dict[str, Any]) -> None:
        """As of `LocalRunner`."""
        evaluator.ranks.check_same("campaigns", definition)

    @staticmethod
    def any_of(evaluator: Evaluator, flag: bool) -> bool:
        """As of `LocalRunner`."""
        return evaluator.ranks.any(flag)

    def __call__(self, work: Chunk, seconds: float = SHORTEST_CHUNK) -> tuple[pa.Table, BaseException | None]:
        table, stopped = super().__call__(work, seconds)
        if stopped is not None and not isinstance(stopped, CoupledRowsError):
            trial = work.trials[len(table)]
            stopped = _failure(self._evaluator.ranks.rank, work.condition, trial, stopped)
            self._failed = isinstance(stopped, RankFailedError)
        return table, stopped

    def probe_target(self, number: int) -> None:
        """As of `LocalRunner`: none is probed."""

    def begin(self, condition: int, trial: int) -> None:
        if self._evaluator.ranks.is_first:
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
        if not self._failed:
            self._evaluator.ranks.broadcast((_END,))

    def follow(self) -> None:
        """As of `LocalRunner`.

        Raises:
            RankFailedError: a trial raised here; its message names the rank, the trial and the exception.
        """
        ranks = self._evaluator.ranks
        while (command := ranks.broadcast(None))[0] != _END:
            what, *about = command
            if what == _VERIFY:
                self._evaluator.verify()
            elif what == _FULL_RUNS:
                self._evaluator.use_full_runs(*about)
            else:
                condition, trial = about
                _, stopped = self.run(Chunk(condition, (trial,)))
                if stopped is not None and not isinstance(
                    stopped, CoupledRowsError
                ):  # which rank 0 has too, and answers
                    raise _failure(ranks.rank, condition, trial, stopped)


def _failure(rank: int, condition: int, trial: int, error: BaseException) -> BaseException:
    if not isinstance(error, Exception):
        return error
    failed = RankFailedError(f"rank {rank}, condition {condition}, trial {trial}: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


register_runner(lambda evaluator: evaluator.ranks is not None, LeadingRunner)
