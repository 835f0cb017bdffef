"""Settings tried one after the other, and judged on validation rows alone."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drsrobust.data import Dataset
from drsrobust.training.load import load_model
from drsrobust.training.settings import Settings

if TYPE_CHECKING:
    import pandas as pd


def search(
    name: str,
    data: Dataset,
    settings: Iterable[Settings],
    sizes: Iterable[dict[str, Any] | None] = (None,),
    *,
    show: bool = True,
) -> "pd.DataFrame":
    """Trains a model with each of the settings and sizes; each run is kept as `load_model` keeps it.

    Args:
        name: of the model.
        data: as for `load_model`. Nothing of its test rows is in the table, so that they stay unseen by the choice.
        settings, sizes: all pairs are tried; None: the default sizes.
        show: progress bars.

    Returns:
        one row per pair, the best first: `valid_auc`, `valid_loss`, `epoch` (the best one), `seconds`, then all settings and
        `sizes`. Pass the chosen ones to `load_model`, which finds the model already trained.
    """
    import pandas as pd

    rows, sizes = [], list(sizes)
    for one in settings:
        for size in sizes:
            manifest = load_model(name, data, settings=one, sizes=size, show=show).manifest
            best = max(manifest["curve"], key=lambda epoch: epoch["valid_auc"])
            measured = {key: best[key] for key in ("valid_auc", "valid_loss", "epoch")} | {
                "seconds": manifest["seconds"]
            }
            rows.append(measured | asdict(one) | {"sizes": manifest["sizes"]})
    return pd.DataFrame(rows).sort_values("valid_auc", ascending=False, ignore_index=True)
