"""Threads and worker processes."""

import ast
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path

# Modules that take long to import. A server process imports those that this process has, and forks the workers.
_PRELOADED = ("torch", "torchrec", "pandas", "pyarrow", "drsrobust.campaign.workers", "drsrobust.training.load")


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Sets the number of threads of PyTorch, MKL and FBGEMM inside the block, independent of OMP_NUM_THREADS."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def process_context() -> multiprocessing.context.BaseContext:
    """How worker processes start. The first one starts a server, which imports the packages of this process (5 s); the server
    forks all of them (0.1 s each). They see the environment variables of that moment."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _PRELOADED if name in sys.modules])
    return context


class UnguardedScript(RuntimeError):
    """Worker processes import the main script, and would come to the very call that starts them."""


def check_script() -> None:
    """Refuses to start processes from a line of the main script that they would run again.

    Raises:
        UnguardedScript: the message says which line, and what to do.
    """
    guard = 'put it under `if __name__ == "__main__":`, or compute in one process, by workers=1'
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as `multiprocessing` itself asks
        raise UnguardedScript(f"a worker process came to this call while it imported the script: {guard}")
    if line := _unguarded_line():
        raise UnguardedScript(f"{line} would run again in each worker process, which imports the script: {guard}")


def _unguarded_line() -> str | None:
    """The line of the main script that runs now (`file:number`), if a process that imports the script would run it too."""
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    is_package = spec is not None and spec.name.endswith("__main__")  # `python -m package`, which workers do not import
    if file is None or is_package:
        return None
    frame = sys._getframe()
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None or Path(frame.f_code.co_filename).absolute() != Path(file).absolute():  # typed at a prompt
        return None
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    line = frame.f_lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(word in ast.unparse(node.test) for word in ("__name__", "parent_process")):
            ends = isinstance(node.body[-1], ast.Raise) or "exit" in ast.unparse(node.body[-1])
            if node.lineno <= line <= node.end_lineno or (ends and node.lineno < line):
                return None
    return f"{file}:{line}"


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of new processes, which end at an exception in the block or with this process, even if it is killed.

    Raises:
        UnguardedScript: as `check_script`.
    """
    check_script()
    executor = ProcessPoolExecutor(workers, mp_context=process_context(), initializer=end_with_parent)
    left = threading.Event()
    watcher = threading.Thread(target=_end_after_a_death, args=(executor, left), daemon=True)
    watcher.start()
    try:
        yield executor
    except BaseException:
        left.set()
        watcher.join()
        _end(executor)  # shutdown would wait for unfinished tasks
        raise
    finally:
        left.set()
        watcher.join()  # two threads that close one pipe at once may close another file
        executor.shutdown(wait=True, cancel_futures=True)


def _end(executor: ProcessPoolExecutor) -> None:
    """Ends all processes. One of them may have sent a part of a result: the executor waits for the rest as long as any process
    could write it, which this process could too."""
    for process in list((executor._processes or {}).values()):
        process.terminate()
    if (results := executor._result_queue) is not None:  # the executor may have ended meanwhile
        results._writer.close()


def _end_after_a_death(executor: ProcessPoolExecutor, left: threading.Event, seconds: float = 1.0) -> None:
    """Ends all processes after one has died. The executor does so itself, unless it waits for the rest of that one's result."""
    while not left.wait(seconds):
        sentinels = [process.sentinel for process in list((executor._processes or {}).values())]
        if connection.wait(sentinels, timeout=0) and not left.wait(seconds):
            return _end(executor)


def end_with_parent() -> None:
    """In a child process: ignores Ctrl-C, which the parent handles, and ends when the parent ends."""

    def wait_for_parent() -> None:
        multiprocessing.parent_process().join()
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_parent, daemon=True).start()
