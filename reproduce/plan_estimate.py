"""How long a notebook takes with parameters that no record has: a record with others, scaled by what there is more of.

It is as good as its assumptions: each trial takes as long as one of the record for each row that it scores, and a training as
long for each of its rows and epochs. Lists that are longer multiply; of the numbers of trials and maps the one that grows most
counts for all, so that the estimate is rather too high.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from drsrobust_extras.data.registry import split_dataset_name

NO_WORK = {"leave_out", "slow", "merge"}  # lists whose length is no work
AMOUNTS = re.compile(r"trials|maps|injections|steps|candidates|explained|budget|turns|batches|drawn_models")


def growth(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """How many times the work of a notebook with parameters `old` that with parameters `new` is."""
    lists, rows, amounts = 1.0, 1.0, 1.0
    old, new = ({**p, "models": p.get("models", []) + p.get("others", []), "others": []} for p in (old, new))
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, list) and isinstance(before, list) and value and before and name not in NO_WORK:
            lists *= len(value) / len(before)
        elif type(value) is type(before) is int and before > 0:
            rows = max(rows, value / before) if name.endswith("rows") else rows
            amounts = max(amounts, value / before) if AMOUNTS.search(name) else amounts
    return lists * rows * amounts


def trainings(parameters: Mapping[str, Any], models: Path) -> float:
    """CPU seconds of the trainings of 00_models, those of sets without a record as long as allowed (`MOST_ROWS`).

    Args:
        parameters: of the notebook.
        models: `models.csv` of a run, with `model`, `dataset`, `train_rows` and `cpu_seconds`.
    """
    from drsrobust_study.trained import MOST_ROWS, MOST_ROWS_OF_OTHERS, trained_once

    known, per_row = defaultdict(list), defaultdict(list)
    with models.open() as file:
        for row in csv.DictReader(file):
            known[row["model"], row["dataset"]].append(seconds := float(row["cpu_seconds"]))
            per_row[row["model"], _kind(row["dataset"])].append(seconds / int(row["train_rows"]))
    total, neurons = 0.0, parameters.get("afn_neurons", 100)
    for dataset in parameters["datasets"]:
        for model in parameters["models"]:
            if f"{model} {dataset}" in parameters["leave_out"]:
                continue
            times = neurons / 100 if model == "afn" else 1.0
            count = 1 if trained_once(model, neurons) else len(parameters["train_seeds"])
            rates = per_row.get((model, _kind(dataset))) or [max(map(max, per_row.values()))]
            one = mean(rates) * MOST_ROWS.get(model, MOST_ROWS_OF_OTHERS)
            total += count * times * (mean(known[model, dataset]) if (model, dataset) in known else one)
    return total


def _kind(dataset: str) -> str:
    return split_dataset_name(dataset)[0].split("-")[0]
