"""The loop over elements: what most injectors written for one paper do."""

import random

import torch
from torch import nn

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ElementLoop:
    """For each parameter, for each of its bits: draw, and flip the bit when the draw is below the rate.

    A parameter is read and written only where a bit flips; a loop that takes every parameter to a text of bits and back takes
    several times longer.

    Args:
        model: any.
    """

    name = "per element loop"
    needs = None
    dtypes = None
    limit = 5.0
    about = "no undo: the model is loaded again"
    undo = None

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def inject(self, rate: float, seed: int) -> nn.Module:
        """Draws over all bits."""
        draw = random.Random(seed).random
        with torch.no_grad():
            for parameter in self.model.parameters():
                bits = range(8 * parameter.element_size())
                words = parameter.view(-1).view(_WORDS[parameter.element_size()])
                for index in range(len(words)):
                    for bit in bits:
                        if draw() < rate:
                            flip = 1 << bit if bit < bits[-1] else -(1 << bit)  # the highest bit of a signed word
                            words[index] ^= flip
        return self.model
