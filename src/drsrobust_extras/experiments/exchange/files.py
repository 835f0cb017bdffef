"""Error maps as JSON, which other programs read and write."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from drsrobust.extend import Format, check_instance, expanded, new_file
from drsrobust.injection import ErrorMap, ErrorMapMismatch, applied_maps
from drsrobust.models import state_digest
from drsrobust_extras.experiments.exchange.places import Places, found, map_of, whole

FORMAT = "drsrobust-error-map 1"
_DRAWN = {"seed": int, "clock": int, "eligible_bits": int, "requested_rate": float, "n_sites": int, "n_events": int}


def write(error_map: ErrorMap, path: str | Path, model: nn.Module | None = None) -> None:
    """Writes an error map as JSON, complete or not at all.

    Args:
        error_map: of stored words.
        path: of the file.
        model: that it was drawn for, without errors, whose hash the file then holds; None: no hash.

    Raises:
        ValueError: a map of errors that are drawn while the model runs, which are in no stored word, or of one rank of a
            sharded model, which other programs do not know; or a model that has errors in it now.
    """
    check_instance("error_map", error_map, ErrorMap, "an error map, as of dr.inject")
    if error_map.log is not None:
        raise ValueError(f"error_map holds errors of values that exist only while the model runs: {error_map!r}")
    if error_map.rank is not None:
        raise ValueError(
            f"error_map hits rank {error_map.rank} alone; a file has no ranks, write it with error_map.save(path)"
        )
    if model is not None and applied_maps(model):
        raise ValueError("model has errors in it now; write the map after the `with` block")
    drawn = {"error_model": error_map.error_model} | {name: getattr(error_map, name) for name in _DRAWN}
    tensors = [
        {"name": entry.name, "shape": list(entry.shape), "format": entry.format, "word": [], "bits": []}
        for entry in error_map.fingerprint
    ]
    for number, entries in error_map.by_tensor():
        tensors[number]["word"] = error_map.word[entries].tolist()
        tensors[number]["bits"] = [_bits(mask) for mask in error_map.mask[entries].tolist()]
        if error_map.original is not None:
            depends = True if error_map.depends is None else error_map.depends[entries]
            was = np.where(depends, error_map.original[entries].astype(object), None).tolist()
            tensors[number]["was"] = [None if word is None else f"{word:x}" for word in was]
    content = {
        "format": FORMAT,
        "model": None if model is None else state_digest(model),
        "drawn": drawn,
        "tensors": tensors,
    }
    with new_file(expanded("path", path)) as part:
        part.write_text(json.dumps(content, allow_nan=False))


def read(path: str | Path, model: nn.Module, *, same_weights: bool = True) -> ErrorMap:
    """Reads the error map of a JSON file.

    Args:
        path: of the file.
        model: that has its tensors.
        same_weights: whether the model must have the hash of the file, if that holds one; masks of flips fit other weights
            too.

    Raises:
        ErrorMapMismatch: the model lacks a tensor, or has another shape, format or hash.
        ValueError: not such a file, or a damaged one; a word or bit that its tensor does not have, or a word twice.
    """
    path = expanded("path", path)
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT!r}, got {content['format']!r}")
        drawn = {name: _number(name, content["drawn"].get(name), kind) for name, kind in _DRAWN.items()}
        error_model = content["drawn"]["error_model"]
        if same_weights and content["model"] is not None and (digest := state_digest(model)) != content["model"]:
            raise ErrorMapMismatch(
                f"the map is of a model with hash {content['model']:.12}, this one has {digest:.12}; load its weights, or pass "
                "same_weights=False"
            )
        places = {}
        for about in content["tensors"]:
            name, entry = found(model, about["name"])
            if name in places:
                raise ValueError(f"tensors must hold each tensor once, got {about['name']!r} again")
            shape, number_format = list(entry.tensor.shape), entry.format
            if [shape, number_format.name] != [about["shape"], about["format"]]:
                made = f"{about['shape']} {about['format']}"
                raise ErrorMapMismatch(f"{name!r} is {shape} {number_format.name}, the map is of {made}")
            places[name] = _places(about, entry.tensor.numel(), number_format)
    except (ErrorMapMismatch, FileNotFoundError):
        raise
    except Exception as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not an error map in JSON of this version, or is damaged: {why}") from error
    return map_of(model, places, str(error_model), **drawn | {"seed": drawn["seed"] or 0})


def _number(name: str, value: Any, kind: type) -> Any:
    most = 1 if kind is float else 2**64 - 1  # of an error map
    if value is None or (type(value) in (kind, int) and 0 <= value <= most):
        return value
    raise ValueError(f"{name} must be a number from 0 to {most}, or null, got {value!r}")


def _places(about: dict[str, Any], words: int, number_format: Format) -> Places:
    """The wrong words of one tensor of a file."""
    word, mask = (
        whole("word", about["word"]),
        np.array([_mask(bits, number_format) for bits in about["bits"]], np.uint64),
    )
    if word.shape != mask.shape or len(np.unique(word)) < len(word) or (word < 0).any() or (word >= words).any():
        raise ValueError(f"{about['name']}: word must be distinct numbers under {words}, as many as bits")
    if "was" not in about:
        return Places(word, mask)
    original = [0 if text is None else int(text, 16) for text in about["was"]]
    depends = [text is not None for text in about["was"]]
    if len(original) != len(word):
        raise ValueError(f"{about['name']}: was must have {len(word)} entries, got {len(original)}")
    return Places(word, mask, np.array(original, np.uint64), np.array(depends, bool))


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _mask(bits: list[int], number_format: Format) -> int:
    if (
        not bits
        or len(set(bits)) < len(bits)
        or not all(type(bit) is int and 0 <= bit < number_format.width for bit in bits)
    ):
        raise ValueError(f"bits must be distinct numbers under {number_format.width}, got {bits}")
    return sum(1 << bit for bit in bits)
