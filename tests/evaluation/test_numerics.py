"""PyTorch's settings around an evaluation, and contexts that keep casts: the numbers are those of the wrong weights."""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import drsrobust as dr
from drsrobust.injection import resolve
from drsrobust.introspection.numerics import numerics, under_numerics
from drsrobust.models import build_model
from drsrobust.training.fit import fit
from drsrobust_extras.protection.golden_copy import GoldenCopy


class Net(nn.Module):
    """Two layers; the second one twice."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.last(self.again(torch.relu(self.again(torch.relu(self.first(x))))))


class Inner(Net):
    """With an autocast of its own, inside of any other one."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Normed(Net):
    """With a weight that is computed from two others."""

    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.again)
        parametrizations.orthogonal(self.first)


def forward(model, batch):
    return model(batch["x"].to(model.last.weight.dtype))


@pytest.fixture(scope="module")
def rows():
    x = torch.randn(640, 8, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] + x[:, 1] > 0).int()
    return dr.data.from_batches([{"x": x[i : i + 128], "labels": labels[i : i + 128]} for i in range(0, 640, 128)])


def built(kind):
    torch.manual_seed(0)
    return kind()


bfloat16 = {"device_type": "cpu", "dtype": torch.bfloat16}
CONTEXTS = {
    "autocast": (Net, lambda: torch.autocast(**bfloat16)),
    "autocast to float16": (Net, lambda: torch.autocast("cpu", dtype=torch.float16)),
    "autocast in autocast": (Inner, lambda: torch.autocast(**bfloat16)),
    "cached parametrizations": (Normed, parametrize.cached),
}


def true_scores(kind, rows, error, seed):
    """Of a model that gets its wrong weights before any context begins."""
    model, around = built(CONTEXTS[kind][0]), CONTEXTS[kind][1]
    with dr.inject(model, error, seed=seed):
        wrong = copy.deepcopy(model.state_dict())
    fresh = built(CONTEXTS[kind][0])
    fresh.load_state_dict(wrong)
    with around(), torch.no_grad():
        return torch.cat([forward(fresh.eval(), batch).float().reshape(-1) for batch in rows.batches]).numpy()


@pytest.mark.filterwarnings("ignore:.*read by state_dict")
@pytest.mark.parametrize("kind", CONTEXTS)
def test_errors_have_their_effect_inside_of_contexts_that_keep_casts(rows, kind, tmp_path):
    """By rerun, run, a campaign, and forward called by the user; and none is left after undo."""
    make, around = CONTEXTS[kind]
    model, error = built(make), dr.BitFlip(2e-3)
    with around():
        evaluator = dr.Evaluator(model, rows, forward=forward)
        first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for seed in range(4):
            expected = true_scores(kind, rows, error, seed)
            assert not np.array_equal(expected, evaluator.golden.scores)
            with dr.inject(model, error, seed=seed) as error_map:
                for result in (evaluator.run(), evaluator.rerun(error_map)):
                    np.testing.assert_array_equal(result.scores, expected)
                with torch.no_grad():
                    called = torch.cat([forward(model, batch).float().reshape(-1) for batch in rows.batches])
            np.testing.assert_array_equal(called.numpy(), expected)
            np.testing.assert_array_equal(evaluator.run().scores, evaluator.golden.scores)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, first[name])
        table = dr.Campaign(evaluator, errors=[error], trials=4, sampling="plain", store=tmp_path / "s").run(
            progress=False
        )
        for seed, auc in zip(table["seed"], table["auc"], strict=True):
            with dr.inject(model, error, seed=int(seed)):
                assert evaluator.run().auc == auc
    assert (table["auc_drop"].abs() > 1e-4).any()


def test_errors_for_good_and_repairs():
    """What the user's own call gives is what it gives without casts."""
    model, x = built(Net), torch.ones(2, 8)
    copies = GoldenCopy.of(model)

    def shown():
        with torch.no_grad():
            found = model(x)
            torch.clear_autocast_cache()
            assert torch.equal(found.nan_to_num(7.0), model(x).nan_to_num(7.0))
        return found

    with torch.autocast(**bfloat16):
        before = shown()
        dr.FixedCount(99).sample(resolve(model), seed=3).apply(model)
        assert not torch.equal(shown(), before)
        copies.reload(model)
        assert torch.equal(shown(), before)


def test_an_evaluator_is_used_where_it_was_made(rows):
    model = built(Net)
    outside = dr.Evaluator(model, rows, forward=forward)
    with torch.autocast(**bfloat16):
        inside = dr.Evaluator(model, rows, forward=forward)
        with dr.inject(model, dr.FixedCount(1), seed=0) as error_map:
            for use in (outside.run, lambda: outside.rerun(error_map)):
                with pytest.raises(RuntimeError, match="made under PyTorch's defaults, and now there is autocast"):
                    use()
            inside.rerun(error_map)
        with pytest.raises(RuntimeError, match="made under PyTorch's defaults"):
            dr.Campaign(outside, errors=[dr.FixedCount(1)])
    with pytest.raises(
        RuntimeError, match=r"made under autocast \{'cpu': 'bfloat16'\}, and now there is PyTorch's defaults"
    ):
        inside.run()


@contextmanager
def changed(put, value, default):
    put(value)
    try:
        yield
    finally:
        put(default)


def backend_products(precision):
    torch.backends.mkldnn.matmul.fp32_precision = precision


SETTINGS = {
    "autocast": lambda: torch.autocast(**bfloat16),
    "another dtype": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "matrix products": lambda: changed(torch.set_float32_matmul_precision, "medium", "highest"),
    "matrix products of a backend": lambda: changed(backend_products, "bf16", "none"),
    "denormals": lambda: changed(torch.set_flush_denormal, True, False),
}


def campaign(rows, store=None, **options):
    evaluator = dr.Evaluator(built(Net), rows, forward=forward)
    return dr.Campaign(evaluator, errors=[dr.BitFlip(1e-3)], trials=3, store=store, **options)


def test_settings_are_in_the_identity(rows, tmp_path, monkeypatch):
    plain = campaign(rows, tmp_path / "plain").store.identity
    identities = {plain}
    for around in SETTINGS.values():
        with around():
            made = campaign(rows, tmp_path / str(len(identities)))
        identities.add(made.store.identity)
        with pytest.raises((ValueError, RuntimeError), match="numerics changed since this Campaign was made"):
            made.run(progress=False)
    assert len(identities) == len(SETTINGS) + 1 and plain == campaign(rows, tmp_path / "again").store.identity


@pytest.mark.parametrize("setting", SETTINGS)
def test_workers_have_the_settings(rows, tmp_path, setting):
    """Threads have an autocast, and a flag for denormals, of their own."""
    with SETTINGS[setting]():
        here = campaign(rows, tmp_path / "here").run(progress=False)
        with ThreadPoolExecutor(1) as pool:
            there = campaign(rows, tmp_path / "there").run(progress=False, executor=pool)
    pd.testing.assert_frame_equal(there, here)


@pytest.mark.long
def test_processes_have_the_settings(rows, tmp_path):
    for setting in ("autocast", "default dtype"):
        with SETTINGS[setting]():
            here = campaign(rows, tmp_path / f"here {setting}").run(progress=False)
            there = campaign(rows, tmp_path / f"there {setting}").run(progress=False, workers=2)
        pd.testing.assert_frame_equal(there, here)


def test_settings_are_set_and_put_back():
    for around in SETTINGS.values():
        with around():
            inside = numerics()
            with under_numerics({}):
                assert numerics() == {}
            assert numerics() == inside != {}
        assert numerics() == {}
        with under_numerics(inside):
            assert numerics() == inside
        assert numerics() == {}


@pytest.mark.filterwarnings("ignore:.*hardly learned")
def test_training_does_not_depend_on_an_autocast_around_it():
    data = dr.load_dataset("synthetic-movielens", rows=2_000)

    def trained(precision):
        torch.manual_seed(0)
        model = build_model("wide_deep", data.schema)
        fit(model, data, dr.training.Settings(epochs=1, batch_size=256, precision=precision), progress=False)
        return model.state_dict()

    for precision in ("float32", "bfloat16"):
        plain = trained(precision)
        with torch.autocast(**bfloat16):
            inside = trained(precision)
        assert all(torch.equal(plain[name], inside[name]) for name in plain)
