"""Chosen against random flips: AUC by their number, and claim C15 (notebook 16)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._progress import progress_bar
from drsrobust.allowed_flips import Allowed, blocks
from drsrobust.chosen_flips import WorstCase
from drsrobust.evaluation import Evaluator
from drsrobust.injection import AddressSpace, ErrorMap, FixedCount
from drsrobust.mitigation.base import Screened
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import stringer_interval
from drsrobust_study.findings import interval
from drsrobust_study.thirds import THIRD

if TYPE_CHECKING:
    import pandas as pd

CHOSEN, RANDOM = "chosen", "random"
NONE_REACHES = float("inf")  # flips to half of the AUC over 0.5, where no number that was tried is enough


def random_flips(
    evaluator: Evaluator,
    allowed: Mapping[str, Allowed],
    counts: Iterable[int],
    *,
    trials: int,
    seed: int,
    progress: bool = True,
) -> "pd.DataFrame":
    """Trials of random flips: for each way in which flips are allowed as many as `counts`, drawn uniformly among those.

    Args:
        evaluator: of the rows that are scored.
        allowed: a name -> which flips.
        counts: of flips in a trial.
        trials: for each name and count.
        seed: of the first trial.
        progress: shows a progress bar.

    Returns:
        `allowed` (the name), `flips`, `trial`, `auc`; an AUC of 0 where the model raised. Counts over the number of blocks that
        may have one flip each are left out.

    Raises:
        ValueError: a count over the number of flips that are allowed at once.
    """
    import pandas as pd

    counts, rows = list(counts), []
    with progress_bar(len(allowed) * len(counts) * trials, "random flips", progress=progress) as bar:
        for name, kind in allowed.items():
            space = kind.space(evaluator.model)
            for count in counts:
                if kind.one_per is not None and count > space.rows(kind.one_per):
                    bar.update(trials)  # there are not so many
                    continue
                for trial in range(trials):
                    errors = _drawn(kind, space, count, seed + trial)
                    if errors.bits < count:
                        raise ValueError(
                            f"{name}: only {errors.bits:,} flips are allowed at once, not {count:,}; give smaller counts"
                        )
                    with errors.applied(evaluator.model):
                        auc = evaluator.rerun(errors).auc
                    rows.append({"allowed": name, "flips": count, "trial": trial, "auc": 0.0 if auc is None else auc})
                    bar.update()
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


def chosen_and_random(
    found: Mapping[str, WorstCase], measured: "Mapping[str, pd.DataFrame]", random: "pd.DataFrame", evaluator: Evaluator
) -> "pd.DataFrame":
    """AUC by the number of flips.

    Args:
        found: a name -> the chosen flips.
        measured: a name -> `WorstCase.measure` on the rows of `evaluator`.
        random: of `random_flips`, with the same names.
        evaluator: of the rows that were scored.

    Returns:
        `model`, `dataset`, `allowed`, `how` (`chosen` or `random`), `flips`, `n` (trials), `auc` with `_low` and `_high`
        (Stringer's bound; of chosen flips none), `auc_golden`.
    """
    import pandas as pd

    about = {"model": evaluator.name, "dataset": evaluator.rows.dataset}
    rows = []
    for name in found:
        for row in measured[name].itertuples():
            ends = {"auc": row.auc, "auc_low": np.nan, "auc_high": np.nan}
            rows.append(about | {"allowed": name, "how": CHOSEN, "flips": row.flips, "n": 1} | ends)
        for count, trials in random[random["allowed"] == name].groupby("flips"):
            ends = dict(
                zip((f"auc{end}" for end in ENDS), stringer_interval(trials["auc"].to_numpy(), (0.0, 1.0)), strict=True)
            )
            rows.append(about | {"allowed": name, "how": RANDOM, "flips": count, "n": len(trials)} | ends)
    return pd.DataFrame(rows).assign(auc_golden=evaluator.golden.auc)


def flips_to_half(curves: "pd.DataFrame") -> "pd.DataFrame":
    """How many flips take half of the AUC over 0.5, chosen and random.

    Args:
        curves: of `chosen_and_random`.

    Returns:
        `allowed`, `chosen`, `random` (the first of the counts that were tried whose mean is so low; infinite where none is),
        `ratio`.
    """
    import pandas as pd

    rows = []
    for name, part in curves.groupby("allowed", sort=False):
        numbers = {}
        for how, curve in part.groupby("how"):
            enough = curve[curve["auc"] <= 0.5 + (curve["auc_golden"] - 0.5) / 2]
            numbers[how] = enough["flips"].min() if len(enough) else NONE_REACHES
        row = {"allowed": name, "chosen": numbers.get(CHOSEN, np.nan), "random": numbers.get(RANDOM, np.nan)}
        rows.append(row | {"ratio": row["random"] / row["chosen"] if row["chosen"] < NONE_REACHES else np.nan})
    return pd.DataFrame(rows)


def chosen_against_random(
    curves: "pd.DataFrame", random: "pd.DataFrame", *, chosen_flips: int, random_flips: int
) -> "pd.DataFrame":
    """Findings on C15: shares of the AUC over 0.5 that a few chosen flips take, and that more random ones take.

    Args:
        curves: of `chosen_and_random`.
        random: its trials.
        chosen_flips: at most so many chosen ones.
        random_flips: random ones.

    Returns:
        a row for each name and kind of flips that was tried (`reading`), of random flips also on thirds of the trials: `value`,
        `low`, `high`, `n`, `detail`, `reason`.
    """
    import pandas as pd

    rows, golden = [], float(curves["auc_golden"].iloc[0])

    def lost(auc: float) -> float:
        return (golden - auc) / (golden - 0.5)

    for name, part in curves.groupby("allowed", sort=False):
        chosen = part[(part["how"] == CHOSEN) & (part["flips"] <= chosen_flips)].iloc[-1]
        value = lost(chosen["auc"])
        row = {"claim": "C15", "reading": f"chosen: {name}", "value": value, "low": value, "high": value, "n": 1}
        rows.append(row | {"detail": f"AUC {chosen['auc']:.4f} after {chosen['flips']} flips", "reason": "", THIRD: 0})
        trials = random[(random["allowed"] == name) & (random["flips"] == random_flips)]
        for third in range(0 if not len(trials) else 4 if len(trials) >= 18 else 1):
            some = trials if third == 0 else trials[trials["trial"] % 3 == third - 1]
            mean, low, high = stringer_interval(some["auc"].to_numpy(), (0.0, 1.0))
            row = {
                "claim": "C15",
                "reading": f"random: {name}",
                "value": lost(mean),
                "low": lost(high),
                "high": lost(low),
            }
            rows.append(
                row
                | {"n": len(some), "interval": "95 %, Stringer's bound", "detail": f"AUC {interval(mean, low, high)}"}
                | {"reason": "", THIRD: third}
            )
    return pd.DataFrame(rows)
