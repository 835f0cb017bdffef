"""One flipped bit in a file of a model's weights: which readers load it without an error, and what checksums cost (notebook
21)."""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from drsrobust.extend import progress_bar
from drsrobust.statistics import wilson
from drsrobust_extras.protection.file_checksums import KINDS, SUFFIX, Checksums, checksums, verify
from drsrobust_extras.risk.timing import cpu_seconds

if TYPE_CHECKING:
    import pandas as pd

State = Mapping[str, torch.Tensor]
SILENT, SAME, REFUSED = OUTCOMES = "silent", "same", "refused"


def _arrays(path: Path) -> State:
    with np.load(path) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def _torch(path: Path) -> State:
    return torch.load(path, weights_only=True)


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    return load_file(path)


def _verified(read: Callable[[Path], State]) -> Callable[[Path], State]:
    def checked(path: Path) -> State:
        verify(path)
        return read(path)

    return checked


# Reader -> file and call. The file of checksums lies next to the .safetensors alone.
READERS: dict[str, tuple[str, Callable[[Path], State]]] = {
    "torch.load": ("model.pt", _torch),
    "safetensors": ("model.safetensors", _safetensors),
    "numpy.load": ("model.npz", _arrays),
    "dr.verify, torch.load": ("model.pt", _verified(_torch)),
    "dr.verify, safetensors": ("model.safetensors", _verified(_safetensors)),
}


def outcomes(model: nn.Module, tries: int, seed: int = 0) -> "pd.DataFrame":
    """Flips one bit of a file at a time, uniformly over all of its bits, and loads it.

    Args:
        model: whose state is saved.
        tries: flips in each file; readers of one file get the same ones.
        seed: of the flips.

    Returns:
        a row per reader: `reader`; `file`, its format; `kib`, its size; `n` tries, of which `silent` loaded other words, names
        or shapes than were saved without an error, `same` loaded what was saved, and `refused` raised an error; and the share
        of silent ones, with a 95 % interval (Wilson).
    """
    import pandas as pd

    rows = []
    with saved(model) as folder, progress_bar(len(READERS) * tries, "flips in files") as bar:
        for reader, (name, read) in READERS.items():
            path, stream = folder / name, random.Random(seed)
            content, before = path.read_bytes(), checksums(read(path))
            counts = dict.fromkeys(OUTCOMES, 0)
            for _ in range(tries):
                counts[_outcome(path, flipped(content, stream.randrange(8 * len(content))), read, before)] += 1
                bar.update()
            path.write_bytes(content)
            share = dict(zip(("share", "share_low", "share_high"), wilson(counts[SILENT], tries), strict=True))
            rows.append(
                {"reader": reader, "file": path.suffix, "kib": len(content) / 1024, "n": tries} | counts | share
            )
    return pd.DataFrame(rows)


def flipped(content: bytes, bit: int) -> bytes:
    """The bytes with one bit changed, 0 the lowest of the first byte."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextmanager
def saved(model: nn.Module) -> Iterator[Path]:
    """A folder with a model's state as .pt, .npz and .safetensors, which has checksums next to it."""
    from safetensors.torch import save_file

    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        files = Path(folder)
        torch.save(state, files / "model.pt")
        save_file(state, files / "model.safetensors")
        checksums(state).save(files / f"model.safetensors{SUFFIX}")
        np.savez(files / "model.npz", **{name: tensor.numpy() for name, tensor in state.items()})
        yield files


def _outcome(path: Path, content: bytes, read: Callable[[Path], State], before: Checksums) -> str:
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that are odd and load
            state = read(path)
    except Exception:  # each reader refuses by errors of its own
        return REFUSED
    return SILENT if before.check(state) else SAME


def costs(mib: int, turns: int) -> "pd.DataFrame":
    """CPU time of checksums of one tensor of random float32 words in memory, on one thread.

    Args:
        mib: its size in MiB.
        turns: measurements of each kind, in turns.

    Returns:
        a row per kind: `kind`, `seconds` per GB (10^9 bytes; median), `seconds_low` and `seconds_high` (the least and the most
        of the turns), `turns`.
    """
    import pandas as pd

    tensor = {"weights": torch.rand(mib << 18, generator=torch.Generator().manual_seed(0))}
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(turns):
        for kind, seconds in taken.items():
            seconds.append(cpu_seconds(lambda kind=kind: checksums(tensor, kind=kind))[1] / (mib / 1e9 * 2**20))
    ends = {kind: (float(np.median(of)), min(of), max(of)) for kind, of in taken.items()}
    names = ("seconds", "seconds_low", "seconds_high")
    return pd.DataFrame(
        [{"kind": kind} | dict(zip(names, of, strict=True)) | {"turns": turns} for kind, of in ends.items()]
    )
