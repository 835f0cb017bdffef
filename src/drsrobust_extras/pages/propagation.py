"""Where errors go: the outputs of every module of a model with errors, compared with those without."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from math import nan
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drsrobust.extend import call, check_instance, check_module, evaluating, is_compiled, tensors_of
from drsrobust.injection import INTEGER_OF_BYTES, ErrorMap, open_in
from drsrobust.introspection import Forward, device_of, listed, named_modules

if TYPE_CHECKING:
    import pandas as pd

MODEL = "(model)"  # the name of the model itself in the table
_COLUMNS = {
    **{"module": object, "type": object, "call": "int64", "depth": "int64", "outputs": "int64"},
    **{"share_changed": "float64", "largest_change": "float64", "nan": "Int64", "inf": "Int64"},
    **{"rows_changed": "float64", "own_errors": "int64"},
}
Call = tuple[str, int]  # name of the module, number of its call


def trace(model: nn.Module, batch: Any, error_map: ErrorMap, forward: Forward | None = None) -> "pd.DataFrame":
    """Which modules' outputs errors change, for one batch: where errors show first, how far they reach, where they are masked.

    The model runs twice in evaluation mode, without gradients, from one state of the random number generators: without the
    errors and with them. The errors are applied and undone here. Compiled models run uncompiled.

    Args:
        model: any module, without errors in it.
        batch: as `forward` takes it; without `forward` TorchRec's `Batch` or a tuple (dense features, KeyedJaggedTensor,
            labels).
        error_map: errors in the model's memory, as an earlier `with dr.inject(...) as error_map` gave them, or loaded.
        forward: called as `forward(model, batch)`; None: `model(dense_features=..., sparse_features=...)`.

    Returns:
        one row per call of a module, in the order in which calls end with errors: a module follows the modules that it
        calls, and the first row with a change is where the errors show first. Columns:

        - `module`, `type`: its name (`(model)`: the model itself) and class.
        - `call`: number of the call of this module, from 0.
        - `depth`: of the module's name in the tree; the model has 0.
        - `outputs`: how many numbers it returns, in all tensors of its output (also nested ones and TorchRec's).
        - `share_changed`: share of them that differ in any bit; a NaN that stays NaN is equal.
        - `largest_change`: largest |difference|, inf where a number became infinite. A number that became NaN does not count;
          if there are no others it is NaN.
        - `nan`, `inf`: how many numbers became NaN, or infinite.
        - `rows_changed`: share of the rows (first dimension of its first tensor, and of others of that length) with a change.
        - `own_errors`: bits flipped in the module's own tensors. Tensors of a module that is never called count for the module
          around it; tied tensors for each of their modules.

        A call that is made only with errors or only without (these are last), or whose output has another shape, has null in
        the columns of changes. `attrs["raised"]` is the text of the exception if the model raised with the errors, and then the
        rows end there; else None.

    Raises:
        TypeError: not an error map, or a batch that needs `forward`.
        ValueError: errors are in the model already, the map has errors that are drawn while the model runs, or `forward` calls
            no module of the model.
        ErrorMapMismatch: the map was made for another model.

    Example:
        >>> import drsrobust as dr
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> with dr.inject(model, dr.FixedCount(1, bits=[31]), target="2.bias", seed=1) as error_map:
        ...     pass
        >>> table = dr.trace(model, torch.ones(8, 4), error_map, forward=lambda model, batch: model(batch))
        >>> table[["module", "outputs", "share_changed", "own_errors"]].values
        array([['0', 16, 0.0, 0],
               ['1', 16, 0.0, 0],
               ['2', 8, 1.0, 1],
               ['(model)', 8, 1.0, 0]], dtype=object)
    """
    import pandas as pd

    _check(model, error_map)
    # Of a wrapper and its module, which have one name, the module; TorchScript takes no hooks.
    modules = {name: module for name, module in named_modules(model) if not isinstance(module, torch.jit.ScriptModule)}
    golden: dict[Call, list[torch.Tensor]] = {}
    rows: dict[Call, dict[str, float]] = {}
    raised = None

    def keep(key: Call, output: list[torch.Tensor]) -> None:
        golden[key] = [tensor.clone() for tensor in output]  # a later module may write to it

    def compare(key: Call, output: list[torch.Tensor]) -> None:
        rows[key] = {"outputs": _size(output)} | _changes(golden.pop(key, None), output)

    _run(model, batch, forward, modules, keep, 0)
    if not golden:
        raise ValueError(
            f"no module of the {type(model).__name__} was called, so there is nothing to compare; forward must call the model "
            "or parts of it, and TorchScript is to be traced before torch.jit.script"
        )
    called = {name for name, _ in golden}
    with error_map.applied(model):
        try:
            _run(model, batch, forward, modules, compare)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
    if raised is None:
        rows |= {key: {"outputs": _size(output)} for key, output in golden.items()}
    own_errors = _own_errors(model, error_map, called.union(name for name, _ in rows))
    records = [
        {
            "module": name or MODEL,
            "type": type(modules[name]).__name__,
            "call": number,
            "depth": name.count(".") + bool(name),
            "own_errors": own_errors[name],
            **row,
        }
        for (name, number), row in rows.items()
    ]
    frame = pd.DataFrame(records, columns=list(_COLUMNS)).astype(_COLUMNS)
    frame.attrs["raised"] = raised
    return frame


def _check(model: nn.Module, error_map: ErrorMap) -> None:
    check_module(model)
    check_instance("error_map", error_map, ErrorMap, "an error map, as `with dr.inject(...) as error_map` gives it")
    if open_in(model):
        raise ValueError(
            f"errors are in the {type(model).__name__} now, and trace applies them itself; call it after the "
            "`with dr.inject(...)` block (if an interrupt left them, drsrobust.restore(model) undoes them)"
        )
    if error_map.log is not None:
        raise ValueError(
            f"error_map has transient errors ({error_map.error_model}), which are drawn while the model runs; trace takes "
            "errors in memory alone"
        )


def _run(
    model: nn.Module,
    batch: Any,
    forward: Forward | None,
    modules: Mapping[str, nn.Module],
    record: Callable[[Call, list[torch.Tensor]], None],
    number: int | None = None,
) -> None:
    """Runs the model and calls `record` with the output of each call of a module, after the module's other hooks.
    `introspection.calling.call` explains `number`."""
    calls: Counter[str] = Counter()

    def watch(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            record((name, calls[name]), _tensors(output))
            calls[name] += 1

        return hook

    device = device_of(model)
    with ExitStack() as block, evaluating(model):
        block.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        if any(is_compiled(module) for module in model.modules()):
            block.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code runs no new hooks
        for name, module in modules.items():
            block.callback(module.register_forward_hook(watch(name)).remove)
        call(model, batch, forward, number)


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in an output, all of them dense and real."""
    return list(map(_dense, tensors_of(value)))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    elif tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _size(output: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in output)


def _changes(before: list[torch.Tensor] | None, after: list[torch.Tensor]) -> dict[str, float]:
    """The columns of changes; empty if the outputs cannot be compared."""
    if before is None or [(x.shape, x.dtype) for x in before] != [(y.shape, y.dtype) for y in after]:
        return {}
    n_changed = n_nan = n_inf = 0
    largest: list[float] = []
    rows = torch.zeros(0, dtype=torch.bool)
    for number, (x, y) in enumerate(zip(before, after, strict=True)):
        bits, old, new = INTEGER_OF_BYTES[x.element_size()], x.double(), y.double()
        changed = x.contiguous().view(bits) != y.contiguous().view(bits)
        changed &= ~(old.isnan() & new.isnan())
        differences = (new - old).abs()[changed]
        differences = differences[~differences.isnan()]
        if len(differences):
            largest.append(float(differences.max()))
        n_changed += int(changed.sum())
        n_nan += int((new.isnan() & ~old.isnan()).sum())
        n_inf += int((new.isinf() & ~old.isinf()).sum())
        hit = torch.atleast_1d(changed).unsqueeze(-1).flatten(1).any(1).cpu()
        if number == 0:
            rows = hit
        elif len(hit) == len(rows):
            rows = rows | hit
    return {
        "share_changed": n_changed / max(_size(after), 1),
        "largest_change": max(largest, default=nan if n_changed else 0.0),
        "nan": n_nan,
        "inf": n_inf,
        "rows_changed": int(rows.sum()) / max(len(rows), 1),
    }


def _own_errors(model: nn.Module, error_map: ErrorMap, called: set[str]) -> Counter[str]:
    """Module -> bits that a map flips in its tensors."""
    bits, counts = error_map.counts("tensor"), Counter()
    for entry in listed(model):
        homes = set()
        for name in (entry.name, *entry.aliases):
            home = name.rpartition(".")[0]
            while home and home not in called:
                home = home.rpartition(".")[0]
            homes.add(home)
        counts.update(dict.fromkeys(homes, int(bits.get(entry.name, 0))))
    return counts
