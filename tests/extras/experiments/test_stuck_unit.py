"""A defective lane against loops over rows, columns and products; its batches; campaigns, protections and training under it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import drsrobust as dr
from drsrobust.injection import restore
from drsrobust_extras.experiments.stuck_unit import PARTS
from drsrobust_extras.experiments.training_errors import ABFTStep, GradientNorm, Recompute, Replay, Skip
from tests.refusals import refuses

FLIP, HIGH, LOW = "inverted", "stuck at 1", "stuck at 0"


def error_of(kind, bit):
    return dr.BitFlip(1.0, bits=[bit]) if kind == FLIP else dr.StuckAt(int(kind == HIGH), 1.0, bits=[bit])


def changed(number, kind, bit):
    word, mask = np.float32(number).view(np.uint32), np.uint32(1 << bit)
    return {FLIP: word ^ mask, HIGH: word | mask, LOW: word & ~mask}[kind].view(np.float32)


def by_loops(left, right, part, lane, period, kind, bit):
    """The product of two matrices, word by word; numbers whose sums are exact in any order."""
    product = np.zeros((len(left), right.shape[1]), np.float32)
    for i, j in np.ndindex(*product.shape):
        terms = [np.float32(left[i, k] * right[k, j]) for k in range(len(right))]
        if j % period == lane and part == "multiplier":
            terms = [changed(term, kind, bit) for term in terms]
        total = np.float32(0)
        for term in terms:
            total = np.float32(total + term)
        product[i, j] = changed(total, kind, bit) if j % period == lane and part == "accumulator" else total
    return product


class Products(nn.Module):
    """A linear layer, one without bias, and products that no layer computes."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 7), nn.Linear(7, 1, bias=False)
        draw = torch.Generator().manual_seed(3)
        for weight in self.parameters():
            weight.data = torch.randint(-3, 4, weight.shape, generator=draw).float()

    def forward(self, x):
        y = self.one(x)
        return y, self.two(y), x @ x.T, x[:, :, None] @ x[:, None]


X = torch.randint(-3, 4, (5, 4), generator=torch.Generator().manual_seed(4)).float()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", [FLIP, HIGH, LOW])
@pytest.mark.parametrize(("bit", "lane", "period"), [(31, 0, 3), (30, 1, 3), (22, 2, 16)])
def test_products_are_those_of_loops(mode, part, kind, bit, lane, period):
    model, x = Products(), X.numpy()
    defect = part, lane, period, kind, bit
    with mode():
        golden = [output.detach() for output in model(X)]
        with dr.inject(model, error_of(kind, bit), dr.StuckUnit(*defect[:3]), seed=1) as error_map:
            found = [output.detach().numpy() for output in model(X)]
        assert all(torch.equal(a, b) for a, b in zip(golden, model(X), strict=True))
    with np.errstate(all="ignore"):
        one = by_loops(x, model.one.weight.detach().numpy().T, *defect) + model.one.bias.detach().numpy()
        two = by_loops(one, model.two.weight.detach().numpy().T, *defect)
        three = by_loops(x, x.T, *defect)
        four = np.stack([by_loops(row[:, None], row[None], *defect) for row in x])
    for output, expected in zip(found, (one, two, three, four), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-6)  # of infinite and NaN words: the same ones
    first = torch.from_numpy(found[0]) != golden[0]
    assert set((first.any(0).nonzero() % period).flatten().tolist()) <= {lane}  # periodic addresses
    assert set(error_map.log.calls) >= {"product[0]"} and (error_map.log.bits > 0) == any(
        not np.array_equal(a, b.numpy(), equal_nan=True) for a, b in zip(found, golden, strict=True)
    )


class Of(nn.Module):
    """What a function makes of an input and a weight."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(Products().one.weight.data.T.clone())

    def forward(self, x):
        return self.function(x, self.weight)


NAN = torch.full((5, 7), torch.nan)
FORMS = [
    lambda x, w: torch.addmm(NAN, x, w, beta=0),
    lambda x, w: torch.baddbmm(NAN[None], x[None], w[None], beta=0)[0],
    lambda x, w: torch.zeros(5, 7).addmm_(x, w),
    lambda x, w: torch.matmul(x, w.detach(), out=torch.empty(0)),
    lambda x, w: torch.mm(x.to_sparse(), w),
    lambda x, w: checkpoint(torch.mm, x, w, use_reentrant=False),
    nn.functional.linear,
]


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_product(form):
    with torch.inference_mode():
        model, x = Of(form), X.clone()
        model.weight.data = model.weight.data.T.clone() if form is nn.functional.linear else model.weight.data
    with torch.no_grad():  # of inference tensors, which keep `linear` as a whole
        expected = model(x)
        expected[:, 1::3] *= -1
        with dr.inject(model, error_of(FLIP, 31), dr.StuckUnit("accumulator", 1, 3), seed=1):
            assert torch.equal(model(x), expected)


def test_passes_within_a_batch():
    """A model that calls itself, and one that is computed again in the backward pass, are of one batch."""
    model, unit = nn.Linear(4, 4), dr.StuckUnit("accumulator", 1, 3, batches=0.5)
    x = X.clone().requires_grad_()

    def gradients(call):
        with dr.inject(model, error_of(FLIP, 31), unit, seed=3):
            return [torch.autograd.grad(call(model, x).square().sum(), model.weight)[0] for _ in range(8)]

    plain, again = gradients(nn.Module.__call__), gradients(lambda *args: checkpoint(*args, use_reentrant=False))
    assert all(map(torch.equal, plain, again)) and any(not torch.equal(plain[0], other) for other in plain)
    outer = Of(lambda x, w: outer(x @ w)[:, :4] @ w if x.shape[1] == 4 else x)
    with torch.no_grad(), dr.inject(outer, error_of(FLIP, 31), dr.StuckUnit("accumulator", 1, 3), seed=1) as error_map:
        outer(X)
    assert error_map.log.calls == {"product[0]": 1, "product[1]": 1}

    def shown(*interrupted):
        """In which of eight batches the defect shows, where some end by an interrupt."""
        stop = Of(lambda x, w: sys.exit() if len(shows) in interrupted else x @ w)
        with torch.no_grad(), dr.inject(stop, error_of(FLIP, 31), unit, seed=3):
            shows = []
            for _ in range(8):
                try:
                    shows.append((stop(X) @ torch.ones(7)).tolist())
                except SystemExit:
                    shows.append(None)
        return shows

    assert [*shown(2)[:2], *shown(2)[3:]] == [*shown()[:2], *shown()[3:]] and len({*map(str, shown())}) == 2


@pytest.mark.parametrize("part", PARTS)
def test_backward_products_are_those_of_loops(part):
    layer, defect = nn.Linear(4, 7), (part, 1, 3, FLIP, 31)
    layer.weight.data, layer.bias.data = torch.arange(28.0).reshape(7, 4) - 9, torch.ones(7)
    x, above = X.clone().requires_grad_(), torch.arange(35.0).reshape(5, 7) - 8
    with dr.inject(layer, error_of(FLIP, 31), dr.StuckUnit(*defect[:3]), seed=1) as error_map:
        layer(x).backward(above)
    of_input = by_loops(above.numpy(), layer.weight.detach().numpy(), *defect)
    of_weight = by_loops(above.numpy().T, x.detach().numpy(), *defect)
    assert np.array_equal(x.grad.numpy(), of_input) and np.array_equal(layer.weight.grad.numpy(), of_weight)
    assert torch.equal(layer.bias.grad, above.sum(0))  # no product
    assert {name for name in error_map.log.calls if "backward" in name} == {f"backward product[{n}]" for n in (0, 1)}


def test_a_share_of_batches_is_drawn_by_the_seed():
    model, flip = Products(), error_of(FLIP, 31)

    def hit(share, seed):
        wrong = []
        unit = dr.StuckUnit("accumulator", 0, 4, batches=share)
        with torch.no_grad(), dr.inject(model, flip, unit, seed=seed):
            for _ in range(200):
                wrong.append(not torch.equal(model(X)[0], golden))
        return np.array(wrong)

    with torch.no_grad():
        golden = model(X)[0]
    tenth = hit(0.1, 5)
    assert 5 < tenth.sum() < 40 and (hit(0.1, 5) == tenth).all() and (hit(0.1, 6) != tenth).any() and hit(1.0, 5).all()
    with torch.no_grad(), dr.inject(model, flip, dr.StuckUnit("accumulator", 0, 4, batches=1e-12), seed=1) as error_map:
        model(X)  # the lane was there, and did not show: no warning
    assert error_map.log.bits == 0 and error_map.log.calls == {"product": 1}


def test_two_lanes():
    """Each as if it were alone, in the first layer."""
    model, error = Products(), error_of(FLIP, 31)
    one, two = dr.StuckUnit("accumulator", 0, 3), dr.StuckUnit("multiplier", 1, 3)

    def run(*units):
        with torch.no_grad(), dr.inject(model, [(error, unit) for unit in units], seed=1):
            return model(X)[0]

    both, first, second, neither = run(one, two), run(one), run(two), run(dr.StuckUnit("accumulator", 0, 3, 1e-12))
    for lane, expected in enumerate((first, second, neither)):
        assert torch.equal(both[:, lane::3], expected[:, lane::3])
    refuses(lambda: run(one, dr.StuckUnit("multiplier", 3, 6)), ValueError, "lane 3 of 6", "lane 0 of 3")


def test_nothing_stays():
    model, unit = Products(), dr.StuckUnit("accumulator", 0, 2)
    golden = model(X)[0]
    with pytest.raises(RuntimeError), dr.inject(model, error_of(FLIP, 31), unit, seed=1):
        model(torch.ones(2, 3))
    left = dr.inject(model, error_of(FLIP, 31), unit, seed=1)
    left.__enter__()
    assert not torch.equal(model(X)[0], golden) and torch.equal(X @ X.T, Products()(X)[2])  # of this model alone
    assert restore(model) == 1 and torch.equal(model(X)[0], golden)
    other, left = Products(), dr.inject(model, error_of(FLIP, 31), unit, seed=1)
    with left, dr.inject(other, error_of(FLIP, 31), dr.StuckUnit("accumulator", 1, 2), seed=1):
        model(X)
        restore(model)  # which is not the block that began last
        assert not torch.equal(other(X)[0], golden) and torch.equal(model(X)[0], golden)
    left = dr.inject(model, error_of(FLIP, 31), unit, seed=1)
    left.__enter__()
    model(X)
    with ThreadPoolExecutor(1) as pool:  # the end of a block in another thread
        pool.submit(left.__exit__, None, None, None).result()
    with dr.inject(model, error_of(FLIP, 31), unit, seed=1):
        assert not torch.equal(model(X)[0], golden)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


UNIT = {"part": "accumulator", "lane": 3, "period": 16}
REFUSED = [
    ({"part": "adder"}, "part", "'adder'"),
    ({"period": 0}, "period", "0"),
    ({"lane": 16}, "lane", "16"),
    ({"lane": None}, "lane", "None"),
    ({"batches": 0}, "batches", "0"),
    ({"batches": 1.5}, "batches", "1.5"),
]


@pytest.mark.parametrize(("options", "name", "value"), REFUSED)
def test_units_that_there_are_not(options, name, value):
    refuses(lambda: dr.StuckUnit(**UNIT | options), ValueError, name, value)


def test_models_that_it_cannot_hit():
    for name in ("lane", "period"):  # assumptions: no default
        refuses(lambda name=name: dr.StuckUnit(**{k: v for k, v in UNIT.items() if k != name}), TypeError, f"'{name}'")

    def run(model, x, lane=0):
        unit = dr.StuckUnit("accumulator", lane, 16)
        with dr.inject(model, error_of(FLIP, 14), unit, seed=1):
            model(x)

    refuses(lambda: run(nn.Linear(4, 4).bfloat16(), X.bfloat16()), dr.injection.InjectionError, "bfloat16", "lane 0")
    refuses(lambda: run(Of(lambda x, w: x @ w.to_sparse()), X), dr.injection.InjectionError, "lane 0", "sparse_coo")
    compiled = nn.Sequential(nn.Linear(4, 4))
    compiled[0].compile(backend="eager")
    refuses(lambda: run(compiled, X), ValueError, "0 is compiled")
    with pytest.warns(UserWarning, match="product"):
        run(nn.Linear(4, 4), X, lane=4)  # no product has such a column


def test_a_campaign_and_what_protections_see(evaluator, data, tmp_path):
    """Detection in computation only; neither running again nor reloading repairs a unit that stays broken."""
    model, split = evaluator.model, data.train.head(500)
    checks = [dr.ABFTLinear.fit(model, action=action) for action in ("report", "recompute", "restore")]
    stored = [dr.ECC(), dr.WeightRange.fit(model), dr.Scrubbing(period=0.1, window=1.0)]
    probes = dr.ProbeRows.fit(evaluator, split, n=4)
    unit = dr.StuckUnit("multiplier", lane=3, period=16)
    grid = {"errors": error_of(HIGH, 30), "targets": [unit], "trials": 2, "store": tmp_path / "a"}
    campaign = dr.Campaign(evaluator, mitigations=[None, *checks, *stored, probes], **grid)
    table = campaign.run(workers=1, progress=False).set_index(["mitigation", "trial"])
    plain = table.loc["none"]
    assert (plain["auc_drop"] > 0.01).all() and plain["auc_drop"].nunique() == 1  # a permanent defect: no chance
    for check in checks:
        found = table.loc[check.name]
        assert found["detected"].tolist() == [True] * 2 and (found["auc_drop"] == plain["auc_drop"]).all()
        assert check.reports_only or found["repaired"].tolist() == [False] * 2
    for check in (*stored, probes):
        found = table.loc[check.name]
        assert not found["detected"].fillna(False).any() and (found["auc_drop"] == plain["auc_drop"]).all()
    with dr.inject(model, grid["errors"], unit, seed=0) as error_map:
        assert probes.detects(error_map)
    gone = dr.Campaign(evaluator, **grid | {"targets": [dr.StuckUnit("multiplier", 90, 99)], "store": tmp_path / "b"})
    refuses(lambda: gone.run(workers=1, progress=False), ValueError, "lane 90 of 99", "product")


@pytest.mark.long
def test_processes_draw_the_same_batches(evaluator, data, tmp_path):
    grid = {"errors": error_of(HIGH, 29), "targets": [dr.StuckUnit("accumulator", 3, 16, batches=0.5)], "trials": 6}
    campaigns = {n: dr.Campaign(evaluator, store=tmp_path / str(n), **grid) for n in (1, 2)}
    here, there = (one.run(workers=n, progress=False)["auc_drop"].tolist() for n, one in campaigns.items())
    assert here == there and len(set(here)) > 1


def trained_on(units, data, folder, **options):
    options |= {"errors": error_of(FLIP, 29), "trials": 1, "settings": dr.training.Settings(batch_size=64)}
    return dr.TrainingCampaign("dlrm", data, targets=units, store=folder, **options).run(workers=1, progress=False)


def test_training_on_a_unit_that_stays_broken(data, tmp_path):
    units = [dr.StuckUnit("accumulator", 3, 16), dr.StuckUnit("accumulator", 3, 16, batches=0.5)]
    watch = {"detectors": [GradientNorm(), ABFTStep(), Replay()], "actions": [Skip(on="abft"), Recompute(on="abft")]}
    table = trained_on(units, data, tmp_path / "s", warm_up=20, evaluate_at=(4, 10), when=range(3), **watch)
    always, some = (table[table["target"] == str(unit)] for unit in units)
    assert always["alarm_abft"].tolist() == [1]
    assert always["alarm_replay"].isna().all()  # a replay gives the same wrong bits
    assert (always["auc_recompute_on_abft"] == always["auc"]).all()
    skipped = always["auc_skip_on_abft"]  # no step from the defect on counts
    assert (abs(skipped - always["auc"]) > 0).all() and (abs(always["auc_drop"]) > 0).all()
    recomputed = some["auc_recompute_on_abft"]  # a right step is not the end of the defect
    assert some["alarm_replay"].notna().all() and (recomputed != some["auc"]).any()
    assert (abs(recomputed - some["auc_golden"]) > 0).all()


def test_the_watch_of_an_error_that_lasts_begins_with_it(data, tmp_path):
    short = {"warm_up": 2, "evaluate_at": (4,), "when": [2], "watch": 1, "detectors": [ABFTStep()]}
    table = trained_on([dr.StuckUnit("accumulator", 3, 16)], data, tmp_path / "s", **short)
    assert table["alarm_abft"].tolist() == [1]
