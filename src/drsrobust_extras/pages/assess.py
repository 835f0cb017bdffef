"""A first look at one's own model from its files alone: what flips cost, how many it bears, what protections give back.

A campaign of three parts, as its TOML file says: one flip in each component and class of bits; so many flips anywhere, without
and with what software can do; the same flips under ECC. The page is `report.assessment`.
"""

import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust.campaign import Campaign, bit_partition
from drsrobust.extend import check_choice, expanded, new_file, unknown
from drsrobust.injection import FixedCount, resolve
from drsrobust.mitigation import ECC, ActivationClipping, Mitigation
from drsrobust_extras.pages.campaign_file import (
    BY_NAME,
    CampaignFile,
    CampaignSettings,
    Loaded,
    ModelSettings,
    ReportSettings,
    RowsSettings,
    mitigation_of,
    read_campaign_file,
)
from drsrobust_extras.pages.column_kinds import ColumnKind, column_kind
from drsrobust_extras.pages.model_file import ByName, ModelFile, read_frame
from drsrobust_extras.pages.report.own_files import PAGE, check_free, report_files
from drsrobust_extras.protection import rates
from drsrobust_extras.protection.weight_range import WeightRange

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

TOML = "assess.toml"
_SIGNED = "# Written by drsrobust assess. SHA-256 of what follows: "
TRIALS = 60  # of each condition
MOST_BITS = 100  # at most one in so many bits flips
COUNTS = tuple(digit * 10**power for power in range(5) for digit in (1, 3))
ROWS = (500, 1000, 2000, 5000, 10_000, 20_000)
SECONDS = (
    60  # of the trials that pass all rows through the model: the most rows are taken with which these last no longer
)
PASSES = 0.5  # a trial takes so many passes of all rows, about: many hit what few rows read
# In the order of what they ask for: the first two are a few lines of code, the last another memory.
SOFTWARE: tuple[type[Mitigation], ...] = (WeightRange, ActivationClipping)
MEMORY: tuple[type[Mitigation], ...] = (ECC,)
_NAMED = ("sign", "exponent_top", "mantissa")  # classes of bits that error models take by name


@dataclass(frozen=True)
class Assessment:
    """A campaign that assesses a model, not yet run.

    Attributes:
        file: its settings.
        loaded: model and rows.
        parts: component, class of bits, their share of all, and the error model and target of each condition of one flip.
        notes: what was decided on the way, a line each.
        columns: how those of the rows are read.
        fit_per_mbit: of the memory, by which the page says in what time flips come; None: it does not.
    """

    file: CampaignFile
    loaded: Loaded
    parts: "pd.DataFrame"
    notes: tuple[str, ...]
    columns: dict[str, ColumnKind]
    fit_per_mbit: float | None

    @property
    def toml(self) -> str:
        """The file that repeats the campaign."""
        return signed(to_toml(self.file))

    def campaign(self) -> Campaign:
        """The campaign."""
        return self.file.campaign_of(self.loaded)

    def write_toml(self) -> Path:
        """Writes the TOML file alone.

        Raises:
            FileExistsError: another one is there, or one that was edited.
        """
        path = self.file.folder / TOML
        check_own(path)
        with new_file(path) as part:
            part.write_text(self.toml, encoding="utf-8")
        return path

    def write(self, campaign: Campaign) -> tuple[Path, list[str]]:
        """Writes the page of a campaign that has run, with its numbers, figures and TOML file.

        Returns:
            the page, and its main numbers, a line each.
        """
        from drsrobust_extras.pages.report.assessment import write_assessment

        folder, toml = self.file.folder, self.write_toml()
        with report_files(folder) as part:
            lines = write_assessment(campaign, self.parts, self.columns, self.fit_per_mbit, toml, part)
        return folder / PAGE, lines


def assess(
    model: str,
    rows: str,
    *,
    label: str,
    folder: str,
    checkpoint: str | None = None,
    dense: Sequence[str] = (),
    ids: Sequence[str] = (),
    user: str | None = None,
    output: str | None = None,
    trials: int = TRIALS,
    head: int | None = None,
    fit_per_mbit: float | None = None,
) -> Assessment:
    """Loads a model and rows, and decides what to measure.

    Args:
        model: `file.py:name` or `module:name` of a function or class that returns the module.
        rows: a .csv, .parquet, .feather or .arrow file.
        label: its column of 0 and 1.
        folder: where results go.
        checkpoint: a state dict to load.
        dense, ids: columns that are taken as numbers, or as ids, whatever they hold.
        user: a column.
        output: `logit` or `probability`; None: what the first outputs look like.
        trials: of each condition.
        head: rows that trials use; None: as many as a minute allows.
        fit_per_mbit: failures of the memory in 10**9 hours per 2**20 bits, over 0.

    Raises:
        FileNotFoundError, ImportError: a file, or a name in it.
        FileExistsError: the folder holds files of others.
        ValueError, TypeError: a model, columns or labels that do not fit, or a model whose AUC is that of a coin toss.
    """
    if output is not None:
        check_choice("output", output, ("logit", "probability"))
    if fit_per_mbit is not None:
        rates.hours(0.0, fit_per_mbit)  # raises
    here, place = ModelFile(Path.cwd()), expanded("folder", folder).resolve()
    check_free(place, [PAGE, "trials.csv", "summary.csv"])
    check_own(place / TOML)
    frame = read_frame("rows", here.path("rows", rows))
    columns = list(map(str, frame.columns))
    for name in (label, *dense, *ids, *([] if user is None else [user])):
        if name not in columns:
            raise unknown("column", name, columns)
    made = here.model("model", model, {}, checkpoint)
    module = here.module("model", model)
    by_name = not callable(getattr(module, "forward", None))
    features = [name for name in columns if name != label]
    if by_name:
        features = ByName.parameters(made, features)
    read = {name: column_kind(frame[name], name, dense, ids) for name in features}
    settings = CampaignFile(
        ModelSettings(
            make=_relative(model, place),
            checkpoint=None if checkpoint is None else os.path.relpath(checkpoint, place),
            forward=BY_NAME if by_name else _relative(f"{model.rpartition(':')[0]}:forward", place),
        ),
        RowsSettings(
            file=os.path.relpath(rows, place),
            label=label,
            dense=[name for name, column in read.items() if column.kind == "dense"],
            sparse=[name for name, column in read.items() if column.kind == "ids"],
            user=user,
            split=[0.5, 0.0, 0.5] if len(frame) > 2 * ROWS[-1] else None,
        ),
        CampaignSettings(trials=trials),
        ReportSettings(folder="report"),
        place,
    )
    first = min(len(frame), ROWS[1])
    with warnings.catch_warnings():  # they come again with the rows that are used
        warnings.simplefilter("ignore")
        few, either = replace(settings.rows, head=first), replace(settings.model, output=output)
        loaded = replace(settings, rows=few, model=either).load(made)
        seconds = _seconds(loaded) / first
    notes = []
    if output is None:
        output = loaded.evaluator.looks_like
        if output == "probability":
            notes.append(
                "the outputs look like probabilities and are taken as such; --output logit says that they are none"
            )
    software, memory = (list(_possible(kinds, loaded, notes)) for kinds in (SOFTWARE, MEMORY))
    parts, conditions = _conditions(made, software, memory)
    settings = replace(
        settings,
        model=replace(settings.model, output=output),
        campaign=replace(settings.campaign, conditions=conditions),
    )
    n_trials = trials * sum(_size(grid) for grid in conditions)
    rows_used = min(len(frame), head or _rows(settings, seconds * PASSES * n_trials))
    if rows_used < len(frame):
        settings = replace(settings, rows=replace(settings.rows, head=rows_used))
        notes.append(f"trials use {rows_used:,} of {len(frame):,} rows; --rows says how many")
    loaded = settings.load(made)
    _check_trained(loaded)
    return Assessment(settings, loaded, parts, tuple(notes), read, fit_per_mbit)


def _relative(name: str, folder: Path) -> str:
    """`file.py:name` as seen from a folder; `module:name` as it is."""
    file, _, attribute = name.rpartition(":")
    return f"{os.path.relpath(file, folder)}:{attribute}" if file.endswith(".py") else name


def _seconds(loaded: Loaded) -> float:
    """Of a pass of all rows."""
    start = time.perf_counter()
    loaded.evaluator.run()
    return time.perf_counter() - start


def _rows(settings: CampaignFile, seconds: float) -> int:
    """Rows that trials use: as an earlier assessment in the folder says, so that its trials are found again; else the most that
    a minute allows.

    Args:
        settings: of the campaign, without a number of rows.
        seconds: of all trials, for each row.
    """
    if (path := settings.folder / TOML).is_file():
        former = read_campaign_file(path)
        if former.rows.head and to_toml(replace(former, rows=replace(former.rows, head=None))) == to_toml(settings):
            return former.rows.head
    return max((rows for rows in ROWS if rows * seconds <= SECONDS), default=ROWS[0])


def _possible(kinds: Sequence[type[Mitigation]], loaded: Loaded, notes: list[str]) -> Iterator[str]:
    """Names of those mitigations that can protect the model; appends to `notes` why another one cannot."""
    for kind in kinds:
        try:
            mitigation_of(kind.__name__, loaded).check(loaded.evaluator.model)
        except ValueError as error:
            notes.append(f"without {kind.__name__}: {error}")
        else:
            yield kind.__name__


def _conditions(
    model: "nn.Module", software: list[str], memory: list[str]
) -> tuple["pd.DataFrame", list[dict[str, Any]]]:
    """The parts of one flip, and the conditions as a campaign's file has them."""
    parts, conditions = bit_partition(model), []
    by_errors: dict[tuple, list] = {}
    named = parts["bit_class"].isin(_NAMED)
    parts.loc[named, "bits"] = parts["bit_class"][named].map(lambda name: (name,))
    for (_, _), rows in parts.groupby(["component", "format"], sort=False):
        target = rows["target"].iloc[0]
        if not isinstance(target, str):  # of a component with several number formats: its tensors of one
            target = [tensor.name for tensor in resolve(model, target).tensors]
        parts.loc[rows.index, "target"] = target if isinstance(target, str) else " | ".join(target)
        by_errors.setdefault(tuple(rows["bits"]), []).append(target)
    for classes, targets in by_errors.items():
        errors = [{"kind": FixedCount.__name__, "k": 1, "bits": list(bits)} for bits in classes]
        conditions.append({"errors": errors, "targets": targets})
    parts["error_model"] = [FixedCount(1, bits=bits).label for bits in parts["bits"]]
    most = max(100, int(parts["eligible"].sum()) // MOST_BITS)
    counts = [count for count in COUNTS if count <= most]
    flips = {"errors": [{"kind": FixedCount.__name__, "k": counts}]}
    conditions.append(flips | {"targets": ["all"], "mitigations": ["none", *software]})
    # A target of another name for the same bits: where a mitigation corrects single flips, all conditions on the same maps are
    # drawn plainly, and those of software shall have strata.
    if memory:
        components = list(dict.fromkeys(parts["component"]))
        conditions.append(flips | {"targets": [components], "mitigations": ["none", *memory]})
    return parts, conditions


def _size(grid: dict[str, Any]) -> int:
    """The number of conditions of a grid."""
    errors = sum(len(table["k"]) if isinstance(table["k"], list) else 1 for table in grid["errors"])
    return errors * len(grid["targets"]) * len(grid.get("mitigations", ["none"]))


def _check_trained(loaded: Loaded) -> None:
    """Raises ValueError for a model with nothing to lose: an AUC within three standard errors (of Mann and Whitney's statistic)
    of 0.5, or under it."""
    labels, auc = loaded.evaluator.rows.labels, loaded.evaluator.golden.auc
    clicks, rows = float(labels.sum()), len(labels)
    error = sqrt((rows + 1) / (12 * clicks * (rows - clicks)))
    if auc <= 0.5 + 3 * error:
        raise ValueError(
            f"the AUC without errors is {auc:.4f} on {rows:,} rows, no better than a coin toss (0.5, standard error "
            f"{error:.2g}): are the trained weights loaded (--checkpoint), and are label, ids and output those of training?"
        )


def to_toml(file: CampaignFile) -> str:
    """The TOML text of a campaign's file; settings with their defaults are left out."""
    lines = ["# `drsrobust campaign assess.toml` computes the same tables as `drsrobust assess`."]
    for table in fields(file):
        settings = getattr(file, table.name)
        if table.name == "folder":
            continue
        lines += ["", f"[{table.name}]"]
        for setting in fields(settings):
            value = getattr(settings, setting.name)
            default = setting.default if setting.default_factory is MISSING else setting.default_factory()
            if value != default and setting.name != "conditions":
                lines.append(f"{setting.name} = {_toml(value)}")
        for grid in getattr(settings, "conditions", ()):
            lines += ["", f"[[{table.name}.conditions]]", *(f"{name} = {_toml(value)}" for name, value in grid.items())]
    return "\n".join(lines) + "\n"


def signed(text: str) -> str:
    """A text after a comment with its SHA-256, by which `check_own` knows it."""
    return f"{_SIGNED}{sha256(text.encode()).hexdigest()}\n{text}"


def check_own(path: Path) -> None:
    """Raises FileExistsError for a file that is not as `signed` left it."""
    if not os.path.lexists(path):
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    if text != signed(text.partition("\n")[2]):
        raise FileExistsError(
            f"{path} exists, and is not as drsrobust assess left it: `drsrobust campaign {path}` runs it; or move it away, or "
            "pass another --folder"
        )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], dict):
        return "[\n" + "".join(f"    {_toml(one)},\n" for one in value) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
