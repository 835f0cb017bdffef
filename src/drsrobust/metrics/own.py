"""A user's own metrics: functions of labels, scores, scores without errors, and users, or objects of torchmetrics."""

import copy
import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from drsrobust.introspection.code_digest import code_digest
from drsrobust.metrics.names import CLICK


class OwnMetric:
    """A user's metric under a name.

    An object of torchmetrics (anything with `update`, `compute` and `reset`) is copied, and gets the tensors (scores, labels as
    int64), with `indexes` a number per user where its `update` has this argument.

    Args:
        name: not that of a built-in metric, with or without a length of lists.
        function: fn(labels, scores, golden_scores, users) -> a number, of arrays that are read-only; or an object of
            torchmetrics.

    Attributes:
        name: as given.
        function: as given.
        code: the digest of the function, with all that it names, or of the object.

    Raises:
        ValueError: a built-in name, or one with a slash.
        TypeError: no function and no object of torchmetrics.

    Example:
        >>> def mean_score(labels, scores, golden_scores, users):
        ...     return scores.mean()
        >>> OwnMetric("mean_score", mean_score)(np.array([0, 1]), np.array([0.5, 1.0]), np.array([0.5, 0.5]), None)
        0.75
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"metric {name!r}: the name must be text without '/', which is for metrics of a task")
        if name.partition("@")[0] in CLICK:
            raise ValueError(f"metric {name!r} is built in; give yours another name, or None instead of a function")
        if isinstance(function, type) or not (callable(function) or _updates(function)):
            kind = f"the class {function.__name__}" if isinstance(function, type) else f"a {type(function).__name__}"
            raise TypeError(
                f"metric {name!r} is {kind}; it must be a function (labels, scores, golden_scores, users) -> float, or an "
                "object of torchmetrics"
            )
        self.name, self.function = name, copy.deepcopy(function) if _updates(function) else function
        self.code = code_digest(self.function)  # now, since an object may note things about the scores it sees

    def __call__(self, labels: Any, scores: np.ndarray, golden_scores: np.ndarray, users: np.ndarray | None) -> float:
        """The metric of scores.

        Args:
            labels: [n], or [n, T] (NaN: not observed), or the data's `Ids` of relevant items.
            scores, golden_scores: [n], or [n, T], or [n, items].
            users: ids int64 [n], or None.

        Raises:
            TypeError: the function gives no number.
            Exception: what the function raises.
        """
        return self._number(self._value(labels, scores, golden_scores, users))

    def check_golden(self, labels: Any, golden_scores: np.ndarray, users: np.ndarray | None) -> None:
        """Computes the metric of the golden scores.

        Raises:
            ValueError: the function raises, or gives NaN or an infinity.
            TypeError: it gives no number.
        """
        try:
            value = self._value(labels, golden_scores, golden_scores, users)
        except Exception as error:
            arguments = "(scores, labels)" if _updates(self.function) else "(labels, scores, golden_scores, users)"
            raise ValueError(
                f"metric {self.name!r} of {arguments} fails without errors: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(number := self._number(value)):
            raise ValueError(f"metric {self.name!r} is {number} without errors; it must be a finite number")

    @property
    def importable(self) -> bool:
        """Whether a worker process can import the function, or the class of an object and unpickle it."""
        try:
            return b"__main__" not in pickle.dumps(self.function)
        except Exception:  # of a lambda, an inner function, or whatever an object holds
            return False

    def __repr__(self) -> str:
        return f"OwnMetric({self.name!r}, {self.function!r})"

    def _value(self, labels: Any, scores: np.ndarray, golden_scores: np.ndarray, users: np.ndarray | None) -> Any:
        labels, scores, golden_scores, users = map(_read_only, (labels, scores, golden_scores, users))
        if not _updates(self.function):
            return self.function(labels, scores, golden_scores, users)
        import torch

        metric, device = self.function, getattr(self.function, "device", None)
        if not isinstance(labels, np.ndarray):
            raise TypeError("an object of torchmetrics takes one label per row; pass a function instead")
        if np.isnan(labels).any():
            raise TypeError("an object of torchmetrics takes no labels that were not observed; pass a function instead")
        extra = {}
        if "indexes" in inspect.signature(metric.update).parameters:
            if users is None:
                raise TypeError(f"{type(metric).__name__} groups rows by user, and these rows have no users")
            # From 0 up, since torchmetrics counts up to the largest one.
            extra["indexes"] = torch.as_tensor(np.unique(users, return_inverse=True)[1], device=device)
        metric.reset()
        try:
            metric.update(
                torch.tensor(scores, device=device), torch.tensor(labels.astype(np.int64), device=device), **extra
            )
            return metric.compute()
        finally:
            metric.reset()

    def _number(self, result: Any) -> float:
        try:
            value = result.item() if callable(getattr(result, "item", None)) else result  # of an array or a tensor
            if not isinstance(value, str | bytes):
                return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
        shape = f" of shape {list(result.shape)}" if hasattr(result, "shape") else ""
        raise TypeError(f"metric {self.name!r} gave a {type(result).__name__}{shape}; it must give a float")


def own_metrics(functions: Mapping[str, Callable[..., Any]]) -> dict[str, OwnMetric]:
    """The metrics of functions by name; errors are those of `OwnMetric`."""
    return {name: OwnMetric(name, function) for name, function in functions.items()}


def _updates(function: Any) -> bool:
    return all(callable(getattr(function, name, None)) for name in ("update", "compute", "reset"))


def _read_only(value: Any) -> Any:
    """An array, or a tuple of arrays, that cannot be written to through what is returned."""
    if value is None:
        return None
    if isinstance(value, tuple):  # Ids
        return value._make(map(_read_only, value))
    view = np.asarray(value).view()
    view.setflags(write=False)
    return view
