"""Whether a clean model is as good as it should be: against torchfm's classes on MovieLens-1M, and against logistic regression
on hashed features of Criteo.

torchfm 0.7.0 (github.com/rixwew/pytorch-fm) has the study's five models; here they are trained with the study's settings and
early stopping on validation AUC.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from benchmarks.common import NOT_INSTALLED, OURS, Result, text
from drsrobust._hashing import splitmix64
from drsrobust._progress import progress_bar
from drsrobust.data import Dataset
from drsrobust.metrics import auc, log_loss
from drsrobust.metrics.auc import auc_difference
from drsrobust.models import MODELS, padded_batches, score
from drsrobust.training import Settings, default_settings, load_model
from drsrobust_extras.data.click_logs import CATEGORIES, COUNT_COLUMNS, TABLES
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.registry import find_files

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

    from drsrobust.data import Split
    from drsrobust.data.dataset import Schema

READ_COLUMNS = 2**18  # of the hashed matrix
INVERSE_PENALTIES = (0.01, 0.03, 0.1, 0.3)  # C of scikit-learn, tried on validation rows


def read_raw(path: Any) -> dict[str, np.ndarray]:
    """The columns of a Criteo file as the schema `fields` reads them: `label`, `I1`..`I13` in buckets, `C1`..`C26`, int64 [n]
    each, rows in the order of the file.

    Raises:
        DataError: a line that is not of this form.
    """
    blocks = list(TABLES["fields"].blocks(path))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def hashed(raw: dict[str, np.ndarray], columns: int = READ_COLUMNS) -> "csr_matrix":
    """One-hot features [n, columns], a hash of field and value naming the column; two values that share one add up.

    Args:
        raw: as `read_raw` gives it.
        columns: of the matrix; a power of two.
    """
    from scipy.sparse import csr_matrix

    keys = splitmix64(np.arange(len(COUNT_COLUMNS + CATEGORIES), dtype=np.uint64))
    fields = zip(COUNT_COLUMNS + CATEGORIES, keys, strict=True)
    places = [splitmix64(raw[name].astype(np.uint64) ^ key) for name, key in fields]
    indices = (np.stack(places, axis=1) & np.uint64(columns - 1)).astype(np.int32)  # [n, fields]
    rows, width = indices.shape
    shape = (rows, columns)
    found = csr_matrix((np.ones(rows * width), indices.ravel(), np.arange(rows + 1) * width), shape=shape)
    found.sum_duplicates()
    return found


def fitted(
    features: "csr_matrix",
    labels: np.ndarray,
    train: np.ndarray,
    valid: np.ndarray,
    penalties: Sequence[float] = INVERSE_PENALTIES,
) -> tuple[Any, float, dict[float, float]]:
    """Scikit-learn's logistic regression with the L2 penalty that is best on validation rows.

    Args:
        features: [n, columns].
        labels: [n], 0 or 1.
        train, valid: numbers of rows.
        penalties: values of C to try.

    Returns:
        the best model, its C, and the validation AUC of each C.
    """
    from sklearn.linear_model import LogisticRegression

    found, models = {}, {}
    for penalty in penalties:
        model = LogisticRegression(C=penalty, solver="lbfgs", max_iter=300, tol=1e-4)
        models[penalty] = model.fit(features[train], labels[train])
        found[penalty] = auc(labels[valid], model.decision_function(features[valid]))
    best = max(found, key=found.get)
    return models[best], best, found


NAME = "torchfm"
TORCHFM_MODELS = ("fm", "dcn", "afm", "wide_deep", "deepfm")
_DIM, _ATTENTION, _MLP, _DROPOUT, _CROSS = 16, 16, (16, 16), 0.2, 3  # the study's sizes (arXiv:2307.10244)


def installed() -> bool:
    """Whether it can be imported."""
    return find_spec("torchfm") is not None


def torchfm_model(name: str, schema: "Schema") -> nn.Module:
    """An untrained model of its own, with the study's sizes: ids int64 [B, F] -> probabilities [B].

    Args:
        name: one of `TORCHFM_MODELS`.
        schema: single-hot features only, no dense columns: its models know no others.

    Raises:
        ValueError: a schema with other columns.
    """
    from torchfm.model.afm import AttentionalFactorizationMachineModel
    from torchfm.model.dcn import DeepCrossNetworkModel
    from torchfm.model.dfm import DeepFactorizationMachineModel
    from torchfm.model.fm import FactorizationMachineModel
    from torchfm.model.wd import WideAndDeepModel

    if schema.dense or any(feature.multi_hot for feature in schema.features):
        raise ValueError("torchfm's models take single-hot ids alone; this schema has dense or multi-hot columns")
    sizes = [feature.cardinality for feature in schema.features]
    return {
        "fm": lambda: FactorizationMachineModel(sizes, _DIM),
        "dcn": lambda: DeepCrossNetworkModel(sizes, _DIM, num_layers=_CROSS, mlp_dims=_MLP, dropout=_DROPOUT),
        "afm": lambda: AttentionalFactorizationMachineModel(sizes, _DIM, _ATTENTION, dropouts=(_DROPOUT, _DROPOUT)),
        "wide_deep": lambda: WideAndDeepModel(sizes, _DIM, mlp_dims=_MLP, dropout=_DROPOUT),
        "deepfm": lambda: DeepFactorizationMachineModel(sizes, _DIM, mlp_dims=_MLP, dropout=_DROPOUT),
    }[name]()


class Rows(torch.utils.data.Dataset):
    """A map-style data set as its own `MovieLens1MDataset`: item i is (ids of row i [F], label of row i)."""

    def __init__(self, split: "Split") -> None:
        self.items = ids_of(split)
        self.targets = np.array(split.labels)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.items[index], self.targets[index]


def ids_of(split: "Split") -> np.ndarray:
    """Ids int64 [n, F] of a split without multi-hot features."""
    return np.stack([np.asarray(column.values, np.int64) for column in split.sparse.values()], axis=1)


def set_dropout(model: nn.Module, on: bool) -> None:
    """Training or evaluation mode. Its AFM calls `F.dropout` without regard to the mode, so that in evaluation mode it still
    drops; here dropout is switched off then."""
    model.train(on)
    if hasattr(model, "afm"):
        model.afm.dropouts = (_DROPOUT, _DROPOUT) if on else (0.0, 0.0)


_SCORED = 8192  # rows at once


def train_torchfm(
    name: str, data: Dataset, settings: Settings, *, progress: bool = True
) -> tuple[np.ndarray, float, float]:
    """Trains one of its models and scores the test rows by the weights of the best epoch.

    Batches are cut from one tensor of ids by an index, not fed row by row: its quality is the question here, not its loader.

    Args:
        name: of the model.
        data: single-hot features only.
        settings: learning rate, weight decay, batch size, epochs, patience and seed are used.
        progress: a progress bar.

    Returns:
        logits [test rows], the best validation AUC, and the seconds that training took.
    """
    start = time.perf_counter()
    parts = {part: torch.from_numpy(ids_of(getattr(data, part))) for part in ("train", "valid", "test")}
    labels = torch.from_numpy(np.array(data.train.labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = torchfm_model(name, data.schema)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        loss = torch.nn.BCELoss()
        best, kept, waited = -1.0, {}, 0
        with progress_bar(settings.epochs, f"torchfm {name}", progress=progress) as bar:
            for _ in range(settings.epochs):
                set_dropout(model, True)
                for rows in torch.randperm(len(labels)).split(settings.batch_size):
                    optimizer.zero_grad()
                    loss(model(parts["train"][rows]), labels[rows]).backward()
                    optimizer.step()
                found = auc(data.valid.labels, _scores(model, parts["valid"]))
                bar.update()
                waited += 1
                if found > best:
                    best, waited = found, 0
                    kept = {key: tensor.clone() for key, tensor in model.state_dict().items()}
                elif waited == settings.patience:
                    break
            bar.total = bar.n
        model.load_state_dict(kept)
    return _scores(model, parts["test"]), best, time.perf_counter() - start


def _scores(model: torch.nn.Module, ids: torch.Tensor) -> np.ndarray:
    """Logits [n] of what the model gives as probabilities."""
    set_dropout(model, False)
    with torch.no_grad():
        found = torch.cat([model(some) for some in ids.split(_SCORED)])
    return torch.logit(found.double(), eps=1e-12).numpy()


BELOW_TORCHFM, BELOW_LINEAR = 0.003, 0.005  # of AUC, that a model of ours may lack


def torchfm_verdicts(table: "pd.DataFrame", differences: "pd.DataFrame") -> "pd.DataFrame":
    """By model: mean test AUC of ours and of torchfm's over seeds, of one seed their difference with DeLong's interval and p,
    and `good`: ours is at least theirs - 0.003.

    Args:
        table, differences: as `quality` gives them.
    """
    means = table.pivot_table(index=["dataset", "model"], columns="method", values="auc", sort=False)
    if NAME not in means:
        return means[[OURS]].iloc[:0]
    found = means[[OURS, NAME]].dropna()
    found["difference"] = found[OURS] - found[NAME]
    seeds = differences.groupby(["dataset", "model"]).size()
    for name in ("low", "high", "p"):
        # DeLong's interval is over rows, for one pair of models.
        found[name] = differences.groupby(["dataset", "model"])[name].first().where(seeds == 1)
    return found.assign(good=found["difference"] >= -BELOW_TORCHFM)


def linear_verdicts(table: "pd.DataFrame") -> "pd.DataFrame":
    """By model on the splits of logistic regression: mean test AUC, mean log loss, mean difference of AUC to logistic
    regression on the same split, the standard error of that mean, and `good`: the mean is at least -0.005.

    Args:
        table: as `quality` gives it.
    """
    import pandas as pd

    linear = table[table["method"] == LINEAR].set_index("split")
    rows = []
    for (method, dataset, model), group in table.groupby(["method", "dataset", "model"], sort=False):
        if method == NAME or dataset not in set(linear["dataset"]):
            continue
        by_split = group.groupby("split")[["auc", "logloss"]].mean()
        lead = by_split["auc"] - linear.loc[by_split.index, "auc"]
        error = lead.std(ddof=1) / len(lead) ** 0.5 if len(lead) > 1 else float("nan")
        rows.append((model, len(lead), *by_split.mean(), lead.mean(), error, bool(lead.mean() >= -BELOW_LINEAR)))
    columns = ["model", "splits", "auc", "logloss", "difference", "error", "good"]
    return pd.DataFrame(rows, columns=columns).set_index("model")


def describe(table: "pd.DataFrame", differences: "pd.DataFrame", remarks: list[str]) -> str:
    """Both comparisons as text."""
    parts = ["\n".join(remarks)] if remarks else []
    compared = torchfm_verdicts(table, differences)
    if len(compared):
        parts.append(
            f"Test AUC, {OURS} and {NAME}; DeLong's interval of the difference; good: at least theirs - {BELOW_TORCHFM}\n"
            + text(compared, "{:.4f}")
        )
    compared = linear_verdicts(table)
    if len(compared):
        parts.append(
            "Test AUC, mean over splits; difference to logistic regression with the standard error of its mean; good: at "
            f"least its AUC - {BELOW_LINEAR}\n{text(compared, '{:.4f}')}"
        )
        deep = compared.drop(index=LINEAR)
        if len(deep):
            best = deep["difference"].idxmax()
            verdict = "is at least" if deep.loc[best, "difference"] >= 0 else "is below"
            parts.append(f"The best, {best}, {verdict} logistic regression")
    return "\n\n".join(parts)


LINEAR = "logistic regression"
COLUMNS = ("method", "model", "dataset", "split", "seed", "auc_valid", "auc", "logloss", "seconds")
DIFFERENCES = ("model", "dataset", "seed", "difference", "low", "high", "p")


def against_torchfm(
    dataset: str = "movielens-1m/ids",
    models: Sequence[str] = TORCHFM_MODELS,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    *,
    progress: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Our models with their defaults and torchfm's with the study's settings, on the same split.

    Args:
        dataset: single-hot features only.
        models: of the study's five.
        seeds: of training.
        settings: for both, instead of ours' defaults and the study's for theirs; the seed is replaced.
        progress: progress bars.

    Returns:
        rows of the table, DeLong's paired differences ours - theirs on the test rows (`DIFFERENCES`), and remarks.
    """
    data, rows, differences = load_dataset(dataset), [], []
    for seed in seeds:
        for name in models:
            ours = replace(settings or default_settings(name, data.name), seed=seed)
            mine, row = _ours(name, data, ours, 0, progress)
            rows.append(row)
            if not installed():
                continue
            theirs, valid, seconds = train_torchfm(
                name, data, replace(settings or Settings(), seed=seed), progress=progress
            )
            rows.append(_row(NAME, name, data, 0, seed, valid, theirs, seconds))
            found = auc_difference(data.test.labels, mine, theirs)
            key = {"model": name, "dataset": data.name, "seed": seed}
            differences.append(key | dict(zip(DIFFERENCES[3:], found, strict=True)))
    return rows, differences, [] if installed() else [f"{NAME} not run: {NOT_INSTALLED}"]


def against_linear(
    dataset: str = "criteo-sample/fields",
    models: Sequence[str] | None = None,
    splits: Sequence[int] = range(5),
    penalties: Sequence[float] = INVERSE_PENALTIES,
    load: Callable[[str, int], Dataset] | None = None,
    *,
    path: str | None = None,
    settings: Settings | None = None,
    progress: bool = True,
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
        progress: progress bars.

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
            rows.append(_ours(name, data, settings or default_settings(name, data.name), split, progress)[1])
    return rows


def run() -> Result:
    """The benchmark `quality`."""
    table, differences, remarks = quality()
    return Result({"quality": table, "quality_delong": differences}, describe(table, differences, remarks))


def quality(
    torchfm: dict[str, Any] | None = None, linear: dict[str, Any] | None = None, *, progress: bool = True
) -> tuple["pd.DataFrame", "pd.DataFrame", list[str]]:
    """Both comparisons.

    Args:
        torchfm: arguments of `against_torchfm` other than its defaults.
        linear: arguments of `against_linear` other than its defaults.
        progress: progress bars.

    Returns:
        the table (`COLUMNS`), DeLong's differences (`DIFFERENCES`), and remarks.
    """
    import pandas as pd

    rows, differences, remarks = against_torchfm(**(torchfm or {}), progress=progress)
    rows += against_linear(**(linear or {}), progress=progress)
    return pd.DataFrame(rows, columns=list(COLUMNS)), pd.DataFrame(differences, columns=list(DIFFERENCES)), remarks


def _ours(
    name: str, data: Dataset, settings: Settings, split: int, progress: bool
) -> tuple[np.ndarray, dict[str, Any]]:
    model = load_model(name, data, settings=settings, progress=progress)
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
