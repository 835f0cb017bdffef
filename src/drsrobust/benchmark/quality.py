"""Is a clean model as good as it should be? Against torchfm's classes on MovieLens-1M, logistic regression on Criteo."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.benchmark.linear import INVERSE_PENALTIES, fitted, hashed, read_raw
from drsrobust.benchmark.torchfm_models import MODELS as STUDY
from drsrobust.benchmark.torchfm_models import NAME, NOT_INSTALLED, installed
from drsrobust.benchmark.torchfm_training import train_torchfm
from drsrobust.campaign.delong import auc_difference
from drsrobust.data import Dataset, load_dataset
from drsrobust.data.sources import find_files
from drsrobust.metrics import auc, log_loss
from drsrobust.models import MODELS, padded_batches, score
from drsrobust.training import Settings, default_settings, load_model

if TYPE_CHECKING:
    import pandas as pd

OURS, LINEAR = "drsrobust", "logistic regression"
COLUMNS = ("method", "model", "dataset", "split", "seed", "auc_valid", "auc", "logloss", "seconds")
DIFFERENCES = ("model", "dataset", "seed", "difference", "low", "high", "p")


def against_torchfm(
    dataset: str = "movielens-1m/ids",
    models: Sequence[str] = STUDY,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    *,
    show: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Our models with their defaults and torchfm's with the study's settings, on the same split.

    Args:
        dataset: single-hot features only.
        models: of the study's five.
        seeds: of training.
        settings: for both, instead of ours' defaults and the study's for theirs; the seed is replaced.
        show: progress bars.

    Returns:
        rows of the table, DeLong's paired differences ours - theirs on the test rows (`DIFFERENCES`), and remarks.
    """
    data, rows, differences = load_dataset(dataset), [], []
    for seed in seeds:
        for name in models:
            ours = replace(settings or default_settings(name, data.name), seed=seed)
            mine, row = _ours(name, data, ours, 0, show)
            rows.append(row)
            if not installed():
                continue
            theirs, valid, seconds = train_torchfm(name, data, replace(settings or Settings(), seed=seed), show=show)
            rows.append(_row(NAME, name, data, 0, seed, valid, theirs, seconds))
            found = auc_difference(data.test.labels, mine, theirs)
            key = {"model": name, "dataset": data.name, "seed": seed}
            differences.append(key | dict(zip(DIFFERENCES[3:], found, strict=True)))
    return rows, differences, [] if installed() else [f"not run: {NOT_INSTALLED}"]


def against_linear(
    dataset: str = "criteo-sample/fields",
    models: Sequence[str] | None = None,
    splits: Sequence[int] = range(5),
    penalties: Sequence[float] = INVERSE_PENALTIES,
    load: Callable[[str, int], Dataset] | None = None,
    *,
    path: str | None = None,
    settings: Settings | None = None,
    show: bool = True,
) -> list[dict[str, Any]]:
    """Logistic regression on hashed features and our models with their defaults, on the same rows of the same splits.

    Args:
        dataset: read from one Criteo file; a schema may follow after a slash.
        models: of ours; None: all but `dummy`, which is not trained, and `afn`, which takes a GPU.
        splits: seeds of the split.
        penalties: values of C, chosen on validation rows.
        load: (dataset, split seed) -> data set; None: `load_dataset`.
        path: of the file; None: where DRSROBUST_DATA says.
        settings: of ours; None: their defaults.
        show: progress bars.

    Returns:
        rows of the table.
    """
    (file,) = find_files(dataset, path=path)
    raw = read_raw(file)
    features, labels = hashed(raw), raw["label"]
    models = [name for name in MODELS if name not in ("afn", "dummy")] if models is None else models
    rows = []
    for split in splits:
        data = load(dataset, split) if load else load_dataset(dataset, path=path, seed=split)
        if not np.array_equal(labels[data.test.rows], data.test.labels):
            raise ValueError(f"the rows of {data!r} are not numbered as the lines of {file}")
        start = time.perf_counter()
        model, _, found = fitted(features, labels, data.train.rows, data.valid.rows, penalties)
        scores = model.decision_function(features[data.test.rows])
        seconds = time.perf_counter() - start
        rows.append(_row(LINEAR, LINEAR, data, split, 0, max(found.values()), scores, seconds))
        for name in models:
            rows.append(_ours(name, data, settings or default_settings(name, data.name), split, show)[1])
    return rows


def quality(
    torchfm: dict[str, Any] | None = None, linear: dict[str, Any] | None = None, *, show: bool = True
) -> tuple["pd.DataFrame", "pd.DataFrame", list[str]]:
    """The benchmark `quality`: both comparisons.

    Args:
        torchfm: arguments of `against_torchfm` other than its defaults.
        linear: arguments of `against_linear` other than its defaults.
        show: progress bars.

    Returns:
        the table (`COLUMNS`), DeLong's differences (`DIFFERENCES`), and remarks.
    """
    import pandas as pd

    rows, differences, remarks = against_torchfm(**(torchfm or {}), show=show)
    rows += against_linear(**(linear or {}), show=show)
    return pd.DataFrame(rows, columns=list(COLUMNS)), pd.DataFrame(differences, columns=list(DIFFERENCES)), remarks


def _ours(name: str, data: Dataset, settings: Settings, split: int, show: bool) -> tuple[np.ndarray, dict[str, Any]]:
    model = load_model(name, data, settings=settings, show=show)
    scores = score(model, padded_batches(data.test), len(data.test))
    valid = max(epoch["valid_auc"] for epoch in model.manifest["curve"])
    return scores, _row(OURS, name, data, split, settings.seed, valid, scores, model.manifest["seconds"])


def _row(
    method: str, model: str, data: Dataset, split: int, seed: int, valid: float, scores: np.ndarray, seconds: float
) -> dict[str, Any]:
    """One line of the table; `split` and `seed` are the seeds of the split and of training."""
    labels = data.test.labels
    area, loss = auc(labels, scores), log_loss(labels, scores, data.test.prior)
    return dict(zip(COLUMNS, (method, model, data.name, split, seed, valid, area, loss, seconds), strict=True))
