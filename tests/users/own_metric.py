"""A metric of one's own, a lambda, and two workers for a model of this script."""

from shop import Shop, by_name, frame

import drsrobust as dr


class Mine(Shop):
    """Defined in the script."""


if __name__ == "__main__":
    data = dr.data.from_frame(frame, label="clicked", dense=["price"], sparse=["reader", "item"])
    evaluator = dr.Evaluator(Mine(), data, forward=lambda model, batch: by_name(model, batch))
    grid = {"errors": [dr.BitFlip(1e-3)], "trials": 10}
    dr.Campaign(evaluator, **grid).run(workers=2)
    mean = {"mean": lambda labels, scores, golden_scores, users: float(scores.mean())}
    print(dr.Campaign(evaluator, metrics=mean, **grid).run()["mean"].describe())
