"""Detectors: each against values whose answer is known, NaN included; no false alarm of those whose bounds are proved."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust_extras.experiments.training_errors.continuation import alone
from drsrobust_extras.experiments.training_errors.detectors import (
    ABFTStep,
    AdagradState,
    AdamState,
    GradientNorm,
    LossSpike,
    NonFinite,
    Replay,
    WeightSize,
    adam_bound,
)
from drsrobust_extras.experiments.training_errors.steps import Run, StepBatches

SETTINGS = dr.training.Settings(batch_size=64, weight_decay=1e-3)


def run_of(data, detectors, steps=40, settings=SETTINGS, name="dlrm"):
    model = dr.models.build_model(name, data.schema)
    return Run(model, settings, StepBatches(data.train, settings, 0, steps), detectors)


def alarms(run, detector, steps):
    """Steps of a run without errors in which a detector alarms."""
    found = []
    with alone():
        for number in range(steps):
            step = run.compute([detector])
            readings = run.read(step, [detector])
            found += [number] if detector.alarm(readings[detector.name], run.past[detector.name]) else []
            run.update(readings)
    return found


def test_limits_are_of_the_last_steps():
    past = [1.0] * 60 + [2.0] * 39
    assert [GradientNorm().alarm(x, past) for x in (9.9, 10.1, math.inf, math.nan)] == [False, True, True, True]
    assert [GradientNorm(factor=2.0).alarm(x, past) for x in (3.9, 4.1)] == [False, True]
    losses = list(np.random.default_rng(0).normal(0.5, 0.01, 50))
    limit = np.mean(losses) + 8 * np.std(losses)
    assert [LossSpike().alarm(x, losses) for x in (limit - 1e-6, limit + 1e-6, math.nan)] == [False, True, True]
    assert not GradientNorm().alarm(9.0, []) and not LossSpike().alarm(9.0, [1.0])
    assert [NonFinite().alarm(x, []) for x in (1.0, math.inf, math.nan)] == [False, True, True]
    assert [WeightSize().alarm([1.0, x], [[1.0, 0.3]]) for x in (0.6, 0.62, math.nan)] == [False, True, True]
    assert not WeightSize().alarm([9.0], [])


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.5, 0.9)])
def test_the_bound_of_adam_is_attained_and_never_passed(betas):
    b1, b2 = betas
    random = np.random.default_rng(0)
    for steps in (1, 2, 5, 12, 100):
        worst = (b1 / b2) ** np.arange(steps)[::-1]  # i updates back
        draws = [worst, np.ones(steps), random.normal(size=steps), random.standard_cauchy(steps)]
        ratios = []
        for gradients in draws:
            m = v = 0.0
            for g in gradients:
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            ratios.append(abs(m) / math.sqrt(v))
        assert ratios[0] == pytest.approx(adam_bound(steps, b1, b2), rel=1e-9)
        assert max(ratios[1:]) <= adam_bound(steps, b1, b2) * (1 + 1e-12)


def test_the_known_values_of_the_bound():
    assert [round(adam_bound(t), 2) for t in (1, 5, 10**6)] == [3.16, 5.86, 7.27]
    assert round(adam_bound(10**6, 0.9, 0.95), 3) == 1.165


@pytest.mark.parametrize("detector", [AdamState(), AdagradState(), ABFTStep(), Replay(), NonFinite(), WeightSize()])
@pytest.mark.parametrize("name", ["dlrm", "deepfm"])
def test_no_false_alarm(data, detector, name):
    settings = dr.training.Settings(batch_size=64, weight_decay=1e-3, learning_rate=1e-2, table_optimizer="adam")
    if isinstance(detector, AdagradState):
        settings = dr.training.Settings(batch_size=64, table_optimizer="rowwise_adagrad")
    assert alarms(run_of(data, [detector], 40, settings, name), detector, 40) == []


STATES = {
    "nan": ("exp_avg", lambda t: t.view(-1)[0].fill_(math.nan)),
    "infinite": ("exp_avg_sq", lambda t: t.view(-1)[0].fill_(math.inf)),
    "negative": ("exp_avg_sq", lambda t: t.view(-1)[0].fill_(-1e-20)),
    "m too large": ("exp_avg", lambda t: t.view(-1)[0].fill_(100.0)),
    "m over its v": ("exp_avg_sq", lambda t: t.view(-1).mul_(1e-6)),
    "v over all gradients": ("exp_avg_sq", lambda t: t.view(-1)[0].fill_(1e3)),
}


@pytest.mark.parametrize("wrong", STATES)
def test_impossible_states_of_adam(data, wrong):
    detector, (state, change) = AdamState(), STATES[wrong]
    run = run_of(data, [detector])
    assert alarms(run, detector, 20) == []
    optimizer = run.optimizers[0]
    change(optimizer.state[optimizer.param_groups[1]["params"][0]][state])
    assert alarms(run, detector, 1) == [0]


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 0.0])
def test_impossible_sums_of_adagrad(data, value):
    detector, settings = AdagradState(), dr.training.Settings(batch_size=64, table_optimizer="rowwise_adagrad")
    run = run_of(data, [detector], settings=settings)
    assert alarms(run, detector, 10) == []
    sums = next(iter(run.optimizers[1].state.values()))["sum"]
    sums.view(-1)[sums.view(-1).argmax()] = value
    assert alarms(run, detector, 1) == [0]


def test_rowwise_adagrad_is_that_of_fbgemm(data):
    """After the same steps from the same weights, the tables agree with FBGEMM's fused update within rounding."""
    settings = dr.training.Settings(batch_size=64, table_optimizer="rowwise_adagrad", epochs=1, seed=3)
    plain, fused = (dr.models.build_model("dlrm", data.schema) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    steps = math.ceil(len(data.train) / 64)
    with alone(3):
        Run(plain, settings, StepBatches(data.train, settings, 0, steps)).advance(steps)
    dr.training.fit(fused, data, settings, progress=False)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, fused.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("place", [dr.Gradients, dr.Activations])
def test_checksums_find_errors_of_products(data, place):
    run = run_of(data, [])
    last = [name for name, module in run.model.named_modules() if isinstance(module, nn.Linear)][-1]
    of_product, of_table = place(f"{last}.weight" if place is dr.Gradients else last), dr.Gradients("*embedding*")
    with alone():
        run.advance(3)
        for bit, target in ((29, of_product), (30, of_table)):  # tables have no product
            with dr.inject(run.model, dr.SingleBit(bit), target=target, seed=0):
                with ABFTStep().attach(run.model) as products:
                    run._trainer.backward(run.batches.of_step(3))
                assert bool(products.wrong()) == (target is of_product)


def test_a_replay_sees_what_strikes_once(data):
    run, detector = run_of(data, []), Replay()
    with alone():
        run.advance(3)
        with dr.inject(run.model, dr.SingleBit(0), target=dr.Gradients("*_arch*"), seed=0):
            step = run.compute()
        gradients = [gradient.clone() for _, gradient in step.gradients]
        assert detector.alarm(detector.read(step, []), [])
        assert all(torch.equal(p.grad, g) for (p, _), g in zip(step.gradients, gradients, strict=True))
        assert not detector.alarm(detector.read(run.compute(), []), [])
