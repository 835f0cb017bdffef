"""Data sets whose terms a person must accept: where they are, which file goes where, and how to see that it is whole.

The named data sets: where their files lie below a root, what may be asked of them, and where people get them. Imports
no PyTorch."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drsrobust._environment import unknown


@dataclass(frozen=True)
class ByHand:
    """A data set to be fetched by a person. `lines` counts those of the unpacked file, a header too."""

    title: str
    address: str
    given: str  # what one gets there
    file: str  # where it goes, below the root
    lines: int

    def there(self, root: Path) -> bool:
        """Whether the file is there, plain or as .gz."""
        return (root / self.file).is_file() or (root / f"{self.file}.gz").is_file()

    def advice(self, root: Path) -> str:
        """What to do, step by step."""
        place = root / self.file
        return (
            f"{self.title}: to be fetched by hand, since its terms must be accepted by a person.\n"
            f"  1. Sign in and accept the terms: {self.address}\n"
            f"  2. Download {self.given}; put it at {place} (or, compressed, at {place}.gz).\n"
            f"  3. Count its lines: wc -l < {place} (zcat {place}.gz | wc -l) must say {self.lines}."
        )


BY_HAND = {
    "criteo": ByHand(
        "Criteo Display Advertising Challenge (2014)",
        "https://www.kaggle.com/c/criteo-display-ad-challenge",
        "the challenge's data and take train.txt out of it",
        "criteo/train.txt",
        45_840_617,
    ),
    "avazu": ByHand(
        "Avazu Click-Through Rate Prediction (2014)",
        "https://www.kaggle.com/c/avazu-ctr-prediction/data",
        "train.gz (its contents are a CSV file)",
        "avazu/train.csv",
        40_428_968,
    ),
}


@dataclass(frozen=True)
class Source:
    """One named data set.

    Attributes:
        schemas: the first is the default.
        folder: below the root.
        files: what it is read from, one of each alternative (`ratings.csv or rating.csv`); none for a generated set.
        options: arguments of `load_dataset` that belong to it.
        origin: where people get it.
        days: whether the files are days, of which any number will do.
        line: what it is.
    """

    schemas: tuple[str, ...]
    folder: str = ""
    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    origin: str = ""
    days: bool = False
    line: str = ""


_CRITEO = ("dlrm", "fields")
_CATEGORICAL = ("min_count", "hash_size", "bad_lines")

SOURCES = {
    "movielens-1m": Source(
        ("ids", "full"),
        "ml-1m",
        ("ratings.dat", "users.dat", "movies.dat"),
        ("bad_lines",),
        "MovieLens 1M, ml-1m.zip from GroupLens (grouplens.org/datasets/movielens/1m)",
        line="1,000,209 ratings: user and movie; full: all that is known of both",
    ),
    "movielens-20m": Source(
        ("ids", "full"),
        "ml-20m",
        ("ratings.csv or rating.csv", "movies.csv or movie.csv"),
        ("bad_lines",),
        "MovieLens 20M, ml-20m.zip from GroupLens (grouplens.org/datasets/movielens/20m) or its copy on Kaggle",
        line="20 million ratings; full: genres and year too",
    ),
    "movielens-latest-small": Source(
        ("ids", "full"),
        "ml-latest-small",
        ("ratings.csv", "movies.csv"),
        ("bad_lines",),
        "MovieLens latest-small, ml-latest-small.zip from GroupLens (grouplens.org/datasets/movielens/latest)",
        line="100,836 ratings, of the same form",
    ),
    "criteo-kaggle": Source(
        _CRITEO,
        "criteo",
        ("train.txt",),
        _CATEGORICAL,
        "train.txt of Criteo's Display Advertising Challenge (Kaggle, 2014; its terms must be accepted by a person)",
        line="45.8 million ads, 13 counts and 26 categories; fields: 39 categories, as in the study",
    ),
    "criteo-sample": Source(
        _CRITEO,
        "criteo",
        ("criteo_sample.txt",),
        _CATEGORICAL,
        "any excerpt of train.txt of Criteo's Display Advertising Challenge",
        line="any excerpt of it",
    ),
    "criteo-terabyte": Source(
        _CRITEO,
        "criteo-terabyte",
        tuple(f"day_{day}" for day in range(24)),
        (*_CATEGORICAL, "days"),
        "days of Criteo's 1 TB click logs (Criteo AI Lab; its terms must be accepted by a person)",
        days=True,
        line="days of the same form",
    ),
    "avazu": Source(
        ("fields",),
        "avazu",
        ("train.csv",),
        _CATEGORICAL,
        "train.gz of Avazu's Click-Through Rate Prediction (Kaggle, 2014; its terms must be accepted by a person)",
        line="40.4 million ads, 23 categories",
    ),
    "synthetic-movielens": Source(("ids", "full"), options=("rows",), line="generated ratings with a planted teacher"),
    "synthetic-criteo": Source(
        ("dlrm",), options=("rows", "min_count", "hash_size"), line="generated clicks with a planted teacher"
    ),
    "synthetic-dummy": Source(("0.01", "0.001", "0.1"), options=("rows",), line="input of the model dummy, by density"),
}


def describe() -> str:
    """A line `name/schemas: what it is` for each data set."""
    return "\n".join(f"{name}/{'|'.join(source.schemas)}: {source.line}" for name, source in SOURCES.items())


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
    name: str,
    root: str | os.PathLike | None = None,
    *,
    path: str | os.PathLike | None = None,
    days: Iterable[int] | None = None,
) -> list[Path]:
    """The files that a data set (`name` or `name/schema`) is read from, each as it is or as .gz; none for a synthetic one.

    Args:
        name: of the data set.
        root: the folder that holds the data folders; None: `$DRSROBUST_DATA`.
        path: the file or folder itself, instead of a root.
        days: of `criteo-terabyte`: which days, in this order; None: all that are there, in theirs.

    Raises:
        FileNotFoundError: a file is missing; the message says where it comes from and where to put it.
        ValueError: days that do not exist.
    """
    name, schema = split_name(name)
    source = SOURCES[name]
    needed = source.files[:1] if schema == "ids" else source.files
    if not source.days:
        return [_find(name, source, file, root, path) for file in needed]
    if days is not None:
        return [_find(name, source, needed[day], root, path) for day in check_days(days)]
    if path is not None and not Path(path).expanduser().is_dir():
        return [_find(name, source, needed[0], root, path)]
    there = [found for file in needed if (found := _there(_place(name, source, file, root, path)))]
    return there or [_find(name, source, needed[0], root, path)]


def check_days(days: Iterable[int]) -> tuple[int, ...]:
    """The days of `criteo-terabyte` that are asked for, as numbers.

    Raises:
        ValueError: none, one that is not from 0 to 23, or one twice.
    """
    known, asked = range(len(SOURCES["criteo-terabyte"].files)), tuple(days)
    if not asked or len(set(asked)) < len(asked) or not all(day in known for day in asked):
        raise ValueError(f"days={asked!r}; they must be different numbers from 0 to {known[-1]}, as in days=(0, 1)")
    return tuple(int(day) for day in asked)


def _place(
    name: str, source: Source, file: str, root: str | os.PathLike | None, path: str | os.PathLike | None
) -> tuple[Path, ...]:
    """Where a file, or one of its alternatives, should lie."""
    if path is not None:
        given = Path(path).expanduser()
        folder = given if given.is_dir() or (len(source.files) > 1 and not source.days) else None
        return (given,) if folder is None else tuple(folder / each for each in file.split(" or "))
    root = os.environ.get("DRSROBUST_DATA") if root is None else root
    if not root:
        raise FileNotFoundError(
            f"{name} is read from {source.folder}/{file}, but no folder was given: pass root=, or set DRSROBUST_DATA "
            f"to the folder that holds {source.folder}/. The data: {source.origin}"
        )
    return tuple(Path(root).expanduser() / source.folder / each for each in file.split(" or "))


def _there(places: tuple[Path, ...]) -> Path | None:
    """The first of these files that exists, plain or as .gz."""
    for place in places:
        for candidate in (place, place.with_name(place.name + ".gz")):
            if candidate.is_file():
                return candidate
    return None


def _find(name: str, source: Source, file: str, root: str | os.PathLike | None, path: str | os.PathLike | None) -> Path:
    places = _place(name, source, file, root, path)
    if found := _there(places):
        return found
    missing = " or ".join([str(places[0]), *(place.name for place in places[1:])])
    raise FileNotFoundError(f"{name}: there is no {missing} (nor .gz). Get {source.origin} and put {file} there")
