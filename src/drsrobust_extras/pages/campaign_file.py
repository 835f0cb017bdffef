"""Campaigns from a TOML file: model, rows, errors, targets, protections. docs/your_model.md has an example.

Every table is read into a dataclass of its settings: an unknown key or a value of another type is refused before anything is
imported or loaded. Paths are relative to the file. `module:name` is imported from what is installed, else from the file's
folder: a campaign runs the code that its file names.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import reduce
from itertools import product
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from drsrobust import injection, mitigation
from drsrobust.campaign import Campaign
from drsrobust.data import Batches, Dataset, Split, from_frame
from drsrobust.evaluation import Evaluator
from drsrobust.extend import expanded, unknown
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.pages.annotated_types import fits, type_name
from drsrobust_extras.pages.model_file import ByName, ModelFile, read_frame, read_tables, read_text

_NONE = "none"
BY_NAME = "by name"


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: a model of one's own by `make` and `checkpoint`, or a trained one of this library by `name`.

    Attributes:
        make: `module:name`, or `file.py:name`, of a class or function that returns the module; so are all functions named.
        arguments: keyword arguments of `make`.
        checkpoint: a state dict, .pt or .safetensors.
        name: of a model of this library, which is trained on the rows if it was not before.
        forward: `module:name` of forward(model, batch); or `by name`: the parameters of the model's own forward are columns.
        output, task, scores: as `Evaluator`; without output it is `logit`.
    """

    make: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    name: str | None = None
    forward: str | None = None
    output: str | None = "logit"
    task: str = "click"
    scores: str | None = None


@dataclass(frozen=True)
class RowsSettings:
    """`[rows]`: a file, a data set of this library, or what a function returns.

    Attributes:
        file: .parquet, .feather, .arrow or .csv.
        label, dense, sparse, user, vocabulary, missing, cardinalities, split: as `dr.data.from_frame`, of the file's columns;
            the task is the model's. A .csv has no lists.
        dataset: a name as `dr.load_dataset` takes it, in place of a file.
        make: `module:name` of a function that returns a Dataset, a Split or Batches, in place of a file.
        head: evaluate on the first rows only.
    """

    file: str | None = None
    label: str | list[str] | None = None
    dense: list[str] = field(default_factory=list)
    sparse: list[str] = field(default_factory=list)
    user: str | None = None
    vocabulary: dict[str, list[Any]] = field(default_factory=dict)
    missing: str = "refuse"
    cardinalities: dict[str, int] = field(default_factory=dict)
    split: list[float] | None = None
    dataset: str | None = None
    make: str | None = None
    head: int | None = None


@dataclass(frozen=True)
class GridSettings:
    """All conditions of some errors, targets and mitigations.

    Attributes:
        errors: tables with `kind`, a class as `BitFlip`, and its arguments; a list for a number makes several errors.
        targets: components, groups, modules and globs; a list of these is their union.
        mitigations: `none`, a class as `WeightRange`, a table with `kind` and its arguments, or a list of these that act
            together. What has to be fitted is fitted on the training rows, or on all rows without them.
    """

    errors: list[dict[str, Any]]
    targets: list[str | list[str]] = field(default_factory=lambda: ["all"])
    mitigations: list[Any] = field(default_factory=lambda: [_NONE])


@dataclass(frozen=True)
class CampaignSettings:
    """`[campaign]`: as the arguments of `Campaign`.

    Attributes:
        errors, targets, mitigations: as of `GridSettings`.
        conditions: tables of these three, several grids in one campaign, in their place.
        metrics: names, or a table of names with `module:name` of functions.
        trials, seed, sampling, store: as `Campaign`.
        workers: processes.
    """

    errors: list[dict[str, Any]] | None = None
    targets: list[str | list[str]] | None = None
    mitigations: list[Any] | None = None
    conditions: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[str] | dict[str, str] = field(default_factory=list)
    trials: int = 100
    seed: int = 0
    sampling: str | None = None
    store: str | None = None
    workers: int | None = None

    def grids(self) -> list[GridSettings]:
        """What the campaign is about."""
        axes = {name: getattr(self, name) for name in ("errors", "targets", "mitigations")}
        written = {name: axis for name, axis in axes.items() if axis is not None}
        if self.conditions and written:
            raise ValueError(f"[campaign] has {', '.join(written)} and conditions; conditions is the whole list")
        if not self.conditions:
            return [_settings("campaign", GridSettings, written)]
        return [_settings("campaign.conditions", GridSettings, grid) for grid in self.conditions]


@dataclass(frozen=True)
class ReportSettings:
    """`[report]`: `folder` of the report; `bounds` of own metrics, [lowest, highest] each."""

    folder: str = "report"
    bounds: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, ends in self.bounds.items():
            if len(ends) != 2 or not ends[0] < ends[1]:
                raise ValueError(f"report.bounds.{name} is {ends}; it must be [lowest, highest]")

    def ends(self) -> dict[str, tuple[float, ...]] | None:
        """The bounds as `summarise` takes them."""
        return {name: tuple(ends) for name, ends in self.bounds.items()} or None


@dataclass(frozen=True)
class CampaignFile:
    """A campaign's file, read and checked, nothing loaded yet.

    Attributes:
        folder: of the file.
    """

    model: ModelSettings
    rows: RowsSettings
    campaign: CampaignSettings
    report: ReportSettings
    folder: Path

    def make(self) -> Campaign:
        """Loads model and rows, and makes the campaign; `run` computes its trials.

        Raises:
            ValueError, TypeError: a setting that the named class or function refuses; the message has the table and the key.
            FileNotFoundError, ImportError: what a setting names is not there.
        """
        if self.model.task == "ranking" and not self.campaign.metrics:
            raise ValueError("campaign.metrics is missing; task='ranking' has no AUC and needs one, as ['ndcg@10']")
        return self.campaign_of(self.load())

    def load(self, model: nn.Module | None = None) -> "Loaded":
        """Loads model and rows, as `make`; with a model, which was made before, the rows alone."""
        data = self._data()
        rows = data.test if isinstance(data, Dataset) else data
        if self.rows.head is not None:
            if not isinstance(rows, Split):
                raise ValueError("rows.head takes rows of a data set; batches are kept as they are")
            rows = rows.head(self.rows.head)
        model = self._model(data) if model is None else model
        if self.model.forward == BY_NAME:
            if not isinstance(data, Dataset):
                raise ValueError(f"model.forward = {BY_NAME!r} needs rows with columns")
            lists = {
                feature.name: data.test.sparse[feature.name].lengths is not None for feature in data.schema.features
            }
            forward: Callable | None = ByName.of(model, [*data.schema.dense], lists)
        else:
            forward = self._own.imported("model.forward", self.model.forward)
        how = {name: getattr(self.model, name) for name in ("output", "task", "scores")}
        clean = data.train if isinstance(data, Dataset) and len(data.train) else rows
        return Loaded(Evaluator(model, rows, forward=forward, **how), clean, forward)

    def campaign_of(self, loaded: "Loaded") -> Campaign:
        """The campaign of what `load` gave."""
        settings, evaluator = self.campaign, loaded.evaluator
        metrics: Any = settings.metrics
        if isinstance(metrics, dict):
            metrics = {name: self._own.imported(f"campaign.metrics.{name}", path) for name, path in metrics.items()}
        grids = [
            {
                "errors": [error for table in grid.errors for error in _errors(table)],
                "targets": grid.targets,
                "mitigations": [mitigation_of(entry, loaded) for entry in grid.mitigations],
            }
            for grid in settings.grids()
        ]
        axes: dict[str, Any] = grids[0]
        if settings.conditions:
            names = ("targets", "errors", "mitigations")
            combined = [parts for grid in grids for parts in product(*(grid[name] for name in names))]
            axes = {"conditions": [(error, target, mitigation) for target, error, mitigation in combined]}
        return Campaign(
            evaluator,
            **axes,
            metrics=metrics,
            store=None if settings.store is None else self.folder / expanded("campaign.store", settings.store),
            **{name: getattr(settings, name) for name in ("trials", "seed", "sampling")},
        )

    @property
    def report_folder(self) -> Path:
        """Where the report goes."""
        return self.folder / expanded("report.folder", self.report.folder)

    @property
    def _own(self) -> ModelFile:
        return ModelFile(self.folder)

    def _data(self) -> Dataset | Split | Batches:
        settings = self.rows
        _one_of("rows", settings, ("file", "dataset", "make"))
        if settings.dataset:
            return load_dataset(settings.dataset)
        if settings.make:
            return self._own.imported("rows.make", settings.make)()
        if settings.label is None:
            raise ValueError("rows.label is missing: the name of the column with labels")
        columns = ("label", "dense", "sparse", "user", "vocabulary", "missing", "cardinalities", "split")
        options = {name: getattr(settings, name) for name in columns}
        options["task"] = "ranking" if self.model.task == "ranking" else "click"
        return from_frame(read_frame("rows.file", self._own.path("rows.file", settings.file or "")), **options)

    def _model(self, data: Dataset | Split | Batches) -> Any:
        settings = self.model
        _one_of("model", settings, ("make", "name"))
        if settings.name:
            from drsrobust.training import load_model

            if not isinstance(data, Dataset):
                raise ValueError("model.name needs rows.dataset, on which the model is trained")
            return load_model(settings.name, data)
        return self._own.model("model.make", settings.make or "", settings.arguments, settings.checkpoint)


@dataclass(frozen=True)
class Loaded:
    """What a file's model and rows are.

    Attributes:
        evaluator: of them.
        clean: rows to fit mitigations on.
        forward: as of `Evaluator`.
    """

    evaluator: Evaluator
    clean: Any
    forward: Callable | None


def read_campaign_file(path: str | PathLike) -> CampaignFile:
    """Reads and checks a file; nothing is imported or loaded.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: it is no TOML in UTF-8, or a table or key is unknown or missing.
        TypeError: a value of another type.
    """
    path = expanded("path", path).resolve()
    tables = read_tables(read_text(path), path)
    kinds = {"model": ModelSettings, "rows": RowsSettings, "campaign": CampaignSettings, "report": ReportSettings}
    for name in tables:
        if name not in kinds:
            raise unknown("table", name, kinds)
    for name in ("model", "rows", "campaign"):
        if name not in tables:
            raise ValueError(f"{path} has no table [{name}]")
    made = CampaignFile(
        **{name: _settings(name, kind, tables.get(name, {})) for name, kind in kinds.items()}, folder=path.parent
    )
    made.campaign.grids()  # raises
    return made


def read_campaign(path: str | PathLike) -> Campaign:
    """The campaign of a TOML file, as `drsrobust campaign FILE` runs it.

    Raises:
        as `read_campaign_file` and `CampaignFile.make`.

    Example:
        >>> table = read_campaign("study.toml").run()  # doctest: +SKIP
    """
    return read_campaign_file(path).make()


def _settings(table: str, kind: type, values: Any) -> Any:
    """A dataclass of settings from a table of the file."""
    if not isinstance(values, dict):
        raise TypeError(f"{table} is {values!r}; it must be a table, [{table}]")
    types_of = typing.get_type_hints(kind)
    for name, value in values.items():
        if name not in types_of:
            raise unknown(f"key of [{table}]", name, types_of)
        if not fits(value, types_of[name]):
            required = type_name(types_of[name]).removesuffix(" | None")
            raise TypeError(f"{table}.{name} is {value!r} ({type(value).__name__}); it must be {required}")
    for setting in fields(kind):
        if setting.name not in values and setting.default is MISSING and setting.default_factory is MISSING:
            raise ValueError(f"{table}.{setting.name} is missing")
    return kind(**values)


def _one_of(table: str, settings: Any, names: tuple[str, ...]) -> None:
    present = [name for name in names if getattr(settings, name) is not None]
    if len(present) != 1:
        raise ValueError(f"[{table}] has {' and '.join(present) or 'none'} of {', '.join(names)}; it needs one of them")


def _errors(table: Mapping[str, Any]) -> Iterator[injection.ErrorModel]:
    """The errors of a table: one for each value of a list that is given for a number."""
    kind, arguments = _kind("campaign.errors", table, injection, injection.ErrorModel)
    hints = typing.get_type_hints(kind)
    lists = [name for name, value in arguments.items() if isinstance(value, list) and hints[name] in (int, float)]
    if len(lists) > 1:
        raise ValueError(f"campaign.errors: {' and '.join(lists)} are lists; one of them may be")
    if not lists:
        yield _called("campaign.errors", kind, arguments)
    for value in arguments[lists[0]] if lists else ():
        yield _called("campaign.errors", kind, arguments | {lists[0]: value})


def mitigation_of(written: Any, loaded: Loaded) -> mitigation.Mitigation | None:
    """A mitigation as a file names it: by name, a table with `kind`, or a list, of which it is the sum; `none` is None."""
    if written == _NONE:
        return None
    if isinstance(written, list):
        return reduce(add, [mitigation_of(part, loaded) for part in written])
    kind, arguments = _kind(
        "campaign.mitigations",
        {"kind": written} if isinstance(written, str) else written,
        mitigation,
        mitigation.Mitigation,
    )
    signature = inspect.signature(kind)
    fit = getattr(kind, "fit", None)
    try:
        signature.bind(**arguments)
    except TypeError:
        if fit is None:
            return _called("campaign.mitigations", kind, arguments)
    else:
        return _called("campaign.mitigations", kind, arguments)
    takes = inspect.signature(fit).parameters
    second = list(takes.values())[1]
    rows = () if second.kind is second.KEYWORD_ONLY else (loaded.clean,)
    keywords = {"forward": loaded.forward} if "forward" in takes else {}
    return _called("campaign.mitigations", fit, arguments | keywords, loaded.evaluator.model, *rows, name=kind.__name__)


def _kind(key: str, table: Any, package: types.ModuleType, base: type) -> tuple[type, dict[str, Any]]:
    """The class that a table names, and its arguments."""
    if not isinstance(table, dict) or not isinstance(table.get("kind"), str):
        raise TypeError(f'{key} holds {table!r}; it must be a table with kind, as {{ kind = "..." }}')
    classes = {name: getattr(package, name) for name in package.__all__ if inspect.isclass(getattr(package, name))}
    kinds = [name for name, cls in classes.items() if issubclass(cls, base) and cls not in (base, injection.Sum)]
    if table["kind"] not in kinds:
        raise unknown(f"kind of {key}", table["kind"], kinds)
    kind = getattr(package, table["kind"])
    arguments = {name: value for name, value in table.items() if name != "kind"}
    takes = set(inspect.signature(kind).parameters)
    if inspect.ismethod(getattr(kind, "fit", None)):  # `MemoryFault` has failure rates of this name
        takes |= set(inspect.signature(kind.fit).parameters) - {"model", "split", "forward"}
    for name in arguments:
        if name not in takes:
            raise unknown(f"argument of {table['kind']}", name, takes)
    return kind, arguments


def _called(key: str, maker: Callable, arguments: dict[str, Any], *first: Any, name: str = "") -> Any:
    try:
        return maker(*first, **arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{key}, {name or maker.__name__}: {error}") from error
