"""Zero-space ECC: blocks of 8 bytes that hold their own check bits, of int8 tensors and of FBGEMM's int8 rows."""

import numpy as np
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust.mitigation.memory.ecc import SECDED
from drsrobust_extras.protection.zero_space import ZeroSpaceECC, reserve_bits
from tests.extras.protection.decoding import decoded
from tests.injection.spaces import filled, holder
from tests.injection.test_quantized import ids, quantized, table
from tests.mitigation.plain import map_of, random_masks, screened
from tests.refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao.quantization")


def int8_model(size=37):
    """A prepared int8 tensor whose last 5 bytes fill no block."""
    model = holder(t=filled("int8", (size,), 1))
    reserve_bits(model, "everything")
    return model


def by_hand(held, masks, free, action, zero):
    """The bytes of a block in memory (with check bits) after flips, decoded and read back; the free bit of the first 7 repeats
    (0) or opposes (1) the highest one, and the byte `zero` means 0."""

    def folded(block):
        data = [(byte & 0x3F) | (byte >> 7) << 6 for byte in block[:7]] + [block[7]]
        return np.array([sum(part << 7 * place for place, part in enumerate(data))], np.uint64)

    code = SECDED(57)
    check = int(code.encode(folded(held))[0])
    stored = [(byte & 0xBF) | (check >> place & 1) << 6 for place, byte in enumerate(held[:7])] + [held[7]]
    stored = [byte ^ mask for byte, mask in zip(stored, masks, strict=True)]
    check = sum((byte >> 6 & 1) << place for place, byte in enumerate(stored[:7]))
    found = code.decode(folded(stored), np.array([check]))
    if found.status[0] == 2 and action != "keep":
        return held if action == "restore" else [zero] * 8
    word = int(found.words[0])
    read = [word >> 7 * place & 0x7F for place in range(7)]
    return [(part & 0x3F) | (part >> 6) << 7 | ((part >> 6) ^ free) << 6 for part in read] + [word >> 49]


@pytest.mark.parametrize("action", ["keep", "zero", "restore"])
def test_block_by_block(action):
    model = int8_model()
    held = model.t.view(torch.uint8).tolist()
    mitigation = ZeroSpaceECC(action, "everything")
    for seed in range(20):
        masks = random_masks(37, 8, 1 + seed // 3, seed)
        left, _ = decoded(mitigation, model, masks)
        for block in range(4):
            here = range(8 * block, 8 * block + 8)
            hit = [masks.get(place, 0) for place in here]
            after = by_hand([held[place] for place in here], hit, 0, action, 0)
            assert [held[place] ^ left.get(place, 0) for place in here] == after
        for place in range(32, 37):  # no block: not protected
            assert left.get(place, 0) == masks.get(place, 0)


def test_every_single_error_of_a_block_is_corrected():
    model = int8_model(8)
    mitigation = ZeroSpaceECC(target="everything")
    assert mitigation.cost(model).stored_bits == 0
    for place in range(64):
        report = screened(mitigation, map_of(model, {place // 8: 1 << place % 8}), model, 1)
        assert len(report.remaining) == 0 and report.counts["corrected"] == 1
        assert (report.detected, report.repaired) == (True, True)


@pytest.mark.parametrize("action", ["keep", "zero"])
@pytest.mark.parametrize("how", ["clip", "rescale"])
def test_fbgemms_rows(how, action):
    model = quantized(torch.int8)
    reserve_bits(model, "embedding", how=how)
    drawn = dr.BitFlip(0.02).sample(dr.resolve(model, "embedding"), seed=1)
    mitigation = ZeroSpaceECC(action, "embedding")
    left = screened(mitigation, drawn, model, 1).remaining
    assert left.restrict(("scale", "bias")).bits == drawn.restrict(("scale", "bias")).bits  # not covered
    bytes_of = table(model).numpy()
    held, width = bytes_of.reshape(-1), bytes_of.shape[1]
    found = left.frame().query("tensor.str.contains('t0')").set_index("word")["mask"].to_dict()
    hit = drawn.frame().query("tensor.str.contains('t0')").set_index("word")["mask"].to_dict()
    for row in range(50):
        for first in (4, 12):
            here = [row * width + first + place for place in range(8)]
            masks = [hit.get(place, 0) for place in here]
            after = by_hand([int(held[place]) for place in here], masks, 1, action, 128)
            assert [int(held[place]) ^ found.get(place, 0) for place in here] == after


def test_clipping_int8():
    values = torch.tensor([-128, -65, -64, 0, 63, 64, 127, 127, 5, 6, 7, 8, 9, 10, 99, -128, 100], dtype=torch.int8)
    model = holder(t=values.clone())
    report = reserve_bits(model, "t")["t"]
    assert model.t.tolist() == [-64, -64, -64, 0, 63, 63, 63, 127, 5, 6, 7, 8, 9, 10, 63, -128, 100]
    assert report == (5, 17, 64.0)
    assert reserve_bits(model, "t")["t"].changed == 0


def test_clipping_rows():
    model = quantized(torch.int8)
    before = table(model).clone()
    report = reserve_bits(model, "embedding")
    after = table(model)
    assert torch.equal(before[:, :4], after[:, :4]) and torch.equal(before[:, 20:], after[:, 20:])
    codes = [slot for slot in range(16) if slot % 8 != 7]
    assert torch.equal(after[:, 4:20][:, codes], before[:, 4:20][:, codes].clamp(64, 191))
    assert torch.equal(after[:, [11, 19]], before[:, [11, 19]])
    changed = int((before != after).sum())
    found = report["tables.embedding_bags.t0.weight"]
    assert found.changed == changed > 0 and found.values == 800 and found.largest > 0


def test_rescaling_rows_changes_no_value_by_more_than_half_a_step():
    model = quantized(torch.int8)

    def values(part=0):
        lookup = model.tables._emb_modules[0]
        codes, scale, bias = lookup.split_embedding_weights_with_scale_bias(split_scale_bias_mode=2)[part]
        return codes.double() * scale.double() + bias.double(), scale.double().flatten()

    before, step = values()
    before, step = before.clone(), step.clone()
    report = reserve_bits(model, "embedding", how="rescale")["tables.embedding_bags.t0.weight"]
    after, twice = values()
    assert torch.allclose(twice, 2 * step)
    change = (after - before).abs()
    assert (change <= 0.75 * step[:, None]).all() and report.largest == pytest.approx(change.max().item(), rel=1e-9)
    assert ((table(model)[:, 4:20] >= 64) & (table(model)[:, 4:20] <= 191)).all()
    with torch.no_grad():  # FBGEMM reads them so
        assert torch.allclose(model.tables(ids(7, 9)).values()[0, :16].double(), after[7], atol=1e-3)


def test_a_model_without_room_is_refused_before_any_trial(tmp_path):
    """Also where the error maps hit other blocks than the first one without room."""
    model = nn.Linear(1, 1)
    model.register_buffer("table", torch.zeros(64 * 8, dtype=torch.int8))
    model.table[63 * 8] = 100  # in the last block alone
    rows = dr.data.from_batches([(torch.linspace(-1, 1, 64)[:, None], torch.arange(64) % 2)])
    evaluator = dr.Evaluator(model, rows, forward=lambda model, batch: model(batch[0])[:, 0], output="logit")
    ecc, grid = ZeroSpaceECC(target="everything"), {"errors": dr.FixedCount(1), "targets": ["everything"], "trials": 1}
    for protection in (ecc, dr.NaNGuard(prior=0.5) + ecc):
        options = grid | {"mitigations": [None, protection], "store": tmp_path / "s"}
        refuses(lambda options=options: dr.Campaign(evaluator, **options), ValueError, "block 63", "[-64, 63]")
    assert not (tmp_path / "s").exists()
