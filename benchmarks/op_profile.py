"""Where the time goes: of a forward pass by operations, with their FLOP and bytes; of a campaign by parts."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.common import Case
from benchmarks.trial_cost import campaign_of
from drsrobust._processes import threads
from drsrobust.campaign import Campaign, Store
from drsrobust.campaign import trial as work
from drsrobust.campaign.repeat import Repeats
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation import affected_rows as reach
from drsrobust.injection import BitFlip, ErrorModel, Injection, resolve
from drsrobust.models import padded_batches, score
from drsrobust.models.scoring import PaddedBatches

if TYPE_CHECKING:
    import pandas as pd
    from torchrec.datasets.utils import Batch

LOOK_UPS, PRODUCTS, _OTHER_OPERATIONS, OUTSIDE = "look-ups", "matrix products", "other operations", "calls and Python"
_LOOK_UPS = ("embedding_bag", "aten.embedding", "split_embedding")
_NEAR = 0.3  # of what a large product or copy reaches: a part that is farther from both is bound by neither


class Operations(TorchDispatchMode):
    """While the block runs, adds up seconds, FLOP and bytes of operations, by part.

    Bytes are those of all arguments and results, once each; of a look-up the rows that are read and not the table.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = {part: [0.0, 0, 0] for part in (LOOK_UPS, PRODUCTS, _OTHER_OPERATIONS)}

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
            part = PRODUCTS if count is not None else _OTHER_OPERATIONS
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


PARTS = {
    "sampling": [(Injection, "__init__")],
    "inject and undo": [(Injection, "apply"), (Injection, "undo")],
    "affected rows": [(reach.AffectedRows, "of")],
    "forward": [(reach.AffectedRows, "score")],
    "batches of reached rows": [(PaddedBatches, "__getitem__")],
    "metrics": [(Evaluator, "_evaluation")],
    "seed, audit, row": [(work, "run_trial")],
    "storing": [(work, "chunk"), (Store, "write")],
    "table": [(Campaign, "table")],
}
REST = "start"  # of the campaign: hashing the model, resolving targets, opening the store


class Clock:
    """CPU time by part. What a part calls that belongs to another part counts there alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.process_time()
        if self._open:
            part = self._open[-1]
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """The time of the block belongs to a part."""
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timed(self, function, part: str):
        """The function, its time taken."""

        @wraps(function)
        def call(*args, **kwargs):
            with self.on(part):
                return function(*args, **kwargs)

        return call


def price_of_checks(evaluator: Evaluator, error: ErrorModel, target: str, trials: int) -> float:
    """CPU time of reruns that look for coupled rows over that of reruns that do not, on the same error maps in turns."""
    quick = Evaluator(evaluator.model, evaluator.rows, **evaluator.options)
    unchecked = {
        "_by_themselves": lambda rows, scores: score(
            evaluator.model, padded_batches(evaluator.rows, rows=rows), len(rows)
        ),
        "_audit": lambda *_: None,
    }
    space, seconds = resolve(evaluator.model, target), {evaluator: 0.0, quick: 0.0}
    with threads(1), patch.multiple(quick._reach, **unchecked):
        for seed in range(trials):
            injection = Injection(evaluator.model, [(error, space)], seed=seed)
            injection.apply()
            try:
                for timed in (evaluator, quick) if seed % 2 else (quick, evaluator):
                    start = time.process_time()
                    timed.rerun(injection.error_map)
                    seconds[timed] += time.process_time() - start
            finally:
                injection.undo()
    return seconds[evaluator] / seconds[quick]


def price_of_seeing(case: Case) -> tuple[Evaluator, float, float]:
    """An evaluator; the CPU time in which it was made, and that of its probes of tensors, in golden runs."""
    with threads(1):
        start = time.process_time()
        evaluator = Evaluator(case.model, case.rows)
        made = time.process_time() - start
        runs = []
        for _ in range(3):
            start = time.process_time()
            evaluator.run()
            runs.append(time.process_time() - start)
        start = time.process_time()
        evaluator.probe()
        return evaluator, made / min(runs), (time.process_time() - start) / min(runs)


def price_of_opening(evaluator: Evaluator, conditions: int) -> tuple[float, float]:
    """CPU seconds in which a finished campaign of so many conditions, of three trials each, is made and gives its table:
    without the trials that are repeated, and those of these."""
    clock, errors = Clock(), [BitFlip(1e-6 * (1 + place / conditions)) for place in range(conditions)]
    with threads(1), tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            clock.seconds.clear()
            with clock.on(REST), patch.object(Repeats, "begin", clock.timed(Repeats.begin, "repeats")):
                campaign = Campaign(evaluator, errors=errors, trials=3, sampling="plain", store=f"{folder}/store")
                campaign.run(workers=1, progress=False)
    return clock.seconds[REST], clock.seconds["repeats"]


def profile(evaluator: Evaluator, error: ErrorModel, target: str, trials: int) -> list[dict[str, Any]]:
    """Runs a campaign of one condition, and gives of each of `PARTS` and of the rest `part`, `ms_per_trial` (CPU time) and its
    `share` of all."""
    clock = Clock()
    with threads(1), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        campaign_of(evaluator, error, target, 1, 1, f"{folder}/first").run(workers=1, progress=False)
        for part, places in PARTS.items():
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name), part)))
        with clock.on(REST):
            campaign_of(evaluator, error, target, trials, 0, f"{folder}/second").run(workers=1, progress=False)
    seconds = {part: clock.seconds.get(part, 0.0) for part in (*PARTS, REST)}
    whole = sum(seconds.values())
    return [
        {"part": part, "ms_per_trial": 1e3 * took / trials, "share": took / whole} for part, took in seconds.items()
    ]
