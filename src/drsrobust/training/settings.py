"""How to train: one frozen record, checked when it is made."""

from dataclasses import dataclass, fields
from operator import index

from drsrobust._environment import unknown

TABLE_OPTIMIZERS = ("adam", "rowwise_adagrad", "adagrad", "sgd")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """How to train. The defaults are those of arXiv:2307.10244: Adam for all parameters, as dense gradients.

    Attributes:
        learning_rate: of Adam.
        weight_decay: L2, added to the gradient.
        table_weight_decay: the same for embedding tables; None: `weight_decay` with Adam, 0 with what FBGEMM fuses.
        batch_size: rows per step.
        epochs: at most.
        patience: epochs without a better validation AUC before training stops (1: at the first). It does not stop after an
            epoch of the lowest validation loss so far.
        seed: of the first weights, the order of rows and dropout.
        table_optimizer: `adam`, or what FBGEMM fuses into the backward pass of the embedding tables: `rowwise_adagrad`,
            `adagrad`, `sgd`. Those touch only the rows that a batch reads, which is faster for large tables; they know no
            weight decay (FBGEMM's kernels for CPUs pass over it in silence). All other parameters are Adam's.
        table_learning_rate: of `table_optimizer`; None: `learning_rate`.
        precision: `float32`, or `bfloat16` for the matrix products of the forward and backward pass (weights, tables and
            optimizer stay float32): twice as fast where the processor has such products (AVX512-BF16, AMX, GPUs), far slower
            elsewhere.
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
        plain = {
            int: index,
            float: float,
            float | None: lambda value: None if value is None else float(value),
            str: str,
        }
        for field in fields(self):
            object.__setattr__(self, field.name, plain[field.type](getattr(self, field.name)))
        if self.table_optimizer not in TABLE_OPTIMIZERS:
            raise unknown("table_optimizer", self.table_optimizer, TABLE_OPTIMIZERS)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        fused = self.table_optimizer != "adam"
        if self.table_weight_decay is None:
            object.__setattr__(self, "table_weight_decay", 0.0 if fused else self.weight_decay)
        if fused and self.table_weight_decay:
            raise ValueError(
                f"table_weight_decay is {self.table_weight_decay}, but {self.table_optimizer} as FBGEMM fuses it knows no "
                "weight decay; pass table_weight_decay=0, or table_optimizer='adam'"
            )
        least = {"batch_size": 2, "epochs": 1, "patience": 1, "seed": 0, "weight_decay": 0, "table_weight_decay": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        for name in ("learning_rate", "table_learning_rate"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be over 0")
