import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import log_loss as sklearn_log_loss

from drsrobust.metrics import P_MIN, calibration, log_loss, normalised_entropy, probabilities, served
from drsrobust.metrics.log_loss import factors


def test_log_loss_and_entropy():
    rng = np.random.default_rng(1)
    labels, logits = rng.integers(0, 2, 1000), rng.normal(size=1000) * 3
    p = 1 / (1 + np.exp(-logits))
    assert log_loss(labels, logits, prior=0.3) == pytest.approx(sklearn_log_loss(labels, p))
    rate = labels.mean()
    base = sklearn_log_loss(labels, np.full(1000, rate))
    assert normalised_entropy(labels, logits, 0.3) == pytest.approx(sklearn_log_loss(labels, p) / base)
    assert math.isnan(normalised_entropy(np.ones(3), np.zeros(3), 0.3))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(width=32)), min_size=1, max_size=60), st.floats(0, 1))
def test_log_loss_is_the_definition(rows, prior):
    labels, scores = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    p = np.clip(np.where(np.isnan(scores), prior, expit(scores)), P_MIN, 1 - P_MIN)
    expected = math.fsum(-math.log(q if label else 1 - q) for q, label in zip(p, labels, strict=True)) / len(rows)
    assert log_loss(labels, scores, prior) == pytest.approx(expected, rel=1e-4 if (abs(scores) > 15).any() else 1e-9)
    assert probabilities(scores, prior) == pytest.approx(p, rel=1e-14)


def test_log_loss_to_the_last_digits():
    """Against extended precision, on logits of a trained model."""
    rng = np.random.default_rng(2)
    labels, logits = rng.integers(0, 2, 100_003), rng.normal(-1, 2, 100_003).astype(np.float32)
    z = np.where(labels == 1, -logits, logits).astype(np.longdouble)
    assert log_loss(labels, logits, 0.5) == pytest.approx(float(np.log1p(np.exp(z)).mean()), rel=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_is_worth_the_same_wherever_it_lies(dtype):
    """Vectorised exponentials treat the ends of an array apart; every row must come out the same, bit for bit."""
    rng = np.random.default_rng(3)
    scores = np.concatenate([rng.normal(0, scale, 400) for scale in (0.1, 1, 5, 30, 1e5)]).astype(dtype)
    rng.shuffle(scores)
    scores[:9] = [0, -0.0, np.inf, -np.inf, np.nan, 40, -40, 27.6, -27.6]
    rng.shuffle(scores)
    clicked = rng.random(2000) < 0.5
    for whole, alone in (
        (factors(clicked, scores, 0.3), lambda rows: factors(clicked[rows], scores[rows], 0.3)),
        (probabilities(scores, 0.3), lambda rows: probabilities(scores[rows], 0.3)),
    ):
        for length in [*range(1, 70), 127, 128, 129, 1000]:
            for offset in (*range(18), 331, 997):
                rows = slice(offset, offset + length)
                assert alone(rows).tobytes() == whole[rows].tobytes()
        for size in (1, 2, 7, 64, 333):
            rows = rng.choice(2000, size, replace=False)
            assert alone(rows).tobytes() == whole[rows].tobytes()
        assert alone(slice(None, None, -3)).tobytes() == whole[::-3].tobytes()


def test_calibration():
    labels = np.array([1, 0, 0, 1])
    assert calibration(labels, np.zeros(4), 0.3) == 1.0
    assert calibration(labels, np.array([np.nan, np.nan, np.inf, -np.inf]), 0.3) == pytest.approx(0.8)
    assert math.isnan(calibration(np.zeros(4), np.zeros(4), 0.3))


def test_nothing_to_judge():
    nothing = np.array([])
    assert all(math.isnan(metric(nothing, nothing, 0.5)) for metric in (log_loss, normalised_entropy, calibration))


def test_what_a_server_returns():
    """float32's sigmoid: PyTorch's within five roundings, the same bits alone as among others, ties where it saturates."""
    rng = np.random.default_rng(3)
    logits = np.concatenate([rng.normal(size=5001) * 10, [17.5, 1e30, np.inf, -89, -1e30, -np.inf, np.nan, 0.0]])
    logits = logits.astype(np.float32)
    p = served(logits)
    assert p.dtype == np.float32
    np.testing.assert_array_max_ulp(p, torch.sigmoid(torch.from_numpy(logits)).numpy(), maxulp=5)
    assert p[-8:-1].tolist()[:6] == [1, 1, 1, 0, 0, 0] and np.isnan(p[-2]) and p[-1] == 0.5
    for start in range(0, 64):
        assert np.array_equal(served(logits[start : start + 7]), p[start : start + 7])
    assert np.array_equal(served(logits[:100].astype(np.float64)), p[:100])
    order = np.argsort(logits[:5001])
    assert (np.diff(p[:5001][order]) >= 0).all()  # no order is turned round
