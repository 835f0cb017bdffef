"""`plan`: the protection of each tensor that loses least within budgets of memory and time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.extend import (
    check_choice,
    check_instance,
    check_items,
    check_number,
    check_seed,
    check_whole,
    harmful_pilots,
    strata_of,
)
from drsrobust.injection import SPREAD, CriticalBits, ErrorModel, Target, as_target, resolve
from drsrobust.mitigation import Composed, Mitigation
from drsrobust.models import padded_batches, state_digest
from drsrobust.statistics import ENDS, LOSS_IS_BOUNDED, NONE, STRATUM, WEIGHT, Headline, Strata, summarise
from drsrobust_extras.risk.planning.choice import Choice, InfeasibleBudget, cheapest, choose
from drsrobust_extras.risk.planning.costs import WHOLE, cost_arrays, tensor_costs
from drsrobust_extras.risk.planning.losses import Losses, maps_of, measure

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.data import Split

ADDITIVE = ("refuse", "warn")
_TIMED_ROWS, _TIMED_BATCHES = 2048, 4  # of timed passes
PLAN, BY_MEANS, UNIFORM = "plan", "plan by means", "uniform"  # kinds of protection in a table of trials
_BUDGETS, _SPENT = ("budget_bits", "budget_time"), ("stored_percent", "time_percent")
_ABOUT = ("kind", *_SPENT)


@dataclass(frozen=True, eq=False)
class Plan:
    """One protection, or none, for each tensor.

    Attributes:
        losses: that it was chosen on.
        costs: a row per candidate and tensor, and for all of them, as `plan(costs=)` takes them.
        candidates: whole-model mitigations.
        places: the tensors: `tensor`, `component`, `words`, `bits`.
        budget_bits, budget_time: shares of the bits of these tensors, and of inference time.
        required: tensors that must get a protection.
        robust: whether it minimises the simultaneous upper bound, in which unseen losses are spread over tensors
            (`Uncertainty.spread`); else the mean loss.
        seed: of its error maps.
        model: SHA-256 (hex) of the state of the model that it is for; None: of any model with such tensors.
    """

    losses: Losses
    costs: "pd.DataFrame"
    candidates: tuple[Mitigation, ...] = field(repr=False)
    places: "pd.DataFrame"
    budget_bits: float
    budget_time: float
    required: frozenset[str] = frozenset()
    robust: bool = True
    seed: int = 0
    model: str | None = None

    def __post_init__(self) -> None:
        _check_budgets(self.budget_bits, self.budget_time)
        required = [self.required] if isinstance(self.required, str) else self.required
        if unknown := sorted({*required} - {*self.losses.tensors}) or isinstance(self.required, str):
            raise ValueError(
                f"required is {self.required!r}; it must be a set of names of the plan's tensors: {unknown}"
            )
        blank = np.isnan(self.losses.values[0, :, 1:]).all(axis=1)
        if lacking := [
            name
            for name, is_blank in zip(self.losses.tensors, blank, strict=True)
            if is_blank and name in self.required
        ]:
            raise ValueError(f"no candidate protects {lacking[0]!r}, which is required")

    @cached_property
    def choice(self) -> Choice:
        """The chosen option of each tensor; `loss` and `bound` are of the minimised sum.

        Raises:
            InfeasibleBudget: the required tensors need more; the message names the least budget.
        """
        uncertainty = self.losses.uncertainty
        spread = uncertainty.spread(self.places["bits"].to_numpy() / self.bits)
        return self._choose(uncertainty.upper + spread if self.robust else uncertainty.mean)

    def _choose(self, losses: np.ndarray) -> Choice:
        losses, budgets = losses.copy(), [self.budget_bits * self.bits, 100 * self.budget_time]
        losses[[name in self.required for name in self.losses.tensors], 0] = np.nan
        try:
            return choose(losses, self._cost, budgets)
        except InfeasibleBudget:
            number, least = cheapest(losses, self._cost, budgets)
        raise InfeasibleBudget(
            f"{_BUDGETS[number]}={getattr(self, _BUDGETS[number]):g} is too small for the required protections; the cheapest "
            f"plan needs {_BUDGETS[number]}={least / (self.bits, 100)[number]:.4g}"
        )

    @property
    def bits(self) -> int:
        """Bits of the tensors, without protection."""
        return int(self.places["bits"].sum())

    @cached_property
    def _costs(self) -> np.ndarray:
        """[2, tensors and at last all at once, options]."""
        missing = np.isnan(self.losses.values).all(axis=0)
        missing = np.concatenate([missing, np.zeros_like(missing[:1])])
        return cost_arrays(self.costs, (*self.losses.tensors, WHOLE), self.losses.options, missing)

    @property
    def _cost(self) -> np.ndarray:
        return self._costs[:, :-1]

    def _chosen(self, array: np.ndarray) -> np.ndarray:
        """The numbers of the chosen options, of an array [..., tensors, options]."""
        return array[..., np.arange(len(self.losses.tensors)), self.choice.option]

    @property
    def loss(self) -> float:
        """The expected loss of AUC by the means over the plan's own error maps; too low, since it was chosen on them."""
        return float(self._chosen(self.losses.uncertainty.mean).sum())

    @property
    def bound(self) -> float:
        """The upper bound of the expected loss, with probability 95 % for all plans at once, where losses of tensors
        add up, and none that the maps missed is larger than the largest that they show."""
        return float(self._chosen(self.losses.uncertainty.upper).sum()) + self.losses.uncertainty.unseen

    @property
    def bonferroni(self) -> float:
        """The same bound with Student's t at 1 - 0.025 / number of coefficients in place of the bootstrap."""
        uncertainty = self.losses.uncertainty
        return (
            float(self._chosen(uncertainty.mean + uncertainty.bonferroni * uncertainty.error).sum())
            + uncertainty.unseen
        )

    @cached_property
    def least(self) -> float:
        """No plan within the budgets has a smaller mean loss on these error maps: the solver's dual bound."""
        return self._choose(self.losses.uncertainty.mean).bound

    @property
    def stored_percent(self) -> float:
        """Extra stored bits, of the bits of the tensors."""
        return 100 * float(self._chosen(self._cost[0]).sum()) / self.bits

    @property
    def time_percent(self) -> float:
        """Extra inference time."""
        return float(self._chosen(self._cost[1]).sum())

    def within(self, **changes: Any) -> "Plan":
        """The plan with other budgets, on the same losses and costs.

        Args:
            changes: `budget_bits`, `budget_time`, `robust`, `required` (names of tensors).
        """
        return replace(self, **changes)

    def table(self) -> "pd.DataFrame":
        """One row per tensor: `tensor`, `component`, `words`, `protection`, `loss_without` and `loss_with` (means over the
        plan's error maps), `stored_bits`, `time_percent`."""
        names = [self.losses.options[option] for option in self.choice.option]
        columns = {"protection": names, "loss_without": self.losses.uncertainty.mean[:, 0]}
        columns |= {"loss_with": self._chosen(self.losses.uncertainty.mean)}
        columns |= {"stored_bits": self._chosen(self._cost[0]).astype(np.int64)}
        return self.places.drop(columns="bits").assign(**columns, time_percent=self._chosen(self._cost[1]))

    @property
    def name(self) -> str:
        """Of its mitigation, by the budgets."""
        return f"{self.kind}, {100 * self.budget_bits:g} % bits, {100 * self.budget_time:g} % time"

    @property
    def kind(self) -> str:
        """`plan`, or `plan by means` where it minimises the mean loss."""
        return PLAN if self.robust else BY_MEANS

    def apply(self, model: nn.Module) -> Composed:
        """The plan as a mitigation of a model: each candidate on the tensors that it was chosen for. The empty plan does
        nothing.

        Raises:
            ValueError: the model lacks a tensor of the plan, has one of another size, or other values.
        """
        sizes = {tensor.name: tensor.size for tensor in resolve(model, "everything").tensors}
        for name, words in zip(self.places["tensor"], self.places["words"], strict=True):
            if sizes.get(name) != words:
                raise ValueError(f"the plan is for {name!r} of {words} words; this model has {sizes.get(name, 'none')}")
        if self.model is not None and self.model != (state := state_digest(model)):
            raise ValueError(
                f"the plan is for the model whose state has SHA-256 {self.model[:12]}; this model's has {state[:12]}. Load "
                "that model, or make a plan for this one"
            )
        parts = []
        for number, candidate in enumerate(self.candidates, 1):
            names = [
                name for name, option in zip(self.losses.tensors, self.choice.option, strict=True) if option == number
            ]
            parts += [candidate.on(names)] if names else []
        composed = Composed(parts)
        composed.name = self.name
        return composed

    def _uniform(self) -> list[tuple[Mitigation, np.ndarray]]:
        """The candidates that fit both budgets on all tensors that they cover, with what they cost, in per cent."""
        spent = self._costs[:, -1, 1:].T / [self.bits / 100, 1.0]
        fits = (spent <= 100 * np.array([self.budget_bits, self.budget_time]) * (1 + 1e-9)).all(axis=1)
        return [(candidate, cost) for candidate, cost, fit in zip(self.candidates, spent, fits, strict=True) if fit]

    def verify(
        self,
        evaluator: Evaluator,
        errors: ErrorModel,
        *,
        others: Iterable["Plan"] = (),
        target: str | Target = "all",
        trials: int = 300,
        seed: int = 1,
    ) -> "pd.DataFrame":
        """Trials on fresh error maps: without protection, with the plan, with the plan of least mean loss, with other plans,
        and with each candidate that fits both budgets on all tensors. Plans that protect alike are one, under the last of
        their names.

        Args:
            evaluator: of the model without mitigation.
            errors: of the plan, or others.
            others: further plans.
            target: where errors fall.
            trials: error maps, as many in each stratum.
            seed: another one than the plan's.

        Returns:
            a campaign's table, with the columns `stratum` and `weight`, and of the mitigation `kind` (`plan`, `plan by means`,
            `uniform`, `none`), `stored_percent` and `time_percent`; `compare` summarises it.

        Raises:
            ValueError: the plan's own seed.
        """
        import pandas as pd

        if seed == self.seed:
            raise ValueError(f"seed {seed} is the plan's own; fresh error maps need another one")
        plans = [*others, self.within(robust=False), self]
        columns = {protection.name: (UNIFORM, *cost) for protection, cost in self._uniform()}
        columns |= {
            protection.name: (protection.kind, protection.stored_percent, protection.time_percent)
            for protection in plans
        }
        protections = [protection for protection, _ in self._uniform()] + [
            protection.apply(evaluator.model) for protection in plans
        ]
        distinct = list({protection.identity(): protection for protection in protections}.values())
        space, tables, headline = resolve(evaluator.model, target), [], Headline.without_errors(evaluator.golden)[0]
        strata = strata_of(errors, space, CriticalBits(), where_possible=True)
        for stratum, count in maps_of(strata, trials):
            grid = {"errors": [stratum.error_model], "targets": [target], "mitigations": [None, *distinct]}
            grid |= {"metrics": [headline.name] if evaluator.golden.auc is None else [], "sampling": "plain"}
            table = Campaign(evaluator, **grid, trials=count, seed=seed).run(workers=1)
            tables.append(table.assign(**{STRATUM: stratum.name, WEIGHT: stratum.probability / count}))
        spreads = {NONE: SPREAD[0]} | {protection.name: protection.spread for protection in distinct}
        most = headline.worst_of(headline.drop)
        lost = [table[headline.drop].fillna(most).groupby(table["mitigation"]) for table in tables]
        harmful = {
            name: harmful_pilots(strata, [values.get_group(name).to_numpy() for values in lost]) for name in spreads
        }
        for number, stratum in enumerate(strata):
            bounded = {name: stratum.is_bounded(spread, harmful[name]) for name, spread in spreads.items()}
            tables[number] = tables[number].assign(**{LOSS_IS_BOUNDED: tables[number]["mitigation"].map(bounded)})
        weighted = [table for table, stratum in zip(tables, strata, strict=True) if not stratum.is_pilot]
        verified = pd.concat(weighted, ignore_index=True)
        kinds = [columns.get(name, (NONE, 0.0, 0.0)) for name in verified["mitigation"]]
        verified[list(_ABOUT)] = pd.DataFrame(kinds, verified.index)
        return verified.assign(error_model=errors.label, rate=errors.rate, ber=errors.expected_share(space))

    def compare(self, trials: "pd.DataFrame") -> "pd.DataFrame":
        """What `verify` found, the least loss first.

        Returns:
            one row per mitigation: `mitigation`, `kind`, `stored_percent`, `time_percent`, `n` trials, `auc_drop` (mean loss)
            and `over_plan`, how much more it loses than the plan on the same maps, both with `_low` and `_high`.
        """
        headline = self.losses.headline
        summary, most = summarise(trials, [headline.drop]), headline.worst_of(headline.drop)
        trials = trials.sort_values([STRATUM, "trial"], kind="stable")
        lost = {
            name: protected[headline.drop].to_numpy(float, na_value=most)
            for name, protected in trials.groupby("mitigation", sort=False)
        }
        protected, over = trials[trials["mitigation"] == self.name], []
        most_gained = headline.bounds[1] - headline.bounds[0]
        for name in summary["mitigation"]:  # an interval that few large differences decide is Stringer's
            difference = lost[name] - lost[self.name]
            strata = Strata.of(protected, np.abs(difference))
            over.append(
                strata.mean_interval(difference, (-most_gained, most_gained)) if name != self.name else (0.0, 0.0, 0.0)
            )
        costs = trials.drop_duplicates("mitigation").set_index("mitigation")[list(_ABOUT)]
        table = summary[["mitigation", "n", *(f"{headline.drop}{end}" for end in ENDS)]].join(costs, on="mitigation")
        table[[f"over_plan{end}" for end in ENDS]] = over
        order = ["mitigation", *_ABOUT]
        return table[[*order, *table.columns.drop(order)]].sort_values(headline.drop, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        used = int((self.choice.option > 0).sum())
        return (
            f"<Plan {used} of {len(self.losses.tensors)} tensors protected, +{self.stored_percent:.2g} % bits, "
            f"+{self.time_percent:.2g} % time: loss {self.loss:.3g}, at most {self.bound:.3g}>"
        )


def plan(
    model: nn.Module,
    rows: "Split",
    *,
    errors: ErrorModel,
    candidates: Sequence[Mitigation],
    budget_bits: float,
    budget_time: float,
    target: str | Target = "all",
    required: str | Target | None = None,
    costs: "pd.DataFrame | None" = None,
    trials: int = 200,
    seed: int = 0,
    robust: bool = True,
    additive: str = "refuse",
    **options: Any,
) -> Plan:
    """The protection of each tensor that loses least AUC within budgets of stored bits and of inference time.

    Errors in each tensor alone are evaluated under each candidate, on the same error maps. Their losses are added, which holds
    while maps seldom do harm in several tensors: `Plan.losses.additivity` compares the sum with the loss to whole maps. The
    loss that counts is the one on fresh maps, `Plan.verify`.

    Args:
        model: any module, without errors.
        rows: that are scored; other ones than those that candidates were fitted to.
        errors: one error model, in memory, as `BitFlip(1e-6)` or `MemoryFault()`.
        candidates: whole-model mitigations that belong to tensors: protections of memory, `WeightRange`, ABFT, fitted clipping,
            and sums of them. Several `BitProtection` choose the bits of each tensor too.
        budget_bits: extra stored bits, as a share of the target's bits.
        budget_time: extra time of inference, as a share.
        target: where errors fall; its tensors are planned.
        required: tensors among them that must get a protection; None: none must.
        costs: of an earlier plan (`Plan.costs`), so that measured times do not change this one; None: measured. A model with a
            forward of its own needs them if a candidate computes.
        trials: error maps.
        seed: decides them.
        robust: minimises an upper bound that holds for all plans at once; False: the mean loss.
        additive: where predicted and measured loss clearly differ by over a factor of 2: `refuse` or `warn`.
        options: of `Evaluator`.

    Warns:
        UserWarning: errors do harm in over one tensor per map on average.

    Raises:
        ValueError: losses do not add up, a budget that is no share, candidates of one name or that protect nothing, a required
            tensor that none protects, costs that lack a row.
        InfeasibleBudget: the required tensors need more; the message names the least budget.

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens/full", rows=2000)
        >>> model = dr.models.build_model("dlrm", data.schema).eval()
        >>> errors, ranges = dr.BitFlip(1e-6), dr.WeightRange.fit(model)
        >>> found = dr.plan(model, data.valid, errors=errors, candidates=[ranges], budget_bits=0.05, budget_time=0, trials=8)
        >>> sorted(set(found.table()["protection"]) - {"none"}) in ([], [ranges.name])
        True
    """
    import pandas as pd

    check_choice("additive", additive, ADDITIVE)
    trials, seed = check_whole("trials", trials, 2), check_seed(seed)
    robust = bool(check_instance("robust", robust, (bool, np.bool_), "True or False"))
    _check_budgets(budget_bits, budget_time)
    check_instance("errors", errors, ErrorModel, "one error model, as BitFlip(1e-6)")
    candidates = check_items("candidates", candidates, "a list of mitigations")
    for candidate in candidates:
        check_instance("each of candidates", candidate, Mitigation, "a mitigation")
    check_instance("rows", rows, Split, "a Split, as data.valid")
    if required is not None:
        as_target(required, "required")  # raises
    if costs is not None:
        check_instance("costs", costs, pd.DataFrame, "the costs of an earlier plan, as plan.costs")
    names = [candidate.name for candidate in candidates]
    if len({NONE, *names}) <= len(names):
        raise ValueError(f"candidates must have names of their own, got {', '.join(names)}; set .name")
    evaluator, space = Evaluator(model, rows, **options), resolve(model, target)
    tensors = space.tensors
    columns = {"tensor": [entry.name for entry in tensors], "component": [entry.component for entry in tensors]}
    columns |= {
        "words": [entry.size for entry in tensors],
        "bits": [entry.size * entry.format.width for entry in tensors],
    }
    must = frozenset() if required is None else {entry.name for entry in resolve(model, required).tensors}
    if absent := sorted(must - set(columns["tensor"])):
        raise ValueError(f"required names {absent[0]!r}, which is not in target {str(target)!r}")
    losses = measure(evaluator, errors, candidates, target=target, trials=trials, seed=seed)
    losses.check_additivity(errors, refuse=additive == "refuse")
    if costs is None:
        batches = (
            [*padded_batches(rows.head(_TIMED_ROWS * _TIMED_BATCHES), _TIMED_ROWS)]
            if any(entry.computes for entry in candidates)
            else []
        )
        costs = tensor_costs(model, columns["tensor"], candidates, batches)
    budgets = {"budget_bits": budget_bits, "budget_time": budget_time, "required": frozenset(must)}
    unlimited = Plan(
        losses,
        costs,
        tuple(candidates),
        pd.DataFrame(columns),
        **budgets,
        robust=robust,
        seed=int(seed),
        model=evaluator.checkpoint,
    )
    _ = unlimited.choice  # raises
    return unlimited


def _check_budgets(*budgets: float) -> None:
    for name, value in zip(_BUDGETS, budgets, strict=True):
        check_number(name, value, "a share, 0 or more, as 0.05 for 5 %", lambda share: share >= 0)
