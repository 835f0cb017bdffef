"""One error, module by module."""

from shop import Shop, by_name, frame

import drsrobust as dr

data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"])
model = Shop()
with dr.inject(model, dr.SingleBit(30), target="top.0.weight", seed=0) as error_map:
    pass
found = dr.trace(model, next(data.test.batches(100)), error_map, forward=by_name)
print(found)
dr.plots.save(dr.plots.propagation(dr.plots.propagation_data(found)), "trace", found, "Where the error goes.")
