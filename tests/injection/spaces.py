"""Models and address spaces of every number format."""

import math

import numpy as np
import torch
from torch import nn

from drsrobust.injection.address_space import AddressSpace, TargetTensor
from drsrobust.introspection.embedding_modules import torchrec
from tests.injection.oracle import FORMATS, Memory, raw, width


def filled(form, shape, seed):
    """A tensor of random bits: every kind of number, NaN payloads among them."""
    generator = torch.Generator().manual_seed(seed)
    content = torch.randint(0, 256, (math.prod(shape) * width(form) // 8,), dtype=torch.uint8, generator=generator)
    return content.view(getattr(torch, form)).reshape(shape)


def holder(**tensors):
    """A module that holds them as buffers."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def one_format(form):
    """A tensor that is no block of memory, one that is, and a scalar."""
    return holder(a=filled(form, (4, 6), 2).t()[1:5, ::2], b=filled(form, (5, 3), 1), c=filled(form, (), 3))


def all_formats():
    """A small tensor of each format."""
    return holder(**{f"of_{form}": filled(form, (3, 2), number) for number, form in enumerate(FORMATS)})


def small():
    """Two tables and a layer."""
    torch.manual_seed(0)
    model = nn.Module()
    model.table, model.other, model.top = nn.EmbeddingBag(10, 4), nn.Embedding(6, 3), nn.Linear(4, 2)
    return model


class Mixed(nn.Module):
    """Several widths, a buffer, an empty and a tied tensor."""

    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(2, 3))
        self.a = nn.Parameter(torch.zeros(4, dtype=torch.float16))
        self.empty = nn.Parameter(torch.zeros(0, 5))
        self.tied = self.b
        self.register_buffer("codes", torch.zeros(5, dtype=torch.uint8))


class Mlp(nn.Module):
    """Two embeddings in a ModuleDict, and an MLP with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({"user_id": nn.Embedding(5, 4), "item_id": nn.Embedding(6, 4)})
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))
        self.scale = nn.BatchNorm1d(4, affine=False)


class Reads:
    """What `Rows.hot` needs of a split: features with (values, lengths)."""

    def __init__(self, **features):
        self.sparse = {name: (np.array(values), None) for name, values in features.items()}
        self.fingerprint = "abc"


def fused_collection(optimizer):
    """A model whose `bags` is a TorchRec collection of one table of 5 rows of 4, which updates itself in its backward pass."""
    config = torchrec().EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=5, feature_names=["f"])
    model = nn.Module()
    model.bags = torchrec().modules.fused_embedding_modules.FusedEmbeddingBagCollection(
        [config], optimizer_type=optimizer, optimizer_kwargs={"lr": 0.1}, device=torch.device("cpu")
    )
    return model


def space_of(shape, form="float32", rows=None):
    """An address space of one tensor of no model."""
    tensor = TargetTensor.of("t", "t", getattr(torch, form), shape)
    return AddressSpace([TargetTensor("t", "t", shape, tensor.format, rows)])


def memories(model, **rows):
    """What a model's buffers hold, for the oracle; with rows, of the named ones alone."""
    names = rows or dict(model.named_buffers())
    return [Memory.of(name, model.get_buffer(name), rows.get(name)) for name in names]


def words(model):
    """The words of a model's buffers, as integers."""
    return {name: raw(tensor) for name, tensor in model.named_buffers()}
