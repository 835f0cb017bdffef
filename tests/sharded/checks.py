"""What ranks compute in the tests: the same on a sharded model as on the unsharded one."""

import copy
import hashlib
import os
import signal
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import drsrobust as dr
from drsrobust.data.dataset import Feature, Ids, Schema, Split
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.introspection.tensors import listed
from drsrobust.mitigation import ECC, WeightRange
from drsrobust.models import build_model, state_digest

torchrec()
from torchrec.modules.embedding_configs import EmbeddingConfig, PoolingType  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingCollection  # noqa: E402

MIXED = "mixed"
ERRORS = (
    dr.BitFlip(1e-3, bits=("mantissa", "sign")),
    dr.FixedCount(5),
    dr.StuckAt(1, 1e-3, bits="mantissa"),
    dr.MemoryFault("bank"),
)


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
    """A sharded copy of an unsharded model with the same weights; of each table `kinds` says how it is sharded."""
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
    narrow = {kind: {"min_partition": 4} for kind in KINDS if "column" in kind or kind == "grid_shard"}
    constraints = {
        table: ParameterConstraints(sharding_types=[kind], **narrow.get(kind, {})) for table, kind in kinds.items()
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


def rows(bag, n=400):
    """Rows with `bag` ids a feature."""
    random = np.random.default_rng(bag)
    sizes = {"t0": 103, "t1": 64, "t2": 37}
    lengths = None if bag == 1 else np.full(n, bag, np.int32)
    sparse = {name: Ids(random.integers(0, size, n * bag).astype(np.int32), lengths) for name, size in sizes.items()}
    dense, labels = random.normal(size=(n, 3)).astype(np.float32), (random.random(n) < 0.4).astype(np.float32)
    split = Split(dense, sparse, labels, None, np.arange(n), f"made/bag {bag}", "test", 0.4, f"bag {bag}", n)
    return Schema(("a", "b", "c"), tuple(Feature(name, size, bag > 1) for name, size in sizes.items())), split


def models(kind, bag=1):
    """A model, the same sharded, and rows."""
    schema, split = rows(bag)
    plain = dlrm(schema)
    tables = plain.sparse_arch.embedding_bag_collection
    # TorchRec 1.8 divides means of grid-sharded and mixed tables twice, or never
    for config in tables.embedding_bag_configs():
        config.pooling, tables.embedding_bags[config.name].mode = PoolingType.SUM, "sum"
    kinds = ("row_wise", "column_wise", "data_parallel") if kind == MIXED else [kind] * 3
    names = [feature.name for feature in schema.features]
    return plain, shard(copy.deepcopy(plain), dict(zip(names, kinds, strict=True))), split


def evaluated(kind="table_wise"):
    """A sharded model and its evaluator."""
    _, sharded, split = models(kind)
    return sharded, dr.Evaluator(sharded, split, output="logit")


def dlrm(schema):
    torch.manual_seed(0)
    return build_model("dlrm", schema, std=0.3).eval()


def same(first, other):
    return all(np.array_equal(getattr(first, name), getattr(other, name)) for name in ("tensor", "word", "mask"))


def compare(kind, bag):
    """How errors in a sharded model compare with the same in the unsharded one."""
    plain, sharded, split = models(kind, bag)
    assert dr.components(plain).equals(dr.components(sharded))
    first = dist.get_rank() == 0  # one rank is enough for the unsharded model's scores
    here = dr.Evaluator(plain, split, output="logit") if first else None
    there = dr.Evaluator(sharded, split, output="logit")
    digest = state_digest(sharded)
    facts = {"digest": digest, "golden": [there.golden.auc, *([here.golden.auc] if first else [])]}
    protections = [None, ECC(), WeightRange.fit(sharded)]
    facts["ranges"] = protections[2].identity() == WeightRange.fit(plain).identity()
    targets = ("all", "embedding", "embedding", "all")
    cases = [(error, target, None) for error, target in zip(ERRORS, targets, strict=True)]
    cases += [(ERRORS[0], "embedding", protection) for protection in protections[1:]]
    cases = cases if bag == 1 else cases[:2]
    for error, target, protection in cases:
        with dr.inject(plain, error, target, seed=3, mitigation=protection) as expected:
            alone, reads = (here.run(), [here.rerun(expected).rows_reached]) if first else (None, [])
        with dr.inject(sharded, error, target, seed=3, mitigation=protection) as drawn:
            rerun, full = there.rerun(drawn), there.run()
            words = {e.name: (e.spread.whole() if e.spread else e.tensor).clone() for e in listed(sharded)}
        case = {
            "map": same(expected, drawn),
            "reached": [rerun.rows_reached, *reads],
            "undo": state_digest(sharded) == digest,
        }
        with expected.applied(plain):
            case["words"] = all(torch.equal(_bits(e.tensor), _bits(words[e.name])) for e in listed(plain))
        if first:
            case["rerun"] = _same_scores(rerun.scores, full.scores)
            case["equal"] = _same_scores(full.scores, alone.scores)
            case["scores"] = hashlib.sha256(full.scores).hexdigest()
            case["near"] = np.allclose(full.scores, alone.scores, rtol=1e-5, atol=1e-5, equal_nan=True)
        facts[f"{error.label} in {target}, {protection and protection.name}"] = case
    return facts


def _bits(tensor):
    return tensor.detach().contiguous().view(torch.int32)


def _same_scores(scores, others):
    return np.array_equal(scores.view(np.int32), others.view(np.int32))


def compare_all(cases):
    """`compare` of several cases in one start."""
    return {case: compare(*case) for case in cases}


def held_by_ranks():
    """The words that each rank holds: all of the model, each once but for replicas, which each rank hits in its own."""
    (sharded, evaluator), world = evaluated(MIXED), dist.get_world_size()
    spaces = [dr.resolve(sharded, dr.Rank(rank)) for rank in range(world)]
    held = {}
    for space in spaces:
        for eligible in space.eligible:
            words = np.unique(eligible.locate(np.arange(eligible.bits))[0])
            held.setdefault(eligible.tensor.name, []).append(words)
    wrong = []
    for rank in range(world):
        with dr.inject(sharded, dr.BitFlip(1.0, bits="sign"), dr.Rank(rank), seed=1) as error_map:
            counts, (rerun, full) = _negative(sharded), (evaluator.rerun(error_map), evaluator.run())
        before = _negative(sharded)
        equal = (rerun.auc, rerun.rows_reached) == (full.auc, full.rows_reached)
        wrong.append({"changed": sorted(n for n in counts if counts[n] != before[n]), "equal": equal, "auc": full.auc})
    both = dr.resolve(sharded, dr.Rank(0, within="embedding") | dr.Rank(0, within="dense_mlp")).bits
    return {
        "words": {name: [part.tolist() for part in parts] for name, parts in held.items()},
        "sizes": {e.name: e.tensor.numel() for e in listed(sharded)},
        "wrong": wrong,
        "union": both == spaces[0].bits - dr.resolve(sharded, dr.Rank(0, within="over_mlp")).bits,
        "golden": evaluator.golden.auc,
    }


def _negative(model):
    """Negative words that this rank holds of each tensor."""
    memory = {e.name: [part for _, part in e.spread.local] if e.spread else [e.tensor] for e in listed(model)}
    return {name: sum(int((part < 0).sum()) for part in parts) for name, parts in memory.items()}


def campaign(kind, store, sampling=None):
    """A campaign's table on rank 0; the others get None."""
    sharded, evaluator = evaluated(kind)
    made = dr.Campaign(evaluator, **grid(sharded), sampling=sampling, store=store)
    table = made.run(progress=False)
    assert ("<td>rank 0</td>" in made._repr_html_()) is (table is None)  # where its trials are stored
    return table if table is None else (table, made.timings())


def unsharded_campaign(store, sampling=None):
    """The same campaign in this process."""
    schema, split = rows(1)
    model = dlrm(schema)
    evaluator = dr.Evaluator(model, split, output="logit")
    return dr.Campaign(evaluator, **grid(model), sampling=sampling, store=store).run(workers=1, progress=False)


def grid(model):
    return {
        "errors": [dr.BitFlip(1e-4), dr.FixedCount(3)],
        "targets": ["embedding", "all"],
        "mitigations": [None, WeightRange.fit(model)],
        "trials": 5,
        "metrics": ["decision_changed"],
        "seed": 4,
    }


def fail_in_trial(store, how):
    """A campaign in which rank 1 raises, is killed or hangs in the seventh trial."""
    from drsrobust.campaign import trial

    original, calls = trial.run_trial, []

    def run_trial(*arguments, **options):
        calls.append(1)
        if dist.get_rank() == 1 and len(calls) == 7:
            if how == "raises":
                raise ValueError("a bit too many")
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return original(*arguments, **options)

    trial.run_trial = run_trial
    return campaign("table_wise", store, sampling="plain")


def refused():
    """What a message must hold, and the message, of all that a sharded model is refused."""
    plain, sharded, split = models("table_wise")
    rank = dist.get_rank()
    evaluator = dr.Evaluator(sharded, split, output="logit")
    flip = dr.BitFlip(1e-3)
    grid_of = {"errors": [flip], "trials": 2}
    made = dr.Campaign(evaluator, **grid_of, store=f"{os.environ['DRSROBUST_CACHE']}/refused")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    unpooled = EmbeddingCollection([EmbeddingConfig(num_embeddings=8, embedding_dim=4, name="t", feature_names=["f"])])
    unpooled = shard(torch.nn.ModuleDict({"tables": unpooled}), {"t": "table_wise"})
    metrics = {"own": [_own, _other][rank]}
    alone, differ = "leave out workers=, executor= and shard=", "ranks 0 and 1 have different campaigns: they differ in"
    few = "60 rows make 1 batches for 2 ranks; each needs one, so give at least 128 rows"
    other = fully_shard(torch.nn.Linear(4, 2), mesh=init_device_mesh("cpu", (2,)))
    activations = dr.Activations("over_arch.*")
    tries = [
        (alone, lambda: made.run(workers=2)),
        (alone, lambda: made.run(shard="0/2")),
        (f"{differ} seed", lambda: dr.Campaign(evaluator, **grid_of, seed=rank)),
        (f"{differ} conditions", lambda: dr.Campaign(evaluator, errors=[dr.BitFlip(10.0 ** -(3 + rank))], trials=2)),
        (f"{differ} metrics", lambda: dr.Campaign(evaluator, **grid_of, metrics=metrics)),
        ("they differ in rows", lambda: dr.Evaluator(sharded, split.take(slice(rank, None)), output="logit")),
        (few, lambda: dr.Evaluator(sharded, split.head(60), output="logit")),
        ("target Rank(2): rank is 2; it must be from 0 to 1", lambda: dr.resolve(sharded, dr.Rank(2))),
        ("target Rank(0): the model is not sharded over ranks", lambda: dr.resolve(plain, dr.Rank(0))),
        ("while a sharded model runs", lambda: dr.inject(sharded, flip, activations, seed=1).__enter__()),
        ("the optimizer's state of a sharded", lambda: dr.resolve(sharded, dr.OptimizerState(optimizer))),
        ("tables is a ShardedEmbeddingCollection; of sharded tables, only", lambda: dr.resolve(unpooled)),
        ("Linear is sharded over 2 ranks (weight, bias) in another way than TorchRec's", lambda: dr.resolve(other)),
        ("one of 2 ranks", lambda: dr.Campaign(dr.Evaluator(plain, split, output="logit"), **grid_of)),
        ("rank 0 has", made.table if rank else lambda: _raise(RuntimeError("rank 0 has it"))),
    ]
    messages = []
    for words, call in tries:
        messages.append((words, ""))
        with warnings.catch_warnings(action="ignore"):
            try:
                call()
            except (ValueError, RuntimeError) as error:
                messages[-1] = (words, str(error))
    return messages


def _raise(error):
    raise error


def _own(labels, scores, golden_scores, users):
    return float(scores.mean())


def _other(labels, scores, golden_scores, users):
    return float(scores.mean()) + 0.0


def warnings_of_evaluator():
    """What an evaluator of a sharded model warns of."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        evaluated()
    return [str(warning.message) for warning in caught if warning.category is UserWarning]


def replicas():
    """Whether a model that every rank has a replica of is hit as the plain one."""
    model = dlrm(rows(1)[0])
    with dr.inject(model, dr.BitFlip(1e-2), "embedding", seed=0) as expected:
        pass
    with dr.inject(torch.nn.parallel.DistributedDataParallel(model), dr.BitFlip(1e-2), "embedding", seed=0) as drawn:
        return same(expected, drawn)


def coupled():
    """A model whose rows affect each other under errors: reruns become full runs on every rank."""
    _, sharded, split = models("table_wise")
    inner = sharded._dmp_wrapped_module
    over = getattr(inner, "module", inner).over_arch
    plain_forward = over.forward
    over.forward = lambda features: plain_forward(features / features.abs().max().clamp(min=30.0) * 30.0)
    evaluator = dr.Evaluator(sharded, split, output="logit")
    errors = dr.inject(sharded, dr.BitFlip(1.0, bits=(30,)), dr.Rows("t2", [5]), seed=2)
    with warnings.catch_warnings(action="ignore"), errors as error_map:
        evaluator.rerun(error_map)
    return evaluator.full_run
