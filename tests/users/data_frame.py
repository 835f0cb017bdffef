"""A DataFrame and a module with its own argument names."""

from shop import Shop, by_name, frame

import drsrobust as dr

data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"], user="reader")
evaluator = dr.Evaluator(Shop(), data, forward=by_name)
campaign = dr.Campaign(
    evaluator, errors=[dr.BitFlip(1e-4), dr.BitFlip(1e-3)], targets=["all", "embedding", "top"], trials=10
)
campaign.run()
print(campaign.summary()[["target", "ber", "auc_drop", "auc_drop_low", "auc_drop_high"]])
print(dr.report.write(campaign, "out"))
