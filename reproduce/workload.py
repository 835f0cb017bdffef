"""What a profile asks for, counted before anything runs: models to train, trials, timed passes of each notebook."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ONE = "one error"  # instead of a rate
PROTOCOLS = {"fm", "dcn", "afm", "afn", "wide_deep", "deepfm"}  # whose published scripts name parts: two protocols
Parameters = dict[str, Any]
Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Work:
    """Some of a notebook's work.

    Attributes:
        kind: `training` (of one model), `trials`, `passes` (plain scoring of rows, timed or not) or `limit` (`count` seconds at
            most).
        count: of trials, or of passes.
        model, dataset: what it is done with.
        rows: test rows of a trial or pass; fewer where the data set has fewer.
        rate: bit error rate of the trials, or ONE.
        sizes: of the model, name and value, where they are not its default.
        whole: all `rows` are there, generated for the trials.
        per: `component` or `stratum` (layers times classes of bits): the count is for each of them.
        alone: runs on one core while nothing else does.
    """

    kind: str
    count: int
    model: str = ""
    dataset: str = ""
    rows: int = 0
    rate: float | str = ONE
    sizes: Sizes = ()
    per: str = ""
    alone: bool = False
    whole: bool = False


def work_of(notebook: str, parameters: Parameters) -> list[Work] | None:
    """What a notebook does with these parameters; None where nobody has said so yet."""
    counted = _NOTEBOOKS.get(notebook)
    return None if counted is None else list(counted(parameters))


def _sweep(p: Parameters, model: str, dataset: str, trials: int, sizes: Sizes = (), per="") -> Iterator[Work]:
    for ber in p["bers"]:
        yield Work("trials", trials, model, dataset, p["test_rows"], ber, sizes, per)


def _training(p: Parameters, model: str, dataset: str) -> Work:
    sizes = (("neurons", p["afn_neurons"]),) if model == "afn" and "afn_neurons" in p else ()
    return Work("training", 1, model, dataset, sizes=sizes)


def _pairs(p: Parameters) -> Iterator[tuple[str, str]]:
    for dataset in p["datasets"]:
        yield from ((model, dataset) for model in p["models"] if f"{model} {dataset}" not in p["leave_out"])


def _models(p: Parameters) -> Iterator[Work]:
    for model, dataset in _pairs(p):
        yield _training(p, model, dataset)


def _quickstart(p: Parameters) -> Iterator[Work]:
    yield _training(p, p["model_name"], p["dataset"])
    yield from _sweep(p, p["model_name"], p["dataset"], p["trials"])


def _bits(p: Parameters) -> Iterator[Work]:
    for model in p["models"]:
        train = _training(p, model, p["dataset"])
        count = len(p["bits"]) * p["trials"]
        yield train
        yield Work("trials", count, model, p["dataset"], p["test_rows"], ONE, train.sizes, "component")


def _factors(p: Parameters) -> Iterator[Work]:
    """Every cell is taken to cost as much as the one that is nearest to their mean: all of them would take long to measure."""
    from drsrobust.study.model_factors import factor_grid

    levels = {
        "width": p["widths"],
        "depth": p["depths"],
        "embedding_dim": p["embedding_dims"],
        "density": p["densities"],
    }
    cells = factor_grid(levels, full=p["full"])
    means = {name: sum(cell[name] for cell in cells) / len(cells) for name in levels}
    like = {name: min(given, key=lambda level, name=name: abs(level - means[name])) for name, given in levels.items()}
    dataset = f"synthetic-dummy/{like.pop('density'):g}"
    count = 2 * len(cells) * len(p["targets"]) * p["trials"]  # two protocols
    for ber in p["bers"]:
        yield Work("trials", count, "dummy", dataset, p["inputs"], ber, tuple(like.items()), whole=True)


def _rates(p: Parameters) -> Iterator[Work]:
    for model, dataset in _pairs(p):
        train = _training(p, model, dataset)
        yield train
        yield from _sweep(p, model, dataset, p["trials"] * (1 + (model in PROTOCOLS)), train.sizes)


def _components(p: Parameters) -> Iterator[Work]:
    dataset, rows = p["dataset"], p["test_rows"]
    for model in p["models"]:
        yield _training(p, model, dataset)
        yield Work("trials", p["trials"], model, dataset, rows, per="stratum")
    first = p["models"][0]
    yield Work("trials", p["anywhere"], first, dataset, rows)
    yield from _sweep(p, first, dataset, p["sweep_trials"], per="component")
    yield Work("trials", 2 * len(p["tables"]) * len(p["counts"]) * p["row_trials"], first, dataset, rows)


def _clipping(p: Parameters) -> Iterator[Work]:
    searched = 9 * p["search_trials"]  # multipliers that a search tries, about
    for dataset in p["datasets"]:
        yield _training(p, p["model_name"], dataset)
        yield Work("trials", searched, p["model_name"], dataset, p["test_rows"], p["search_ber"])
        both = (1 + len(p["bounds"]) + 4) + (1 + len(p["bounds"]))
        yield from _sweep(p, p["model_name"], dataset, p["trials"] * both)


def _protection(p: Parameters) -> Iterator[Work]:
    for dataset in p["datasets"]:
        yield _training(p, p["model_name"], dataset)
        yield from _sweep(p, p["model_name"], dataset, p["trials"] * (1 + 3 * len(p["protected"]) + 3))


def _abft(p: Parameters) -> Iterator[Work]:
    model, dataset, rows = p["model_name"], p["dataset"], p["test_rows"]
    yield _training(p, model, dataset)
    yield Work("passes", 2 * p["injections"] + p["int8_injections"], model, dataset, rows, alone=True)
    yield from _sweep(p, model, dataset, 2 * p["trials"])
    yield Work("trials", 2 * p["single_trials"], model, dataset, rows)
    timed = 2 * 3 * len(p["batches"]) * p["repeats"] * (2 * p["turns"] + 1)  # two tables, three checks
    yield Work("passes", timed, "dlrm", "synthetic-criteo/dlrm", p["timed_rows"], alone=True)


def _recovery(p: Parameters) -> Iterator[Work]:
    model, dataset = p["model_name"], p["dataset"]
    yield _training(p, model, dataset)
    yield from _sweep(p, model, dataset, p["trials"] * (1 + 20 + 4))  # none, the mitigations, four of int8 tables
    timed = 10 * p["repeats"] * (2 * p["turns"] + 1)  # of those that run with the model
    yield Work("passes", timed, model, dataset, p["batch"] * p["batches"], alone=True)


def _speed(p: Parameters) -> Iterator[Work]:
    # Six methods (three of them slow), each stopped at `limit`.
    models = len(p["sizes"]) + len(p["int8_sizes"])
    yield Work("limit", int(3 * models * p["limit"]), alone=True)


_NOTEBOOKS: dict[str, Callable[[Parameters], Iterator[Work]]] = {
    "00_models": _models,
    "00_quickstart": _quickstart,
    "01_bit_sensitivity": _bits,
    "02_model_factors": _factors,
    "03_ber_sweep": _rates,
    "04_component_vulnerability": _components,
    "05_activation_clipping": _clipping,
    "06_selective_bit_protection": _protection,
    "07_abft": _abft,
    "08_mitigation_recovery": _recovery,
    "09_injection_speed": _speed,
}
