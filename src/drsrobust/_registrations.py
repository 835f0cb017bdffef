"""Modules outside of the core that register more of a kind; they are imported when the kind is first asked for."""

from importlib import import_module

# Kind -> modules, which register with `drsrobust.models.registry.register` and the like.
REGISTRATIONS = {
    "models": ["drsrobust_extras.data.paper_models"],
    "devices": ["drsrobust_extras.scale.gpu"],
    "groups": ["drsrobust_extras.scale.sharded_tables"],
    "passes": ["drsrobust_extras.scale.rows_over_ranks"],
    "runners": ["drsrobust_extras.scale.leading"],
    "checkpoints": ["drsrobust_extras.protection.file_checksums"],
}


def load_registrations(kind: str) -> None:
    """Imports what registers more of a kind."""
    for module in REGISTRATIONS[kind]:
        import_module(module)
