"""One archive of a finished run: its trained models, figures, record and SHA-256 sums, from which another run can start."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from drsrobust._files import cache_folder, new_file

SUMS = "SHA256SUMS"
_CHECKPOINTS = "checkpoints"


def write_bundle(folder: Path) -> Path:
    """Writes `drsrobust-PROFILE.zip` into the folder of a finished run: `run.json`, `figures/`, the cached models on the run's
    data sets in `checkpoints/`, and `SHA256SUMS`. The same files give the same archive, byte for byte.

    Raises:
        FileNotFoundError: no finished run, or no model of it in the cache.
    """
    record = folder / "run.json"
    if not record.is_file():
        raise FileNotFoundError(f"there is no finished run in {folder}: make reproduce PROFILE={folder.name}")
    datasets = json.loads(record.read_text())["datasets"]
    files = {"run.json": record}
    files |= {path.relative_to(folder).as_posix(): path for path in (folder / "figures").rglob("*") if path.is_file()}
    models = 0
    for manifest in sorted(cache_folder(_CHECKPOINTS).glob("*/manifest.json")):
        if json.loads(manifest.read_text())["dataset"] in datasets:
            models += 1
            files |= {f"{_CHECKPOINTS}/{manifest.parent.name}/{path.name}": path for path in manifest.parent.iterdir()}
    if not models:
        raise FileNotFoundError(f"{cache_folder(_CHECKPOINTS)} holds no model trained on {', '.join(datasets)}")
    sums = "".join(f"{_sha256(path.read_bytes())}  {name}\n" for name, path in sorted(files.items()))
    with new_file(folder / f"drsrobust-{folder.name}.zip") as part, zipfile.ZipFile(part, "w") as archive:
        _add(archive, SUMS, sums.encode())
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    return folder / f"drsrobust-{folder.name}.zip"


def read_checkpoints(bundle: Path) -> list[str]:
    """Puts the models of a bundle into the cache, where a run finds them. Models that are there already are kept.

    Returns:
        names of the checkpoints.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a bundle, or a damaged one.
    """
    try:
        with zipfile.ZipFile(bundle) as archive:
            sums = dict(reversed(line.split("  ", 1)) for line in archive.read(SUMS).decode().splitlines())
            contents = {name: archive.read(name) for name in archive.namelist() if name != SUMS}
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{bundle} is not a bundle of `make bundle`, or is damaged: {error}") from error
    wrong = {name for name, content in contents.items() if sums.get(name) != _sha256(content)} | (
        set(sums) - set(contents)
    )
    if wrong:
        raise ValueError(f"{bundle} is damaged: {min(wrong)} does not match {SUMS}; get it again")
    models: dict[str, dict[str, bytes]] = {}
    for name, content in contents.items():
        parts = PurePosixPath(name).parts
        if len(parts) == 3 and parts[0] == _CHECKPOINTS and ".." not in parts:
            models.setdefault(parts[1], {})[parts[2]] = content
    for model, files in models.items():
        place = cache_folder(_CHECKPOINTS, model)
        if place.exists():
            continue
        unfinished = place.with_name(f".{model}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        unfinished.rename(place)
    return sorted(models)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)  # without the time
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(entry, content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
