"""Helpers for tests of protected memory: small tensors of any format, and errors as dictionaries."""

import random
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.base import Screened
from drsrobust.mitigation.memory.base import DrawContext
from drsrobust.mitigation.memory.protected_words import Errors
from tests.injection.oracle import raw, width
from tests.injection.spaces import filled, holder

TRIAL = DrawContext(1, ())
WIDTHS = ("float64", "float32", "bfloat16", "int8")  # one format for each width of a word


def model_of(form, words=37, seed=1):
    """A module with one tensor `t` of random bits."""
    return holder(t=filled(form, (words,), seed))


def words_of(mitigation, model):
    """The protected words of `t`."""
    return next(words for words in mitigation.protected(model) if words.name == "t")


def errors_of(masks):
    """Errors given as {index: mask}."""
    masks = {index: mask for index, mask in sorted(masks.items()) if mask}
    return Errors(np.array(list(masks), np.int64), np.array(list(masks.values()), np.uint64))


def masks_of(errors):
    """The reverse."""
    assert (np.diff(errors.index) > 0).all() and (errors.mask != 0).all()
    return dict(zip(errors.index.tolist(), errors.mask.tolist(), strict=True))


def bits_of(errors):
    """How many bits are wrong."""
    return int(np.bitwise_count(errors.mask).sum())


def random_masks(units, bits, flips, seed):
    """That many flips at random places of units of so many bits, as {index: mask}."""
    masks = {}
    for place in random.Random(seed).sample(range(units * bits), flips):
        masks[place // bits] = masks.get(place // bits, 0) | 1 << place % bits
    return masks


def map_of(model, masks, target="everything"):
    """An error map with the errors {word of `t`: mask} that does not know what it was drawn from."""
    clean = dr.BitFlip(0.0).sample(dr.resolve(model, target), seed=1)
    tensor = np.full(len(masks), clean.targets.index("t"))
    words, flips = np.array(list(masks), np.int64), np.array(list(masks.values()), np.uint64)
    return replace(clean.with_words(tensor, words, flips), error_model="by hand", sources=())


def screened(mitigation, error_map, model, seed=1):
    """What protected memory of a model makes of an error map."""
    return Screened.by(mitigation, error_map, dr.resolve(model, "everything"), seed=seed)


def memory_bits(model):
    """The words of `t` and their width."""
    form = str(model.t.dtype).removeprefix("torch.")
    return raw(model.t), width(form)


def table(rows=1000, dim=16, seed=0):
    """An embedding table, as a module whose `weight` is drawn from a normal distribution."""
    torch.manual_seed(seed)
    return nn.EmbeddingBag(rows, dim)
