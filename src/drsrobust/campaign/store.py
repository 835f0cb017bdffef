"""The result store: a folder with a manifest and Parquet chunks, each complete or absent.

Contract: a finished trial is never changed and never computed again; a chunk belongs to one condition and carries the
store's identity; one process writes at a time, others may read meanwhile. Chunks of another campaign, damaged ones and
trials that stand twice are refused by name, never averaged in.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drsrobust._storage import digest, exclusive, new_file
from drsrobust.campaign.trials import SCHEMA

# In the files alone: which condition of the grid a row is of, why a model raised, and the time, which is not a result.
_STORED = pa.unify_schemas(
    [SCHEMA, pa.schema({"condition": pa.int64(), "error": pa.string(), "seconds": pa.float64()})]
)
_IDENTITY = b"drsrobust.campaign"
PATIENCE = 10.0  # seconds to wait for another writer: the kernel of a killed run takes a moment to notice


class StoreError(RuntimeError):
    """A result store that is in use, damaged, or of another campaign. The message names the file and what to do."""


class Store:
    """The store of one campaign.

    Args:
        folder: made at the first write.
        definition: JSON value of all that decides the results; its hash is the store's identity.
        about: what else the manifest records (versions), without being part of the identity.

    Raises:
        StoreError: the folder holds another campaign.
    """

    def __init__(self, folder: Path, definition: dict[str, Any], about: dict[str, Any]) -> None:
        self.folder, self.identity = folder, digest(definition)
        self._definition, self._about = definition, about
        if self._manifest.exists():
            self._check_manifest()

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _check_manifest(self) -> None:
        try:
            found = json.loads(self._manifest.read_text())["definition"]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self._manifest} is damaged ({error}); delete {self.folder} to start again") from error
        if digest(found) != self.identity:
            keys = sorted(set(found) | set(self._definition))
            differing = [key for key in keys if found.get(key) != self._definition.get(key)]
            raise StoreError(
                f"{self.folder} holds the results of another campaign; they differ in {', '.join(differing)}.\n"
                f"there: { {key: found.get(key) for key in differing} }\n"
                f"asked: { {key: self._definition.get(key) for key in differing} }\n"
                "Give another store=, or none to have one named by the definition"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the store for writing.

        Raises:
            StoreError: another process is writing to it, or it holds another campaign by now.
        """
        with ExitStack() as stack:
            give_up = time.monotonic() + PATIENCE
            while True:
                try:
                    stack.enter_context(exclusive(self.folder, wait=False))
                    break
                except BlockingIOError as error:
                    if time.monotonic() > give_up:
                        raise StoreError(f"{self.folder} is in use: another process is writing to it") from error
                    time.sleep(0.1)
            if self._manifest.exists():
                self._check_manifest()  # again: another process may have made the store meanwhile
            else:
                self.read()  # chunks without a manifest may be another campaign's
                with new_file(self._manifest) as part:
                    part.write_text(json.dumps({"definition": self._definition, "about": self._about}, indent=1))
            for stale in self.folder.glob(".*.part"):
                stale.unlink()  # of a killed writer: the lock says that nobody is writing
            yield

    def write(self, condition: int, trials: list[dict[str, Any]]) -> None:
        """Adds finished trials of one condition, as `run_trial` gives them, as one chunk."""
        first, last = trials[0]["trial"], trials[-1]["trial"]
        table = pa.Table.from_pylist(
            [row | {"condition": condition} for row in trials],
            schema=_STORED.with_metadata({_IDENTITY: self.identity.encode()}),
        )
        with new_file(self.folder / f"{condition:05d}-{first:08d}-{last:08d}.parquet") as part:
            pq.write_table(table, part, write_page_checksum=True)

    def read(self) -> pa.Table:
        """All finished trials in the order of the grid, then of trials: SCHEMA and `condition`, `error`, `seconds`.

        Raises:
            StoreError: a chunk that is damaged or foreign, or a trial that stands twice.
        """
        chunks = [self._read_chunk(path) for path in sorted(self.folder.glob("*.parquet"))]
        table = pa.concat_tables([_STORED.empty_table(), *chunks])
        table = table.sort_by([("condition", "ascending"), ("trial", "ascending")])
        keys = list(zip(table["condition"].to_pylist(), table["trial"].to_pylist(), strict=True))
        for one, other in zip(keys, keys[1:], strict=False):
            if one == other:
                raise StoreError(f"{self.folder}: trial {one[1]} of condition {one[0]} stands in two chunks")
        return table

    def _read_chunk(self, path: Path) -> pa.Table:
        try:
            table = pq.read_table(path, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StoreError(f"{path} is damaged ({error}); delete it and its trials are computed again") from error
        if (table.schema.metadata or {}).get(_IDENTITY) != self.identity.encode():
            raise StoreError(f"{path} belongs to another campaign; take it out of {self.folder}")
        return table.replace_schema_metadata(None)
