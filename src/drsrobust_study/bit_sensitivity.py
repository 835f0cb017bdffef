"""Statement S2: what a flip of an exponent bit makes of a float32, and the AUC lost to a flip of each bit."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from drsrobust.introspection import components, named_tensors
from drsrobust.models import model_name
from drsrobust_study.statements import interval

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def exponent_flips(models: "Sequence[nn.Module]") -> "pd.DataFrame":
    """What one flip of each exponent bit makes of the float32 weights of some models, by exact arithmetic.

    Args:
        models: parameters of other types than float32 are skipped.

    Returns:
        one row per model and bit (30 to 23): `model`, `bit`, `words`, and the shares of words that become `infinite`, `nan`,
        `huge` (finite, over 1e30) and `smaller` in magnitude.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(2, 1, bias=False).requires_grad_(False)
        >>> _ = layer.weight.copy_(torch.tensor([[1.0, 1.5]]))
        >>> exponent_flips([layer]).iloc[0][["infinite", "nan"]].astype(float).tolist()
        [0.5, 0.5]
    """
    import pandas as pd

    rows = []
    for model in models:
        before = np.concatenate([np.empty(0, np.float32), *(word for _, word in _words(model))])
        for bit in range(30, 22, -1) if len(before) else ():
            after = np.abs(flipped(before, bit))
            shares = {"infinite": np.isinf(after), "nan": np.isnan(after), "smaller": after < np.abs(before)}
            shares["huge"] = np.isfinite(after) & (after > 1e30)
            row = {"model": model_name(model), "bit": bit, "words": len(before)}
            rows.append(row | {name: float(hit.mean()) for name, hit in shares.items()})
    return pd.DataFrame(rows)


def flipped(words: np.ndarray, bit: int) -> np.ndarray:
    """Float32 numbers with one bit flipped: 0 the lowest of the mantissa, 31 the sign.

    Raises:
        ValueError: a bit that a float32 does not have.

    Example:
        >>> float(flipped(np.float32([0.625]), 30)[0])  # its second highest bit
        2.12...e+38
    """
    if bit not in range(32):
        raise ValueError(f"bit must be 0 to 31 for float32, got {bit!r}")
    return (np.asarray(words, np.float32).view(np.uint32) ^ np.uint32(1 << bit)).view(np.float32)


def loss_by_bit(table: "pd.DataFrame", models: "Sequence[nn.Module]") -> "pd.DataFrame":
    """AUC lost to a flip of each bit of a random word of a model.

    Args:
        table: trials of campaigns of `SingleBit` with one component as target each, over all components of trained models, with
            `train_seed`; each training should have error maps of its own.
        models: one of each name; a component counts by its number of words.

    Returns:
        one row per model and bit: `model`, `dataset`, `bit`, `auc_drop` with `_low` and `_high` (95 % over trainings; none for
        fewer than three), `n` trainings, and `loss_share`, of the loss to a flip of a random one of these bits.
    """
    import pandas as pd

    words = {(model_name(m), row.component): row.parameters for m in models for row in components(m).itertuples()}
    keys, rows = ["model", "dataset", "error_bit"], []
    means = table.groupby([*keys, "train_seed", "target"], sort=False)["auc_drop"].mean().reset_index()
    means["words"] = [words[key] for key in means[["model", "target"]].itertuples(index=False, name=None)]
    for key, of_bit in means.groupby(keys, sort=False):
        values = [np.average(of["auc_drop"], weights=of["words"]) for _, of in of_bit.groupby("train_seed")]
        mean, low, high = interval(np.array(values, float))
        row = dict(zip(("model", "dataset", "bit"), key, strict=True)) | {"auc_drop": mean, "auc_drop_low": low}
        rows.append(row | {"auc_drop_high": high, "n": len(values)})
    found = pd.DataFrame(rows).astype({"bit": int})
    return found.assign(loss_share=found["auc_drop"] / found.groupby("model")["auc_drop"].transform("sum"))


def _words(model: "nn.Module") -> "Iterator[tuple[str, np.ndarray]]":
    """The name and the numbers of each float32 parameter."""
    for name, tensor in named_tensors(model, buffers=False):
        if tensor.dtype == torch.float32:
            yield name, tensor.detach().cpu().numpy().ravel()
