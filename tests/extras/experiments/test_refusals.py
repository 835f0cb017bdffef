"""What experiments refuse: the message names what is wrong and shows its value."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.injection import applied_maps
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_extras.experiments.training_errors import GradientNorm, LossSpike, Skip, adam_bound
from tests.refusals import refuses

FLIP = dr.BitFlip(1e-3)


def enter(model, *arguments, seed=1):
    dr.inject(model, *arguments, seed=seed).__enter__()


# The call, the exception, what the message names, and the value as it shows it.
TRANSIENT = [
    (lambda m: enter(m, []), ValueError, "pair", ""),
    (lambda m: enter(m, [FLIP]), TypeError, "list of", "target"),
    (lambda m: enter(m, [(0.1, "all")]), TypeError, "error_model", "0.1"),
    (lambda m: enter(m, [(FLIP, 3)]), ValueError, "target", "3"),
    (lambda m: enter(m, [(FLIP, "all")], "2"), ValueError, "target=", ""),
    (lambda m: enter(m, FLIP, dr.Activations("x*")), ValueError, "module", "'x*'"),
    (lambda m: enter(nn.ModuleDict({"l": nn.ModuleList([m])}), FLIP, dr.Activations("l")), ValueError, "module", "'l'"),
    (lambda m: enter(m, FLIP, dr.Gradients("x")), ValueError, "parameter", "'x'"),
    (lambda m: enter(m, FLIP, dr.Inputs("ids")), ValueError, "nn.EmbeddingBag", ""),
    (lambda m: enter(m, FLIP, dr.Activations("0"), seed=-1), ValueError, "seed", "-1"),
    (lambda m: dr.Inputs("sparse"), ValueError, "inputs", "'sparse'"),
    (lambda m: dr.Inputs("ids", out_of_range="clip"), ValueError, "out of range", "'clip'"),
    (lambda m: dr.Activations("0", per="row"), ValueError, "per", "'row'"),
]


@pytest.mark.parametrize(("call", "error", "name", "value"), TRANSIENT)
def test_errors_while_a_model_runs(call, error, name, value):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
    refuses(lambda: call(model), error, name, value)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert applied_maps(model) == ()


TRAINING = [
    ({"targets": ["nowhere"]}, "target", "'nowhere'"),
    ({"targets": [dr.OptimizerState(glob="*.sum")]}, "optimizer state", "'*.sum'"),
    ({"targets": [dr.Gradients("nowhere")]}, "parameter", "'nowhere'"),
    ({"targets": [dr.Activations("nowhere")]}, "module", "'nowhere'"),
    ({"errors": dr.SingleBit(40)}, "bit", "40"),
    ({"when": 10}, "when", "10"),
    ({"when": []}, "when", "[]"),
    ({"evaluate_at": 0}, "evaluate_at", "0"),
    ({"warm_up": 0}, "warm_up", "0"),
    ({"detectors": [GradientNorm(), GradientNorm(factor=2.0)]}, "detectors", "'gradient_norm'"),
    ({"actions": [Skip(on="abft")]}, "'skip_on_abft'", "'abft'"),
    ({"settings": dr.training.Settings(table_optimizer="sgd")}, "", "'sgd'"),
    ({"settings": dr.training.Settings(precision="bfloat16")}, "", "'bfloat16'"),
]


@pytest.mark.parametrize(("options", "name", "value"), TRAINING)
def test_campaigns_of_training(data, tmp_path, options, name, value):
    grid = {"targets": ["over_mlp"], "errors": dr.SingleBit(30), "detectors": [GradientNorm(), LossSpike()]}
    grid |= {"evaluate_at": (4, 10), "trials": 3, "warm_up": 20, "settings": dr.training.Settings(batch_size=64)}
    refuses(lambda: dr.TrainingCampaign("dlrm", data, store=tmp_path / "s", **grid | options), ValueError, name, value)


def test_chosen_flips_and_bounds(evaluator, data):
    narrow = dr.Evaluator(stored_as(evaluator.model, dense="bf16", tables="int8"), data.test)
    for options, name in (({"allowed": dr.Allowed("nowhere")}, "'nowhere'"), ({"budget": 0}, "budget")):
        refuses(lambda options=options: dr.worst_case(evaluator, **options), ValueError, name)
    refuses(lambda: dr.worst_case(narrow, allowed=dr.Allowed("embedding")), ValueError, "gradient", "'embedding'")
    refuses(lambda: dr.Allowed(one_per=8, pairs_in=8), ValueError, "one_per", "pairs_in")
    refuses(lambda: dr.Allowed(bits="exponents"), ValueError, "field", "'exponents'")
    other = dr.Evaluator(dr.models.build_model("dlrm", data.schema), data.test.head(100))
    found = dr.worst_case(evaluator, budget=1, candidates=1)
    refuses(lambda: found.measure(other), ValueError, "state")
    with torch.inference_mode():
        layer = nn.Linear(2, 1)
    rows = dr.data.from_batches([(torch.randn(64, 2), torch.arange(64) % 2)])
    inference = dr.Evaluator(layer, rows, forward=lambda model, batch: model(batch[0])[:, 0], output="logit")
    refuses(lambda: dr.worst_case(inference), ValueError, "inference tensors")
    refuses(lambda: adam_bound(5, 0.99, 0.9), ValueError, "betas", "0.99, 0.9")


def test_probe_rows(evaluator, data):
    split = data.train.head(60)
    fit, make = dr.ProbeRows.fit, dr.ProbeRows
    refuses(lambda: fit(evaluator, split, 61), ValueError, "n", "61")
    refuses(lambda: fit(evaluator, split, 5, how="best"), ValueError, "how", "'best'")
    refuses(lambda: make(evaluator, split.take(slice(0))), ValueError, "no probe rows")
    refuses(lambda: make(evaluator, split, window=0), ValueError, "window", "0")
    batches = dr.data.from_batches([data.test.batch()])
    for call in (make, fit):
        refuses(lambda call=call: call(evaluator, batches), TypeError, "data.train")
    table, tensor = next(one for one in evaluator.model.named_parameters() if "embedding" in one[0])
    rows = len(tensor)
    refuses(lambda: fit(evaluator, split, 5, weights={"nothing": np.ones(3)}), ValueError, "weights", "'nothing'")
    for wrong, value in ((np.ones(rows + 1), f"[{rows + 1}]"), (-np.ones(rows), "-1 to -1")):
        refuses(lambda wrong=wrong: fit(evaluator, split, 5, weights={table: wrong}), ValueError, table, value)
