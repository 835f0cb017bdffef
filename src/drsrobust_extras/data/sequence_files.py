"""Files of interactions in the order of time: Amazon's games, KuaiRand-1K, and MovieLens by its time stamps.

Sources: W.-C. Kang and J. McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018, with the file `data/Video.txt` of
github.com/kang205/SASRec, of the reviews of J. McAuley's group; C. Gao et al., "KuaiRand", CIKM 2022 (arXiv:2208.08696), with
the columns that github.com/chongminggao/KuaiRand describes; MovieLens as in `movielens`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from drsrobust.data import Dataset
from drsrobust_extras.data.movielens import ID, SECONDS, rating_lines
from drsrobust_extras.data.registry import GAMES, KUAIRAND, RATINGS
from drsrobust_extras.data.sequences import next_items
from drsrobust_extras.data.text_lines import INTEGER, DataError, LineFormat, integer, read_columns

_GAMES_LINES = LineFormat({"user": ID, "item": ID}, " ")
_FLAG = integer("0 or 1", "[01]", lambda number: 0 <= number <= 1)
_KUAIRAND = (
    "user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow", "is_comment", "is_forward",
    "is_hate", "long_view", "play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter",
    "is_rand", "tab",
)  # fmt: skip
_UNREAD = replace(INTEGER, arrow=None)
_READ = {"user_id": ID, "video_id": ID, "time_ms": INTEGER, "is_click": _FLAG}
_KUAIRAND_LINES = LineFormat({name: _READ.get(name, _UNREAD) for name in _KUAIRAND}, ",", _KUAIRAND)


def games(name: str, files: list[Path], seed: int) -> Dataset:
    """Lines `user item`, each user's in the order of time."""
    read = _columns(files, _GAMES_LINES)
    return next_items(name, read["user"], read["item"], seed)


def kuairand(name: str, files: list[Path], seed: int) -> Dataset:
    """The clicks of the standard logs, by `time_ms`; those of one millisecond in the order of the files."""
    read = _columns(files, _KUAIRAND_LINES)
    clicked = read["is_click"] == 1
    order = np.argsort(read["time_ms"][clicked], kind="stable")
    return next_items(name, *(read[key][clicked][order] for key in ("user_id", "video_id")), seed)


def movielens(name: str, files: list[Path], seed: int) -> Dataset:
    """Ratings of any number of stars by their time stamps, those of one second in the order of the file. Ratings without a time
    stamp (0) are left out, since their order is not known.

    Raises:
        DataError: as of `read_columns`, or no rating has a time stamp.
    """
    form = rating_lines(files[0], half_stars=name.startswith("movielens-10m/"))
    if form.fields["timestamp"] is SECONDS:
        form = replace(form, fields=form.fields | {"timestamp": replace(SECONDS, arrow=pa.int64())})
    read = _columns(files[:1], form)
    if "timestamp" not in read or not (timed := read["timestamp"] > 0).any():
        raise DataError(f"{files[0]}: no rating has a time stamp in seconds, so that their order is unknown")
    order = np.argsort(read["timestamp"][timed], kind="stable")
    return next_items(name, *(read[key][timed][order] for key in ("user", "movie")), seed)


def _columns(files: list[Path], form: LineFormat) -> dict[str, np.ndarray]:
    """The columns of several files, one after the other."""
    blocks = [block for file in files for block in read_columns(file, form)]
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


READERS = {GAMES: games, KUAIRAND: kuairand, RATINGS: movielens}  # by format
