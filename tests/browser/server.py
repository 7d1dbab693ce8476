"""The real app on a free port with its own database, and a page of a real browser in front of it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.app_server import serve_app

PATIENCE_MS = 120_000
"""How long a page may take to show what it must: a busy machine is slow, and no fault of the page."""

SIZE = {"width": 1400, "height": 1600}
"""Of a page that asks for no other."""


@contextmanager
def running_app(
    database: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start the app with a SQLite file and yield its address; it ends with the block, its trainers do not."""
    log = database.with_suffix(".streamlit.log")
    with serve_app(f"sqlite:///{database}", log, *options, port=port, env=env) as url:
        yield url


def open_page(browser: Any, width: int = SIZE["width"], height: int = SIZE["height"]) -> Any:
    """Open an empty page in a context of its own, as a reader who comes for the first time has it."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(PATIENCE_MS)
    return page


def wait_until(page: Any, ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_MS} ms"
        page.wait_for_timeout(100)
