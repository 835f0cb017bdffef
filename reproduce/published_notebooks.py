"""`figures/notebooks/`: the executed notebooks of the published run, with pictures, without times, paths and progress."""

import base64
import io
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from PIL import Image

from drsrobust._files import cache_folder
from reproduce.notebooks import FIGURES, ROOT

FOLDER = "notebooks"  # below the figures
LIMIT = 6_000_000  # bytes of all of them: they are committed
COLOURS = 64  # of a picture; the files next to it have all
_SHOWN = ("text/html", "text/markdown", "text/plain", "image/png")  # no scripts, no widgets


def write_notebooks(executed: Iterable[Path], folder: Path) -> None:
    """Writes executed notebooks as they are published.

    Args:
        executed: their files.
        folder: to write to.

    Raises:
        FileNotFoundError: an executed notebook is missing.
        ValueError: together they take over `LIMIT`.
    """
    folder.mkdir(parents=True)
    for path in executed:
        nbformat.write(published(nbformat.read(path, as_version=4), path.parent.parent), folder / path.name)
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > LIMIT:
        raise ValueError(f"the executed notebooks take {size:,} bytes; published are at most {LIMIT:,}")


def published(notebook: nbformat.NotebookNode, build: Path = ROOT) -> nbformat.NotebookNode:
    """An executed notebook as it is published: the text of cells, printed text, tables and pictures.

    Args:
        notebook: as papermill wrote it.
        build: a folder whose path no output may hold, as that of the repository, the cache and the home folder.
    """
    places = sorted(
        {*map(str, (ROOT, build, cache_folder(), Path.home(), tempfile.gettempdir()))}, key=len, reverse=True
    )
    place = re.compile("|".join(rf"{re.escape(one)}(?=/|\b)" for one in places if one != "/"))
    made = nbformat.v4.new_notebook(metadata={"kernelspec": notebook.metadata.kernelspec})
    made.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        tags = [tag for tag in cell.metadata.get("tags", ()) if tag]
        new = nbformat.from_dict({"cell_type": cell.cell_type, "id": cell.id, "source": cell.source})
        new["metadata"] = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            new["execution_count"] = None
            new["outputs"] = [_output(one, place) for one in cell.outputs if _is_shown(one)]
        made.cells.append(new)
    return made


def published_folder() -> Path | None:
    """The folder of the published notebooks; None where there is none."""
    folder = FIGURES / FOLDER
    return folder if folder.is_dir() else None


def _is_shown(output: nbformat.NotebookNode) -> bool:
    if output.output_type == "stream":
        return output.name == "stdout"
    return output.output_type in ("display_data", "execute_result") and bool(set(_SHOWN) & set(output.data))


def _output(output: nbformat.NotebookNode, place: re.Pattern) -> nbformat.NotebookNode:
    if output.output_type == "stream":
        return nbformat.v4.new_output("stream", name="stdout", text=place.sub("...", output.text))
    data = {kind: output.data[kind] for kind in _SHOWN if kind in output.data}
    data = {kind: _smaller(value) if kind == "image/png" else place.sub("...", value) for kind, value in data.items()}
    about = {kind: output.metadata[kind] for kind in data if kind in output.metadata}
    return nbformat.v4.new_output("display_data", data=data, metadata=about)


def _smaller(picture: str) -> str:
    """A PNG (base64) with a palette."""
    stream = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(COLOURS).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()
