"""One weight with each of its bits flipped: its value, the probability and rank of one item, and AUC."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drsrobust.injection import SingleBit, inject
from drsrobust.introspection import named_tensors

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.evaluation import Evaluation, Evaluator
    from drsrobust.injection import ErrorMap

_LIST = 10  # rows of a user whose list is worth a rank


def flip(model: torch.nn.Module, target: str, bit: int, *, seed: int = 0) -> "ErrorMap":
    """The flip of one bit of a word that the seed draws from a target: the same word for every bit (`SingleBit` draws another
    one for each)."""
    with inject(model, SingleBit(31), target=target, seed=seed) as sign_flip:
        return replace(sign_flip, error_model=f"SingleBit(bit={bit})", mask=np.array([1 << bit], np.uint64))


def one_flip(evaluator: "Evaluator", target: str, *, bit: int = 30, seed: int = 0) -> "pd.DataFrame":
    """Flips each bit of one float32 weight and scores the rows again.

    The item is the first in a user's list, as the model without errors orders it: of all users with at least 10 rows (or with
    as many as any has) the one whose item's probability moves most by the flip of `bit`, of equals the one with most rows.

    Args:
        evaluator: of rows with users.
        target: a component or tensors by glob; the weight is drawn from it.
        bit: whose flip chooses the item.
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
    by_user = np.lexsort((-evaluator.golden.scores, users))
    _, starts, counts = np.unique(users[by_user], return_index=True, return_counts=True)
    items = by_user[starts[np.argsort(-counts, kind="stable")]][: (counts >= min(_LIST, counts.max())).sum()]
    with flip(evaluator.model, target, bit, seed=seed).applied(evaluator.model) as error_map:
        moved = np.abs(evaluator.rerun(error_map).probabilities - evaluator.golden.probabilities)
    item = int(items[np.nan_to_num(moved[items]).argmax()])
    rows_of_user = np.flatnonzero(users == users[item])
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
