"""The evaluator: metrics of a model on some rows, without errors once (the golden run), then with them."""

import copy
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from drsrobust._amounts import amount
from drsrobust._arguments import check_function, check_instance
from drsrobust._choices import check_choice
from drsrobust._html import facts
from drsrobust.data import Dataset, Split, checked_task
from drsrobust.evaluation.affected_rows import AffectedRows, CoupledRowsError
from drsrobust.evaluation.checked_model import check_model
from drsrobust.evaluation.checked_rows import checked_rows, ids_and_tables
from drsrobust.evaluation.evaluation import NUMBERS, Evaluation, TaskMetrics, compared
from drsrobust.evaluation.golden_scores import check_finite, warn_of_chance, warn_of_probabilities
from drsrobust.evaluation.passes import Asked, OtherRows, Passes, RowsError, registered
from drsrobust.evaluation.tensor_probes import Probes, probe_tensors, target_maps
from drsrobust.injection import AddressSpace, ErrorMap, InjectionError, restore_leftovers
from drsrobust.injection.apply import maps_with, suspended
from drsrobust.introspection.calling import Forward, device_of
from drsrobust.introspection.devices import accelerator_of
from drsrobust.introspection.numerics import numerics, numerics_text
from drsrobust.introspection.wrappers import check_module
from drsrobust.metrics._inputs import checked_k
from drsrobust.metrics.changes import checked_epsilon, checked_threshold
from drsrobust.metrics.incremental import SCORES
from drsrobust.metrics.own import OwnMetric
from drsrobust.metrics.row_parts import draws
from drsrobust.metrics.tasks import ClickMetrics, MultiMetrics, RankMetrics
from drsrobust.mitigation import Mitigation
from drsrobust.mitigation.base import attached_mitigations
from drsrobust.models import model_name, state_checksum, state_digest
from drsrobust.models.scoring import TASKS, Scoring
from drsrobust.statistics.columns import OVER_ROWS


class Evaluator:
    """Evaluates a model on some rows.

    The golden run scores all rows once and finds what errors can affect, so that `rerun` computes only that. Errors that an
    interrupted `with dr.inject(...)` left in the model are undone first, with a warning.

    Args:
        model: any module; sharded by TorchRec's DistributedModelParallel, every rank makes the same calls.
        rows: a Split, a Dataset (its test rows), Batches (`dr.data.from_batches`) or a stream (`dr.data.stream`), of which
            each evaluation is a full run that keeps no scores.
        forward: forward(model, batch) -> the model's output; None: model(dense_features=..., sparse_features=...).
        output: `logit`, or `probability` for outputs after a sigmoid. None: `logit`, with a warning where the scores look like
            probabilities.
        task: `click`: scores [B] or [B, 1], labels 0 or 1; `multi`: scores [B, T] (or a tuple of T columns, or a dictionary by
            the tasks' names) and labels [n, T]; `ranking`: scores [B, items], labels are the relevant items of each row; items
            that a row does not offer (that a user has seen) may have -inf.
        factory: makes the same module, with any weights, in a campaign's worker process. Needed only for models that cannot be
            pickled.
        memory: budget of the module outputs that are cached for `rerun`: bytes, or text as "500MB"; 0: no cache. Batches
            without room are scored in full. Under a mitigation with a side in the computation another evaluator is made, with
            as much.
        k: length of a list, for ranking metrics.
        threshold: probability over which the decision is a click.
        epsilon: change of a logit over which a score counts as changed.
        scores: what AUC, users' lists, decisions and own metrics compare: `probability` (default), float32 as a server returns
            it, where logits over 17.4 tie; or `logit` (default of `ranking`).

    Attributes:
        golden: the evaluation of the model without errors.
        name: of the model (its registered name, else its class).
        checkpoint: SHA-256 (hex) of the model's state.
        looks_like: `output`; where that is None `probability` if the golden scores of all tasks look like it, else `logit`.
        full_run: why every rerun is a full run; None otherwise. A rerun that finds that rows of a batch affect each other sets
            it.
        numerics: settings of PyTorch, as `torch.autocast`, that are no defaults: it was made, and evaluates, under them alone.

    Warns:
        UserWarning: the scores look like probabilities, and `output` is None: all of them, or of a task, lie in [0, 1], and
            they follow a sigmoid or a similar operation, or are better probabilities than the click rate is. Or the AUC without
            errors is within three standard errors of 0.5.

    Raises:
        TypeError: rows of another type, or batches that need `forward`.
        ValueError: scores or labels of a shape that the task does not take, rows of one class only, scores that are not finite
            without errors, or that are no probabilities where `output` says so, no amount of memory, a model with a tensor
            whose words cannot be read (a DTensor, one without values; frozen TorchScript has none at all), or that is sharded
            over ranks in a way that is not supported, or ranks that differ in their rows or in how the model is sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Split | Dataset | OtherRows,
        *,
        forward: Forward | None = None,
        output: str | None = None,
        task: str = "click",
        factory: Callable[[], nn.Module] | None = None,
        memory: int | str = "2GB",
        k: int = 5,
        threshold: float = 0.5,
        epsilon: float = 1e-3,
        scores: str | None = None,
    ) -> None:
        check_module(model)
        check_model(model)
        self.numerics = numerics()
        self.scoring = Scoring(forward, "logit" if output is None else output, checked_task(task, TASKS))
        task = self.scoring.task
        if factory is not None:
            check_function("factory", factory, "a function without arguments that makes the module")
        if scores is None:
            scores = "logit" if task == "ranking" else "probability"
        k, threshold, epsilon = checked_k(k), checked_threshold(threshold), checked_epsilon(epsilon)
        check_choice("scores", scores, SCORES)
        self._options: dict[str, Any] = dict(memory=memory, k=k, threshold=threshold, epsilon=epsilon, scores=scores)
        budget = amount(memory)
        rows = checked_rows(rows, task)
        self.scoring = replace(self.scoring, tasks=tuple(rows.tasks))
        restore_leftovers(model)
        self.model, self.rows, self.name, self.factory = model, rows, model_name(model), factory
        self.checkpoint, self._checksum = state_digest(model), state_checksum(model)
        self._attached = attached_mitigations(model)
        try:
            self._reach = self._passes(budget)
        except IndexError as error:
            raise IndexError(f"{error}; {ids_and_tables(model, rows)}") from error.__cause__ or error
        golden = self._reach.scores
        self.on_first(lambda: check_finite(golden, len(rows), task, self._reach.non_finite))
        self._reference = self._reach.metrics(lambda: self._metrics(golden))
        self.full_run = self._reach.everything
        self._probes: list[Probes] = []  # shared with evaluators that share the golden run
        self._warned = self._reach.announced
        self.golden = self._evaluation(golden, None)
        auc = self.golden.auc if task == "click" else None
        if auc is not None and not self._attached and multiprocessing.parent_process() is None:
            warn_of_chance(self.name, auc, self._reach.clicks(rows), len(rows))
        self.looks_like = self.scoring.output
        if output is None and task != "ranking" and golden is not None:
            evidence = self._reach.compared(getattr(rows, "labels", None))
            if evidence and warn_of_probabilities(self.name, *evidence, rows.tasks, self._reach.bounded):
                self.looks_like = "probability"

    def _passes(self, budget: int) -> Passes:
        """Makes the golden run."""
        if (make := registered(self.model, self.rows)) is not None:
            return make(Asked(self.model, self.rows, self.scoring, self._options))
        return AffectedRows(self.model, self.rows, budget, self.scoring)

    @property
    def ranks(self) -> Any:
        """The processes that make the same calls; None: this one alone."""
        return self._reach.ranks

    def on_first(self, function: Callable[[], Any]) -> Any:
        """What a function returns; of several processes what it returns in the one that has scores."""
        return self._reach.on_first(function)

    def _metrics(self, golden: Any) -> TaskMetrics:
        """Metrics of the task, of the golden scores."""
        rows: Any = self.rows
        options = {name: value for name, value in self._options.items() if name != "memory"}
        compare = options.pop("scores")
        if self.scoring.task == "ranking":
            if compare != "logit":
                raise ValueError(
                    f"scores is {compare!r}; task='ranking' compares the scores of a row as they are: 'logit'"
                )
            return RankMetrics(rows.labels, golden, k=options["k"], epsilon=options["epsilon"])
        if (accelerator := accelerator_of(device := device_of(self.model))) is not None:
            options["count_pairs"] = partial(accelerator.twice_won, device=device)
        if self.scoring.task == "click":
            return ClickMetrics(rows.labels, golden, rows.prior, rows.users, compare=compare, **options)
        priors = np.nanmean(rows.labels, axis=0)  # NaN: not observed
        return MultiMetrics(rows.labels, golden, priors, rows.tasks, rows.users, compare=compare, **options)

    @property
    def options(self) -> dict[str, Any]:
        """`memory`, `k`, `threshold`, `epsilon` and `scores`."""
        return dict(self._options)

    def run(self) -> Evaluation:
        """Scores all rows with the model in its present state. An exception of the model becomes the outcome `raised`.

        Raises:
            InjectionError: transient errors could not be drawn.
            RowsError: rows are not those of the golden run, as a stream's blocks.
            RuntimeError: the evaluator was made under a mitigation that is not attached now, or under another autocast, default
                dtype or matmul precision than now.
        """
        self._check_attached()
        try:
            scores = self._reach.full()
        except (InjectionError, RowsError):
            raise
        except Exception as error:
            if self.ranks is not None:  # a rank that failed, or another one's end, is no result of errors
                raise
            text = f"{type(error).__name__}: {error}"
            return Evaluation("raised", rows_reached=len(self.rows), error=text, _reference=self._reference)
        return self._evaluation(scores, None)

    def rerun(self, error_map: ErrorMap) -> Evaluation:
        """Returns the result of `run`, but computes only what the errors affect: rows that look up a wrong table row, modules
        that compute with a wrong tensor. `error_map` must be applied; errors of all maps that are applied at the moment count.

        It falls back to `run`, with a warning, if the affected rows are unknown. Scores are those of `run`, bit for bit, if a
        row's score does not depend on its batch (`drsrobust.models.scoring`), else within 1e-5 (1 + |score|). Two checks find a
        model whose rows affect each other only under errors (a branch or a scale by the largest activation of a batch):
        unaffected rows are scored with the affected ones, and about one rerun in 50, by time, is compared with a full run.
        Then it warns, sets `full_run`, and this rerun and all later ones are full runs. Other changes of the model than errors
        are not detected.

        Raises:
            ValueError: the map is not applied.
            InjectionError, RuntimeError: as `run`.
        """
        check_instance("error_map", error_map, ErrorMap, "an error map, as `with dr.inject(...) as error_map` gives it")
        attached, (maps, transient) = self._check_attached(), maps_with(error_map, self.model)
        # Transient errors affect every row; golden scores of another mitigation do not hold.
        if transient or attached != self._attached:
            return self.run()
        if not self._probes:
            with suspended(self.model), ExitStack() as unnoticed:
                for mitigation in attached:  # what it detects in probes is no detection of this rerun's errors
                    unnoticed.enter_context(mitigation.attach(self.model))
                self.probe()
        if self.full_run:
            if not self._warned:
                warnings.warn(f"{self.name}: reruns are full runs: {self.full_run}", stacklevel=2)
                self._warned = True
            return self.run()
        affected = self._reach.of(maps)
        try:
            scores, changed = self._reach.score(affected)
        except InjectionError:
            raise
        except CoupledRowsError:
            self.use_full_runs("an error in one row of a batch changes the scores of other rows")
            warnings.warn(
                f"{self.name}: {self.full_run}: this rerun and all later ones are full runs; earlier reruns may be wrong",
                stacklevel=2,
            )
            return self.run()
        except Exception:  # its message may depend on the batch
            if self.ranks is not None:
                raise
            return self.run()
        if changed is not None and not len(changed):
            return self.golden.unreached()
        return self._evaluation(scores, changed)

    def probe(self, known: Probes | None = None, *, quiet: bool = False) -> Probes:
        """Flips a bit of all words of one tensor after the other, and compares a rerun with a full run on a few rows, once:
        what `rerun` does first. The model must be without errors.

        Args:
            known: what another evaluator of the same model, rows and protection found; nothing is computed then.
            quiet: without warnings.

        Warns:
            UserWarning: tensors that the model reads, and that no score depends on; or why reruns are full runs from now on.
        """
        if self._probes:
            return self._probes[0]
        if known is None and self._reach.traced:
            reach: Any = self._reach  # traced passes are `AffectedRows`
            computes = any(mitigation.computes for mitigation in self._attached)
            known = probe_tensors(self.model, reach, reruns=self.full_run is None, effects=not computes)
        elif known is None:
            known = self._reach.probe()
        self._probes.append(known := known or Probes())
        if known.rounded:
            text = f"{self.name}: reruns with errors in {', '.join(known.rounded)} have other last bits than full runs"
            logging.getLogger(__name__).info(text)
        if known.without_effect and not quiet:
            names, pronoun = ", ".join(known.without_effect), "it" if len(known.without_effect) == 1 else "them"
            warnings.warn(
                f"{self.name}: no score depends on {names}; does the model keep what it computed from {pronoun}? Errors there "
                "do nothing then: pass a forward= that drops what the model keeps",
                stacklevel=3,
            )
        if known.full_run and self.full_run is None:
            if not quiet:
                warnings.warn(f"{self.name}: reruns are full runs: {known.full_run}", stacklevel=3)
            self.use_full_runs(known.full_run)
        return known

    def probe_target(self, space: AddressSpace) -> list[list[Any]]:
        """Outcome, AUC, log loss, NaN and infinite rows with errors that must reach scores which depend on a target: what
        shows that code and data are those of another time. The model must be without errors."""
        results = []
        for maps in target_maps(self.model, space):
            with ExitStack() as block:
                for error_map in maps:
                    block.enter_context(error_map.applied(self.model))
                result = self.run()
            results.append([result.outcome, result.auc, result.logloss, result.nan_rows, result.inf_rows])
        return results

    def use_full_runs(self, why: str) -> None:
        """Makes all later reruns full runs, without a warning."""
        self.full_run, self._warned = why, True

    def unchanged(self) -> bool:
        """Whether the model's tensors are those that the evaluator was made for (by their CRC-32)."""
        return state_checksum(self.model) == self._checksum

    def verify(self) -> None:
        """Checks that trials left the model's state, the golden scores and the cached outputs as they were. It takes about as
        long as a full run.

        Raises:
            RuntimeError: something changed.
        """
        if state_digest(self.model) != self.checkpoint:
            raise RuntimeError(f"{self.name}: its tensors changed since the evaluator was made")
        self._reference.check(self._reach.scores)
        if not self._reach.intact():
            raise RuntimeError(f"{self.name}: its scores without errors changed since the evaluator was made")

    @contextmanager
    def under(self, mitigation: "Mitigation", guarded: "Evaluator | None" = None) -> Iterator["Evaluator"]:
        """An evaluator of the model under a mitigation, with its own golden scores, while the block runs. Later its `run` and
        `rerun` raise RuntimeError.

        Args:
            mitigation: attached while the block runs.
            guarded: the evaluator of an earlier block with this mitigation; saves another golden run.
        """
        self._reach.check_mitigation(mitigation)
        with mitigation.attach(self.model):
            if guarded is None and not mitigation.computes:  # the same golden run and cached outputs
                guarded = copy.copy(self)
                guarded._attached = attached_mitigations(self.model)
            elif guarded is None:
                how: dict[str, Any] = {name: getattr(self.scoring, name) for name in ("forward", "output", "task")}
                guarded = Evaluator(self.model, self.rows, factory=self.factory, **how, **self._options)
                guarded.name = self.name
                if mitigation.ordered:  # reruns have batches of other rows
                    guarded.use_full_runs(f"{mitigation.name} depends on the order of batches")
                elif self.full_run:
                    guarded.use_full_runs(self.full_run)
            yield guarded

    def _check_attached(self) -> tuple[Mitigation, ...]:
        """The mitigations that are attached to the model; those that the evaluator was made under must be among them, and
        PyTorch's settings those of then."""
        self.check_numerics()
        attached = attached_mitigations(self.model)
        for mitigation in self._attached:
            if not any(other is mitigation for other in attached):
                raise RuntimeError(
                    f"this evaluator was made under {mitigation.name!r}, which is not attached now; use it inside "
                    "`with evaluator.under(mitigation)`"
                )
        return attached

    def check_numerics(self) -> None:
        """Raises RuntimeError if PyTorch's settings are not those under which the golden scores were computed."""
        if (present := numerics()) != self.numerics:
            raise RuntimeError(
                f"this evaluator was made under {numerics_text(self.numerics)}, and now there is {numerics_text(present)}; use "
                "it where it was made, or make a new one here"
            )

    def _evaluation(self, scores: Any, changed: np.ndarray | None) -> Evaluation:
        """Metrics of scores [n] of which some rows may differ from the golden ones (None: any); or of a pass over a stream. Of
        a sharded model rank 0 measures, and the others get the numbers."""
        measured: list[Evaluation] = []

        def numbers() -> dict[str, Any]:
            measured.append(self._measured(scores, changed))
            return {name: getattr(measured[0], name) for name in NUMBERS}

        values = self.on_first(numbers)
        return measured[0] if measured else Evaluation(**values, _reference=self._reference, _changed=changed)

    def _measured(self, scores: Any, changed: np.ndarray | None) -> Evaluation:
        golden = self._reach.scores
        of_changed = (scores, golden) if changed is None else (scores[changed], golden[changed])
        nan_rows, inf_rows = self._reach.non_finite(*of_changed)
        auc, logloss, ne = self._reference.of_clicks(scores, changed)
        return Evaluation(
            outcome="nonfinite" if nan_rows or inf_rows else "ok",
            rows_reached=len(self.rows if changed is None else changed),
            auc=auc,
            logloss=logloss,
            ne=ne,
            nan_rows=nan_rows,
            inf_rows=inf_rows,
            scores=self._reach.kept(scores),
            _reference=self._reference,
            _changed=changed,
        )

    def check_own_metric(self, metric: OwnMetric) -> None:
        """Raises ValueError for a user's metric that raises, or gives no finite number, without errors; for any of a stream."""
        self._reach.check_metric(metric)
        self.on_first(lambda: self._check_own_metric(metric))

    def _check_own_metric(self, metric: OwnMetric) -> None:
        metric.check_golden(self.rows.labels, compared(self.golden, self._options["scores"]), self.rows.users)

    def own_metric(self, metric: OwnMetric, result: Evaluation) -> float | None:
        """A user's metric of a result of this evaluator; None if the model raised, or if the metric raises where a score is
        NaN or infinite.

        Raises:
            Exception: what the metric raises of finite scores.
        """
        if result.scores is None:
            return None
        wrong, golden = (compared(each, self._options["scores"]) for each in (result, self.golden))
        try:
            return metric(self.rows.labels, wrong, golden, self.rows.users)
        except Exception:
            if result.outcome == "ok":
                raise
            return None

    def over_rows(self, result: Evaluation) -> dict[str, float]:
        """The columns `OVER_ROWS` of a result: draws of the error over rows of its AUC, and of the AUC that it lost against
        the golden scores on the same rows (paired); empty where there is no AUC, or no scores."""
        golden = self.golden.auc_parts
        parts = golden if result.scores is self.golden.scores else result.auc_parts
        if golden is None or parts is None:
            return {}
        errors = {"auc": parts, "auc_drop": golden - parts}
        return {
            column: float(drawn)
            for name, columns in OVER_ROWS.items()
            for column, drawn in zip(columns, draws(errors[name]), strict=True)
        }

    def __repr__(self) -> str:
        golden = "" if self.golden.auc is None else f": golden AUC {self.golden.auc:.4f}"
        return f"<Evaluator {self.name} on {self.rows!r}{golden}>"

    def _repr_html_(self) -> str:
        golden, click = self.golden, self.scoring.task == "click"
        rows = f"{len(self.rows):,} of {self.rows.dataset}"
        return facts(
            "Evaluator",
            {
                "model": f"{self.name}, {sum(p.numel() for p in self.model.parameters()):,} parameters",
                "rows": f"{rows}, {self._reach.clicks(self.rows) / len(self.rows):.1%} clicked" if click else rows,
                "task": None if click else self.scoring.task,
                "AUC without errors": golden.auc and f"{golden.auc:.4f}",
                "log loss, NE": golden.ne and f"{golden.logloss:.4f}, {golden.ne:.4f}",
                "AUC compares": golden.auc and self.options["scores"],
                "reruns": "affected rows and modules" if self.full_run is None else f"full runs: {self.full_run}",
                "under": ", ".join(mitigation.name for mitigation in self._attached) or None,
            },
        )


def check_evaluator(evaluator: object) -> None:
    """Raises ArgumentError for what is no evaluator."""
    check_instance("evaluator", evaluator, Evaluator, "an Evaluator, as Evaluator(model, data.test)")
