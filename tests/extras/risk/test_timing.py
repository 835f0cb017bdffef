"""CPU time and memory of calls. Nothing here depends on how fast this machine is."""

import numpy as np
import pytest

from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.risk.timing import overhead, peak, resident


def test_overhead_of_the_model_and_of_the_operators(data, trained):
    batches, checksums = list(data.train.batches(512))[:4], ABFTLinear.fit(trained)
    model = overhead(trained, batches, checksums, turns=3)
    layers = overhead(trained, batches, checksums, modules=checksums.covered, turns=3)
    assert (model["scope"], layers["scope"], model["batch"]) == ("model", "operator", 512)
    assert 0 < layers["plain_ms"] < model["plain_ms"] and layers["overhead_percent"] > 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trained.modules())


@pytest.mark.parametrize("block", [1 << 14, 1 << 26])
def test_memory_is_seen_although_it_was_used_and_freed_before(block):
    """Small blocks come from freed ones of the heap, large ones from the system: both count."""

    def take():
        return [np.ones(block, np.uint8) for _ in range((1 << 26) // block)]

    for _ in range(2):
        before = resident()
        blocks, high = peak(take)
        del blocks
        assert 62 < (high - before) / 1024 < 72
