"""What is computed otherwise than in TorchRec, or in blocks, gives the same numbers."""

import pytest
import torch

from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.models.dlrm import FlatInteractionArch
from drsrobust_extras.data.afm import BLOCK, AttentionalPooling
from drsrobust_extras.data.dcn import VectorCross


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


def both(features):
    return FlatInteractionArch(features), torchrec().models.dlrm.InteractionArch(features)


@pytest.mark.parametrize(("features", "rows"), [(1, 3), (2, 64), (26, 200)])
def test_same_numbers_forwards_and_backwards(features, rows):
    torch.manual_seed(0)
    dense, sparse = torch.randn(rows, 8), torch.randn(rows, features, 8)
    results = []
    for arch in both(features):
        inputs = dense.clone().requires_grad_(), sparse.clone().requires_grad_()
        output = arch(*inputs)
        output.backward(torch.arange(output.numel(), dtype=torch.float32).view_as(output).sin())
        results.append((output, *(tensor.grad for tensor in inputs)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("wrong", [(0, 4, 5), (1, 0, -1), (1, 2, 0), (0, 0, -7)])
def test_an_error_in_the_buffer_reads_what_torchrec_reads(wrong):
    """Another pair, or one counted from the end."""
    side, pair, value = wrong
    dense, sparse = torch.randn(5, 4), torch.randn(5, 6, 4)
    outputs = []
    for arch in both(6):
        arch.triu_indices[side, pair] = value
        outputs.append(arch(dense, sparse))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("value", [7, -8, 2**40, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("side", [0, 1])
def test_an_error_that_names_no_vector_raises_as_torchrec_does(side, value):
    for arch in both(6):
        arch.triu_indices[side, 3] = value
        with pytest.raises((IndexError, RuntimeError), match="out of (bounds|DATA bounds|range)"):
            arch(torch.randn(5, 4), torch.randn(5, 6, 4))
