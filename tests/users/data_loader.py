"""A DataLoader."""

from shop import Shop, tensors
from torch.utils.data import DataLoader, TensorDataset

import drsrobust as dr

batches = dr.data.from_batches(DataLoader(TensorDataset(*tensors), batch_size=100))
evaluator = dr.Evaluator(Shop(), batches, forward=lambda model, batch: model(*batch[:3]))
table = dr.Campaign(evaluator, errors=[dr.FixedCount(1)], targets=["embedding", "top"], trials=20).run()
print(dr.summarise(table, ["auc_drop", "rows_reached"])[["target", "auc_drop", "rows_reached"]])
