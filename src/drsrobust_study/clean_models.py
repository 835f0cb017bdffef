"""Trained models without errors: a row per training, and Table II of ISSRE 2025 (notebook 00_models)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drsrobust.introspection import components
from drsrobust.metrics import auc_interval, log_loss, normalised_entropy
from drsrobust.models import padded_batches, score
from drsrobust.statistics import CONFIDENCE
from drsrobust_extras.data.movielens import read_ratings
from drsrobust_extras.data.registry import RATINGS, SOURCES, find_files, split_dataset_name
from drsrobust_study.statements import interval
from drsrobust_study.trained import Trained

if TYPE_CHECKING:
    import pandas as pd

# The values of Table II that a public digest of it names: of MovieLens-1M, in the row of FM, of Wide & Deep or of DeepFM.
PUBLISHED = {"movielens-1m/ids": {name: ("171K", "0.813") for name in ("fm", "wide_deep", "deepfm")}}
STUDY_MODELS = ("fm", "dcn", "afm", "wide_deep", "deepfm")  # rows of Table II; other models follow


def clean_table(trained: Iterable[Trained]) -> "pd.DataFrame":
    """A row per training.

    Args:
        trained: as `drsrobust_study.trained.train` gives them.

    Returns:
        one row per training, scored on all test rows: `model`, `dataset`, `train_seed`, `rows` of the test, `train_rows`,
        `auc` with `auc_low`, `auc_high` (95 %, DeLong, over test rows), `logloss` (nats per row), `ne`, `parameters`,
        `parameters_largest_id` (`largest_id_parameters`), `epochs`, `seconds` and `cpu_seconds` (of training; the latter empty
        in older checkpoints), `sizes`, `state` (first 12 digits of the SHA-256 of its weights).
    """
    import pandas as pd

    rows, largest = [], {}
    for one in trained:
        model, data, test, made = one.model, one.data, one.data.test, one.model.manifest
        logits = score(model, padded_batches(test), len(test))
        auc = dict(zip(("auc", "auc_low", "auc_high"), auc_interval(test.labels, logits), strict=True))
        largest.setdefault(data.name, largest_ids(data.name))
        keys = {"model": one.name, "dataset": data.name, "train_seed": one.seed}
        row = (
            keys
            | {"rows": len(test), "train_rows": len(data.train)}
            | auc
            | {"logloss": log_loss(test.labels, logits, test.prior)}
        )
        row |= {"ne": normalised_entropy(test.labels, logits, test.prior)}
        row |= {"parameters": sum(parameter.numel() for parameter in model.parameters())}
        row |= {"parameters_largest_id": largest_id_parameters(one, largest[data.name]), "epochs": len(made["curve"])}
        row |= {"seconds": made["seconds"], "cpu_seconds": made.get("cpu_seconds"), "sizes": str(made["sizes"])}
        rows.append(row | {"state": made["state"][:12]})
    return pd.DataFrame(rows).astype({"parameters_largest_id": "Int64"})


def largest_ids(dataset: str) -> int | None:
    """The sum of the largest user and the largest movie id in the ratings of `movielens-*/ids`; None of other data."""
    source, schema = split_dataset_name(dataset)
    if SOURCES[source].read != RATINGS or schema != "ids":
        return None
    ratings = read_ratings(find_files(dataset)[0], half_stars=source == "movielens-10m")
    return int(ratings.user.max()) + int(ratings.movie.max())


def largest_id_parameters(one: Trained, ids: int | None) -> int | None:
    """The parameters of a model whose tables have a row for every id up to the largest, as torchfm builds them; ours have rows
    for the ids of the training rows, and one for all others.

    Args:
        ids: `largest_ids`; None: None is returned.
    """
    if ids is None:
        return None
    rows = sum(feature.cardinality for feature in one.data.schema.features)
    sizes = components(one.model).set_index("component")["parameters"]
    of_a_row = sum(sizes[name] // rows for name in ("embedding", "linear") if name in sizes)  # `linear` has a bias, too
    return int(sizes.sum() + (ids - rows) * of_a_row)


def published_table(table: "pd.DataFrame") -> "pd.DataFrame":
    """Table II: a row per model and data set, the study's models first.

    Args:
        table: as `clean_table` gives it.

    Returns:
        `dataset`, `model`, `of_study`, `parameters`, `parameters_largest_id`, `published_parameters`, `auc` (mean over
        trainings) with `auc_low`, `auc_high` (95 % over trainings; none of fewer than three), `auc_deviation`, `auc_least` and
        `auc_greatest` of the trainings, `n` trainings, `published_auc`, `logloss` and `cpu_seconds` (means).
    """
    import pandas as pd

    rows = []
    for (dataset, model), runs in table.groupby(["dataset", "model"], sort=False):
        mean, low, high = interval(runs["auc"])
        parameters, auc = PUBLISHED.get(dataset, {}).get(model, ("", ""))
        row = {"dataset": dataset, "model": model, "of_study": model in STUDY_MODELS}
        row |= runs[["parameters", "parameters_largest_id"]].iloc[0].to_dict() | {"published_parameters": parameters}
        row |= {
            "auc": mean,
            "auc_low": low,
            "auc_high": high,
            "auc_deviation": runs["auc"].std(),
        }
        row |= {"auc_least": runs["auc"].min(), "auc_greatest": runs["auc"].max(), "n": len(runs), "published_auc": auc}
        rows.append(row | runs[["logloss", "cpu_seconds"]].astype(float).mean().to_dict())
    found = pd.DataFrame(rows).astype({"parameters_largest_id": "Int64"})
    found.attrs = {"interval": f"{CONFIDENCE:.0%} interval over trainings (Student's t)"}
    order = {name: number for number, name in enumerate(STUDY_MODELS)}
    places = found["model"].map(lambda name: order.get(name, len(order)))
    sets = found["dataset"].map({name: number for number, name in enumerate(found["dataset"].unique())})
    return found.iloc[(sets * 100 + places).argsort(kind="stable")].reset_index(drop=True)
