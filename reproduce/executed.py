"""An executed notebook as parts of the report: its opening words, its results, and all of it as a page."""

import re
from html import escape

import bleach
import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

_ACCESSIBLE = {  # for screen readers, and to scroll a wide table without a mouse
    "No description has been provided for this image": "A figure of this notebook; the report describes it",
    "<th></th>": "<td></td>",
    '<div class="output_html': '<div tabindex="0" class="output_html',
}
_PROVENANCE = re.compile(r"; python \d")
_OUTPUTS = ("text/html", "text/markdown", "text/plain", "image/png", "image/jpeg")  # no scripts, no widgets
_TAGS = "a b blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre small span strong sub sup"
_TAGS += " table tbody td tfoot th thead tr ul"
_ATTRIBUTES = "alt class colspan height id role rowspan scope start tabindex title width"
_ADDRESSES = {"href": r"https?://|mailto:|#", "src": r"data:image/(png|jpeg|gif);base64,"}


def _clean(html: str) -> str:
    """HTML with the tags and attributes of text, tables and images only, so that HTML in Markdown cells and outputs can neither
    run nor load anything."""
    html = re.sub(r"<(script|style)\b.*?</\1\s*>", "", html, flags=re.DOTALL | re.IGNORECASE)
    return bleach.clean(html, _TAGS.split(), _allowed, protocols=["http", "https", "mailto", "data"], strip=True)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name in _ADDRESSES:
        return re.match(_ADDRESSES[name], value) is not None
    return name in _ATTRIBUTES.split() or name.startswith("aria-")


def opening(notebook: nbformat.NotebookNode) -> str:
    """HTML of the first cell below its title: the claim."""
    _, _, words = notebook.cells[0].source.partition("\n")
    return _clean(markdown2html(words.strip()))


def results(notebook: nbformat.NotebookNode) -> str:
    """HTML of printed text and Markdown output of the cells below the heading `Results`, without provenance."""
    below, parts = False, []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE)
            below = headings[-1].lower() == "results" if headings else below
        elif below and cell.cell_type == "code":
            parts += [_words(output) for output in cell.outputs]
    return _clean("".join(parts))


def _words(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream" and output.name == "stdout":
        kept = (line for line in output.text.splitlines() if line.strip() and not _PROVENANCE.search(line))
        lines = [escape(line, quote=False) for line in kept]
        if not lines:
            return ""
        return f"<p>{lines[0]}</p>" if len(lines) == 1 else f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
    if output.output_type in ("display_data", "execute_result") and "text/markdown" in output.data:
        return markdown2html(output.data["text/markdown"])
    return ""


def body(notebook: nbformat.NotebookNode) -> str:
    """HTML of all cells with their outputs, without progress bars, scripts, styles, widgets and images from elsewhere."""
    quiet = nbformat.from_dict(notebook)
    for cell in quiet.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_without_progress, cell.outputs) if output is not None]
            for output in cell.outputs:
                if "data" in output:
                    output.data = {kind: output.data[kind] for kind in _OUTPUTS if kind in output.data}
    exporter = HTMLExporter(template_name="basic", embed_images=True, exclude_anchor_links=True)
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    html, _ = exporter.from_notebook_node(quiet)
    for old, new in _ACCESSIBLE.items():
        html = html.replace(old, new)
    return _clean(html)


def _without_progress(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    if output.output_type != "stream" or output.name != "stderr":
        return output
    lines = [line for line in re.split(r"[\r\n]+", output.text) if line.strip() and not re.search(r"\d%\|", line)]
    output.text = "\n".join(lines)
    return output if lines else None
