"""`load_dataset`: from a name to an encoded, cached data set."""

import os
from collections.abc import Iterable
from operator import index
from pathlib import Path

from drsrobust._environment import unknown
from drsrobust.data import click_logs as avazu
from drsrobust.data import click_logs as criteo
from drsrobust.data import movielens, synthetic
from drsrobust.data import text_files as skipped
from drsrobust.data.cache import Columns, Contents, encoded, source_digest, stored
from drsrobust.data.dataset import Dataset
from drsrobust.data.large_files import Table, encode, parse
from drsrobust.data.registry import SOURCES, check_days, find_files, split_name
from drsrobust.data.text_files import BadLines

BAD_LINES = ("strict", "skip")
CLICK_LOGS = {
    **{
        (name, schema): table
        for name in SOURCES
        if name.startswith("criteo-")
        for schema, table in criteo.TABLES.items()
    },
    ("avazu", "fields"): Table(avazu.read_blocks, (), dict.fromkeys(avazu.FEATURES) | {"C20": -1}),
}


def load_dataset(
    name: str,
    root: str | os.PathLike | None = None,
    *,
    path: str | os.PathLike | None = None,
    schema: str | None = None,
    rows: int | None = None,
    days: Iterable[int] | None = None,
    min_count: int | None = None,
    hash_size: int | None = None,
    bad_lines: str = "strict",
    seed: int = 0,
) -> Dataset:
    """A data set, split 80/10/10 at random and encoded; parsed once, then memory-mapped from the cache.

    A call that is stopped, even killed, loses little: the next one goes on with the blocks and columns that are finished.

    Args:
        name: one of `drsrobust.data.SOURCES`; a schema may follow after a slash, as in `movielens-1m/full`.
        root: the folder that holds the data folders (`ml-1m`, `criteo`); None: `$DRSROBUST_DATA`.
        path: names the file (Criteo, Avazu) or folder (MovieLens, `criteo-terabyte`) directly, instead of a root.
        schema: MovieLens: `ids` (default) or `full`; Criteo: `dlrm` (default; 13 dense columns and 26 features) or `fields`
            (39 features, as in the study); Avazu: `fields` (23); `synthetic-dummy`: the density.
        rows: of a synthetic set, how many to generate (None: its default size).
        days: of `criteo-terabyte`, which days, as in `(0, 1)` (None: all that are there).
        min_count: of sets of categories: those seen fewer times in the training rows share id 0 (None: 10, as in the
            study).
        hash_size: of sets of categories: hash each feature's categories to ids 1 .. hash_size, instead of numbering them
            by a vocabulary; id 0 stands for missing ones.
        bad_lines: of sets that are read: `strict` refuses a file with a bad line; `skip` leaves such lines out, warns, and
            lists them in `Dataset.skipped`.
        seed: of the split, and of what a synthetic set holds.

    Raises:
        ValueError: an unknown name or schema, or an argument that does not belong to this data set.
        FileNotFoundError: a file is missing; the message says where it comes from and where to put it.
        DataError: a file that is not what it should be.

    Example:
        >>> data = load_dataset("synthetic-movielens", rows=2000)
        >>> len(data.train), data.schema.features[1].name
        (1600, 'movie')
    """
    name, schema = split_name(name, schema)
    given = {"rows": rows, "days": days, "min_count": min_count, "hash_size": hash_size}
    given["bad_lines"] = bad_lines if bad_lines != "strict" else None
    options = {"seed": _within("seed", seed, 0)} | _options(name, given)
    full_name = f"{name}/{schema}"
    if root is not None and path is not None:
        raise ValueError(f"root={root!r} and path={path!r} were both given; one of them says where the data are")
    if not SOURCES[name].files:
        if path is not None:
            raise ValueError(f"path={path!r} was given, but {name} is generated, not read")
        return synthetic.load(full_name, options)
    files = find_files(full_name, root, path=path, days=options.pop("days", None))
    options["sources"] = [source_digest(file) for file in files]
    if (name, schema) in CLICK_LOGS:
        data = _click_log(full_name, options, CLICK_LOGS[name, schema], files)
    else:
        data = _ratings(full_name, options, files)
    if data.log is not None:
        kept = sum(len(split) for split in (data.train, data.valid, data.test))
        lines_are_rows = schema != "full"  # else files of users and movies were read too
        skipped.tell(data.log, [file.name for file in files], kept if lines_are_rows else None, stacklevel=2)
    return data


def _options(name: str, given: dict) -> dict:
    """The options that belong to a data set, with their defaults; all that decides contents beside the files.

    Raises:
        ValueError: an option that does not belong to it, or a value that it cannot have.
    """
    why = {
        "rows": f"is for synthetic sets; take rows of {name} with data.test.head(n)",
        "days": "is for criteo-terabyte",
        "min_count": f"is for sets of categories (Criteo, Avazu); {name} keeps every id",
        "hash_size": f"is for sets of categories (Criteo, Avazu); {name} keeps every id",
        "bad_lines": f"is for sets that are read; {name} is generated",
    }
    known = SOURCES[name].options
    for option, value in given.items():
        if value is not None and option not in known:
            raise ValueError(f"{option}={value!r} {why[option]}")
    options = {}
    if "rows" in known:
        options["rows"] = synthetic.ROWS[name] if given["rows"] is None else _within("rows", given["rows"], 10)
    if "days" in known and given["days"] is not None:
        options["days"] = check_days(given["days"])
    if "hash_size" in known and given["hash_size"] is not None:
        if given["min_count"] is not None:
            raise ValueError(f"min_count={given['min_count']} is for a vocabulary; with hash_size there is none")
        options["hash_size"] = _within("hash_size", given["hash_size"], 1, 2**31 - 2)
    elif "min_count" in known:
        min_count = given["min_count"]
        options["min_count"] = criteo.MIN_COUNT if min_count is None else _within("min_count", min_count, 1)
    if "bad_lines" in known:
        options["bad_lines"] = given["bad_lines"] or "strict"
        if options["bad_lines"] not in BAD_LINES:
            raise unknown("way with bad lines", options["bad_lines"], BAD_LINES)
    return options


def _within(name: str, value: int, low: int, high: int | None = None) -> int:
    if index(value) < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}")
    if high is not None and index(value) > high:
        raise ValueError(f"{name} is {value}; it must be at most {high}")
    return index(value)


def _click_log(name: str, options: dict, table: Table, files: list[Path]) -> Dataset:
    """A set of any size: parsed block by block, encoded column by column."""

    def fill(part: Path) -> Contents:
        raw = parse(part / "raw", table, files, options["bad_lines"])
        return encode(
            *(part, raw, table),
            seed=options["seed"],
            min_count=options.get("min_count"),
            hash_size=options.get("hash_size"),
        )

    return stored(name, options, fill, stacklevel=4)


def _ratings(name: str, options: dict, files: list[Path]) -> Dataset:
    """A set of MovieLens: small enough to be encoded in memory."""
    bad = BadLines(options["bad_lines"])

    def make() -> Columns:
        side = None
        if name.endswith("/full"):
            users = files[1] if len(files) == 3 else None  # only the 1M set knows something of users
            side = movielens.read_side(users, files[-1], bad)
        return movielens.encode(movielens.read_ratings(files[0], bad), side, options["seed"], bad)

    return encoded(name, options, make, bad.found, stacklevel=4)
