"""python -m torch.distributed.run --standalone --nproc-per-node 2 examples/sharded.py: bit errors in a model whose tables
TorchRec spreads over the ranks; a fault of one rank beside as many errors everywhere."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints

import drsrobust as dr


class Sharder(EmbeddingBagCollectionSharder):
    """The stock one shards by rows on GPUs alone."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise", "row_wise", "column_wise", "data_parallel"]


def sharded(model: torch.nn.Module, kinds: dict[str, str]) -> torch.nn.Module:
    """The model with its tables sharded as asked. DistributedModelParallel begins with random tables, so weights are copied."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    constraints = {table: ParameterConstraints(sharding_types=[kind]) for table, kind in kinds.items()}
    world, local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    topology = Topology(world_size=world, local_world_size=local, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=2048, constraints=constraints)
    plan = planner.collective_plan(model, [Sharder()], dist.group.WORLD)
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[Sharder()]).eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            for shard in value.local_shards() if hasattr(value, "local_shards") else ():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(state[name][row : row + rows, column : column + columns])
            if not hasattr(value, "local_shards"):
                value.copy_(state[name])
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    data = dr.load_dataset("synthetic-movielens/full", rows=6_000)
    kinds = {
        feature.name: "row_wise" if feature.cardinality > 100 else "table_wise" for feature in data.schema.features
    }
    model = sharded(dr.load_model("dlrm", data, progress=False), kinds)
    evaluator = dr.Evaluator(model, data.test, output="logit")
    with dr.inject(model, dr.BitFlip(1e-4), "embedding", seed=7) as error_map:  # the map of the unsharded model
        result = evaluator.rerun(error_map)
    errors, places = dr.FixedCount(1000, bits="exponent"), [dr.Rank(1), "all"]
    options = {"sampling": "plain", "store": "build/sharded-example"}
    campaign = dr.Campaign(evaluator, errors=errors, targets=places, trials=30, **options)
    table = campaign.run(progress=False)  # None on other ranks than the first, which measures and stores
    if table is not None:
        print(f"{len(error_map)} words are wrong: AUC {result.auc:.4f} of {evaluator.golden.auc:.4f}")
        print(table.groupby("target")["auc_drop"].agg(["size", "mean", "max"]).round(4))
    dist.destroy_process_group()
