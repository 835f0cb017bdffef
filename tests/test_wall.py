"""The core's wall: what imports it does so by its faces and `drsrobust.extend`, and the doors have their sizes."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from drsrobust._names import MODULES, NAMES, homes_of, stub, stub_path
from drsrobust._registrations import REGISTRATIONS
from tests.doors import FILES, lines, owned

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
# `dr.__all__` of version 0.10, but for `Dtype` and `WorstCase`, which nobody used there, and with names of 0.13: `BlockCode`,
# `checksums`, `exchange`, `memory`, `StuckUnit`, `verify`.
PUBLIC = """
ABFTEmbeddingBag ABFTLinear ActivationClipping Activations Allowed BitFlip BitProtection BlockCode Burst Campaign Chipkill ECC
ErrorMap Evaluator FixedCount Gradients Inputs MemoryFault MultiBit NaNGuard OnDieECC OptimizerState ParityZero
ProbeRows RandomValue RandomWord Rank Replication RowError Rows Scrubbing SelectiveChipkill SingleBit StuckAt
StuckUnit TrainingCampaign WeightRange ZeroSpaceECC campaign checksums components data decades evaluation exchange fleet
inject injection introspection load_dataset load_model load_models memory metrics mitigation models plan planning plots pvf
rates read_campaign recovery report resolve restore statistics summarise trace training training_errors verify
worst_case
""".split()  # noqa: SIM905


def imported(path):
    """(module, name) of what a file imports from this project, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0].startswith("drsrobust"):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0].startswith("drsrobust"))


def test_public_names_are_those_of_version_0_10():
    import drsrobust as dr

    assert sorted(dr.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("package", ["drsrobust_extras", "drsrobust_study"])
def test_others_know_faces_alone(package):
    faces = {"drsrobust", *NAMES}
    inner = [
        f"{path.relative_to(SOURCES)}: {module}"
        for path in (SOURCES / package).rglob("*.py")
        for module, name in imported(path)
        if module.split(".")[0] == "drsrobust"
        and not (module in faces and name in {None, "__version__", *homes_of(module)})
    ]
    assert inner == []


def test_names_for_extensions_are_few_described_and_used():
    names, page = homes_of("drsrobust.extend"), (ROOT / "docs" / "extending.md").read_text()
    users = {name for path in SOURCES.rglob("*.py") for module, name in imported(path) if module == "drsrobust.extend"}
    assert len(names) <= 120 and set(names) == users
    for name, module in names.items():
        value = getattr(import_module(module), name)
        assert inspect.isclass(value) or inspect.isfunction(getattr(value, "__wrapped__", value)), name
        assert inspect.getdoc(value) and f"\n| `{name}` | " in page, name


def test_training_errors_need_few_of_them():
    folder = SOURCES / "drsrobust_extras" / "experiments" / "training_errors"
    asked = {name for path in folder.glob("*.py") for module, name in imported(path) if module == "drsrobust.extend"}
    assert 0 < len(asked) <= 40


def test_stubs_are_written_from_the_table():
    for face in NAMES:
        assert stub_path(face).read_text() == stub(face), f"python -m drsrobust._names writes the stub of {face}"
    for module in [*MODULES.values(), *sum(REGISTRATIONS.values(), [])]:
        import_module(module)


# Lines that one owns with an entry point, at most; they may fall.
DOORS = {
    "inject": (["injection.inject"], 5_476),
    "Evaluator": (["evaluation.evaluator"], 12_272),
    "Campaign": (["campaign.campaign"], 18_124),
    "everyday": (
        [
            *("campaign.campaign", "injection.bit_errors", "injection.rows"),
            *("mitigation.activations.clipping", "mitigation.activations.nan_guard", "mitigation.memory.ecc"),
            *("models.dlrm", "models.registry", "statistics.recovery", "training.load"),
            *("_extras.data.own_batches", "_extras.data.own_rows", "_extras.experiments.pvf"),
        ],
        23_134,
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_doors(door):
    modules, most = DOORS[door]
    behind = owned(*("drsrobust" + "." * (module[0] != "_") + module for module in modules))
    assert len(behind) > 20 and 0.9 * most < lines(behind) <= most


def test_the_core_grows_only_by_a_line_of_its_own():
    """`CHANGELOG.md` says why, after `Core:`, and this number follows."""
    assert lines(module for module in FILES if module.split(".")[0] == "drsrobust") <= 22_292
