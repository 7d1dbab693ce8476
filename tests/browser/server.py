"""The real app on a free port with its own database, and a real browser in front of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.bench.browser import served


@contextmanager
def running_app(
    database: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start the app and yield its address; it ends with the block, its trainers do not."""
    with served(f"sqlite:///{database}", database.with_suffix(".streamlit.log"), *options, port=port, env=env) as url:
        yield url
