"""How often checksums alarm in a forward pass, and whether running it again ends the alarm: section VIII of ISSRE 2025, which
concludes that checksums with re-execution are infeasible over 1e-4 and fine for rare errors (S18)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import Activations, BitFlip
from drsrobust.mitigation import Mitigation
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_study.effects import campaign_seed
from drsrobust_study.part_curves import ALL, KEYS, part_targets
from drsrobust_study.statements import values

if TYPE_CHECKING:
    import pandas as pd

LIMIT = 1e-4  # the study's, a bit error rate
STAYS, PASSES = "stays in memory", "passes"  # an error


def recomputing(model: nn.Module) -> Mitigation:
    """Checksums of all linear layers and tables; where one alarms, its module runs again."""
    checks: Mitigation = ABFTEmbeddingBag.fit(model, action="recompute")
    if any(isinstance(module, nn.Linear) for module in model.modules()):
        checks = ABFTLinear.fit(model, action="recompute") + checks
    return checks


def alarm_trials(
    evaluator: Evaluator, bers: Sequence[float], *, trials: int, train_seed: int, seed: int, progress: bool = True
) -> "pd.DataFrame":
    """Forward passes of one trained model with errors in each of its parts, which stay, and at `LIMIT` with errors in the
    outputs of its tables, or of one linear layer, which pass.

    Args:
        evaluator: of the model, on the rows of one forward pass.
        bers: bit error rates.
        trials: error maps per rate and part; each is one forward pass.
        train_seed: of the model.
        seed: of the maps, which differ between training seeds.
        progress: shows a progress bar.

    Returns:
        the campaigns' tables (`detected`: the pass alarmed; `repaired`: the alarm ended when modules ran again) with `part`,
        `train_seed` and `error` (`STAYS`, `PASSES`).
    """
    import pandas as pd

    model, tables = evaluator.model, []
    options = {"mitigations": [recomputing(model)], "trials": trials, "seed": campaign_seed(seed, train_seed)}
    options["sampling"] = "plain"
    for part, target in part_targets(model).items():
        stored = Campaign(evaluator, errors=[BitFlip(ber) for ber in bers], targets=[target], **options)
        tables.append(stored.run(progress=progress).assign(part=part, error=STAYS))
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    outputs = [Activations(name) for name in ["embedding", *layers]]
    passing = Campaign(evaluator, errors=[BitFlip(LIMIT)], targets=outputs, **options)
    tables.append(passing.run(progress=progress).assign(part=ALL, error=PASSES))
    return pd.concat(tables, ignore_index=True).assign(train_seed=train_seed)


def alarm_points(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row per trained model, part, rate and kind of error.

    Args:
        table: `alarm_trials`, one below the other.

    Returns:
        `KEYS`, `error`, `ber`, `bits` (of the part; of outputs NaN), `trials`, `alarms` (share of the forward passes), `exact`
        (1 - (1 - ber)^bits, the probability that any stored bit is wrong) and `ended` (share of the alarms that ended when the
        modules ran again; NaN without alarms).
    """
    import pandas as pd

    rows = []
    for keys, group in table.groupby([*KEYS, "error", "ber"], sort=False):
        alarmed = group["detected"].astype(bool)
        row = dict(zip([*KEYS, "error", "ber"], keys, strict=True)) | {"bits": np.nan, "exact": np.nan}
        if row["error"] == STAYS:
            bits = int(group["n_bits"].iloc[0])
            row |= {"bits": bits, "exact": -np.expm1(bits * np.log1p(-row["ber"]))}
        ended = float(group.loc[alarmed, "repaired"].astype(bool).mean()) if alarmed.any() else np.nan
        rows.append(row | {"trials": len(group), "alarms": float(alarmed.mean()), "ended": ended})
    return pd.DataFrame(rows)


def reexecution(points: "pd.DataFrame") -> "pd.DataFrame":
    """Forward passes at `LIMIT`, errors everywhere, by data set, model and kind of error: how many alarmed, and of how many of
    these one re-execution ended the alarm."""
    at = points[np.isclose(points["ber"], LIMIT) & points["part"].eq(ALL)].assign(passes=points["trials"])
    at = at.assign(alarms=at["alarms"] * at["trials"], ended=(at["alarms"] * at["trials"] * at["ended"]).fillna(0))
    sums = at.groupby(["dataset", "model", "error"], sort=False)[["passes", "alarms", "ended"]].sum()
    return sums.round().astype(int)


def statement_values(points: "pd.DataFrame") -> "pd.DataFrame":
    """What S18 is judged by, a row per trained model: the share of forward passes that alarm at each rate, errors everywhere,
    as `alarms at 0.0001`. Its standard error is that of a binomial with one alarm and one silent pass more, so that no share of
    few maps is exact."""

    def rows() -> Iterator[dict[str, Any]]:
        for row in points[points["part"].eq(ALL) & points["error"].eq(STAYS)].itertuples():
            share = (row.alarms * row.trials + 1) / (row.trials + 2)
            place = {"dataset": row.dataset, "item": row.model, "unit": row.train_seed}
            number = {"value": row.alarms, "error": np.sqrt(share * (1 - share) / (row.trials + 2))}
            yield {"statement": "S18", "part": "", "what": f"alarms at {row.ber:g}"} | place | number

    return values(rows())
