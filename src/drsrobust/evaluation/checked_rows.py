"""Rows that can be evaluated, and what is said of ids that a model has no table row for."""

from typing import Any

import numpy as np
from torch import nn

from drsrobust._arguments import check_instance
from drsrobust.data import Dataset, Split
from drsrobust.data.dataset import Ids
from drsrobust.evaluation.passes import OtherRows


def checked_rows(rows: Any, task: str) -> Split | OtherRows:
    """The rows to evaluate on.

    Raises:
        TypeError: neither a Split nor a Dataset nor OtherRows.
        ValueError: no rows, or labels that the task does not take.
    """
    if isinstance(rows, Dataset):
        rows = rows.test
    if isinstance(rows, OtherRows):
        rows = rows.of_task(task)
        if not rows.in_batches:
            return rows
    right = "a Dataset, as of dr.data.from_frame(...), a Split such as data.test, dr.data.from_batches(...) of any batches, "
    check_instance("rows", rows, (Split, OtherRows), f"{right}or dr.data.stream(...)")
    if not len(rows):
        raise ValueError(f"{rows!r} has no rows")
    labels = rows.labels
    kind = (
        "ranking" if isinstance(labels, Ids) or labels.dtype.kind in "iu" else "multi" if labels.ndim == 2 else "click"
    )
    if kind != task:
        maker = "from_frame" if isinstance(rows, Split) else "from_batches"
        right = f"; dr.data.{maker}(..., task='ranking') reads labels as the relevant items of each row" * (
            task == "ranking"
        )
        raise ValueError(f"the labels of {rows.dataset} are those of task={kind!r}, and this is task={task!r}{right}")
    if task != "ranking":
        for name, column in zip(rows.tasks or ("",), labels.reshape(len(rows), -1).T, strict=True):
            clicks, n = int(np.sum(column > 0.5)), len(column) - int(np.isnan(column).sum())
            if clicks in (0, n):
                what = f"task {name!r}" if name else "the split"
                observed = "" if n == len(rows) else " with an observed label"
                raise ValueError(f"{what} has {clicks} clicks in {n} rows{observed}; AUC needs rows of both classes")
    return rows


def ids_and_tables(model: nn.Module, rows: Split | OtherRows) -> str:
    """The largest ids of the rows and the sizes of the model's tables."""
    modules = model.named_modules()
    tables = [
        f"{name} {table.num_embeddings}" for name, table in modules if isinstance(table, nn.Embedding | nn.EmbeddingBag)
    ]
    sparse = rows.sparse if isinstance(rows, Split) else {}
    largest = [f"{name} {ids.values.max()}" for name, ids in sparse.items() if len(ids.values)]
    text = f"rows of the model's tables: {', '.join(tables) or 'none'}"
    return text + (f"; largest ids: {', '.join(largest)}" if largest else "")
