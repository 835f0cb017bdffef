"""Kernels that are forked from a process that has imported the notebooks' packages: a new one takes 6 s of a core for that.

The fork server of `side_by_side` imports them (`reproduce.preloaded`). A process that runs a notebook forks the kernel before
it has threads; the kernel waits until papermill says how to start."""

import atexit
import os
import pickle
import signal
import sys
import threading
import traceback
from typing import Any

import psutil
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from drsrobust._processes import cores


class ForkedKernel:
    """A kernel as papermill's provisioner sees a `subprocess.Popen`. It ends when its pipe is closed before it has started."""

    stdin = stdout = stderr = None

    def __init__(self, *unneeded: Any) -> None:
        """Forks.

        Args:
            unneeded: connections of this process, which the kernel closes.
        """
        waiting, self._pipe = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            for connection in unneeded:
                connection.close()
            with os.fdopen(waiting, "rb") as pipe:
                _become_kernel(pipe)
        os.close(waiting)

    def start(self, arguments: list[str], variables: dict[str, str], folder: str | None) -> None:
        """Starts it: arguments after `python -m ipykernel_launcher`, environment variables, working folder."""
        with os.fdopen(self._pipe, "wb") as pipe:
            pickle.dump((arguments, variables, folder), pipe)

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become_kernel(pipe: Any) -> None:
    """In the forked process: waits for the message of `ForkedKernel.start`, and runs a kernel until its end."""
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()  # a signal to the kernel's group reaches its workers too
        arguments, variables, folder = pickle.load(pipe)
        os.environ.clear()
        os.environ.update(variables)
        if "OMP_NUM_THREADS" not in variables:  # PyTorch counted the cores where it was imported
            import torch

            torch.set_num_threads(cores())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if folder:
            os.chdir(folder)
        # ipykernel read JPY_PARENT_PID, of the process with which it ends, when it was imported
        sys.argv = ["ipykernel_launcher", *arguments, f"--IPKernelApp.parent_handle={os.getppid()}"]
        from ipykernel.kernelapp import launch_new_instance

        launch_new_instance(kernel_class=_Kernel)
        status = 0
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception:
        traceback.print_exc()
    finally:
        # As an interpreter ends, and not into the frames of the process that was forked; but for taking all modules apart.
        threading._shutdown()
        atexit._run_exitfuncs()
        os._exit(status)


class _Kernel(IPythonKernel):
    """Ends at once: ipykernel gives children 29 s to end, and counts those that have ended but are not waited for, as the fork
    server of workers."""

    def _process_children(self) -> list[psutil.Process]:
        return [child for child in super()._process_children() if child.status() != psutil.STATUS_ZOMBIE]


class _Provisioner(LocalProvisioner):
    kernel: ForkedKernel

    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        after = cmd.index("ipykernel_launcher") + 1
        self.kernel.start(cmd[after:], options["env"], options.get("cwd"))
        self.process, self.pid, self.pgid = self.kernel, self.kernel.pid, self.kernel.pid
        return self.connection_info


def manager_of(kernel: ForkedKernel) -> type[AsyncKernelManager]:
    """The class of kernel managers of papermill (`kernel_manager_class=`) that start this kernel."""

    class Manager(AsyncKernelManager):
        async def _async_pre_start_kernel(self, **options: Any) -> Any:
            self.provisioner = _Provisioner(kernel_id=self.kernel_id, kernel_spec=self.kernel_spec, parent=self)
            self.provisioner.kernel = kernel
            return await super()._async_pre_start_kernel(**options)

    return Manager
