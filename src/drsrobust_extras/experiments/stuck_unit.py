"""A defective compute unit (`StuckUnit`): one lane whose multiplier or accumulator gives wrong words in all matrix products.

Published models of permanent faults are of systolic arrays (DLAFI, ISSRE 2025; ENFOR-SA, arXiv:2602.00909; SAFFIRA) or of gates
(arXiv:2605.04213, whose wrong words lie at periodic addresses); their rules were not read. This one is of words: what a lane
hands on is wrong, whatever wire of it is broken."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import gcd
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from drsrobust.extend import (
    add_forward_hook,
    add_forward_pre_hook,
    check_choice,
    check_number,
    check_whole,
    is_compiled,
    uniform,
)
from drsrobust.injection import INTEGER_OF_BYTES, InjectionError
from drsrobust.introspection import named_modules
from drsrobust_extras.experiments.transient import Draw, Hooked, Site

PARTS = ACCUMULATOR, MULTIPLIER = "accumulator", "multiplier"
SITE = "product"  # of the forward pass; in the log with its number in the batch, as `product[0]`
_OPS = [(name, getattr(torch.ops.aten, name)) for name in ("mm", "addmm", "bmm", "baddbmm")]  # forward and backward
_PRODUCTS = {
    form: op.default for _, op in _OPS for form in (op.default, op.out)
}  # any form -> the one with a result of its own
_PRODUCTS |= {getattr(torch.ops.aten, f"{name}_").default: op.default for name, op in _OPS if "add" in name}
_FORMATS = (torch.float32, torch.float64)


class _Aside(threading.local):
    """Whether this thread computes what a lane has, which is no product of the model."""

    on = False


_ASIDE = _Aside()


@dataclass(frozen=True)
class StuckUnit(Hooked):
    """A defective lane of the unit that computes matrix products: a target whose words are wrong in every product of the model.

    A unit of `period` lanes computes C = A B, [M, K] times [K, N], column by column: column j is of lane j mod `period`, in
    every product, so lane 0 alone has products of one column. The error model says what becomes of the lane's words, at
    each of them: `StuckAt(1, 1.0, bits=[30])` sets a bit, `StuckAt(0, 1.0, bits=[30])` clears it, `BitFlip(1.0, bits=[30])`
    inverts it.

    - `"accumulator"`: the words are the final sums c_ij = sum_k a_ik b_kj, before a bias is added. Not the running sums: these
      depend on the order in which a unit sums, for which there is no source; the final sum does not.
    - `"multiplier"`: the words are all K products a_ik b_kj of such a column, each rounded to the format; a lane has one
      multiplier. A sum with a wrong product is the sum of the K words, in the order of `torch.sum`; other sums stay.

    Infinite and NaN words go on as IEEE 754 has it. Words that the errors leave as they are change no bit of the result.

    Hit are the products that PyTorch computes by `mm`, `addmm`, `bmm` and `baddbmm`, also in place or into `out` (linear
    layers, `matmul`, `einsum`, the interaction of DLRM, GRU and recurrent cells), in the thread of the block: in forward passes
    of the model, and in backward passes inside the block, where the columns of the gradient of a weight [out, in] and of an
    input [rows, in] are the inputs of its layer. Not hit: products of a matrix and a vector (as the sums of checksums),
    element-wise products, `torch.sparse.mm`, and what one kernel computes as a whole: fused attention (in evaluation without
    gradients `nn.MultiheadAttention(batch_first=True)` with its projections), convolutions, `nn.LSTM` of float32 on a CPU,
    look-ups.

    A batch is a forward pass of the model, with those inside it, and its backward pass, with what that computes again. The
    log counts words of the lane in each product, columns innermost; of a multiplier a call is a column. Several units in a call
    have no lane in common.

    Args:
        part: `"accumulator"` or `"multiplier"`.
        lane: the defective one, from 0.
        period: lanes of the unit: a property of the hardware that no published number settles.
        batches: share of batches in which the defect shows, drawn by the seed for each batch; 1: in all.

    Raises:
        ValueError: an unknown part, or a number out of range; when the model runs, `InjectionError` for products of other
            formats than float32 and float64, whose accumulators are wider than their words, or of sparse matrices.

    Example:
        >>> import drsrobust as dr
        >>> layer = nn.Linear(2, 4, bias=False)
        >>> with dr.inject(layer, dr.BitFlip(1.0, bits="sign"), StuckUnit("accumulator", lane=1, period=2), seed=0):
        ...     wrong = layer(torch.ones(1, 2))
        >>> (wrong / layer(torch.ones(1, 2))).tolist()
        [[1.0, -1.0, 1.0, -1.0]]
    """

    lasts: ClassVar[bool] = True

    part: str
    lane: int
    period: int
    batches: float = 1.0

    def __post_init__(self) -> None:
        check_choice("part of a unit", self.part, PARTS)
        period = check_whole("period", self.period, 1)
        object.__setattr__(self, "lane", check_whole("lane", self.lane, 0, period - 1))
        right = "a share of batches, over 0 and at most 1"
        object.__setattr__(self, "batches", check_number("batches", self.batches, right, lambda share: 0 < share <= 1))

    def __str__(self) -> str:
        some = "" if self.batches == 1 else f", in {self.batches!r} of batches"
        return f"StuckUnit({self.part}, lane {self.lane} of {self.period}{some})"

    def attach(self, model: nn.Module, draw: Draw) -> Iterator[Site]:
        for name, module in [("", model), *named_modules(model)]:
            if is_compiled(module):
                name = name or type(model).__name__
                raise ValueError(f"{name} is compiled, so its products are not seen; inject before torch.compile")
        for other in [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Products)]:
            if not other.active:
                other.remove()  # its block ended in another thread
            elif (self.lane - other.unit.lane) % gcd(self.period, other.unit.period) == 0:
                raise ValueError(f"{self} and {other.unit} have columns in common; give each unit lanes of its own")
        products = _Products(self, draw)
        yield None, add_forward_pre_hook(model, products.begin)
        yield None, add_forward_hook(model, products.end, always_call=True)
        products.enter()
        yield SITE, products


class _Products(TorchDispatchMode):
    """Sees all operations of this thread, and computes the matrix products of a model as a unit with a defective lane does."""

    def __init__(self, unit: StuckUnit, draw: Draw) -> None:
        super().__init__()
        self.unit, self._draw, self._thread = unit, draw, threading.get_ident()
        self._shows, self._number = False, {SITE: 0}
        self._passes: list[FrameType] = []  # forward passes that go on, each inside the one before
        self._lane = (..., slice(unit.lane, None, unit.period))

    @property
    def active(self) -> bool:
        """Whether its block goes on."""
        return self._draw.active

    def enter(self) -> None:
        """From here on products are hit."""
        self.__enter__()

    def remove(self) -> None:
        """The end, in the thread of the block; one that has ended took its modes along."""
        above: list[TorchDispatchMode] = []
        if threading.get_ident() == self._thread and self in _get_current_dispatch_mode_stack():
            while (mode := _get_current_dispatch_mode_stack()[-1]) is not self:  # of blocks that began later and go on
                mode.__exit__(None, None, None)
                above.append(mode)
            self.__exit__(None, None, None)
        for mode in reversed(above):
            mode.__enter__()

    def begin(self, module: nn.Module, args: tuple) -> None:
        """Before a forward pass of the model; one inside another, or computed again in the backward pass, is of its batch."""
        frame: FrameType | None = sys._getframe(1)
        running = set()
        while frame is not None:
            running.add(frame)
            frame = frame.f_back
        outer = [one for one in self._passes if one in running]  # one that was interrupted had no end
        self._passes = [*outer, sys._getframe(1)]
        if outer or _in_backward():
            return
        self._number = {}
        drawn = uniform(np.array([self._draw.next_seed(f"batches of {self.unit}")], np.uint64))[0]
        self._shows = bool(drawn < self.unit.batches)
        if not self._shows:
            self._draw.called(SITE)  # it was there, and did not show

    def end(self, module: nn.Module, args: tuple, output: Any) -> None:
        """After it, also where it raised."""
        del self._passes[-1:]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        in_backward = _in_backward()
        if _ASIDE.on or not (self._draw.active and self._shows and (self._passes or in_backward)):
            return func(*args, **kwargs)
        product = _PRODUCTS.get(func)
        if product is func:
            return self._product(f"backward {SITE}" if in_backward else SITE, func(*args, **kwargs), *args, **kwargs)
        if product is not None:
            into = kwargs.pop("out") if "out" in kwargs else args[0]
            result = self.__torch_dispatch__(product, types, args, kwargs)
            return (into if into.shape == result.shape else into.resize_(result.shape)).copy_(result)
        if not in_backward and _is_composed(
            func
        ):  # `linear` and `matmul` of inference tensors, which have no backward pass
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)

    def _product(self, site: str, golden: torch.Tensor, *args: Any, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
        """A product with the words of the lane as it computes them."""
        *added, left, right = args
        number = self._number.get(site, 0)
        self._number[site] = number + 1
        if golden.dtype not in _FORMATS:
            raise InjectionError(f"{self.unit}: a product of {golden.dtype}; it must be of float32 or float64")
        if right.layout != torch.strided or (self.unit.part == MULTIPLIER and left.layout != torch.strided):
            raise InjectionError(
                f"{self.unit}: a product of {left.layout} and {right.layout}; both must be torch.strided"
            )
        _ASIDE.on = True
        try:
            right = right[self._lane]
            if not right.numel() or not left.numel():
                return golden
            sums = left @ right if added else golden[self._lane]
            hit = self._sums if self.unit.part == ACCUMULATOR else self._terms
            wrong, is_wrong = hit(f"{site}[{number}]", sums, left, right)
            if is_wrong is None:
                return golden
            if added:
                wrong = alpha * wrong
                if beta:  # else what is there does not count, also where it is NaN
                    wrong = beta * added[0].expand(golden.shape)[self._lane] + wrong
            golden[self._lane] = torch.where(is_wrong, wrong, golden[self._lane])
            return golden
        finally:
            _ASIDE.on = False

    def _sums(self, site: str, sums: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sums of an accumulator, and which are wrong; None if none is."""
        wrong = self._draw.hit(site, sums)
        return wrong, None if wrong is sums else _differ(wrong, sums)

    def _terms(
        self, site: str, sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `_sums`, of a multiplier. A column at a time, since all K products of a column are as large as `left`."""
        columns, found = [], []
        for number in range(right.shape[-1]):
            terms = left * right[..., number].unsqueeze(-2)
            wrong = self._draw.hit(site, terms)
            columns.append(wrong.sum(-1))
            found.append(_differ(wrong, terms).any(-1))
        is_wrong = torch.stack(found, -1)
        return torch.stack(columns, -1), is_wrong if is_wrong.any() else None


@cache
def _is_composed(func: Any) -> bool:
    return func._can_decompose()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which words differ in any bit."""
    as_integer = INTEGER_OF_BYTES[one.element_size()]
    return one.contiguous().view(as_integer) != other.contiguous().view(as_integer)
