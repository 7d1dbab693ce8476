"""Who looks on while a storm rages: an app with open pages, and a gauge of the memory and files that processes hold.

Neither takes part. What they hold after an hour must be what they held after ten minutes; a slope says so.
"""

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from app.bench.atlas import opened_page, served
from storage.engine import Database

PAGES = ("", "live", "compare")
"""Home, Live and Compare: a list, a living run and curves over seeds, which all renew themselves."""
EVERY_S = 5.0
_SETTLED = 1 / 3
"""Of the time, until caches are full and what is loaded late is loaded."""
_HOUR_S, _MB = 3600.0, 1e6


@dataclass
class Gauge:
    """What one process held, looked at again and again."""

    name: str
    process: psutil.Process
    seen: list[tuple[float, float, float]] = field(default_factory=list)
    """Time [s], memory [MB], open files and sockets."""

    def look(self) -> None:
        """Note what it holds now, if the last note is old enough."""
        now = time.monotonic()
        if self.seen and now - self.seen[-1][0] < EVERY_S:
            return
        with suppress(psutil.Error):  # it has ended
            self.seen.append((now, self.process.memory_info().rss / _MB, float(self.process.num_fds())))

    def slopes(self) -> tuple[float, float]:
        """By how much its memory [MB] and its handles grow in an hour, once it has settled; NaN if it was too short."""
        settled = self.seen[int(len(self.seen) * _SETTLED) :]
        if len(settled) < 3:
            return float("nan"), float("nan")
        at, memory, handles = np.array(settled).T
        hours = (at - at[0]) / _HOUR_S
        return float(np.polyfit(hours, memory, 1)[0]), float(np.polyfit(hours, handles, 1)[0])

    def tell(self) -> str:
        """Write what it held at first, when it had settled, and in the end."""
        middle = self.seen[int(len(self.seen) * _SETTLED)]
        first, last = self.seen[0], self.seen[-1]
        return " → ".join(f"{memory:.0f} MB, {files:.0f} handles" for _, memory, files in (first, middle, last))


@contextmanager
def open_app(db: Database, pages: int) -> Generator[Gauge]:
    """Serve the app on a database and keep that many pages of it open in a browser.

    Raises:
        ConfigError: If there is no browser.
    """
    with TemporaryDirectory() as folder, ExitStack() as held:
        before = _children()
        address = held.enter_context(served(db.url, Path(folder) / "app.txt", env={"EMTC_WARM_UP": "0"}))
        server = next(child for child in _children() - before if "streamlit" in child.cmdline())
        first = held.enter_context(opened_page())
        tabs = [first, *(first.context.browser.new_page() for _ in range(pages - 1))]
        for tab, name in zip(tabs, PAGES * pages, strict=False):
            tab.goto(f"{address}/{name}", timeout=120_000)
        yield Gauge("app", server)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children())
