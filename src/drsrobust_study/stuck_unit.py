"""A defective compute unit: what it costs by bit and lane, what its wrong words look like, and who sees it (notebook 20)."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.extend import call
from drsrobust.injection import BitFlip, ErrorModel, StuckAt, StuckUnit, inject
from drsrobust.introspection import named_modules
from drsrobust.mitigation import (
    ECC,
    ABFTLinear,
    ActivationClipping,
    Chipkill,
    Mitigation,
    NaNGuard,
    Scrubbing,
    WeightRange,
)
from drsrobust_extras.experiments.probe_rows import ProbeRows
from drsrobust_extras.experiments.training_errors.campaign import HARMFUL
from drsrobust_study.effects import measured, over_trainings
from drsrobust_study.effects import table as effect_table
from drsrobust_study.findings import EXACT, exact_share

if TYPE_CHECKING:
    import pandas as pd

KINDS = INVERTED, HIGH, LOW = "inverted", "stuck at 1", "stuck at 0"
STORED, COMPUTED, SCORES = "stored words", "outputs of layers", "scores"  # what a protection looks at
CHECKSUMS, AGAIN, PROBES = "checksums", "checksums, run again", "probe rows"
_BITS = 32
WORDS_OF = 256  # rows whose products are compared word by word


def error(kind: str, bit: int) -> ErrorModel:
    """What becomes of a bit in every word of the lane."""
    return BitFlip(1.0, bits=(bit,)) if kind == INVERTED else StuckAt(int(kind == HIGH), 1.0, bits=(bit,))


def errors(bits: Iterable[int], kinds: Iterable[str] = KINDS) -> list[ErrorModel]:
    """All of some bits and kinds."""
    return [error(kind, bit) for kind in kinds for bit in bits]


def named(table: "pd.DataFrame", units: Iterable[StuckUnit]) -> "pd.DataFrame":
    """Trials of a campaign over `errors` in some units, with `kind`, `bit`, `part`, `lane`, `batches`, and `harmful`: whether
    they cost over 0.005 AUC, or the model raised."""
    defects = {error(kind, bit).label: (kind, bit) for kind in KINDS for bit in range(_BITS)}
    about = {str(unit): (unit.part, unit.lane, unit.batches) for unit in units}
    found, where = table["error_model"].map(defects), table["target"].astype(str).map(about)
    columns = {"kind": found.str[0], "bit": found.str[1].astype(int), "part": where.str[0]}
    columns |= {"lane": where.str[1].astype(int), "batches": where.str[2].astype(float)}
    return table.assign(**columns, harmful=(table["auc_drop"].fillna(1.0) > HARMFUL).astype(bool))


def protections(evaluator: Evaluator, train: Split) -> dict[str, tuple[str, Mitigation]]:
    """Name -> what it looks at, and the protection.

    Args:
        evaluator: of the model.
        train: training rows, of which bounds are learnt.
    """
    model = evaluator.model
    checks = {"": "report", ", run again": "recompute", ", reload": "restore", ", to zero": "zero"}
    return {
        "SECDED": (STORED, ECC()),
        "chipkill": (STORED, Chipkill()),
        "CRC32, scrubbed": (STORED, Scrubbing(period=0.1, window=1.0)),
        "range check": (STORED, WeightRange.fit(model)),
        "NaN guard": (SCORES, NaNGuard(prior=train.prior)),
        "clipping": (COMPUTED, ActivationClipping.fit(model, train, mode="zero")),
        **{CHECKSUMS + text: (COMPUTED, ABFTLinear.fit(model, action=action)) for text, action in checks.items()},
    }


def probed(
    evaluator: Evaluator, probes: ProbeRows, defects: Iterable[ErrorModel], units: Iterable[StuckUnit]
) -> "pd.DataFrame":
    """Which defects change a bit of a probe row's score: `error_model`, `target`, `rows_needed` (missing: none does)."""
    import pandas as pd

    rows, units = [], list(units)
    for defect in defects:
        for unit in units:
            with inject(evaluator.model, defect, unit, seed=0) as error_map:
                needed = probes.rows_needed(error_map)
            rows.append({"error_model": defect.label, "target": str(unit), "rows_needed": needed})
    return pd.DataFrame(rows).astype({"rows_needed": "Int64"})


def seen(table: "pd.DataFrame", chosen: Mapping[str, tuple[str, Mitigation]], found: "pd.DataFrame") -> "pd.DataFrame":
    """Who sees the defects of one trained model, and what a protection gives back of the AUC that the harmful ones cost.

    Args:
        table: `named` trials, without and with each protection.
        chosen: `protections`.
        found: `probed`, of the same defects.

    Returns:
        `protection`, `looks_at`, `n` and `reported` (defects, and those that it reports), `harmful` and `harmful_reported`
        (of these), `share` (reported of the harmful ones), `given_back` (missing of probe rows, which change nothing).
    """
    import pandas as pd

    keys, rows = ["error_model", "target"], []
    plain = table[table["mitigation"] == "none"].set_index(keys)
    bad = plain.index[plain["harmful"]]
    for name, (looks_at, mitigation) in chosen.items():
        own = table[table["mitigation"] == mitigation.name].set_index(keys)
        left = own.loc[bad, "auc_drop"].sum() / plain.loc[bad, "auc_drop"].sum() if len(bad) else np.nan
        rows.append((name, looks_at, own["detected"].fillna(False).astype(bool), 1 - left))
    needed = found.assign(target=found["target"].astype(str)).set_index(keys)["rows_needed"]
    rows.append((PROBES, SCORES, needed.notna(), np.nan))
    columns = ("protection", "looks_at", "n", "reported", "harmful", "harmful_reported", "share", "given_back")
    return pd.DataFrame(
        [
            (
                name,
                looks_at,
                len(flags),
                int(flags.sum()),
                len(bad),
                int(flags.loc[bad].sum()),
                flags.loc[bad].mean(),
                back,
            )
            for name, looks_at, flags, back in rows
        ],
        columns=columns,
    )


def joined(tables: "Mapping[int, pd.DataFrame]") -> "pd.DataFrame":
    """`seen` of several trained models as one: counts add up; `given_back` is their mean, with `_least` and `_most`."""
    import pandas as pd

    grouped = pd.concat(tables.values()).groupby(["protection", "looks_at"], sort=False)
    total = grouped[["n", "reported", "harmful", "harmful_reported"]].sum()
    back = grouped["given_back"].agg(given_back="mean", given_back_least="min", given_back_most="max")
    return total.assign(share=total["harmful_reported"] / total["harmful"]).join(back).reset_index()


@torch.no_grad()
def wrong_words(evaluator: Evaluator, defects: Iterable[ErrorModel], units: Sequence[StuckUnit]) -> "pd.DataFrame":
    """The wrong words in outputs of linear layers whose inputs are right: each layer alone, on the inputs that it has without
    errors.

    Args:
        evaluator: of the model; the first `WORDS_OF` of its rows.
        defects: what becomes of the lane's words.
        units: where.

    Returns:
        `part`, `words` (of all outputs), `wrong`, `single` (those with one wrong bit), `nonfinite` (infinite or NaN, where the
        right word is not), `elsewhere` (in columns of other lanes): sums over layers and defects.
    """
    import pandas as pd

    inputs: dict[str, torch.Tensor] = {}
    layers = {name: one for name, one in named_modules(evaluator.model) if isinstance(one, nn.Linear)}

    def keep(name: str) -> Callable[[nn.Module, tuple], None]:
        return lambda layer, args: inputs.update({name: args[0]})

    handles = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        call(evaluator.model, evaluator.rows.head(WORDS_OF).batch(), None, 0)
    finally:
        for handle in handles:
            handle.remove()
    rows: list[dict[str, Any]] = []
    for name, x in inputs.items():
        golden = layers[name](x)
        for unit in [one for one in units if one.lane < golden.shape[1]]:
            lanes = torch.arange(golden.shape[1]) % unit.period
            for defect in defects:
                with inject(layers[name], defect, unit, seed=0):
                    wrong = layers[name](x)
                masks = (golden.view(torch.int32) ^ wrong.view(torch.int32)).numpy().view(np.uint32)
                infinite = golden.isfinite() & ~wrong.isfinite()
                row = {"part": unit.part, "words": masks.size, "wrong": np.count_nonzero(masks)}
                row |= {"single": int((np.bitwise_count(masks) == 1).sum()), "nonfinite": int(infinite.sum())}
                rows.append(row | {"elsewhere": np.count_nonzero(masks[:, lanes.numpy() != unit.lane])})
    return pd.DataFrame(rows).groupby("part", sort=False).sum().reset_index()


def slowdown(evaluator: Evaluator, units: Iterable[StuckUnit], turns: int) -> "pd.DataFrame":
    """CPU time of scoring all rows on a sound unit and on each defective one, in turns.

    Returns:
        `part`, `plain_ms`, `unit_ms` (medians), `slower_percent` (median of the turns).
    """
    import pandas as pd

    rows = []
    for unit in units:
        times = []
        for _ in range(turns + 1):
            began = time.process_time()
            evaluator.run()
            middle = time.process_time()
            with inject(evaluator.model, error(INVERTED, 30), unit, seed=0) as error_map:
                evaluator.rerun(error_map)
            times.append((1e3 * (middle - began), 1e3 * (time.process_time() - middle)))
        plain, hit = np.array(times[1:]).T  # without the first turn, which includes initialisation
        percent = 100 * float(np.median(hit / plain) - 1)
        rows.append((unit.part, float(np.median(plain)), float(np.median(hit)), percent))
    return pd.DataFrame(rows, columns=["part", "plain_ms", "unit_ms", "slower_percent"])


def of_training(table: "pd.DataFrame", detectors: Sequence[str], actions: Sequence[str]) -> "pd.DataFrame":
    """What a defect that begins during training costs: a row for each, with the steps until each detector's first alarm and the
    AUC lost with each action.

    Args:
        table: `named` trials of a `TrainingCampaign`.
        detectors, actions: names.
    """
    keys = ["batches", "kind", "bit"]
    alarms = {f"alarm_{name}": table[f"alarm_{name}"] for name in detectors}
    left = {f"lost_{name}": table["auc_golden"] - table[f"auc_{name}"].fillna(0.0) for name in actions}
    shown = table[[*keys, "part", "lane", "step", "auc_golden", "auc_drop", "mode"]].assign(**alarms, **left)
    return shown.sort_values(keys, ascending=[False, True, False]).reset_index(drop=True)


def effects(
    tables: "Mapping[int, pd.DataFrame]",
    lanes: "Mapping[int, pd.DataFrame]",
    who: "Mapping[int, pd.DataFrame]",
    words: "Mapping[int, pd.DataFrame]",
    training: "pd.DataFrame",
) -> "pd.DataFrame":
    """The notebook's numbers over trained models (`drsrobust_study.effects.table`).

    Args:
        tables: training seed -> `named` trials by bit, of one lane.
        lanes: the same by lane.
        who: `seen`.
        words: `wrong_words`.
        training: `of_training`, of one training.
    """
    rows, lane = [], int(next(iter(tables.values()))["lane"].iloc[0])

    def lost(name: str, what: str, query: str, of: "Mapping[int, pd.DataFrame]" = tables) -> None:
        rows.append(over_trainings(name, what, [one.query(query)["auc_drop"].max() for one in of.values()]))

    for part in ("accumulator", "multiplier"):
        own = f"part == '{part}' and kind == '{INVERTED}'"
        lost(f"bit 30 {part}", f"AUC lost, bit 30 of the {part} of lane {lane} inverted", f"{own} and bit == 30")
        lost(f"bit 31 {part}", f"AUC lost, bit 31 (sign) of the {part} of lane {lane} inverted", f"{own} and bit == 31")
        lost(
            f"mantissa {part}", f"AUC lost, the worst bit of the mantissa, {part} of lane {lane}", f"{own} and bit < 23"
        )
        counts = [int(one.query(own)["harmful"].sum()) for one in tables.values()]
        rows.append(
            over_trainings(f"harmful {part}", f"bits of 32 whose inversion costs over {HARMFUL} AUC, {part}", counts)
        )
    lost(
        "sign lane 0",
        "AUC lost, sign of the accumulator of lane 0, which has the last layer's one column",
        _SIGN,
        lanes,
    )
    lost("sign others", "the same, the worst other lane", _SIGN.replace("==", "!=", 1), lanes)
    for name, looks_at in next(iter(who.values()))[["protection", "looks_at"]].itertuples(index=False):
        own = [one.set_index("protection").loc[name] for one in who.values()]
        text = f"share of the harmful defects that are reported: {name} ({looks_at})"
        rows.append(over_trainings(f"reported {name}", text, [one["share"] for one in own]))
        if name != PROBES:
            text = f"share of the AUC lost to harmful defects that comes back: {name}"
            rows.append(over_trainings(f"given back {name}", text, [one["given_back"] for one in own]))
    for part in ("accumulator", "multiplier"):
        own = [one.set_index("part").loc[part] for one in words.values()]
        for name, what in (
            ("single", "with one wrong bit"),
            ("nonfinite", "infinite or NaN"),
            ("elsewhere", "of other lanes"),
        ):
            text = f"wrong words of layers, all bits of the {part} alike: share {what}"
            rows.append(over_trainings(f"{name} {part}", text, [one[name] / one["wrong"] for one in own]))
    for share, some in training.groupby("batches", sort=False):
        bad = some[some["auc_drop"] > HARMFUL]
        for action in [name.removeprefix("lost_") for name in training if name.startswith("lost_")]:
            repaired = int((bad[f"lost_{action}"] <= HARMFUL).sum())
            text = (
                f"defects in {share:g} of the batches of training that cost over {HARMFUL} AUC, and not with {action}"
            )
            found = list(exact_share(repaired, len(bad)).values())
            why = "" if len(bad) else f"none of {len(some)} was harmful"
            rows.append(
                measured(f"{action} {share:g}", f"{text}: {repaired} of {len(bad)}", found, len(bad), EXACT, why)
            )
    return effect_table(rows)


_SIGN = f"lane == 0 and bit == 31 and part == 'accumulator' and kind == '{INVERTED}'"
