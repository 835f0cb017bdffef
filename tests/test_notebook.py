import re

import pytest

from drsrobust.notebook import check_parameters, conclusion, provenance


def check(value, annotation):
    check_parameters({"__annotations__": {"ber": annotation}, "ber": value})


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (1e-5, float),
        (1, float),
        (3, int),
        ("x", str),
        (True, bool),
        ([1e-5, 1], list[float]),
        ([], list[str]),
        (None, str | None),
    ],
)
def test_values_that_fit(value, annotation):
    check(value, annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "says"),
    [
        ("1e-5", float, r"parameter 'ber' is '1e-5' \(str\); it must be float\. In YAML write 1\.0e-5"),
        ("[1]", list[int], r"must be list\[int\].*python -m reproduce NOTEBOOK 'ber=\.\.\.'"),
        (1.5, int, r"'ber' is 1.5 \(float\); it must be int"),
        (True, int, r"True \(bool\); it must be int"),
        (True, float, r"must be float"),
        ("true", bool, r"must be bool"),
        ([1, "x"], list[int], r"must be list\[int\]"),
        (3, str | None, r"must be str \| None"),
    ],
)
def test_values_that_do_not(value, annotation, says):
    with pytest.raises(TypeError, match=says):
        check(value, annotation)


def test_provenance(judge):
    line = provenance(judge)
    assert (
        "data synthetic-movielens/full test, 600 rows" in line
        and judge.checkpoint[:12] in line
        and "torch 2.13" in line
    )


def test_provenance_of_what_needs_no_data():
    assert re.fullmatch(r"\d+ cores \w+; python 3\.11.*, torch 2\.13.*", provenance())


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["reproduced", "reproduced"], "Reproduced (2 of 2 findings in full)."),
        (["reproduced", "not"], "Partly reproduced (1 of 2 findings in full)."),
        (["reproduced", "nothing lost"], "Partly reproduced (1 of 2 findings in full)."),
        (["partly", "not"], "Partly reproduced (0 of 2 findings in full)."),
        (["not"], "Not reproduced (0 of 1 findings in full)."),
        (["nothing lost"], "Not tested."),
        ([], "Not tested."),
    ],
)
def test_a_conclusion(verdicts, said):
    assert (
        conclusion("C3", "AUC holds", iter(["a", "b"]), iter(verdicts))
        == f"C3. The paper: AUC holds. Here: a; b. {said}"
    )
    assert "Here: nothing to see. " in conclusion("C3", "AUC holds", [], verdicts)
