"""The union of error maps."""

from dataclasses import replace

import numpy as np

from drsrobust.injection.error_map import ErrorMap, Fingerprint


def union(maps: list[ErrorMap]) -> ErrorMap:
    """The errors of some maps (at least one) in one. Its error model is their sum; seed and log are the first one's.

    Raises:
        ValueError: the maps do not fit together.
    """
    known: dict[str, Fingerprint] = {}
    for entry in (entry for one in maps for entry in one.fingerprint):
        other = known.setdefault(entry.name, entry)
        if (other.shape, other.format) != (entry.shape, entry.format):
            raise ValueError(
                f"the maps were made for different models: {entry.name!r} is {list(other.shape)} {other.format} in one, "
                f"{list(entry.shape)} {entry.format} in the other"
            )
    names = sorted(known)
    number = {name: index for index, name in enumerate(names)}
    places = [np.array([number[name] for name in one.targets] or [0], np.int32)[one.tensor] for one in maps]
    tensor, word = np.concatenate(places), np.concatenate([one.word for one in maps])
    mask = np.concatenate([one.mask for one in maps])
    order = np.lexsort((word, tensor))
    tensor, word, mask = tensor[order], word[order], mask[order]
    starts = first_of_runs(tensor, word)
    original = depends = None
    if any(one.original is not None for one in maps):
        nothing = [np.zeros(len(one), np.uint64) for one in maps]
        original = np.concatenate(
            [z if o.original is None else o.original for o, z in zip(maps, nothing, strict=True)]
        )[order]
        depends = np.concatenate([_depends(one) for one in maps])[order]
        run = np.cumsum(np.isin(np.arange(len(word)), starts)) - 1
        value = np.zeros(len(starts), np.uint64)
        value[run[depends]] = original[depends]
        if (value[run[depends]] != original[depends]).any():
            raise ValueError("the maps were made for two states of a model: a word that both were made from differs")
        original, depends = value, np.logical_or.reduceat(depends, starts) if len(starts) else depends
    if len(starts):
        tensor, word, mask = tensor[starts], word[starts], np.bitwise_or.reduceat(mask, starts)
    first = maps[0]
    # Where targets overlap, how many bits are eligible in both is not known any more.
    hit = [name for one in maps for name in one.targets]
    sizes = [one.eligible_bits for one in maps]
    eligible = sum(sizes) if len(set(hit)) == len(hit) and None not in sizes else None
    joined = ErrorMap(
        tensor,
        word,
        mask,
        tuple(known[name] for name in names),
        first.seed,
        " + ".join(sorted(one.error_model for one in maps)),
        eligible,
        None,
        original=original,
        depends=depends,
        log=next((one.log for one in maps if one.log is not None), None),
        sources=tuple(source for one in maps for source in one.sources),
    )
    if any(one.drawn is not one for one in maps):  # of parts of maps: what all were drawn as
        drawn = union([one.drawn for one in maps])
        return replace(joined, drawn_bits=drawn.bits, _drawn=drawn)
    return joined


def first_of_runs(tensor: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Where each word's entries begin, in entries sorted by (tensor, word)."""
    if not len(word):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], (word[1:] != word[:-1]) | (tensor[1:] != tensor[:-1]))))


def _depends(error_map: ErrorMap) -> np.ndarray:
    if error_map.original is None:
        return np.zeros(len(error_map), bool)
    return np.ones(len(error_map), bool) if error_map.depends is None else error_map.depends
