"""`make article`: paper/article.md from the published run, and its PDF by typst, without LaTeX and without a network.

An image with the next paragraph, `Figure 1: ...`, is a figure; a table with the one before it, `Table 1: ...`, too. Between
dollar signs, and in blocks marked `typst`, are formulas in typst's notation.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drsrobust._files import new_file
from reproduce.notebooks import FIGURES, ROOT
from reproduce.package import article

SOURCE = ROOT / "paper" / "article.md"
STYLE = ROOT / "paper" / "article.typ"
FORMULA = re.compile(r"\$([^$]+)\$")
NARROWEST = 6  # characters of a table's column, for widths


def build_article(source: Path = SOURCE, target: Path = ROOT / "build" / "article" / "article.pdf") -> tuple[int, int]:
    """Writes the PDF of an article.

    Args:
        source: Markdown; its images are in or next to the folder above its own.
        target: the PDF.

    Returns:
        numbers of pages and of figures, tables among them.

    Raises:
        ValueError: something that the converter does not know, a wrong number of a figure, or a missing image.
        typst.TypstError: the PDF would not conform to PDF/UA-1 (accessible), as without the text of an image.
    """
    import typst

    root, style = source.resolve().parent.parent, STYLE.read_text()
    text = f"{style}\n{to_typst(source.read_text(), root)}\n#metadata(none) <end>\n"
    document = text.encode()
    compiler = typst.Compiler(root=root, font_paths=typst.Fonts(include_system_fonts=False))
    pdf = compiler.compile(document, format="pdf", pdf_standards="ua-1")
    numbers = "(query(<end>).first().location().page(), query(figure).len())"
    pages, figures = json.loads(typst.Compiler(document, root=root).eval(numbers))
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as part:
        part.write_bytes(pdf)
    return pages, figures


def to_typst(text: str, root: Path = ROOT) -> str:
    """Markdown as typst: headings, paragraphs, emphasis, code, links, lists, quotes, tables, figures and formulas.

    Args:
        text: whose first heading is the title.
        root: folder that holds all images.

    Raises:
        ValueError: as `build_article`.
    """
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return _Writer(root).blocks(tokens)


class _Writer:
    """Writes the blocks of one document; counts its figures and tables."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers, self.section = root, {"Figure": 0, "Table": 0}, ""

    def blocks(self, tokens: list[Any]) -> str:
        parts = list(_grouped(tokens))
        lines, at = [], 0
        while at < len(parts):
            part, after = parts[at], parts[at + 1] if at + 1 < len(parts) else []
            if _is_image(part):
                lines.append(self._figure("Figure", self._image(part[1].children[0]), after))
                at += 1
            elif part[0].type == "paragraph_open" and after and after[0].type == "table_open":
                lines.append(self._figure("Table", self._table(after), part))
                at += 1
            else:
                lines.append(self._block(part))
            at += 1
        return "\n\n".join(lines)

    def _block(self, tokens: list[Any]) -> str:
        first, inner = tokens[0], tokens[1:-1]
        match first.type:
            case "heading_open":
                level, words = int(first.tag[1:]), _inline(inner[0])
                self.section = words
                if level == 1:
                    return f"#set document(title: [{words}])\n#title[{words}]"
                return f"{'=' * (level - 1)} {words}"
            case "paragraph_open":
                return _inline(inner[0])
            case "blockquote_open":
                return f"#abstract[{self.blocks(inner)}]"
            case "fence" if first.info == "typst":
                return _formula(first.content, block=True)
            case "fence" | "code_block":
                return f"#raw(block: true, {_string(first.content.rstrip())})"
            case "bullet_list_open" | "ordered_list_open":
                items = ", ".join(f"[{self.blocks(item[1:-1])}]" for item in _grouped(inner))
                if first.tag == "ul":
                    return f"#list({items})"
                return f"#enum(numbering: {_string('[1]' if self.section == 'References' else '1.')}, {items})"
            case "table_open":
                raise ValueError("a table has no paragraph 'Table 1: ...' before it")
        raise ValueError(f"the article holds a {first.type.removesuffix('_open')}, which the converter does not know")

    def _image(self, image: Any) -> str:
        path = (self.root / "paper" / image.attrs["src"]).resolve()
        if not path.is_file():
            raise ValueError(f"the article's image {image.attrs['src']} is missing")
        name = "/" + path.relative_to(self.root).as_posix()
        return f"image({_string(name)}, width: 100%, alt: {_string(image.content)})"

    def _table(self, tokens: list[Any]) -> str:
        cells = [token for token in tokens if token.type == "inline"]
        columns = sum(token.type == "th_open" for token in tokens)
        sizes = [
            max(NARROWEST, *(len(cell.content) for cell in cells[column::columns])) ** 0.5 for column in range(columns)
        ]
        widths = ", ".join(f"{size:.2f}fr" for size in sizes)
        header, body = ([f"[{_inline(cell)}]" for cell in part] for part in (cells[:columns], cells[columns:]))
        rows = [", ".join(body[at : at + columns]) for at in range(0, len(body), columns)]
        lines = [f"table(columns: ({widths})", f"table.header({', '.join(header)})", *rows]
        return ",\n".join(lines) + ")"

    def _figure(self, kind: str, body: str, caption: list[Any]) -> str:
        words = caption[1].content if caption and caption[0].type == "paragraph_open" else ""
        self.numbers[kind] += 1
        expected = f"{kind} {self.numbers[kind]}: "
        if not words.startswith(expected):
            raise ValueError(f"the text of a {kind.lower()} must begin with {expected!r}, got {words[:40]!r}")
        place = "placement: auto, " if kind == "Figure" else ""
        return f"#figure({body}, {place}caption: [{_inline(caption[1]).partition(': ')[2]}])"


def _grouped(tokens: list[Any]) -> Iterator[list[Any]]:
    """The tokens of each block on the topmost level."""
    group: list[Any] = []
    depth = 0
    for token in tokens:
        group.append(token)
        depth += token.nesting
        if not depth:
            yield group
            group = []


def _is_image(tokens: list[Any]) -> bool:
    return tokens[0].type == "paragraph_open" and [token.type for token in tokens[1].children] == ["image"]


def _inline(token: Any) -> str:
    return "".join(_piece(child) for child in token.children)


def _piece(token: Any) -> str:
    match token.type:
        case "text":
            pieces = FORMULA.split(token.content)
            return "".join(_formula(piece) if at % 2 else _escaped(piece) for at, piece in enumerate(pieces))
        case "softbreak":
            return "\n"
        case "hardbreak":
            return "\\\n"
        case "code_inline":
            return f"#raw({_string(token.content)});"
        case "link_open":
            return f"#link({_string(token.attrs['href'])})["
        case "em_open":
            return "#emph["
        case "strong_open":
            return "#strong["
        case "link_close" | "em_close" | "strong_close":
            return "];"  # ends the call, so that a bracket after it is text
    raise ValueError(f"the article holds {token.type}, which the converter does not know: {token.content[:40]!r}")


def _escaped(text: str) -> str:
    text = re.sub(r"([\\#$*_`<>@\[\]~/=+-])", r"\\\1", text)
    return re.sub(r"\b(Figure|Table) (\d)", r"\1~\2", text)


def _formula(text: str, *, block: bool = False) -> str:
    """A formula, with its text for readers that see no formulas."""
    return f"#math.equation(block: {str(block).lower()}, alt: {_string(text.strip())}, $ {text.strip()} $.body);"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> int:
    """Writes the article with the numbers of `figures/`, then its PDF; 1 and a line on stderr if it cannot be built."""
    target = ROOT / "build" / "article" / "article.pdf"
    try:
        text = article(FIGURES, SOURCE.parent, json.loads((FIGURES / "run.json").read_text()))
        with new_file(SOURCE) as part:
            part.write_text(text)
        pages, figures = build_article(target=target)
    except ModuleNotFoundError as error:
        print(f"article: {error}; `make article` installs it", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"article: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target.relative_to(ROOT)}: {pages} pages, {figures} figures and tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
