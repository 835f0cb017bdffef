"""A sequence model (GRU) that scores all items."""

import torch
from shop import ITEMS, Next
from torch.utils.data import DataLoader, TensorDataset

import drsrobust as dr

history = torch.randint(ITEMS, (300, 5), generator=torch.Generator().manual_seed(0))
rows = dr.data.from_batches(DataLoader(TensorDataset(history, history[:, -1]), batch_size=100))
evaluator = dr.Evaluator(Next(), rows, forward=lambda model, batch: model(batch[0]), task="ranking")
table = dr.Campaign(
    evaluator, errors=[dr.BitFlip(1e-3)], metrics=["ndcg@10", "recall@10", "list_changed"], trials=10
).run()
print(dr.summarise(table, ["ndcg@10", "recall@10"])[["ndcg@10", "ndcg@10_low", "ndcg@10_high", "recall@10"]])
