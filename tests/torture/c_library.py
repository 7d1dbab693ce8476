"""Libraries in C that a process loads before all others (LD_PRELOAD), to change or record its system calls."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path

from emtc_core.errors import ConfigError
from tests.torture.fleet import PRELOADED_MODULES


@contextmanager
def compile_library(source: Path, purpose: str) -> Generator[Path]:
    """Compile a library in a temporary folder, which is deleted at the end.

    Args:
        source: The C file.
        purpose: What needs the library, for the message of the error, in the plural.

    Raises:
        ConfigError: If this is not Linux, or there is no C compiler.
    """
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        raise ConfigError(f"{purpose} need Linux and a C compiler, cc", hint="Install one, e.g. the package gcc.")
    with tempfile.TemporaryDirectory(prefix="emtc-library-") as folder:
        library = Path(folder) / f"{source.stem}.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        yield library


@contextmanager
def open_context(environment: Mapping[str, str]) -> Generator[ForkServerContext]:
    """Yield a context whose processes have loaded the learner's libraries and have additional environment variables."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield context
    finally:
        os.environ.clear()
        os.environ.update(before)
