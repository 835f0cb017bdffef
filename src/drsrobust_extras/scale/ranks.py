"""The ranks of a process group, which make the same calls in the same order; each call here is one of all ranks."""

import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch

LONG = timedelta(minutes=10)


class RankFailedError(RuntimeError):
    """A rank could not go on; the message names the rank, what it computed and why."""


class Ranks:
    """The ranks of the default process group.

    Attributes:
        rank: of this process.
        world: how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def warn_of_timeout(self) -> None:
        """Warns of a group whose timeout is `LONG` or more, for which the other ranks wait if one hangs."""
        if self.world > 1 and (timeout := _timeout()) >= LONG:
            warnings.warn(
                f"the process group's timeout is {timeout.total_seconds() / 60:g} minutes, for which all ranks wait if one "
                "hangs; pass init_process_group a shorter one, as timeout=timedelta(seconds=60)",
                stacklevel=4,
            )

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which measures and stores."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        box = [value if self.is_first else None]
        torch.distributed.broadcast_object_list(box)
        return box[0]

    def from_first(self, function: Callable[[], Any]) -> Any:
        """What a function returns on rank 0, on every rank; or raises there: every rank raises the same."""
        value = error = None
        if self.is_first:
            try:
                value = function()
            except Exception as raised:
                error = raised
        value, error = self.broadcast((value, error))
        if error is not None:
            raise error
        return value

    def gather(self, values: torch.Tensor, sizes: list[int]) -> list[torch.Tensor] | None:
        """The values [sizes[rank], ...] of all ranks on rank 0; None on the others."""
        longest = max(sizes)
        padded = values.new_zeros((longest, *values.shape[1:]))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(self.world)] if self.is_first else None
        torch.distributed.gather(padded, parts)
        return parts and [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' integers, modulo 2**64: int64."""
        total = values.to(torch.int64)
        torch.distributed.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        return bool(self.sum(torch.tensor([int(flag)])))

    def check_same(self, what: str, parts: Mapping[str, Any]) -> None:
        """Refuses ranks that differ.

        Args:
            what: that they have, for the message.
            parts: text of each part by its name.

        Raises:
            ValueError: a part differs; on every rank.
        """
        of_ranks: list[dict[str, Any] | None] = [None] * self.world
        torch.distributed.all_gather_object(of_ranks, {name: str(part) for name, part in parts.items()})
        for rank, other in enumerate(of_ranks):
            names = {**of_ranks[0], **other}
            if differing := [name for name in names if of_ranks[0].get(name) != other.get(name)]:
                raise ValueError(f"ranks 0 and {rank} have different {what}: they differ in {', '.join(differing)}")


def _timeout() -> timedelta:
    """After which a collective of the default group fails."""
    group = torch.distributed.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")).options._timeout
