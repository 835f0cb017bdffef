"""A Python that has imported what takes seconds: each script of a test runs in a process that is forked from it.

A script finds its own modules, folder, arguments and environment variables as in a new interpreter. Tests of what an import
does, of memory, and of PYTHONHASHSEED need a new interpreter.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

MODULES = (
    "torch",
    "pandas",
    "scipy.stats",
    "drsrobust.campaign.workers",
    "drsrobust.mitigation",
    "drsrobust_extras.pages.plots",
)


class WarmPython:
    """An interpreter that has imported modules.

    Args:
        python: of the environment.
        modules: that it imports.
    """

    def __init__(self, python: Path | str = sys.executable, modules: tuple[str, ...] = MODULES) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self._process = subprocess.Popen([python, "-P", __file__, *modules], **self._pipes)

    def run(
        self, *arguments: Path | str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        """As `subprocess.run([python, *arguments], cwd=cwd, env=env, capture_output=True, text=True)`.

        Args:
            arguments: a script or `-c` and code, and its arguments.
        """
        words = [str(argument) for argument in arguments]
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
            asked = [words, str(cwd or Path.cwd()), dict(os.environ if env is None else env), out.name, errors.name]
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            said = (Path(file.name).read_text() for file in (out, errors))
            return subprocess.CompletedProcess(words, status, *said)

    def close(self) -> None:
        self._process.communicate()  # it ends with its input


def _serve() -> None:
    """Forks a process for every line of the input, and writes its exit status."""
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            _become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(words: list[str], folder: str, variables: dict[str, str], out: str, errors: str) -> None:
    """In the forked process: runs the script as `__main__`, and ends."""
    status = 1
    try:
        for number, file in ((0, os.devnull), (1, out), (2, errors)):
            os.dup2(os.open(file, os.O_RDWR), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None  # TMPDIR may be another
        sys.path[:0] = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
        script, sys.argv = words[0], words
        sys.path.insert(0, "" if script == "-c" else str(Path(script).resolve().parent))
        if script == "-c":
            sys.argv = ["-c", *words[2:]]
            module = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(module))
        else:
            runpy.run_path(str(Path(script).absolute()), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:  # as an interpreter ends, and not into the frames of the process that was forked
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    _serve()
