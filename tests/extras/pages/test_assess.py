"""`drsrobust assess`: one command for a model file, the page, the TOML file that repeats it, and mistakes in one line each."""

import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust_extras.pages import assess as assess_file
from drsrobust_extras.pages.column_kinds import ColumnKind, column_kind
from drsrobust_extras.pages.model_file import ByName
from drsrobust_extras.pages.report.assessment import _percent, flips_until
from tests.extras.pages.test_command import run
from tests.refusals import refuses

MODEL = """
import torch

class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = torch.nn.Embedding(40, 4), torch.nn.Embedding(20, 4)
        self.top = torch.nn.Sequential(torch.nn.Linear(9, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def forward(self, price, user, item):
        return self.top(torch.cat((price[:, None], self.user(user), self.item(item)), dim=1)).squeeze(1)

def untrained():
    torch.manual_seed(0)
    return Towers()

def make():
    model = untrained()
    with torch.no_grad():
        for parameter in model.top.parameters():
            parameter.fill_(0.1)
        model.item.weight.fill_(0.0)
        model.item.weight[::2] = 1.0
    return model

def number():
    return 7

def broken():
    return {}["weights"]
"""
OTHER = "def make():\n    raise OSError('no weights')\n\ndef late(:\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model's file, its checkpoint and rows; names are taken by other tests, so the module has a name of its own."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"price": random.normal(size=600), "user": random.integers(40, size=600)})
    frame = frame.assign(item=random.integers(20, size=600), note="text")
    frame["bought"] = (random.random(600) < np.where(frame["item"] % 2, 0.2, 0.8)).astype(int)
    frame.assign(five=frame["bought"] + 5).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "assessed.py").write_text(MODEL)
    (tmp_path / "wrong_code.py").write_text(OTHER)
    torch.save({"top.weight": torch.zeros(2)}, tmp_path / "other.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("assessed", None)


def assess(*options, model="assessed.py:make", rows="rows.csv", label="bought"):
    return run("assess", model, rows, "--label", label, "--trials", 12, *options)


@pytest.mark.long
def test_a_page_from_two_files_and_the_file_that_repeats_it(folder):
    done = assess("--fit-per-mbit", 25_000)
    assert done.exit_code == 0, done.output
    assert re.search(r"without errors: AUC 0\.\d+.*\none flip of .*\n.* until 0.01 AUC is lost\nreport: ", done.output)
    page = folder / "assess" / "index.html"
    assert done.output.rstrip().endswith(f"report: {page}") and "note: " not in done.output
    text, toml = page.read_text(), (folder / "assess" / "assess.toml").read_text()
    for link in re.findall(r'(?:href|src)="([^"#]+)"', text):
        assert (page.parent / link).is_file(), link
    heads = re.findall(r"<li><b>(.*?)</b><p>(.+?)</p>", text)
    assert [head for head, _ in heads] == ["What to do first", "How many flips it bears", "One flip"]
    assert re.search("^(Use|Measure|Nothing)", heads[0][1])
    shown = "<td>embedding</td><td>highest exponent bit</td>", "ActivationClipping", "<td>ECC</td>"
    assert all(part in text for part in (*shown, "[[campaign.conditions]]", "drsrobust campaign assess"))
    picture = (page.parent / "figures" / "one_flip.svg").read_text()
    assert "in embedding" in picture and "in table" not in picture  # the target that one types
    repeated = run("campaign", folder / "assess" / "assess.toml")
    assert repeated.exit_code == 0, repeated.output
    for name in ("trials.csv", "summary.csv"):
        assert (page.parent / name).read_bytes() == (page.parent / "report" / name).read_bytes(), name
    assert assess().exit_code == 0 and (folder / "assess" / "assess.toml").read_text() == toml


def test_a_slow_model_has_the_fewest_rows(folder, monkeypatch):
    monkeypatch.setattr(assess_file, "SECONDS", 0.0)
    monkeypatch.setattr(assess_file, "ROWS", (200, 300))
    done = assess("--init")
    assert done.exit_code == 0 and "head = 200" in (folder / "assess" / "assess.toml").read_text()
    assert "note: trials use 200 of 600 rows" in done.output


def test_the_file_alone_and_what_was_edited_stays(folder):
    done = assess("--init", "--dense", "price,user", "--rows", 300, model="assessed.py:number")
    assert done.exit_code == 1 and not (folder / "assess").exists()
    done = assess("--init", "--rows", 300)
    path = folder / "assess" / "assess.toml"
    assert done.exit_code == 0 and [one.name for one in path.parent.iterdir()] == ["assess.toml"]
    assert "head = 300" in path.read_text() and assess("--init").exit_code == 0
    path.write_text(path.read_text().replace("trials = 12", "trials = 13"))
    refused = assess("--init")
    assert refused.exit_code == 1 and f"{path} exists" in refused.output and "trials = 13" in path.read_text()


# Options of the command, or what stands in the file of the model in place of what.
MISTAKES = [
    ({"model": "none.py:make"}, "there is no file .*none.py"),
    ({"model": "assessed.py"}, "'assessed.py'.*module:name"),
    ({"model": "assessed.py:build"}, "assessed.py has no 'build'"),
    ({"model": "assessed.py:broken"}, "assessed.py:broken raised KeyError.*assessed.py, line"),
    ({"model": "assessed.py:number"}, "assessed.py:number returned a int"),
    ({"model": "assessed.py:untrained"}, r"AUC without errors is 0\.\d+"),
    ({"model": "wrong_code.py:make"}, "SyntaxError.*wrong_code.py, line 4"),
    ({"rows": "none.csv"}, "there is no file .*none.csv"),
    ({"rows": "other.pt"}, "'other.pt'; it must end in"),
    ({"label": "click"}, "column 'click'"),
    ({"label": "five"}, "label 'five'"),
    (("--dense", "user,note"), "forward failed .*indices|embedding"),
    (("--dense", "item", "--ids", "item"), "'item' is in --dense and in --ids"),
    (("--fit-per-mbit", "0"), "fit_per_mbit"),
    (("--ids", "price"), "'price'"),
    (("--ids", "prize"), "'prize'; did you mean 'price'"),
    (("--checkpoint", "other.pt"), "other.pt does not fit assessed.py:make: .*user.weight"),
    (("--checkpoint", "rows.csv"), "rows.csv is not a state dict"),
    ({"edits": {"item):": "thing):", "(item)": "(thing)"}}, "Towers.forward takes 'thing', which is no column .*user"),
    ({"edits": {"Embedding(20": "Embedding(10"}}, "index out of range"),
    ({"edits": {"price, user": "note, user"}, "options": ("--dense", "note")}, "'note'"),
]


@pytest.mark.parametrize(("change", "said"), MISTAKES)
def test_mistakes_are_one_line(folder, change, said):
    given = dict(change) if isinstance(change, dict) else {"options": change}
    options = given.pop("options", ())
    for old, new in given.pop("edits", {}).items():
        (folder / "assessed.py").write_text((folder / "assessed.py").read_text().replace(old, new, 1))
    done = assess(*options, **given)
    errors = [line for line in done.output.splitlines() if not line.startswith("note: ")]
    assert done.exit_code == 1 and len(errors) == 1 and re.search(f"^Error: .*{said}", errors[0]), done.output
    assert not (folder / "assess").exists()


@pytest.mark.parametrize(
    ("values", "example"),
    [
        (["$3.54", "$12", "n/a"], "$3.54"),
        (["1,250", "-3.5e4", "(12)"], "1,250"),
        (["none", "12 %", "3.4%"], "12 %"),
        (["2024-01-31", "2024-02-01 10:30"], "2024-01-31"),
        (["Bern", "Oslo", "Rome", "12"], None),
        (["68fd1e64", "80e26c9b", "12345678", "fb936136"], None),
        (["CH", "NO", "IT"], None),
        (["18-25", "26-40", "over 40"], None),
    ],
)
def test_text_that_reads_as_numbers(values, example):
    column = pd.Series([*values, None])
    refuses(lambda: column_kind(column, "price", dense=["price"]), ValueError, "--dense", repr(values[0]))
    assert column_kind(column, "price", ids=["price"]).kind == "ids"
    if example is None:
        assert column_kind(column, "price").kind == "ids"
    else:
        refuses(lambda: column_kind(column, "price"), ValueError, "'price'", repr(example), "--ids price")


def test_columns_say_how_they_are_read():
    floats = ColumnKind("dense", "floats, all whole: numbers; ids with --ids age")
    assert column_kind(pd.Series([3.0, 7.0]), "age") == floats
    how = "whole numbers 3 to 7: ids as they are; numbers with --dense age"
    assert column_kind(pd.Series([3, 7]), "age").how == how


def test_a_folder_of_others_and_a_forward_in_the_file(folder):
    (folder / "assess").mkdir()
    (folder / "assess" / "index.html").write_text("my own")
    done = assess()
    assert done.exit_code == 1 and "index.html exists" in done.output
    swapped = "def forward(model, batch):\n    ids = batch.sparse_features\n"
    swapped += "    logits = model(batch.dense_features[:, 0], ids['user'].values(), ids['item'].values())\n"
    swapped += "    return torch.sigmoid(logits)\n"
    (folder / "assessed.py").write_text(MODEL + swapped)
    done = assess("--init", "--folder", "other")
    assert done.exit_code == 0, done.output
    assert "note: column 'note': numbered" in done.output and "look like probabilities" in done.output
    written = 'forward = "../assessed.py:forward"\noutput = "probability"'
    assert written in (folder / "other" / "assess.toml").read_text()


def test_lists_of_ids_and_outputs_with_logits():
    class Output:
        logits = torch.tensor([[1.0, 3.0], [2.0, 0.0]])

    class Sequences(torch.nn.Module):
        def forward(self, input_ids, attention_mask=None, **options):
            assert input_ids.shape == (2, 3) and attention_mask is None
            return Output()

    from drsrobust.data import from_frame

    rows = from_frame(pd.DataFrame({"input_ids": [[1, 2, 3], [4, 5, 6]], "y": [0, 1]}), label="y", sparse=["input_ids"])
    found = ByName.of(Sequences(), [], {"input_ids": True})(Sequences(), next(rows.test.batches(2)))
    assert found.tolist() == [2.0, -2.0]


@pytest.mark.parametrize(
    ("mean", "low", "high", "said"),
    [
        ([1e-3, 1e-2, 0.1], [8e-4, 8e-3, 0.08], [2e-3, 2e-2, 0.2], r"about 10 flips \[5, 13\]"),
        ([1e-4, 1e-3, 0.1], [0, 1e-4, 0.02], [1e-2, 0.1, 0.2], "between 1 and 7. flips"),
        ([1e-4, 1e-3, 2e-3], [0, 0, 0], [1e-3, 2e-3, 3e-3], "more than 100 flips"),
        ([0.1, 0.2, 0.3], [0.05, 0.1, 0.2], [0.2, 0.3, 0.4], "one flip"),
    ],
)
def test_how_many_flips(mean, low, high, said):
    assert re.fullmatch(said, flips_until(np.array([1, 10, 100]), *map(np.array, (mean, low, high))))


@pytest.mark.parametrize(
    ("share", "said"), [(1.08, "all [84%, 100%]"), (0.998, "over 99% [84%, 100%]"), (0.5, "50% [84%, 100%]")]
)
def test_no_more_than_all_is_given_back(share, said):
    assert _percent({"recovery": share, "recovery_low": 0.84, "recovery_high": 1.2}) == said
