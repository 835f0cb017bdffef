"""One archive of a finished run: its trained models, figures, record, sizes and SHA-256 sums, from which another run can start.

A bundle comes from elsewhere, so nothing of it is trusted: names, sizes, sums and manifests are checked while it is unpacked
into a folder of its own, and only whole models move from there into the cache.
"""

import hashlib
import json
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from drsrobust._files import cache_folder, new_file, put_in_place
from drsrobust._hashing import digest, file_digest
from drsrobust._locks import exclusive
from reproduce.runner import read_run

SUMS, SIZES = "SHA256SUMS", "SIZES"
ORIGIN = "bundle.json"  # in the cache: which bundle a model came from
_CHECKPOINTS = "checkpoints"
_CHUNK, _TABLE = 2**20, 2**24  # bytes: read at a time; of the sums at most
_GROWTH = 100  # times the archive's size, at most: trained weights hardly shrink, texts to a tenth


def figure_sums(figures: Path) -> dict[str, str]:
    """SHA-256 of each file of a folder of figures, by its path in it."""
    files = sorted(path for path in figures.rglob("*") if path.is_file())
    return {path.relative_to(figures).as_posix(): file_digest(path) for path in files}


def altered_figures(figures: Path, run: dict[str, Any]) -> dict[str, str]:
    """The files of a run's figures that are not as its record has them, each with what is so.

    Raises:
        ValueError: the record has no SHA-256 of figures.
    """
    recorded, sums = run.get("figure_sha256"), figure_sums(figures)
    if recorded is None:
        raise ValueError(
            f"the run of {figures} has no SHA-256 of its figures, since an earlier version wrote it; run it again"
        )
    return {
        name: f"{what}, by the SHA-256 in its run.json"
        for name in sorted({*recorded, *sums})
        if recorded.get(name) != sums.get(name)
        for what in ["is missing" if name not in sums else "differs" if name in recorded else "is not of this run"]
    }


def write_bundle(folder: Path) -> Path:
    """Writes `drsrobust-PROFILE.zip` into the folder of a finished run: `run.json`, `figures/`, the cached models on the run's
    data sets in `checkpoints/`, `SIZES` (bytes) and `SHA256SUMS`. The same files give the same archive, byte for byte.

    Raises:
        FileNotFoundError: no finished run, or no model of it in the cache.
    """
    from drsrobust.training.checkpoint import CURVE, MANIFEST, WEIGHTS

    datasets, files = read_run(folder)["datasets"], {"run.json": folder / "run.json"}
    files |= {path.relative_to(folder).as_posix(): path for path in (folder / "figures").rglob("*") if path.is_file()}
    models = _models_on(datasets)
    for model in models:
        paths = [model / name for name in (CURVE, MANIFEST, WEIGHTS) if (model / name).is_file()]
        files |= {f"{_CHECKPOINTS}/{model.name}/{path.name}": path for path in paths}
    if not models:
        raise FileNotFoundError(f"{cache_folder(_CHECKPOINTS)} holds no model trained on {', '.join(datasets)}")
    sizes = "".join(f"{path.stat().st_size}  {name}\n" for name, path in sorted(files.items())).encode()
    sums = {name: file_digest(path) for name, path in files.items()} | {SIZES: hashlib.sha256(sizes).hexdigest()}
    with new_file(folder / f"drsrobust-{folder.name}.zip") as part, zipfile.ZipFile(part, "w") as archive:
        _add(archive, SUMS, "".join(f"{total}  {name}\n" for name, total in sorted(sums.items())).encode())
        _add(archive, SIZES, sizes)
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    return folder / f"drsrobust-{folder.name}.zip"


def read_checkpoints(bundle: Path) -> list[str]:
    """Puts the models of a bundle into the cache, where a run finds them. Models that are there already are kept.

    Returns:
        names of the checkpoints.

    Raises:
        FileNotFoundError: no such file, or a folder.
        ValueError: not a bundle, a damaged one, or one that would write more or elsewhere than its sums say.
    """
    if not bundle.is_file():
        what = "is a folder, not a bundle" if bundle.is_dir() else "does not exist"
        raise FileNotFoundError(f"{bundle} {what}; `make bundle` makes a bundle, one zip file")
    unpacked = cache_folder("bundle")
    with exclusive(unpacked):
        shutil.rmtree(unpacked, ignore_errors=True)  # of a process that was killed
        unpacked.mkdir()
        try:
            try:
                with zipfile.ZipFile(bundle) as archive:
                    _unpack(archive, bundle.stat().st_size, unpacked)
                origin = {"file": bundle.name, "sha256": file_digest(bundle), "run": _run_of(unpacked / "run.json")}
                models = sorted((unpacked / _CHECKPOINTS).glob("*"))
                for model in models:
                    _check(model)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, KeyError, ValueError) as error:
                reason = error.args[0] if isinstance(error, KeyError) else error
                raise ValueError(f"{bundle} is not a bundle of `make bundle`, or is damaged: {reason}") from error
            for model in models:
                place = cache_folder(_CHECKPOINTS, model.name)
                with exclusive(place):
                    if not place.exists():
                        (model / ORIGIN).write_text(json.dumps(origin, indent=1))
                        put_in_place(model, place)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return [model.name for model in models]


def bundles_used(datasets: Iterable[str]) -> list[dict[str, Any]]:
    """The bundles from which the cached models on these data sets came.

    Returns:
        of each bundle its `file` name, `sha256`, the `run` that it is of (`profile`, `started`, `commit`, `processor`), and the
        names of the `models`.
    """
    bundles: dict[str, dict[str, Any]] = {}
    for model in _models_on(datasets):
        if (model / ORIGIN).is_file():
            origin = json.loads((model / ORIGIN).read_text())
            bundles.setdefault(origin["sha256"], origin | {"models": []})["models"].append(model.name)
    return list(bundles.values())


def _models_on(datasets: Iterable[str]) -> list[Path]:
    manifests = sorted(cache_folder(_CHECKPOINTS).glob("*/manifest.json"))
    return [path.parent for path in manifests if json.loads(path.read_text())["dataset"] in datasets]


def _unpack(archive: zipfile.ZipFile, packed: int, folder: Path) -> None:
    """Writes the record and the models of an archive of `packed` bytes into a folder, and checks all sums."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise ValueError("a name occurs twice in it")
    for name, info in members.items():
        if info.flag_bits & 1:
            raise ValueError(f"{name} is encrypted, and a bundle has no password")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise ValueError(f"{name} is a link or a folder; a bundle holds files")
        if not _is_ours(name):
            raise ValueError(f"{name!r} is no name that a bundle has")
    sums = _table(archive, members, SUMS)
    if differing := (set(sums) | {SUMS}) ^ set(members):
        raise ValueError(f"{min(differing)} does not match {SUMS}; get it again")
    texts = _table(archive, members, SIZES)
    if unnamed := set(sums) - {SIZES} ^ set(texts):
        raise ValueError(f"{min(unnamed)} does not match {SIZES}; get it again")
    sizes = {name: int(text) for name, text in texts.items() if text.isdecimal()} | {SIZES: members[SIZES].file_size}
    if invalid := set(sums) - set(sizes):
        raise ValueError(f"{SIZES} says {texts[min(invalid)]!r} of {min(invalid)}; a size is a number of bytes")
    if sum(sizes.values()) > _GROWTH * packed:
        raise ValueError(f"it would become {sum(sizes.values()):,} bytes from {packed:,}, over {_GROWTH} times as many")
    for name, total in sums.items():
        kept = name == "run.json" or name.startswith(f"{_CHECKPOINTS}/")
        if _copied(archive, name, sizes[name], folder / name if kept else None) != total:
            raise ValueError(f"{name} does not match {SUMS}; get it again")


def _is_ours(name: str) -> bool:
    """Whether `write_bundle` could have written a member of this name; no other one is unpacked."""
    if name in (SUMS, SIZES, "run.json"):
        return True
    word = r"[\w+-][\w.+-]*"
    models = rf"{_CHECKPOINTS}/{word}/(model\.safetensors|manifest\.json|curve\.csv)"
    return bool(re.fullmatch(rf"{models}|figures/({word}/)*{word}", name, re.ASCII))


def _table(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> dict[str, str]:
    """File name -> sum or size."""
    if name not in members:
        raise ValueError(f"it has no {name}" + ("; make it again" if name == SIZES else ""))
    if members[name].file_size > _TABLE:
        raise ValueError(f"{name} has {members[name].file_size:,} bytes, over {_TABLE:,}")
    return dict(reversed(line.split("  ", 1)) for line in archive.read(name).decode().splitlines())


def _copied(archive: zipfile.ZipFile, name: str, size: int, path: Path | None) -> str:
    """SHA-256 of a member of `size` bytes, which is written to a path, if any."""
    total, read = hashlib.sha256(), 0
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as member, open(path, "wb") if path else nullcontext() as file:
        while content := member.read(_CHUNK):
            read += len(content)
            if read > size:
                raise ValueError(f"{name} is larger than the {size:,} bytes of {SIZES}")
            total.update(content)
            if file:
                file.write(content)
    if read < size:
        raise ValueError(f"{name} has {read:,} bytes, {SIZES} says {size:,}")
    return total.hexdigest()


def _run_of(record: Path) -> dict[str, Any]:
    """Whose models they are, by the record in a bundle."""
    run = json.loads(record.read_text())
    machine = run.get("machine", {}).get("processor")
    return {key: run.get(key) for key in ("profile", "started", "commit")} | {"processor": machine}


def _check(model: Path) -> None:
    """Compares an unpacked model with its manifest: hashes of the manifest, of the file, and of the weights.

    Raises:
        ValueError, KeyError: a file is missing or differs.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from drsrobust.models.scoring import tensors_digest
    from drsrobust.training.checkpoint import MANIFEST, WEIGHTS

    try:
        manifest = json.loads((model / MANIFEST).read_text())
        whole = manifest.pop("manifest_sha256") == digest(manifest)
        # Not by building the model: its sizes come from the bundle, and may be any.
        state = tensors_digest(load_file(model / WEIGHTS).items())
    except (FileNotFoundError, RecursionError, SafetensorError, TypeError, AttributeError) as error:
        raise ValueError(f"model {model.name}: {error}") from error
    if not whole:
        raise ValueError(f"model {model.name}: its manifest does not have the SHA-256 that it states")
    if manifest["sha256"] != file_digest(model / WEIGHTS):
        raise ValueError(f"model {model.name}: {WEIGHTS} does not have the SHA-256 of its manifest")
    if manifest["state"] != state:
        stated = str(manifest["state"])[:12]
        raise ValueError(f"model {model.name}: its weights have the hash {state[:12]}, its manifest says {stated}")


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # without the time
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(entry, content)
