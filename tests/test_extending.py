"""Own error models and mitigations need no other file, and none is told apart by its class."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import drsrobust as dr
from drsrobust.injection import ErrorModel
from drsrobust.injection.critical_bits import Stratum
from drsrobust.injection.error_models import from_bits
from drsrobust.mitigation import ECC, Mitigation, WeightRange
from drsrobust_extras.protection.chipkill import Chipkill
from drsrobust_extras.protection.scrubbing import Scrubbing

SOURCES = Path(dr.__file__).parent
EXTRAS, STUDY = (SOURCES.parent / name for name in ("drsrobust_extras", "drsrobust_study"))


@dataclass(frozen=True)
class RowInverted(ErrorModel):
    """Every row of four words is inverted with probability `rate`: an error model of one's own."""

    RATE = "rate"
    unit = "row"

    rate: float
    top: bool | None = None  # whether the first row is hit; None: by chance

    def columns(self):
        return {**super().columns(), "error_mode": "row"}

    def expected_share(self, space):
        return self.rate

    def strata(self, space, critical_bits):
        chosen = ((True, self.rate, None), (False, 1 - self.rate, "chip"))
        return [Stratum(f"first {top}", share, replace(self, top=top), bounded) for top, share, bounded in chosen]

    def sample(self, space, *, seed, copy=0):
        rows = self.clock(space.bits // 128, seed, copy).until(self.rate)
        if self.top is not None:
            rows = np.append(np.zeros(int(self.top), np.int64), rows[rows > 0])
        bits = (128 * rows[:, None] + np.arange(128)).ravel()
        return from_bits(self, space, [bits], seed, n_sites=space.bits // 128, n_events=len(rows))


class Doubled(Chipkill):
    """Chipkill under another name: a mitigation of one's own."""

    label = "doubled"


def subclasses(kind):
    for other in kind.__subclasses__():
        yield from (other, *subclasses(other))


def test_no_error_model_or_mitigation_is_told_apart_outside_its_module():
    """No isinstance, no comparison of types and no class name as a string, outside of the class's own module."""
    assert all(getattr(dr, name) for name in dr.__all__)  # imports them
    kinds = [*subclasses(ErrorModel), *subclasses(Mitigation)]
    homes = {each.__name__: each.__module__ for each in kinds if each.__module__.startswith("drsrobust")}
    assert {"BitFlip", "Sum", "ECC", "ABFTLinear", "StorageProtection"} <= homes.keys()
    found = []
    for file in [*SOURCES.rglob("*.py"), *EXTRAS.rglob("*.py"), *STUDY.rglob("*.py")]:
        module = ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            names = set()
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.Constant) and file.name not in ("__init__.py", "_names.py"):
                names = {node.value} if isinstance(node.value, str) else set()
            found += [f"{module}:{node.lineno} {name}" for name in names & homes.keys() if homes[name] != module]
    assert not found


@pytest.fixture(scope="module")
def campaign(trained, data, tmp_path_factory):
    evaluator = dr.Evaluator(trained, data.test.head(256))
    mitigations = [None, ECC(), Chipkill(), Doubled(), Scrubbing(period=1, window=1), WeightRange.fit(trained)]
    grid = {"errors": [RowInverted(1e-3)], "mitigations": mitigations, "sampling": "stratified", "trials": 40}
    campaign = dr.Campaign(evaluator, **grid, store=tmp_path_factory.mktemp("own") / "store")
    campaign.run(progress=False, workers=1)
    return campaign


def test_an_own_error_model_in_a_campaign(campaign):
    table = campaign.table()
    assert set(table["error_kind"]) == {"RowInverted"} and set(table["error_mode"]) == {"row"}
    assert set(table["stratum"]) == {"first True", "first False"}
    none = table[table["mitigation"] == "none"]
    assert none[none["stratum"] == "first True"]["bits_flipped"].min() >= 128
    weights = none.groupby("stratum")["weight"].sum()
    assert weights.to_dict() == pytest.approx({"first True": 1e-3, "first False": 1 - 1e-3})


def test_a_subclass_of_a_code_keeps_its_interval(campaign):
    """Of what the class corrects and how far it moves errors; the range check moves them further."""
    table = campaign.table()
    bounded = table[table["stratum"] == "first False"].groupby("mitigation")["loss_is_bounded"].all()
    assert bounded[["none", "doubled", "chipkill RS(18,16)"]].all() and not bounded.filter(like="range").any()
    modes = table.groupby("mitigation")["corrects_mode"].first()
    assert modes["doubled"] == "any" and modes["SECDED (72,64)"] == "bit" and modes.isna()["none"]
    summary = campaign.summary(["auc_drop"]).set_index("mitigation")
    ends = ["auc_drop", "auc_drop_low", "auc_drop_high"]
    assert summary.loc["doubled", ends].tolist() == pytest.approx(summary.loc["chipkill RS(18,16)", ends].tolist())


def test_check_bits_take_errors_of_an_own_model():
    layer = nn.Linear(512, 64)
    space = dr.resolve(layer)
    drawn = RowInverted(0.02).sample(space, seed=3)
    counts = ECC().screen(drawn, space, seed=3).counts
    words = len(np.unique(drawn.word // 2))
    assert sum(counts.values()) > words  # code words that are wrong in their check bits alone


def test_bits_of_an_own_models_unit_arrive_together():
    """A row of storage is right or wrong as a whole after a scrubber's visit."""
    table = nn.EmbeddingBag(4000, 4)
    space = dr.resolve(table)
    drawn = RowInverted(0.05).sample(space, seed=1)
    remaining = Scrubbing(period=1, window=2).screen(drawn, space, seed=1).remaining
    assert 0 < remaining.bits < drawn.bits
    assert set(np.bincount(remaining.word // 4)[remaining.word // 4]) == {4}
    assert remaining.bits == 128 * len(remaining) // 4
