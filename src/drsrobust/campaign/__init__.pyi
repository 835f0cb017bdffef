from .campaign import Campaign as Campaign
from .campaign import auc_under_errors as auc_under_errors
from .conditions import decades as decades
from .model_file import NotPicklable as NotPicklable
from .partition import bit_partition as bit_partition
from .store import Store as Store
from .store import StoreError as StoreError
from .workers import WorkersDied as WorkersDied
