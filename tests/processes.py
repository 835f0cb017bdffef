"""Processes that tests kill. They are forked from one that has imported the package, which takes 0.1 s; a script takes 5 s."""

import os
from collections.abc import Callable
from typing import Any

from drsrobust._processes import process_context


def start(run: Callable[..., None], *arguments: Any) -> Any:
    """Calls a function of a module in a process of its own, which sees this process's cache folder."""
    cache = os.environ["DRSROBUST_CACHE"]
    process = process_context().Process(target=_call, args=(cache, run, *arguments), daemon=True)
    process.start()
    return process


def _call(cache: str, run: Callable[..., None], *arguments: Any) -> None:
    os.environ["DRSROBUST_CACHE"] = cache
    run(*arguments)
