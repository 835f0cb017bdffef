"""Plans of a small model: budgets, costs, the mitigation, fresh maps, files and refusals."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

import drsrobust as dr
from drsrobust.extend import strata_of
from drsrobust_extras.risk.planning.choice import InfeasibleBudget
from drsrobust_extras.risk.planning.protection_plan import Plan
from tests.refusals import refuses

ERRORS = dr.BitFlip(1e-5)


@pytest.fixture(scope="module")
def rows(data):
    return data.valid.head(300)


@pytest.fixture(scope="module")
def candidates(trained):
    memory = [dr.WeightRange.fit(trained), dr.ParityZero(), dr.ECC(), dr.BitProtection(range(23, 32), code="tmr")]
    return [*memory, dr.ABFTLinear.fit(trained, action="restore")]


@pytest.fixture(scope="module")
def plan(trained, rows, candidates):
    budgets = {"budget_bits": 0.05, "budget_time": 0.10}
    return dr.plan(trained, rows, errors=ERRORS, candidates=candidates, **budgets, trials=36)


def test_the_plan_is_within_its_budgets_and_its_mitigation_costs_no_more(plan, trained):
    table = plan.table()
    assert table["tensor"].tolist() == [one.name for one in dr.resolve(trained).tensors]
    assert set(table["protection"]) - {"none"} and plan.stored_percent <= 5 and plan.time_percent <= 10
    assert plan.apply(trained).cost(trained).stored_bits <= table["stored_bits"].sum()
    assert plan.least <= plan.loss <= plan.bound
    assert table["loss_with"].sum() == pytest.approx(plan.loss)
    assert plan.loss < 0.1 * table["loss_without"].sum()


def test_losses_of_tensors_sum_to_those_of_whole_maps(plan):
    found = plan.losses.additivity
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"] and 0.9 < found["ratio"] < 1.1
    assert 0 < plan.losses.harmful < 1


def test_a_plan_of_no_budget_is_empty(plan, trained):
    empty = plan.within(budget_bits=0, budget_time=0)
    assert set(empty.table()["protection"]) == {"none"}
    nothing = empty.apply(trained)
    assert nothing.cost(trained).stored_bits == 0 and not nothing.computes
    with dr.inject(trained, ERRORS, seed=1, mitigation=nothing) as error_map:
        assert len(error_map) == len(ERRORS.sample(dr.resolve(trained), seed=1))


def test_tensors_without_a_loss_in_the_maps_are_protected_where_the_budget_allows(plan):
    """The plan by means leaves most of them alone."""
    unharmed = plan.losses.uncertainty.mean[:, 0] == 0
    assert unharmed.any() and "none" not in set(plan.table()["protection"])
    assert (plan.within(robust=False).table()["protection"][unharmed] == "none").sum() > 3


@pytest.mark.long
def test_the_same_costs_give_the_same_plan(plan, trained, rows, candidates):
    options = {"candidates": candidates, "budget_bits": 0.05, "budget_time": 0.1, "costs": plan.costs, "trials": 36}
    again = dr.plan(trained, rows, errors=ERRORS, **options)
    pd.testing.assert_frame_equal(again.table(), plan.table())
    dear = plan.costs.assign(time_percent=50.0)
    assert set(Plan(plan.losses, dear, plan.candidates, plan.places, 0.05, 0.1).table()["protection"]) == {"none"}
    few = Plan(plan.losses, plan.costs.iloc[1:], plan.candidates, plan.places, 0.05, 0.1)
    refuses(few.table, ValueError, "costs have no row for 'range per tensor' on 'dense_arch")


def test_an_infeasible_budget_names_the_cheapest(plan):
    bound = plan.within(required=frozenset(plan.losses.tensors))
    with pytest.raises(InfeasibleBudget, match=r"budget_bits=0 is too small .* needs budget_bits=(\S+)") as caught:
        bound.within(budget_bits=0, budget_time=0).table()
    least = float(str(caught.value).rpartition("=")[2])
    assert "none" not in set(bound.within(budget_bits=least * 1.001, budget_time=0).table()["protection"])


def test_a_plan_is_for_one_model(plan, trained):
    other = copy.deepcopy(trained)
    plan.apply(other)  # of the same values
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    for one in (plan, plan.within(budget_bits=0.2)):
        refuses(lambda one=one: one.apply(other), ValueError, "this model's", plan.model[:12])


@pytest.mark.long
def test_fresh_maps_show_the_plan_beside_uniform_protections(plan, trained, data):
    evaluator = dr.Evaluator(trained, data.test.head(300))
    trials = plan.verify(evaluator, ERRORS, others=[plan.within(budget_bits=0.2)], trials=12)
    table = plan.compare(trials)
    assert set(table["kind"]) >= {"plan", "uniform", "none"}
    assert set(table["mitigation"]) >= {"range per tensor", "parity, zero"}
    assert "SECDED (72,64)" not in set(table["mitigation"])  # over the budget everywhere
    own = table.set_index("mitigation").loc[plan.name]
    assert own["over_plan"] == 0 and own["stored_percent"] == pytest.approx(plan.stored_percent)
    assert trials.groupby("mitigation")["weight"].sum().to_numpy() == pytest.approx(1.0)
    none = trials[trials["mitigation"] == "none"]
    mean = table.set_index("mitigation")["auc_drop"]["none"]
    assert mean == pytest.approx((none["weight"] * none["auc_drop"].astype(float)).sum())
    refuses(lambda: plan.verify(evaluator, ERRORS, seed=0), ValueError, "seed 0 is the plan's own")


def test_a_protection_of_memory_and_the_whole_map_agree_with_a_campaign(plan, trained, rows):
    """With one tensor, its losses are those of whole maps under the mitigation."""
    name, check = "over_arch.model.0._mlp.0._linear.weight", dr.WeightRange.fit(trained)
    options = {"errors": ERRORS, "candidates": [check], "budget_bits": 1, "budget_time": 0, "target": name, "trials": 8}
    found = dr.plan(trained, rows, **options).losses
    evaluator = dr.Evaluator(trained, rows)
    strata = strata_of(ERRORS, dr.resolve(trained, name), dr.injection.CriticalBits())
    errors = [one.error_model for one in strata if not one.is_pilot]
    grid = {"errors": errors, "targets": [name], "mitigations": [None, check], "trials": 8 // len(errors)}
    table = dr.Campaign(evaluator, **grid).run(workers=1)
    expected = [table[table["mitigation"] == one]["auc_drop"].to_numpy(float) for one in ("none", check.name)]
    assert np.sort(found.values[:, 0, 0]) == pytest.approx(np.sort(expected[0]), abs=1e-12)
    assert np.sort(found.values[:, 0, 1]) == pytest.approx(np.sort(expected[1]), abs=1e-12)
    assert found.whole == pytest.approx(found.values[:, 0, 0], abs=1e-12)


@pytest.mark.long
def test_errors_that_do_not_add_up_are_refused(trained, rows):
    options = {"candidates": [dr.ParityZero()], "budget_bits": 0.05, "budget_time": 0, "trials": 12}
    options |= {"errors": dr.BitFlip(3e-3)}
    refuses(lambda: dr.plan(trained, rows, **options), ValueError, "whole maps lose", "should be near 1", "the rate")
    with pytest.warns(UserWarning) as caught:
        found = dr.plan(trained, rows, additive="warn", **options)
    assert found.losses.harmful > 1 and found.losses.additivity["ratio_low"] > 2
    assert "should be near 1" in str(caught[0].message) and "add up only roughly" in str(caught[1].message)


def test_what_is_refused(plan, trained, rows, candidates):
    def planned(**changes):
        options = {"errors": ERRORS, "candidates": candidates[:1], "budget_bits": 0.05, "budget_time": 0.1, "trials": 4}
        return dr.plan(trained, rows, **options | changes)

    guard, required = dr.NaNGuard(prior=0.5), {"candidates": candidates[-1:], "required": "embedding"}
    other = dr.models.build_model("fm", dr.load_dataset("synthetic-movielens/full", rows=600).schema)
    for call, name in (
        *[(lambda v=v: planned(budget_bits=v), "budget_bits") for v in (-0.1, float("nan"), float("inf"))],
        (lambda: planned(candidates=[dr.ParityZero(), dr.ParityZero()]), "names of their own"),
        (lambda: planned(candidates=[guard]), "NaN guard"),
        (lambda: planned(**required, costs=pd.DataFrame()), "'sparse_arch"),
        (lambda: planned(target="embedding", required="over_mlp"), "target 'embedding'"),
        (lambda: plan.within(required="embedding"), "required is 'embedding'"),
        (lambda: plan.apply(other), "this model has none"),
    ):
        refuses(call, ValueError, name)


def test_costs_of_a_candidate_on_all_tensors_count_each_check_once(plan, trained, candidates):
    costs = plan.costs.set_index(["mitigation", "tensor"])
    abft, parity = candidates[-1], candidates[1]
    assert costs.loc[(abft.name, "all"), "stored_bits"] == abft.cost(trained).stored_bits
    each = plan.costs[plan.costs["tensor"] != "all"].groupby("mitigation")["stored_bits"].sum()
    assert each[abft.name] == 2 * abft.cost(trained).stored_bits  # of a layer's weight and of its bias
    assert each[parity.name] == costs.loc[(parity.name, "all"), "stored_bits"] == parity.cost(trained).stored_bits
