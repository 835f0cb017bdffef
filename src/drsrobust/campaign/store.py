"""The result store: a folder with a manifest and Parquet chunks, each complete or absent.

Contract: a finished trial is never changed and never stored again. A chunk belongs to one condition and carries the store's
identity. One process writes at a time, others may read meanwhile. Chunks of another campaign, damaged chunks and duplicate
trials are refused by name.

Chunks are joined: by their writer, as it goes, and all of a store of many chunks when it is opened for writing. A joined chunk
carries the names of those that it replaces. These are ignored, and deleted when they can be, so a kill at any time loses
nothing.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust._files import make_folder, new_file, stale_parts, warn_of_writers
from drsrobust._hashing import digest
from drsrobust._locks import exclusive
from drsrobust.campaign.chunk_file import (
    StoreError,
    difference,
    keys_of,
    may_hold,
    read_chunk,
    why,
    write_chunk,
)
from drsrobust.campaign.shards import Shard

JOINED_TRIALS = 1024  # of a joined chunk at least, but for the last of a condition
MANY_CHUNKS = 1000  # a store with more is compacted when it is opened for writing
JOINED_CHUNKS = 32  # chunks of a condition that a writer joins as it goes
PATIENCE = 10.0  # seconds to wait for another writer: the lock of a killed run takes a moment to vanish


class Store:
    """The store of one campaign.

    Args:
        folder: created at the first write.
        definition: JSON value of all that decides the results; its hash is the store's identity.
        about: further entries of the manifest (versions, commit, machine), which are not part of the identity.
        schema: of a stored trial, as `stored_schema()` gives it; `condition` and `trial` are int64.
        shard: whose trials it holds, in the manifest: `index`, `of`, and `pilots`, by condition; None: a whole campaign's.

    Attributes:
        full_run: why all trials of the store are full runs, as `restart` recorded it; None if they need not be.
        made_by: `about` of the process that made the store.

    Raises:
        StoreError: the folder holds another campaign, or cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        definition: dict[str, Any],
        provenance: dict[str, Any],
        schema: pa.Schema,
        shard: dict[str, Any] | None = None,
    ) -> None:
        self.shard = shard
        self.folder, self.identity, self.schema = Path(folder), digest(definition), schema.remove_metadata()
        self._definition, self._about = definition, provenance
        self._known: dict[int, set[int]] | None = None  # trials by condition, while this store is held for writing
        self._new: dict[int, list[tuple[Path, pa.Table]]] = {}  # chunks that this writer has not joined yet
        # Columns of all trials, from when this store is held for writing until a trial is written.
        self._kept: pa.Table | None = None
        self.full_run: str | None = None
        self.made_by = provenance
        if file := next((place for place in (self.folder, *self.folder.parents) if os.path.isfile(place)), None):
            raise StoreError(f"{file} is a file; it must be a folder. Pass another store=")
        warn_of_writers(self.folder)
        self._check_manifest()

    def __repr__(self) -> str:
        return f"<Store {self.folder}>"

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _check_manifest(self) -> bool:
        """Whether there is a manifest. Raises StoreError for one of another campaign."""
        try:
            manifest = json.loads(self._manifest.read_text())
            definition = manifest.get("definition") if isinstance(manifest, dict) else None
            if not isinstance(definition, dict) or definition.keys().isdisjoint(self._definition):
                raise StoreError(
                    f"{self._manifest} is not of a campaign; pass another store=, and leave this file alone"
                )
            self.full_run, self.made_by = manifest.get("full_run"), dict(manifest.get("about", {}))
            there = None if manifest.get("shard") is None else Shard.of_manifest(manifest["shard"])
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{self._manifest} cannot be read: {why(error)}") from error
        except (ValueError, RecursionError, TypeError) as error:
            raise StoreError(
                f"{self._manifest} is damaged, or is not of a campaign ({error}); pass another store=, or, if a campaign wrote "
                "it, delete it and the .parquet files there to start again"
            ) from error
        if definition.get("format") != self._definition.get("format"):
            raise StoreError(
                f"{self.folder} was written by another version of drsrobust (format {definition.get('format')}; this one reads "
                f"{self._definition.get('format')}). Pass another store=, or none: then its name follows from the definition"
            )
        if digest(definition) != self.identity:
            keys = sorted(set(definition) | set(self._definition))
            differing = [key for key in keys if definition.get(key) != self._definition.get(key)]
            raise StoreError(
                f"{self.folder} holds the results of another campaign; they differ in {', '.join(differing)}.\n"
                f"there: { {key: definition.get(key) for key in differing} }\n"
                f"asked: { {key: self._definition.get(key) for key in differing} }\n"
                "Pass another store=, or none: then its name follows from the definition"
            )
        held, asked = (
            "a whole campaign" if part is None else f"shard {part}"
            for part in (there, self.shard and Shard.of_manifest(self.shard))
        )
        if held != asked:
            raise StoreError(f"{self.folder} holds {held}, not {asked}")
        return True

    @contextmanager
    def writing(self, columns: Sequence[str] = ()) -> Iterator[np.ndarray]:
        """Holds the store for writing. The lock belongs to this process and to those it forks.

        Args:
            columns: that are read from all chunks at once, and kept for `read` until a trial is written; empty: none are kept.

        Yields:
            the stored trials, as `keys` returns them.

        Raises:
            StoreError: another process is writing to it, it now holds another campaign, it cannot be written to, or a chunk is
                damaged.
        """
        with ExitStack() as stack:
            try:
                self._lock(stack)
                stack.callback(self._release)
                keys = self._open(columns)
            except OSError as error:
                raise StoreError(f"{self.folder} cannot be written to: {why(error)}") from error
            conditions, starts = np.unique(keys[:, 0], return_index=True)
            parts = np.split(keys[:, 1], starts[1:])
            self._known = {c: set(part.tolist()) for c, part in zip(conditions.tolist(), parts, strict=False)}
            yield keys

    def _release(self) -> None:
        self._known, self._new, self._kept = None, {}, None

    def _lock(self, stack: ExitStack) -> None:
        if os.environ.get("DRSROBUST_WAIT"):
            stack.enter_context(exclusive(self.folder))
            return
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                stack.enter_context(exclusive(self.folder, wait=False))
                return
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    raise StoreError(
                        f"{self.folder} is in use: another process is writing to it; DRSROBUST_WAIT=1 waits for its end"
                    ) from error
                time.sleep(0.1)

    def _open(self, columns: Sequence[str]) -> np.ndarray:
        """Prepares the folder under the lock; returns the stored trials."""
        make_folder(self.folder)
        warn_of_writers(self.folder)
        for stale in stale_parts(self.folder, r".*\.parquet|manifest\.json"):
            stale.unlink()  # of a killed writer: nobody else holds the lock
        exists = self._check_manifest()  # again: another process may have created the store meanwhile
        self._kept = self.read(columns).combine_chunks() if columns else None
        keys = self.keys()  # chunks without a manifest may be another campaign's
        if not exists:
            self._write_manifest()
        fewest = len(np.unique(keys[:, 0])) + len(keys) // JOINED_TRIALS
        if len(self._names()) > MANY_CHUNKS + fewest:
            self.compact()
        return keys

    def _write_manifest(self) -> None:
        manifest = {"definition": self._definition, "about": self._about, "full_run": self.full_run}
        manifest |= {} if self.shard is None else {"shard": self.shard}
        with new_file(self._manifest) as part:
            part.write_text(json.dumps(manifest, indent=1))

    def restart(self, full_run: str) -> None:
        """Deletes all trials, inside `writing()`, and records why the following ones are full runs.

        The chunks are deleted first: a store without them and without the record computes them again.

        Raises:
            StoreError: the folder cannot be written to.
        """
        if self._known is None:
            raise StoreError(f"{self.folder} is not held for writing; use `with store.writing():`")
        try:
            for chunk in self.folder.glob("*.parquet"):
                chunk.unlink()
            self._known, self._new, self._kept, self.full_run = {}, {}, None, full_run
            self._write_manifest()
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be written to: {why(error)}") from error

    def write(self, table: pa.Table) -> None:
        """Adds finished trials of one condition as one chunk, inside `writing()`.

        Args:
            table: the columns of `schema`; one value of `condition`; `trial` ascending, not necessarily without gaps.

        Raises:
            StoreError: another table, a trial that is stored already, or a chunk that cannot be written; then nothing of it is
                left, and all stored trials are kept.
        """
        if self._known is None:
            raise StoreError(f"{self.folder} is not held for writing; use `with store.writing():`")
        condition, trials = self._checked(table)
        trials_of = self._known.setdefault(condition, set())
        if twice := trials_of.intersection(trials):
            raise StoreError(f"{self.folder}: trial {min(twice)} of condition {condition} is stored already")
        try:
            path = self._write_chunk(table)
        except OSError as error:
            total = sum(len(trials) for trials in self._known.values())
            raise StoreError(
                f"a chunk of {self.folder} cannot be written: {why(error)}. Nothing of it is left; the {total:,} trials that "
                "were stored before are kept. When there is room, run again: it continues from there"
            ) from error
        trials_of.update(trials)
        self._kept = None
        new = self._new.setdefault(condition, [])
        new.append((path, table))
        if len(new) == JOINED_CHUNKS:
            self._new[condition] = []
            with suppress(OSError):  # as where the disk is full: the chunks stay
                joined = self._join(condition, new)
                if len(joined[1]) < JOINED_TRIALS:  # the next ones are added to it
                    self._new[condition] = [joined]

    def _write_chunk(self, table: pa.Table, replaced: Sequence[str] = ()) -> Path:
        """As `write_chunk`; raises StoreError if the folder is gone."""
        if not self._manifest.exists():  # new_file would create the folder again
            raise StoreError(f"{self.folder} was deleted or moved away while it was being written to; run again")
        return write_chunk(self.folder, table, self.identity, replaced)

    def compact(self) -> None:
        """Joins chunks, under the lock of `writing()`, to at most one for each condition and 1,024 trials.

        Raises:
            StoreError: a chunk that is damaged, foreign, renamed or gone, or a duplicate trial.
            OSError: the disk is full, or the folder cannot be written to; nothing is lost.
        """
        chunks = self._load(self.schema)
        for name in set(self._names()) - {path.name for path, _ in chunks}:
            (self.folder / name).unlink()  # replaced already
        for condition, group in groupby(self._by_condition(chunks), key=lambda chunk: chunk[0]):
            joined: list[tuple[Path, pa.Table]] = []
            rest = sorted(((path, table) for _, path, table in group), key=lambda chunk: chunk[1]["trial"][0].as_py())
            for number, (path, table) in enumerate(rest):
                joined.append((path, table))
                last = max(part["trial"][-1].as_py() for _, part in joined)
                apart = number + 1 == len(rest) or rest[number + 1][1]["trial"][0].as_py() > last
                if apart and (sum(len(part) for _, part in joined) >= JOINED_TRIALS or number + 1 == len(rest)):
                    self._join(condition, joined)
                    joined = []

    def _join(self, condition: int, chunks: Sequence[tuple[Path, pa.Table]]) -> tuple[Path, pa.Table]:
        """Replaces chunks of a condition by one, which it returns."""
        if len(chunks) == 1:
            return chunks[0]
        table = self._sorted(chunks, self.schema)
        joined = self._write_chunk(table, [path.name for path, _ in chunks])
        for path, _ in chunks:
            path.unlink()
        return joined, table

    def _checked(self, table: pa.Table) -> tuple[int, list[int]]:
        """Condition and trials of a table. Raises StoreError if it cannot be a chunk."""
        if not table.schema.equals(self.schema):
            raise StoreError(f"{self.folder}: the trials have other columns, {difference(table.schema, self.schema)}")
        try:
            condition, trials = keys_of(table)
        except ValueError as error:
            raise StoreError(f"{self.folder}: {error}") from error
        return condition, trials.tolist()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All finished trials by condition, then trial. It may be called while another process writes, and includes every chunk
        written before the call.

        Args:
            columns: names, in their order; None: all of the schema.

        Raises:
            StoreError: a chunk that is damaged, foreign, renamed or gone, or a duplicate trial.
        """
        names = self.schema.names if columns is None else list(columns)
        kept = self._kept
        if kept is not None and set(names) <= set(kept.column_names):
            return kept.select(names)
        schema = pa.schema([field for field in self.schema if field.name in {"condition", "trial", *names}])
        return self._sorted(self._load(schema), schema).select(names)

    def trial(self, condition: int, trial: int) -> pa.Table:
        """A stored trial, one row.

        Raises:
            StoreError: as `read`, or no such trial.
        """
        for name in self._names():  # also a chunk that is replaced holds the trial
            if may_hold(name, condition, trial):
                table, _ = read_chunk(self.folder / name, self.identity, self.schema)
                if len(found := np.flatnonzero(table["trial"].to_numpy() == trial)):
                    return table.slice(found[0], 1)
        raise StoreError(f"{self.folder} holds no trial {trial} of condition {condition}")

    def keys(self) -> np.ndarray:
        """Condition and number of each finished trial: int64 [n, 2], ascending. Raises as `read`."""
        names = ["condition", "trial"]
        table = self.read(names)
        return np.stack([table[name].to_numpy() for name in names], axis=1)

    def _load(self, schema: pa.Schema) -> list[tuple[Path, pa.Table]]:
        """The columns of a schema of the chunks that are not replaced."""
        while True:
            paths = [self.folder / name for name in self._names()]
            try:
                with ThreadPoolExecutor() as threads:
                    chunks = list(threads.map(partial(read_chunk, identity=self.identity, schema=schema), paths))
                break
            except StoreError:
                if [path.name for path in paths] == self._names():
                    raise  # else a writer has compacted the store meanwhile
        replaced = {name for _, names in chunks for name in names}
        return [(path, table) for path, (table, _) in zip(paths, chunks, strict=True) if path.name not in replaced]

    def _names(self) -> list[str]:
        """The names of all chunks in the folder."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".parquet"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read: {why(error)}") from error

    def _sorted(self, chunks: list[tuple[Path, pa.Table]], schema: pa.Schema) -> pa.Table:
        """All rows by condition, then trial. Raises StoreError for a duplicate trial.

        Condition by condition: consecutive chunks are not copied, and interleaved ones (of several workers) stay within the
        range of Arrow's 32-bit text offsets.
        """
        tables = [schema.empty_table()]
        for condition, group in groupby(self._by_condition(chunks), key=lambda chunk: chunk[0]):
            paths, parts = zip(*((path, table) for _, path, table in group), strict=True)
            trials = [part["trial"].to_numpy() for part in parts]
            trial = np.concatenate(trials)
            if (np.diff(trial) > 0).all():
                tables += parts
                continue
            order = np.argsort(trial, kind="stable")
            if len(same := np.flatnonzero(np.diff(trial[order]) == 0)):
                chunk_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
                first, other = (paths[chunk_of[order[at]]] for at in (same[0], same[0] + 1))
                raise StoreError(
                    f"{self.folder}: trial {trial[order[same[0]]]} of condition {condition} is in two chunks, "
                    f"{first.name} and {other.name}; delete one of them, and its other trials are computed again"
                )
            tables.append(pa.concat_tables(parts).take(pa.array(order)))
        return pa.concat_tables(tables)

    @staticmethod
    def _by_condition(chunks: Sequence[tuple[Path, pa.Table]]) -> list[tuple[int, Path, pa.Table]]:
        """Chunks with their conditions, by condition, then name."""
        return sorted(((table["condition"][0].as_py(), path, table) for path, table in chunks), key=lambda c: c[:2])
