"""Interactions in the order of time as a data set of next items: leave-last-out, as in arXiv:1808.09781."""

import hashlib

import numpy as np

from drsrobust.data import Dataset, Feature, Ids, Schema, Split
from drsrobust.extend import digest

HISTORY = "history"  # the feature that holds a row's items in the order of time
PADDING = 0  # the id of no item


def next_items(name: str, user: np.ndarray, item: np.ndarray, seed: int) -> Dataset:
    """The data set of users' sequences. A user's last item is the test row's, the one before the validation row's; of the items
    before these the last is the training row's, and a training learns from all positions of its history. A row's history has
    all earlier items. Users with under three items are in training alone.

    Args:
        name: of the data set, with its schema.
        user, item: whole numbers [n]; each user's items in the order of time. Users may be in any order. Of an item that a
            user has several times the first one counts, since models offer an item once.
        seed: of the order of rows, which is random, so that `head` gives a random sample.

    Raises:
        ValueError: no user has three items.
    """
    names, item = np.unique(item, return_inverse=True)
    _, user_number = np.unique(user, return_inverse=True)
    _, first = np.unique(user_number * len(names) + item, return_index=True)
    order = np.sort(first)  # each user's first interactions with an item
    order = order[np.argsort(user_number[order], kind="stable")]
    users, counts = np.unique(user[order], return_counts=True)
    ids = (item[order] + 1).astype(np.int32)
    if counts.max(initial=0) < 3:
        raise ValueError(
            f"{name}: no user has three items, and leave-last-out needs one for each of training, validation, test"
        )
    ends = np.cumsum(counts)
    starts = ends - counts
    schema = Schema((), (Feature(HISTORY, len(names) + 1, multi_hot=True),))
    hashes = [hashlib.sha256(np.ascontiguousarray(array)).hexdigest() for array in (users, counts, ids)]
    fingerprint = digest(["next items", name, *hashes])
    draw, parts = np.random.default_rng(seed), {}
    source = digest([fingerprint, seed])
    for part, left_out in (("train", 2), ("valid", 1), ("test", 0)):
        held = np.where(counts >= 3, counts - left_out, counts if part == "train" else 0)
        who = draw.permutation(np.flatnonzero(held >= 2))
        label = starts[who] + held[who] - 1
        lengths = (held[who] - 1).astype(np.int32)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        history = Ids(ids[np.repeat(starts[who], lengths) + within], lengths)
        parts[part] = Split(
            np.empty((len(who), 0), np.float32),
            {HISTORY: history},
            Ids(ids[label].astype(np.int64), np.ones(len(who), np.int32)),
            users[who].astype(np.int64),
            order[label],
            name,
            part,
            0.5,
            source,
            len(who),
        )
    return Dataset(name, schema, **parts, fingerprint=fingerprint)
