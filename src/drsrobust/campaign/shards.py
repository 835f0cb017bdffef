"""Shards of a campaign: each computes its share of every condition's trials into a store of its own; `merge` joins them.

A shard has the trials whose number leaves `index` when divided by `of`, so that all shards take equally long. Of a stratified
campaign each also computes the pilot trials, which decide how many trials the strata get.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


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
        try:
            index, of = (int(part) for part in (shard.split("/") if isinstance(shard, str) else shard))
        except (TypeError, ValueError):
            raise ValueError(f"shard is {shard!r}; it must be (i, n) or 'i/n', as 3/8") from None
        if of < 1:
            raise ValueError(f"shard is {index}/{of}; a campaign has at least 1 shard")
        if not 0 <= index < of:
            raise ValueError(f"shard is {index}/{of}; of {of} shards the first is 0/{of} and the last {of - 1}/{of}")
        return cls(index, of)


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
    manifests = (folder / "manifest.json" for folder in folders)
    reasons = (json.loads(path.read_text()).get("full_run") for path in manifests if path.is_file())
    return next(filter(None, reasons), None)
