"""Checkpoints: weights as safetensors, beside them a JSON manifest with their SHA-256, and the learning curve as a table for
people. Nothing is ever unpickled."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from drsrobust._storage import digest, file_digest, new_folder
from drsrobust.data import Feature, Schema
from drsrobust.models import build_model, state_digest

WEIGHTS, MANIFEST, CURVE = "model.safetensors", "manifest.json", "curve.csv"


class CheckpointError(ValueError):
    """A checkpoint that is not what its manifest says. The message names the file and what to do."""


def save_checkpoint(model: nn.Module, folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Writes a checkpoint folder, complete or not at all (call it under `exclusive(folder)`).

    Args:
        model: one of ours.
        folder: replaced if it is there.
        manifest: how the model was made; `model`, `schema` and `sizes` are needed to build it again. The hashes are
            added here; `curve`, the epochs of training, is written as CSV too.

    Returns:
        the manifest as written.
    """
    from safetensors.torch import save_file

    with new_folder(folder) as part:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, part / WEIGHTS)
        manifest = manifest | {"state": state_digest(model), "sha256": file_digest(part / WEIGHTS)}
        manifest = json.loads(json.dumps(manifest))  # as it will be read
        if curve := manifest.get("curve"):
            lines = [",".join(curve[0]), *(",".join(map(repr, epoch.values())) for epoch in curve)]
            (part / CURVE).write_text("\n".join(lines) + "\n")
        (part / MANIFEST).write_text(json.dumps(manifest | {"manifest_sha256": digest(manifest)}, indent=1))
    return manifest


def read_checkpoint(folder: Path, identity: dict[str, Any] | None = None) -> nn.Module:
    """The model of a checkpoint, in evaluation mode; its manifest is `model.manifest`.

    Args:
        folder: of the checkpoint.
        identity: fields that the manifest must hold, when a certain checkpoint is meant.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointError: a file is damaged or was changed (its SHA-256 is not the one in the manifest), or the manifest
            holds other fields than `identity`.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"there is no checkpoint in {folder} ({MANIFEST} is missing)")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        expected, schema = manifest["sha256"], manifest["schema"]
        if manifest.pop("manifest_sha256") != digest(manifest):
            raise ValueError("its contents do not have the SHA-256 that stands in it")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is damaged ({error}); {_cure(folder)}") from error
    for key, value in json.loads(json.dumps(identity or {})).items():
        if manifest.get(key) != value:
            raise CheckpointError(
                f"{folder} holds another checkpoint: {key} is {manifest.get(key)!r}, asked was {value!r}; {_cure(folder)}"
            )
    weights = folder / WEIGHTS
    found = file_digest(weights) if weights.is_file() else "no such file"
    if found != expected:
        raise CheckpointError(f"{weights} has SHA-256 {found}, but its manifest says {expected}; {_cure(folder)}")
    features = tuple(Feature(**feature) for feature in schema["features"])
    model = build_model(manifest["model"], Schema(tuple(schema["dense"]), features), **manifest["sizes"])
    model.load_state_dict(load_file(weights))
    model.manifest = manifest
    return model.eval()


def _cure(folder: Path) -> str:
    return f"it is not loaded. Delete {folder} to train again"
