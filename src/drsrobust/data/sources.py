"""The named data sets: where their files lie below a root, and where people get them. Imports no PyTorch."""

import os
from dataclasses import dataclass
from pathlib import Path

from drsrobust._names import unknown


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
        ("dlrm",),
        "criteo",
        ("criteo_sample.txt",),
        "any excerpt of train.txt of Criteo's Display Advertising Challenge",
    ),
    "synthetic-movielens": Source(("ids", "full")),
    "synthetic-criteo": Source(("dlrm",)),
}


def split_name(name: str, schema: str | None = None) -> tuple[str, str]:
    """Name and schema of `name` or `name/schema`.

    Raises:
        ValueError: an unknown name or schema, or two schemas.
    """
    base, _, named = name.partition("/")
    if base not in SOURCES:
        raise unknown("data set", name, SOURCES)
    if named and schema and named != schema:
        raise ValueError(f"data set {name!r} names the schema {named!r}, but schema={schema!r} was given")
    schema = named or schema or SOURCES[base].schemas[0]
    if schema not in SOURCES[base].schemas:
        raise unknown(f"schema of {base}", schema, SOURCES[base].schemas)
    return base, schema


def find_files(
    name: str, root: str | os.PathLike | None = None, *, path: str | os.PathLike | None = None
) -> list[Path]:
    """The files that a data set (`name` or `name/schema`) is read from; none for a synthetic one.

    Args:
        name: of the data set.
        root: the folder that holds the data folders; None: `$DRSROBUST_DATA`.
        path: the file or folder itself, instead of a root.

    Raises:
        FileNotFoundError: a file is missing; the message says where it comes from and where to put it.
    """
    name, schema = split_name(name)
    source = SOURCES[name]
    needed = source.files[:1] if schema == "ids" else source.files
    return [_find(name, source, file, root, path) for file in needed]


def _find(name: str, source: Source, file: str, root: str | os.PathLike | None, path: str | os.PathLike | None) -> Path:
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
