import gzip
import re
import tracemalloc
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drsrobust_extras.data import text_lines
from drsrobust_extras.data.click_logs import CLICK_LABEL
from drsrobust_extras.data.movielens import HALF_STARS, SECONDS, STARS, TIME
from drsrobust_extras.data.text_lines import FULL_HEX, INTEGER, STRICT, BadLines, DataError, LineFormat, read_columns
from tests.refusals import refuses

OPTIONAL_INTEGER, HEX = text_lines.optional(INTEGER), text_lines.optional(FULL_HEX)
FIELDS = {"label": CLICK_LABEL, "count": OPTIONAL_INTEGER, "category": HEX}


def read(path, fields=FIELDS, delimiter="\t", **options):
    bad = options.pop("bad", STRICT)
    blocks = list(read_columns(path, LineFormat(fields, delimiter, **options), bad))
    return {name: np.concatenate([block[name] for block in blocks]).tolist() for name in blocks[0] if name != "line"}


GOOD = b"1\t-2\t0000000a\n0\t\t\n1\t7\tDEADbeef\n"
PARSED = {"label": [1, 0, 1], "count": [-2, -(2**63), 7], "category": [10, -1, 0xDEADBEEF]}


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
@pytest.mark.parametrize("content", [GOOD, GOOD.replace(b"\n", b"\r\n"), GOOD.removesuffix(b"\n")])
def test_values(file, name, content):
    assert read(file(content, name)) == PARSED


@pytest.mark.parametrize(
    ("byte", "mode", "says"),
    [(b"\0", "strict", "line 1: longer than 1,048,576 bytes"), (b"\n", "skip", "100,001 of 100,001 lines are bad")],
)
def test_a_small_file_of_much_text_takes_little_memory(file, byte, mode, says):
    """512 MiB of a single line, or of empty lines."""
    path = file(b"", "bomb.txt.gz")
    path.write_bytes(gzip.compress(byte * (1 << 24), 1) * 32)
    tracemalloc.start()
    with pytest.raises(DataError, match=says):
        read(path, bad=BadLines(mode))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 << 20


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", "strict", "the file is empty"),
        (b"label\tcount\tcategory\n", "strict", "holds only a header"),
        (b"label\tcount\n" + GOOD, "strict", r"line 1: 'label\\tcount' is not the header 'label\\tcount\\tcategory'"),
        (GOOD, "strict", r"line 1: .* is not the header"),
        (b"label\tcount\tcategory\n" + b"nothing\n" * 10, "skip", "no line .*Line 2: 1 fields where 3"),
        (b"version https://git-lfs.github.com/spec/v1\n", "strict", "the file is a Git LFS pointer"),
        (b"<html>", "strict", "the file is a web page"),
    ],
)
def test_another_file(file, content, mode, says):
    for name in ("rows.txt", "rows.txt.gz"):
        path = file(content, name)
        if "the file is a" in says:
            path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.*{says}"):
            read(path, header=tuple(FIELDS), bad=BadLines(mode))


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz"])
@pytest.mark.parametrize("block", [16, text_lines.BLOCK_BYTES])
def test_a_line_may_be_so_long_and_no_longer(file, monkeypatch, name, block):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", block)
    monkeypatch.setattr(text_lines, "PIECE", 16)
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 40)
    longest = b"1\t" + b" " * 28 + b"7\t0000000a"
    assert len(longest) == 40 and read(file(GOOD + longest + b"\n", name))["count"] == [*PARSED["count"], 7]
    path = file(GOOD + longest.replace(b"7", b" 7") + b"\n" + GOOD, name)
    for mode in ("strict", "skip"):
        refuses(lambda mode=mode: read(path, bad=BadLines(mode)), DataError, f"{name}, line 4: longer than 40 bytes")


def test_a_byte_order_mark_is_skipped_only_at_the_beginning(file, monkeypatch):
    mark = b"\xef\xbb\xbf"
    assert read(file(mark + GOOD)) == PARSED
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 1)  # each line is a block
    path = file(GOOD + mark + GOOD)
    refuses(lambda: read(path), DataError, r"line 4, field 1 (label): '\xef\xbb\xbf1' is not a label")


def test_truncated_gzip(file, tmp_path):
    noise = np.random.default_rng(0).integers(0, 2**32, 200_000)
    whole = file(b"".join(b"1\t2\t%08x\n" % value for value in noise), "rows.txt.gz").read_bytes()
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.gz: the gzip file is truncated; .* line \d+") as error:
        read(path)
    assert 20_000 < int(str(error.value).split()[-1]) < 110_000
    path.write_bytes(b"no gzip at all")
    refuses(lambda: read(path), DataError, "damaged gzip file")


HEADER = ("userId", "rating", "timestamp")
CSV = b"1,0.5,1970-01-01 00:00:00\r\n2,4,2015-03-31 06:40:02\r\n3,5.0,1969-12-31 23:59:59\r\n"
CSV_FORM = {"fields": {"user": INTEGER, "stars": HALF_STARS, "time": TIME}, "delimiter": ",", "header": HEADER}
FORMS = {  # good lines -> those before them, what they hold, and their form
    GOOD: (b"", PARSED, {}),
    CSV: (b"userId,rating,timestamp\r\n", {"user": [1, 2, 3], "stars": [0.5, 4, 5]}, CSV_FORM | {"quoted": True}),
}


@pytest.mark.parametrize(
    ("good", "line", "says"),
    [
        (GOOD, b"1\t2", "2 fields where 3 are expected (separated by '\\t'): '1\\t2'"),
        (GOOD, b"", "1 fields where 3"),
        (GOOD, b"2\t1\t", "field 1 (label): '2' is not a label, 0 or 1"),
        (GOOD, b"1\tx\t", "field 2 (count): 'x' is not an integer or empty"),
        (GOOD, b"1\t99999999999999999999\t", "field 2 (count): '99999999999999999999'"),
        (GOOD, b"1\t1\t0000000g", "field 3 (category): '0000000g'"),
        (GOOD, b"1\t1\t\xff\xfe", "field 3 (category): '\\xff\\xfe'"),
        (GOOD, b"1\t1\t0000\r0000", "field 3 (category)"),
        (GOOD, b"1\t1\t00000000\r1\t1\t00000000", "5 fields where 3"),  # to Arrow two good lines
        (GOOD, b"1\t0x10\t", "field 2 (count): '0x10'"),  # to Arrow, a good number
        (CSV, b"1,0,1970-01-01 00:00:00", "field 2 (stars): '0' is not a rating of 0.5 to 5.0 in steps of a half"),
        (
            CSV,
            b"1,4,2015-02-29 00:00:00",
            "field 3 (time): '2015-02-29 00:00:00' is not a time of the form YYYY-MM-DD HH",
        ),
        (CSV, b"1,4,1427784002", "field 3 (time): '1427784002'"),
        (CSV, b'"1,4",2015-02-28 00:00:00', "field 1 (user): '\"1'"),
        (CSV, b'""1"",4,2015-02-28 00:00:00', "field 1 (user)"),
        (CSV, b'1,4,"2015-02-28 00:00:00', "field 3 (time)"),
    ],
)
@pytest.mark.parametrize("block", [text_lines.BLOCK_BYTES, 16])
def test_a_bad_line_is_named_or_skipped(file, monkeypatch, good, line, says, block):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", block)
    head, parsed, form = FORMS[good]
    path, first = file(head + (good + line + b"\r\n") * 2), 4 + bool(head)
    with pytest.raises(DataError) as caught:
        read(path, **form)
    assert str(caught.value).startswith(f"{path}, line {first}") and says in str(caught.value)
    bad = BadLines("skip")
    assert read(path, **form, bad=bad) == {name: values * 2 for name, values in parsed.items()}
    assert [(name, number) for name, number, _ in bad.skipped] == [("rows.txt", first), ("rows.txt", first + 4)]
    assert all(says in wrong for _, _, wrong in bad.skipped)


def test_rows_have_the_numbers_of_their_lines(file, monkeypatch):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 40)
    content = b"label\tcount\tcategory\n" + b"".join(b"%d\t%d\t\n" % (i % 2, i) for i in range(100)) + b"bad\n" + GOOD
    bad = BadLines("skip")
    blocks = list(read_columns(file(content), LineFormat(FIELDS, "\t", tuple(FIELDS)), bad))
    assert len(blocks) > 10 and [line for _, line, _ in bad.skipped] == [102]
    assert np.concatenate([block["line"] for block in blocks]).tolist() == [*range(2, 102), 103, 104, 105]


VALUES = {  # the value of each type in plain Python; an exception: malformed
    INTEGER: lambda part: whole(part),
    OPTIONAL_INTEGER: lambda part: -(2**63) if not part else whole(part),
    CLICK_LABEL: lambda part: (0, 1)[[0, 1].index(whole(part))],
    STARS: lambda part: 1 + range(1, 6).index(whole(part)),
    SECONDS: lambda part: [whole(part)][whole(part) != 0 and not 788918400 <= whole(part) <= 4102444800],
    HEX: lambda part: -1 if not part else int(re.fullmatch(rb"[0-9a-fA-F]{8}", part)[0], 16),
    FULL_HEX: lambda part: int(re.fullmatch(rb"[0-9a-fA-F]{8}", part)[0], 16),
    HALF_STARS: lambda part: [i / 2 for i in range(1, 11) if i / 2 == float(re.fullmatch(rb"\d(\.\d+)?", part)[0])][0],
    TIME: lambda part: int(moment(part)),
}


def whole(part):
    value = int(re.fullmatch(rb"-?[0-9]+", part.strip(b" \t"))[0])
    return range(-(2**63), 2**63)[value + 2**63]


def moment(part):
    found = re.fullmatch(rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)", part)
    return datetime.fromisoformat(f"{found[1].decode()}T{found[2].decode()}+00:00").timestamp()


def value(kind, part):
    """None if the part is malformed."""
    try:
        return VALUES[kind](part)
    except (TypeError, ValueError, IndexError):
        return None


PARTS = {
    INTEGER: ["0", "12", " 1", "1 ", "-5", "+5", "0x1", "0X1", "1e3", "1.0", "", " ", "9223372036854775808", "-0", "007"],
    CLICK_LABEL: ["0", "1", "2", "-1", "-0", "01", ""],
    STARS: ["1", "5", "0", "6", "3.0", ""],
    SECONDS: ["0", "978300760", "97830076", "-0", "788918400", "788918399", "4102444800", "4102444801", "", "-978300760"],
    HEX: ["00000000", "ABCDEF01", "abcdef0", "abcdef012", "0000000x", "", "0x000000"],
    HALF_STARS: ["0.5", "5.0", "3", "3.50", "5.5", "0", "0.0", "nan", "4e0", " 4", "5.", ".5", ""],
    TIME: ["2014-04-20 14:47:38", "2014-04-31 14:47:38", "2014-04-20T14:47:38", "2014-04-20 14:47", "1970-01-01 00:00:00",
           "2014-04-20 23:59:60", "2014-04-20 14:47+00", "0001-01-01 00:00:00", "2012-02-29 24:00:00", "2014-4-20 14:47:38 "],
}  # fmt: skip
PARTS |= {OPTIONAL_INTEGER: PARTS[INTEGER], FULL_HEX: PARTS[HEX]}


def part_of(kind, delimiter):
    odd = st.binary(max_size=8).filter(lambda part: b"\n" not in part)
    alphabet = st.text(alphabet='019. -:"\r\tx' + delimiter, max_size=4).map(str.encode)
    plain = st.one_of(st.sampled_from(PARTS[kind][:2]), st.sampled_from(PARTS[kind])).map(str.encode)
    return st.one_of(plain, plain, plain, plain.map(lambda part: b'"%s"' % part), plain, odd, alphabet)


@st.composite
def files(draw):
    """Fields, delimiter, quoted or not, header or not, and the lines with their ends (the last may lack one)."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=4))
    fields, delimiter = {f"field {i}": kind for i, kind in enumerate(kinds)}, draw(st.sampled_from(["\t", ",", "::"]))
    line = st.tuples(*(part_of(kind, delimiter) for kind in kinds)).map(delimiter.encode().join)
    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    rows = draw(st.lists(st.tuples(st.one_of(line, line, line, st.just(b"")), ends), min_size=1, max_size=5))
    if rows[-1][0] and draw(st.booleans()):
        rows[-1] = (rows[-1][0], b"")
    return fields, delimiter, delimiter != "::" and draw(st.booleans()), draw(st.booleans()), rows


@settings(max_examples=300, deadline=None)
@given(files(), st.sampled_from([text_lines.BLOCK_BYTES, 1, 30]))
def test_columns_and_lines_agree(tmp_path_factory, content, block):
    """The column reader and the line reader accept the same text, as plain Python does."""
    fields, delimiter, quoted, headed, rows = content
    parsed = [name for name, kind in fields.items() if kind.arrow is not None]
    form = {"header": tuple(fields) if headed else None, "quoted": quoted}
    path = tmp_path_factory.getbasetemp() / "odd.txt"
    path.write_bytes((delimiter.join(fields).encode() + b"\r\n") * headed + b"".join(line + end for line, end in rows))
    expected, bad_lines = {name: [] for name in parsed}, []
    for number, (line, end) in enumerate(rows, 1 + headed):
        parts = (line if end == b"\r\n" else line.removesuffix(b"\r")).split(delimiter.encode())
        if quoted:
            parts = [part[1:-1] if re.fullmatch(rb'"[^"]*"', part) else part for part in parts]
        values = [
            None if b"\r" in part else value(kind, part) for part, kind in zip(parts, fields.values(), strict=False)
        ]
        if len(parts) != len(fields) or None in values:
            bad_lines.append(number)
        else:
            for name, number_or_none in zip(fields, values, strict=True):
                if name in parsed:
                    expected[name].append(number_or_none)
    skip = BadLines("skip")
    all_bad = "no line has the expected form" if len(bad_lines) == len(rows) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK_BYTES", block)
        for bad, said in ((STRICT, bad_lines and f"odd.txt, line {bad_lines[0]}"), (skip, all_bad)):
            if said:
                refuses(lambda bad=bad: read(path, fields, delimiter, **form, bad=bad), DataError, said)
            else:
                assert read(path, fields, delimiter, **form, bad=bad) == expected
    assert [number for _, number, _ in skip.skipped] == bad_lines
