"""The progress bar of a campaign."""

import time

from drsrobust._progress import count_done, progress_bar
from drsrobust.campaign.schedule import Schedule


class CampaignProgress:
    """A progress bar of trials, with finished conditions and the time left."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule = schedule
        self._bar = progress_bar(schedule.total, name, progress=True)
        self._bar.bar_format = "{desc}: {percentage:.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"  # one time left, not two
        self._since, self._before, self._looked = time.monotonic(), schedule.computed, 0.0
        self._counted = 0  # of trials, those of earlier runs as well
        self._workers = 0  # 0: this process

    def __enter__(self) -> "CampaignProgress":
        count_done("stored", self._before)  # of the trials
        self.update()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def working(self, workers: int) -> None:
        """Notes how many workers there are now."""
        self._workers = workers

    def update(self) -> None:
        count_done("trials", self._schedule.computed - self._counted)
        self._counted = self._schedule.computed
        if self._bar.disable:
            return
        self._bar.total = self._schedule.total
        self._bar.update(self._schedule.computed - self._bar.n)
        now = time.monotonic()
        if now - self._looked > 0.5:
            self._looked = now
            self._bar.set_postfix_str(self.text(now - self._since), refresh=False)

    def text(self, elapsed: float) -> str:
        """As `2:10 left, 3/12 conditions, 4 workers, 12.5 trials/s`: what does not fit is cut off at the end."""
        parts = [f"{self._schedule.conditions_done}/{self._schedule.n_conditions} conditions"]
        parts += [f"{self._workers} workers"] if self._workers else []
        seconds = self._schedule.seconds_left()
        computed = self._schedule.computed - self._before
        parts += [f"{computed / elapsed:.3g} trials/s"] if computed and elapsed else []
        if seconds is not None and computed and elapsed:
            # Several workers run at a time.
            seconds /= max(self._schedule.seconds_since() / elapsed, 0.1)
            parts.insert(0, f"{int(seconds // 60)}:{int(seconds % 60):02d} left")
        return ", ".join(parts)
