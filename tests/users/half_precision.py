"""A model in bfloat16."""

import torch
from shop import Shop, by_name, frame

import drsrobust as dr

data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"])
evaluator = dr.Evaluator(Shop().to(torch.bfloat16), data, forward=by_name)
table = dr.Campaign(evaluator, errors=[dr.SingleBit(14), dr.SingleBit(6)], targets=["top"], trials=20).run()
print(table.groupby("error_model")["auc_drop"].mean())
