"""`load_dataset`: from a name to an encoded, cached data set."""

import os
from operator import index

from drsrobust._storage import file_digest
from drsrobust.data import criteo, movielens, synthetic
from drsrobust.data.dataset import Dataset
from drsrobust.data.encoding import encoded
from drsrobust.data.sources import SOURCES, find_files, split_name


def load_dataset(
    name: str,
    root: str | os.PathLike | None = None,
    *,
    path: str | os.PathLike | None = None,
    schema: str | None = None,
    rows: int | None = None,
    min_count: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set, split 80/10/10 at random and encoded; parsed once, then memory-mapped from the cache.

    Args:
        name: one of `movielens-1m`, `criteo-kaggle`, `criteo-sample`, `synthetic-movielens`, `synthetic-criteo`; a
            schema may follow after a slash, as in `movielens-1m/full`.
        root: the folder that holds the data folders (`ml-1m`, `criteo`); None: `$DRSROBUST_DATA`.
        path: names the file (Criteo) or folder (MovieLens) directly, instead of a root.
        schema: MovieLens: `ids` (default) or `full`; Criteo: `dlrm`.
        rows: of a synthetic set, how many to generate (None: its default size).
        min_count: of Criteo-shaped sets: categories seen fewer times in the training rows share id 0
            (None: 10, as in the study).
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
    full_name = f"{name}/{schema}"
    options = {"seed": _at_least("seed", seed, 0)}
    if root is not None and path is not None:
        raise ValueError(f"root={root!r} and path={path!r} were both given; one of them says where the data are")
    if schema == "dlrm":
        min_count = criteo.MIN_COUNT if min_count is None else _at_least("min_count", min_count, 1)
        options["min_count"] = min_count
    elif min_count is not None:
        raise ValueError(f"min_count={min_count} is for Criteo-shaped sets; {name} keeps every id")
    if not SOURCES[name].files:
        if path is not None:
            raise ValueError(f"path={path!r} was given, but {name} is generated, not read")
        rows = synthetic.ROWS[name] if rows is None else _at_least("rows", rows, 10)
        identity = options | {"generator": synthetic.VERSION, "rows": rows}
        if schema == "dlrm":
            return encoded(full_name, identity, lambda: synthetic.criteo_columns(rows, seed, min_count))
        return encoded(full_name, identity, lambda: synthetic.movielens_columns(rows, seed, schema == "full"))
    if rows is not None:
        raise ValueError(f"rows={rows} is for synthetic sets; take rows of {name} with data.test.head(n)")
    files = find_files(full_name, root, path=path)
    identity = options | {"sources": [file_digest(file) for file in files]}
    if schema == "dlrm":
        return encoded(full_name, identity, lambda: criteo.encode(criteo.read_lines(files[0]), seed, min_count))

    def movielens_columns():
        side = movielens.read_side(*files[1:]) if schema == "full" else None
        return movielens.encode(movielens.read_ratings(files[0]), side, seed)

    return encoded(full_name, identity, movielens_columns)


def _at_least(name: str, value: int, low: int) -> int:
    if index(value) < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}")
    return index(value)
