"""Models that TorchRec shards over processes of gloo on one machine."""

import datetime
import os
import traceback

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import drsrobust as dr
from tests.processes import start

SECONDS = 240


def in_ranks(world, check, folder):
    """Runs `check(folder)` in each of some ranks.

    Raises:
        AssertionError: with the traceback of a rank.
    """
    processes = [start(_rank, number, world, check, folder) for number in range(world)]
    for process in processes:
        process.join(SECONDS)
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
    assert not late, "a rank did not end in time"
    failures = [path.read_text() for path in folder.glob("failed-*")]
    assert not failures and all(process.exitcode == 0 for process in processes), "\n".join(failures)


def _rank(number, world, check, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS // 2)
    place = (folder / "group").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=number, world_size=world, timeout=limit)
    try:
        check(folder)
    except BaseException:
        (folder / f"failed-{number}").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


def dlrm():
    """TorchRec's DLRM with two tables."""
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name=f"t{number}", num_embeddings=rows, embedding_dim=16, feature_names=[f"f{number}"])
        for number, rows in enumerate((103, 57))
    ]
    return DLRM(EmbeddingBagCollection(tables=tables), 4, [16, 16], [16, 1]).eval()


def sharded(kind):
    """A DLRM under DistributedModelParallel, with all its tables sharded in one way."""
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv

    class OnCpu(EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type):
            return ["data_parallel", "table_wise", "column_wise", "row_wise"]

    model, sharders = dlrm(), [OnCpu()]
    limits = {"min_partition": 8} if kind == "column_wise" else {}
    constraints = {f"t{number}": ParameterConstraints(sharding_types=[kind], **limits) for number in range(2)}
    world = dist.get_world_size()
    topology = Topology(world_size=world, local_world_size=world, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=64, constraints=constraints)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders, env=env).eval()


def rows():
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    random = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(3):
        ids = torch.stack([torch.randint(n, (64,), generator=random) for n in (103, 57)])
        jagged = KeyedJaggedTensor(["f0", "f1"], ids.reshape(-1), lengths=torch.ones(128, dtype=torch.int32))
        batches.append((torch.randn(64, 4, generator=random), jagged, (ids[0] % 2).float()))
    return dr.data.from_batches(batches)


def works_over_two_ranks(folder):
    batches = rows()
    with dr.inject(dlrm(), dr.BitFlip(1e-2), "embedding", seed=0) as plain:
        pass
    for kind in ("table_wise", "column_wise", "row_wise"):
        model = sharded(kind)
        assert dr.resolve(model).bits == dr.resolve(dlrm()).bits
        assert dr.resolve(model, "over_arch.*").bits == dr.resolve(dlrm(), "over_arch.*").bits
        assert dr.components(model).equals(dr.components(dlrm()))
        with dr.inject(model, dr.BitFlip(1e-2), "embedding", seed=0) as error_map:
            assert np.array_equal(error_map.word, plain.word) and np.array_equal(error_map.mask, plain.mask)
        with pytest.raises(ValueError, match="errors while a sharded model runs are not supported; hit its memory"):
            dr.inject(model, dr.BitFlip(1e-2), dr.Inputs("dense"), seed=0).__enter__()
    what = r"Linear is sharded over 2 ranks \(weight, bias\) in another way than TorchRec's"
    with pytest.raises(ValueError, match=what):
        dr.resolve(fully_shard(torch.nn.Linear(4, 2), mesh=init_device_mesh("cpu", (2,))))
    replicas = sharded("data_parallel")  # every rank holds all words
    evaluator = dr.Evaluator(replicas, batches)
    with dr.inject(replicas, dr.BitFlip(1e-2), "embedding", seed=0) as error_map:
        again, full = evaluator.rerun(error_map), evaluator.run()
    assert again.rows_reached > 0 and again.auc == full.auc != evaluator.golden.auc
    if dist.get_rank() == 0:
        assert np.array_equal(again.scores, full.scores, equal_nan=True)
    else:
        assert again.scores is None and full.scores is None
    wrapped = torch.nn.parallel.DistributedDataParallel(dlrm())
    with dr.inject(wrapped, dr.BitFlip(1e-2), "embedding", seed=0) as other:
        assert np.array_equal(other.word, error_map.word)
    with pytest.raises(ValueError, match="this process is one of 2 ranks, and each would compute and store"):
        dr.Campaign(dr.Evaluator(dlrm(), batches), errors=[dr.FixedCount(1)], trials=1, store=folder / "store")


def works_in_one_rank(folder):
    batches = rows()
    for kind in ("table_wise", "row_wise", "data_parallel"):
        model = sharded(kind)
        assert dr.resolve(model).bits == dr.resolve(dlrm()).bits
        evaluator = dr.Evaluator(model, batches)
        with dr.inject(model, dr.BitFlip(1e-2), "embedding", seed=0) as error_map:
            again, full = evaluator.rerun(error_map), evaluator.run()
        assert again.rows_reached == 192
        assert np.array_equal(again.scores, full.scores, equal_nan=True)
        assert not np.array_equal(again.scores, evaluator.golden.scores)
        with dr.inject(dlrm(), dr.BitFlip(1e-2), "embedding", seed=0) as plain:
            assert np.array_equal(plain.word, error_map.word)
        campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-2)], trials=2, store=folder / kind)
        assert campaign.run(workers=1, progress=False)["rows_reached"].min() > 0


@pytest.mark.parametrize(("world", "check"), [(2, works_over_two_ranks), (1, works_in_one_rank)])
def test_ranks(world, check, tmp_path):
    in_ranks(world, check, tmp_path)
