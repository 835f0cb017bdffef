"""Tensors in memory that cannot be written."""

import os
from collections.abc import Mapping
from ctypes import c_char

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# Storage and address of tensors in memory that can be written. While the weak reference is kept no other storage has this
# number, and a storage that gets other memory has another address.
_WRITABLE: dict[tuple[int, int], StorageWeakRef] = {}


def refuse_read_only(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for a tensor in read-only memory (a file mapped for reading), where a write would end the process.

    The kernel copies the tensor's first byte through a pipe onto itself; for read-only memory this is an error, not a signal.
    Each tensor is checked once.
    """
    places = {name: (t.untyped_storage()._cdata, t.data_ptr()) for name, t in tensors.items() if t.is_cpu}
    unknown = {name: place for name, place in places.items() if place not in _WRITABLE}
    if not unknown:
        return
    source, sink = os.pipe()
    try:
        for name, place in unknown.items():
            tensor = tensors[name]
            first = c_char.from_address(tensor.data_ptr())
            os.write(sink, first.value)
            try:
                os.readv(source, [first])
            except OSError:
                raise ValueError(
                    f"{name} lies in read-only memory (a file mapped for reading?); errors need a copy: "
                    f"model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)"
                ) from None
            _WRITABLE[place] = StorageWeakRef(tensor.untyped_storage())
    finally:
        os.close(source)
        os.close(sink)
    for place in [place for place, storage in _WRITABLE.items() if storage.expired()]:
        del _WRITABLE[place]
