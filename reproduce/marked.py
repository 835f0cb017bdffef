"""Parts of a page that are made from a run's tables, between two marks."""


def replaced(text: str, begin: str, end: str, table: str, thing: str) -> str:
    """A text with `table` between its two marks, and nothing of what stood there.

    Args:
        begin, end: the marks.
        thing: what the table is of, for the message.

    Raises:
        ValueError: the marks are not there.

    Example:
        >>> replaced("a <1> old <2> b", "<1>", "<2>", "new", "news")
        'a <1>\\nnew\\n<2> b'
    """
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"there is no place for the table of {thing}: {begin!r} and {end!r} mark it")
    return f"{before}{begin}\n{table}\n{end}{after}"
