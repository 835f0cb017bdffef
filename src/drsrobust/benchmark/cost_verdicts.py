"""What is read from the benchmark `campaign`: whether a trial costs what it should, and where the time goes."""

from typing import TYPE_CHECKING

from drsrobust.benchmark.campaign import LOOP_RATE, OURS
from drsrobust.benchmark.reload_loop import OneFlipLoop, ReloadLoop

if TYPE_CHECKING:
    import pandas as pd

OVER_SUM = 1.10  # times inject and undo, a forward pass and an AUC, at most
OVER_LATE = 1.25  # the same with the forward pass of the affected modules alone
SMALL, LARGE, ONE = 100, 150, 2000  # times the loop's trials per second, at least
LARGE_MODEL = "dlrm, 26 tables"


def verdicts(table: "pd.DataFrame") -> "pd.DataFrame":
    """By what is asked for: `asked` (with its direction), `worst` (of all points it is asked of), `where` that is, and `met`.

    Args:
        table: as `campaign_cost` gives it.
    """
    import pandas as pd

    ours = table[table["method"] == OURS]
    rate = ours["rate"]
    embedding, large = ours["target"] == "embedding", ours["model"] == LARGE_MODEL
    single = rate.isna()
    rows = []
    for model in ours["model"].unique():
        here = ours[ours["model"] == model]
        rows.append(_at_most(f"{model}: over the sum of its parts", here, "over_sum", OVER_SUM))
        late = here[here["late_ms"].notna()]
        rows.append(_at_most(f"{model}: late layers alone, over theirs", late, "over_late", OVER_LATE))
    up_to = ours[embedding & ~large & (rate <= LOOP_RATE * 1.001)]
    rows += [
        _at_least(f"{model}: embedding up to {LOOP_RATE:g}, over the loop", up_to[up_to["model"] == model], SMALL)
        for model in up_to["model"].unique()
    ]
    at = ours[embedding & large & (rate / LOOP_RATE - 1).abs().lt(1e-3)]
    rows.append(_at_least(f"{LARGE_MODEL}: embedding at {LOOP_RATE:g}, over the loop", at, LARGE))
    rows.append(
        _at_least(f"{LARGE_MODEL}: one error in embedding, over the loop", ours[embedding & large & single], ONE)
    )
    columns = ["what", "asked", "worst", "where", "met"]
    return pd.DataFrame([row for row in rows if row], columns=columns).set_index("what")


def _at_most(what: str, here: "pd.DataFrame", column: str, bound: float) -> tuple | None:
    if here.empty:
        return None
    worst = here.loc[here[column].idxmax()]
    return what, f"<= {bound:g}", worst[column], _place(worst), bool(worst[column] <= bound)


def _at_least(what: str, here: "pd.DataFrame", bound: float) -> tuple | None:
    if here.empty:
        return None
    worst = here.loc[here["over_loop"].idxmin()]
    return what, f">= {bound:,}", worst["over_loop"], _place(worst), bool(worst["over_loop"] >= bound)


def _place(row: "pd.Series") -> str:
    return f"{row['target']}, {'1 error' if row['rate'] != row['rate'] else format(row['rate'], 'g')}"


def one_flip(table: "pd.DataFrame") -> "pd.DataFrame":
    """Trials of ours in the time of one of the loop that flips one bit and draws no map, by `model` and `target`."""
    single = table[table["rate"].isna()].pivot_table(
        index=["model", "target"], columns="method", values="ms_per_trial", sort=False
    )
    return single.assign(ratio=single[OneFlipLoop.name] / single[OURS])


def describe(table: "pd.DataFrame", growth: "pd.DataFrame", parts: "pd.DataFrame", remarks: list[str]) -> str:
    """All of it as text."""
    ours = table[table["method"] == OURS]
    text = ["\n".join(remarks)]
    for title, column in (
        ("CPU time of a trial (ms)", "ms_per_trial"),
        ("Over the sum of inject and undo, one forward pass and one AUC", "over_sum"),
        ("Over the same with the forward of the reached layers alone", "over_late"),
        (f"Times the trials per second of the {ReloadLoop.name}", "over_loop"),
        ("Rows reached, mean", "rows_reached"),
    ):
        wide = _by_rate(ours, column)
        text.append(f"{title}\n{_text(wide)}") if len(wide) else None
    loops = (
        table[table["method"] != OURS]
        .drop_duplicates(["method", "model", "target"])
        .set_index(["method", "model", "target"])
    )
    loops = loops[["ms_per_trial", "load_ms", "inject_undo_ms", "forward_ms", "auc_ms", "trials"]]
    text.append(f"The loop, CPU time of a trial and its parts (ms)\n{_text(loops)}")
    text.append(f"One error, against a loop that flips one bit and draws no map\n{_text(one_flip(table))}")
    if len(growth):
        text.append(
            f"Growth\n{_text(growth.drop(columns=['model']).set_index(['varied', 'target', 'error_model', 'rate']))}"
        )
    if len(parts):
        cell = ["model", "target", "error_model", "rate"]
        wide = parts.fillna({"rate": -1.0}).pivot_table(index=cell, columns="part", values="share", sort=False)
        total = parts.fillna({"rate": -1.0}).groupby(cell, sort=False)["ms_per_trial"].sum()
        wide = wide.map("{:.0%}".format).assign(ms_per_trial=total.map("{:,.3g}".format))
        text.append(f"Where the time goes\n{wide.rename(index={-1.0: ''}).to_string()}")
    found = verdicts(table)
    found = found.assign(met=found["met"].map({True: "yes", False: "NO"}))
    text.append(f"Asked and measured (the worst of all points)\n{_text(found)}")
    return "\n\n".join(text)


def _by_rate(ours: "pd.DataFrame", column: str) -> "pd.DataFrame":
    labels = ours["rate"].map(lambda rate: "1 error" if rate != rate else f"{rate:g}")
    ours = ours.assign(rate=labels).dropna(subset=[column])
    return ours.pivot_table(index=["model", "target"], columns="rate", values=column, sort=False)


def _text(frame: "pd.DataFrame") -> str:
    return frame.to_string(float_format=lambda value: f"{value:,.3g}" if value < 1e3 else f"{value:,.0f}", na_rep="-")
