"""Tables of campaigns of made-up trials."""

import pandas as pd

GOLDEN = 0.8
BASE = {"model": "m", "dataset": "synthetic-x", "protocol": "corrected", "error_model": "BitFlip", "target": "all"}
BASE |= {"mitigation": "none", "auc_golden": GOLDEN, "logloss": 0.5, "ne": 0.9, "checkpoint": "c", "data": "d"}
BASE |= {"rate": 1e-3, "ber": 1e-3, "nan_rows": 0, "inf_rows": 0, "n_sites": 1000, "n_events": 1}


def table_of(auc, **columns):
    """Trials of one condition, but for the columns; one without an AUC has raised."""
    numbers = {"trial": range(len(auc)), "seed": range(len(auc))}
    frame = pd.DataFrame({"auc": auc}).assign(**BASE | numbers | columns)
    if "outcome" not in columns:
        frame["outcome"] = frame["auc"].isna().map({True: "raised", False: "ok"})
    return frame.assign(auc_drop=frame["auc_golden"].astype(float) - frame["auc"].astype(float))
