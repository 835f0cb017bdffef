"""Settings of training, checked when they are made."""

from dataclasses import dataclass

from drsrobust._arguments import check_number, check_seed, check_whole
from drsrobust._choices import check_choice

TABLE_OPTIMIZERS = ("adam", "rowwise_adagrad", "adagrad", "sgd")
PRECISIONS = ("float32", "bfloat16")
_LEAST = {"batch_size": 2, "epochs": 1, "patience": 1}


@dataclass(frozen=True)
class Settings:
    """Settings of training. The defaults are those of arXiv:2307.10244: Adam with dense gradients for all parameters.

    Attributes:
        learning_rate: of Adam.
        weight_decay: L2, added to the gradient.
        table_weight_decay: of embedding tables; None: `weight_decay` with Adam, 0 with FBGEMM's optimizers.
        batch_size: rows per step.
        epochs: maximal number of epochs.
        patience: epochs without a better validation AUC before training ends, except after an epoch of the lowest validation
            loss so far.
        seed: of the initial weights, the order of rows and dropout.
        table_optimizer: `adam`, or an optimizer that FBGEMM fuses into the backward pass of the embedding tables:
            `rowwise_adagrad`, `adagrad`, `sgd`. These update only the rows that a batch reads, which is faster for large
            tables, and have no weight decay (FBGEMM's CPU kernels ignore it). Adam updates all other parameters.
        table_learning_rate: of `table_optimizer`; None: `learning_rate`.
        precision: `float32`, or `bfloat16` for matrix products (weights, tables and optimizer stay float32): twice as fast on
            processors that support it (AVX512-BF16, AMX, GPUs), far slower on others.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    table_weight_decay: float | None = None
    batch_size: int = 4096
    epochs: int = 100
    patience: int = 3
    seed: int = 0
    table_optimizer: str = "adam"
    table_learning_rate: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_choice("table_optimizer", self.table_optimizer, TABLE_OPTIMIZERS)
        check_choice("precision", self.precision, PRECISIONS)
        checked = {"seed": check_seed(self.seed)}
        checked |= {name: check_whole(name, getattr(self, name), low) for name, low in _LEAST.items()}
        for name in ("learning_rate", "table_learning_rate", "weight_decay", "table_weight_decay"):
            if (value := getattr(self, name)) is not None or name in ("learning_rate", "weight_decay"):
                right, holds = ("over 0", _is_positive) if name.endswith("rate") else ("at least 0", _is_not_negative)
                checked[name] = check_number(name, value, right, holds)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        fused = self.table_optimizer != "adam"
        if self.table_weight_decay is None:
            object.__setattr__(self, "table_weight_decay", 0.0 if fused else self.weight_decay)
        if fused and self.table_weight_decay:
            raise ValueError(
                f"table_weight_decay must be 0 with table_optimizer={self.table_optimizer!r}, since FBGEMM's optimizers have "
                f"no weight decay, got {self.table_weight_decay}"
            )


def _is_positive(value: float) -> bool:
    return value > 0


def _is_not_negative(value: float) -> bool:
    return value >= 0
