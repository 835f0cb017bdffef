"""Models sharded over the ranks of the default process group in a given way."""

import os

import torch
import torch.distributed as dist

from drsrobust.introspection.embedding_modules import torchrec

KINDS = (
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
)


def shard(model, kinds):
    """A sharded copy with the same weights.

    Args:
        model: unsharded.
        kinds: table -> how it is sharded.
    """
    torchrec()
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    state = {name: value.clone() for name, value in model.state_dict().items()}
    plan, sharders = _plan(model, kinds)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders, env=env).eval()
    load(sharded, state)
    return sharded


def _plan(model, kinds):
    """A plan, and the sharders that follow it."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.sharding_plan import get_default_sharders

    class OnCpu(EmbeddingBagCollectionSharder):
        """The stock sharder offers row-wise kinds for CUDA alone."""

        def sharding_types(self, compute_device_type):
            return list(KINDS)

    sharders = [OnCpu()] + [s for s in get_default_sharders() if not isinstance(s, EmbeddingBagCollectionSharder)]
    narrow = {"min_partition": 4}
    constraints = {
        table: ParameterConstraints(
            sharding_types=[kind], **(narrow if "column" in kind or kind == "grid_shard" else {})
        )
        for table, kind in kinds.items()
    }
    world, local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    topology = Topology(world_size=world, local_world_size=local, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=2048, constraints=constraints)
    return planner.collective_plan(model, sharders, dist.group.WORLD), sharders


def load(sharded, state):
    """Fills the shards, which DistributedModelParallel begins with random numbers, from the state of an unsharded model."""
    with torch.no_grad():
        for name, value in sharded.state_dict().items():
            shards = value.local_shards() if hasattr(value, "local_shards") else ()
            for part in shards:
                (row, column), (rows, columns) = part.metadata.shard_offsets, part.metadata.shard_sizes
                part.tensor.copy_(state[name][row : row + rows, column : column + columns])
            if not shards and not hasattr(value, "local_shards"):
                value.copy_(state[name])
