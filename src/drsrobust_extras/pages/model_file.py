"""What a person's own files hold: a model's code, rows, a checkpoint, TOML tables; and a model that takes columns by name."""

import importlib
import inspect
import os
import sys
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drsrobust.extend import expanded
from drsrobust_extras.data.other_files import other_file


@dataclass(frozen=True)
class ModelFile:
    """The files and the code that texts name, relative to a folder.

    Attributes:
        folder: of relative paths. Modules are imported from what is installed, else from here.
    """

    folder: Path

    def path(self, key: str, name: str) -> Path:
        """A file.

        Args:
            key: what names it, for messages.
            name: its path.

        Raises:
            FileNotFoundError, IsADirectoryError: it is none.
            ValueError: it is cut off, or something that lies in its place.
        """
        path = Path(os.path.normpath(self.folder / expanded(key, name)))  # out/../rows.csv, before there is an out
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

    def module(self, key: str, name: str) -> Any:
        """The module of a text `module:name` or `file.py:name`.

        Raises:
            ValueError: a text of another form.
            FileNotFoundError: there is no such .py file.
            ImportError: the module cannot be imported, or is another file than the one here.
        """
        module, colon, attribute = name.rpartition(":")
        if not (colon and module and attribute):
            raise ValueError(f"{key} is {name!r}; it must be module:name, as my_models:Towers, or my_models.py:Towers")
        folder = self.folder
        if module.endswith(".py"):
            file = self.path(key, module).resolve()
            folder, module = file.parent, file.stem
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # last: a seaborn.py there replaces no package. Worker processes get it, too
        try:
            imported = importlib.import_module(module)
        except ImportError:
            raise
        except Exception as error:
            raise ImportError(f"{key}: {_one_line(error, module)}") from error
        place = folder.joinpath(*module.split("."))
        origin = getattr(imported, "__file__", None)
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file() and not (origin and file.samefile(origin)):
                raise ImportError(f"{key}: {module} is {origin}, not {file}; rename the latter")
        return imported

    def imported(self, key: str, name: str | None) -> Any:
        """What a text `module:name` or `file.py:name` names; None for None.

        Raises:
            ImportError: the module has no such name; and as `module`.
        """
        if name is None:
            return None
        module, attribute = self.module(key, name), name.rpartition(":")[2]
        if not hasattr(module, attribute):
            raise ImportError(f"{key}: {getattr(module, '__file__', None) or module} has no {attribute!r}")
        return getattr(module, attribute)

    def model(self, key: str, name: str, arguments: dict[str, Any], checkpoint: str | None = None) -> nn.Module:
        """The module that a function or class of a file makes.

        Args:
            key: what names it, for messages.
            name: `module:name` or `file.py:name`.
            arguments: of the function or class.
            checkpoint: a state dict, .pt or .safetensors, that is loaded into it.

        Raises:
            ValueError: the function raises, or the checkpoint is no state dict or does not fit.
            TypeError: it returns something else.
        """
        made = self.imported(key, name)
        try:
            model = made(**arguments)
        except Exception as error:
            raise ValueError(f"{key}: {name} raised {_one_line(error, name.rpartition(':')[2])}") from error
        if not isinstance(model, nn.Module):
            raise TypeError(f"{key}: {name} returned a {type(model).__name__}; it must return a torch.nn.Module")
        if checkpoint is not None:
            path = self.path(f"{key.rpartition('.')[0]}.checkpoint".lstrip("."), checkpoint)
            try:
                model.load_state_dict(_read_state(path))
            except RuntimeError as error:
                why = " ".join(str(error).split())
                raise ValueError(f"{path} does not fit {name}: {why}") from error
        return model


def _one_line(error: Exception, where: str) -> str:
    """An exception of a person's code in one line, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else f" ({where})"
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {' '.join(str(getattr(error, 'msg', error)).split())}{place}"


@dataclass(frozen=True)
class ByName:
    """A forward(model, batch) that passes columns of rows to the model's parameters of the same names.

    A dense column is float32 [B]; ids are int64 [B], or [B, L] where all rows hold L of them. Of an output with `logits` these
    are taken, and of logits [B, 2] of two classes the second less the first.

    Attributes:
        dense: parameter -> its column among the dense features.
        ids: parameters that take ids.
        lists: those of them that take several ids per row.
    """

    dense: dict[str, int]
    ids: tuple[str, ...]
    lists: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, dense: list[str], sparse: dict[str, bool]) -> "ByName":
        """For a model, and rows with these dense columns, and sparse ones (whether each holds lists).

        Raises:
            ValueError: as `parameters`.
        """
        names = cls.parameters(model, [*dense, *sparse])
        ids = tuple(name for name in names if name in sparse)
        places = {name: place for place, name in enumerate(dense) if name in names}
        return cls(places, ids, tuple(name for name in ids if sparse[name]))

    @staticmethod
    def parameters(model: nn.Module, columns: list[str]) -> list[str]:
        """The parameters of a model's forward that are columns.

        Raises:
            ValueError: another one has no default, or none is a column.
        """
        taken, of = [], f"{type(model).__name__}.forward"
        for name, parameter in inspect.signature(model.forward).parameters.items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if name in columns:
                taken.append(name)
            elif parameter.default is parameter.empty:
                raise ValueError(
                    f"{of} takes {name!r}, which is no column of the rows ({', '.join(columns)}); rename one of the two, or "
                    "define forward(model, batch) in the model's file"
                )
        if not taken:
            raise ValueError(f"{of} takes no column by name; define forward(model, batch) in the model's file")
        return taken

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        values: dict[str, Any] = {name: batch.dense_features[:, place] for name, place in self.dense.items()}
        for name in self.ids:
            ids = batch.sparse_features[name].values().long()
            if name in self.lists:
                rows = len(batch.labels)
                lengths = batch.sparse_features[name].lengths()
                if len(lengths) and (lengths != lengths[0]).any():
                    raise ValueError(
                        f"column {name!r} holds lists of {int(lengths.min())} to {int(lengths.max())} ids; pad them to one "
                        "length, or define forward(model, batch) in the model's file"
                    )
                ids = ids.reshape(rows, -1)
            values[name] = ids
        found = model(**values)
        found = getattr(found, "logits", found)
        if isinstance(found, torch.Tensor) and found.ndim == 2 and found.shape[1] == 2:
            return found[:, 1] - found[:, 0]
        return found


def read_tables(text: str, source: Any) -> dict[str, Any]:
    """The tables of a TOML text.

    Args:
        text: as it is read.
        source: what holds it, for messages.

    Raises:
        ValueError: it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{source}: arrays or tables are nested too deep; a campaign needs five levels") from None
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def read_text(path: Path) -> str:
    """A text file.

    Raises:
        ValueError: it is not in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {_not_utf_8(error)}") from None


def read_frame(key: str, path: Path) -> Any:
    """A pandas frame of a .parquet, .feather, .arrow or .csv file.

    Args:
        key: what names the file, for messages.
        path: of the file.

    Raises:
        ValueError: another ending, or a file that cannot be read.
    """
    import pandas as pd

    readers = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather, ".csv": pd.read_csv}
    if path.suffix not in readers:
        raise ValueError(f"{key} is {path.name!r}; it must end in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except ImportError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"{key}: {path}: {_not_utf_8(error)}") from error
    except Exception as error:
        raise ValueError(f"{key}: {path} cannot be read as {path.suffix}: {error}") from error


def _not_utf_8(error: UnicodeDecodeError) -> str:
    """What is wrong with a text, and how to make it right."""
    byte = error.object[error.start]
    return (
        f"the file is not in UTF-8 (byte 0x{byte:02x} at {error.start:,}); if it is in Latin-1, `iconv -f latin1 -t utf-8` "
        "converts it"
    )


def _read_state(path: Path) -> dict[str, Any]:
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
