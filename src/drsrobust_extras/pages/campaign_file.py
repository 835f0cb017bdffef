"""Campaigns from a TOML file: model, rows, errors, targets, protections. docs/your_model.md has an example.

Every table is read into a dataclass of its settings: an unknown key or a value of another type is refused before anything is
imported or loaded. Paths are relative to the file. `module:name` is imported from what is installed, else from the file's
folder: a campaign runs the code that its file names.
"""

import importlib
import inspect
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import reduce
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any

from drsrobust import injection, mitigation
from drsrobust.campaign import Campaign
from drsrobust.data import Batches, Dataset, Split, from_frame
from drsrobust.evaluation import Evaluator
from drsrobust.extend import expanded, fits, type_name, unknown
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.other_files import other_file

_NONE = "none"


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: a model of one's own by `make` and `checkpoint`, or a trained one of this library by `name`.

    Attributes:
        make: `module:name` of a class or function that returns the module.
        arguments: keyword arguments of `make`.
        checkpoint: a state dict, .pt or .safetensors.
        name: of a model of this library, which is trained on the rows if it was not before.
        forward: `module:name` of forward(model, batch).
        output, task, scores: as `Evaluator`.
    """

    make: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    name: str | None = None
    forward: str | None = None
    output: str = "logit"
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
class CampaignSettings:
    """`[campaign]`: as the arguments of `Campaign`.

    Attributes:
        errors: tables with `kind`, a class as `BitFlip`, and its arguments; a list for a number makes several errors.
        targets: components, groups, modules and globs; a list of these is their union.
        mitigations: `none`, a class as `WeightRange`, a table with `kind` and its arguments, or a list of these that act
            together. What has to be fitted is fitted on the training rows, or on all rows without them.
        metrics: names, or a table of names with `module:name` of functions.
        trials, seed, sampling, store: as `Campaign`.
        workers: processes.
    """

    errors: list[dict[str, Any]]
    targets: list[str | list[str]] = field(default_factory=lambda: ["all"])
    mitigations: list[Any] = field(default_factory=lambda: [_NONE])
    metrics: list[str] | dict[str, str] = field(default_factory=list)
    trials: int = 100
    seed: int = 0
    sampling: str | None = None
    store: str | None = None
    workers: int | None = None


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
        if str(self.folder) not in sys.path:
            sys.path.append(
                str(self.folder)
            )  # last: a seaborn.py there replaces no package. Worker processes get it, too
        data = self._data()
        rows = data.test if isinstance(data, Dataset) else data
        if self.rows.head is not None:
            if not isinstance(rows, Split):
                raise ValueError("rows.head takes rows of a data set; batches are kept as they are")
            rows = rows.head(self.rows.head)
        model, forward = self._model(data), self._imported("model.forward", self.model.forward)
        how = {name: getattr(self.model, name) for name in ("output", "task", "scores")}
        evaluator = Evaluator(model, rows, forward=forward, **how)
        settings = self.campaign
        clean = data.train if isinstance(data, Dataset) and len(data.train) else rows
        metrics: Any = settings.metrics
        if isinstance(metrics, dict):
            metrics = {name: self._imported(f"campaign.metrics.{name}", path) for name, path in metrics.items()}
        return Campaign(
            evaluator,
            errors=[error for table in settings.errors for error in _errors(table)],
            targets=settings.targets,
            mitigations=[_mitigation(entry, model, clean, forward) for entry in settings.mitigations],
            metrics=metrics,
            store=None if settings.store is None else self.folder / expanded("campaign.store", settings.store),
            **{name: getattr(settings, name) for name in ("trials", "seed", "sampling")},
        )

    @property
    def report_folder(self) -> Path:
        """Where the report goes."""
        return self.folder / expanded("report.folder", self.report.folder)

    def _data(self) -> Dataset | Split | Batches:
        settings = self.rows
        _one_of("rows", settings, ("file", "dataset", "make"))
        if settings.dataset:
            return load_dataset(settings.dataset)
        if settings.make:
            return self._imported("rows.make", settings.make)()
        if settings.label is None:
            raise ValueError("rows.label is missing: the name of the column with labels")
        columns = ("label", "dense", "sparse", "user", "vocabulary", "missing", "cardinalities", "split")
        options = {name: getattr(settings, name) for name in columns}
        options["task"] = "ranking" if self.model.task == "ranking" else "click"
        return from_frame(_read_frame(self._path("rows.file", settings.file)), **options)

    def _model(self, data: Dataset | Split | Batches) -> Any:
        settings = self.model
        _one_of("model", settings, ("make", "name"))
        if settings.name:
            from drsrobust.training import load_model

            if not isinstance(data, Dataset):
                raise ValueError("model.name needs rows.dataset, on which the model is trained")
            return load_model(settings.name, data)
        model = self._imported("model.make", settings.make)(**settings.arguments)
        if settings.checkpoint is not None:
            model.load_state_dict(_read_state(self._path("model.checkpoint", settings.checkpoint)))
        return model

    def _path(self, key: str, name: str) -> Path:
        path = self.folder / expanded(key, name)
        if path.is_dir():
            raise IsADirectoryError(
                f"{key}: {path} is a folder, and a file is needed; join its parts first, as by "
                "pd.read_parquet(folder).to_parquet('rows.parquet')"
            )
        if not path.is_file():
            raise FileNotFoundError(f"{key}: there is no file {path}")
        if other := other_file(path):
            raise ValueError(f"{key}: {path}: {other}")
        return path

    def _imported(self, key: str, name: str | None) -> Any:
        if name is None:
            return None
        module, colon, attribute = name.partition(":")
        if not colon:
            raise ValueError(f"{key} is {name!r}; it must be module:name, as my_models:Towers")
        imported = importlib.import_module(module)
        place = self.folder.joinpath(*module.split("."))
        origin = getattr(imported, "__file__", None)
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file() and not (origin and file.samefile(origin)):
                raise ImportError(f"{key}: {module} is {origin}, not {file}; rename the latter")
        if not hasattr(imported, attribute):
            raise ImportError(f"{key}: {origin or module} has no {attribute!r}")
        return getattr(imported, attribute)


def read_campaign_file(path: str | PathLike) -> CampaignFile:
    """Reads and checks a file; nothing is imported or loaded.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: it is no TOML in UTF-8, or a table or key is unknown or missing.
        TypeError: a value of another type.
    """
    path = expanded("path", path).resolve()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path}: arrays or tables are nested too deep; a campaign needs four levels") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {_not_utf_8(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    kinds = {"model": ModelSettings, "rows": RowsSettings, "campaign": CampaignSettings, "report": ReportSettings}
    for name in tables:
        if name not in kinds:
            raise unknown("table", name, kinds)
    for name in ("model", "rows", "campaign"):
        if name not in tables:
            raise ValueError(f"{path} has no table [{name}]")
    return CampaignFile(
        **{name: _settings(name, kind, tables.get(name, {})) for name, kind in kinds.items()}, folder=path.parent
    )


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


def _mitigation(written: Any, model: Any, clean: Any, forward: Callable | None) -> mitigation.Mitigation | None:
    if written == _NONE:
        return None
    if isinstance(written, list):
        return reduce(add, [_mitigation(part, model, clean, forward) for part in written])
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
    rows = () if second.kind is second.KEYWORD_ONLY else (clean,)
    keywords = {"forward": forward} if "forward" in takes else {}
    return _called("campaign.mitigations", fit, arguments | keywords, model, *rows, name=kind.__name__)


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
    if hasattr(kind, "fit"):
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


def _read_frame(path: Path) -> Any:
    import pandas as pd

    readers = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather, ".csv": pd.read_csv}
    if path.suffix not in readers:
        raise ValueError(f"rows.file is {path.name!r}; it must end in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except ImportError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"rows.file: {path}: {_not_utf_8(error)}") from error
    except Exception as error:
        raise ValueError(f"rows.file: {path} cannot be read as {path.suffix}: {error}") from error


def _not_utf_8(error: UnicodeDecodeError) -> str:
    """What is wrong with a text, and how to make it right."""
    byte = error.object[error.start]
    return (
        f"the file is not in UTF-8 (byte 0x{byte:02x} at {error.start:,}); if it is in Latin-1, `iconv -f latin1 -t utf-8` "
        "converts it"
    )


def _read_state(path: Path) -> dict[str, Any]:
    import torch

    why = None
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values()):
            return state
    except Exception as error:  # PyTorch's message advises to unpickle anything
        why = error
    raise ValueError(
        f"model.checkpoint: {path} is not a state dict (names and tensors); save model.state_dict()"
    ) from why
