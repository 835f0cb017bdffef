"""Number formats of weights: quality without errors, loss by single flips, claims C14 and C17 (notebook 15)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from drsrobust.campaign import Campaign, bit_partition
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.introspection import components
from drsrobust.metrics.auc import auc_difference
from drsrobust.mitigation import BitProtection
from drsrobust.models import stored_as
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.summary import summarise
from drsrobust_study.components import single_errors, stratified_loss
from drsrobust_study.findings import EXTREMES, interval, ratio
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.data import Split

DENSE, TABLES = "dense layers", "tables"
SCALED = ("fp8_e4m3", "fp8_e5m2")  # served with a scale for each tensor
RATE = 1e-9  # wrong bits among those that are stored
EXPONENTS = BitProtection(("exponent",))


class Stored(NamedTuple):
    """A model with one of its parts in a format: which part, the format, and its evaluator."""

    part: str
    format: str
    evaluator: Evaluator


def stored_models(model: nn.Module, rows: "Split", dense: Iterable[str], tables: Iterable[str]) -> list[Stored]:
    """The model with its dense layers in each format (tables stay as they are), then with its tables in each.

    Args:
        model: of float32.
        rows: that are scored.
        dense, tables: formats of `stored_as`; dense ones of 8 bits get a scale for each tensor.
    """
    made = [(DENSE, f, {"dense": f, "scale": "tensor" if f in SCALED else "none"}) for f in dense]
    made += [(TABLES, f, {"tables": f}) for f in tables]
    return [Stored(part, name, Evaluator(stored_as(model, **formats), rows)) for part, name, formats in made]


def clean_cost(model: nn.Module, stored: Iterable[Stored]) -> "pd.DataFrame":
    """What a format costs without errors.

    Args:
        model: of float32, from which the others were made.
        stored: of `stored_models`.

    Returns:
        one row per part and format: `numbers` (weights of the part), `megabytes` (of its storage, scales and padding
        included), `auc`, `auc_change` against `model` on the same rows with `_low` and `_high` (DeLong, paired).
    """
    import pandas as pd

    rows = []
    for part, name, evaluator in stored:
        golden, labels = evaluator.golden, evaluator.rows.labels
        plain = Evaluator(model, evaluator.rows).golden
        change = auc_difference(labels, golden.probabilities, plain.probabilities)[:3]
        row = {"part": part, "format": name, "numbers": _sizes(model, part)["parameters"]}
        row |= {"megabytes": _sizes(evaluator.model, part)["bits"] / 8e6, "auc": golden.auc}
        rows.append(row | dict(zip((f"auc_change{end}" for end in ENDS), change, strict=True)))
    return pd.DataFrame(rows)


def _sizes(model: nn.Module, part: str) -> dict[str, int]:
    """Parameters and bits of a part."""
    table = components(model)
    return table[(table["component"] == "embedding") == (part == TABLES)][["parameters", "bits"]].sum().to_dict()


def partition_of(stored: Stored) -> "pd.DataFrame":
    """`bit_partition` of the part that is in the format."""
    model = stored.evaluator.model
    inside = components(model).query("parameters > 0")["component"]
    return bit_partition(model, [name for name in inside if (name == "embedding") == (stored.part == TABLES)])


def flips(stored: Iterable[Stored], *, trials: int, seed: int) -> "dict[tuple[str, str], pd.DataFrame]":
    """Part and format -> trials with one flipped bit in that part, `trials` in each component and class of bits."""
    return {
        (one.part, one.format): Campaign(
            one.evaluator, conditions=single_errors(partition_of(one)), trials=trials, seed=seed
        ).run()
        for one in stored
    }


def flip_losses(
    stored: Iterable[Stored], flips: "Mapping[tuple[str, str], pd.DataFrame]", numbers: Mapping[str, int]
) -> "pd.DataFrame":
    """AUC that flipped bits cost, by part and format.

    Args:
        stored: of `stored_models`.
        flips: their trials.
        numbers: weights of each part.

    Returns:
        `model`, `dataset`, `part`, `format`, `n` (trials), `bits`, and with `_low` and `_high`: `per_bit` (AUC lost by one
        flipped bit), `per_weight` (times the bits per weight, scales included), `at_rate` (times all bits and `RATE`: the loss
        to be expected where one in 10^9 stored bits is wrong).
    """
    import pandas as pd

    rows = []
    for one in stored:
        trials = flips[one.part, one.format]
        (loss,) = stratified_loss(trials, partition_of(one), one.evaluator.rows, by=()).to_dict("records")
        row = {name: loss[name] for name in ("model", "dataset", "n", "bits")} | {
            "part": one.part,
            "format": one.format,
        }
        for name, times in (
            ("per_bit", 1.0),
            ("per_weight", loss["bits"] / numbers[one.part]),
            ("at_rate", loss["bits"] * RATE),
        ):
            row |= {f"{name}{end}": loss[f"auc_drop{end}"] * times for end in ENDS}
        rows.append(row)
    return pd.DataFrame(rows)


def class_losses(stored: Iterable[Stored], flips: "Mapping[tuple[str, str], pd.DataFrame]") -> "pd.DataFrame":
    """`stratified_loss` by class of bits, with `part` and `format`; the scales of dense layers are a class of their own."""
    import pandas as pd

    frames = []
    for one in stored:
        partition, trials = partition_of(one), flips[one.part, one.format]
        if one.part == DENSE and one.format in SCALED:
            is_scale = partition["format"] == "float32"
            partition = partition.assign(bit_class=partition["bit_class"].mask(is_scale, "scale"))
        losses = stratified_loss(trials, partition, one.evaluator.rows, by=("bit_class",))
        frames.append(losses.assign(part=one.part, format=one.format))
    return pd.concat(frames, ignore_index=True)


def narrow_against_wide(
    stored: Iterable[Stored], flips: "Mapping[tuple[str, str], pd.DataFrame]", part: str, narrow: str, wide: str
) -> "pd.DataFrame":
    """Findings on C17b: how many times a flipped bit of one format costs that of another, in one part of the model.

    Returns:
        one row on all trials, and on thirds: `reading`, `value`, `low`, `high`, `n`, `interval`, `detail`, `reason`.
    """
    import pandas as pd

    chosen = {one.format: one for one in stored if one.part == part}
    parts = {name: (partition_of(chosen[name]), chosen[name].evaluator.rows) for name in (narrow, wide)}

    def find(narrow_trials: "pd.DataFrame", wide_trials: "pd.DataFrame") -> "pd.DataFrame":
        losses, n = [], 0
        for name, trials in ((narrow, narrow_trials), (wide, wide_trials)):
            (loss,) = stratified_loss(trials, *parts[name], by=()).to_dict("records")
            losses.append([loss[f"auc_drop{end}"] for end in ENDS])
            n += loss["n"]
        detail = f"{interval(*losses[0])} AUC a flip in {narrow}, {interval(*losses[1])} in {wide}"
        row = {"claim": "C17b", "reading": f"{narrow} over {wide}", **ratio(*losses), "n": n}
        return pd.DataFrame([row | {"interval": EXTREMES, "detail": detail, "reason": ""}])

    return by_thirds(find, flips[part, narrow], flips[part, wide])


def quality_cost(clean: "pd.DataFrame", part: str, narrow: str) -> "pd.DataFrame":
    """Findings on C17a: the change of AUC without errors by a format of one part."""
    import pandas as pd

    (row,) = clean[(clean["part"] == part) & (clean["format"] == narrow)].to_dict("records")
    whole = clean[(clean["part"] == part) & (clean["format"] == "fp32")]["megabytes"].iloc[0]
    ends = dict(zip(("value", "low", "high"), (row[f"auc_change{end}"] for end in ENDS), strict=True))
    detail = f"{row['megabytes'] / whole:.1%} of the memory of {part} in fp32"
    found: dict[str, Any] = {"claim": "C17a", "reading": f"{part} in {narrow}", **ends, "n": 1}
    return pd.DataFrame([found | {"interval": "95 %, DeLong, paired", "detail": detail, "reason": "", "third": 0}])


def kept_under_errors(evaluator: Evaluator, *, ber: float, trials: int, seed: int) -> "pd.DataFrame":
    """Findings on C14: the share of AUC over 0.5 that a model keeps under errors in all its bits, without protection, and with
    all exponents in ideal cells.

    Args:
        evaluator: of a model in the formats of the claim.
        ber: bit error rate.
        trials: error maps.
        seed: of these.

    Returns:
        on all trials, and on thirds, a row for each protection: `reading`, `value`, `low`, `high`, `n`, `detail`, `reason`.
    """
    import pandas as pd

    protections = [None, EXPONENTS]
    table = Campaign(evaluator, errors=[BitFlip(ber)], mitigations=protections, trials=trials, seed=seed).run()
    above = evaluator.golden.auc - 0.5

    def find(table: "pd.DataFrame") -> "pd.DataFrame":
        rows = []
        for row in summarise(table, ["auc"]).to_dict("records"):
            ends = {
                name: (row[f"auc{end}"] - 0.5) / above for name, end in zip(("value", "low", "high"), ENDS, strict=True)
            }
            reading = "no protection" if row["mitigation"] == "none" else "exponents protected"
            detail = f"AUC {interval(*(row[f'auc{end}'] for end in ENDS))} of {evaluator.golden.auc:.4f}"
            rows.append({"claim": "C14", "reading": reading, **ends, "n": row["n"], "detail": detail, "reason": ""})
        return pd.DataFrame(rows)

    return by_thirds(find, table)
