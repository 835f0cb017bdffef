"""The same error map in two tools: scores of a network in which PyTEI, PyTorchFI or MRFI injected errors, and of ours under the
map that is made of what that tool names. Tools are found as by `benchmarks.peers`."""

import copy
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import drsrobust as dr
from benchmarks.common import Result, about, seeded, text
from benchmarks.peers import STUDY_TOOL, found

MAPS, RATE, IMAGES = 50, 1e-4, 100
Pair = tuple[nn.Module, dr.ErrorMap]  # the tool's faulty copy, and the map that is made of what it names


def network() -> nn.Module:
    """Two convolutions and a linear layer, 4,588 parameters, as in docs/from_other_tools.md."""
    first, second = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 3)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))


def run(maps: int = MAPS, rate: float = RATE) -> Result:
    """The benchmark `maps`.

    Args:
        maps: of each tool.
        rate: bit error rate.

    Returns:
        a row per tool and importer: `maps`; `equal`, of which all scores have the same bits in both tools; `words`, wrong
        ones in all maps; `moved`, the share of scores that they change; or a note that says why the tool was not run.
    """
    logging.disable(logging.WARNING)
    rows = []
    for tool, name, pairs in (
        (STUDY_TOOL, "from_pytei", of_pytei),
        ("PyTorchFI", "from_pytorchfi", of_pytorchfi),
        ("MRFI", "from_mrfi", of_mrfi),
        ("MRFI", "between", of_random_mrfi),
    ):
        row: dict[str, Any] = {"tool": tool, "version": "", "importer": name, "note": ""}
        try:
            row["version"] = found(tool)
            row |= compared(pairs, maps, rate)
        except ModuleNotFoundError as error:
            row["note"] = f"not run: {error}"
        rows.append(row)
    table = pd.DataFrame(rows)
    return Result({"maps": table}, f"{about('Scores of one network in two tools')}\n\n{text(table)}")


def compared(pairs: Callable[[nn.Module, int, float], Iterator[Pair]], maps: int, rate: float) -> dict[str, Any]:
    """How many maps give equal scores in both tools."""
    model, images = seeded(network), torch.randn(IMAGES, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    equal, words, moved = 0, 0, []
    with torch.no_grad():
        golden = model(images).numpy()
        for faulty, error_map in pairs(model, maps, rate):
            theirs = faulty(images).numpy()
            with error_map.applied(model):
                ours = model(images).numpy()
            equal += ours.tobytes() == theirs.tobytes()
            words += len(error_map)
            moved.append((ours != golden).mean())
    return {"maps": maps, "equal": equal, "words": words, "moved": float(np.mean(moved))}


def of_pytei(model: nn.Module, maps: int, rate: float) -> Iterator[Pair]:
    """Maps that PyTEI draws, injects and saves."""
    injector = importlib.import_module("pytei").Injector
    with TemporaryDirectory() as folder:
        targets, saved = Path(folder, "targets"), Path(folder, "errors.pt")
        targets.write_text("\n".join(name for name, _ in model.named_parameters()))
        for seed in range(maps):
            torch.manual_seed(seed)
            tool, faulty = injector(str(targets), p=rate), copy.deepcopy(model)
            tool.inject(faulty)
            tool.save_error_map(str(saved))
            yield faulty, dr.exchange.from_pytei(saved, model)


def of_pytorchfi(model: nn.Module, maps: int, rate: float) -> Iterator[Pair]:
    """Lists of places and values; as many values as there are words with a flip at that rate."""
    kinds = [nn.Conv2d, nn.Linear]
    tool = importlib.import_module("pytorchfi.core").fault_injection(
        model, 1, input_shape=[1, 16, 16], layer_types=kinds
    )
    shapes = [module.weight.shape for module in model if isinstance(module, tuple(kinds))]
    for seed in range(maps):
        stream = np.random.default_rng(seed)
        layers = stream.choice(len(shapes), max(1, round(32 * rate * sum(map(np.prod, shapes)))))
        places = [
            [*map(int, stream.integers(0, shapes[layer])), *[None] * (4 - len(shapes[layer]))] for layer in layers
        ]
        lists = dict(zip(("k", "dim1", "dim2", "dim3"), map(list, zip(*places, strict=True)), strict=True))
        lists |= {"layer_num": layers.tolist(), "value": stream.normal(0, 10, len(layers)).tolist()}
        yield tool.declare_weight_fi(**lists), dr.exchange.from_pytorchfi(model, **lists, layer_types=kinds)


def of_mrfi(model: nn.Module, maps: int, rate: float) -> Iterator[Pair]:
    """Configurations with fixed places and bits."""
    for seed in range(maps):
        stream, faults = np.random.default_rng(seed), []
        for name, module in model.named_children():
            if hasattr(module, "weight"):
                n = stream.poisson(32 * rate * module.weight.numel())
                places = np.sort(stream.choice(module.weight.numel(), n, replace=False)).tolist()
                mode = {"method": "FloatFixedBitFlip", "bit": stream.integers(0, 31, n).tolist()}
                fault = {"type": "weight", "name": ["weight"], "module_fullname": [name], "error_mode": mode}
                faults.append(fault | {"selector": {"method": "FixPositions", "positions": places}})
        config = {"faultinject": faults}
        yield wrapped(model, config), dr.exchange.from_mrfi(model, config)


def of_random_mrfi(model: nn.Module, maps: int, rate: float) -> Iterator[Pair]:
    """Configurations that draw places and bits at each forward pass: the map is the difference of two models after one."""
    fault: dict[str, Any] = {"type": "weight", "name": ["weight"], "module_type": ["Conv2d", "Linear"]}
    fault |= {"selector": {"method": "RandomPositionByRate", "rate": 32 * rate, "poisson": True}}
    fault |= {"error_mode": {"method": "FloatRandomBitFlip"}}
    for seed in range(maps):
        torch.manual_seed(seed)
        np.random.seed(seed)  # the tool draws the number of errors from NumPy's global stream
        faulty = wrapped(model, {"faultinject": [fault]})
        faulty(torch.zeros(1, 1, 16, 16))
        faulty.global_FI_enabled = False  # keeps the weights as this pass left them
        yield faulty, dr.exchange.between(model, faulty.model)


def wrapped(model: nn.Module, config: dict[str, Any]) -> Any:
    """A copy of the model in MRFI, which changes the configuration that it gets."""
    tool = importlib.import_module("mrfi")
    return tool.MRFI(copy.deepcopy(model), tool.EasyConfig(copy.deepcopy(config)))
