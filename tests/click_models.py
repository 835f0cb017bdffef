"""Names of the models that score clicks; those of the next item take other data (tests/extras/data/test_next_items.py)."""

from drsrobust.models import MODELS

CLICK_MODELS = [name for name in MODELS if name not in ("hstu", "sasrec")]
