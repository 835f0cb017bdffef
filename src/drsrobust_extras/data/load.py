"""`load_dataset`: from a name to an encoded, cached data set."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from drsrobust.data import Dataset
from drsrobust.extend import check_seed, check_text, check_whole, expanded
from drsrobust_extras.data import movielens, sequence_files, synthetic
from drsrobust_extras.data.click_logs import MIN_COUNT, TABLES, ClickTable, encode_clicks, parse
from drsrobust_extras.data.raw_cache import Columns, Contents, cached, cached_columns, source_digest
from drsrobust_extras.data.registry import (
    AVAZU,
    RATINGS,
    SEQUENCES,
    SOURCES,
    check_days,
    find_files,
    split_dataset_name,
)
from drsrobust_extras.data.text_lines import BadLines

# Why an option does not apply to a data set.
_REASONS = {
    "rows": "is for synthetic sets; take rows of {name} with data.test.head(n)",
    "days": "is for criteo-terabyte",
    "min_count": "is for sets of categories (Criteo, Avazu); {name} keeps every id",
    "hash_size": "is for sets of categories (Criteo, Avazu); {name} keeps every id",
    "bad_lines": "is for sets that are read; {name} is generated",
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
    """A data set, split 80/10/10 at random and encoded; parsed once, then memory-mapped from the cache. After an interrupted
    call, even a killed one, the next call continues after the parse and the finished columns.

    Args:
        name: one of `drsrobust.data.SOURCES`, which takes your own, too; a schema may follow, as in `movielens-1m/full`.
        root: the folder that holds the data folders (`ml-1m`, `criteo`); None: `$DRSROBUST_DATA`.
        path: the file (Criteo, Avazu) or folder (MovieLens, `criteo-terabyte`) itself, instead of a root.
        schema: MovieLens: `ids` (default) or `full`; Criteo: `dlrm` (default; 13 dense columns and 26 features) or `fields`
            (39 features, as in the study); Avazu: `fields` (23); `synthetic-dummy`: the density.
        rows: number of rows of a synthetic set (None: its default).
        days: of `criteo-terabyte`, as in `(0, 1)` (None: all that exist).
        min_count: of Criteo and Avazu: categories seen fewer times in the training rows share id 0 (None: 10, as in the study).
        hash_size: of Criteo and Avazu: hash each feature's categories to ids 1 .. hash_size, instead of numbering them by a
            vocabulary; id 0 means missing.
        bad_lines: of sets read from files: `strict` refuses a file with a bad line; `skip` skips bad lines, warns, and lists
            them in `Dataset.skipped`.
        seed: of the split, and of the contents of a synthetic set.

    Raises:
        ValueError: an unknown name or schema, or an argument that does not apply to this data set.
        TypeError: the function that reads a set of your own returns no `Dataset`.
        FileNotFoundError: a file is missing; the message says where to get it and where to put it.
        DataError: a malformed file.

    Example:
        >>> data = load_dataset("synthetic-movielens", rows=2000)
        >>> len(data.train), data.schema.features[1].name
        (1600, 'movie')
    """
    name, schema = split_dataset_name(name, schema)
    if root is not None:
        expanded("root", root)  # raises, also where nothing is read
    check_text("bad_lines", bad_lines)
    source = SOURCES[name]
    options = {"seed": check_seed(seed)} | _options(
        name,
        {
            "rows": rows,
            "days": days,
            "min_count": min_count,
            "hash_size": hash_size,
            "bad_lines": None if bad_lines == "strict" else bad_lines,
        },
    )
    full_name = f"{name}/{schema}"
    if root is not None and path is not None:
        raise ValueError(f"pass either root or path, not both: root={root!r}, path={path!r}")
    if not source.files and path is not None:
        raise ValueError(f"path={path!r} does not apply: {name} is generated, not read")
    if source.read is None:
        return synthetic.load(full_name, options)
    files = find_files(full_name, root, path=path, days=options.pop("days", None))
    if callable(source.read):
        data = source.read(full_name, files, options["seed"])
        if not isinstance(data, Dataset):
            raise TypeError(f"read of {name} must return a Dataset, as dr.data.from_frame does, got {data!r}")
        return data
    if schema == SEQUENCES:
        if bad_lines != "strict":
            raise ValueError(f"bad_lines={bad_lines!r} does not apply: {full_name} is read strictly")
        return sequence_files.READERS[source.read](full_name, files, options["seed"])
    options["sources"] = [source_digest(file) for file in files]
    if source.read == RATINGS:
        data = _ratings(full_name, options, files)
    else:
        data = _click_log(full_name, options, TABLES[AVAZU if source.read == AVAZU else schema], files)
    if data.skipped:
        file, line, fault = data.skipped[0]
        n_rows = len(data.train) + len(data.valid) + len(data.test)
        warnings.warn(
            f"bad lines skipped: {len(data.skipped):,}, rows kept: {n_rows:,}; the first: {file}, line {line}: {fault}; "
            f"all in {data.log}",
            stacklevel=2,
        )
    return data


def _options(name: str, passed: dict) -> dict:
    """The options that decide the contents of a data set, with their defaults."""
    allowed = SOURCES[name].options
    for option, value in passed.items():
        if value is not None and option not in allowed:
            raise ValueError(f"{option}={value!r} {_REASONS[option].format(name=name)}")
    options = {}
    if "rows" in allowed:
        options["rows"] = synthetic.ROWS[name] if passed["rows"] is None else check_whole("rows", passed["rows"], 10)
    if passed["days"] is not None:
        options["days"] = check_days(passed["days"])
    if passed["hash_size"] is not None:
        if passed["min_count"] is not None:
            raise ValueError(f"pass either hash_size or min_count, not both: min_count={passed['min_count']}")
        options["hash_size"] = check_whole("hash_size", passed["hash_size"], 1, 2**31 - 2)
    elif "min_count" in allowed:
        min_count = passed["min_count"]
        options["min_count"] = MIN_COUNT if min_count is None else check_whole("min_count", min_count, 1)
    if "bad_lines" in allowed:
        options["bad_lines"] = BadLines(passed["bad_lines"] or "strict").mode
    return options


def _click_log(name: str, options: dict, table: ClickTable, files: list[Path]) -> Dataset:
    def fill(part: Path) -> Contents:
        parse(part, table, files, options["bad_lines"])
        sizes = {key: options.get(key) for key in ("min_count", "hash_size")}
        return encode_clicks(part, table, seed=options["seed"], **sizes)

    return cached(name, options, fill, stacklevel=4)


def _ratings(name: str, options: dict, files: list[Path]) -> Dataset:
    bad, ten = BadLines(options["bad_lines"]), name.startswith("movielens-10m/")

    def make() -> Columns:
        side = None
        if name.endswith("/full"):
            users = files[1] if len(files) == 3 else None  # only the 100K and 1M sets describe users
            side = movielens.read_side(users, files[-1], bad, encoding="utf-8" if ten else "latin-1")
        ratings = movielens.read_ratings(files[0], bad, half_stars=ten)
        return movielens.encode_ratings(ratings, side, options["seed"], bad)

    return cached_columns(name, options, make, bad.skipped, stacklevel=4)
