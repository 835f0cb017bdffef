"""A trial of a training campaign: an error, the continuation with it, and what each action makes of it."""

import hashlib
import platform
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa

from drsrobust._files import inside_private
from drsrobust._hashing import file_digest
from drsrobust.campaign.conditions import Condition, resolve_target
from drsrobust.campaign.schedule import SHORTEST_CHUNK, Chunk
from drsrobust.campaign.table import SCHEMA, chunk, stored_schema
from drsrobust.campaign.trial import audit, trial_seed
from drsrobust.injection import ErrorModel, Target, Transient, as_target
from drsrobust.training_errors.actions import Action
from drsrobust.training_errors.continuation import Continuation, Outcome, TrainingError, alone
from drsrobust.training_errors.steps import Run
