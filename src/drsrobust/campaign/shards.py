"""Shards of a campaign: each computes its share of every condition's trials into a store of its own; `merge` joins them.

A shard has the trials whose number leaves `index` when divided by `of`, so that all shards take equally long. Of a stratified
campaign each also computes the pilot trials, which decide how many trials the strata get.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drsrobust._arguments import check_items, check_whole, shown, wrong


class Shard(NamedTuple):
    """A part of a campaign: of every condition the trials whose number leaves `index` when divided by `of`."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    @classmethod
    def read(cls, shard: "Shard | tuple[int, int] | str") -> "Shard":
        """A shard from `(3, 8)` or `3/8`.

        Raises:
            ValueError: something else, under one shard, or an index outside of 0 to n - 1.
        """
        right = "(i, n) or 'i/n', as 3/8"
        if isinstance(shard, str):
            if not (parts := re.fullmatch(r"\s*(-?\d+)\s*/\s*(-?\d+)\s*", shard)):
                raise wrong("shard", right, shard)
            shard = int(parts[1]), int(parts[2])
        parts = check_items("shard", shard, right)
        if len(parts) != 2:
            raise wrong("shard", right, shard)
        index, of = (check_whole(f"each part of shard {shown(shard)}", part) for part in parts)
        if of < 1:
            raise ValueError(f"shard is {index}/{of}; a campaign has at least 1 shard")
        if not 0 <= index < of:
            raise ValueError(f"shard is {index}/{of}; of {of} shards the first is 0/{of} and the last {of - 1}/{of}")
        return cls(index, of)

    @classmethod
    def of_manifest(cls, entry: Any) -> "Shard":
        """The shard that a store's manifest says.

        Raises:
            ValueError: it says none.
        """
        if not isinstance(entry, Mapping) or not {"index", "of"} <= set(entry):
            raise wrong("shard", "an object with index and of", entry)
        return cls.read((entry["index"], entry["of"]))


def shard_folder(store: Path, shard: Shard) -> Path:
    """The folder of a shard next to the store of the whole campaign."""
    return store.with_name(f"{store.name}.shard-{shard.index}-of-{shard.of}")


def shard_folders(store: Path) -> list[Path]:
    """The folders of shards next to a store, by name."""
    named = re.compile(re.escape(store.name) + r"\.shard-\d+-of-\d+")
    entries = store.parent.iterdir() if store.parent.is_dir() else ()
    return sorted(entry for entry in entries if named.fullmatch(entry.name) and entry.is_dir())


def full_run_of(folders: Iterable[Path]) -> str | None:
    """Why one of several stores holds full runs, as its manifest says; None where none does."""
    for folder in folders:
        try:
            reason = json.loads((folder / "manifest.json").read_text()).get("full_run")
        except (OSError, ValueError, AttributeError, RecursionError):  # opening that store says what is wrong
            continue
        if reason:
            return reason
    return None
