"""Published numbers and those of a run, from a made folder."""

import pandas as pd
import pytest

from reproduce.other_papers import NOT_RUN, as_markdown, table

TEXTS = {"what": "a share", "source": "a paper", "setting": "another model", "published": "94 %", "same": "yes"}


def written(path, *rows):
    lines = []
    for row in rows:
        lines += ["[[row]]", *(f"{key} = {value!r}" for key, value in row.items() if key != "where")]
        if "where" in row:
            lines.append(f"where = {{ {', '.join(f'{key} = {value!r}' for key, value in row['where'].items())} }}")
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def figures(tmp_path):
    (tmp_path / "data").mkdir()
    effects = {"effect": ["a", "b"], "value": [0.3, 0.5], "low": [0.2, None], "high": [0.4, None], "n": [5, 5]}
    pd.DataFrame(effects | {"interval": ["trainings", ""], "why": ["", "the same in all"]}).to_csv(
        tmp_path / "e.csv", index=False
    )
    points = pd.DataFrame({"ber": [1e-3, 1e-4], "auc": [0.6, 0.7], "auc_low": [0.5, 0.6], "auc_high": [0.7, 0.8]})
    points.to_csv(tmp_path / "data" / "points.csv", index=False)
    return tmp_path


def test_numbers_are_those_of_the_cells(figures):
    rows = [TEXTS | {"csv": "e", "where": {"effect": "a"}}, TEXTS | {"csv": "e", "where": {"effect": "b"}}]
    rows += [TEXTS | {"csv": "points", "value": "auc", "where": {"ber": 1e-3}}]
    rows += [TEXTS | {"csv": "missing", "where": {"effect": "a"}}, TEXTS | {"csv": "e", "where": {"effect": "z"}}]
    found = table(figures, written(figures / "rows.toml", *rows))
    assert found["value"].tolist()[:3] == [0.3, 0.5, 0.6] and found["low"].tolist()[:3:2] == [0.2, 0.5]
    assert found["why"].tolist() == ["", "the same in all", "", NOT_RUN, NOT_RUN] and found["n"].tolist()[:2] == [5, 5]
    lines = as_markdown(found).splitlines()
    assert len(lines) == 7
    assert lines[2] == "| a share | 94 % | a paper: another model | 0.3 [0.2, 0.4] (trainings, n = 5) | yes |"
    assert "| 0.5 (the same in all) |" in lines[3] and "| 0.6 [0.5, 0.7] |" in lines[4] and f"| {NOT_RUN} |" in lines[5]
