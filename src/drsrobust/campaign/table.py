"""The columns of a campaign's table, and of what its store holds."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from drsrobust.statistics.columns import CONDITION, OVER_ROWS, STRUCTURED

# Draws of the error over rows, in the first trials of a condition. Stores of version 0.8 and before do not have them.
LATER = tuple(column for columns in OVER_ROWS.values() for column in columns)

# One row per trial; the order of the columns is part of the interface. A campaign's own metrics follow behind.
SCHEMA = pa.schema(
    [
        *((name, pa.float64() if name in ("rate", "ber") else pa.string()) for name in CONDITION),
        ("trial", pa.int64()),
        ("seed", pa.uint64()),
        ("outcome", pa.string()),
        ("bits_flipped", pa.int64()),
        ("words_hit", pa.int64()),
        ("realised_rate", pa.float64()),
        ("bits_left", pa.int64()),
        ("auc", pa.float64()),
        ("auc_golden", pa.float64()),
        ("auc_drop", pa.float64()),
        ("logloss", pa.float64()),
        ("ne", pa.float64()),
        ("nan_rows", pa.int64()),
        ("inf_rows", pa.int64()),
        ("rows_reached", pa.int64()),
        ("detected", pa.bool_()),
        ("repaired", pa.bool_()),
        ("checkpoint", pa.string()),
        ("data", pa.string()),
        ("n_sites", pa.int64()),
        ("n_events", pa.int64()),
        ("stopped", pa.bool_()),
        ("mitigation_id", pa.string()),
        *((name, pa.float64()) for name in LATER),
    ]
)

# What a condition is made of, the same in all its trials; the table has these columns, its store does not.
_NUMBERS = {"target_share": pa.float64(), **dict.fromkeys(("error_bit", "error_count", "n_bits"), pa.int64())}
DESCRIPTION = pa.schema([(name, _NUMBERS.get(name, pa.string())) for name in STRUCTURED])

# How many bits of one number (0 the lowest of its word) were flipped in one tensor.
BIT_COUNT = pa.struct([("component", pa.string()), ("tensor", pa.string()), ("bit", pa.uint8()), ("count", pa.int64())])

# In the files alone: which condition of the grid a row is of, why a model raised, the time and the process (`host:pid`), which
# are no results, and what was flipped where (as drawn).
_ASIDE = (
    ("condition", pa.int64()),
    ("error", pa.string()),
    ("seconds", pa.float64()),
    ("worker", pa.string()),
    ("errors", pa.list_(BIT_COUNT)),
)


def stored_schema(metrics: Sequence[str] = ()) -> pa.Schema:
    """The columns of a stored trial: those of SCHEMA, a float64 column for each further metric, then `condition`, `error`,
    `seconds`, `worker` and `errors`.

    Raises:
        ValueError: a metric whose name is a column already.

    Example:
        >>> stored_schema(["gauc"]).names[-6:]
        ['gauc', 'condition', 'error', 'seconds', 'worker', 'errors']
    """
    names = [*SCHEMA.names, *(name for name, _ in _ASIDE)]
    for name in metrics:
        if name in names:
            raise ValueError(f"metrics is {list(metrics)}: {name!r} is a column of the campaign's table already")
        names.append(name)
    return pa.schema([*SCHEMA, *((name, pa.float64()) for name in metrics), *_ASIDE])


def chunk(condition: int, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Finished trials of one condition as a table to be stored.

    Args:
        condition: its number in the grid.
        rows: as `run_trial` gives them, ascending by trial; `errors` is a StructArray of BIT_COUNT.
        schema: of the store.
    """
    arrays = []
    for field in schema:
        if field.name == "condition":
            arrays.append(pa.array([condition] * len(rows), field.type))
        elif field.name == "errors":
            parts = [row["errors"] for row in rows]
            ends = pa.array([0, *(len(part) for part in parts)], pa.int32()).to_numpy().cumsum(dtype="int32")
            everything = pa.concat_arrays([pa.array([], BIT_COUNT), *parts])
            arrays.append(pa.ListArray.from_arrays(pa.array(ends), everything, type=field.type))
        else:
            arrays.append(pa.array([row[field.name] for row in rows], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
