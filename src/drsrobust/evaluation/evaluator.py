"""The evaluator: golden scores once, then the model as it stands, errors and all."""

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from drsrobust.data import Split
from drsrobust.injection import InjectionError, restore_leftovers
from drsrobust.metrics import auc, log_loss, normalised_entropy
from drsrobust.models import model_name, padded_batches, score, state_digest


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came out of one evaluation of n rows.

    Attributes:
        outcome: `ok`; `nonfinite` (a score is NaN or infinite); `raised` (the model raised: metrics are None).
        auc, logloss, ne: metrics under the rules of `drsrobust.metrics`.
        nan_rows, inf_rows: rows whose score is NaN, or infinite.
        rows_reached: rows that were computed anew.
        scores: logits float32 [n].
        error: text of the exception, if any.
    """

    outcome: str
    rows_reached: int
    auc: float | None = None
    logloss: float | None = None
    ne: float | None = None
    nan_rows: int | None = None
    inf_rows: int | None = None
    scores: np.ndarray | None = field(default=None, repr=False)
    error: str | None = None


class Evaluator:
    """Judges a model on the rows of a split.

    What an interrupted `with dr.inject(...)` left in the model is undone first, with a warning.

    Args:
        model: forward(dense_features, sparse_features) -> logits [B] or [B, 1].
        split: rows of both classes.

    Attributes:
        golden: the evaluation of the model as it was given.
        name: of the model (its registered name, else its class).
        checkpoint: SHA-256 (hex) of the model's state as it was given.

    Raises:
        TypeError: `split` is not a Split.
        ValueError: the split has one class only, or the model has scores that are not finite to begin with.
    """

    def __init__(self, model: nn.Module, split: Split) -> None:
        if not isinstance(split, Split):
            raise TypeError(f"split is a {type(split).__name__}; it must be a Split, as data.test")
        restore_leftovers(model)
        clicks = int(np.sum(split.labels > 0.5))
        if clicks in (0, len(split)):
            raise ValueError(f"the split has {clicks} clicks in {len(split)} rows; AUC needs rows of both classes")
        self.model, self.split, self.name = model, split, model_name(model)
        self.checkpoint = state_digest(model)
        self._batches = padded_batches(split)
        self.golden = self._evaluate(score(model, self._batches, len(split)))
        if self.golden.outcome != "ok":
            raise ValueError(
                f"the model without errors gives {self.golden.nan_rows} NaN and {self.golden.inf_rows} infinite scores in "
                f"{len(split)} rows; nothing can be compared with that"
            )

    def run(self) -> Evaluation:
        """Scores all rows with the model as it stands now. An exception of the model becomes the outcome `raised`.

        Raises:
            InjectionError: errors that were to be drawn meanwhile could not be: not the model's doing.
        """
        try:
            return self._evaluate(score(self.model, self._batches, len(self.split)))
        except InjectionError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Evaluation("raised", rows_reached=len(self.split), error=text)

    def _evaluate(self, scores: np.ndarray) -> Evaluation:
        labels, prior = self.split.labels, self.split.prior
        nan_rows, inf_rows = int(np.isnan(scores).sum()), int(np.isinf(scores).sum())
        return Evaluation(
            outcome="nonfinite" if nan_rows or inf_rows else "ok",
            rows_reached=len(scores),
            auc=auc(labels, scores),
            logloss=log_loss(labels, scores, prior),
            ne=normalised_entropy(labels, scores, prior),
            nan_rows=nan_rows,
            inf_rows=inf_rows,
            scores=scores,
        )

    def __repr__(self) -> str:
        return f"<Evaluator {self.name} on {self.split!r}: golden AUC {self.golden.auc:.4f}>"
