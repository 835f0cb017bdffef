"""What a search for the parameters of a protection maximises."""

import warnings
from collections.abc import Callable

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import ErrorModel, Target
from drsrobust.mitigation import Mitigation


def auc_under_errors(
    evaluator: Evaluator, error: ErrorModel, *, target: str | Target = "all", trials: int = 20, seed: int
) -> Callable[[Mitigation], float]:
    """The mean AUC of a model with a mitigation under errors, as a score for `ActivationClipping.search`.

    Args:
        evaluator: of other rows than the mitigation is evaluated on later, as `data.valid`.
        error, target: as in `inject`.
        trials: error maps, the same for each mitigation.
        seed: other than that of the campaign that evaluates the mitigation.

    Returns:
        mitigation -> mean AUC over all trials. A trial in which the model raises counts as an AUC of 0, or a bound
        that makes the worst trials raise would score better.
    """
    options = {"errors": [error], "targets": [target], "trials": trials, "seed": seed}

    def score(mitigation: Mitigation) -> float:
        campaign = Campaign(evaluator, mitigations=[mitigation], sampling="plain", **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"[\d,]+ of [\d,]+ trials raised")  # they count below
            table = campaign.run(progress=False)
        return float(table["auc"].fillna(0.0).mean())

    return score
