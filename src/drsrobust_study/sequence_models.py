"""Models of the next item under bit errors: quality by rate and part, with and without a range check, next to a click model
(notebook 19)."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator, ReachWarning
from drsrobust.injection import BitFlip
from drsrobust.statistics import ENDS, NONE, Headline, summarise
from drsrobust.training import Settings, load_models
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.next_item_training import quality, score_parts
from drsrobust_extras.data.next_items import untied
from drsrobust_extras.data.sampled_negatives import SampledNegatives
from drsrobust_extras.protection.weight_range import WeightRange
from drsrobust_study.effects import campaign_seed, of_table, over_trainings, pooled, table
from drsrobust_study.part_curves import part_targets
from drsrobust_study.trained import Trained

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("hit_rate@10", "ndcg@10")  # of rankings
CHANCE = {"auc": 0.5}  # a metric's value that says nothing; of others 0
ALL, ITEMS, ATTENTION, FEED_FORWARD = "all", "item table", "attention", "feed-forward"
LOOKED_UP, OUTPUT = "item table, look-ups alone", "item table, output alone"
_TARGETS = {ALL: "all", ITEMS: "embedding", ATTENTION: "attention", FEED_FORWARD: "feed_forward"}
_APART = {LOOKED_UP: "embedding", OUTPUT: "output"}  # in a model whose output has a table of its own
RATE = 1e-9  # wrong bits among those that are stored
LINEAR = 0.1  # share of quality lost up to which flips are taken to add up
KEYS = ["model", "dataset", "part", "mitigation", "ber"]


def settings(seed: int, epochs: int) -> Settings:
    """Settings of SASRec's paper and of HSTU's public configurations: Adam at 0.001 without weight decay, some 128 histories of
    8 items a step."""
    return Settings(learning_rate=1e-3, weight_decay=0.0, batch_size=1024, epochs=epochs, seed=seed)


def train(models: Iterable[str], dataset: str, seeds: Iterable[int], *, epochs: int) -> list[Trained]:
    """Trains each model with each seed, or reads its checkpoint.

    Args:
        models: names of models of the next item.
        dataset: of sequences.
        seeds: of the trainings.
        epochs: at most.
    """
    data = load_dataset(dataset)
    asked = [(name, data, seed) for seed in seeds for name in models]
    requests = [{"name": name, "data": data, "settings": settings(seed, epochs)} for name, data, seed in asked]
    loaded = load_models(requests, workers=1)
    return [Trained(*one, model) for one, model in zip(asked, loaded, strict=True)]


def clean(trained: Iterable[Trained], rows: int, *, negatives: int = 100, seed: int = 0) -> "pd.DataFrame":
    """How well models rank the next items without errors.

    Args:
        trained: models.
        rows: test rows, the first ones.
        negatives: of the second protocol.
        seed: of their draw.

    Returns:
        one row per model: `model`, `dataset`, `train_seed`, `rows`, `hit_rate@10` and `ndcg@10` among all items but those of
        the history, `sampled_hit_rate@10` and `sampled_ndcg@10` among sampled ones, `epochs`, and `cpu_seconds` of the
        training.
    """
    import pandas as pd

    found = []
    for one in trained:
        split = one.data.test.head(rows)
        ranked, items = quality(one.model, split), split.labels_of(slice(None))
        among = {name: SampledNegatives(split, name, n=negatives, seed=seed) for name in ("hit_rate", "ndcg")}
        parts: dict[str, list[np.ndarray]] = {name: [] for name in among}
        for part, scores in score_parts(one.model, split):
            for name, metric in among.items():
                parts[name].append(metric.of_rows(items[part], scores, part))
        row = {"model": one.name, "dataset": one.data.name, "train_seed": one.seed, "rows": len(split)}
        row |= {"hit_rate@10": ranked.hit_rate, "ndcg@10": ranked.ndcg}
        row |= {f"sampled_{name}@10": float(np.concatenate(values).mean()) for name, values in parts.items()}
        manifest = one.model.manifest
        found.append(row | {"epochs": len(manifest["curve"]), "cpu_seconds": manifest["cpu_seconds"]})
    return pd.DataFrame(found)


def evaluators(one: Trained, rows: int) -> dict[str, tuple[Evaluator, Any]]:
    """The parts of a model: name -> the evaluator on the first test rows, and the target.

    Of a model of the next item the table of items is one part, which is looked up and is the output; and two, where the output
    has a copy of its own. Of a click model: all, its MLPs, its tables.
    """
    split = one.data.test.head(rows)
    if one.data.schema.dense or len(one.data.schema.features) > 1:
        scorer = Evaluator(one.model, split)
        return {part: (scorer, target) for part, target in part_targets(one.model).items()}
    tied, apart = (Evaluator(model, split, task="ranking", k=10) for model in (one.model, untied(one.model)))
    found = {part: (tied, target) for part, target in _TARGETS.items()}
    return found | {part: (apart, target) for part, target in _APART.items()}


def trials(
    parts: Mapping[str, tuple[Evaluator, Any]], bers: Sequence[float], *, trials: int, train_seed: int, seed: int
) -> "pd.DataFrame":
    """Trials with errors in each part of one trained model, without and with a range check of every tensor; without alone where
    the item table is in two copies.

    Args:
        parts: `evaluators`.
        bers: bit error rates.
        trials: error maps for each rate and part.
        train_seed: of the model.
        seed: of the maps; each training has maps of its own.

    Returns:
        the campaigns' tables with `part` and `train_seed`.
    """
    import pandas as pd

    tables = []
    for part, (evaluator, target) in parts.items():
        options: dict[str, Any] = {"errors": [BitFlip(ber) for ber in bers], "targets": [target], "trials": trials}
        guards = [] if part in _APART else [WeightRange.fit(evaluator.model)]
        options |= {"mitigations": [None, *guards], "seed": campaign_seed(seed, train_seed)}
        options |= {"metrics": METRICS} if evaluator.golden.auc is None else {}
        with warnings.catch_warnings():  # a table that is the output too affects every row
            warnings.simplefilter("ignore", ReachWarning)
            found = Campaign(evaluator, **options).run(workers=1)
        tables.append(found.assign(part=part, train_seed=train_seed))
    return pd.concat(tables, ignore_index=True)


def points(found: "pd.DataFrame") -> "pd.DataFrame":
    """The quality that one trained model keeps, as a share of what it has over chance: of AUC over 0.5, of HR@10 over 0.

    Args:
        found: `trials` of one model.

    Returns:
        one row per part, protection and rate: `KEYS`, `metric`, `golden`, `bits` (of the part), `n` (trials), and `kept` and
        `lost`, shares with `_low` and `_high` (over error maps).
    """
    import pandas as pd

    headline = Headline.of(found)[0]
    over = headline.golden - CHANCE.get(headline.name, 0.0)
    rows = []
    for part, group in found.groupby("part", sort=False):
        for row in summarise(group, [headline.name, headline.drop]).to_dict("records"):
            point = {"part": part, "metric": headline.name, "golden": headline.golden, "bits": row["n_bits"]}
            point |= {key: row[key] for key in ("model", "dataset", "mitigation", "ber", "n")}
            point |= {f"lost{end}": row[f"{headline.drop}{name}"] / over for end, name in zip(ENDS, ENDS, strict=True)}
            kept = {f"kept{end}": 1 - point[f"lost{other}"] for end, other in zip(ENDS, _turned(ENDS), strict=True)}
            rows.append(point | kept)
    return pd.DataFrame(rows)


def _turned(ends: Sequence[str]) -> tuple[str, ...]:
    """Mean, high and low, of mean, low and high."""
    mean, low, high = ends
    return mean, high, low


def joined(found: "Mapping[tuple[str, int], pd.DataFrame]") -> "pd.DataFrame":
    """`points` of several trained models as one (`drsrobust_study.effects.pooled`).

    Args:
        found: model and training seed -> `points`.
    """
    return pooled(found, [*KEYS, "metric", "bits"], ["kept", "lost"])


def flip_losses(found: "Mapping[tuple[str, int], pd.DataFrame]") -> "pd.DataFrame":
    """What one flipped bit costs, without protection: read at the highest rate at which under a tenth of the quality is lost,
    where most flips are seen.

    Args:
        found: model and training seed -> `points`.

    Returns:
        one row per model and part, over its trainings: `bits`, `megabytes`, `trainings`, `n` (trials) and with `_low` and
        `_high` (over trainings; of under three over maps) `per_flip`, the share of quality that one flip of a random bit of the
        part costs, and `at_rate`, what the part costs where one in 10^9 stored bits is wrong.
    """
    import pandas as pd

    tables = {}
    for key, curves in found.items():
        rows = []
        for part, curve in curves[curves["mitigation"] == NONE].groupby("part", sort=False):
            linear = curve[(curve["lost"] > 0) & (curve["lost"] < LINEAR)].sort_values("ber")
            read = (linear if len(linear) else curve.sort_values("ber").head(1)).iloc[-1]
            row = {name: read[name] for name in ("model", "dataset", "bits", "n")} | {"part": part}
            flips = read["ber"] * read["bits"]
            row |= {f"per_flip{end}": read[f"lost{end}"] / flips for end in ENDS}
            rows.append(row | {f"at_rate{end}": read[f"lost{end}"] / read["ber"] * RATE for end in ENDS})
        tables[key] = pd.DataFrame(rows)
    frame = pooled(tables, ["model", "dataset", "part", "bits"], ["per_flip", "at_rate"])
    return frame.assign(megabytes=frame["bits"] / 8e6)


def effects(quality_table: "pd.DataFrame", found: "Mapping[tuple[str, int], pd.DataFrame]") -> "pd.DataFrame":
    """Quality without errors, and what errors leave of it (`drsrobust_study.effects`).

    Args:
        quality_table: `clean`.
        found: model and training seed -> `points`.
    """
    import pandas as pd

    rows = []
    for model, group in quality_table.groupby("model", sort=False):
        for name, what in (("hit_rate@10", "all items"), ("sampled_hit_rate@10", "100 sampled items")):
            rows.append(
                over_trainings(f"clean {name} {model}", f"HR@10 of {model} among {what}, no errors", group[name])
            )
    curves = pd.concat(found.values())
    curves = curves.rename(columns=dict(zip((f"kept{end}" for end in ENDS), ("value", "low", "high"), strict=True)))
    for (model, part, mitigation, ber), group in curves.groupby(["model", *KEYS[2:]], sort=False):
        how = "" if mitigation == NONE else f", {mitigation}"
        name = f"kept {model} {part} {ber:g}{how}"
        rows.append(of_table(name, f"share of quality kept, {model}, errors in {part} at {ber:g}{how}", group))
    return table(rows)
