"""The digest of code: equal for equal code and settings, wherever and whenever they are loaded, and another for any change."""

import copy
import functools
import importlib
import os
import random
import re
import runpy
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from torch import nn

from drsrobust.introspection.code_digest import code_digest

MODEL = """
import functools
import torch
from torch import nn
import {helper}
from {helper} import imported

LIMIT = 3.0
TABLE = {{"a": 1, "b": [1, 2]}}

@functools.lru_cache
def cached(value):
    return value + 1

class Base(nn.Module):
    slope = 0.5

    @property
    def steep(self):
        return self.slope > 1

class Model(Base):
    \"\"\"A model.\"\"\"

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.act = nn.ReLU()
        self.guard = False

    @torch.no_grad()
    def forward(self, x):
        y = [imported(value) for value in [self.layer(x)]][0]
        return {helper}.scale(y).clamp(max=LIMIT) if self.guard else cached(TABLE["a"]) * y

def other():
    return 1
"""
HELPER = """
FACTOR = 2.0

def scale(value):
    return value * FACTOR

def imported(value):
    import math
    return value * math.pi

def unused(value):
    return value
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Writes the two files into a folder, with replacements, imports them afresh and returns the digest of a model."""
    count = iter(range(1000))

    def load(*replacements, then=lambda model: None):
        folder = tmp_path / f"place_{next(count)}"
        folder.mkdir()
        model, helper = MODEL.format(helper="a_helper"), HELPER
        for old, new in replacements:
            assert (old in model) + (old in helper) == 1, old
            model, helper = model.replace(old, new), helper.replace(old, new)
        (folder / "a_model.py").write_text(model)
        (folder / "a_helper.py").write_text(helper)
        for name in ("a_model", "a_helper"):
            sys.modules.pop(name, None)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            importlib.invalidate_caches()
            made = importlib.import_module("a_model").Model()
        then(made)
        return code_digest(made, made.parameters())

    yield load
    for name in ("a_model", "a_helper"):
        sys.modules.pop(name, None)


CHANGES = {
    "a constant of forward": [("[self.layer(x)]][0]", "[self.layer(x)]][-1]")],
    "a global": [("LIMIT = 3.0", "LIMIT = 4.0")],
    "a value in a global": [('"b": [1, 2]', '"b": [1, 3]')],
    "a helper's body": [("value * FACTOR", "value / FACTOR")],
    "a helper's global": [("FACTOR = 2.0", "FACTOR = 2.5")],
    "an imported helper": [("math.pi", "math.e")],
    "a cached helper": [("value + 1", "value + 2")],
    "a class attribute of a base": [("slope = 0.5", "slope = 1.5")],
    "a property": [("self.slope > 1", "self.slope > 2")],
    "a default": [("def forward(self, x)", "def forward(self, x, y=1)")],
    "an attribute": [("self.guard = False", "self.guard = True")],
    "another module": [("nn.ReLU()", "nn.Hardtanh()")],
    "a module's setting": [("nn.ReLU()", "nn.ReLU(inplace=True)")],
    "one branch less": [("scale(y).clamp(max=LIMIT)", "scale(y)")],
    "another shape": [("nn.Linear(2, 1)", "nn.Linear(2, 2)")],
}
NO_CHANGES = {
    "nothing": [],
    "comments": [("class Model(Base):", "# a comment\n\nclass Model(Base):  # and another")],
    "moved lines": [("LIMIT = 3.0", "\n\n\n\nLIMIT = 3.0")],
    "another function of the file": [("return 1\n", "return 2\n")],
    "another function of the helper's file": [("def unused(value):", "def unused(value, more=1):")],
    "a docstring": [("A model.", "A good model.")],
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_code_change_the_digest(loaded, change):
    before = loaded()
    assert before.missing is None and loaded(*CHANGES[change]).text != before.text


@pytest.mark.parametrize("change", NO_CHANGES)
def test_other_places_comments_and_unrelated_edits_do_not(loaded, change):
    assert loaded() == loaded(*NO_CHANGES[change])


def test_hooks_attributes_and_values_count(loaded):
    plain = loaded()
    assert loaded(then=lambda model: setattr(model, "guard", 0)).text != plain.text
    doubled = loaded(then=lambda model: model.act.register_forward_hook(lambda m, x, y: 2 * y))
    assert doubled.text != plain.text
    # The number of a hook's handle counts through the process.
    assert doubled == loaded(then=lambda model: model.act.register_forward_hook(lambda m, x, y: 2 * y))
    assert doubled != loaded(then=lambda model: model.act.register_forward_hook(lambda m, x, y: 3 * y))
    mean = [
        loaded(then=lambda model, mean=mean: setattr(model, "mean", torch.tensor(mean))) for mean in (1.0, 1.0, 2.0)
    ]
    assert mean[0] == mean[1] != mean[2]
    assert loaded(then=lambda model: model.train()) == plain == loaded(then=lambda model: model.eval())
    # Values of parameters are in the checkpoint's hash.
    assert loaded(then=lambda model: nn.init.zeros_(model.layer.weight)) == plain


USES = {
    "compile": lambda model, x: torch.compile(model, backend="eager")(x),
    "compile in place": lambda model, x: (model.compile(backend="eager"), model(x)),
    "script": lambda model, x: torch.jit.script(model),
    "trace": lambda model, x: torch.jit.trace(model, x),
    "fx": lambda model, x: torch.fx.symbolic_trace(model)(x),
    "export": lambda model, x: torch.export.export(model, (x,)),
    "DataParallel": lambda model, x: nn.DataParallel(model)(x),
    "functional call": lambda model, x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
    "backward": lambda model, x: model(x).sum().backward(),
    "share memory": lambda model, x: model.share_memory(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("use", USES)
def test_what_is_done_with_a_model_does_not_change_its_code(use):
    """PyTorch leaves marks in some modules that are wrapped."""
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(3, 2)
    before = code_digest(model, model.parameters())
    USES[use](model, x)
    assert code_digest(model, model.parameters()) == before


def test_functions_closures_partials_and_objects():
    def made(limit, table):
        def forward(model, batch):
            return model(batch).clamp(max=limit) * table.sum()

        return forward

    table = np.arange(3.0)
    assert code_digest(made(1, table)) == code_digest(made(1, table.copy()))
    texts = {code_digest(made(*given)).text for given in ((1, table), (2, table), (1, table + 1))}
    partials = [functools.partial(made(1, table), table), functools.partial(made(1, table), table + 1)]
    texts |= {code_digest(each).text for each in partials}
    texts |= {
        code_digest(torch.no_grad()(made(limit, table))).text for limit in (5, 6)
    }  # behind an installed decorator
    assert len(texts) == 7

    class Settings:
        def __init__(self, hidden):
            self._hidden = hidden

        def __call__(self, *_):
            return self._hidden

    assert code_digest(Settings(1)) == code_digest(Settings(1)) != code_digest(Settings(2))
    assert code_digest({"b", "a", ("c", 1)}) == code_digest({("c", 1), "a", "b"}) != code_digest({"a", "b"})
    loop = []
    loop.append(loop)
    assert code_digest(loop) == code_digest(copy.deepcopy(loop))
    sparse = torch.eye(3).to_sparse()
    assert code_digest(sparse) == code_digest(sparse.clone()) != code_digest(2 * sparse)


def test_what_cannot_be_digested_is_named():
    class Locked(nn.Module):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    digest = code_digest(Locked())
    assert digest.missing == "Locked.lock (cannot pickle '_thread.lock' object)"
    assert code_digest(iter([1])).missing is None and code_digest(x for x in [1]).missing


def test_compiled_expressions_count_and_the_state_of_random_numbers_does_not():
    def found(pattern, flags=0):
        compiled = re.compile(pattern, flags)
        return code_digest(lambda model, batch: compiled.search(batch))

    plain = found("a+")
    assert plain.missing is None and plain == found("a+")
    assert len({plain.text, found("a*").text, found("a+", re.I).text}) == 3
    for generator in (np.random.default_rng(0), np.random.RandomState(0), torch.Generator(), random.Random(0)):
        before = code_digest([generator])
        draw = torch.rand if isinstance(generator, torch.Generator) else None
        draw(3, generator=generator) if draw else generator.uniform(0, 1)
        assert code_digest([generator]) == before and before.missing is None


def test_installed_functions_that_are_replaced_count(monkeypatch):
    import statistics

    def forward(model, batch):
        return statistics.fmean(batch)

    before = code_digest(forward), code_digest(nn.Sequential(nn.ReLU()))
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "fmean", lambda values: 0.0)
        patch.setattr(nn.ReLU, "forward", lambda self, x: x)
        changed = code_digest(forward), code_digest(nn.Sequential(nn.ReLU()))
    assert changed[0] != before[0] and changed[1] != before[1]
    assert before == (code_digest(forward), code_digest(nn.Sequential(nn.ReLU())))


def test_an_import_in_a_function_counts_the_same_before_and_after_it_ran():
    def forward(model, batch):
        import tabnanny

        return tabnanny.check(batch)

    sys.modules.pop("tabnanny", None)
    before = code_digest(forward)
    importlib.import_module("tabnanny")
    assert code_digest(forward) == before


@pytest.mark.long
def test_two_processes_agree(tmp_path, capsys):
    """Also on sets of text, whose order differs between processes."""
    script = textwrap.dedent("""
        import sys
        from torch import nn
        from drsrobust.introspection.code_digest import code_digest
        WORDS = {"one", "two", "three", "four", "five", "six", "seven", "eight"}
        class Model(nn.Sequential):
            def forward(self, x):
                return super().forward(x) if x in {"s", "t", "u", "v", "w", "x", "y", "z"} else WORDS
        model = Model(nn.Linear(2, 3), nn.ReLU())
        print(code_digest(model, model.parameters()))
    """)
    (tmp_path / "here.py").write_text(script)
    runpy.run_path(str(tmp_path / "here.py"), run_name="__main__")
    (tmp_path / "there.py").write_text("\n" + script)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "there.py")]
    there = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert there.stdout == capsys.readouterr().out and there.returncode == 0, there.stderr
