"""What is no argument is refused in one line, which names the argument, what is right, and the value."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust._arguments import ArgumentError, check_number, check_text, check_truth, check_whole, shown
from drsrobust.campaign import auc_under_errors, decades, merge
from drsrobust.injection import CriticalBits, Injection, Sum
from drsrobust.models import build_model
from drsrobust.training import Settings
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_extras.experiments.training_errors.actions import RollBack
from drsrobust_extras.experiments.training_errors.detectors import GradientNorm, LossSpike, adam_bound
from drsrobust_extras.protection.memory_map import Geometry

NAN, HUGE = float("nan"), 2**70
FOREIGN = (  # Python's and other libraries' own words
    *("object has no attribute", "not iterable", "cannot be interpreted", "truth value", "unsupported operand"),
    *("not supported between", "not callable", "positional argument", "expected str", "JSON", "Arrow", "unhashable"),
    *("embedded null", "object is not", "has no len", "can't convert", "cannot unpack"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(20, 4), nn.Linear(6, 1)

    def forward(self, x, ids):
        return self.top(torch.cat([x, self.table(ids)], 1)).squeeze(1)


def forward(model, batch):
    return model(batch[0], batch[1])


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    """Right arguments, from which each call below differs in one."""
    torch.manual_seed(0)
    s = SimpleNamespace(net=Net().eval(), flip=dr.BitFlip(1e-3), folder=tmp_path_factory.mktemp("arguments"))
    s.batches = [(torch.randn(32, 2), torch.arange(32) % 20, (torch.arange(32) % 2).float()) for _ in range(2)]
    s.rows = dr.data.from_batches(s.batches)
    s.evaluator = dr.Evaluator(s.net, s.rows, forward=forward, output="logit")
    grid = {"evaluator": s.evaluator, "errors": s.flip, "trials": 2, "sampling": "plain", "store": s.folder / "store"}
    s.make = lambda **changed: dr.Campaign(**grid | changed)
    s.campaign = s.make()
    s.run = lambda **changed: s.campaign.run(**{"workers": 1, "progress": False} | changed)
    s.table = s.run()
    s.frame = pd.DataFrame({"y": [0, 1] * 10, "a": np.arange(20.0), "i": np.arange(20) % 5})
    s.data = dr.data.from_frame(s.frame, label="y", dense=["a"], sparse=["i"], split=(0.5, 0.25, 0.25))
    training = {"model": "fm", "data": s.data, "targets": ["top"], "errors": s.flip}
    s.train = lambda **changed: dr.TrainingCampaign(**training | changed)
    planned = {"rows": s.data.valid, "errors": s.flip, "candidates": [], "budget_bits": 0.1, "budget_time": 0.0}
    s.plan = lambda **changed: dr.plan(s.net, **planned | changed)
    s.inject = lambda *arguments, **options: dr.inject(*arguments, **options).__enter__()
    return s


MODEL = (dr.components, dr.restore, dr.resolve, dr.ABFTLinear.fit, dr.WeightRange.fit)
# The call, the argument's name, and the value as the message shows it.
CASES = [
    # whole numbers
    *[(lambda s, v=v: s.make(trials=v), "trials", v) for v in (3.0, "3", True, None, 0, -1, HUGE, NAN, [3])],
    *[(lambda s, v=v: s.make(seed=v), "seed", v) for v in (-1, HUGE, 1.5, "1", None, True)],
    *[(lambda s, v=v: s.run(workers=v), "workers", v) for v in (2.0, "2", True, 0, HUGE)],
    *[(lambda s, v=v: s.inject(s.net, s.flip, seed=v), "seed", v) for v in (-1, HUGE, 1.5, "1", None, True)],
    *[(lambda s, v=v: dr.worst_case(s.evaluator, budget=v), "budget", v) for v in (2.0, "2", 0, None, True)],
    *[(lambda s, v=v: dr.worst_case(s.evaluator, candidates=v), "candidates", v) for v in (2.0, 0)],
    *[(lambda s, v=v: dr.ProbeRows.fit(s.evaluator, s.data.train, v), "n", v) for v in (2.5, "2", 0, HUGE)],
    *[(lambda s, v=v: dr.load_dataset("synthetic-movielens", rows=v), "rows", v) for v in (100.0, "100", True, 9)],
    *[(lambda s, v=v: dr.load_dataset("synthetic-movielens", seed=v), "seed", v) for v in (-1, 0.5, None)],
    *[(lambda s, v=v: Settings(epochs=v), "epochs", v) for v in (1.0, "1", True, 0)],
    *[(lambda s, v=v: Settings(seed=v), "seed", v) for v in (-1, HUGE)],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, forward=forward, k=v), "k", v) for v in (5.0, True, 0, "5")],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, memory=v), "memory", v) for v in (1.5, -1, None, True)],
    *[(lambda s, v=v: dr.data.from_batches(s.batches, rows=v), "rows", v) for v in (2.0, True, 0, "2")],
    *[(lambda s, v=v: s.data.train.head(v), "rows", v) for v in (2.0, "2", 0, None)],
    *[(lambda s, v=v: list(s.data.train.batches(v)), "size", v) for v in (2.0, "2", 0, None)],
    *[(lambda s, v=v: s.data.train.take(v), "rows", v) for v in ([1.5], "1")],
    *[(lambda s, v=v: dr.FixedCount(v), "k", v) for v in (1.0, "1", True, -1, None)],
    *[(lambda s, v=v: dr.SingleBit(v), "bit", v) for v in (30.0, "30", True, -1, 64, None)],
    *[(lambda s, v=v: dr.MultiBit(1e-3, v), "bits_per_word", v) for v in (99, 2.0, 0, True)],
    *[(lambda s, v=v: dr.Rank(v), "rank", v) for v in (NAN, "0", 0.0, True, -1, None)],
    *[(lambda s, v=v: CriticalBits(table_rows=v), "table_rows", v) for v in (2.0, "2", -1)],
    *[(lambda s, v=v: Geometry(ranks=v), "ranks", v) for v in (2.0, "2", 0)],
    *[(lambda s, v=v: dr.MemoryFault("bit", lines=v), "lines", v) for v in (2.0, True, 5, "2")],
    *[(lambda s, v=v: dr.MemoryFault("bit", chips=v), "chips", v) for v in (2.0, True, 18, "2")],
    *[(lambda s, v=v: dr.Allowed(one_per=v), "one_per", v) for v in (8.0, "8", 0)],
    *[(lambda s, v=v: dr.Replication(v), "copies", v) for v in (3.0, True, 4, "3")],
    *[(lambda s, v=v: dr.ECC(v), "data_bits", v) for v in (64.0, "64", 63, None)],
    *[(lambda s, v=v: dr.Scrubbing(per=v), "per", v) for v in (8.0, 7, "page", None)],
    *[(lambda s, v=v: dr.SelectiveChipkill(v), "nibbles", v) for v in (7.0, 0, "7")],
    *[(lambda s, v=v: RollBack(every=v), "every", v) for v in (2.0, 0, "2")],
    *[(lambda s, v=v: LossSpike(keep=v), "keep", v) for v in (1, 2.5)],
    *[(lambda s, v=v: adam_bound(v), "steps", v) for v in (0, 1.5, "1")],
    *[(lambda s, v=v: build_model("fm", s.data.schema, embedding_dim=v), "embedding_dim", v) for v in (4.0, "4", 0)],
    # shards
    *[(lambda s, v=v: s.run(shard=v), "shard", v) for v in ((0.9, 2), (True, 2), ("0", 2), (0, 1, 2), 4, {"a": 1})],
    # numbers
    *[(lambda s, v=v: dr.BitFlip(v), "ber", v) for v in (NAN, -1, 1.5, "x", None, True, [0.1])],
    *[(lambda s, v=v: dr.StuckAt(v, 0.1), "value", v) for v in (2, NAN, "1", None)],
    *[(lambda s, v=v: dr.RandomValue(0.1, v, 1), "low", v) for v in (NAN, "0", None)],
    *[(lambda s, v=v: dr.Rows.hot("table", s.data.train, v), "share", v) for v in (NAN, 0, 2, "x", None)],
    *[(lambda s, v=v: dr.Scrubbing(v), "period", v) for v in (-1, NAN, "1", None, True)],
    *[(lambda s, v=v: dr.NaNGuard(v), "prior", v) for v in (0, NAN, "0.5", True)],
    *[(lambda s, v=v: dr.ActivationClipping(v), "bound", v) for v in (0, NAN, "6", None, True)],
    *[(lambda s, v=v: dr.WeightRange.fit(s.net, margin=v), "margin", v) for v in (0.5, NAN, "2")],
    *[(lambda s, v=v: Settings(learning_rate=v), "learning_rate", v) for v in (0, NAN, "0.1", None, True)],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, threshold=v), "threshold", v) for v in (0, 1, NAN, "0.5", None)],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, epsilon=v), "epsilon", v) for v in (-1, NAN, "0", None)],
    *[(lambda s, v=v: GradientNorm(factor=v), "factor", v) for v in (0, NAN, "5", None)],
    *[(lambda s, v=v: decades(v, 1), "low", v) for v in ("1", None, NAN, [1])],
    *[(lambda s, v=v: dr.rates.ber(v, 1), "fit_per_mbit", v) for v in (-1, NAN, "1", None)],
    *[(lambda s, v=v: dr.recovery(s.table, confidence=v), "confidence", v) for v in (0, 1, 95, "0.95", NAN)],
    *[(lambda s, v=v: dr.data.from_batches(s.batches, prior=v), "prior", v) for v in (0, 2, "0.5")],
    *[(lambda s, v=v: dr.data.from_frame(s.frame, label="y", split=v), "split", v) for v in (0.5, "0.5", (0.5, 0.6))],
    (lambda s: dr.data.from_frame(s.frame, label="y", split=(NAN, 0.5, 0.5)), "split", NAN),
    (lambda s: dr.data.from_frame(s.frame, label="y", split=("a", 0.5, 0.5)), "split", "a"),
    # true or false
    *[(lambda s, v=v: s.make(coupled=v), "coupled", v) for v in ("no", 0, None, 1.0)],
    *[(lambda s, v=v: s.run(progress=v), "progress", v) for v in ("no", 0, None)],
    # classes for objects, None and numbers for objects
    *[(lambda s, v=v: s.make(errors=v), "errors", v) for v in (dr.BitFlip, 5, "x", [dr.BitFlip], [3])],
    *[(lambda s, v=v: s.make(mitigations=v), "mitigations", v) for v in (dr.WeightRange, 5, [dr.ParityZero], [3])],
    *[(lambda s, v=v: s.make(targets=v), "targets", v) for v in (None, 5, nn.Linear)],
    *[(lambda s, v=v: s.make(errors=None, conditions=v), "conditions", v) for v in (5, "x")],
    *[(lambda s, v=v: s.make(evaluator=v), "evaluator", v) for v in (None, 5, dr.Evaluator)],
    *[(lambda s, v=v: s.make(metrics=v), "metrics", v) for v in (None, 5, np.mean)],
    *[(lambda s, v=v: s.run(executor=v), "executor", v) for v in (5, "x")],
    *[(lambda s, v=v: dr.Evaluator(v, s.rows), "model", v) for v in (None, Net, 5, "dlrm")],
    *[(lambda s, v=v: dr.Evaluator(s.net, v), "rows", v) for v in (None, 5, "x", dr.data.Split)],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, forward=v), "forward", v) for v in (5, "forward")],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, factory=v), "factory", v) for v in (5, "Net")],
    *[(lambda s, v=v: dr.Evaluator(s.net, s.rows, scores=v), "scores", v) for v in ("", 5, "probabilities")],
    *[(lambda s, v=v: s.evaluator.rerun(v), "error_map", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.components(s.net, v), "components", v) for v in ([("a", "b")], "a")],
    *[(lambda s, f=f, v=v: f(v), "model", v) for f in MODEL for v in (None, Net, 5)],
    *[(lambda s, v=v: dr.resolve(s.net, v), "target", v) for v in (None, 5, dr.Rows)],
    *[(lambda s, v=v: s.inject(v, s.flip, seed=1), "model", v) for v in (None, Net)],
    *[(lambda s, v=v: s.inject(s.net, v, seed=1), "error_model", v) for v in (None, dr.BitFlip, 5, [3])],
    *[(lambda s, v=v: s.inject(s.net, s.flip, seed=1, mitigation=v), "mitigation", v) for v in (5, dr.ECC)],
    *[(lambda s, v=v: Injection(s.net, v, seed=1), "pairs", v) for v in (None, 5, [3])],
    *[(lambda s, v=v: stored_as(v, dense="bf16"), "model", v) for v in (None, Net)],
    *[(lambda s, v=v: dr.ABFTLinear.fit(s.net, v, mode="calibrated"), "rows", v) for v in (5, "x")],
    *[(lambda s, v=v: dr.ActivationClipping.fit(v, s.rows), "model", v) for v in (None, Net)],
    *[(lambda s, v=v: dr.ActivationClipping.fit(s.net, v), "split", v) for v in (None, 5, dr.data.Split)],
    *[(lambda s, v=v: dr.worst_case(v), "evaluator", v) for v in (None, Net)],
    *[(lambda s, v=v: dr.worst_case(s.evaluator, allowed=v), "allowed", v) for v in (5, dr.Allowed, "all")],
    *[(lambda s, v=v: dr.Allowed(passes=v), "passes", v) for v in (3, dr.ECC)],
    *[(lambda s, v=v: dr.Allowed(v), "target", v) for v in (5, None)],
    *[(lambda s, v=v: dr.ProbeRows(v, s.data.train), "evaluator", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.ProbeRows(s.evaluator, v), "rows", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.Rows(v, [1]), "table", v) for v in (3, None, nn.Embedding)],
    *[(lambda s, v=v: dr.Rows("table", v), "rows", v) for v in ([], [1.5], "x", 3, None)],
    *[(lambda s, v=v: dr.Rows.hot("table", v, 0.1), "split", v) for v in (None, [1])],
    *[(lambda s, v=v: dr.injection.Dtype("float32", v), "within", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.BitFlip(0.1, critical_bits=v), "critical_bits", v) for v in (5, CriticalBits)],
    *[(lambda s, v=v: dr.BitFlip(0.1, bits=v), "bits", v) for v in (3, [1.5], dr.BitFlip)],
    *[(lambda s, v=v: dr.MemoryFault("bit", fit=v), "fit", v) for v in (5, (0.9, 2))],
    *[(lambda s, v=v: dr.MemoryFault("bit", geometry=v), "geometry", v) for v in (5, Geometry)],
    *[(lambda s, v=v: Sum(v), "sum", v) for v in ([3], [dr.BitFlip])],
    *[(lambda s, v=v: dr.BitProtection(v), "bits", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.ECC(target=v), "target", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.load_dataset(v), "name", v) for v in (5, None)],
    *[(lambda s, v=v: dr.load_dataset("criteo-terabyte", "x", days=v), "days", v) for v in (5, [0.5], ["0"], [24])],
    *[(lambda s, v=v: dr.load_model("fm", v), "data", v) for v in (None, 5, dr.data.Dataset)],
    *[(lambda s, v=v: dr.load_model("fm", s.data, settings=v), "settings", v) for v in (5, Settings)],
    *[(lambda s, v=v: dr.load_model("fm", s.data, device=v), "device", v) for v in (5, "x", "")],
    *[(lambda s, v=v: dr.load_models(v), "requests", v) for v in (None, 5, [3])],
    *[(lambda s, v=v: build_model("fm", v), "schema", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.data.stream(v), "make_blocks", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.data.from_batches(v), "batches", v) for v in (None, 5, "x")],
    *[(lambda s, v=v: dr.data.from_tensors(label=v), "label", v) for v in (None, 5, "x")],
    *[(lambda s, v=v: dr.data.from_tensors(label=np.array([0, 1]), dense=v), "dense", v) for v in (5, "x")],
    *[(lambda s, v=v: dr.data.from_frame(s.frame, label=v), "label", v) for v in ([], None, 1.5)],
    *[(lambda s, v=v: dr.data.from_frame(s.frame, label="y", dense=v), "dense", v) for v in ("a", 5, None)],
    *[(lambda s, v=v: s.train(model=v), "model", v) for v in (5, None, Net)],
    *[(lambda s, v=v: s.train(data=v), "data", v) for v in (5, None)],
    *[(lambda s, v=v: s.train(targets=v), "targets", v) for v in ("top", 5, None)],
    *[(lambda s, v=v: s.train(detectors=v), "detectors", v) for v in (5, [GradientNorm])],
    *[(lambda s, v=v: s.train(when=v), "when", v) for v in (1.5, "x")],
    *[(lambda s, n=n: s.train(**{n: 5}), n, 5) for n in ("actions", "label", "rows", "settings")],
    *[(lambda s, n=n, v=v: s.train(**{n: v}), n, v) for n, v in (("warm_up", 1.5), ("watch", "x"), ("trials", True))],
    *[(lambda s, v=v: dr.summarise(v), "table", v) for v in (None, [1], "x", pd.DataFrame)],
    *[(lambda s, v=v: dr.summarise(s.table, v), "metrics", v) for v in (5, [5])],
    *[(lambda s, v=v: dr.summarise(s.table, bounds=v), "bounds", v) for v in (5, [0, 1])],
    *[(lambda s, f=f, v=v: f(v), "table", v) for f in (dr.recovery, dr.pvf) for v in (None, 5)],
    *[(lambda s, v=v: dr.statistics.across_models(v), "frames", v) for v in (None, [], [3])],
    *[(lambda s, v=v: merge(v), "campaign", v) for v in (None, 5)],
    *[(lambda s, v=v: merge(s.campaign, v), "folders", v) for v in (5, [5])],
    *[(lambda s, v=v: dr.report.write(v, s.folder / "report"), "campaign", v) for v in (None, 5)],
    *[(lambda s, v=v: dr.trace(v, s.batches[0], None), "model", v) for v in (None, Net)],
    *[(lambda s, v=v: dr.trace(s.net, s.batches[0], v), "error_map", v) for v in (None, 3)],
    *[(lambda s, v=v: s.plan(rows=v), "rows", v) for v in (None, 5)],
    *[(lambda s, v=v: s.plan(errors=v), "errors", v) for v in (None, dr.BitFlip)],
    *[(lambda s, v=v: s.plan(candidates=v), "candidates", v) for v in (5, [dr.ECC])],
    *[(lambda s, v=v: s.plan(costs=v), "costs", v) for v in (5, [])],
    (lambda s: s.plan(required=5), "required", 5),
    (lambda s: dr.data.from_tensors(label=np.array([0, 1]), dense=np.zeros((3, 1))), "dense", 3),
    *[(lambda s, v=v: dr.fleet(v, s.net, hosts=1, memory="1TB", recommendations=1), "damage", v) for v in (None, 5)],
    # text and paths
    *[(lambda s, v=v: s.make(label=v), "label", v) for v in (5, None, "a\0b", "\ud800")],
    *[(lambda s, v=v: s.make(store=v), "store", v) for v in (5, "", "a\0b", b"x", True)],
    *[(lambda s, v=v: dr.read_campaign(v), "path", v) for v in (5, "", None, "a\0b")],
    *[(lambda s, v=v: dr.load_dataset("movielens-1m", v), "root", v) for v in (5, "", "a\0b")],
    *[(lambda s, v=v: dr.load_dataset("movielens-1m", path=v), "path", v) for v in (5, "", "a\0b")],
    *[(lambda s, v=v: dr.report.write(s.campaign, v), "folder", v) for v in (5, "")],
    *[(lambda s, v=v: dr.ErrorMap.load(v), "path", v) for v in (5, "")],
    *[(lambda s, v=v: dr.data.from_batches(s.batches, name=v), "name", v) for v in (5, "a\0b")],
    *[(lambda s, v=v: dr.data.from_frame(s.frame, label="y", name=v), "name", v) for v in (5, None)],
    *[(lambda s, f=f, v=v: f(glob=v), "glob", v) for f in (dr.OptimizerState, dr.Gradients) for v in (5, None)],
]


def ids(cases):
    return [
        f"{name}={shown(value).partition(' at 0x')[0][:30]!r}-{number}" for number, (_, name, value) in enumerate(cases)
    ]


@pytest.mark.parametrize(("call", "name", "value"), CASES, ids=ids(CASES))
def test_one_line_names_argument_and_value(call, name, value, s):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(s)
    text, told = str(caught.value), value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    assert name in text and "\n" not in text, text
    parts = value if isinstance(value, tuple) else (told,)
    assert any(shown(part).strip("'") in text for part in (told, *parts)), text
    assert not [words for words in FOREIGN if words in text], text


def test_what_says_nothing_of_the_value(s):
    """Where there is no value to show, the message says what is missing."""
    with pytest.raises(ValueError, match="pass dense= or tables=, a number format"):
        stored_as(s.net)
    for function in (dr.summarise, dr.recovery, dr.pvf):
        with pytest.raises(ValueError, match="table has no rows; it must hold one trial or more"):
            function(s.table.head(0))
    with pytest.raises(ValueError, match="table has no column 'model'"):
        dr.summarise(pd.DataFrame({"a": [1]}))
    with pytest.raises(ArgumentError, match=r"got the class BitFlip; make an object of it, as BitFlip\(...\)"):
        s.make(errors=[dr.BitFlip])


def test_what_is_right_in_another_type(s):
    """NumPy's numbers and arrays, one object for a list of it; the stored results are the same."""
    same = s.make(trials=np.int64(2), seed=np.uint8(0), coupled=np.True_, errors=np.array([s.flip], dtype=object))
    assert same.store.identity == s.campaign.store.identity and type(same.trials) is int
    assert len(same.run(workers=np.int64(1), progress=False)) == 2
    assert len(s.make(errors=np.array([s.flip, dr.FixedCount(1)]), store=s.folder / "two").conditions) == 2
    assert dr.BitFlip(np.float32(0.5)) == dr.BitFlip(0.5) and dr.FixedCount(np.int8(3)) == dr.FixedCount(3)
    assert dr.StuckAt(1.0, 0.1) == dr.StuckAt(1, 0.1) and dr.Rank(np.int64(1)) == dr.Rank(1)
    assert dr.summarise(s.table, "auc")["auc"].notna().all()
    assert dr.Scrubbing(0).name == dr.Scrubbing().name and "checked at use" in dr.Scrubbing(0).name
    score = auc_under_errors(s.evaluator, s.flip, trials=np.int64(1), seed=1)
    assert 0 <= score(dr.ParityZero()) <= 1


def test_a_metric_that_gives_no_float(s):
    with pytest.raises((TypeError, ValueError), match="metric 'mine'"):
        s.make(metrics={"mine": lambda *_: 10**400})


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, 1j, NAN, 2**63, -(2**70), object])
def test_no_whole_number(value):
    with pytest.raises(ArgumentError, match="^n must be "):
        check_whole("n", value, 0)


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, NAN, float("inf"), 10**400, [1.0], object])
def test_no_number(value):
    with pytest.raises(ArgumentError, match="^x must be a finite number, got "):
        check_number("x", value)


def test_numbers_of_any_kind():
    for value in (1, 1.0, np.float32(1), np.int8(1)):
        assert check_number("x", value) == 1.0 and type(check_number("x", value)) is float
    assert check_whole("n", np.uint64(7)) == 7 and check_truth("t", np.False_) is False and check_text("t", "ä") == "ä"


def test_a_value_is_one_short_line():
    class Loud:
        def __repr__(self):
            raise RuntimeError

    assert shown(Loud()) == "a Loud" and shown(10**5000) == "a int" and shown(Net) == "the class Net"
    assert len(shown(np.arange(10_000))) <= 80 and "\n" not in shown(nn.Linear(2, 2))
