"""Chosen against random flips: AUC by their number (notebook 16)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.extend import progress_bar
from drsrobust.injection import AddressSpace, ErrorMap, FixedCount
from drsrobust.mitigation import ECC, Screened, WeightRange
from drsrobust.statistics import ENDS, stringer_interval, summarise
from drsrobust_extras.experiments.allowed_flips import Allowed, blocks
from drsrobust_extras.experiments.chosen_flips import WorstCase
from drsrobust_study.effects import of_table, over_trainings, table

if TYPE_CHECKING:
    import pandas as pd

CHOSEN, RANDOM = "chosen", "random"
_AUC = tuple(f"auc{end}" for end in ENDS)


def kinds(model: nn.Module) -> dict[str, Allowed]:
    """A name -> which flips may be chosen in a model: any; those that a range check of the weights leaves in it, of all bits,
    at most one in 8 KB, or in tables alone; and pairs in a word of SECDED, which detects and cannot correct them."""
    passes = WeightRange.fit(model)
    found = {"any bit": Allowed(), "in range": Allowed(passes=passes)}
    found["pairs in a word of SECDED"] = Allowed(passes=ECC(), pairs_in=8)
    found["in range, one per 8 KB"] = Allowed(passes=passes, one_per=8192)
    return found | {"in range, in tables": Allowed("embedding", passes=passes)}


def random_flips(
    evaluator: Evaluator,
    allowed: Mapping[str, Allowed],
    counts: Iterable[int],
    *,
    trials: int,
    seed: int,
) -> "pd.DataFrame":
    """AUC under random flips, as many as `counts` for each way in which flips are allowed, drawn uniformly among those. Those
    of any bit are drawn by strata (`sampling="stratified"`), since the few critical bits do nearly all harm.

    Args:
        evaluator: of the rows that are scored.
        allowed: a name -> which flips.
        counts: of flips in a trial.
        trials: for each name and count.
        seed: of the first trial.

    Returns:
        `allowed` (the name), `how` (`random`), `flips`, `n` (trials), `auc` with `_low` and `_high` (of plain trials Stringer's
        bound; an AUC of 0 where the model raised). Counts over the number of blocks that may have one flip each are left out.

    Raises:
        ValueError: a count over the number of flips that are allowed at once.
    """
    import pandas as pd

    counts, rows = list(counts), []

    def add(name: str, count: int, n: int, ends: Iterable[float]) -> None:
        about: dict[str, Any] = {"allowed": name, "how": RANDOM, "flips": count, "n": n}
        rows.append(about | dict(zip(_AUC, ends, strict=True)))

    with progress_bar(len(allowed) * len(counts), "random flips") as bar:
        for name, kind in allowed.items():
            space = kind.space(evaluator.model)
            for count in counts:
                bar.update()
                if kind == Allowed():
                    options = {"trials": trials, "seed": seed, "sampling": "stratified"}
                    campaign = Campaign(evaluator, errors=[FixedCount(count)], **options)
                    (row,) = summarise(campaign.run(progress=False), ["auc"]).to_dict("records")
                    add(name, count, row["n"], [row[end] for end in _AUC])
                elif kind.one_per is None or count <= space.rows(kind.one_per):  # else there are not so many
                    aucs = []
                    for trial in range(trials):
                        errors = _drawn(kind, space, count, seed + trial)
                        if errors.bits < count:
                            raise ValueError(
                                f"{name}: only {errors.bits:,} flips are allowed at once, not {count:,}; give smaller counts"
                            )
                        with errors.applied(evaluator.model):
                            aucs.append(evaluator.rerun(errors).auc or 0.0)
                    add(name, count, trials, stringer_interval(np.array(aucs), (0.0, 1.0)))
    return pd.DataFrame(rows)


def _drawn(allowed: Allowed, space: AddressSpace, count: int, seed: int) -> ErrorMap:
    """So many flips that are allowed, at random: flips of any bit are drawn until enough of them are."""
    random, drawn = np.random.default_rng([seed, count]), count
    while True:
        errors = FixedCount(min(drawn, space.bits)).sample(space, seed=seed)
        places = errors.tensor.astype(np.int64) << 40 | errors.word
        admitted = np.arange(len(errors))
        if allowed.passes is not None:
            left = Screened.by(allowed.passes, errors, space, seed=seed).remaining
            there = np.searchsorted(places, left.tensor.astype(np.int64) << 40 | left.word)
            admitted = there[errors.mask[there] == left.mask]
        order = random.permutation(admitted)
        if allowed.one_per is not None:
            block = blocks(space, errors.tensor, errors.word, allowed.one_per)
            _, first = np.unique(block[order], return_index=True)
            order = order[np.sort(first)]
        if len(order) >= count or drawn >= space.bits:
            chosen = order[:count]
            return errors.with_words(errors.tensor[chosen], errors.word[chosen], errors.mask[chosen])
        drawn *= 2


def chosen_and_random(found: Mapping[str, WorstCase], random: "pd.DataFrame", evaluator: Evaluator) -> "pd.DataFrame":
    """AUC by the number of flips in one trained model.

    Args:
        found: a name -> the chosen flips.
        random: of `random_flips`, with names of these.
        evaluator: of the rows that are scored.

    Returns:
        `model`, `dataset`, `allowed`, `how` (`chosen` or `random`), `flips`, `n` (trials), `auc` with `_low` and `_high`
        (of chosen flips none), `auc_golden`.
    """
    import pandas as pd

    chosen = [worst.measure(evaluator).assign(allowed=name, how=CHOSEN, n=1) for name, worst in found.items()]
    joined = pd.concat([*chosen, random], ignore_index=True).reindex(columns=["allowed", "how", "flips", "n", *_AUC])
    joined.insert(0, "model", evaluator.name)
    joined.insert(1, "dataset", evaluator.rows.dataset)
    return joined.assign(auc_golden=evaluator.golden.auc)


def flips_to_half(curves: "pd.DataFrame") -> "pd.DataFrame":
    """How many flips take half of the AUC over 0.5: the first of the numbers that were tried whose AUC (of random flips, its
    mean) is so low; infinite where none is.

    Args:
        curves: of `chosen_and_random`, with `train_seed`.

    Returns:
        `allowed`, `train_seed`, and `chosen` and `random`.
    """
    enough = curves["auc"] <= 0.5 + (curves["auc_golden"] - 0.5) / 2
    keys = ["allowed", "train_seed", "how"]
    first = curves.assign(flips=curves["flips"].where(enough, np.inf)).groupby(keys, sort=False)["flips"].min()
    return first.unstack("how").reset_index().rename_axis(columns=None)


def effects(curves: "pd.DataFrame", *, random_flips: int) -> "pd.DataFrame":
    """What chosen flips do in several trained models, and what so many random ones do (`drsrobust_study.effects`).

    Args:
        curves: of `chosen_and_random`, with `train_seed`.
        random_flips: one of the counts.
    """
    share = {f"taken{end}": (curves["auc_golden"] - curves[f"auc{other}"]) / (curves["auc_golden"] - 0.5)
             for end, other in zip(ENDS, ("", "_high", "_low"), strict=True)}  # fmt: skip
    curves = curves.assign(**share).rename(columns=dict(zip(share, ("value", "low", "high"), strict=True)))
    half, rows = flips_to_half(curves), []
    for name, part in curves.groupby("allowed", sort=False):
        last = part[part["how"] == CHOSEN].groupby("train_seed", sort=False).last()
        over = int((last["auc"] > 0.5).sum())
        why = {"why": f"test AUC still over 0.5 in {over} of {len(last)} trainings"} if over else {}
        what = f"{name}: chosen flips until AUC on the rows of the search is 0.5, or all of them"
        rows.append(over_trainings(f"flips {name}", what, last["flips"]) | why)
        needed = half.loc[half["allowed"] == name, CHOSEN]
        why = {"why": f"not reached in {n} of {len(needed)} trainings"} if (n := int(np.isinf(needed).sum())) else {}
        rows.append(over_trainings(f"half {name}", f"{name}: chosen flips that take half", needed) | why)
        rows.append(
            over_trainings(f"chosen {name}", f"{name}: share of AUC over 0.5 that the chosen flips take", last["value"])
        )
        some = part[(part["how"] == RANDOM) & (part["flips"] == random_flips)]
        if len(some):
            what = f"{name}: share of AUC over 0.5 that {random_flips} random flips take"
            rows.append(of_table(f"random {name}", what, some))
    return table(rows)
