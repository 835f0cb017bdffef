"""`inject(mitigation=...)`: what is left is applied, what was drawn is known, both sides are undone."""

import numpy as np
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation import Detection, Mitigation


class SignsProtected(Mitigation):
    name = "signs"

    def settings(self):
        return {}

    def screen(self, error_map, model, *, seed):
        return error_map.restrict(range(31))

    def new_detection(self):
        return Detection(detected=False)

    def register_hooks(self, model, active):
        def hook(module, args, output):
            if not output.isfinite().all():
                active.detection.record(repaired=True)
            return output.nan_to_num(0.0, 0.0, 0.0)

        yield model.register_forward_hook(hook)


def test_both_sides():
    torch.manual_seed(0)
    model, x = nn.Linear(64, 64), torch.randn(10, 64)
    before = [p.detach().clone() for p in model.parameters()]
    mitigation = SignsProtected()
    with torch.no_grad(), dr.inject(model, dr.BitFlip(0.3), seed=1, mitigation=mitigation) as left:
        drawn = dr.BitFlip(0.3).sample(dr.resolve(model), seed=1)
        assert left.bits == drawn.bits - drawn.restrict("sign").bits < drawn.bits
        assert dr.injection.applied_maps(model) == (left,)
        with mitigation.attach(model) as watch:
            assert model(x).isfinite().all()
            assert len(model._forward_hooks) == 1
        assert watch.detected and watch.repaired
    assert not model._forward_hooks
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_words_that_a_code_made_wrong():
    model = nn.Linear(8, 8)
    space = dr.resolve(model)
    drawn = dr.FixedCount(3).sample(space, seed=1)
    names = drawn.targets.index("weight")
    left = drawn.with_words(np.array([names, names]), np.array([9, 4]), np.array([0, 6], np.uint64))
    assert left.frame()[["tensor", "word", "bits"]].values.tolist() == [["weight", 4, 2]]
    assert left.seed == drawn.seed and left.error_model == drawn.error_model and left.bits == 2
    with left.applied(model):
        pass


def test_composed():
    both = SignsProtected() + SignsProtected()
    assert both.name == "signs + signs" and len((both + SignsProtected()).parts) == 3
    assert both.identity() != SignsProtected().identity()
    model = nn.Linear(4, 4)
    with torch.no_grad(), both.attach(model) as watch:
        assert watch.detected is False and watch.repaired is None
        model.weight.fill_(float("nan"))
        model(torch.ones(1, 4))
        assert watch.detected is True and watch.repaired is True
    assert not model._forward_hooks


def test_errors_in_activations_come_before_what_bounds_them():
    """Whichever was put on first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(200, 8)
    clip, errors, layer = dr.ActivationClipping(6), dr.BitFlip(0.01), dr.Activations("0")
    seen = []
    with torch.no_grad():
        model[1].register_forward_pre_hook(lambda module, args: seen.append(float(args[0].nan_to_num().abs().max())))
        with dr.inject(model, errors, target=layer, seed=3):
            model(x)
            with clip.attach(model):
                model(x)
        with clip.attach(model), dr.inject(model, errors, target=layer, seed=3):
            model(x)
    assert seen[0] > 100 and seen[1] <= 6 and seen[2] <= 6
