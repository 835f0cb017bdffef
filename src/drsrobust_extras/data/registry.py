"""The named data sets: their files below a root, options and publishers. Imports no PyTorch."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drsrobust.extend import check_choice, check_items, check_text, check_whole, expanded, unknown, wrong

if TYPE_CHECKING:
    from drsrobust.data import Dataset

# Of files that `load` reads.
FORMATS = RATINGS, CRITEO, AVAZU, GAMES, KUAIRAND = "ratings", "criteo", "avazu", "games", "kuairand"
SEQUENCES = "sequences"  # schema: a row is a user's items in the order of time, and the next one


@dataclass(frozen=True)
class RawSource:
    """One named data set.

    Attributes:
        line: description.
        schemas: the first is the default.
        folder: below the root.
        files: files in the folder; `ratings.csv or rating.csv` lists alternatives. Empty for a generated set.
        options: arguments of `load_dataset` that apply to it.
        origin: the publisher of the files.
        days: whether any subset of `files` suffices.
        read: one of `FORMATS`; or a function (`name/schema`, files, seed of the split) -> Dataset, called each time; None: of
            the sets that this package generates.

    Raises:
        ValueError: files without `read`, or an unknown format.
    """

    line: str
    schemas: tuple[str, ...]
    folder: str = ""
    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    origin: str = ""
    days: bool = False
    read: "str | Callable[[str, list[Path], int], Dataset] | None" = None

    def __post_init__(self) -> None:
        if (self.files or self.read is not None) and not callable(self.read):
            check_choice("read (a function, or the name of a format)", self.read, FORMATS)


_CRITEO = ("dlrm", "fields")
_CATEGORICAL = ("min_count", "hash_size", "bad_lines")
_TERMS = "its terms must be accepted by a person"

SOURCES = {
    "movielens-1m": RawSource(
        "1,000,209 ratings: user and movie; full: all attributes of both",
        ("ids", "full", SEQUENCES),
        "ml-1m",
        ("ratings.dat", "users.dat", "movies.dat"),
        ("bad_lines",),
        "MovieLens 1M, ml-1m.zip from GroupLens (grouplens.org/datasets/movielens/1m)",
        read=RATINGS,
    ),
    "movielens-100k": RawSource(
        "100,000 ratings: user and movie; full: all attributes of both",
        ("ids", "full", SEQUENCES),
        "ml-100k",
        ("u.data", "u.user", "u.item"),
        ("bad_lines",),
        "MovieLens 100K, ml-100k.zip from GroupLens (grouplens.org/datasets/movielens/100k)",
        read=RATINGS,
    ),
    "movielens-10m": RawSource(
        "10,000,054 ratings; full: genres and year too",
        ("ids", "full", SEQUENCES),
        "ml-10M100K",
        ("ratings.dat", "movies.dat"),
        ("bad_lines",),
        "MovieLens 10M, ml-10m.zip from GroupLens (grouplens.org/datasets/movielens/10m)",
        read=RATINGS,
    ),
    "movielens-20m": RawSource(
        "20 million ratings; full: genres and year too",
        ("ids", "full", SEQUENCES),
        "ml-20m",
        ("ratings.csv or rating.csv", "movies.csv or movie.csv"),
        ("bad_lines",),
        "MovieLens 20M, ml-20m.zip from GroupLens (grouplens.org/datasets/movielens/20m) or its copy on Kaggle",
        read=RATINGS,
    ),
    "movielens-25m": RawSource(
        "25 million ratings, in the same format",
        ("ids", "full", SEQUENCES),
        "ml-25m",
        ("ratings.csv", "movies.csv"),
        ("bad_lines",),
        "MovieLens 25M, ml-25m.zip from GroupLens (grouplens.org/datasets/movielens/25m)",
        read=RATINGS,
    ),
    "movielens-32m": RawSource(
        "32 million ratings, in the same format",
        ("ids", "full", SEQUENCES),
        "ml-32m",
        ("ratings.csv", "movies.csv"),
        ("bad_lines",),
        "MovieLens 32M, ml-32m.zip from GroupLens (grouplens.org/datasets/movielens/32m)",
        read=RATINGS,
    ),
    "movielens-latest-small": RawSource(
        "100,836 ratings, in the same format",
        ("ids", "full", SEQUENCES),
        "ml-latest-small",
        ("ratings.csv", "movies.csv"),
        ("bad_lines",),
        "MovieLens latest-small, ml-latest-small.zip from GroupLens (grouplens.org/datasets/movielens/latest)",
        read=RATINGS,
    ),
    "criteo-kaggle": RawSource(
        "45.8 million ads, 13 counts and 26 categories; fields: 39 categories, as in the study",
        _CRITEO,
        "criteo",
        ("train.txt",),
        _CATEGORICAL,
        f"train.txt of Criteo's Display Advertising Challenge (Kaggle, 2014; {_TERMS})",
        read=CRITEO,
    ),
    "criteo-sample": RawSource(
        "any excerpt of it",
        _CRITEO,
        "criteo",
        ("criteo_sample.txt",),
        _CATEGORICAL,
        "any excerpt of train.txt of Criteo's Display Advertising Challenge",
        read=CRITEO,
    ),
    "criteo-terabyte": RawSource(
        "days in the same format",
        _CRITEO,
        "criteo-terabyte",
        tuple(f"day_{day}" for day in range(24)),
        (*_CATEGORICAL, "days"),
        f"days of Criteo's 1 TB click logs (Criteo AI Lab; {_TERMS})",
        days=True,
        read=CRITEO,
    ),
    "avazu": RawSource(
        "40.4 million ads, 23 categories",
        ("fields",),
        "avazu",
        ("train.csv",),
        _CATEGORICAL,
        f"train.gz of Avazu's Click-Through Rate Prediction (Kaggle, 2014; {_TERMS})",
        read=AVAZU,
    ),
    "amazon-games": RawSource(
        "287,107 reviews of video games on Amazon, as sequences",
        (SEQUENCES,),
        "amazon-games",
        ("Video.txt",),
        origin="data/Video.txt of github.com/kang205/SASRec (Amazon reviews of J. McAuley's group; research use)",
        read=GAMES,
    ),
    "kuairand-1k": RawSource(
        "clicks among 11.7 million views of short videos by 1,000 users, as sequences",
        (SEQUENCES,),
        "KuaiRand-1K",
        ("data/log_standard_4_08_to_4_21_1k.csv", "data/log_standard_4_22_to_5_08_1k.csv"),
        origin="KuaiRand-1K (github.com/chongminggao/KuaiRand; on request)",
        read=KUAIRAND,
    ),
    "synthetic-movielens": RawSource("generated ratings with a planted teacher", ("ids", "full"), options=("rows",)),
    "synthetic-criteo": RawSource(
        "generated clicks with a planted teacher", ("dlrm",), options=("rows", "min_count", "hash_size")
    ),
    "synthetic-kuairand": RawSource("generated sequences of short videos", (SEQUENCES,), options=("rows",)),
    "synthetic-dummy": RawSource("input of the model dummy, by density", ("0.01", "0.001", "0.1"), options=("rows",)),
}


@dataclass(frozen=True)
class ByHand:
    """A data set whose terms a person must accept at `address`; `lines` counts the lines of the unpacked file."""

    name: str  # in SOURCES
    address: str
    lines: int

    def file(self, root: Path) -> Path:
        """The file below `root`."""
        source = SOURCES[self.name]
        return root / source.folder / source.files[0]

    def exists(self, root: Path) -> bool:
        """Whether the file is below `root`, plain or as .gz."""
        return _existing([self.file(root)]) is not None

    def advice(self, root: Path) -> str:
        """How to get the file, step by step."""
        file = self.file(root)
        return (
            f"{self.name}: {SOURCES[self.name].origin}.\n"
            f"  1. Sign in, accept the terms and download the data: {self.address}\n"
            f"  2. Save the file as {file} (or, compressed, as {file}.gz).\n"
            f"  3. Check that it has {self.lines} lines: wc -l < {file} (zcat {file}.gz | wc -l)."
        )


BY_HAND = {
    "criteo": ByHand("criteo-kaggle", "https://www.kaggle.com/c/criteo-display-ad-challenge", 45_840_617),
    "avazu": ByHand("avazu", "https://www.kaggle.com/c/avazu-ctr-prediction/data", 40_428_968),  # with the header
}


def describe() -> str:
    """A line `name/schemas: description` for each data set."""
    return "\n".join(f"{name}/{'|'.join(source.schemas)}: {source.line}" for name, source in SOURCES.items())


def split_dataset_name(name: str, schema: str | None = None) -> tuple[str, str]:
    """Name and schema of `name` or `name/schema`; ValueError for an unknown name or schema, or two schemas."""
    if schema is not None:
        check_text("schema", schema)
    base, _, named = check_text("name", name).partition("/")
    if base not in SOURCES:
        raise unknown("data set", name, SOURCES)
    if named and schema is not None and named != schema:
        raise ValueError(f"data set {name!r} names the schema {named!r}, but schema is {schema!r}")
    schema = named or (SOURCES[base].schemas[0] if schema is None else schema)
    if schema not in SOURCES[base].schemas:
        raise unknown(f"schema of {base}", schema, SOURCES[base].schemas)
    return base, schema


def check_days(days: Iterable[int]) -> tuple[int, ...]:
    """Days of `criteo-terabyte`, as integers; ValueError for no day, one that is not from 0 to 23, or a repeated one."""
    last = len(SOURCES["criteo-terabyte"].files) - 1
    right = f"different numbers from 0 to {last}, as in days=(0, 1)"
    chosen = tuple(check_whole("each of days", day, 0, last) for day in check_items("days", days, right))
    if not chosen or len(set(chosen)) < len(chosen):
        raise wrong("days", right, days)
    return chosen


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
    name, schema = split_dataset_name(name)
    source = SOURCES[name]
    files = source.files[:1] if source.read == RATINGS and schema in ("ids", SEQUENCES) else source.files
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
    """The paths of a file and its alternatives."""
    source = SOURCES[name]
    if path is not None:
        folder = expanded("path", path)
        if not folder.is_dir() and (len(source.files) == 1 or source.days):
            return [folder]  # the file itself
    elif root is not None:
        folder = expanded("root", root) / source.folder
    elif root := os.environ.get("DRSROBUST_DATA"):
        folder = expanded("DRSROBUST_DATA", root) / source.folder
    else:
        raise FileNotFoundError(
            f"{name} is read from {source.folder}/{file}: pass root=, or set DRSROBUST_DATA to the folder that holds "
            f"{source.folder}/. The data: {source.origin}"
        )
    return [folder / alternative for alternative in file.split(" or ")]


def _existing(alternatives: list[Path]) -> Path | None:
    files = (file for path in alternatives for file in (path, path.with_name(f"{path.name}.gz")))
    return next((file for file in files if file.is_file()), None)
