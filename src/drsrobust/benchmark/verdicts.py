"""What is read from the benchmark `quality`: means, standard errors, and whether each model is as good as it should be."""

from typing import TYPE_CHECKING

from drsrobust.benchmark.quality import LINEAR, OURS
from drsrobust.benchmark.torchfm_models import NAME

if TYPE_CHECKING:
    import pandas as pd

BELOW_TORCHFM, BELOW_LINEAR = 0.003, 0.005  # of AUC, that a model of ours may lack


def torchfm_verdicts(table: "pd.DataFrame", differences: "pd.DataFrame") -> "pd.DataFrame":
    """By model: mean test AUC of ours and of torchfm's over seeds, of one seed their difference with DeLong's interval and p,
    and `good`: ours is at least theirs - 0.003.

    Args:
        table, differences: as `quality` gives them.
    """
    means = table.pivot_table(index=["dataset", "model"], columns="method", values="auc", sort=False)
    if NAME not in means:
        return means[[OURS]].iloc[:0]
    found = means[[OURS, NAME]].dropna()
    found["difference"] = found[OURS] - found[NAME]
    seeds = differences.groupby(["dataset", "model"]).size()
    for name in ("low", "high", "p"):
        # DeLong's interval is over rows, for one pair of models.
        found[name] = differences.groupby(["dataset", "model"])[name].first().where(seeds == 1)
    return found.assign(good=found["difference"] >= -BELOW_TORCHFM)


def linear_verdicts(table: "pd.DataFrame") -> "pd.DataFrame":
    """By model on the splits of logistic regression: mean test AUC, mean log loss, mean difference of AUC to logistic
    regression on the same split, the standard error of that mean, and `good`: the mean is at least -0.005.

    Args:
        table: as `quality` gives it.
    """
    import pandas as pd

    linear = table[table["method"] == LINEAR].set_index("split")
    rows = []
    for (method, dataset, model), group in table.groupby(["method", "dataset", "model"], sort=False):
        if method == NAME or dataset not in set(linear["dataset"]):
            continue
        by_split = group.groupby("split")[["auc", "logloss"]].mean()
        lead = by_split["auc"] - linear.loc[by_split.index, "auc"]
        error = lead.std(ddof=1) / len(lead) ** 0.5 if len(lead) > 1 else float("nan")
        rows.append((model, len(lead), *by_split.mean(), lead.mean(), error, bool(lead.mean() >= -BELOW_LINEAR)))
    columns = ["model", "splits", "auc", "logloss", "difference", "error", "good"]
    return pd.DataFrame(rows, columns=columns).set_index("model")


def describe(table: "pd.DataFrame", differences: "pd.DataFrame", remarks: list[str]) -> str:
    """Both comparisons as text."""
    parts = ["\n".join(remarks)] if remarks else []
    compared = torchfm_verdicts(table, differences)
    if len(compared):
        parts.append(
            f"Test AUC, {OURS} and {NAME}; DeLong's interval of the difference; good: at least theirs - {BELOW_TORCHFM}\n"
            + _text(compared)
        )
    compared = linear_verdicts(table)
    if len(compared):
        parts.append(
            "Test AUC, mean over splits; difference to logistic regression with the standard error of its mean; good: at "
            f"least its AUC - {BELOW_LINEAR}\n{_text(compared)}"
        )
        deep = compared.drop(index=LINEAR)
        if len(deep):
            best = deep["difference"].idxmax()
            verdict = "is at least" if deep.loc[best, "difference"] >= 0 else "is below"
            parts.append(f"The best, {best}, {verdict} logistic regression")
    return "\n\n".join(parts)


def _text(frame: "pd.DataFrame") -> str:
    return frame.to_string(float_format="{:.4f}".format, na_rep="-")
