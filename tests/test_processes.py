"""Worker processes end, whatever they were doing."""

import os
import signal
import struct
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from drsrobust._processes import pool


def send_half_a_result():
    """In a worker, whose caller has the queue of results."""
    results = sys._getframe(2).f_locals["result_queue"]
    os.write(results._writer.fileno(), struct.pack("!i", 1000) + b"half")


def sleep_then(path):
    send_half_a_result()
    path.write_text("sent")
    time.sleep(60)


def die():
    send_half_a_result()
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted(path):
    with pytest.raises(KeyboardInterrupt), pool(1) as executor:
        executor.submit(sleep_then, path)
        while not path.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt


def killed(ended):
    with pool(2) as executor:
        other = executor.submit(time.sleep, 60)
        with pytest.raises(BrokenProcessPool):
            executor.submit(die).result()
    assert isinstance(other.exception(), BrokenProcessPool)
    ended.set()


def in_thread(function, argument):
    """Such a fault makes the caller wait for good."""
    thread = threading.Thread(target=function, args=(argument,), daemon=True)
    thread.start()
    thread.join(timeout=40)
    assert not thread.is_alive()


def test_an_interrupt_while_a_result_is_sent(tmp_path):
    in_thread(interrupted, tmp_path / "sent")
    assert (tmp_path / "sent").exists()


def test_a_death_while_a_result_is_sent():
    ended = threading.Event()
    in_thread(killed, ended)
    assert ended.is_set()
