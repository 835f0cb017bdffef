"""A list of batches, dictionaries here."""

from shop import Shop, tensors

import drsrobust as dr

names = ("price", "reader", "item", "label")
parts = zip(*(tensor.split(100) for tensor in tensors), strict=True)
batches = [dict(zip(names, part, strict=True)) for part in parts]
evaluator = dr.Evaluator(
    Shop(), dr.data.from_batches(batches), forward=lambda model, batch: model(*(batch[name] for name in names[:3]))
)
with dr.inject(evaluator.model, dr.SingleBit(30), target="top", seed=0) as error_map:
    print(evaluator.golden.auc, "->", evaluator.rerun(error_map).auc)
