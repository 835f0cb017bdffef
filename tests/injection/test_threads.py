"""Maps in models of several threads."""

import sys
import threading

from torch import nn

from drsrobust.injection import FixedCount, inject
from drsrobust.injection.application import applied_maps


def test_a_map_is_seen_while_other_threads_put_theirs_in_and_out():
    mine, other = nn.Linear(4, 4), nn.Linear(4, 4)
    interval, done = sys.getswitchinterval(), threading.Event()

    def busy():
        while not done.is_set():
            with inject(other, FixedCount(1), seed=1):
                pass

    thread = threading.Thread(target=busy)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for seed in range(300):  # so that mine comes now before, now after the other thread's
            with inject(mine, FixedCount(1), seed=seed) as error_map:
                assert all(applied_maps(mine) == (error_map,) for _ in range(20))
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
