"""Golden copies: trusted copies of tensors, to reload words from."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from drsrobust.extend import WordView, within
from drsrobust.introspection import listed


class GoldenCopy:
    """Bit-exact copies of tensors. Reloading writes as hardware does: PyTorch's version counters stay, so an error map in the
    model can still be undone, which gives back the words from before the errors.

    Args:
        tensors: name -> tensor without errors; copied.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> golden = GoldenCopy.of(layer)
        >>> layer.weight.data[1, 2] = float("nan")
        >>> golden.reload(layer), bool(layer.weight.isfinite().all()), golden.stored_bits
        (1, True, 256)
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._digest: str | None = None

    def __repr__(self) -> str:
        return f"<GoldenCopy of {len(self._tensors)} tensors, {self.stored_bits} bits, {self.digest()[:12]}>"

    @classmethod
    def of(cls, model: nn.Module, names: Iterable[str] | None = None) -> "GoldenCopy":
        """A copy of the named tensors of a model; None: its parameters and quantized tables.

        Raises:
            KeyError: an unknown name.
        """
        entries = {entry.name: entry for entry in listed(model)}
        names = [name for name, entry in entries.items() if entry.parameter] if names is None else names
        return cls({name: entries[name].tensor for name in names})

    def part(self, modules: Iterable[str]) -> "GoldenCopy":
        """The copies of the tensors of some modules."""
        names = set().union(*(within(module, self._tensors) for module in modules))
        return GoldenCopy({name: tensor for name, tensor in self._tensors.items() if name in names})

    @property
    def names(self) -> list[str]:
        """Names of the copied tensors."""
        return list(self._tensors)

    @property
    def stored_bits(self) -> int:
        """Bits of all copies."""
        return sum(8 * tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def digest(self) -> str:
        """SHA-256 (hex) of names, formats and words."""
        if self._digest is None:
            self._digest = copy_digest(self._tensors)
        return self._digest

    def reload(self, model: nn.Module) -> int:
        """Reloads all copied tensors of a model and returns how many words changed.

        Raises:
            KeyError: the model lacks a copied tensor.
        """
        tensors = {entry.name: entry.tensor for entry in listed(model)}
        return sum(self.reload_tensor(name, tensors[name]) for name in self._tensors)

    def reload_tensor(self, name: str, tensor: torch.Tensor, rows: torch.Tensor | None = None) -> int:
        """Reloads one tensor and returns how many words changed.

        Args:
            name: of the copy.
            tensor: written to, of the copy's shape and format.
            rows: only these (int64 [m], along the first dimension); None: all.

        Raises:
            ValueError: another shape or format.
        """
        golden = self._tensors[name]
        if (golden.shape, golden.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(
                f"{name}: the copy is {list(golden.shape)} {golden.dtype}, the tensor {list(tensor.shape)} {tensor.dtype}"
            )
        target, source = WordView(tensor), WordView(golden)
        if rows is None:
            index = torch.arange(golden.numel())
        else:
            width = golden[0].numel() if len(golden) else 0
            index = (rows.cpu().unique().unsqueeze(1) * width + torch.arange(width)).view(-1)
        words = source.read(index.to(source.device)).to(target.device)
        index = index.to(target.device)
        wrong = target.read(index) != words
        target.write(index[wrong], words[wrong])
        return int(wrong.sum())


def copy_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) of tensors' names, formats, shapes and words."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()
