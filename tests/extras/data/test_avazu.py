import gzip

import numpy as np
import pytest

from drsrobust_extras.data.click_logs import FEATURES, HEADER, TABLES
from drsrobust_extras.data.text_lines import BadLines, DataError

FIRST = (
    "1000009418151094273,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,"
    "a99f214a,ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79"
)
HEAD = ",".join(HEADER) + "\n"


def line(**changes):
    return ",".join(str(changes.get(name, value)) for name, value in zip(HEADER, FIRST.split(","), strict=True)) + "\n"


@pytest.fixture
def file(tmp_path):
    def write(content, name="train.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        return path

    return write


def read(path, **options):
    blocks = list(TABLES["avazu"].blocks(path, **options))
    return {name: np.concatenate([block[name] for block in blocks]).tolist() for name in blocks[0]}


@pytest.mark.parametrize("name", ["train.csv", "train.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_values(file, name, end):
    content = HEAD + line() + line(id=18446744073709551999, click=1, hour=14103023, site_id="FFFFFFFF", C20=100084)
    columns = read(file(content.replace("\n", end), name))
    assert list(columns) == ["label", *FEATURES] and len(FEATURES) == 23
    assert columns["label"] == [0, 1]
    assert columns["day"] == [141021, 141030] and columns["hour"] == [0, 23]
    assert columns["site_id"] == [0x1FBE01FE, 0xFFFFFFFF]
    assert columns["C20"] == [-1, 100084]
    for name, text_there in zip(HEADER[3:], FIRST.split(",")[3:], strict=True):
        number = int(text_there, 16) if len(text_there) == 8 else int(text_there)
        assert columns[name][0] == number, name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"id": "1.0000094181510943e+19"},
            "field 1 (id): '1.0000094181510943e+19' is not a number of at most 20 digits",
        ),
        ({"click": 2}, "field 2 (click): '2' is not a label, 0 or 1"),
        ({"click": ""}, "field 2 (click): '' is not a label"),
        ({"hour": 14102124}, "field 3 (hour): '14102124' is not an hour of the form YYMMDDHH"),
        ({"hour": 14130100}, "field 3 (hour): '14130100'"),
        ({"hour": "2014102100"}, "field 3 (hour): '2014102100'"),
        ({"site_id": ""}, "field 6 (site_id): '' is not 8 hexadecimal digits"),
        ({"device_ip": "ddd2926"}, "field 13 (device_ip): 'ddd2926'"),
        ({"C21": "1.5"}, "field 24 (C21): '1.5' is not an integer"),
        ({"C21": "79,1"}, "25 fields where 24 are expected"),
    ],
)
def test_bad_lines(file, changes, says):
    path = file(HEAD + line() + line(**changes) + line(click=1))
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line 3") and says in str(caught.value)
    bad = BadLines("skip")
    assert read(path, bad=bad)["label"] == [0, 1]
    assert [found[:2] for found in bad.skipped] == [("train.csv", 3)] and says in bad.skipped[0][2]


def test_another_file(file):
    with pytest.raises(DataError, match="line 1: 'id,hour,C1.* is not the header 'id,click,hour,C1"):
        read(file(HEAD.replace("click,", "") + line()))
