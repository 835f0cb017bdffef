"""What trials of the dummy model show, in words with their numbers (E2)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign.dummy import FACTORS
from drsrobust.campaign.statistics import LEVEL

if TYPE_CHECKING:
    import pandas as pd

INPUTS = 10_000  # of the study
MARKS = (
    f"Points: means; bars: {LEVEL:.0%} intervals over error maps (Student's t; where all trials are alike, what they may have "
    "missed)."
)


def trend_text(trends: "pd.DataFrame") -> list[str]:
    """Each row of `factor_trends` in words, with its numbers.

    Example:
        >>> import pandas as pd
        >>> one = {"factor": "width", "least": 64, "greatest": 512, "at_least": 0.1, "at_greatest": 0.3, "change": 0.2}
        >>> one |= {"change_low": 0.15, "change_high": 0.25, "up": 2, "down": 0, "steps": 3}
        >>> trend_text(pd.DataFrame([one]))
        ['width 64 to 512: 10.0 % to 30.0 % of inputs (+20.0 [+15.0, +25.0] points; surely up at 2, down at 0 of 3 steps)']
    """
    return [
        f"{row.factor} {row.least:g} to {row.greatest:g}: {100 * row.at_least:.1f} % to {100 * row.at_greatest:.1f} % of "
        f"inputs ({100 * row.change:+.1f} [{100 * row.change_low:+.1f}, {100 * row.change_high:+.1f}] points; surely up at "
        f"{row.up}, down at {row.down} of {row.steps} steps)"
        for row in trends.itertuples()
    ]


def deviation_caption(
    summary: "pd.DataFrame", cells: Sequence[Mapping[str, float]], *, marks: str | None = None
) -> str:
    """What a reader must know of a figure made of this summary: data, models, trials, intervals, what varies, what was left
    out of the study's grid.

    Args:
        summary: as `deviation_summary` returns it.
        cells: as `factor_grid` gave them, the middle one first.
        marks: a sentence on what is drawn; None: points are means with Student's t.
    """
    densities, rates = ({f"{one:g}": None for one in sorted(summary[name].unique())} for name in ("density", "ber"))
    fewest, most = summary["n"].min(), summary["n"].max()
    middle = ", ".join(f"{name.replace('_', ' ')} {level:g}" for name, level in cells[0].items())
    text = (
        f"Data: synthetic-dummy (generated inputs, not real clicks), densities {', '.join(densities)}; "
        f"{summary['n_inputs'].iloc[0]:,} inputs. Untrained models, drawn once per cell. "
        f"{fewest if fewest == most else f'{fewest} to {most}'} trials per point, each with its own error map. "
        f"Off: more than 1 % from the score without errors; NaN and infinities are. {marks or MARKS} Middle: {middle}."
    )
    released = summary[summary["protocol"] == "as_released"]
    if len(released):
        last = released.sort_values("ber").iloc[-1]
        text += (
            " As released: rows 0 and 1 of the table alone are read, and errors pile up from batch to batch and rate to rate: "
            f"at {last['ber']:g} a share of {last['present']:.2g} of all bits is wrong on average."
        )
    every = len(cells) == np.prod([len({cell[name] for cell in cells}) for name in FACTORS])
    left = ([] if every else ["one factor is varied at a time"]) + (
        [f"rates are {', '.join(rates)}"] if len(rates) < 5 else []
    )
    if (inputs := summary["n_inputs"].iloc[0]) < INPUTS:
        left.append(f"inputs are {inputs:,}, which vary far less than error maps")
    return text + (
        f" The study ran all combinations at 5 rates on {INPUTS:,} inputs; here {', '.join(left)}." if left else ""
    )


def component_text(shares: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding")) -> str:
    """The rows of `component_shares` of one protocol in words, and the verdict on "per bit the first is the weak part":
    `reproduced` where it does surely more per wrong bit in every cell, `partly` in some, `not` in none.

    Example:
        >>> import pandas as pd
        >>> rows = [{"bits_share": 0.04, "share": 0.3, "per_bit_mlp": 0.01, "per_bit_embedding": 0.001, "verdict": "more"},
        ...         {"bits_share": 0.10, "share": 0.8, "per_bit_mlp": 0.05, "per_bit_embedding": 0.001, "verdict": "unclear"}]
        >>> component_text(pd.DataFrame(rows))
        'mlp does surely more per wrong bit than embedding in 1 of 2 cells, surely less in 0 (medians: 3 % and 0.1 % of inputs);
        in total it causes 30 % to 80 % of what both do, with 4 % to 10 % of the bits: partly'
    """
    return ": ".join(_component_finding(shares, parts))


def _component_finding(shares: "pd.DataFrame", parts: Sequence[str]) -> tuple[str, str]:
    """What `component_text` says, and its verdict."""
    first, second = parts
    more, less = (int((shares["verdict"] == word).sum()) for word in ("more", "less"))
    verdict = "not" if not more else "reproduced" if more == len(shares) else "partly"
    per_bit = [f"{100 * shares[f'per_bit_{part}'].median():.2g} %" for part in parts]
    ends = [f"{100 * shares[name].min():.3g} % to {100 * shares[name].max():.3g} %" for name in ("share", "bits_share")]
    return (
        f"{first} does surely more per wrong bit than {second} in {more} of {len(shares)} cells, surely less in {less} "
        f"(medians: {per_bit[0]} and {per_bit[1]} of inputs); in total it causes {ends[0]} of what both do, with {ends[1]} of "
        "the bits"
    ), verdict


def component_claims(shares: "pd.DataFrame") -> "pd.DataFrame":
    """`component_text` of each protocol as a table: `protocol`, `value`, `low` and `high` (the first component's part of what
    errors do in either, in the first cell, the middle one), `verdict`, and `detail` in words.

    Args:
        shares: as `component_shares` returns it, with a column `protocol`.
    """
    import pandas as pd

    rows = []
    for protocol, here in shares.groupby("protocol", sort=False):
        detail, verdict = _component_finding(here, ("mlp", "embedding"))
        value, low, high = here[["share", "share_low", "share_high"]].iloc[0]
        rows.append(
            {"protocol": protocol, "value": value, "low": low, "high": high, "verdict": verdict, "detail": detail}
        )
    return pd.DataFrame(rows)


def protocol_text(summary: "pd.DataFrame", *, ber: float) -> str:
    """How the two protocols differ at one nominal rate: bits that are wrong while inputs are scored, and inputs that deviate
    by errors in each target (least and greatest mean over cells).

    Args:
        summary: as `deviation_summary` returns it, of both protocols.
        ber: nominal rate.
    """
    here = summary[summary["ber"] == ber]
    said = []
    for protocol, rows in here.groupby("protocol", sort=False):
        means = rows.groupby("target", sort=False)["deviated_0.01"]
        ranges = [
            f"{target} {100 * low:.2g} to {100 * high:.2g} %"
            for target, low, high in means.agg(["min", "max"]).itertuples()
        ]
        said.append(
            f"{protocol}: {rows['present'].mean():.2g} of the bits wrong, inputs off by errors in {', '.join(ranges)}"
        )
    return f"At {ber:g}, over all cells, {'; '.join(said)}"
