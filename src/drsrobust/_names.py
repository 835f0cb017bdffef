"""The public names of this package and of what lies beside it, and the modules that hold them: the only place of the core that
names `drsrobust_extras`. Names are imported at first use. `python -m drsrobust._names` writes the stubs, which editors read."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# `dr.<name>` that is a module.
MODULES = {
    "campaign": "drsrobust.campaign",
    "data": "drsrobust.data",
    "evaluation": "drsrobust.evaluation",
    "injection": "drsrobust.injection",
    "introspection": "drsrobust.introspection",
    "metrics": "drsrobust.metrics",
    "mitigation": "drsrobust.mitigation",
    "models": "drsrobust.models",
    "planning": "drsrobust_extras.risk.planning",
    "plots": "drsrobust_extras.pages.plots",
    "rates": "drsrobust_extras.protection.rates",
    "report": "drsrobust_extras.pages.report",
    "statistics": "drsrobust.statistics",
    "training": "drsrobust.training",
    "training_errors": "drsrobust_extras.experiments.training_errors",
}
# Face -> module -> the names that it holds.
NAMES = {
    "drsrobust": {
        "drsrobust.campaign": "Campaign decades",
        "drsrobust.evaluation": "Evaluator",
        "drsrobust.injection": (
            "Activations BitFlip Dtype ErrorMap FixedCount Gradients inject Inputs OptimizerState Rank resolve "
            "restore Rows SingleBit StuckAt"
        ),
        "drsrobust.introspection": "components",
        "drsrobust.mitigation": "ActivationClipping ECC NaNGuard WeightRange",
        "drsrobust.statistics": "pvf recovery summarise",
        "drsrobust.training": "load_model load_models",
        "drsrobust_extras.data.load": "load_dataset",
        "drsrobust_extras.experiments.allowed_flips": "Allowed",
        "drsrobust_extras.experiments.chosen_flips": "worst_case WorstCase",
        "drsrobust_extras.experiments.probe_rows": "ProbeRows",
        "drsrobust_extras.experiments.training_errors.campaign": "TrainingCampaign",
        "drsrobust_extras.pages.campaign_file": "read_campaign",
        "drsrobust_extras.pages.propagation": "trace",
        "drsrobust_extras.protection.abft.embedding": "ABFTEmbeddingBag",
        "drsrobust_extras.protection.abft.linear": "ABFTLinear",
        "drsrobust_extras.protection.bit_protection": "BitProtection",
        "drsrobust_extras.protection.chipkill": "Chipkill SelectiveChipkill",
        "drsrobust_extras.protection.field_errors": "Burst MultiBit RandomValue RandomWord RowError",
        "drsrobust_extras.protection.memory_faults": "MemoryFault",
        "drsrobust_extras.protection.on_die": "OnDieECC",
        "drsrobust_extras.protection.parity": "ParityZero",
        "drsrobust_extras.protection.replication": "Replication",
        "drsrobust_extras.protection.scrubbing": "Scrubbing",
        "drsrobust_extras.protection.zero_space": "ZeroSpaceECC",
        "drsrobust_extras.risk.fleet_risk": "fleet",
        "drsrobust_extras.risk.planning.protection_plan": "plan",
    },
    "drsrobust.campaign": {
        "drsrobust.campaign.campaign": "auc_under_errors Campaign",
        "drsrobust.campaign.conditions": "decades",
        "drsrobust.campaign.merging": "merge",
        "drsrobust.campaign.model_file": "NotPicklable",
        "drsrobust.campaign.partition": "bit_partition",
        "drsrobust.campaign.store": "Store StoreError",
        "drsrobust.campaign.workers": "WorkersDied",
    },
    "drsrobust.data": {
        "drsrobust.data.dataset": "Dataset Feature Ids Schema Split",
        "drsrobust.data.own_batches": "Batches from_batches",
        "drsrobust.data.own_rows": "from_frame from_tensors",
        "drsrobust.data.row_stream": "stream StreamedRows StreamError",
        "drsrobust_extras.data.load": "load_dataset",
        "drsrobust_extras.data.registry": "describe RawSource SOURCES",
        "drsrobust_extras.data.text_lines": "DataError",
    },
    "drsrobust.evaluation": {
        "drsrobust.evaluation.affected_rows": "CoupledRowsError ReachWarning",
        "drsrobust.evaluation.clean_costs": "clean_cost",
        "drsrobust.evaluation.evaluation": "Evaluation",
        "drsrobust.evaluation.evaluator": "Evaluator",
        "drsrobust_extras.pages.propagation": "trace",
    },
    "drsrobust.injection": {
        "drsrobust.injection.address_space": "AddressSpace",
        "drsrobust.injection.apply": "applied_maps AppliedMap ErrorMapMismatch open_in restore restore_leftovers",
        "drsrobust.injection.bit_errors": "BitFlip FixedCount SingleBit StuckAt",
        "drsrobust.injection.critical_bits": "CriticalBits",
        "drsrobust.injection.error_clock": "ErrorClock",
        "drsrobust.injection.error_map": "ErrorMap",
        "drsrobust.injection.error_models": "ErrorModel Sum",
        "drsrobust.injection.inject": "inject Injection",
        "drsrobust.injection.rank": "Rank",
        "drsrobust.injection.rows": "Rows",
        "drsrobust.injection.targets": "as_target Dtype OptimizerState resolve Target",
        "drsrobust.injection.transient": "Activations Gradients InjectionError Inputs Transient",
        "drsrobust_extras.protection.field_errors": "Burst MultiBit RandomValue RandomWord RowError",
        "drsrobust_extras.protection.memory_faults": "MemoryFault",
        "drsrobust_extras.protection.memory_map": "Geometry",
    },
    "drsrobust.mitigation": {
        "drsrobust.mitigation.activations.clipping": "ActivationClipping",
        "drsrobust.mitigation.activations.nan_guard": "NaNGuard",
        "drsrobust.mitigation.activations.sites": "clip_sites KINDS",
        "drsrobust.mitigation.base": "Composed Cost Detection Mitigation Screened",
        "drsrobust.mitigation.memory.base": "storage_overhead StorageProtection",
        "drsrobust.mitigation.memory.ecc": "ECC SECDED",
        "drsrobust.mitigation.memory.weight_range": "WeightRange",
        "drsrobust_extras.protection.abft.embedding": "ABFTEmbeddingBag",
        "drsrobust_extras.protection.abft.linear": "ABFTLinear",
        "drsrobust_extras.protection.bit_protection": "BitProtection",
        "drsrobust_extras.protection.chipkill": "Chipkill SelectiveChipkill",
        "drsrobust_extras.protection.on_die": "OnDieECC",
        "drsrobust_extras.protection.parity": "ParityZero",
        "drsrobust_extras.protection.replication": "Replication",
        "drsrobust_extras.protection.scrubbing": "Scrubbing",
        "drsrobust_extras.protection.zero_space": "reserve_bits ZeroSpaceECC",
    },
    "drsrobust.models": {
        "drsrobust.models.registry": "build_model default_sizes describe Entry model_name MODELS",
        "drsrobust.models.scoring": "padded_batches score Scoring state_checksum state_digest",
        "drsrobust_extras.data.stored_as": "stored_as",
    },
}

# What registers more of a kind, as `drsrobust.models.registry.register`: imported with the registry.
REGISTRATIONS = {"models": ["drsrobust_extras.data.paper_models"]}


def load_registrations(kind: str) -> None:
    """Imports what registers more of a kind."""
    for module in REGISTRATIONS[kind]:
        import_module(module)


def face(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a face, as `drsrobust.mitigation`."""
    homes = homes_of(name)

    def get(attribute: str) -> Any:
        if (home := homes.get(attribute)) is None:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        module = import_module(home)
        return module if is_module(name, attribute) else getattr(module, attribute)

    return get, lambda: sorted({*homes, *vars(sys.modules[name])}), sorted(homes)


def homes_of(name: str) -> dict[str, str]:
    """The names of a face, and the module of each."""
    homes = {attribute: module for module, names in NAMES[name].items() for attribute in names.split()}
    return homes | (MODULES if name == __package__ else {})


def is_module(name: str, attribute: str) -> bool:
    """Whether a name of a face is a module itself."""
    return name == __package__ and attribute in MODULES


def stub(name: str) -> str:
    """The text of a face's stub."""
    lines = []
    for attribute, home in sorted(homes_of(name).items()):
        package, _, last = home.rpartition(".")
        held, alias = (package, last) if is_module(name, attribute) else (home, attribute)
        lines.append(f"from {held} import {alias} as {attribute}\n")
    return "".join([*sorted(lines), *(["\n__version__: str\n"] if name == __package__ else [])])


if __name__ == "__main__":
    for name in NAMES:
        folder = Path(__file__).parent.joinpath(*name.split(".")[1:])
        (folder / "__init__.pyi").write_text(stub(name))
