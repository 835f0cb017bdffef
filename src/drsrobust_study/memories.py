"""What memories of today change in notebooks 12 and 13: codes that miscorrect, advice for a GPU, an accelerator, a server."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import drsrobust as dr
from drsrobust.mitigation import LinearCode, miscorrected, mixed_columns, odd_columns, random_columns
from drsrobust_extras.pages.plots.curves import mitigation_label
from drsrobust_extras.protection.memories import CHAIN
from drsrobust_extras.risk.fleet_risk import Fleet
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd

PLATFORMS = {"hbm4": "a GPU (HBM4)", "lpddr6": "an LPDDR6 accelerator", "ddr5": "a DDR5 server"}
DOUBLES, TRIPLES = "double errors, SEC (136,128)", "triple errors, SEC-DED (72,64)"
_PUBLISHED = {DOUBLES: CHAIN[0].value, TRIPLES: CHAIN[1].value}
_FEWEST = 8  # columns of even weight that SEC (136,128) needs: 120 others of odd weight do not reach 128


def matrices(seeds: Sequence[int], *, most_even: int = 64) -> "pd.DataFrame":
    """How many double errors SEC on die turns into triple ones, and how many triples SEC-DED then miscorrects, by the parity
    check matrix. Exact for each matrix.

    Args:
        seeds: of random matrices, one for each.
        most_even: of the columns of SEC, how many have an even weight at most, in steps of 8.

    Returns:
        `errors`, `matrix`, `even` (columns of even weight of SEC; NaN: not chosen by it), `least` and `most` share that is
        miscorrected, over seeds, and the `published` share.
    """
    import pandas as pd

    rows = []
    for even in range(_FEWEST, most_even + 1, 8):
        shares = [_doubles(mixed_columns(128, 8, even=even, seed=seed)) for seed in seeds]
        rows.append((DOUBLES, f"{even} columns of even weight", even, min(shares), max(shares)))
    shares = [_doubles(random_columns(128, 8, seed=seed)) for seed in seeds]
    rows.append((DOUBLES, "random columns", np.nan, min(shares), max(shares)))
    in_order = miscorrected(dr.OnDieECC().code, 2)
    rows.append((DOUBLES, "numbers in order", np.nan, in_order, in_order))
    shares = [_triples(odd_columns(64, 8, seed=seed)) for seed in seeds]
    rows.append((TRIPLES, "random columns of odd weight", np.nan, min(shares), max(shares)))
    for name, columns in (
        ("the lowest weights first", sorted(odd_columns(120, 8), key=lambda column: (column.bit_count(), column))[:64]),
        ("odd weight, numbers in order", sorted(odd_columns(120, 8))[:64]),
    ):
        share = _triples(columns)
        rows.append((TRIPLES, name, np.nan, share, share))
    table = pd.DataFrame(rows, columns=["errors", "matrix", "even", "least", "most"])
    return table.assign(published=table["errors"].map(_PUBLISHED))


def nearest(table: "pd.DataFrame") -> str:
    """The matrices of `matrices` that come nearest to the published shares, as a sentence."""
    parts = []
    for errors, rows in table.groupby("errors", sort=False):
        off = (rows[["least", "most"]].mean(axis=1) - rows["published"]).abs()
        row = rows.loc[off.idxmin()]
        parts.append(
            f"Of {errors} {_span(rows['least'].min(), rows['most'].max())} are miscorrected, by the matrix; nearest to the "
            f"published {number(row['published'])}: {row['matrix']}, {_span(row['least'], row['most'])}."
        )
    return " ".join(parts)


def recovered(trials: "Mapping[str, pd.DataFrame]") -> "pd.DataFrame":
    """What faults of devices of each memory cost, and what protections give back, as ranges over modes of faults, since rates
    by mode are not known.

    Args:
        trials: memory -> trials of `MemoryFault(mode, memory=)` with `mitigations=[None, ...]`.

    Returns:
        `memory`, `mitigation`, `modes`, `n` trials of each, `lost_least` and `lost_most`, AUC without protection,
        `recovery_least` and `recovery_most` (NaN: no mode loses AUC clearly), `stopped_least` and `stopped_most`, shares of
        faults whose host stops (NaN: it does not say); `bits_left_most`, wrong bits that it left of a fault.
    """
    import pandas as pd

    rows = []
    for memory, table in trials.items():
        stopped = table["stopped"].astype("boolean").to_numpy(float, na_value=np.nan)
        stops = table.assign(stopped=stopped).groupby(["mitigation", "error_mode"])["stopped"].mean()
        found = dr.recovery(table)
        mode_of = table.drop_duplicates("error_model").set_index("error_model")["error_mode"]
        for mitigation, modes in found.groupby("mitigation", sort=False):
            row = {"memory": memory, "mitigation": mitigation, "modes": ", ".join(modes["error_model"].map(mode_of))}
            row |= {"n": int(modes["n"].min())} | _range("lost", modes["lost"]) | _range("recovery", modes["recovery"])
            left = table.loc[table["mitigation"] == mitigation, "bits_left"]
            rows.append(row | _range("stopped", stops[mitigation]) | {"bits_left_most": left.max()})
    return pd.DataFrame(rows)


def lead(table: "pd.DataFrame") -> str:
    """A line for each memory of `recovered`: what a failed device costs there, what gives it back, and whether chipkill can."""
    sentences = []
    for memory, rows in table.groupby("memory", sort=False):
        lost = _span(rows["lost_least"].min(), rows["lost_most"].max())
        parts = [
            f"{mitigation_label(row.mitigation)} "
            + (
                "leaves no wrong bit"
                if row.bits_left_most == 0
                else f"gives back {_span(row.recovery_least, row.recovery_most)}"
            )
            for row in rows.itertuples()
        ]
        sentences.append(
            f"{PLATFORMS[memory]}: a fault of a device costs {lost} AUC, by its mode; {'; '.join(parts)}. {chipkill(memory)}"
        )
    return "\n".join(sentences)


def worded(table: "pd.DataFrame") -> "pd.DataFrame":
    """`recovered` with its ranges in words."""
    import pandas as pd

    left = table["bits_left_most"] == 0
    shares = [
        "all of it: no wrong bit is left" if none else _span(row.recovery_least, row.recovery_most)
        for none, row in zip(left, table.itertuples(), strict=True)
    ]
    stops = [
        "" if np.isnan(row.stopped_most) else _span(row.stopped_least, row.stopped_most) for row in table.itertuples()
    ]
    return pd.DataFrame(
        {
            "memory": table["memory"].map(PLATFORMS),
            "a fault of a device costs, AUC": [_span(row.lost_least, row.lost_most) for row in table.itertuples()],
            "protection": table["mitigation"].map(mitigation_label),
            "gives back, share": shares,
            "stops the host, share of faults": stops,
            "chipkill": table["memory"].map(lambda name: chipkill(name).partition(":")[0].rstrip(".")),
        }
    )


def fleets_worded(table: "pd.DataFrame") -> "pd.DataFrame":
    """`fleets` with its ranges in words."""
    import pandas as pd

    def spans(name: str) -> list[str]:
        ends = table[[f"{name}_least", f"{name}_most"]].itertuples(index=False)
        return ["not known" if np.isnan(least) else _span(least, most) for least, most in ends]

    return pd.DataFrame(
        {
            "memory": table["memory"].map(PLATFORMS),
            "protection": table["protection"].map(mitigation_label),
            "wrong recommendations a day (95 % interval over drawn faults)": spans("wrong"),
            "stopped hosts (likewise), or errors and stops of GPUs by published rates, a day": spans("stops"),
            "rates": table["rates"],
        }
    )


def chipkill(memory: str) -> str:
    """Whether chipkill is to be had, in words."""
    try:
        dr.memory(memory).check_chipkill()
    except ValueError as refused:
        return f"No chipkill: {refused}."
    return "Chipkill corrects a device."


def fleets(today: "Mapping[str, Fleet | None]", accelerators: Fleet) -> "pd.DataFrame":
    """What memories of today cost a fleet a day, as far as sources say.

    Args:
        today: memory -> its fleet, by rates that are assumed; None where none are.
        accelerators: a fleet with accelerators, for rates of whole devices.

    Returns:
        `memory`, `protection`; `wrong_least`, `wrong_most`, recommendations a day; `stops_least`, `stops_most`, hosts that stop
        a day, or by published rates of devices their uncorrectable errors; NaN where no rate is known; `rates`, where from.
    """
    import pandas as pd

    rows = []
    for memory, fleet in today.items():
        kind = dr.memory(memory)
        if fleet is not None:
            for one in fleet.table().itertuples():
                wrong = {"wrong_least": one.wrong_per_day_low, "wrong_most": one.wrong_per_day_high}
                stops = {"stops_least": one.stops_anywhere_per_day_low, "stops_most": one.stops_anywhere_per_day_high}
                rows.append({"memory": memory, "protection": one.mitigation, **wrong, **stops, "rates": "assumed"})
            continue
        row = {"memory": memory, "protection": "its own codes", "wrong_least": np.nan, "wrong_most": np.nan}
        found = accelerators.uncorrectable(memory)["value"] if kind.uncorrectable else pd.Series([], dtype=float)
        rows.append(row | _range("stops", found) | {"rates": "HBM3, published" if len(found) else "none"})
    return pd.DataFrame(rows)


def fleet_lead(table: "pd.DataFrame", accelerators: Fleet) -> str:
    """A line for each memory of `fleets`, with what is not known."""
    sentences = []
    for memory, rows in table.groupby("memory", sort=False):
        parts = []
        for row in rows.itertuples():
            wrong, stops = _span(row.wrong_least, row.wrong_most), _span(row.stops_least, row.stops_most)
            if row.rates == "assumed":
                label = f"{mitigation_label(row.protection)}, by rates that are assumed"
                parts.append(f"{label}: {wrong} wrong recommendations and {stops} stopped hosts a day")
            elif row.rates == "none":
                parts.append("no rate was read, so neither wrong recommendations nor stops are known")
            else:
                devices = f"{accelerators.hosts * accelerators.accelerators:,} devices, by published rates of HBM3"
                parts.append(f"{stops} memory errors or stops of GPUs a day by published rates, in {devices}")
                parts.append("wrong recommendations are not known")
        sentences.append(f"{PLATFORMS[memory]}: {'; '.join(parts)}. {chipkill(memory)}")
    return "\n".join(sentences)


def _doubles(columns: Sequence[int]) -> float:
    return miscorrected(LinearCode(columns, 8), 2)


def _triples(columns: Sequence[int]) -> float:
    return miscorrected(LinearCode(columns, 8), 3)


def _range(name: str, values: "pd.Series") -> dict[str, float]:
    return {f"{name}_least": float(values.min()), f"{name}_most": float(values.max())}


def _span(least: float, most: float) -> str:
    """Both ends in words; one where they are the same."""
    if np.isnan(least) or np.isnan(most):
        return "what so few trials do not show"
    return number(least) if number(least) == number(most) else f"{number(least)} to {number(most)}"
