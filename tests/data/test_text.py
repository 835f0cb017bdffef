import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drsrobust.data import text
from drsrobust.data.text import HEX, INTEGER, LABEL, NOTHING, OPTIONAL_INTEGER, DataError, read_columns, read_text

FIELDS = {"label": LABEL, "count": OPTIONAL_INTEGER, "category": HEX}


def read(path, fields=FIELDS, delimiter="\t"):
    blocks = list(read_columns(path, fields, delimiter))
    return {name: np.concatenate([block[name] for block in blocks]).tolist() for name in blocks[0]}


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name="rows.txt"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


GOOD = b"1\t-2\t0000000a\n0\t\t\n1\t7\tDEADbeef\n"
PARSED = {"label": [1, 0, 1], "count": [-2, -(2**63), 7], "category": [10, -1, 0xDEADBEEF]}


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
@pytest.mark.parametrize("content", [GOOD, GOOD.replace(b"\n", b"\r\n"), GOOD.removesuffix(b"\n")])
def test_values(file, name, content):
    assert read(file(content, name)) == PARSED


def test_blocks_are_cut_after_lines(file, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 7)
    path = file(GOOD * 50)
    assert len(list(read_columns(path, FIELDS, "\t"))) > 20
    assert read(path) == {name: values * 50 for name, values in PARSED.items()}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"1\t2", "2 fields where 3 are expected (separated by '\\t'): '1\\t2'"),
        (b"1\t2\t\t", "4 fields where 3"),
        (b"", "1 fields where 3"),
        (b"2\t1\t", "field 1 (label): '2' is not a label, 0 or 1"),
        (b"\t1\t", "field 1 (label): '' is not a label"),
        (b"1\tx\t", "field 2 (count): 'x' is not an integer or empty"),
        (b"1\t1.5\t", "field 2 (count): '1.5'"),
        (b"1\t99999999999999999999\t", "field 2 (count): '99999999999999999999'"),
        (b"1\t1\t123", "field 3 (category): '123' is not 8 hexadecimal digits or empty"),
        (b"1\t1\t0000000g", "field 3 (category): '0000000g'"),
        (b"1\t1\t\xff\xfe", "field 3 (category): '\\xff\\xfe'"),
        (b"1\t\xff\t", "field 2 (count): '\\xff'"),
        (b"1\t1\t0000\r0000", "field 3 (category)"),
    ],
)
@pytest.mark.parametrize("block", [text.BLOCK, 16])
def test_a_bad_line_is_named(file, monkeypatch, line, says, block):
    monkeypatch.setattr(text, "BLOCK", block)
    path = file(GOOD * 3 + line + b"\n" + GOOD)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line 10")
    assert says in str(caught.value)


def test_empty_file(file):
    with pytest.raises(DataError, match="the file is empty"):
        read(file(b""))
    with pytest.raises(DataError, match="the file is empty"):
        read(file(b"", "rows.txt.gz"))


def test_truncated_gzip(file, tmp_path):
    noise = np.random.default_rng(0).integers(0, 2**32, 200_000)
    whole = file(b"".join(b"1\t2\t%08x\n" % value for value in noise), "rows.txt.gz").read_bytes()
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"cut\.gz: the gzip file is truncated; what can be read ends about line \d+"
    ) as error:
        read(path)
    assert 20_000 < int(str(error.value).split()[-1]) < 110_000
    path.write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match="not a whole gzip file"):
        read(path)


def test_gaps_between_two_delimiters(file):
    fields = {"a": INTEGER, "gap": NOTHING, "b": INTEGER}
    assert read(file(b"1::2\n3::4\n"), fields, ":") == {"a": [1, 3], "b": [2, 4]}
    with pytest.raises(DataError, match=r"line 2, field 2 \(gap\): 'x' is not empty"):
        read(file(b"1::2\n3:x:4\n"), fields, ":")


def test_text_names_undecodable_bytes(file):
    path = file(b"good\nbad \xe9\n")
    assert list(read_text(path, "latin-1"))[1] == (2, "bad \xe9")
    with pytest.raises(DataError, match=r"line 2: bytes that are not ascii: 'bad \\xe9'"):
        list(read_text(path, "ascii"))


ODD = st.one_of(
    st.binary(max_size=10).filter(lambda b: b"\n" not in b and b"\t" not in b),
    st.sampled_from(
        [b"", b"0", b"1", b" 1", b"-5", b"+5", b"0x1", b"1e3", b"00000000", b"ABCDEF01", b"abcdef0", b'"1"']
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=4))
def test_fast_and_slow_reading_agree(tmp_path_factory, rows):
    """What the column reader accepts, the line reader accepts too, and the other way round."""
    path = tmp_path_factory.getbasetemp() / "odd.txt"
    path.write_bytes(b"".join(b"\t".join(row) + b"\n" for row in rows))
    # Arrow ends a line at a lone carriage return too; that is refused, so it counts as bad here.
    lines = [(one, two, three.removesuffix(b"\r")) for one, two, three in rows]
    good = all(
        b"\r" not in part and kind.pattern.fullmatch(part)
        for line in lines
        for part, kind in zip(line, FIELDS.values(), strict=True)
    )
    if good:
        assert len(read(path)["label"]) == len(rows)
    else:
        with pytest.raises(DataError, match="odd.txt"):
            read(path)
