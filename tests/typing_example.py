"""Public use of the package as `make lint` checks it with mypy: a name, parameter or type that changes fails there."""

import pandas as pd
from torch import nn

import drsrobust as dr


def one_trial(ber: float = 1e-6) -> float | None:
    data = dr.load_dataset("synthetic-movielens/full")
    model: nn.Module = dr.load_model("dlrm", data)
    evaluator = dr.Evaluator(model, data.test)
    with dr.inject(model, dr.BitFlip(ber), target="embedding", seed=7) as error_map:
        flips: int = error_map.bits
        result = evaluator.rerun(error_map)
    dr.restore(model)
    return result.auc if flips else evaluator.golden.auc


def campaign(model: nn.Module, evaluator: dr.Evaluator) -> pd.DataFrame:
    errors = [dr.BitFlip(ber) for ber in dr.decades(1e-9, 1e-2)]
    protections = [None, dr.ECC(64), dr.Replication(), dr.ActivationClipping(6)]
    table = dr.Campaign(
        evaluator, errors=errors, targets=["all", "embedding"], mitigations=protections, trials=10
    ).run()
    dr.pvf(table)
    dr.recovery(table)
    dr.components(model)
    return dr.summarise(table)


def fleet(trials: pd.DataFrame, model: nn.Module) -> pd.DataFrame:
    found = dr.fleet(trials, model, hosts=10_000, memory="1TiB", recommendations=1e6, rates=dr.rates.FAULTS)
    days: pd.DataFrame = found.simulate(1000, seed=1)
    return found.table().merge(days, on="mitigation")


def maps(model: nn.Module, path: str) -> dr.ErrorMap:
    space = dr.resolve(model, "all")
    error_map = (dr.FixedCount(3) + dr.StuckAt(1, 1e-6)).sample(space, seed=1)
    error_map.save(path)
    return dr.ErrorMap.load(path)
