"""Trusted copies of tensors, to put words back from."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from drsrobust.injection.address_space import WordView
from drsrobust.introspection.tensors import listed


class GoldenCopy:
    """Tensors as they were, bit for bit. It writes as hardware does: PyTorch's count of writes stays, so that an error map that
    is in the model can be undone all the same; what is there then is what was there before the errors.

    Args:
        tensors: name -> tensor, each without errors now; copied.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> copy = GoldenCopy.of(layer)
        >>> layer.weight.data[1, 2] = float("nan")
        >>> copy.restore(layer), bool(layer.weight.isfinite().all()), copy.stored_bits
        (1, True, 256)
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._digest: str | None = None

    def __repr__(self) -> str:
        return f"<GoldenCopy of {len(self._tensors)} tensors, {self.stored_bits} bits, {self.digest()[:12]}>"

    @classmethod
    def of(cls, model: nn.Module, names: Iterable[str] | None = None) -> "GoldenCopy":
        """A copy of a model's parameters and quantized tables, or of the named tensors.

        Raises:
            KeyError: a name that is not there.
        """
        there = {one.name: one for one in listed(model)}
        names = [name for name, one in there.items() if one.parameter] if names is None else names
        return cls({name: there[name].tensor for name in names})

    @property
    def names(self) -> list[str]:
        """The tensors that are kept."""
        return list(self._tensors)

    @property
    def stored_bits(self) -> int:
        """What it takes."""
        return sum(8 * tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def digest(self) -> str:
        """SHA-256 (hex) of names, formats and words."""
        if self._digest is None:
            self._digest = tensors_digest(self._tensors)
        return self._digest

    def restore(self, model: nn.Module) -> int:
        """Puts all of a model's words back. Returns how many were others.

        Raises:
            KeyError: a tensor that the model does not have.
        """
        there = {one.name: one.tensor for one in listed(model)}
        return sum(self.restore_tensor(name, there[name]) for name in self._tensors)

    def restore_tensor(self, name: str, tensor: torch.Tensor, rows: torch.Tensor | None = None) -> int:
        """Puts the words of one tensor back.

        Args:
            name: which copy.
            tensor: where to, of the copy's shape and format.
            rows: only these (int64 [m], along the first dimension); None: all.

        Returns:
            how many words were others.

        Raises:
            ValueError: another shape or format.
        """
        kept = self._tensors[name]
        if (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(
                f"{name}: the copy is {list(kept.shape)} {kept.dtype}, the tensor {list(tensor.shape)} {tensor.dtype}"
            )
        here, golden = WordView(tensor), WordView(kept)
        if rows is None:
            index = torch.arange(kept.numel())
        else:
            width = kept[0].numel() if len(kept) else 0
            index = (rows.cpu().unique().unsqueeze(1) * width + torch.arange(width)).view(-1)
        words = golden.read(index.to(golden.device)).to(here.device)
        index = index.to(here.device)
        wrong = here.read(index) != words
        here.write(index[wrong], words[wrong])
        return int(wrong.sum())


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) of tensors' names, formats, shapes and words."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()
