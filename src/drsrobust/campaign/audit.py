"""What was flipped, counted by component, tensor and number of the bit."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from drsrobust.campaign.schema import BIT_COUNT
from drsrobust.injection import ErrorMap

_BLOCK = 1 << 16  # words counted at a time: what they are widened to stays in the processor's cache
_BITS_OF_BYTE = (np.arange(256)[:, None] >> np.arange(8)) & 1  # [256, 8]


def errors_by_bit(error_map: ErrorMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many bits of each number are flipped in each tensor at rest. (What transient errors hit is in the map's log.)

    Returns:
        tensor: int64 [n], index into `error_map.targets`, ascending.
        bit: uint8 [n], 0 the lowest of its word, ascending within a tensor.
        count: int64 [n], at least 1.
    """
    hit = [(number, count_bits(error_map.mask[here])) for number, here in error_map.by_tensor()]
    counts = np.array([count for _, count in hit], np.int64).reshape(-1, 64)
    row, bit = np.nonzero(counts)
    numbers = np.array([number for number, _ in hit], np.int64)
    return numbers[row], bit.astype(np.uint8), counts[row, bit]


def count_bits(masks: np.ndarray) -> np.ndarray:
    """How many of masks uint64 [n] have each bit: int64 [64].

    By a histogram of each byte, for the bytes that are not 0 everywhere.
    """
    counts = np.zeros((8, 8), np.int64)
    if not len(masks):
        return counts.reshape(64)
    octets = np.ascontiguousarray(masks, "<u8").view(np.uint8).reshape(-1, 8)
    used = np.flatnonzero(np.bitwise_or.reduce(masks).astype("<u8").reshape(1).view(np.uint8))
    for start in range(0, len(octets), _BLOCK):
        for number in used:
            histogram = np.bincount(octets[start : start + _BLOCK, number], minlength=256)
            counts[number] += histogram @ _BITS_OF_BYTE
    return counts.reshape(64)


def audit(error_map: ErrorMap) -> pa.StructArray:
    """The entries of a trial's column `errors` (BIT_COUNT): tensors at rest in the map's order, then the places that
    transient errors hit (as component and as tensor), in the order in which they were hit first; bits ascending.

    Bits of quantized rows are those of their bytes. Transient errors must have been, when this is called.
    """
    tensor, bit, count = errors_by_bit(error_map)
    components = np.array([entry.component for entry in error_map.fingerprint], object)[tensor]
    tensors = np.array(error_map.targets, object)[tensor]
    by_place = defaultdict(list)
    for hit in () if error_map.log is None else error_map.log.hits:
        by_place[hit.where].append(hit.mask)
    for place, masks in by_place.items():
        counts = count_bits(np.concatenate(masks))
        bits = np.flatnonzero(counts)
        here = np.full(len(bits), place, object)
        components, tensors = np.append(components, here), np.append(tensors, here)
        bit, count = np.append(bit, bits.astype(np.uint8)), np.append(count, counts[bits])
    arrays = [pa.array(components, pa.string()), pa.array(tensors, pa.string()), pa.array(bit), pa.array(count)]
    return pa.StructArray.from_arrays(arrays, fields=list(BIT_COUNT))
