"""How objects look in a notebook: a small table of facts."""

from collections.abc import Mapping
from html import escape
from typing import Any


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A table as HTML: a heading, and a row for each fact that is not None.

    Example:
        >>> facts("Map", {"bits": 3, "seed": None})
        '<table><caption><b>Map</b></caption><tr><th>bits</th><td>3</td></tr></table>'
    """
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(rows)}</table>"
