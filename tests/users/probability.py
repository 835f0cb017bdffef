"""A model that ends in a sigmoid."""

from shop import Shop, by_name, frame

import drsrobust as dr

data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"])
evaluator = dr.Evaluator(
    Shop(), data, forward=lambda model, batch: by_name(model, batch).sigmoid(), output="probability"
)
table = dr.Campaign(
    evaluator, errors=[dr.BitFlip(1e-3)], mitigations=[None, dr.WeightRange.fit(evaluator.model)], trials=20
).run()
print(dr.recovery(table)[["mitigation", "lost", "recovery", "recovery_low", "recovery_high"]])
