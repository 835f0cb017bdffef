"""The public names of this package and of `drsrobust_extras`, and the modules that hold them: with `_registrations` the only
place of the core that names the other package. Names are imported at first use. `python -m drsrobust._names` writes the stubs,
which editors read."""

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
    "exchange": "drsrobust_extras.experiments.exchange",
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
            "BitFlip ErrorMap FixedCount inject OptimizerState resolve restore Rows SingleBit StuckAt"
        ),
        "drsrobust.introspection": "components",
        "drsrobust.mitigation": "ActivationClipping ECC NaNGuard WeightRange",
        "drsrobust.statistics": "pvf recovery summarise",
        "drsrobust.training": "load_model load_models",
        "drsrobust_extras.data.load": "load_dataset",
        "drsrobust_extras.experiments.allowed_flips": "Allowed",
        "drsrobust_extras.experiments.chosen_flips": "worst_case",
        "drsrobust_extras.experiments.probe_rows": "ProbeRows",
        "drsrobust_extras.experiments.stuck_unit": "StuckUnit",
        "drsrobust_extras.experiments.training_errors.campaign": "TrainingCampaign",
        "drsrobust_extras.experiments.transient": "Activations Gradients Inputs",
        "drsrobust_extras.pages.campaign_file": "read_campaign",
        "drsrobust_extras.pages.propagation": "trace",
        "drsrobust_extras.protection.abft.embedding": "ABFTEmbeddingBag",
        "drsrobust_extras.protection.abft.linear": "ABFTLinear",
        "drsrobust_extras.protection.bit_protection": "BitProtection",
        "drsrobust_extras.protection.file_checksums": "checksums verify",
        "drsrobust_extras.protection.block_codes": "BlockCode",
        "drsrobust_extras.protection.chipkill": "Chipkill SelectiveChipkill",
        "drsrobust_extras.protection.field_errors": "Burst MultiBit RandomValue RandomWord RowError",
        "drsrobust_extras.protection.memories": "memory",
        "drsrobust_extras.protection.memory_faults": "MemoryFault",
        "drsrobust_extras.protection.on_die": "OnDieECC",
        "drsrobust_extras.protection.parity": "ParityZero",
        "drsrobust_extras.protection.replication": "Replication",
        "drsrobust_extras.protection.scrubbing": "Scrubbing",
        "drsrobust_extras.protection.zero_space": "ZeroSpaceECC",
        "drsrobust_extras.risk.fleet_risk": "fleet",
        "drsrobust_extras.risk.planning.protection_plan": "plan",
        "drsrobust_extras.scale.rank": "Rank",
    },
    "drsrobust.campaign": {
        "drsrobust.campaign.campaign": "Campaign",
        "drsrobust.campaign.conditions": "Condition decades",
        "drsrobust.campaign.merging": "merge",
        "drsrobust.campaign.model_file": "NotPicklable",
        "drsrobust.campaign.sampling": "LEAST_TRIALS PILOT_MAPS",
        "drsrobust.campaign.schedule": "Chunk SHORTEST_CHUNK",
        "drsrobust.campaign.store": "Store StoreError",
        "drsrobust.campaign.table": "SCHEMA",
        "drsrobust.campaign.trial": "LocalRunner register_runner",
        "drsrobust.campaign.workers": "WorkersDied",
        "drsrobust_extras.experiments.partition": "bit_partition",
        "drsrobust_extras.experiments.search_score": "auc_under_errors",
    },
    "drsrobust.data": {
        "drsrobust.data.cache": "DATA_MANIFEST",
        "drsrobust.data.batch": "make_batch",
        "drsrobust.data.dataset": "checked_task DATA_TASKS Dataset Feature Ids Schema SKIPPED Skipped Split",
        "drsrobust_extras.data.load": "load_dataset",
        "drsrobust_extras.data.own_batches": "Batches from_batches",
        "drsrobust_extras.data.own_rows": "from_frame from_tensors",
        "drsrobust_extras.data.registry": "describe RawSource SOURCES",
        "drsrobust_extras.data.row_stream": "stream StreamedRows",
        "drsrobust_extras.data.stream_passes": "StreamError",
        "drsrobust_extras.data.text_lines": "DataError",
    },
    "drsrobust.evaluation": {
        "drsrobust.evaluation.affected_rows": "Affected CoupledRowsError ReachWarning",
        "drsrobust.evaluation.evaluation": "compared Evaluation",
        "drsrobust.evaluation.evaluator": "check_evaluator Evaluator",
        "drsrobust.evaluation.passes": "Asked OtherRows Passes Probes register_passes RowsError",
        "drsrobust_extras.pages.propagation": "trace",
        "drsrobust_extras.protection.clean_costs": "clean_cost",
    },
    "drsrobust.injection": {
        "drsrobust.injection.address_space": "AddressSpace",
        "drsrobust.injection.apply": (
            "applied_maps AppliedMap Change ErrorMapMismatch maps_with open_in restore restore_leftovers"
        ),
        "drsrobust.injection.bit_errors": "BitFlip FixedCount SingleBit StuckAt",
        "drsrobust.injection.block_arrivals": "BlockArrivals LARGEST PARTS",
        "drsrobust.injection.critical_bits": "CriticalBits SPREAD",
        "drsrobust.injection.error_clock": "ErrorClock VERSION",
        "drsrobust.injection.error_map": "ErrorMap",
        "drsrobust.injection.error_models": "ErrorModel Sum UNITS",
        "drsrobust.injection.inject": "inject Injection",
        "drsrobust.injection.number_formats": "Bits",
        "drsrobust.injection.stored": "Memory",
        "drsrobust_extras.scale.rank": "Rank",
        "drsrobust.injection.rows": "Rows",
        "drsrobust.injection.first_arrivals": "HOOK VALUE",
        "drsrobust.injection.targets": "as_target Dtype in_parts OptimizerState resolve RowParts Target TargetLike",
        "drsrobust.injection.transient": "InjectionError Transient",
        "drsrobust_extras.experiments.transient": "Activations Gradients Inputs",
        "drsrobust.injection.words": "INTEGER_OF_BYTES",
        "drsrobust_extras.experiments.stuck_unit": "StuckUnit",
        "drsrobust_extras.protection.field_errors": "Burst MultiBit RandomValue RandomWord RowError",
        "drsrobust_extras.protection.memory_faults": "MemoryFault",
        "drsrobust_extras.protection.memory_map": "Geometry",
    },
    "drsrobust.mitigation": {
        "drsrobust.mitigation.activations.clipping": "ActivationClipping",
        "drsrobust.mitigation.activations.nan_guard": "NaNGuard",
        "drsrobust.mitigation.activations.sites": "clip_sites KINDS",
        "drsrobust.mitigation.base": "ActiveMitigation Composed Cost Detection FIT_BATCH Handle Mitigation Screened",
        "drsrobust.mitigation.memory.base": "DrawContext storage_overhead StorageProtection",
        "drsrobust.mitigation.memory.ecc": "ACTIONS CLEAN CORRECTED ECC SECDED secded UNCORRECTABLE",
        "drsrobust.mitigation.memory.protected_words": "NO_ERRORS",
        "drsrobust_extras.protection.abft.embedding": "ABFTEmbeddingBag",
        "drsrobust_extras.protection.abft.linear": "ABFTLinear",
        "drsrobust_extras.protection.bit_protection": "BitProtection",
        "drsrobust_extras.protection.block_codes": (
            "BlockCode crc LinearCode miscorrected mixed_columns odd_columns parity random_columns SymbolBlocks"
        ),
        "drsrobust_extras.protection.chipkill": "Chipkill SelectiveChipkill",
        "drsrobust_extras.protection.on_die": "OnDieECC",
        "drsrobust_extras.protection.parity": "ParityZero",
        "drsrobust_extras.protection.replication": "Replication",
        "drsrobust_extras.protection.scrubbing": "Scrubbing",
        "drsrobust_extras.protection.weight_range": "WeightRange",
        "drsrobust_extras.protection.zero_space": "reserve_bits ZeroSpaceECC",
    },
    "drsrobust.models": {
        "drsrobust.models.layers": "check_sizes embedding_tables empty_layers mlp",
        "drsrobust.models.registry": "build_model default_sizes describe Entry model_name MODELS register",
        "drsrobust.models.scoring": (
            "BATCH padded_batches PaddedBatches score Scoring state_checksum state_digest tensors_digest"
        ),
        "drsrobust_extras.data.stored_as": "stored_as",
    },
    "drsrobust.introspection": {
        "drsrobust.introspection.calling": "device_of Forward",
        "drsrobust.introspection.devices": "Accelerator HeldWords register_accelerator",
        "drsrobust.introspection.embedding_modules": (
            "pooled_tables quantized_tables QuantizedTable sparse_type table_configs"
        ),
        "drsrobust.introspection.spread": (
            "Group is_sharded is_sharded_module process_group register_group SpreadTensor"
        ),
        "drsrobust.introspection.tensors": "component_of components has_group listed named_tensors",
        "drsrobust.introspection.wrappers": "named_modules unwrapped",
    },
    "drsrobust.metrics": {
        "drsrobust.metrics.auc": "auc auc_difference auc_interval",
        "drsrobust.metrics.changes": (
            "decision_changed decision_changed_no_click deviated DEVIATIONS median_change nan_share "
            "score_changed spearman"
        ),
        "drsrobust.metrics.incremental": "BaselineMetrics",
        "drsrobust.metrics.log_loss": "calibration log_loss normalised_entropy P_MIN probabilities served",
        "drsrobust.metrics.names": "CLICK OF_CLICKS NAMES RANK split_name",
        "drsrobust.metrics.own": "own_metrics OwnMetric",
        "drsrobust.metrics.ranking": "hit_rate list_changed ndcg recall topk_overlap UserLists users_harmed",
        "drsrobust.metrics.streamed": "StreamedMetrics StreamedNumbers",
        "drsrobust.metrics.tasks": "ClickMetrics MultiMetrics RankMetrics",
        "drsrobust.statistics.headline": "known_bounds",
    },
    "drsrobust.statistics": {
        "drsrobust.statistics.columns": "ALL check_confidence check_table CONDITION DECISIONS ENDS identifying MITIGATION NONE",
        "drsrobust.statistics.headline": "Headline",
        "drsrobust.statistics.intervals": (
            "bootstrap_interval bounded_interval CONFIDENCE mean_interval quantile_interval rule_of_three "
            "stringer_interval wilson"
        ),
        "drsrobust.statistics.recovery": "recovery",
        "drsrobust.statistics.strata": "DROP FEW_TRIALS LARGE_LOSS LOSS_IS_BOUNDED Strata STRATUM WEIGHT",
        "drsrobust.statistics.summary": "EXACT INTERVAL summarise with_rows",
        "drsrobust_extras.experiments.pvf": "DEFINITIONS pvf",
        "drsrobust_extras.experiments.random_effects": "across_models",
        "drsrobust_extras.risk.exact_correction": "corrected_exactly",
    },
    "drsrobust.training": {
        "drsrobust.training.checkpoint": (
            "CheckpointError load_optimizer optimizer_tensors read_checkpoint register_writer save_checkpoint"
        ),
        "drsrobust.training.fit": "Epoch fit Trainer",
        "drsrobust.training.load": "default_settings load_model load_models",
        "drsrobust.training.settings": "Settings",
    },
    "drsrobust.extend": {
        "drsrobust._amounts": "amount",
        "drsrobust._arguments": (
            "check_function check_instance check_items check_names check_number check_rate check_seed check_text "
            "check_whole wrong"
        ),
        "drsrobust._choices": "check_choice unknown",
        "drsrobust._files": ("cache_folder expanded make_folder new_file new_folder put_in_place stale_parts"),
        "drsrobust._hashing": "canonical_json digest file_digest folder_digests splitmix64",
        "drsrobust._locks": "exclusive",
        "drsrobust._private": "private_folder",
        "drsrobust._processes": "check_script process_context threads",
        "drsrobust._progress": "count_done progress_bar",
        "drsrobust._provenance": "machine versions",
        "drsrobust.campaign.conditions": "condition_triples resolve_target",
        "drsrobust.campaign.sampling": "strata_of StratifiedTable",
        "drsrobust.campaign.shards": "Shard",
        "drsrobust.campaign.stored_trials": "check_run StoredTrials",
        "drsrobust.campaign.table": "stored_schema",
        "drsrobust.campaign.trial": "audit run_trials trial_seed worker",
        "drsrobust.campaign.trial_code": "check_worker_code model_code surrounding_code",
        "drsrobust.campaign.workers": "new_key",
        "drsrobust.data.cache": "open_folder",
        "drsrobust.data.dataset": "click_rate read_skipped",
        "drsrobust.evaluation.affected_rows": "AffectedRows near with_witnesses",
        "drsrobust.evaluation.evaluator": "check_evaluator",
        "drsrobust.evaluation.gradients": "gradients",
        "drsrobust.evaluation.lookups": "SplitLookups",
        "drsrobust.evaluation.tensor_probes": "flipped probe_tensors",
        "drsrobust.injection.address_space": "TargetTensor",
        "drsrobust.injection.block_arrivals": "streams thresholds",
        "drsrobust.injection.critical_bits": "check_critical_bits harmful_pilots pilots_of Stratum",
        "drsrobust.injection.error_clock": "scaled uniform",
        "drsrobust.injection.error_map": "MapSource",
        "drsrobust.injection.error_models": "from_bits from_sorted_words from_words",
        "drsrobust.injection.number_formats": "bit_classes bit_set Format",
        "drsrobust.injection.stored": "Stored stored",
        "drsrobust.injection.transient": "sample_in",
        "drsrobust.injection.words": "WordView",
        "drsrobust.introspection.calling": "call on_device_of",
        "drsrobust.introspection.code_digest": "short_digest",
        "drsrobust.introspection.embedding_modules": (
            "is_quantized_collection output_names pooled_table_name pooled_weight "
            "tables_in_output_order torchrec with_values"
        ),
        "drsrobust.introspection.nested": "tensors_of with_tensors",
        "drsrobust.introspection.numerics": "numerics",
        "drsrobust.introspection.tensors": "sparse_parts",
        "drsrobust.introspection.wrappers": (
            "add_forward_hook add_forward_pre_hook check_module evaluating is_compiled is_script plain_name "
            "requiring_gradients"
        ),
        "drsrobust.statistics.strata": "check_trials",
        "drsrobust.mitigation.base": "attached_mitigations confined_name format_number tensor_names widen within",
        "drsrobust.mitigation.memory.check_bits": "CheckBits label_stream",
        "drsrobust.mitigation.memory.ecc": "decode_errors DecodedBlocks",
        "drsrobust.mitigation.memory.protected_words": ("bit_mask distinct Errors ones ProtectedWords units_of"),
    },
}


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


def stub_path(name: str) -> Path:
    """The file of a face's stub."""
    place = Path(__file__).parent.joinpath(*name.split(".")[1:])
    return place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")


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
        stub_path(name).write_text(stub(name))
