"""One injection by the study's tool, PyTEI, and by tools that it is compared with: CPU seconds (statement S19).

They are called as their users would call them; nothing of them is kept here. Environment variables name checkouts:
`DRSROBUST_PYTEI` (facebookresearch/PyTEI, MIT), `DRSROBUST_MRFI`, `DRSROBUST_PYTORCHFI` (or `pip install -e '.[benchmark]'`).
`reproduce/peers.csv` is the table of one run.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.common import Result, about, text
from drsrobust._processes import process_context
from drsrobust._provenance import commit, machine
from drsrobust_extras.risk.timing import cpu_seconds
from drsrobust_study.injection_speed import STUDY_TOOL, flipped_bits, study_model
from drsrobust_study.injectors import OURS, Sparse

PARAMETERS, RATE = 19_000_000, 1e-3  # of the study
LIMIT, CALLS = 60.0, 3  # CPU seconds of one call, and calls of each tool
# Tool -> where it may be: environment variable of its checkout, folder in it, distribution.
PLACES = {
    STUDY_TOOL: ("DRSROBUST_PYTEI", "pytei", "pytei"),
    "PyTorchFI": ("DRSROBUST_PYTORCHFI", "", "pytorchfi"),
    "MRFI": ("DRSROBUST_MRFI", "", "MRFI"),
}
NOT_RUN = {
    "GoldenEye": "it flips bits in outputs of layers; in weights it draws one random value a call, through PyTorchFI",
    "Ares": "it flips bits of fixed-point numbers, and has no adapter here",
    "BinFI": "its models are of TensorFlow",
    "FIdelity": "its errors are in an accelerator's registers, and it has no adapter here",
}
COLUMNS = ("tool", "version", "repetition", "cpu_s", "factor", "errors", "parameters", "rate", "note", "date")
COLUMNS += ("torch", "processor")
LAYERS = (nn.EmbeddingBag, nn.Linear)
WIDTH = 13 + 26  # of the model's one input
Inject = Callable[[float, int], nn.Module]  # rate, seed -> the model that has the errors


def run(parameters: int = PARAMETERS, rate: float = RATE, limit: float = LIMIT) -> Result:
    """The benchmark `peers`: each tool in a process of its own, on one thread.

    Args:
        parameters: of the float32 model (`study_model`).
        rate: bit error rate.
        limit: CPU seconds of one call.

    Returns:
        the columns `COLUMNS`, a row per tool and call: `cpu_s`; `factor`, over that of the study's tool in the same call;
        `errors`, flipped bits counted in memory; or one row with a note that says why the tool was not run.
    """
    rows = []
    for tool in (OURS, *PLACES):
        with ProcessPoolExecutor(1, process_context()) as executor:
            rows += executor.submit(measure, tool, parameters, rate, limit).result()
    rows += [{"tool": tool, "version": "", "note": f"not run: {why}"} for tool, why in NOT_RUN.items()]
    table = pd.DataFrame(rows)
    of_study = table[table["tool"] == STUDY_TOOL].set_index("repetition")["cpu_s"].astype(float)
    made = {"parameters": parameters, "rate": rate, "date": date.today().isoformat()}
    made |= {"torch": torch.__version__, "processor": machine()["processor"]}
    table = table.assign(factor=table["cpu_s"].astype(float) / table["repetition"].map(of_study), **made)
    table = table.astype({"repetition": "Int64", "errors": "Int64"})[list(COLUMNS)]
    return Result({"peers": table}, f"{about('CPU time on one thread')}\n\n{text(table[list(COLUMNS[:9])])}")


def measure(tool: str, parameters: int, rate: float, limit: float) -> list[dict[str, Any]]:
    """The rows of one tool, without `factor`; a first call under a second is not counted, since it takes longer than others."""
    logging.disable(logging.WARNING)  # one tool formats its list of faults for each of them
    torch.set_num_threads(1)
    row = {"tool": tool, "version": "", "note": "", "cpu_s": None, "repetition": None, "errors": None}
    rows: list[dict[str, Any]] = []
    try:
        row["version"] = found(tool)
        model = study_model(parameters)
        golden, ours = [parameter.detach().clone() for parameter in model.parameters()], Sparse(model)
        inject = ours.inject if tool == OURS else ADAPTERS[tool](model)
        while len(rows) < CALLS + (not rows or rows[0]["cpu_s"] < 1):
            faulted, seconds = cpu_seconds(partial(within, limit, partial(inject, rate, len(rows))))
            errors = flipped_bits(faulted, golden)
            seconds += cpu_seconds(ours.undo)[1] if tool == OURS else 0.0  # others have no undo
            with torch.no_grad():
                for parameter, original in zip(model.parameters(), golden, strict=True):
                    parameter.copy_(original)
            rows.append(row | {"cpu_s": seconds, "errors": errors})
        return [one | {"repetition": number} for number, one in enumerate(rows[-CALLS:])]
    except Exception as error:
        reason = error if isinstance(error, ModuleNotFoundError | TimeoutError) else f"{type(error).__name__}: {error}"
        return [row | {"note": f"not run: {reason}"}]


def found(tool: str) -> str:
    """Makes a tool importable; its commit, or its version; ModuleNotFoundError where it is not there."""
    if tool == OURS:
        return commit() or ""
    variable, inside, distribution = PLACES[tool]
    if folder := os.environ.get(variable):
        sys.path.insert(0, str(Path(folder, inside)))
        git = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()
    try:
        return version(distribution)
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"{variable} names no checkout of it, and it is not installed") from None


def within(limit: float, call: Callable[[], nn.Module]) -> nn.Module:
    """Calls, and raises TimeoutError after so many seconds of CPU time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"one call took over {limit:g} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def pytei(model: nn.Module) -> Inject:
    """An error map over all bits of all parameters, which a file names."""
    injector = importlib.import_module("pytei").Injector

    def inject(rate: float, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        with NamedTemporaryFile("w") as targets, torch.no_grad():
            print(*(name for name, _ in model.named_parameters()), sep="\n", file=targets, flush=True)
            injector(targets.name, p=rate).inject(model)
        return model

    return inject


def mrfi(model: nn.Module) -> Inject:
    """One flipped bit in random values of weights and biases, then a forward pass of one sample. The rate is per value."""
    tool = importlib.import_module("mrfi")
    fault = {"type": "weight", "name": ["weight", "bias"], "enabled": True}
    fault |= {"selector": {"method": "RandomPositionByRate", "poisson": True, "rate": 0}}
    fault |= {"error_mode": {"method": "FloatRandomBitFlip", "floattype": "float32"}}
    fault |= {"module_type": [layer.__name__ for layer in LAYERS]}
    wrapped = tool.MRFI(model, tool.EasyConfig({"faultinject": [fault]}))
    selectors = [each for index in (0, 1) for each in wrapped.get_weights_configs("selector.args", weight_id=index)]

    def inject(rate: float, seed: int) -> nn.Module:
        for selector in selectors:
            selector["rate"] = 32 * rate
        torch.manual_seed(seed)
        np.random.seed(seed)  # the tool draws the number of errors from NumPy's global stream
        wrapped(torch.zeros(1, WIDTH))
        return model

    return inject


def pytorchfi(model: nn.Module) -> Inject:
    """A list of faults in a copy of the model, without biases. The tool draws single faults only, so the list is drawn here,
    with a function that flips the next bit."""
    core = importlib.import_module("pytorchfi.core")
    tool = core.fault_injection(model, 1, input_shape=[WIDTH], layer_types=list(LAYERS))
    layers = [module for module in model.modules() if isinstance(module, LAYERS)]  # as the tool numbers them
    ends = np.cumsum([layer.weight.numel() for layer in layers])

    def inject(rate: float, seed: int) -> nn.Module:
        stream, bits = np.random.default_rng(seed), 32 * int(ends[-1])
        places = np.unique(stream.integers(0, bits, stream.binomial(bits, rate)))  # a place that is drawn twice is one
        word, masks = places // 32, iter((1 << places % 32).astype(np.uint32).view(np.int32).tolist())
        layer = np.searchsorted(ends, word, side="right")
        inside, width = word - np.append(0, ends)[layer], np.array([one.weight.shape[1] for one in layers])[layer]

        def flipped(weight: torch.Tensor, place: tuple) -> torch.Tensor:
            return (weight[place].contiguous().view(torch.int32) ^ next(masks)).view(torch.float32)

        places_of = {"k": (inside // width).tolist(), "dim1": (inside % width).tolist()}
        places_of |= dict.fromkeys(("dim2", "dim3"), [None] * len(word))
        return tool.declare_weight_fi(function=flipped, layer_num=layer.tolist(), **places_of)

    return inject


ADAPTERS = {STUDY_TOOL: pytei, "PyTorchFI": pytorchfi, "MRFI": mrfi}
