"""Number formats of weights: quality without errors, loss by single flips, what is left under many (notebook 15)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from drsrobust.campaign import Campaign, bit_partition
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.introspection import components
from drsrobust.metrics import auc_difference
from drsrobust.statistics import ENDS, summarise
from drsrobust_extras.data.stored_as import stored_as
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_study.components import single_errors, stratified_loss
from drsrobust_study.effects import of_table, table
from drsrobust_study.findings import ratio

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
            one.evaluator, conditions=single_errors(partition_of(one)), trials=trials, seed=seed, sampling="plain"
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
        times = {"per_bit": 1.0, "per_weight": loss["bits"] / numbers[one.part], "at_rate": loss["bits"] * RATE}
        rows.append(
            row | {f"{name}{end}": loss[f"auc_drop{end}"] * factor for name, factor in times.items() for end in ENDS}
        )
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


def kept_under_errors(evaluator: Evaluator, *, ber: float, trials: int, seed: int) -> "pd.DataFrame":
    """The share of AUC over 0.5 that a model keeps under errors in all its bits, without protection, and with all exponents in
    ideal cells.

    Args:
        evaluator: of a model.
        ber: bit error rate.
        trials: error maps.
        seed: of these.

    Returns:
        a row for each protection: `protection`, `value`, `low`, `high`.
    """
    protections = [None, EXPONENTS]
    options = {"mitigations": protections, "trials": trials, "seed": seed, "sampling": "plain"}
    trial_rows = Campaign(evaluator, errors=[BitFlip(ber)], **options).run()
    above, rows = evaluator.golden.auc - 0.5, summarise(trial_rows, ["auc"])
    ends = zip(("value", "low", "high"), ENDS, strict=True)
    shares = {name: (rows[f"auc{end}"] - 0.5) / above for name, end in ends}
    return rows[[]].assign(protection=["no protection", "exponents protected"], **shares)


def effects(
    cleans: "Mapping[int, pd.DataFrame]", losses: "Mapping[int, pd.DataFrame]", kept: "Mapping[int, pd.DataFrame]"
) -> "pd.DataFrame":
    """What formats cost (`drsrobust_study.effects`); each argument is by training seed.

    Args:
        cleans: `clean_cost`.
        losses: `flip_losses`, against those in `fp32` of the same part.
        kept: `kept_under_errors`, with `format`, the formats of the model in words.
    """
    import pandas as pd

    rows, clean = [], pd.concat(cleans.values())
    clean = clean.rename(columns=dict(zip((f"auc_change{end}" for end in ENDS), ("value", "low", "high"), strict=True)))
    for (part, name), found in clean[clean["format"] != "fp32"].groupby(["part", "format"], sort=False):
        rows.append(of_table(f"change {part} {name}", f"change of AUC without errors, {part} in {name}", found))
    for quantity, what in (("per_bit", "by one flipped bit"), ("at_rate", "at an equal rate of wrong bits")):
        over: dict[tuple[str, str], list[dict[str, float]]] = {}
        for found in losses.values():
            ends = {
                (row["part"], row["format"]): [row[f"{quantity}{end}"] for end in ENDS]
                for row in found.to_dict("records")
            }
            for (part, name), narrow in ends.items():
                if name != "fp32" and (part, "fp32") in ends:
                    over.setdefault((part, name), []).append(ratio(narrow, ends[part, "fp32"]))
        for (part, name), ratios in over.items():
            text = f"loss {what}, {part} in {name} over fp32"
            rows.append(of_table(f"{quantity} {part} {name}", text, pd.DataFrame(ratios), log=True))
    for (name, protection), found in pd.concat(kept.values()).groupby(["format", "protection"], sort=False):
        rows.append(of_table(f"kept {protection}, {name}", f"share of AUC over 0.5 kept, {name}, {protection}", found))
    return table(rows)
