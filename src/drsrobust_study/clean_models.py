"""AUC and log loss of trained models without errors, one row per model (notebook 00_models)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drsrobust.data import Dataset
from drsrobust.metrics import log_loss, normalised_entropy
from drsrobust.metrics.auc import auc_difference, auc_interval
from drsrobust.models import model_name, padded_batches, score
from drsrobust.statistics.intervals import CONFIDENCE

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def clean_table(trained: "Iterable[tuple[nn.Module, Dataset]]") -> "tuple[pd.DataFrame, pd.DataFrame]":
    """The table `model x data set`, and the learning curves behind it.

    Args:
        trained: pairs of a model from `load_model` and its data.

    Returns:
        one row per pair, scored on all test rows: `model`, `dataset`, `rows`, `auc` with `auc_low`, `auc_high` (95 %,
        DeLong, over rows), `below_best` with `below_best_low`, `below_best_high` and `p` (the AUC of the data set's best
        model minus this one's, on the same rows: paired DeLong; empty for the best), `logloss` (nats per row), `ne`,
        `parameters`, `epochs`, `seconds` (of training), `sizes`, `state` (first 12 digits of the SHA-256 of its weights);
        and one row per epoch of each.
    """
    import pandas as pd

    rows, curves, scores, labels = [], [], {}, {}
    for model, data in trained:
        name, test = model_name(model), data.test
        logits = score(model, padded_batches(test), len(test))
        value, low, high = auc_interval(test.labels, logits)
        rows.append(
            {
                "model": name,
                "dataset": data.name,
                "rows": len(test),
                "auc": value,
                "auc_low": low,
                "auc_high": high,
                "logloss": log_loss(test.labels, logits, test.prior),
                "ne": normalised_entropy(test.labels, logits, test.prior),
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "epochs": len(model.manifest["curve"]),
                "seconds": model.manifest["seconds"],
                "sizes": str(model.manifest["sizes"]),
                "state": model.manifest["state"][:12],
            }
        )
        scores[len(rows) - 1], labels[data.name] = logits, test.labels
        curves.append(pd.DataFrame(model.manifest["curve"]).assign(model=name, dataset=data.name))
    table = pd.DataFrame(rows)
    for dataset, group in table.groupby("dataset", sort=False):
        best = group["auc"].idxmax()
        for row in group.index.difference([best]):
            difference = auc_difference(labels[dataset], scores[best], scores[row])
            table.loc[row, ["below_best", "below_best_low", "below_best_high", "p"]] = difference
    table.attrs = {"interval": f"{CONFIDENCE:.0%} interval over test rows (DeLong)"}
    return table, pd.concat(curves, ignore_index=True)
