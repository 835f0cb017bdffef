from pathlib import Path

import pytest

from reproduce.models import BEGIN, END, models_table, with_models

ROOT = Path(__file__).resolve().parents[2]
CSV = """# How it was measured, in words.
model,dataset,rows,auc,auc_low,auc_high,logloss,parameters,seconds,sizes
fm,movielens,9,0.81234,0.8001,0.82,0.51234,164000,12.345,"{'a': [1, 2]}"
dlrm,movielens,9,0.82,0.81,0.83,0.5,1640000,60.7,{}
fm,criteo,9,0.76,0.75,0.77,0.48,5,9.9,{}
"""


def test_from_csv_to_markdown(tmp_path):
    (tmp_path / "models.csv").write_text(CSV)
    assert models_table(tmp_path / "models.csv").splitlines()[2:] == [
        "| movielens | dlrm | 0.8200 (0.8100 to 0.8300) | 0.5000 | 1,640,000 | 61 |",
        "| movielens | fm | 0.8123 (0.8001 to 0.8200) | 0.5123 | 164,000 | 12 |",
        "| criteo | fm | 0.7600 (0.7500 to 0.7700) | 0.4800 | 5 | 10 |",
    ]
    text = with_models(f"before\n{BEGIN}\nold\n{END}\nafter\n", tmp_path / "models.csv")
    assert (
        text.startswith(f"before\n{BEGIN}\n| data set")
        and text.endswith(f"| 10 |\n{END}\nafter\n")
        and "old" not in text
    )
    with pytest.raises(ValueError, match="no place for the table of models"):
        with_models("no marks", tmp_path / "models.csv")


def test_the_readme_has_the_published_numbers():
    text = (ROOT / "README.md").read_text()
    assert with_models(text, ROOT / "figures" / "models.csv") == text
