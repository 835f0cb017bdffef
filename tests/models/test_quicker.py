"""What is computed in another order than in TorchRec, or in blocks, gives the same numbers."""

import pytest
import torch

from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models.afm import BLOCK, AttentionalPooling
from drsrobust.models.dcn import VectorCross


@pytest.mark.parametrize("width", [32, 429])
def test_cross_layers_are_torchrec_s(width):
    torch.manual_seed(0)
    ours, theirs = VectorCross(width, 3), torchrec().modules.crossnet.VectorCrossNet(width, 3)
    for bias in ours.bias:
        torch.nn.init.normal_(bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(256, width)
    expected = theirs(x)
    assert torch.equal(ours(x), expected)
    ours(x).square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4 * float(other.grad.abs().max()))


@pytest.mark.parametrize(("fields", "blocks"), [(2, 1), (10, 1), (39, 16)])
def test_attention_goes_through_rows_in_blocks_that_fit(fields, blocks):
    torch.manual_seed(0)
    pooling, calls = AttentionalPooling(8, 4, 0.0), []
    pooling.hidden.register_forward_hook(lambda module, given, _: calls.append(given[0].shape[:2]))
    vectors = torch.randn(16 * BLOCK, fields, 8)
    with torch.no_grad():
        whole = pooling(vectors)
        assert len(calls) == blocks and sum(rows for rows, _ in calls) == len(vectors)
        apart = torch.cat([pooling(block) for block in vectors.split(BLOCK)])
    assert torch.equal(whole, apart)
