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
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.common import Result, about, text
from drsrobust._processes import process_context
from drsrobust._provenance import commit, machine
from drsrobust.timing import cpu_seconds
from drsrobust_study.injection_speed import flipped_bits, study_model
from drsrobust_study.injectors import OURS, Sparse

PARAMETERS, RATE = 19_000_000, 1e-3  # of the study
LIMIT, CALLS = 60.0, 3  # CPU seconds of one call, and calls of each tool
STUDY = "PyTEI"
# Tool -> where it may be: environment variable of its checkout, folder in it, distribution.
PLACES = {
    STUDY: ("DRSROBUST_PYTEI", "pytei", "pytei"),
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
_LAYERS = (nn.EmbeddingBag, nn.Linear)
_WIDTH = 13 + 26  # of the model's one input

Inject = Callable[[float, int], nn.Module]  # rate, seed -> the model that has the errors


def run() -> Result:
    """The benchmark `peers`."""
    table = peers()
    return Result({"peers": table}, f"{about('CPU time on one thread')}\n\n{text(table[list(COLUMNS[:9])])}")


def peers(parameters: int = PARAMETERS, rate: float = RATE, limit: float = LIMIT) -> pd.DataFrame:
    """Each tool in a process of its own, on one thread.

    Args:
        parameters: of the float32 model (`study_model`).
        rate: bit error rate.
        limit: CPU seconds of one call.

    Returns:
        the columns `COLUMNS`, a row per tool and call after a first one that is not timed: `cpu_s`; `factor`, over that of the
        study's tool in the same call; `errors`, flipped bits counted in memory; or one row with a note that says why the tool
        was not run.
    """
    rows = []
    for tool in (OURS, *PLACES):
        with ProcessPoolExecutor(1, process_context()) as executor:
            rows += executor.submit(measure, tool, parameters, rate, limit).result()
    rows += [{"tool": tool, "version": "", "note": f"not run: {why}"} for tool, why in NOT_RUN.items()]
    table = pd.DataFrame(rows)
    of_study = table[table["tool"] == STUDY].set_index("repetition")["cpu_s"]
    made = {"parameters": parameters, "rate": rate, "date": date.today().isoformat()}
    made |= {"torch": torch.__version__, "processor": machine()["processor"]}
    table = table.assign(factor=table["cpu_s"] / table["repetition"].map(of_study), **made)
    return table.astype({"repetition": "Int64", "errors": "Int64"})[list(COLUMNS)]


def measure(tool: str, parameters: int, rate: float, limit: float) -> list[dict[str, Any]]:
    """The rows of one tool, without `factor`."""
    logging.disable(logging.WARNING)  # one tool formats its list of faults for each of them
    torch.set_num_threads(1)
    row = {"tool": tool, "version": "", "note": "", "cpu_s": None, "repetition": None, "errors": None}
    try:
        row["version"] = found(tool)
        with TemporaryDirectory() as folder:
            model = study_model(parameters)
            golden = [parameter.detach().clone() for parameter in model.parameters()]
            inject, undo = ADAPTERS[tool](model, Path(folder))
            rows: list[dict[str, Any]] = []
            while len(rows) < CALLS + (not rows or rows[0]["cpu_s"] < 1):  # a short first call takes longer than others
                faulted, seconds = cpu_seconds(partial(within, limit, partial(inject, rate, len(rows))))
                errors = flipped_bits(faulted, golden)
                seconds += cpu_seconds(undo)[1] if undo else 0.0
                with torch.no_grad():
                    for parameter, original in zip(model.parameters(), golden, strict=True):
                        parameter.copy_(original)
                rows.append(row | {"cpu_s": seconds, "errors": errors})
        return [one | {"repetition": number} for number, one in enumerate(rows[-CALLS:])]
    except Exception as error:
        reason = error if isinstance(error, ModuleNotFoundError | TimeoutError) else f"{type(error).__name__}: {error}"
        return [row | {"note": f"not run: {reason}"}]


def found(tool: str) -> str:
    """Makes a tool importable; its commit, or its version.

    Raises:
        ModuleNotFoundError: it is not there.
    """
    if tool == OURS:
        return commit() or ""
    variable, inside, distribution = PLACES[tool]
    folder = os.environ.get(variable)
    if folder:
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

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def drsrobust(model: nn.Module, folder: Path) -> tuple[Inject, Callable[[], None]]:
    """With its undo, which counts too; the others have none."""
    method = Sparse(model)
    return method.inject, method.undo


def pytei(model: nn.Module, folder: Path) -> tuple[Inject, None]:
    """An error map over all bits of all parameters."""
    injector = importlib.import_module("pytei").Injector
    targets = folder / "targets"
    targets.write_text("\n".join(name for name, _ in model.named_parameters()))

    def inject(rate: float, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        with torch.no_grad():
            injector(str(targets), p=rate).inject(model)
        return model

    return inject, None


def mrfi(model: nn.Module, folder: Path) -> tuple[Inject, None]:
    """Random values of weights and biases get one flipped bit before a forward pass, of one sample. The rate is per value, 32
    bits of which one flips."""
    tool = importlib.import_module("mrfi")
    fault = {
        **{"type": "weight", "name": ["weight", "bias"], "enabled": True},
        "selector": {"method": "RandomPositionByRate", "poisson": True, "rate": 0},
        "error_mode": {"method": "FloatRandomBitFlip", "floattype": "float32"},
        "module_type": [layer.__name__ for layer in _LAYERS],
    }
    wrapped = tool.MRFI(model, tool.EasyConfig({"faultinject": [fault]}))
    selectors = [each for index in (0, 1) for each in wrapped.get_weights_configs("selector.args", weight_id=index)]

    def inject(rate: float, seed: int) -> nn.Module:
        for selector in selectors:
            selector["rate"] = 32 * rate
        torch.manual_seed(seed)
        np.random.seed(seed)  # the tool draws the number of errors from NumPy's global stream
        wrapped(torch.zeros(1, _WIDTH))
        return model

    return inject, None


def pytorchfi(model: nn.Module, folder: Path) -> tuple[Inject, None]:
    """A list of faults, each a place and a new value, in a copy of the model. The tool draws single faults only, so the list is
    drawn here, with a function that flips the next bit. Biases cannot be reached."""
    core = importlib.import_module("pytorchfi.core")
    tool = core.fault_injection(model, 1, input_shape=[_WIDTH], layer_types=list(_LAYERS))
    layers = [module for module in model.modules() if isinstance(module, _LAYERS)]  # as the tool numbers them
    ends = np.cumsum([layer.weight.numel() for layer in layers])

    def flip(value: torch.Tensor, bit: int) -> torch.Tensor:
        return (value.contiguous().view(torch.int32) ^ (1 << bit if bit < 31 else -(1 << 31))).view(torch.float32)

    def inject(rate: float, seed: int) -> nn.Module:
        stream, bits = np.random.default_rng(seed), 32 * int(ends[-1])
        places = np.unique(stream.integers(0, bits, stream.binomial(bits, rate)))  # a place that is drawn twice is one
        word, bit = places // 32, iter((places % 32).tolist())
        layer = np.searchsorted(ends, word, side="right")
        inside, width = word - np.append(0, ends)[layer], np.array([one.weight.shape[1] for one in layers])[layer]
        place = {"k": (inside // width).tolist(), "dim1": (inside % width).tolist()}
        nothing = dict.fromkeys(("dim2", "dim3"), [None] * len(word))
        function = lambda weight, at: flip(weight[at], next(bit))  # noqa: E731
        return tool.declare_weight_fi(function=function, layer_num=layer.tolist(), **place, **nothing)

    return inject, None


ADAPTERS = {OURS: drsrobust, STUDY: pytei, "PyTorchFI": pytorchfi, "MRFI": mrfi}
