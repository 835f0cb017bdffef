"""`load_dataset`: from a name to an encoded, cached data set."""

import os
from dataclasses import dataclass
from pathlib import Path

from drsrobust._names import unknown
from drsrobust._storage import file_digest
from drsrobust.data import criteo, movielens, synthetic
from drsrobust.data.dataset import Dataset
from drsrobust.data.encoding import encoded


@dataclass(frozen=True)
class Source:
    """Where a named data set lies below the root, what it is read from, and where people get it."""

    schemas: tuple[str, ...]
    folder: str = ""
    files: tuple[str, ...] = ()
    origin: str = ""


SOURCES = {
    "movielens-1m": Source(
        ("ids", "full"),
        "ml-1m",
        ("ratings.dat", "users.dat", "movies.dat"),
        "MovieLens 1M, ml-1m.zip from GroupLens (grouplens.org/datasets/movielens/1m)",
    ),
    "criteo-kaggle": Source(
        ("dlrm",),
        "criteo",
        ("train.txt",),
        "train.txt of Criteo's Display Advertising Challenge (Kaggle, 2014; its terms must be accepted by a person)",
    ),
    "criteo-sample": Source(
        ("dlrm",), "criteo", ("criteo_sample.txt",), "any excerpt of train.txt of Criteo's Display Advertising Challenge"
    ),
    "synthetic-movielens": Source(("ids", "full")),
    "synthetic-criteo": Source(("dlrm",)),
}


def load_dataset(
    name: str,
    root: str | os.PathLike | None = None,
    *,
    path: str | os.PathLike | None = None,
    schema: str | None = None,
    rows: int | None = None,
    min_count: int = criteo.MIN_COUNT,
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
        min_count: of Criteo-shaped sets: categories seen fewer times in the training rows share id 0.
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
    name, schema = _split_name(name, schema)
    source = SOURCES[name]
    full_name = f"{name}/{schema}"
    options = {"seed": seed, "min_count": min_count} if schema == "dlrm" else {"seed": seed}
    if not source.files:
        rows = synthetic.ROWS[name] if rows is None else rows
        identity = options | {"generator": synthetic.VERSION, "rows": rows}
        if schema == "dlrm":
            return encoded(full_name, identity, lambda: synthetic.criteo_columns(rows, seed, min_count))
        return encoded(full_name, identity, lambda: synthetic.movielens_columns(rows, seed, schema == "full"))
    if rows is not None:
        raise ValueError(f"rows={rows} is for synthetic sets; take rows of {name} with data.test.head(n)")
    needed = source.files[:1] if schema == "ids" else source.files
    files = [_find(name, source, file, root, path) for file in needed]
    identity = options | {"sources": [file_digest(file) for file in files]}
    if schema == "dlrm":
        return encoded(full_name, identity, lambda: criteo.encode(criteo.read_lines(files[0]), seed, min_count))

    def movielens_columns():
        side = movielens.read_side(*files[1:]) if schema == "full" else None
        return movielens.encode(movielens.read_ratings(files[0]), side, seed)

    return encoded(full_name, identity, movielens_columns)


def available(name: str, root: str | os.PathLike) -> bool:
    """Whether the files of a real data set lie below a root."""
    name, schema = _split_name(name, None)
    source = SOURCES[name]
    try:
        return bool([_find(name, source, file, root, None) for file in source.files])
    except FileNotFoundError:
        return False


def _split_name(name: str, schema: str | None) -> tuple[str, str]:
    base, _, named = name.partition("/")
    if base not in SOURCES:
        raise unknown("data set", name, SOURCES)
    if named and schema and named != schema:
        raise ValueError(f"data set {name!r} names the schema {named!r}, but schema={schema!r} was given")
    schema = named or schema or SOURCES[base].schemas[0]
    if schema not in SOURCES[base].schemas:
        raise unknown(f"schema of {base}", schema, SOURCES[base].schemas)
    return base, schema


def _find(
    name: str, source: Source, file: str, root: str | os.PathLike | None, path: str | os.PathLike | None
) -> Path:
    """The file itself, or the same with .gz."""
    if path is not None:
        given = Path(path).expanduser()
        place = given / file if given.is_dir() or len(source.files) > 1 else given
    else:
        root = os.environ.get("DRSROBUST_DATA") if root is None else root
        if not root:
            raise FileNotFoundError(
                f"{name} is read from {source.folder}/{file}, but no folder was given: pass root=, or set DRSROBUST_DATA "
                f"to the folder that holds {source.folder}/. The data: {source.origin}"
            )
        place = Path(root).expanduser() / source.folder / file
    for candidate in (place, place.with_name(place.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{name}: there is no {place} (nor .gz). Get {source.origin} and put {file} there")
