"""Checkpoints (safetensors, a JSON manifest with their SHA-256, and the learning curve as CSV) and snapshots of unfinished
training. Nothing is unpickled.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drsrobust._files import new_file, new_folder
from drsrobust._hashing import digest, file_digest
from drsrobust._registrations import load_registrations
from drsrobust.data.dataset import Schema
from drsrobust.models import build_model, state_digest

WEIGHTS, MANIFEST, CURVE = "model.safetensors", "manifest.json", "curve.csv"
Writer = Callable[[Path, dict[str, torch.Tensor]], None]  # of files next to the file of weights, from its tensors
_WRITERS: list[Writer] = []


def register_writer(write: Writer) -> Writer:
    """Adds files to each new checkpoint folder."""
    _WRITERS.append(write)
    return write


class CheckpointError(ValueError):
    """A checkpoint that differs from its manifest. The message names the file and what to do."""


def save_checkpoint(model: nn.Module, folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Writes a checkpoint folder, complete or absent; the caller holds `exclusive(folder)`.

    Args:
        model: a registered model.
        folder: replaced if it exists.
        manifest: with at least `model`, `schema` and `sizes`; `curve`, the epochs of training, is written as CSV too.

    Returns:
        the manifest with hashes.
    """
    from safetensors.torch import save_file

    with new_folder(folder) as part:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, part / WEIGHTS)
        load_registrations("checkpoints")
        for write in _WRITERS:
            write(part / WEIGHTS, state)
        manifest = manifest | {"state": state_digest(model), "sha256": file_digest(part / WEIGHTS)}
        manifest = json.loads(json.dumps(manifest))  # as a reader will see it
        if curve := manifest.get("curve"):
            lines = [",".join(curve[0]), *(",".join(map(repr, epoch.values())) for epoch in curve)]
            (part / CURVE).write_text("\n".join(lines) + "\n")
        (part / MANIFEST).write_text(json.dumps(manifest | {"manifest_sha256": digest(manifest)}, indent=1))
    return manifest


def read_checkpoint(folder: Path, identity: dict[str, Any] | None = None) -> nn.Module:
    """The model of a checkpoint, in evaluation mode; its manifest is `model.manifest`.

    Args:
        folder: of the checkpoint.
        identity: fields that the manifest must have.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointError: a file has a wrong SHA-256, or the manifest differs from `identity`.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"there is no checkpoint in {folder} ({MANIFEST} is missing)")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        expected, schema = manifest["sha256"], manifest["schema"]
        if manifest.pop("manifest_sha256") != digest(manifest):
            raise ValueError("its SHA-256 is wrong")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is damaged ({error}); {_remedy(folder)}") from error
    for key, value in json.loads(json.dumps(identity or {})).items():
        if manifest.get(key) != value:
            raise CheckpointError(
                f"{folder} holds another checkpoint: {key} is {manifest.get(key)!r}, expected {value!r}; {_remedy(folder)}"
            )
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise CheckpointError(f"{weights} is missing; {_remedy(folder)}")
    if (actual := file_digest(weights)) != expected:
        raise CheckpointError(f"{weights} has SHA-256 {actual}, but its manifest says {expected}; {_remedy(folder)}")
    model = build_model(manifest["model"], Schema.of(schema), **manifest["sizes"])
    model.load_state_dict(load_file(weights))
    model.manifest = manifest
    return model.eval()


def _remedy(folder: Path) -> str:
    return f"delete {folder} to train again"


def save_snapshot(path: Path, identity: str, tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    """Replaces a snapshot (safetensors, with `identity` of the training run and `progress`, JSON values, in its header)."""
    from safetensors.torch import save_file

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {name: tensor.clone() if tensor._is_view() else tensor for name, tensor in content.items()}
    header = {"identity": identity, "tensors": _digest(content), "progress": progress}
    with new_file(path) as part:
        save_file(content, part, metadata={"snapshot": json.dumps(header)})


def read_snapshot(path: Path, identity: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Tensors and progress of a snapshot; None if it is absent or, with a warning, damaged or of another training run."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["snapshot"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if header["tensors"] != _digest(tensors):
            raise ValueError("the SHA-256 of its tensors is wrong")
        if header["identity"] != identity:
            raise ValueError("it is of another training run")
        return tensors, header["progress"]
    except (OSError, SafetensorError, KeyError, RecursionError, TypeError, ValueError) as error:
        warnings.warn(f"ignoring snapshot {path} ({error}); training restarts from epoch 0", stacklevel=3)
        return None


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of PyTorch's random generators, which dropout uses."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    """Restores `random_state`."""
    torch.set_rng_state(states["rng.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["rng.cuda"], device)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of an optimizer's state; the names depend only on the order of its parameters."""
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            yield f"optimizer.{number}.{name}", value


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Restores `optimizer_tensors` in a new optimizer of the same parameters."""
    content = optimizer.state_dict()
    for key, tensor in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            content["state"].setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict(content)


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    def sha256(tensor: torch.Tensor) -> str:
        return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()

    return digest([[name, str(t.dtype), list(t.shape), sha256(t)] for name, t in sorted(tensors.items())])
