"""Rows that are never in one place: blocks, which a function makes again at each pass."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from drsrobust._hashing import digest
from drsrobust.data.batch_parts import batch_digest
from drsrobust.data.dataset import Dataset, Ids, Split


class StreamError(ValueError):
    """Blocks of a stream that cannot be made or used, or that are not those of its first pass."""


class Stream:
    """Blocks of rows with one label each, made again at each pass (`stream`).

    Attributes:
        sizes: rows of each block, int64.
        clicks: the number of clicks.
        prior: click rate of the training rows, where all blocks have the same; else that of the rows here.
        dataset: name, in tables and figures: that of the first block.
        tasks: none.
        fingerprint: SHA-256 (hex) of all blocks, their order and `prior`.
    """

    tasks: tuple[str, ...] = ()

    def __init__(self, make_blocks: Callable[[], Iterable[Split | Dataset]]) -> None:
        if not callable(make_blocks):
            raise TypeError(
                f"make_blocks is a {type(make_blocks).__name__}; it must be a function without arguments that gives the blocks, "
                "from the first one, at each call"
            )
        self._make = make_blocks
        self._digests: list[str] = []
        sizes, priors, self.clicks, self.dataset = [], set(), 0, ""
        first: dict[str, object] = {}
        for number, made in enumerate(self._made()):
            block = made.test if isinstance(made, Dataset) else made
            schema = _schema(made, block, number)
            first = first or schema
            for what, value in schema.items():
                if value != first[what]:
                    raise StreamError(f"block {number} has {what} {value}, and block 0 {first[what]}")
            self.dataset = self.dataset or block.dataset
            self._digests.append(_digest(block))
            sizes.append(len(block))
            priors.add(block.prior)
            self.clicks += int(np.count_nonzero(block.labels))
        self.sizes = np.array(sizes, np.int64)
        if self.clicks in (0, len(self)):
            raise StreamError(
                f"the stream has {self.clicks} clicks in {len(self)} rows; AUC needs rows of both classes"
            )
        self.prior = priors.pop() if len(priors) == 1 else self.clicks / len(self)
        self.fingerprint = digest(["stream", self._digests, self.prior])

    def blocks(self) -> Iterator[Split]:
        """The blocks of another pass.

        Raises:
            StreamError: they are not those of the first pass, or `make_blocks` raises.
        """
        number = 0
        for made in self._made():
            block = made.test if isinstance(made, Dataset) else made
            if number == len(self._digests) or _digest(block) != self._digests[number]:
                raise StreamError(
                    f"block {number} is another one than in the first pass; make_blocks must repeat itself"
                )
            number += 1
            yield block
        if number < len(self._digests):
            raise StreamError(
                f"this pass has {number} blocks, and the first pass {len(self._digests)}; make_blocks must repeat itself"
            )

    def _made(self) -> Iterator[Split | Dataset]:
        number = 0
        try:
            for made in self._make():
                yield made
                number += 1
        except Exception as error:
            raise StreamError(f"make_blocks fails at block {number}: {type(error).__name__}: {error}") from error

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def __repr__(self) -> str:
        return f"<Stream {self.dataset}: {len(self):,} rows in {len(self.sizes)} blocks>"


def stream(make_blocks: Callable[[], Iterable[Split | Dataset]]) -> Stream:
    """Rows for an evaluator that are never in one place: `run` makes the blocks again at each call, and one is in memory at a
    time. The first pass, over all blocks, is here.

    Args:
        make_blocks: function without arguments -> an iterable of Splits, or of Datasets as of `from_frame`, of which the test
            rows count. Each call must give the same blocks in the same order.

    Raises:
        TypeError: no function.
        StreamError: it raises, or gives no block, a block without rows, one of another schema (dense columns, sparse features,
            sizes of tables where blocks are Datasets), labels other than one of 0 and 1 per row, or rows of one class alone.
    """
    return Stream(make_blocks)


def _schema(made: Split | Dataset, block: Split, number: int) -> dict[str, object]:
    """What all blocks must have alike, by name."""
    if not isinstance(block, Split):
        raise StreamError(f"block {number} is a {type(made).__name__}; it must be a Split or a Dataset")
    if not len(block):
        raise StreamError(f"block {number} has no rows")
    if isinstance(block.labels, Ids) or block.labels.ndim != 1:
        kind = "items" if isinstance(block.labels, Ids) else f"the tasks {', '.join(block.tasks)}"
        raise StreamError(f"block {number} has labels of {kind}; a stream takes one label of 0 and 1 per row")
    schema = made.schema if isinstance(made, Dataset) else None
    return {
        "dense columns": block.dense.shape[1] if schema is None else list(schema.dense),
        "sparse features": [
            f"{name} (lists)" if ids.lengths is not None else name for name, ids in block.sparse.items()
        ],
        "table sizes": None if schema is None else [feature.cardinality for feature in schema.features],
    }


def _digest(block: Split) -> str:
    """SHA-256 (hex) of what a model sees of a block, and of its labels."""
    sparse = {name: [None if part is None else np.asarray(part) for part in ids] for name, ids in block.sparse.items()}
    return batch_digest([np.asarray(block.dense), sparse, np.asarray(block.labels)])
