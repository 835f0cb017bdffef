"""The named data sets: where their files are below a root, which options they have, and where people get them.

Imports no PyTorch.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drsrobust._environment import unknown


@dataclass(frozen=True)
class ByHand:
    """A data set whose terms a person must accept. `lines` counts those of the unpacked file, with its header."""

    title: str
    address: str
    download: str
    file: str  # below the root
    lines: int

    def exists(self, root: Path) -> bool:
        """Whether the file is below `root`, plain or as .gz."""
        return _existing([root / self.file]) is not None

    def advice(self, root: Path) -> str:
        """How to get the file, step by step."""
        file = root / self.file
        return (
            f"{self.title}: its terms must be accepted by a person.\n"
            f"  1. Sign in and accept the terms: {self.address}\n"
            f"  2. Download {self.download}; save it as {file} (or, compressed, as {file}.gz).\n"
            f"  3. Check that it has {self.lines} lines: wc -l < {file} (zcat {file}.gz | wc -l)."
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
        line: its description.
        schemas: the first is the default.
        folder: below the root.
        files: that it is read from; one may list alternatives, as `ratings.csv or rating.csv`. Empty for a generated set.
        options: arguments of `load_dataset` that apply to it.
        origin: where people get it.
        days: whether any subset of `files` will do.
    """

    line: str
    schemas: tuple[str, ...]
    folder: str = ""
    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    origin: str = ""
    days: bool = False


_CRITEO = ("dlrm", "fields")
_CATEGORICAL = ("min_count", "hash_size", "bad_lines")
_TERMS = "its terms must be accepted by a person"

SOURCES = {
    "movielens-1m": Source(
        "1,000,209 ratings: user and movie; full: all attributes of both",
        ("ids", "full"),
        "ml-1m",
        ("ratings.dat", "users.dat", "movies.dat"),
        ("bad_lines",),
        "MovieLens 1M, ml-1m.zip from GroupLens (grouplens.org/datasets/movielens/1m)",
    ),
    "movielens-20m": Source(
        "20 million ratings; full: genres and year too",
        ("ids", "full"),
        "ml-20m",
        ("ratings.csv or rating.csv", "movies.csv or movie.csv"),
        ("bad_lines",),
        "MovieLens 20M, ml-20m.zip from GroupLens (grouplens.org/datasets/movielens/20m) or its copy on Kaggle",
    ),
    "movielens-latest-small": Source(
        "100,836 ratings, in the same format",
        ("ids", "full"),
        "ml-latest-small",
        ("ratings.csv", "movies.csv"),
        ("bad_lines",),
        "MovieLens latest-small, ml-latest-small.zip from GroupLens (grouplens.org/datasets/movielens/latest)",
    ),
    "criteo-kaggle": Source(
        "45.8 million ads, 13 counts and 26 categories; fields: 39 categories, as in the study",
        _CRITEO,
        "criteo",
        ("train.txt",),
        _CATEGORICAL,
        f"train.txt of Criteo's Display Advertising Challenge (Kaggle, 2014; {_TERMS})",
    ),
    "criteo-sample": Source(
        "any excerpt of it",
        _CRITEO,
        "criteo",
        ("criteo_sample.txt",),
        _CATEGORICAL,
        "any excerpt of train.txt of Criteo's Display Advertising Challenge",
    ),
    "criteo-terabyte": Source(
        "days in the same format",
        _CRITEO,
        "criteo-terabyte",
        tuple(f"day_{day}" for day in range(24)),
        (*_CATEGORICAL, "days"),
        f"days of Criteo's 1 TB click logs (Criteo AI Lab; {_TERMS})",
        days=True,
    ),
    "avazu": Source(
        "40.4 million ads, 23 categories",
        ("fields",),
        "avazu",
        ("train.csv",),
        _CATEGORICAL,
        f"train.gz of Avazu's Click-Through Rate Prediction (Kaggle, 2014; {_TERMS})",
    ),
    "synthetic-movielens": Source("generated ratings with a planted teacher", ("ids", "full"), options=("rows",)),
    "synthetic-criteo": Source(
        "generated clicks with a planted teacher", ("dlrm",), options=("rows", "min_count", "hash_size")
    ),
    "synthetic-dummy": Source("input of the model dummy, by density", ("0.01", "0.001", "0.1"), options=("rows",)),
}


def describe() -> str:
    """A line `name/schemas: description` for each data set."""
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
        raise ValueError(f"data set {name!r} names the schema {named!r}, but schema is {schema!r}")
    schema = named or schema or SOURCES[base].schemas[0]
    if schema not in SOURCES[base].schemas:
        raise unknown(f"schema of {base}", schema, SOURCES[base].schemas)
    return base, schema


def check_days(days: Iterable[int]) -> tuple[int, ...]:
    """Days of `criteo-terabyte`, as integers.

    Raises:
        ValueError: no day, one that is not from 0 to 23, or one twice.
    """
    known, days = range(len(SOURCES["criteo-terabyte"].files)), tuple(days)
    if not days or len(set(days)) < len(days) or not all(day in known for day in days):
        raise ValueError(f"days must be different numbers from 0 to {known[-1]}, as in days=(0, 1), got {days!r}")
    return tuple(int(day) for day in days)


def find_files(
    name: str,
    root: str | os.PathLike | None = None,
    *,
    path: str | os.PathLike | None = None,
    days: Iterable[int] | None = None,
) -> list[Path]:
    """The files that a data set (`name` or `name/schema`) is read from, each plain or as .gz; none for a synthetic set.

    Args:
        name: of the data set.
        root: the folder that holds the data folders; None: `$DRSROBUST_DATA`.
        path: the file or folder itself, instead of a root.
        days: of `criteo-terabyte`, in this order; None: all that exist.

    Raises:
        FileNotFoundError: a file is missing; the message says where to get it and where to put it.
        ValueError: days that do not exist.
    """
    name, schema = split_name(name)
    source = SOURCES[name]
    files = source.files[:1] if schema == "ids" else source.files
    if source.days and days is not None:
        files = tuple(files[day] for day in check_days(days))
    candidates = [_candidates(name, file, root, path) for file in files]
    paths = [_existing(alternatives) for alternatives in candidates]
    if source.days and days is None and any(paths):
        return list(dict.fromkeys(filter(None, paths)))
    for file, alternatives, existing in zip(files, candidates, paths, strict=True):
        if existing is None:
            missing = " or ".join([str(alternatives[0]), *(other.name for other in alternatives[1:])])
            raise FileNotFoundError(
                f"{name}: there is no {missing} (nor .gz). Get {source.origin} and put {file} there"
            )
    return paths


def _candidates(name: str, file: str, root: str | os.PathLike | None, path: str | os.PathLike | None) -> list[Path]:
    """The paths that a file, or one of its alternatives, may have."""
    source = SOURCES[name]
    if path is not None:
        folder = Path(path).expanduser()
        if not folder.is_dir() and (len(source.files) == 1 or source.days):
            return [folder]  # the file itself
    else:
        root = root or os.environ.get("DRSROBUST_DATA")
        if not root:
            raise FileNotFoundError(
                f"{name} is read from {source.folder}/{file}: pass root=, or set DRSROBUST_DATA to the folder that holds "
                f"{source.folder}/. The data: {source.origin}"
            )
        folder = Path(root).expanduser() / source.folder
    return [folder / alternative for alternative in file.split(" or ")]


def _existing(alternatives: list[Path]) -> Path | None:
    for path in alternatives:
        for candidate in (path, path.with_name(f"{path.name}.gz")):
            if candidate.is_file():
                return candidate
    return None
