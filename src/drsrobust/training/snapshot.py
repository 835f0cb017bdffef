"""Training that was stopped half-way: one file with all that its next step depends on, complete or absent."""

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from drsrobust._storage import digest, new_file


def save_snapshot(path: Path, identity: str, tensors: dict[str, torch.Tensor], progress: dict[str, Any]) -> None:
    """Writes a snapshot (safetensors; `progress` as JSON in its header) in place of the one before.

    Args:
        path: of the file.
        identity: of the training run; a snapshot of another one is not taken up.
        tensors: copied to the CPU.
        progress: JSON values.
    """
    from safetensors.torch import save_file

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {name: tensor.clone() if tensor._is_view() else tensor for name, tensor in content.items()}
    header = {"identity": identity, "tensors": _digest(content), "progress": progress}
    with new_file(path) as part:
        save_file(content, part, metadata={"snapshot": json.dumps(header)})


def read_snapshot(path: Path, identity: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Tensors and progress of a snapshot; None where there is none, or (with a warning) one that is damaged or of another
    training run, so that training starts anew: which costs time, and gives the same weights."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["snapshot"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if header["tensors"] != _digest(tensors):
            raise ValueError("its tensors do not have the SHA-256 that stands in it")
        if header["identity"] != identity:
            raise ValueError("it is of another training run")
        return tensors, header["progress"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"{path} is not taken up ({error}); training starts anew", stacklevel=3)
        return None


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """State of PyTorch's generators, from which dropout draws."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    """Puts `random_state` back."""
    torch.set_rng_state(states["rng.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["rng.cuda"], device)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of an optimizer's state; the names depend on the order of its parameters alone."""
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            yield f"optimizer.{number}.{name}", value


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Puts `optimizer_tensors` back into an optimizer made anew with the same parameters."""
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
