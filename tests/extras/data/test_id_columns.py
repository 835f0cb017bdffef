"""Ids as people have them: what they become in a data set, what is said of it, and what is refused."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from drsrobust.data import from_frame, from_tensors
from tests.refusals import refuses


def encoded(values, **options):
    """(ids, of lists as lists; cardinality; warnings) of a column named c."""
    frame = values if isinstance(values, pa.Table) else pd.DataFrame({"y": np.arange(len(values)) % 2, "c": values})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = from_frame(frame, label="y", sparse=["c"], **options)
    assert all(one.filename == __file__ for one in said)
    found = data.test.sparse["c"]
    ids = found.values.tolist()
    if found.lengths is not None:
        ids = [part.tolist() for part in np.split(found.values, found.ends()[:-1])]
    return ids, data.schema.features[0].cardinality, [str(one.message) for one in said]


YOURS = "; vocabulary= takes yours"
ALPHABETICAL = "column 'c': numbered 1 to {} in alphabetical order" + YOURS
BY_CATEGORY = "column 'c': numbered 0 to {} in the order of its categories" + YOURS
SORTED = "column 'c': numbered 0 to {} in the sorted order of its categories" + YOURS
TEXT, LISTS = ["tv", "book", "tv", "art"], [["tv", "art"], [], ["book"], ["art", "art"]]
CATEGORIES = pd.Categorical(["tv", "book", "tv", None], categories=["tv", "radio", "book"])


HASHES = [2**63 + 11, 7, 2**64 - 1, 7]


def known(*values):
    return {"vocabulary": {"c": values}}


def of_size(size):
    return {"missing": "category", "cardinalities": {"c": size}}


@pytest.mark.parametrize(
    ("values", "options", "ids", "size", "said"),
    [
        (TEXT, {}, [3, 2, 3, 1], 4, ALPHABETICAL.format(3)),
        (LISTS, {}, [[3, 1], [], [2], [1, 1]], 4, ALPHABETICAL.format(3)),
        ([4.0, 0.0, 2.0, 4.0], {}, [4, 0, 2, 4], 5, None),
        (np.array([4, 0, 2, 4], np.float32), {}, [4, 0, 2, 4], 5, None),
        ([[4.0], [0.0, 2.0], [], []], {}, [[4], [0, 2], [], []], 5, None),
        ([True, False, True, True], {}, [1, 0, 1, 1], 2, None),
        (np.array([4, 0, 2, 4], np.uint64), {}, [4, 0, 2, 4], 5, None),
        (pd.cut(pd.Series([5.0, 1.0, 9.0]), [0, 3, 6, 10]), {}, [1, 0, 2], 3, SORTED.format(2)),
        (TEXT, known("tv", "book", "game", "art"), [0, 1, 0, 3], 4, None),
        (TEXT, {"vocabulary": {"c": pd.Index(["tv", "book", "game", "art"])}}, [0, 1, 0, 3], 4, None),
        (LISTS, known("art", "book", "tv"), [[2, 0], [], [1], [0, 0]], 3, None),
        (np.array(HASHES, np.uint64), known(7, 2**64 - 1, 2**63 + 11), [2, 0, 1, 0], 3, None),
        (HASHES, {"vocabulary": {"c": [7, 2**64 - 1, 2**63 + 11]}}, [2, 0, 1, 0], 3, None),
        ([40.0, 0.0, 20.0, 40.0], known(0, 20, 40), [2, 0, 1, 2], 3, None),
        ([0.5, 2.5, 0.5, 0.5], known(2.5, 0.5), [1, 0, 1, 1], 2, None),
        (pd.Categorical(TEXT), known("tv", "book", "art"), [0, 1, 0, 2], 3, None),
        ([date(2026, 1, 2), date(2026, 1, 1)], known(date(2026, 1, 1), date(2026, 1, 2)), [1, 0], 2, None),
    ],
)
def test_what_columns_become(values, options, ids, size, said):
    assert encoded(values, **options) == (ids, size, [said] if said else [])


def arrow(values):
    return pa.table({"y": np.arange(len(values)) % 2, "c": values})


def stored(values):
    """As a dictionary in the order of appearance, as files and Arrow have it."""
    return pa.array(values).dictionary_encode()


def declared(values, categories):
    codes = pa.array([categories.index(value) for value in values], pa.int8())
    return pa.DictionaryArray.from_arrays(codes, categories, ordered=True)


OWN = ["c", "x", "a", "b"]  # an order of the user's own


ABC, TEXT_ABC = {"a": 1, "b": 2, "c": 3}, ALPHABETICAL.format(3)
NUMBERS = {"a": 10, "b": 4, "c": 7}


@pytest.mark.parametrize(
    ("column", "expected", "said"),
    [
        (lambda values: arrow(pa.array(values, pa.string_view())), ABC, TEXT_ABC),
        (lambda values: arrow(pa.array(values, pa.large_string())), ABC, TEXT_ABC),
        (lambda values: arrow(pa.chunked_array([values[:1], values[1:]])), ABC, TEXT_ABC),
        (lambda values: arrow(stored(values)), ABC, TEXT_ABC),
        (lambda values: arrow(pa.chunked_array([stored(values[:1]), stored(values[1:])])), ABC, TEXT_ABC),
        (lambda values: arrow(pa.array([[v] for v in values], pa.list_(stored(values).type))), ABC, TEXT_ABC),
        (lambda values: arrow(stored(values)).to_pandas(types_mapper=pd.ArrowDtype)["c"], ABC, TEXT_ABC),
        (lambda values: arrow(stored(values)).to_pandas()["c"], {"a": 0, "b": 1, "c": 2}, SORTED.format(2)),
        (lambda values: pd.Categorical(values, OWN), {"a": 2, "b": 3, "c": 0}, BY_CATEGORY.format(3)),
        (lambda values: arrow(declared(values, OWN)), {"a": 2, "b": 3, "c": 0}, BY_CATEGORY.format(3)),
        (lambda values: arrow(stored([NUMBERS[v] for v in values])), NUMBERS, None),
        (lambda values: pd.Categorical([NUMBERS[v] for v in values]), {"a": 2, "b": 0, "c": 1}, SORTED.format(2)),
    ],
)
def test_a_value_has_one_id_in_whatever_order_values_appear(column, expected, said):
    for values in (["b", "a", "c"], ["c", "b", "a"], ["a", "b", "c"], ["c", "a", "b", "c"]):
        ids, _, notes = encoded(column(values))
        if isinstance(ids[0], list):
            ids = [part for (part,) in ids]
        assert ids == [expected[value] for value in values] and notes == ([said] if said else [])


def missing(number, gap):
    return f"{number} missing values have id {gap}"


@pytest.mark.parametrize(
    ("values", "options", "ids", "size", "said"),
    [
        ([3.0, None, 0.0, np.nan], {}, [3, 4, 0, 4], 5, f"column 'c': {missing(2, 4)}"),
        (pd.array([3, None, 0, 1], "Int64"), {}, [3, 4, 0, 1], 5, f"column 'c': {missing(1, 4)}"),
        ([3.0, None, 0.0, 1.0], {"cardinalities": {"c": 10}}, [3, 9, 0, 1], 10, f"column 'c': {missing(1, 9)}"),
        (["tv", None, "art", "tv"], {}, [2, 0, 1, 2], 3, f"{ALPHABETICAL.format(2)}; {missing(1, 0)}"),
        (CATEGORIES, {}, [0, 2, 0, 3], 4, f"{BY_CATEGORY.format(2)}; {missing(1, 3)}"),
        ([[3, 1], None, [], [0, None]], {}, [[3, 1], [4], [], [0, 4]], 5, f"column 'c': {missing(2, 4)}"),
        (["tv", None, "art"], known("tv", "b", "art"), [0, 3, 2], 4, f"column 'c': {missing(1, 3)}"),
        (["tv", "tv", "art", "tv"], known("tv", "book", "art"), [0, 0, 2, 0], 4, None),
        ([3, 1, 0, 1], {}, [3, 1, 0, 1], 4, None),
        ([None, None, None, None], {}, [1, 1, 1, 1], 2, f"column 'c': {missing(4, 1)}"),
    ],
)
def test_missing_values_have_an_id_of_their_own(values, options, ids, size, said):
    assert encoded(values, missing="category", **options) == (ids, size, [said] if said else [])
    if said and "missing" in said:
        with pytest.raises(ValueError, match=r"'c': \d values are missing, the first in row [013]; .*missing='cat"):
            encoded(values, **options)


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        (TEXT, known("tv", "art"), "'c' holds 'book' in row 1, .* vocabulary of 2"),
        (LISTS, known("tv", "art"), "'c' holds 'book' in row 2"),
        ([1, 2, 3, 4], known("1", "2"), "'c' holds 1 in row 0"),
        (TEXT, known("tv", "book", "tv"), "'tv' at the positions 0 and 2"),
        (TEXT, known("tv", None), "None at position 1"),
        (TEXT, {"vocabulary": {"c": {"tv": 1}}}, "vocabulary of column 'c' is a dict"),
        (TEXT, {"vocabulary": {"c": "tv"}}, "vocabulary of column 'c' is a str"),
        (TEXT, {"vocabulary": {"d": ["tv"]}}, "vocabulary 'd'"),
        (TEXT, {"vocabulary": ["tv"]}, "vocabulary is a list"),
        (TEXT, {"vocabulary": {"c": np.array([["tv"]])}}, r"\['tv'\] at position 0"),
        (TEXT, {"cardinalities": [3]}, "cardinalities is a list"),
        (["tv", None], known("tv", "art") | of_size(2), "id 2 in row 1; .* is 2"),
        ([9.0, None, 0.0], of_size(10), "'c' holds id 9 in row 0; id 9.*missing"),
        (TEXT, {"missing": "drop"}, "missing 'drop'"),
        (HASHES, {}, "'c' holds id 9223372036854775819 in row 0; .*2147483647"),
        ([1.0, 2.0**53, 1.0, 0.0], {}, "'c' holds 9007199254740992 in row 1; double"),
        (np.array([2**24, 1], np.float32), {}, "'c' holds 16777216 in row 0; float"),
        ([5.0, 2.0**60], known(5, 2**60), "'c' holds 1.1529.* in row 1; double"),
        ([2**70, 1], {}, "'c' holds values of several types, or numbers of over 64 bits"),
        ([1.0, np.inf, 1.0, 0.0], {}, "'c' holds inf in row 1"),
        ([[1.0], [], [2.0, 0.5], []], {}, "'c' holds 0.5 in row 2"),
        (pd.to_datetime(["2026-01-01"] * 2), {}, "'c' is timestamp.*vocabulary="),
    ],
)
def test_what_is_refused(values, options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        encoded(values, **options)


def test_lists_of_one_length_and_slices():
    fixed = pa.array([[1, 2], None, [3, 0]], pa.list_(pa.int64(), 2))
    found = encoded(pa.table({"y": [0, 1, 0], "c": fixed}), missing="category")
    assert found[:2] == ([[1, 2], [4], [3, 0]], 5)
    sliced = pa.table({"y": [0, 1, 0, 1], "c": LISTS}).slice(2)
    assert encoded(sliced)[:2] == ([[2], [1, 1]], 3)


def test_tensors_follow_the_same_rules():
    label = np.array([0, 1, 0])
    data = from_tensors(
        label=label,
        sparse={"f": torch.tensor([2.0, 0.0, 1.0]), "h": np.array([7, 2**64 - 1, 7], np.uint64)},
        vocabulary={"h": [2**64 - 1, 7]},
        user=torch.tensor([5.0, 5.0, 6.0]),
    )
    assert data.test.sparse["f"].values.tolist() == [2, 0, 1] and data.test.users.tolist() == [5, 5, 6]
    assert data.test.sparse["h"].values.tolist() == [1, 0, 1] and data.schema.features[1].cardinality == 2
    for sparse, said in (
        ({"h": np.array([7, 2**64 - 1, 7], np.uint64)}, "'h' holds id 18446744073709551615 in row 1"),
        ({"h": (torch.tensor([1, 2, -5]), torch.tensor([2, 0, 1]))}, "'h' holds id -5 in row 2"),
        ({"f": np.zeros((3, 2), int)}, "f is int64 of shape (3, 2)"),
    ):
        refuses(lambda sparse=sparse: from_tensors(label=label, sparse=sparse), (ValueError, TypeError), said)
    with pytest.warns(UserWarning, match="feature 'f': 1 missing values have id 3"):
        data = from_tensors(label=label, sparse={"f": np.array([1.0, np.nan, 2.0])}, missing="category")
    assert data.test.sparse["f"].values.tolist() == [1, 3, 2]


def of_users(users):
    return from_frame(pd.DataFrame({"y": [0, 1], "u": users}), label="y", user="u").test.users


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (np.array([1, 2**64 - 1], np.uint64), ("holds 18446744073709551615 in row 1; ", "9223372036854775808")),
        (np.array([np.nan, 1.0]), ("1 values are missing, the first in row 0",)),
        (np.array([1.0, 2.5]), ("holds 2.5 in row 1",)),
        (np.array([1.0, np.inf]), ("holds inf in row 1",)),
        (np.array([1.0, 2.0**53]), ("double ", "9007199254740992")),
    ],
)
def test_users_that_would_become_others(users, said):
    refuses(lambda: of_users(users), ValueError, "column 'u'", *said)
    refuses(lambda: from_tensors(label=np.array([0, 1]), user=users), ValueError, "user", *said)


def test_users_keep_their_numbers():
    for users in ([3.0, -1.0], np.array([3, 2**63 - 1], np.uint64), [True, False]):
        found = of_users(users)
        assert found.tolist() == list(map(int, users)) and found.dtype == np.int64


def test_floats_of_tensors():
    """A tensor's values are exact up to the digits of its own type, whatever NumPy has."""
    data = from_tensors(
        label=np.array([0, 1]),
        sparse={"f": torch.tensor([255, 2]).bfloat16(), "d": torch.tensor([2**30 + 1, 0], dtype=torch.float64)},
        user=torch.tensor([2**52 + 1, 3], dtype=torch.float64),
    )
    assert data.test.sparse["f"].values.tolist() == [255, 2] and data.test.sparse["d"].values.tolist() == [2**30 + 1, 0]
    assert data.test.users.tolist() == [2**52 + 1, 3]
    rounded = torch.tensor([2, 257]).bfloat16()  # 256 in this type
    halves = torch.tensor([1, 2049]).half(), torch.tensor([1, 0, 1])
    for given, n, said in (
        ({"sparse": {"f": rounded}}, 2, "holds 256 in row 1; bfloat16"),
        ({"user": rounded}, 2, "holds 256 in row 1; bfloat16"),
        ({"sparse": {"f": halves}}, 3, "holds 2048 in row 2; float16"),
    ):
        refuses(lambda given=given, n=n: from_tensors(label=np.zeros(n), **given), ValueError, said)


def test_items_of_a_ranking_take_a_vocabulary():
    frame = pd.DataFrame({"next": [["b"], ["a", "c"], []], "seen": ["a", "b", "c"]})
    known = ["c", "b", "a"]
    data = from_frame(frame, label="next", sparse=["seen"], task="ranking", vocabulary={"next": known, "seen": known})
    assert data.test.labels.values.tolist() == [1, 2, 0] and data.test.labels.lengths.tolist() == [1, 2, 0]
    assert data.test.sparse["seen"].values.tolist() == [2, 1, 0]
    gap, options = pd.DataFrame({"next": [1.0, None]}), {"label": "next", "task": "ranking", "missing": "category"}
    refuses(lambda: from_frame(gap, **options), ValueError, "'next': 1 values are missing, the first in row 1")
    data = from_tensors(label=np.array(["b", "a"]), task="ranking", vocabulary={"label": ["a", "b"]})
    assert data.test.labels.values.tolist() == [1, 0]
