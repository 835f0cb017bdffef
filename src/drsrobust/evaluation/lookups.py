"""Which features a model's tables are read with, seen while it scores the split."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from drsrobust.evaluation.intercept import Forward, intercepted
from drsrobust.tensors import listed, named_modules


class Lookups:
    """Watches the look-ups of a model while it scores all batches of a split.

    A table counts as read with a feature when its module was given exactly that feature's ids, in every batch: a model may
    hash, shuffle or leave out ids, and then nobody can tell which samples a row reaches.

    Args:
        model: any module; looked at are TorchRec's collections, `nn.EmbeddingBag` and `nn.Embedding`.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = dict(named_modules(model))
        everything = listed(model)
        self.tables: dict[str, list[str]] = {}  # tensor name -> the modules that look up in it
        self._modules: dict[str, nn.Module] = {}
        self._configs: dict[str, dict[str, tuple[str, ...]]] = {}  # collection -> table's tensor -> features
        for name, module in modules.items():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                for one in everything:
                    if one.tensor is module.weight:
                        self.tables.setdefault(one.name, []).append(name)
                        self._modules[name] = module
        for name, module in modules.items():
            found = {}
            for config in _configs(module):
                tensor = _quantized_table(name, config.name)
                if any(one.name == tensor and one.table for one in everything):
                    found[tensor] = tuple(config.feature_names)
                    self.tables.setdefault(tensor, []).append(name)
            if found:
                self._modules[name], self._configs[name] = module, found
        self._found: dict[tuple[str, int], set[str]] = {}  # (module, number of its call in a batch) -> features
        self._wrong: set[str] = set()
        self._calls: dict[str, int] = {}
        self._batch: Any = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, look-ups are noted."""
        with intercepted(self._modules, self._around):
            yield

    def begin(self, batch: Any) -> None:
        """The next batch is scored."""
        jagged = batch.sparse_features
        keys, values, bounds = jagged.keys(), jagged.values(), jagged.offset_per_key()
        lengths = jagged.lengths().view(len(keys), -1)
        self._batch = {
            key: (values[start:end], length)
            for key, start, end, length in zip(keys, bounds[:-1], bounds[1:], lengths, strict=True)
        }
        self._calls = {}

    def features(self, table: str) -> list[str] | None:
        """The features that a table is read with; None where that is not known."""
        found: list[str] = []
        for name in self.tables.get(table, ()):
            if name in self._wrong:
                return None
            if name in self._configs:
                found += self._configs[name][table]
                continue
            calls = [features for (module, _), features in self._found.items() if module == name]
            if not all(calls):
                return None
            found += [min(features) for features in calls]
        return list(dict.fromkeys(found)) if table in self.tables else None

    def _around(self, name: str, forward: Forward) -> Forward:
        def observed(*args, **kwargs):
            if name in self._configs:
                self._note_collection(name, (*args, *kwargs.values()))
            else:
                given = args[0] if args else kwargs.get("input")
                offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
                self._note(name, given, offsets)
            return forward(*args, **kwargs)

        return observed

    def _note_collection(self, name: str, given: tuple) -> None:
        jagged = next((one for one in given if type(one).__name__ == "KeyedJaggedTensor"), None)
        for feature in {feature for features in self._configs[name].values() for feature in features}:
            if jagged is None or feature not in set(jagged.keys()) or feature not in self._batch:
                self._wrong.add(name)
                return
            values, lengths = self._batch[feature]
            if not (_same(jagged[feature].values(), values) and _same(jagged[feature].lengths(), lengths)):
                self._wrong.add(name)

    def _note(self, name: str, ids: Any, offsets: Any) -> None:
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        candidates = self._found.get((name, call))
        if not isinstance(ids, torch.Tensor):
            self._found[name, call] = set()
            return
        flat = ids.reshape(-1)
        possible = self._batch if candidates is None else candidates
        matching = set()
        for feature in possible:
            values, lengths = self._batch[feature]
            # Without offsets each row of a matrix of ids is a bag: this feature's only if it has one id in each.
            bags = _bags(offsets, len(flat), lengths) if offsets is not None else len(values) == len(lengths)
            if (bags or isinstance(self._modules[name], nn.Embedding)) and _same(flat, values):
                matching.add(feature)
        self._found[name, call] = matching


def _bags(offsets: torch.Tensor, n: int, lengths: torch.Tensor) -> bool:
    """Whether offsets [B] or [B + 1] cut n ids into bags of these lengths [B]."""
    ends = torch.cat((offsets.reshape(-1)[: len(lengths)].long(), torch.tensor([n], device=offsets.device)))
    return len(offsets.reshape(-1)) >= len(lengths) and _same(ends.diff(), lengths)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one == other.to(one.device)).all())


def _configs(module: nn.Module) -> tuple:
    """The tables' configurations of one of TorchRec's collections."""
    for method in ("embedding_bag_configs", "embedding_configs"):
        configs = getattr(module, method, None)
        if callable(configs):
            return tuple(configs())
    return ()


def _quantized_table(collection: str, table: str) -> str:
    return ".".join(filter(None, (collection, "embedding_bags", table, "weight")))
