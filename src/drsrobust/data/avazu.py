"""Avazu click logs: parsing.

Source: Avazu / Kaggle, Click-Through Rate Prediction, 2014: 40,428,967 impressions of mobile ads over ten days, in order of
time. A line is `id,click,hour,C1,banner_pos,...,C21` under a header.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drsrobust.data.kinds import DIGITS, FULL_HEX, INTEGER, LABEL, Few
from drsrobust.data.text import BadLines, read_columns

HEADER = (
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
FEATURES = ("day", "hour", *HEADER[3:])  # of a block, all of them categories
HOUR = Few(
    "an hour of the form YYMMDDHH",
    re.compile(rb"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])"),
    int,
)
_HASHED = tuple(name for name in HEADER if name.startswith(("site_", "app_")))
_HASHED += ("device_id", "device_ip", "device_model")
_FIELDS = {"id": DIGITS, "click": LABEL, "hour": HOUR}
_FIELDS |= {name: FULL_HEX if name in _HASHED else INTEGER for name in HEADER[3:]}


def read_blocks(path: Path, bad: BadLines | None = None, first_block: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """The lines of an Avazu file (`train.csv`, plain or .gz), block by block.

    Args:
        path: the file.
        bad: what to do with lines that are not of the form; None: `BadLines("strict")`.
        first_block: how many blocks to pass over, as in `read_columns`.

    Yields:
        `label` (`click`) and the 23 `FEATURES`, int64 [good lines of this block]. The file's `hour` (YYMMDDHH, UTC)
        becomes `day`, its YYMMDD as a number (141021 is October 21st, 2014), and `hour`, 0 to 23. Hashed texts are 8
        hexadecimal digits in the file and numbers here; `C1`, `banner_pos`, `device_type`, `device_conn_type` and
        `C14`..`C21` are integers, of which -1 in `C20` means that there is none. `id`, different in every line, is left out.

    Raises:
        DataError: another header, or a line that is not of the form (`strict`).
    """
    for block in read_columns(path, _FIELDS, ",", header=HEADER, quoted=True, bad=bad, first_block=first_block):
        day, hour = np.divmod(block.pop("hour"), 100)
        yield {"label": block.pop("click"), "day": day, "hour": hour} | block
