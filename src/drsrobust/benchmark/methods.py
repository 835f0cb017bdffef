"""The methods that are measured side by side, ours first."""

from importlib.util import find_spec
from typing import ClassVar, Protocol

from torch import nn

from drsrobust.benchmark.dense import DenseErrorMap
from drsrobust.benchmark.loop import ElementLoop
from drsrobust.benchmark.published import MRFI, PyTorchFI
from drsrobust.injection import BitFlip, Injection

OURS = "drsrobust"


class Method(Protocol):
    """A way to inject errors into all parameters of a model.

    Attributes:
        name: in the table.
        needs: module that must be there; None: nothing beyond this package.
        dtypes: of parameters that it can hit; None: any.
        limit: seconds; once an injection took longer, it is not run at higher rates or on larger models.
        about: what a reader must know of its numbers.
        undo: takes the errors out again; None where the method has no such thing.
    """

    name: ClassVar[str]
    needs: ClassVar[str | None]
    dtypes: ClassVar[tuple[str, ...] | None]
    limit: ClassVar[float]
    about: ClassVar[str]

    def __init__(self, model: nn.Module) -> None: ...

    def inject(self, rate: float, seed: int) -> nn.Module:
        """One injection at a bit error rate; gives the model that has the errors."""


class Sparse:
    """This package: resolves the target, draws the errors by the error clock, applies them. `dr.inject` does the same."""

    name = OURS
    needs = None
    dtypes = None
    limit = float("inf")
    about = ""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def inject(self, rate: float, seed: int) -> nn.Module:
        """The whole way from the model to errors in it."""
        self._injection = Injection(self.model, [(BitFlip(rate), "all")], seed=seed)
        self._injection.apply()
        return self.model

    def undo(self) -> None:
        """Writes the original words back."""
        self._injection.undo()


METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Sparse, DenseErrorMap, ElementLoop, MRFI, PyTorchFI)
}


def cannot(method: str, dtype: str) -> str | None:
    """Why a method cannot hit parameters of a dtype on this machine; None when it can."""
    kind = METHODS[method]
    if kind.needs and find_spec(kind.needs) is None:
        return "not installed (pip install -e '.[benchmark]')"
    if kind.dtypes and dtype not in kind.dtypes:
        return f"it hits {' and '.join(kind.dtypes)} only"
    return None
