"""What no campaign can be: the message holds the argument's name and the value. Further ones are in tests/test_arguments.py."""

import pytest

import drsrobust as dr
from drsrobust.campaign import decades
from drsrobust.injection import BitFlip, FixedCount, Rows, SingleBit
from drsrobust.injection.critical_bits import CriticalBits
from drsrobust.mitigation import ECC, WeightRange

FLIP = BitFlip(0.1)
STRATIFIED = {"errors": BitFlip(1e-6), "sampling": "stratified"}


def of_one_text(*numbers):
    rows = Rows("movie", numbers)
    object.__setattr__(rows, "label", "some")
    return rows


def fit_twice(evaluator):
    return dr.Campaign(evaluator, errors=FLIP, mitigations=[WeightRange.fit(evaluator.model) for _ in range(2)])


class OldSample(BitFlip):
    def sample(self, space, *, seed, before=()):
        return super().sample(space, seed=seed)


class OldScreen(ECC):
    def screen(self, error_map, model, *, seed):
        return error_map


# Options of a campaign, or a call; the type of the error, and what its message holds.
CASES = [
    ({"targets": "all"}, ValueError, "targets", "'all'"),
    ({"errors": []}, ValueError, "0 errors", "1 targets"),
    ({"errors": [FLIP, FLIP]}, ValueError, "duplicate", "BitFlip(ber=0.1", "'all'", "'none'"),
    ({"targets": [["embedding", "mlp"], ["mlp", "embedding"]]}, ValueError, "duplicate"),
    (fit_twice, ValueError, "duplicate", "'range per tensor'"),
    ({"targets": ["tables"]}, ValueError, "target", "'tables'"),
    ({"errors": [SingleBit(40)]}, ValueError, "bit 40"),
    ({"errors": [BitFlip(0.1, bits=(32,))]}, ValueError, "bit 32"),
    ({"conditions": [(FLIP, "all")]}, ValueError, "errors", "conditions"),
    ({"errors": None, "conditions": [7]}, ValueError, "conditions", "7"),
    ({"errors": None, "conditions": []}, ValueError, "conditions"),
    (
        {"errors": None, "conditions": [(FLIP, of_one_text(1)), (FixedCount(1), of_one_text(1, 2))]},
        ValueError,
        "targets",
        "some",
    ),
    ({"metrics": ["ndgc"]}, ValueError, "metric", "'ndgc'", "'ndcg'"),
    ({"metrics": {"auc": lambda *_: 0.5}}, ValueError, "auc"),
    ({"sampling": "strata"}, ValueError, "sampling", "'strata'", "'stratified'"),
    (STRATIFIED | {"targets": [Rows("user", range(5))]}, ValueError, "Rows", "no critical bits"),
    (STRATIFIED | {"errors": SingleBit(30)}, TypeError, "strata", "SingleBit(bit=30)"),
    ({"errors": BitFlip(1e-6, bits=(30,)), "sampling": CriticalBits((29, 30))}, ValueError, "bits"),
    ({"errors": OldSample(0.1)}, TypeError, "OldSample.sample(self, space, seed, before)", "sample(self, space, "),
    ({"mitigations": OldScreen()}, TypeError, "OldScreen.screen(", "screen(self, error_map, space, *, seed)"),
    (lambda _: decades(1e-4, 2e-3), ValueError, "0.002"),
    (lambda _: decades(1e-2, 1e-3), ValueError, "0.01", "0.001"),
    *((lambda _, c=c: BitFlip(1e-6, critical=c), ValueError, "critical") for c in (-1, 1.5, True, "+", "two", "-1+")),
    (
        lambda e: dr.inject(e.model, BitFlip(1e-6, critical=10**7), seed=0).__enter__(),
        ValueError,
        "critical",
        "10000000",
    ),
    (lambda e: dr.inject(e.model, BitFlip(0.0, critical="1+"), seed=0).__enter__(), ValueError, "critical", "'1+'"),
    *(
        (lambda e, shard=shard: dr.Campaign(e, errors=FLIP).run(shard=shard), ValueError, "shard", shown)
        for shard, shown in [((3, 3), "3/3"), ("-1/3", "-1/3"), ((0, 0), "0/0"), ("1", "'1'"), ("1/x", "'1/x'")]
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [(call, error, words) for call, error, *words in CASES])
def test_the_message_names_argument_and_value(call, error, words, evaluator, empty_cache):
    with pytest.raises(error) as refused:
        call(evaluator) if callable(call) else dr.Campaign(evaluator, **{"errors": FLIP} | call)
    assert all(word in str(refused.value) for word in words), refused.value
    assert not list(empty_cache.rglob("*.parquet"))
