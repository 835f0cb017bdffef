"""The continuation: clean steps are those of `fit`; actions leave the bits that they should."""

import copy
import math
from itertools import product

import pytest
import torch

import drsrobust as dr
from drsrobust_extras.experiments.training_errors import Action, GradientNorm, NonFinite, Recompute, RollBack, Skip
from drsrobust_extras.experiments.training_errors.continuation import Continuation, TrainingError, alone, condition_of
from drsrobust_extras.experiments.training_errors.steps import Run, StepBatches

SETTINGS = dr.training.Settings(batch_size=64)
STORED, COMPUTED = "over_mlp", dr.Gradients("over_arch*")


@pytest.fixture(scope="module")
def continuation(data):
    model = dr.models.build_model("dlrm", data.schema)
    before = copy.deepcopy(model.state_dict())
    made = Continuation(model, data.train, data.test, SETTINGS, 20, (6, 15), [GradientNorm(), NonFinite()], 10)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return made


@pytest.fixture(scope="module")
def clean(continuation):
    with alone():
        return continuation.clean(continuation.run())


def outcome(continuation, clean, error_model, target, action=None, at=3, shortcut=True):
    """A continuation with an error and the digest at its end; without the shortcut every step is computed."""
    if not shortcut:
        clean = copy.deepcopy(clean)
        clean.digests = dict.fromkeys(clean.digests, "")
    with alone():
        run = continuation.run()
        error = TrainingError(run, condition_of(run, error_model, target), seed=4)
        found = continuation.faulty(run, error, at, clean, action, triggers=["gradient_norm"])
        return found, run.digest()


def test_random_numbers_of_its_own():
    before = torch.get_rng_state()
    with alone():
        drawn = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", ["dlrm", "deepfm"])  # deepfm has dropout
def test_steps_are_those_of_fit(data, name):
    settings = dr.training.Settings(batch_size=100, epochs=1, seed=5)
    model = dr.models.build_model(name, data.schema)
    other = copy.deepcopy(model)
    steps = math.ceil(len(data.train) / 100)
    with alone(settings.seed):
        Run(model, settings, StepBatches(data.train, settings, 0, steps)).advance(steps)
    dr.training.fit(other, data, settings, progress=False)
    assert all(torch.equal(tensor, other.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_batches_go_on_in_the_next_epoch(data):
    few = data.train.head(150)
    whole = StepBatches(few, SETTINGS, 0, 9)
    part = StepBatches(few, SETTINGS, 4, 5)
    assert [len(whole.of_step(n).labels) for n in range(9)] == [64, 64, 22] * 3
    assert all(torch.equal(whole.of_step(n).dense_features, part.of_step(n).dense_features) for n in range(4, 9))


def test_a_restored_run_goes_on_with_the_same_bits(continuation, clean):
    with alone():
        run = continuation.run()
        run.advance(7)
        state, digest = run.state(), run.digest()
        run.advance(8)
        assert run.digest() == clean.digests[15]
        run.load(state)
        assert run.digest() == digest == clean.digests[7] and list(clean.digests) == list(range(16))
        run.advance(8)
        assert run.digest() == clean.digests[15]


@pytest.mark.parametrize("target", [STORED, COMPUTED, dr.OptimizerState(glob="*.exp_avg"), dr.Inputs("dense")])
@pytest.mark.parametrize("action", [None, Skip(), Recompute(), RollBack()])
def test_no_error_gives_equal_bits(continuation, clean, target, action):
    found, digest = outcome(continuation, clean, dr.BitFlip(0.0), target, action)
    assert (found.auc, digest, found.first_alarm, found.error) == (clean.auc, clean.digests[15], {}, None)


@pytest.mark.parametrize("target", [STORED, COMPUTED])
def test_an_error_changes_what_follows_unless_an_action_repairs_it(continuation, clean, target):
    """Recomputing repairs what is computed and not what is stored, rolling back both, to the bits of the clean run."""
    broken, wrong = outcome(continuation, clean, dr.SingleBit(30), target)
    assert wrong != clean.digests[15] and broken.first_alarm["gradient_norm"] == 1
    assert broken.auc[15] != clean.auc[15] or target is COMPUTED
    for action, shortcut in product((Recompute(), RollBack(every=2)), (True, False)):
        found, digest = outcome(continuation, clean, dr.SingleBit(30), target, action, shortcut=shortcut)
        if target is STORED and isinstance(action, Recompute):
            assert (found.auc, digest) == (broken.auc, wrong)
        else:
            assert found.auc == clean.auc and (shortcut or digest == clean.digests[15])


def test_rolling_back_beyond_a_corrupted_state(continuation, clean):
    """A state that was kept after the error is tried first, then the one before it."""
    follow, found = copy.copy(continuation), {}
    follow.detectors = (Late(),)
    for keep in (1, 2):
        action = RollBack(on="late", every=4, keep=keep)
        found[keep] = outcome(follow, clean, dr.SingleBit(30), STORED, action)[0].auc[15]
    assert found[2] == clean.auc[15] != found[1]


class Late(GradientNorm):
    """Sees an error two steps late."""

    name = "late"

    def alarm(self, reading, past):
        return len(past) > 1 and not (past[-2] <= 5 * max(past[:-2], default=math.inf))


def test_skipping_leaves_a_step_out(continuation, clean):
    found, digest = outcome(continuation, clean, dr.SingleBit(30), COMPUTED, Skip(), shortcut=False)
    with alone():
        run = continuation.run()
        run.advance(3)
        run.compute()  # its batch is not used, its random numbers are
        run.number += 1
        run.advance(11)
        assert run.digest() == digest
        assert found.auc[15] == run.evaluate(continuation.rows)


def test_a_step_that_raises(continuation, clean):
    target = dr.Inputs("ids")  # refuses ids that their table does not have
    broken, _ = outcome(continuation, clean, dr.SingleBit(30), target)
    assert "IndexError" in broken.error and 15 not in broken.auc
    for action in (Recompute(), RollBack()):
        found, _ = outcome(continuation, clean, dr.SingleBit(30), target, action)
        assert found.error is None and found.auc == clean.auc


def test_an_action_has_its_detectors_in_its_name():
    assert Skip().name == "skip" and Action().name == "none"
    assert RollBack(on=["loss_spike", "non_finite"]).name == "roll_back_on_loss_spike_or_non_finite"


class Always(NonFinite):
    name = "always"

    def alarm(self, reading, past):
        return True


def test_nobody_watches_before_the_error(continuation, clean):
    follow = copy.copy(continuation)
    follow.detectors = (Always(),)
    assert outcome(follow, clean, dr.BitFlip(0.0), STORED)[0].first_alarm == {"always": 1}


@pytest.mark.parametrize(
    ("since", "action", "triggers", "watching"),
    [
        (-1, None, ["gradient_norm"], []),
        (-1, Skip(), [], []),
        (0, None, [], ["gradient_norm", "non_finite"]),
        (9, None, ["non_finite"], ["gradient_norm", "non_finite"]),
        (10, None, ["non_finite"], ["non_finite"]),
        (10, None, [], []),
        (0, Skip(), ["non_finite"], ["gradient_norm"]),
        (40, RollBack(on="non_finite"), [], ["non_finite"]),
    ],
)
def test_who_watches_how_long(continuation, since, action, triggers, watching):
    """All detectors for ten steps, those of an action or of triggers to the end."""
    assert [one.name for one in continuation._watching(since, action, triggers)] == watching
