"""The trained models of a notebook: models x data sets x training seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from drsrobust.data import Dataset
from drsrobust.training import default_settings, load_models
from drsrobust_extras.data.load import load_dataset

# Training rows at most, so that all trainings of the paper's profile fit in a day of two cores. The sets here have fewer.
MOST_ROWS = {
    "afm": 1_000_000,
    "afn": 2_000_000,
}  # on the 39 features of Criteo ten and a hundred times as slow as the others
MOST_ROWS_OF_OTHERS = 2_000_000


@dataclass(frozen=True)
class Trained:
    """A trained model of the study.

    Attributes:
        name: as `build_model` takes it.
        data: that it was trained on: of a large set the first training rows alone, which are a random sample (`MOST_ROWS`).
        seed: of the training.
        model: itself.
    """

    name: str
    data: Dataset
    seed: int
    model: nn.Module


def train(
    models: Sequence[str],
    datasets: Iterable[str],
    seeds: Iterable[int] = (0,),
    *,
    leave_out: Iterable[str] = (),
    afn_neurons: int = 100,
    epochs: int | None = None,
) -> list[Trained]:
    """Trains each model on each data set with each seed, or reads its checkpoint. Of large sets at most `MOST_ROWS` rows are
    used, and `afn` with over 100 neurons is trained with the first seed alone: the study's 1500 take a millisecond a row.

    Args:
        models, datasets: names.
        seeds: of the trainings.
        leave_out: pairs that are not trained, as `afn movielens-1m/ids`.
        afn_neurons: logarithmic neurons of the model `afn`.
        epochs: at most; None: as the settings of each model say.

    Raises:
        ValueError: an unknown name, or nothing to train.
    """
    left, seeds, sets, asked = set(leave_out), list(seeds), [load_dataset(name) for name in datasets], []
    for data in sets:
        for name in models:
            if f"{name} {data.name}" not in left:
                most = MOST_ROWS.get(name, MOST_ROWS_OF_OTHERS)
                used = data if len(data.train) <= most else replace(data, train=data.train.head(most))
                asked += [(name, used, seed) for seed in (seeds[:1] if trained_once(name, afn_neurons) else seeds)]
    requests = []
    for name, data, seed in asked:
        settings = default_settings(name, data.name, seed=seed)
        settings = settings if epochs is None else replace(settings, epochs=epochs)
        sizes = {"neurons": afn_neurons} if name == "afn" else None
        requests.append({"name": name, "data": data, "settings": settings, "sizes": sizes})
    loaded = load_models(requests)
    return [Trained(*one, model) for one, model in zip(asked, loaded, strict=True)]


def trained_once(name: str, afn_neurons: int) -> bool:
    """Whether a model is trained with the first seed alone."""
    return name == "afn" and afn_neurons > 100
