"""What a worker process needs to run trials: model, rows and conditions, in files that it maps into its memory."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.campaign.conditions import Condition, Named, resolved
from drsrobust.data.split_files import read_split, write_split
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.evaluator import amount
from drsrobust.evaluation.reach import BOUND
from drsrobust.injection import ErrorModel, Transient
from drsrobust.models import build_model, model_name
from drsrobust.tensors import listed

MAPPED = 4 << 20  # bytes: larger tables stay in the file that workers share; smaller tensors are copied
_STATE, _SPLIT, _GOLDEN = "state.safetensors", "split", "golden.npy"


@dataclass(frozen=True)
class Cell:
    """A condition as it travels: the target by what it resolved to, its rows in a file."""

    error_model: ErrorModel
    target: str
    rows: "Transient | tuple[tuple[str, str | None], ...]"
    mitigation: Any


@dataclass(frozen=True)
class Order:
    """All that a worker needs besides the numbers of the trials. It can be pickled, and is small.

    Attributes:
        folder: where the files are; every worker must see it.
        key: tells this order from others.
        factory: makes the model.
        options: of the evaluator.
        cells: the conditions.
        trial: what `run_trial` takes besides.
        full_run: why every rerun is a full run; None where it is not.
    """

    folder: Path
    key: str
    factory: Callable[[], nn.Module]
    options: dict[str, Any]
    cells: tuple[Cell, ...]
    trial: dict[str, Any]
    full_run: str | None


class CannotShip(ValueError):
    """A model that other processes cannot make."""


def factory_of(judge: Evaluator) -> Callable[[], nn.Module]:
    """What makes the judge's model in another process.

    Raises:
        CannotShip: with the reason and what would help.
    """
    if judge.factory is not None:
        home = judge.factory.func if isinstance(judge.factory, partial) else judge.factory
        if getattr(home, "__module__", None) == "__main__":
            name = getattr(home, "__qualname__", home)
            raise CannotShip(f"{name} is defined in this notebook or script; put it into a module that can be imported")
        return judge.factory
    manifest = getattr(judge.model, "manifest", None)
    if isinstance(manifest, dict) and manifest.get("model") == model_name(judge.model) and "sizes" in manifest:
        return partial(_rebuilt, manifest["model"], manifest["schema"], manifest["sizes"])
    raise CannotShip(f"how to make a {type(judge.model).__name__} is not known there; give Evaluator(..., factory=...)")


def _rebuilt(name: str, schema: dict[str, Any], sizes: dict[str, Any]) -> nn.Module:
    from drsrobust.data import Feature, Schema

    features = tuple(Feature(**feature) for feature in schema["features"])
    return build_model(name, Schema(tuple(schema["dense"]), features), **sizes)


@contextmanager
def shipped(
    judge: Evaluator, conditions: Sequence[Condition], folder: Path, key: str, trial: dict[str, Any], share: int = 1
) -> Iterator[Order]:
    """Writes model and rows into a new folder, which is gone when the block ends.

    Args:
        judge, conditions: of the campaign.
        folder: made here.
        key: tells the order from others.
        trial: what `run_trial` takes besides.
        share: how many workers divide the evaluator's `memory` among them.

    Raises:
        CannotShip: workers could not make the model.
    """
    from safetensors.torch import save_file

    factory = factory_of(judge)
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folder.mkdir(parents=True)
    try:
        state = {one.name: one.tensor.detach().cpu().contiguous().clone() for one in listed(judge.model)}
        save_file(state, folder / _STATE)
        del state
        write_split(judge.split, folder / _SPLIT)
        np.save(folder / _GOLDEN, judge.golden.scores)
        cells = []
        for number, condition in enumerate(conditions):
            if isinstance(condition.hits, Transient):
                rows: Any = condition.hits
            else:
                rows = []
                for place, tensor in enumerate(condition.hits.tensors):
                    file = None
                    if tensor.rows is not None:
                        file = f"rows-{number}-{place}.npy"
                        np.save(folder / file, tensor.rows)
                    rows.append((tensor.name, file))
                rows = tuple(rows)
            cells.append(Cell(condition.error_model, str(condition.target), rows, condition.mitigation))
        options = judge.options | {"memory": amount(judge.options["memory"]) // share}
        key += "" if judge.full_run is None else " full"  # a worker that stays must make another evaluator
        yield Order(folder, key, factory, options, tuple(cells), trial, judge.full_run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpacked(order: Order) -> tuple[Evaluator, list[Condition]]:
    """The evaluator and the conditions, in this process.

    Raises:
        RuntimeError: the model made here is not the one that was shipped: other tensors, or other scores.
    """
    from safetensors import safe_open

    model = order.factory()
    there = {one.name: one for one in listed(model)}
    with safe_open(order.folder / _STATE, framework="pt") as state, torch.no_grad():
        if set(there) != set(state.keys()):
            differing = sorted(set(there) ^ set(state.keys()))
            raise RuntimeError(f"the factory made another model: tensors {', '.join(differing)} are not in both")
        for name, one in there.items():
            given, own = state.get_tensor(name), one.tensor
            if given.shape != own.shape or given.dtype != own.dtype:
                raise RuntimeError(
                    f"the factory made another model: {name} is {own.dtype} {list(own.shape)}, "
                    f"it should be {given.dtype} {list(given.shape)}"
                )
            alone = own.is_contiguous() and own.untyped_storage().nbytes() == own.numel() * own.element_size()
            if one.parameter and one.table is None and alone and own.device.type == "cpu" and given.nbytes >= MAPPED:
                own.data = given  # private pages of the file: what is written stays in this process
            else:
                own.data.copy_(given)
    judge = Evaluator(model.eval(), read_split(order.folder / _SPLIT), order.factory, **order.options)
    golden = np.load(order.folder / _GOLDEN)
    if not np.allclose(judge.golden.scores, golden, rtol=BOUND, atol=BOUND):
        raise RuntimeError("the model made here gives other scores than the one that was shipped")
    if order.full_run:
        judge.use_full_runs(order.full_run)
    return judge, [_condition(order, cell, model) for cell in order.cells]


def _condition(order: Order, cell: Cell, model: nn.Module) -> Condition:
    target = cell.rows
    if not isinstance(target, Transient):
        rows = {name: None if file is None else np.load(order.folder / file) for name, file in cell.rows}
        target = Named(cell.target, rows)
    return Condition(cell.error_model, target, resolved(model, target), cell.mitigation)
