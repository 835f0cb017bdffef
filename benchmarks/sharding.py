"""Errors in a model that is sharded over 1, 2 and 4 ranks: draw, apply and undo, a trial; and drawing a rank's own blocks."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from benchmarks.common import Result, Verdict, about, at_most, text, verdict_text
from drsrobust._processes import process_context, threads
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.trial import run_trial
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorClock, Injection, resolve
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust_extras.data.synthetic import planted

COLUMNS = ("parameters", "rate", "ranks", "draw_ms", "apply_undo_ms", "trial_ms", "forward_ms", "overhead_ms")
BLOCKS = ("parameters", "rate", "ranks", "all_ms", "part_ms", "part_share")
RATES = (1e-6, 1e-4)
OVERHEAD = (1_000_000, 1e-4, 5.0)  # parameters and rate at which a trial may take so many ms outside of the model
LARGEST = 100_000_000  # parameters of models that are made
REPEATS = 15


def run() -> Result:
    """The benchmark `sharding`."""
    trials, blocks = sharding(), own_blocks()
    return Result({"sharding": trials, "sharding_blocks": blocks}, describe(trials, blocks))


def sharding(
    sizes: tuple[int, ...] = (1_000_000, 10_000_000, LARGEST), worlds: tuple[int, ...] = (1, 2, 4), rows: int = 4096
) -> pd.DataFrame:
    """Medians on rank 0 of errors in the tables of a DLRM, sharded by rows, at each rate: columns `COLUMNS`. `forward_ms` is
    scoring rows and gathering the scores, `overhead_ms` the rest of a trial.

    Args:
        sizes: parameters of the tables.
        worlds: numbers of ranks.
        rows: that are scored.
    """
    measured = []
    for parameters in sizes:
        for world in worlds:
            measured += [(parameters, rate, world, *times) for rate, *times in _on_ranks(world, parameters, rows)]
    return pd.DataFrame(measured, columns=COLUMNS)


def own_blocks(
    sizes: tuple[int, ...] = (1_000_000, 10_000_000, LARGEST, 1_000_000_000), worlds: tuple[int, ...] = (2, 4)
) -> pd.DataFrame:
    """Drawing all places of float32 parameters, and rank 0's blocks of them, in turns in this process: columns `BLOCKS`."""
    rows = []
    with threads(1):
        for parameters in sizes:
            for rate in RATES:
                for world in worlds:
                    rows.append((parameters, rate, world, *_turns(32 * parameters, rate, world)))
    table = pd.DataFrame(rows, columns=BLOCKS[:-1])
    return table.assign(part_share=table["part_ms"] / table["all_ms"])


def _turns(bits: int, rate: float, world: int) -> tuple[float, float]:
    def draw(seed: int, part: int) -> None:
        clock = ErrorClock(bits, seed=seed)
        clock.until(rate, blocks=(0, -(-clock.blocks // part)))

    repeats = REPEATS if bits * rate < 1e6 else 5
    times = [[_ms(partial(draw, seed, part)) for part in (1, world)] for seed in range(repeats)]
    return tuple(np.median(times, axis=0))


def _on_ranks(world: int, parameters: int, rows: int) -> list[tuple[float, ...]]:
    """Measures in new processes, one a rank; what rank 0 measured."""
    context = process_context()
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        arguments = (world, (Path(folder) / "meeting").as_uri(), parameters, rows, results)
        ranks = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise ValueError(f"a rank of {world} ended with {[rank.exitcode for rank in ranks]}")
        return results.get()


def _rank(rank: int, world: int, meeting: str, parameters: int, rows: int, results: Any) -> None:
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(minutes=2))
    schema, _, split, _ = planted(parameters // 16, 64, rows)
    model = _model([(feature.name, feature.cardinality) for feature in schema.features], len(schema.dense))
    evaluator = Evaluator(model, split, output="logit")
    times = [(rate, *_trial(evaluator, rate)) for rate in RATES]
    if rank == 0:
        results.put(times)
    dist.barrier()
    dist.destroy_process_group()


def _model(tables: list[tuple[str, int]], dense: int) -> torch.nn.Module:
    """A DLRM with tables of dimension 16 that are sharded by rows; only the shards are made."""
    torchrec()
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    class ByRows(EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return ["row_wise"]

    torch.manual_seed(0)
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=size, embedding_dim=16, feature_names=[name])
        for name, size in tables
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    model = DLRM(collection, dense, [64, 16], [64, 1], dense_device=torch.device("cpu"))
    constraints = {name: ParameterConstraints(sharding_types=["row_wise"]) for name, _ in tables}
    world = dist.get_world_size()
    topology = Topology(world_size=world, local_world_size=world, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=2048, constraints=constraints)
    plan = planner.collective_plan(model, [ByRows()], dist.group.WORLD)
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[ByRows()]).eval()


def _trial(evaluator: Evaluator, rate: float) -> tuple[float, ...]:
    """Medians of draw, apply and undo, a whole trial, scoring alone, and of the trial without scoring, in ms."""
    model, error = evaluator.model, BitFlip(rate, bits="mantissa")
    condition = Condition(error, "embedding", resolve(model, "embedding"))
    times = np.array([_once(evaluator, error, condition, seed) for seed in range(REPEATS)])
    return tuple(np.median(times[1:], axis=0))


def _once(evaluator: Evaluator, error: BitFlip, condition: Condition, seed: int) -> tuple[float, ...]:
    start = time.perf_counter()
    injection = Injection(evaluator.model, [(error, condition.space)], seed=seed)
    draw, change = 1e3 * (time.perf_counter() - start), _ms(lambda: (injection.apply(), injection.undo()))
    forward: list[float] = []
    plain = evaluator._reach._scored

    def scored(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        scores = plain(*arguments, **options)
        forward.append(1e3 * (time.perf_counter() - start))
        return scores

    evaluator._reach._scored = scored
    trial = _ms(lambda: run_trial(evaluator, condition, seed, seed=0, coupled=True, label="benchmark"))
    del evaluator._reach._scored
    return draw, change, trial, sum(forward), trial - sum(forward)


def _ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def verdicts(trials: pd.DataFrame, blocks: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on each target. Arguments as the two functions return them."""
    parameters, rate, limit = OVERHEAD
    for _, row in trials[(trials["parameters"] == parameters) & (trials["rate"] == rate)].iterrows():
        yield at_most(f"{row['ranks']:.0f} ranks: a trial outside of scoring", row["overhead_ms"], limit, " ms")
    for _, row in blocks[blocks["rate"] >= 1e-4].iterrows():
        limit = 1 / row["ranks"] + 0.2
        yield at_most(f"{row['parameters']:,.0f} at {row['rate']:g}: 1 of {row['ranks']:.0f}", row["part_share"], limit)


def describe(trials: pd.DataFrame, blocks: pd.DataFrame) -> str:
    """Both tables and the targets, as text."""
    key = ["parameters", "rate", "ranks"]
    return "\n\n".join(
        (
            about("Ranks are processes of this machine, one thread each"),
            f"Errors in tables sharded by rows, on rank 0 (ms, medians)\n{text(trials.set_index(key))}",
            f"Drawing all places, and rank 0's part (ms, medians)\n{text(blocks.set_index(key))}",
            verdict_text(verdicts(trials, blocks)),
        )
    )
