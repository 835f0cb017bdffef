"""Rows that are never in one place: blocks, which a function makes again at each pass."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from drsrobust.data import Dataset, Ids, Split
from drsrobust.evaluation import Asked, OtherRows, Passes
from drsrobust.extend import check_function, digest
from drsrobust_extras.data.batch_parts import batch_digest
from drsrobust_extras.data.stream_passes import StreamError, StreamPasses


class StreamedRows(OtherRows):
    """Blocks of rows with one label each, made again at each pass (`stream`).

    Attributes:
        sizes: rows of each block.
        clicks: number of rows with a click.
        prior: click rate of the training rows, where all blocks have the same; else that of the rows here.
        dataset: name, in tables and figures: that of the first block.
        fingerprint: SHA-256 (hex) of the blocks in their order, and of `prior`.
    """

    here_alone = "the rows are a stream"

    def __init__(self, make_blocks: Callable[[], Iterable[Split | Dataset]]) -> None:
        check_function("make_blocks", make_blocks, "a function without arguments that gives the blocks")
        self._make, self._digests, self.sizes, self.clicks = make_blocks, [], [], 0
        priors, first = set(), {}
        for number, (schema, block) in enumerate(self._made()):
            first = first or schema
            if differing := [what for what, value in schema.items() if value != first[what]]:
                what = differing[0]
                raise StreamError(f"block {number} has {what} {schema[what]}, and block 0 {first[what]}")
            self.dataset = block.dataset if not number else self.dataset
            self._digests.append(_digest(block))
            self.sizes.append(len(block))
            self.clicks += int(np.count_nonzero(block.labels))
            priors.add(block.prior)
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
        number = -1
        for number, (_, block) in enumerate(self._made()):
            if self._digests[number : number + 1] != [_digest(block)]:
                raise StreamError(
                    f"block {number} is another one than in the first pass; make_blocks must repeat itself"
                )
            yield block
        if number + 1 < len(self._digests):
            raise StreamError(
                f"this pass has {number + 1} blocks, and the first one {len(self._digests)}; make_blocks must repeat itself"
            )

    def _made(self) -> Iterator[tuple[dict[str, Any], Split]]:
        """What all blocks must have alike, by name, and each block."""
        number = 0
        try:
            for made in self._make():
                block, schema = (made.test, made.schema) if isinstance(made, Dataset) else (made, None)
                if not isinstance(block, Split) or not len(block):
                    what = (
                        "has no rows"
                        if isinstance(block, Split)
                        else f"is a {type(block).__name__}, not a Split or Dataset"
                    )
                    raise StreamError(f"block {number} {what}")
                if isinstance(block.labels, Ids) or block.labels.ndim != 1:
                    kind = ", ".join(block.tasks) or "items"
                    raise StreamError(
                        f"block {number} has labels of {kind}; a stream takes one label of 0 and 1 per row"
                    )
                lists = [name for name, ids in block.sparse.items() if ids.lengths is not None]
                yield (
                    {
                        "dense columns": list(schema.dense) if schema else block.dense.shape[1],
                        "sparse features": list(block.sparse),
                        "lists of ids in": lists,
                        "table sizes": [feature.cardinality for feature in schema.features] if schema else None,
                    },
                    block,
                )
                number += 1
        except StreamError:
            raise
        except Exception as error:
            raise StreamError(f"make_blocks fails at block {number}: {type(error).__name__}: {error}") from error

    def of_task(self, task: str) -> "StreamedRows":
        """As of `OtherRows`."""
        if task != "click":
            raise ValueError(f"the labels of a stream are those of task='click', and this is task={task!r}")
        return self

    def passes(self, asked: Asked) -> Passes:
        """As of `OtherRows`."""
        return StreamPasses(asked.model, self, asked.scoring, asked.options["scores"])

    def __len__(self) -> int:
        return sum(self.sizes)

    def __repr__(self) -> str:
        return f"<StreamedRows {self.dataset}: {len(self):,} rows in {len(self.sizes)} blocks>"


def stream(make_blocks: Callable[[], Iterable[Split | Dataset]]) -> StreamedRows:
    """Rows for an evaluator that are never in one place: each `run` makes the blocks again, and one is in memory at a time. The
    first pass, over all blocks, is here.

    Args:
        make_blocks: function without arguments -> an iterable of Splits, or of Datasets as of `from_frame`, of which the test
            rows count. Each call must give the same blocks in the same order.

    Raises:
        StreamError: it raises, or gives no block, a block without rows, one of another schema (dense columns, sparse features,
            sizes of tables where blocks are Datasets), labels other than one of 0 and 1 per row, or rows of one class alone.
    """
    return StreamedRows(make_blocks)


def _digest(block: Split) -> str:
    """SHA-256 (hex) of what a model sees of a block, and of its labels."""
    sparse = {name: [None if part is None else np.asarray(part) for part in ids] for name, ids in block.sparse.items()}
    return batch_digest([np.asarray(block.dense), sparse, np.asarray(block.labels)])
