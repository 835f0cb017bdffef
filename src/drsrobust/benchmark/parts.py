"""Which part of scoring is bound by arithmetic, which by memory: time, FLOP and bytes of every operation that PyTorch runs."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    import pandas as pd
    from torchrec.datasets.utils import Batch

LOOK_UPS, PRODUCTS, REST, OUTSIDE = "look-ups", "matrix products", "other operations", "calls and Python"
_LOOK_UPS = ("embedding_bag", "aten.embedding", "split_embedding")
_NEAR = 0.3  # of what a large product or copy reaches: a part that is farther from both is bound by neither


class Operations(TorchDispatchMode):
    """While the block runs, adds up seconds, FLOP and bytes of operations, by part.

    Bytes are those of all arguments and results, once each; of a look-up the rows that are read and not the table.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = {part: [0.0, 0, 0] for part in (LOOK_UPS, PRODUCTS, REST)}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        took = time.perf_counter() - start
        name, count = str(func), flop_registry.get(func._overloadpacket)
        if any(word in name for word in _LOOK_UPS):
            part, flop, table = LOOK_UPS, 0, args[0]
            # Each row read is added to its bag once.
            flop = args[1].numel() * table.shape[1]
            read = args[1].numel() * table.shape[1] * table.element_size()
            size = read + _bytes([args[1:], out])
        else:
            part = PRODUCTS if count is not None else REST
            flop = count(*args, **(kwargs or {}), out_val=out) if count is not None else 0
            size = 0 if func.is_view else _bytes([args, kwargs, out])
        for i, value in enumerate((took, flop, size)):
            self.found[part][i] += value
        return out


def parts(model: nn.Module, batch: "Batch", *, repeats: int = 50) -> "pd.DataFrame":
    """The parts of scoring one batch, against a large matrix product and a large copy on as many threads.

    Args:
        model: forward(dense_features, sparse_features) -> logits.
        batch: of rows.
        repeats: how often it is scored; of each part the fastest run counts, as of the large product and the large copy.

    Returns:
        by `part`: `share` of the time of a batch, `gflop_s`, `gb_s`, and `bound_by`; the last two rows are the large product
        and the large copy.
    """
    import pandas as pd

    def forward() -> None:
        model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)

    model.eval()
    with torch.no_grad():
        forward()
        runs, clean = [], []  # with and without counting
        for _ in range(repeats):
            clean.append(_seconds(forward))
            with Operations() as counted:
                forward()
            runs.append(counted.found)
    found = {part: min(run[part] for run in runs) for part in runs[0]}  # by seconds; FLOP and bytes are alike in all
    whole = max(min(clean), sum(seconds for seconds, *_ in found.values()))
    arithmetic, memory = large_product(), large_copy()
    rows = []
    for part, (seconds, flop, size) in found.items():
        if seconds:
            reached = (flop / seconds / 1e9, size / seconds / 1e9)
            rows.append((part, seconds / whole, *reached, bound(reached[0] / arithmetic, reached[1] / memory)))
    rows.append((OUTSIDE, 1 - sum(row[1] for row in rows), None, None, "calls"))
    rows += [("a large product", None, arithmetic, None, ""), ("a large copy", None, None, memory, "")]
    return pd.DataFrame(rows, columns=["part", "share", "gflop_s", "gb_s", "bound_by"]).set_index("part")


def bound(arithmetic: float, memory: float) -> str:
    """What limits a part that reaches these shares of a large product's FLOP/s and a large copy's bytes/s.

    Example:
        >>> bound(0.8, 0.2), bound(0.0, 0.5), bound(0.01, 0.1)
        ('arithmetic', 'memory', 'latency')
    """
    if max(arithmetic, memory) < _NEAR:
        return "latency"  # of memory, and of calls on small tensors
    return "arithmetic" if arithmetic >= memory else "memory"


def large_product(n: int = 1024, repeats: int = 50) -> float:
    """GFLOP/s of a float32 product of two n x n matrices, the best of some (each is short, so that some are undisturbed)."""
    one, other = torch.randn(n, n), torch.randn(n, n)
    return 2 * n**3 / min(_seconds(lambda: one @ other) for _ in range(repeats)) / 1e9


def large_copy(n: int = 1 << 25, repeats: int = 20) -> float:
    """GB/s, read and written, of a copy of n float32 values, the best of some."""
    source, target = torch.ones(n), torch.zeros(n)
    return 8 * n / min(_seconds(lambda: target.copy_(source)) for _ in range(repeats)) / 1e9


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _bytes(tree: Any) -> int:
    tensors = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
