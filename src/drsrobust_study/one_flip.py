"""One weight with each of its bits flipped: its value, the probability and rank of one item, and AUC."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drsrobust.injection import SingleBit, inject
from drsrobust.introspection.tensors import named_tensors

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.evaluation import Evaluation, Evaluator
    from drsrobust.injection import ErrorMap


def flip(model: torch.nn.Module, target: str, bit: int, *, seed: int = 0) -> "ErrorMap":
    """The flip of one bit of a word that the seed draws from a target: the same word for every bit (`SingleBit` draws another
    one for each)."""
    with inject(model, SingleBit(31), target=target, seed=seed) as sign_flip:
        return replace(sign_flip, error_model=f"SingleBit(bit={bit})", mask=np.array([1 << bit], np.uint64))


def one_flip(evaluator: "Evaluator", target: str, *, seed: int = 0) -> "pd.DataFrame":
    """Flips each bit of one float32 weight and scores the rows again.

    The item is the first in the list of the user with most rows, as the model without errors orders it.

    Args:
        evaluator: of rows with users.
        target: a component or tensors by glob; the weight is drawn from it.
        seed: draws the weight.

    Returns:
        one row without a flip (`flipped` -1), then one per bit, the sign (31) first: `flipped`; `word`, 32 digits with the
        highest bit first; `value` of the weight; `probability` and `rank` of the item among its user's rows (1 is first, ties
        are by row order, NaN is last); `auc`. `attrs` has `weight` (its tensor and place), `row` of the item, `user` and how
        many `items` the user has.

    Raises:
        ValueError: the rows have no users, or the weight is not float32.
    """
    import pandas as pd

    users = evaluator.rows.users
    if users is None:
        raise ValueError(f"{evaluator.rows.dataset} has no users; one_flip ranks an item in a user's list")
    ids, counts = np.unique(users, return_counts=True)
    rows_of_user = np.flatnonzero(users == ids[counts.argmax()])
    item = int(rows_of_user[evaluator.golden.scores[rows_of_user].argmax()])
    ((name, place),) = flip(evaluator.model, target, 31, seed=seed).frame()[["tensor", "word"]].itertuples(index=False)
    word = _word(evaluator.model, name, place)
    rows = [_described(-1, word, evaluator.golden, rows_of_user, item)]
    for bit in range(31, -1, -1):
        with flip(evaluator.model, target, bit, seed=seed).applied(evaluator.model) as error_map:
            rows.append(_described(bit, word ^ (1 << bit), evaluator.rerun(error_map), rows_of_user, item))
    table = pd.DataFrame(rows)
    table.attrs = {"weight": f"{name}[{place}]", "row": item, "user": int(users[item]), "items": len(rows_of_user)}
    return table


def _word(model: torch.nn.Module, name: str, place: int) -> int:
    tensor = dict(named_tensors(model, buffers=True))[name]
    if tensor.dtype != torch.float32:
        raise ValueError(f"{name} is {tensor.dtype}; one_flip takes weights of float32")
    return int(tensor.detach().reshape(-1)[place].cpu().numpy().view(np.uint32))


def _described(bit: int, word: int, evaluation: "Evaluation", user_rows: np.ndarray, item: int) -> dict[str, Any]:
    scores = evaluation.scores[user_rows]
    order = np.argsort(-scores, kind="stable")  # NaN is last
    return {
        "flipped": bit,
        "word": f"{word:032b}",
        "value": float(np.uint32(word).view(np.float32)),
        "probability": float(evaluation.probabilities[item]),
        "rank": 1 + int(np.flatnonzero(user_rows[order] == item)[0]),
        "auc": evaluation.auc,
    }
