"""Scores of all rows with errors in some tensors: by the model, with what is kept of its modules, or by a program.

A program is the tapes of the batches for errors in a set of tensors. It serves all sets whose errors reach the same
operations. One is made when such errors come again and again, as in a campaign, not for a single rerun.
"""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from drsrobust.evaluation.dataflow import Dataflow
from drsrobust.evaluation.kept import KeptOutputs
from drsrobust.evaluation.recorder import Recorder, Refused
from drsrobust.evaluation.tape import Tape
from drsrobust.evaluation.unchanged import Unchanged
from drsrobust.models import evaluating, gathered, logits_of, score
from drsrobust.tensors import listed

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

ASKED = 3  # times that operations must be reached for a program of them; to make and try it takes as long as two trials
NEARLY = 0.8  # share of a full run's time from which on errors count as reaching everything, which one program serves
TRIED = 3  # runs of a new program at most, to see whether it is quicker than the model
WORTH = 0.95  # share of the model's time that a program may take at most: then some dozens of trials pay for it
HELD = 16  # sets of tensors at most that a program in use is held to the model for, once each
_REMEMBERED = 1000  # sets of tensors


@dataclass
class Program:
    """What is known of one set of tensors.

    Attributes:
        asked: how often errors were there since a program was made last.
        due: how often they must be for one to be made; doubled each time, lest those be made for ever that have to make
            room for others soon, or are no quicker than the model.
        usual: the least CPU seconds that the model took meanwhile.
        tapes: of the batches from the first on; none before a program is made.
        tried: whether it gave the model's scores, and sooner.
        held: sets of tensors with errors in which it was held to the model since.
        why_not: why there will be none.
    """

    asked: int = 0
    due: int = ASKED
    usual: float = math.inf
    tapes: list[Tape] = field(default_factory=list)
    tried: bool = False
    held: set[int] = field(default_factory=set)
    why_not: str | None = None


class Programs:
    """Scores all batches of a model.

    When operations are reached for the third time, a program is recorded besides; the next time, with other errors, the model
    and the program are both run, and it serves from then on if it gave the same bits in less time; each of the first sets of
    tensors that it serves is held to the model once more. Programs that were not used for longest give way where memory runs
    out; batches that find no room are left to the model. Many errors at once reach another set of operations in nearly every
    trial, but always most of them: one program of all operations serves such sets.

    Args:
        model: as it stands, without errors.
        batches: all of them.
        n: rows in them, without padding.
        flow: the model's.
        kept: of these batches.
        together: sets of tensors that are taken to be hit together (the tables of a collection), so that few programs do.
        budget: bytes that programs may take.
        golden: CPU seconds of the golden run.

    Attributes:
        nbytes: memory that programs take, beside `kept` and the batches.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence["Batch"],
        n: int,
        flow: Dataflow,
        kept: KeptOutputs,
        *,
        together: Sequence[int],
        budget: int,
        golden: float,
    ) -> None:
        self._model, self._batches, self._n = model, batches, n
        self._flow, self._kept, self._together, self._budget = flow, kept, together, budget
        self._own = [one.tensor for one in listed(model)]  # in the order in which `flow` numbers them
        self._unchanged = Unchanged(model)
        self._programs: OrderedDict[int, Program] = OrderedDict()  # by set of tensors; last used last
        self._everything = flow.rounded((1 << len(self._own)) - 1)
        self._most: list[int] = []  # sets that reach nearly everything, as those do that contain one of them
        self._golden = golden
        self._whole: float | None = None  # CPU seconds of a full run, now that memory has been used before
        self._shared = {*kept.storages, *(address for batch in batches for address in _addresses(batch))}
        self._holders: Counter[int] = Counter()  # address -> tapes that keep this memory
        self.nbytes = 0

    def scores(self, hit: int) -> np.ndarray:
        """Scores [n] of the model as it stands, with errors in a set of tensors."""
        if not hit or self._budget <= 0 or not self._unchanged():
            return self._by_model(hit)
        key, program = self._program(hit)
        if program.why_not is not None:
            return self._by_model(hit)
        if program.tried:
            return self._served(program, hit) if self._intact(program) else self._by_model(hit)
        if program.tapes:
            return self._try(program, hit)
        scores, took = self._timed_by_model(hit)
        program.usual = min(program.usual, took)
        program.asked += 1
        if self._reaches_most(program):
            if program.asked > 1:
                self._most.append(self._rounded(hit))
            key, program = self._everything, self._programs.setdefault(self._everything, Program())
            program.asked += not program.tapes
        if program.asked >= program.due:
            self._record(program, key)  # for all that it serves, which may be more than what was hit this time
        return scores

    def _reaches_most(self, program: Program) -> bool:
        """Whether a full run takes hardly longer than the model did with errors in this set of tensors."""
        if self._refused_everything or self._programs.get(self._everything) is program:
            return False
        if self._whole is None:
            few = sum(one.asked for one in self._programs.values()) < ASKED - 1
            if few or program.usual < NEARLY * self._golden / 2:
                return False  # a full run is not timed for a single rerun, nor where it is clear that it takes longer
            self._whole = min(self._timed_by_model(self._everything)[1] for _ in range(2))
        return program.usual > NEARLY * self._whole

    @property
    def _refused_everything(self) -> bool:
        everything = self._programs.get(self._everything)
        return everything is not None and everything.why_not is not None

    def _is_most(self, hit: int) -> bool:
        """Whether errors in some of these tensors alone reach nearly everything already."""
        key = self._rounded(hit)
        return not self._refused_everything and any(not most & ~key for most in self._most)

    def of_all_programs(self) -> Iterator[np.ndarray]:
        """Scores [n] of the model as it stands, by each program there is; by the one used last first."""
        if self._unchanged():
            for hit, program in reversed(self._programs.items()):
                if program.tapes:
                    yield self._by_tapes(program, hit)

    def _rounded(self, hit: int) -> int:
        for tables in self._together:
            if hit & tables:
                hit |= tables
        return self._flow.rounded(hit)

    def _program(self, hit: int) -> tuple[int, Program]:
        """The set of tensors with whose program errors in these are scored, and that program."""
        key = self._everything if self._is_most(hit) else self._rounded(hit)
        program = self._programs.setdefault(key, Program())
        self._programs.move_to_end(key)
        if len(self._programs) > _REMEMBERED:
            self._drop(self._programs.popitem(last=False)[1])
        return key, program

    def _by_model(self, hit: int, first: int = 0) -> np.ndarray:
        """Scores of the rows from a batch on."""
        done = sum(len(batch.labels) for batch in self._batches[:first])
        with self._replaying(hit, first) as batches:
            return score(self._model, batches, self._n - done)

    def _timed_by_model(self, hit: int) -> tuple[np.ndarray, float]:
        """Scores of all rows, and the CPU seconds that they took."""
        start = time.process_time()
        return self._by_model(hit), time.process_time() - start

    def _replaying(self, hit: int, first: int, end: int | None = None) -> AbstractContextManager[Iterator["Batch"]]:
        """Batches, during which modules that no error reaches give what is kept of them."""
        return self._kept.replaying(self._flow.unaffected(hit), self._batches[:end], first)

    def _by_tapes(self, program: Program, hit: int) -> np.ndarray:
        with torch.inference_mode():
            scores = gathered((tape.run() for tape in program.tapes), self._n)
        if len(program.tapes) == len(self._batches):
            return scores
        return np.concatenate((scores, self._by_model(hit, len(program.tapes))))

    def _served(self, program: Program, hit: int) -> np.ndarray:
        """What a program gives; of a set of tensors that it serves for the first time held to what the model gives."""
        found = self._by_tapes(program, hit)
        if hit in program.held or len(program.held) >= HELD:
            return found
        program.held.add(hit)
        scores = self._by_model(hit)
        if found.tobytes() != scores.tobytes():
            self._drop(program, "it gave other scores than the model")
        return scores

    def _intact(self, program: Program) -> bool:
        if all(tape.intact() for tape in program.tapes):
            return True
        self._drop(program, "what it kept was written to")
        return False

    def _try(self, program: Program, hit: int) -> np.ndarray:
        scores, usual = self._timed_by_model(hit)
        took = math.inf
        try:
            for _ in range(TRIED):  # the first time much of what is kept has to come into the caches
                start = time.process_time()
                found = self._by_tapes(program, hit)
                took = min(took, time.process_time() - start)
                if took <= usual:
                    break
        except Exception as error:  # the model did not raise
            self._drop(program, f"{type(error).__name__}: {error}")
            return scores
        if found.dtype != scores.dtype or found.tobytes() != scores.tobytes():
            self._drop(program, "it gave other scores than the model")
        elif took > usual:
            self._drop(program)  # perhaps by chance: it is made again, but twice as late each time
        elif self._intact(program):
            program.tried = True
        return scores

    def _record(self, program: Program, hit: int) -> None:
        """Makes the program of a set of tensors, for the model with the errors that are there now."""
        program.asked, program.due = 0, 2 * program.due
        recorder = Recorder(self._own, [tensor for bit, tensor in enumerate(self._own) if hit >> bit & 1])
        try:
            with evaluating(self._model):
                if self._add_tapes(program, recorder, hit, 0, 1) and self._pays(program.tapes[0], hit):
                    self._add_tapes(program, recorder, hit, 1)
                else:
                    self._drop(program)
        except Refused as why:
            self._drop(program, str(why))
        except Exception:  # the model's, with these errors: the full run will tell
            self._drop(program)
        except BaseException:
            self._drop(program)
            raise

    def _add_tapes(self, program: Program, recorder: Recorder, hit: int, first: int, end: int | None = None) -> bool:
        """Adds the tapes of some batches; whether there was room for all of them."""
        with self._replaying(hit, first, end) as batches:
            for batch in batches:
                tape = recorder.tape(lambda batch=batch: logits_of(self._model, batch))
                if not self._make_room(tape, program):
                    return False
                program.tapes.append(tape)
                self._hold(tape)
        return True

    def _pays(self, tape: Tape, hit: int) -> bool:
        """Whether the tape of the first batch is so much quicker than the model that those of all batches are worth making."""
        usual, took = [], []
        for _ in range(3):
            start = time.process_time()
            with self._replaying(hit, 0, 1) as batches:
                for batch in batches:
                    logits_of(self._model, batch)
            usual.append(time.process_time() - start)
            with torch.inference_mode():
                tape.run()
            took.append(time.process_time() - start - usual[-1])
        return min(took) < WORTH * min(usual)

    def _make_room(self, tape: Tape, wanted: Program) -> bool:
        others = [program for program in self._programs.values() if program.tapes and program is not wanted]
        while self.nbytes + self._new_bytes(tape) > self._budget:
            if not others:
                return False
            self._drop(others.pop(0))
        return True

    def _new_bytes(self, tape: Tape) -> int:
        """Memory that a tape keeps and nothing else does."""
        alone = (size for address, size in tape.storages.items() if not self._holders[address])
        return tape.own_bytes + sum(alone)

    def _hold(self, tape: Tape) -> None:
        tape.storages = {address: size for address, size in tape.storages.items() if address not in self._shared}
        self.nbytes += self._new_bytes(tape)
        self._holders.update(list(tape.storages))

    def _drop(self, program: Program, why_not: str | None = None) -> None:
        for tape in program.tapes:
            self._holders.subtract(list(tape.storages))
            self.nbytes -= self._new_bytes(tape)
        self._holders = +self._holders
        program.tapes, program.tried, program.why_not = [], False, why_not
        program.held.clear()


def _addresses(batch: "Batch") -> Iterator[int]:
    jagged = batch.sparse_features
    for tensor in (batch.dense_features, batch.labels, jagged.values(), jagged.lengths(), jagged.offsets()):
        yield tensor.untyped_storage().data_ptr()
