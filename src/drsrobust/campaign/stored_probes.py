"""What probes found, kept with a campaign's store: of the model's tensors, and of targets whose trials show nothing.

At low rates no stored trial of a condition may have reached a row, and then no repeated trial can show other code. So results
with errors that must reach rows are kept, for each target and protection of such conditions, and computed again."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pyarrow.compute as pc

from drsrobust._files import new_file
from drsrobust._provenance import machine, versions
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.store import Store, StoreError
from drsrobust.evaluation.tensor_probes import Probes
from drsrobust.injection import AddressSpace

FILE = "probes.json"
TOLERANCE = 1e-6  # of AUC and log loss

ProbeTarget = Callable[[int], Any]  # the results of a condition's target under its mitigation, by its number


class StoredProbes:
    """The probes of one store, which is held for writing.

    Args:
        store: of a campaign.
        conditions: of the campaign.

    Attributes:
        tensors: of the evaluator without protection; None if there are none of this processor and these versions.
    """

    def __init__(self, store: Store, conditions: Sequence[Condition]) -> None:
        self._store, self._conditions, self._file = store, conditions, store.folder / FILE
        # Rounding differs elsewhere, and other versions may compute otherwise.
        self._of = {"store": store.identity, "versions": versions(), "processor": machine()["processor"]}
        self.tensors: Probes | None = None
        self._targets: dict[str, Any] = {}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # what cannot be read is made again
            content = json.loads(self._file.read_text())
            if content["of"] == self._of:
                lists = {name: tuple(part) for name, part in content["tensors"].items() if name != "full_run"}
                self.tensors, self._targets = Probes(content["tensors"]["full_run"], **lists), dict(content["targets"])

    def keep(self, tensors: Probes, probe_target: ProbeTarget) -> None:
        """Writes the probes: of the tensors, and those of targets that are new."""
        new = {key: probe_target(number) for key, number in self._silent().items() if key not in self._targets}
        if tensors == self.tensors and not new:
            return
        self.tensors, self._targets = tensors, self._targets | new
        content = {"of": self._of, "tensors": asdict(tensors), "targets": self._targets}
        with suppress(OSError), new_file(self._file) as part:  # without them a later run makes them again
            part.write_text(json.dumps(content, indent=1))

    def check(self, probe_target: ProbeTarget) -> None:
        """Computes the kept results of targets again.

        Raises:
            StoreError: they are others now.
        """
        for key, number in self._silent().items():
            if key in self._targets and not _close(kept := self._targets[key], now := probe_target(number)):
                raise StoreError(
                    f"{self._store.folder} holds results of other code or data than those of now: a probe of {key} gave "
                    f"{kept}, and gives {now}. Delete the folder to compute all trials again, or pass another store="
                )

    def _silent(self) -> dict[str, int]:
        """Targets and protections of conditions of which no stored trial reached a row, each with the first one's number."""
        table = self._store.read(["condition", "rows_reached"])
        reached = set(table.filter(pc.field("rows_reached") > 0)["condition"].unique().to_pylist())
        numbers: dict[str, int] = {}
        for number in sorted(set(table["condition"].unique().to_pylist()) - reached):
            condition = self._conditions[number]
            if isinstance(condition.space, AddressSpace):  # errors while the model runs reach all rows
                numbers.setdefault(f"{condition.target} under {condition.protection} ({condition.identity})", number)
        return numbers

    def unread_targets(self, unread: Sequence[str]) -> str:
        """A sentence on the targeted tensors among those that no batch reads; empty without any."""
        spaces = [condition.space for condition in self._conditions if isinstance(condition.space, AddressSpace)]
        names = sorted({tensor.name for space in spaces for tensor in space.tensors} & set(unread))
        if not names:
            return ""
        pronoun = "it" if len(names) == 1 else "them"
        return (
            f"no batch reads {', '.join(names)}, and no score depends on {pronoun}, so errors there do nothing: used in "
            f"training alone, or does the model keep what it computed from {pronoun} before?"
        )


def _close(kept: Any, now: Any) -> bool:
    if isinstance(kept, list) and isinstance(now, list):
        return len(kept) == len(now) and all(map(_close, kept, now))
    if isinstance(kept, float) and isinstance(now, float):
        return abs(kept - now) <= TOLERANCE or (kept != kept and now != now)
    return kept == now
