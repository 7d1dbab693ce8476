"""A disk that is full for this process alone."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: the kernel refuses it as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
