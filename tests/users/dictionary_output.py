"""A model of two tasks, whose output is a dictionary."""

from shop import Shop, by_name, frame

import drsrobust as dr

frame["bought"] = frame["clicked"] * (frame["reader"] % 2)
data = dr.data.from_frame(frame, label=["clicked", "bought"], dense=["price"], sparse=["reader", "item"])
evaluator = dr.Evaluator(
    Shop(outputs=2),
    data,
    forward=lambda model, batch: dict(zip(("clicked", "bought"), by_name(model, batch).T, strict=True)),
    task="multi",
)
table = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-3)], metrics=["auc/clicked", "auc/bought"], trials=10).run()
print(dr.summarise(table, ["auc/clicked", "auc/bought"])[["auc/clicked", "auc/bought"]])
