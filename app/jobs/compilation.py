"""Announce numba's compilation: the first use of a kernel on a machine takes seconds without any other output."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from numba.core import event


@contextmanager
def log_compilation(announce: Callable[[str], object]) -> Generator[None]:
    """Announce the first kernel that numba compiles in this process. Later kernels and cached kernels add no line.

    Args:
        announce: Receives the line.
    """
    with event.install_listener("numba:compile", _FirstCompilation(announce)):
        yield


class _FirstCompilation(event.Listener):
    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._is_announced = False

    def on_start(self, event: Any) -> None:
        if self._is_announced:
            return
        self._is_announced = True
        function = event.data["dispatcher"].py_func
        self._announce(
            f"Compiling {function.__module__}.{function.__name__} and other kernels: first use on this machine. "
            "Numba stores them on disk for later runs."
        )

    def on_end(self, event: Any) -> None:
        """Ignore the end of a compilation."""
