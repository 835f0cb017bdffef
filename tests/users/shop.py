"""A user's own module and rows, as her scripts import them."""

import numpy as np
import pandas as pd
import torch
from torch import nn

import drsrobust as dr

READERS, ITEMS = 40, 30
_random = np.random.default_rng(0)
frame = pd.DataFrame({"reader": _random.integers(READERS, size=600), "item": _random.integers(ITEMS, size=600)})
frame["price"] = _random.normal(size=600)
frame["clicked"] = (_random.random(600) < 0.3 + 0.4 * (frame["item"] % 2)).astype(int)
tensors = [torch.tensor(frame[name].to_numpy()) for name in ("price", "reader", "item", "clicked")]


class Shop(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.readers, self.items = nn.Embedding(READERS, 8), nn.Embedding(ITEMS, 8)
        self.top = nn.Sequential(nn.Linear(17, 16), nn.ReLU(), nn.Linear(16, outputs))

    def forward(self, price, reader, item):
        price = price.to(self.readers.weight.dtype)[:, None]
        return self.top(torch.cat((price, self.readers(reader), self.items(item)), dim=1))


def by_name(model, batch):
    ids = batch.sparse_features
    return model(batch.dense_features[:, 0], ids["reader"].values(), ids["item"].values())


class Next(nn.Module):
    """A GRU over the last items, scored against all items."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.items, self.gru = nn.Embedding(ITEMS, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, history):
        return self.gru(self.items(history))[1][0] @ self.items.weight.T


def rows():
    return dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"], user="reader")
