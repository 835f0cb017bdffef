"""The model that is measured: the study's DLRM shape in plain PyTorch, with any number of parameters."""

import torch
from torch import nn

STUDY_SIZE = 16_462_609  # 1,000,000 rows of dim 16 in 26 tables, bottom MLP 13-512-256-16, top MLP 367-512-256-1
_DENSE, _TABLES, _DIM = 13, 26, 16
_LARGE = ((512, 256), (512, 256))  # hidden layers of the bottom and the top MLP
_SMALL = ((64,), (64, 32))  # where the large ones would be more than half of the parameters
_STD = 0.01  # of float values: none is near overflow


class StudyModel(nn.Module):
    """Bottom MLP on 13 dense values, 26 tables, all pairs of dot products, top MLP.

    Args:
        rows: of each table.
        bottom, top: widths of the hidden layers.
        spare: further parameters without a use, so that any number of parameters can be had exactly.
    """

    def __init__(self, rows: list[int], bottom: tuple[int, ...], top: tuple[int, ...], spare: int) -> None:
        super().__init__()
        pairs = (_TABLES + 1) * _TABLES // 2
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, _DIM, mode="sum") for n in rows)
        self.bottom = _mlp(_DENSE, *bottom, _DIM)
        self.top = _mlp(pairs + _DIM, *top, 1)
        self.spare = nn.Parameter(torch.zeros(spare)) if spare else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Logits [B] of [B, 13 + 26] float32: dense values, then ids, of which any number will do (some tools that are
        measured feed random numbers to learn the shapes)."""
        ids = batch[:, _DENSE:].abs().long()
        dense = self.bottom(batch[:, :_DENSE])
        pooled = [table(ids[:, i : i + 1] % table.num_embeddings) for i, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *pooled], 1)  # [B, 27, 16]
        one, other = torch.tril_indices(_TABLES + 1, _TABLES + 1, offset=-1)
        pairs = (vectors @ vectors.mT)[:, one, other]  # [B, 351]
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def study_model(parameters: int = STUDY_SIZE, dtype: str = "float32", *, seed: int = 0) -> StudyModel:
    """A model with exactly this number of parameters; their values are drawn.

    Args:
        parameters: at least 28,017. Tables are equally long; from 925,218 parameters on the MLPs are the study's.
        dtype: `float32`, or `int8` for memory that is only held: such a model has no forward.
        seed: of the values.
    """
    bottom, top = _LARGE if parameters >= 2 * _mlp_size(*_LARGE) else _SMALL
    left = parameters - _mlp_size(bottom, top)
    if left < _TABLES * _DIM:
        raise ValueError(f"parameters is {parameters}; a model of this shape has at least {28_017:,}")
    rows, spare = divmod(left, _DIM)
    each, more = divmod(rows, _TABLES)
    with torch.device("meta"):  # the values that PyTorch would draw at first are not wanted
        model = StudyModel([each + (i < more) for i in range(_TABLES)], bottom, top, spare)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        values = torch.empty(parameter.shape, dtype=getattr(torch, dtype))
        if values.is_floating_point():
            values.normal_(std=_STD, generator=generator)
        else:
            values.random_(-128, 128, generator=generator)
        setattr(model.get_submodule(owner), attribute, nn.Parameter(values, requires_grad=values.is_floating_point()))
    return model.eval()


def _mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(n, m) for n, m in zip(widths, widths[1:], strict=False)]
    between = [layer for pair in ((layer, nn.ReLU()) for layer in layers) for layer in pair]
    return nn.Sequential(*between[:-1])


def _mlp_size(bottom: tuple[int, ...], top: tuple[int, ...]) -> int:
    """How many weights and biases both MLPs have."""
    widths = ((_DENSE, *bottom, _DIM), ((_TABLES + 1) * _TABLES // 2 + _DIM, *top, 1))
    return sum((n + 1) * m for one in widths for n, m in zip(one, one[1:], strict=False))
