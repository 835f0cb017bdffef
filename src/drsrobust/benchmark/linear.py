"""Logistic regression on hashed features: what a deep model on click logs has to beat."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.data.criteo import CATEGORIES, INTEGERS, TABLES
from drsrobust.data.encoding import splitmix64
from drsrobust.data.text import BadLines
from drsrobust.metrics import auc

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

COLUMNS = 2**18  # of the hashed matrix
INVERSE_PENALTIES = (0.01, 0.03, 0.1, 0.3)  # C of scikit-learn, tried on validation rows


def read_raw(path: Any) -> dict[str, np.ndarray]:
    """The columns of a Criteo file as the schema `fields` reads them: `label`, `I1`..`I13` in buckets, `C1`..`C26`, int64 [n]
    each, rows in the order of the file.

    Raises:
        DataError: a line that is not of this form.
    """
    blocks = list(TABLES["fields"].blocks(path, BadLines("strict"), 0))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def hashed(raw: dict[str, np.ndarray], columns: int = COLUMNS) -> "csr_matrix":
    """One-hot features [n, columns], a hash of field and value naming the column; two values that share one add up.

    Args:
        raw: as `read_raw` gives it.
        columns: of the matrix; a power of two.
    """
    from scipy.sparse import csr_matrix

    keys = splitmix64(np.arange(len(INTEGERS + CATEGORIES), dtype=np.uint64))
    fields = zip(INTEGERS + CATEGORIES, keys, strict=True)
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
