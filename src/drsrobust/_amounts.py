"""Amounts of memory as text."""

import re

from drsrobust._arguments import check_whole

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def amount(memory: int | str, name: str = "memory") -> int:
    """Bytes of an amount of memory, as 5_000_000, "5MB", "2GB" or "1 GiB"; `name` is the argument's.

    Raises:
        ValueError: something else.

    Example:
        >>> amount("1.5GB")
        1500000000
    """
    if not isinstance(memory, str):
        return check_whole(name, memory, 0)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f'{name} is {memory!r}; it must be a number of bytes or text as "500MB" or "2GB"')
    return int(float(match[1]) * _UNITS[match[2].upper()])
