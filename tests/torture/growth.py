"""Measure the growth of memory and open handles of processes during a storm, among them an app with open pages.

A process that does not leak has a slope near 0 after its caches are filled.
"""

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from storage.engine import Database
from tests.app_server import open_page, serve_app

PAGES = ("", "live", "compare")
"""Home, Live and Compare: a list, a running run, and curves over seeds. All three refresh themselves."""
INTERVAL_S = 5.0
_WARM_UP_SHARE = 1 / 3
"""Share of the samples that the slope ignores, because caches are filled and modules are loaded."""
_HOUR_S, _MB = 3600.0, 1e6


@dataclass
class Gauge:
    """Samples of the memory and the handles of one process."""

    name: str
    process: psutil.Process
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    """Time [s], memory [MB], number of open files and sockets."""

    def measure(self) -> None:
        """Add a sample if the last one is at least INTERVAL_S old."""
        now = time.monotonic()
        if self.samples and now - self.samples[-1][0] < INTERVAL_S:
            return
        with suppress(psutil.Error):  # the process has ended
            self.samples.append((now, self.process.memory_info().rss / _MB, float(self.process.num_fds())))

    def compute_slopes(self) -> tuple[float, float]:
        """Return the growth of memory [MB/hour] and handles [1/hour] after the warm-up, NaN for less than 3 samples."""
        warm = self.samples[int(len(self.samples) * _WARM_UP_SHARE) :]
        if len(warm) < 3:
            return float("nan"), float("nan")
        at, memory, handles = np.array(warm).T
        hours = (at - at[0]) / _HOUR_S
        return float(np.polyfit(hours, memory, 1)[0]), float(np.polyfit(hours, handles, 1)[0])

    def describe(self) -> str:
        """Write the first sample, the sample at the end of the warm-up, and the last one."""
        warm = self.samples[int(len(self.samples) * _WARM_UP_SHARE)]
        first, last = self.samples[0], self.samples[-1]
        return " → ".join(f"{memory:.0f} MB, {handles:.0f} handles" for _, memory, handles in (first, warm, last))


@contextmanager
def open_app(db: Database, pages: int) -> Generator[Gauge]:
    """Serve the app on a database, open `pages` of its pages in a browser, and yield a gauge of the server.

    Raises:
        ConfigError: If there is no browser.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        before = _list_children()
        address = stack.enter_context(serve_app(db.url, Path(folder) / "app.txt"))
        server = next(child for child in _list_children() - before if "streamlit" in child.cmdline())
        first = stack.enter_context(open_page())
        tabs = [first, *(first.context.browser.new_page() for _ in range(pages - 1))]
        for tab, name in zip(tabs, PAGES * pages, strict=False):
            tab.goto(f"{address}/{name}", timeout=120_000)
        yield Gauge("app", server)


def _list_children() -> set[psutil.Process]:
    return set(psutil.Process().children())
