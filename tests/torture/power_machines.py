"""The machines whose power is cut: a trainer on a SQLite file, and a trainer with its PostgreSQL server.

A template, the machine and each copy of it have a folder `files` for the trainer. `files` contains the SQLite database.
With PostgreSQL there is also a folder `server`, which contains the server's data folder, socket and log. The server
syncs its log with `fdatasync` (`wal_sync_method` on Linux), and everything else with `fsync`. Segments of 1 MB make the
copies at each sync small. Small buffers make the server write its log before it syncs it, and pages of the data files
between its checkpoints. Half of the servers have a checkpoint each second or more often.
"""

import os
import random
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, Literal, Protocol

import pytest
from sqlalchemy import NullPool, create_engine, text

from emtc_core.errors import ConfigError
from tests.postgres import find_server_binaries, give_to_server, make_cluster, running_server
from tests.torture.power_disk import Disk

Engine = Literal["sqlite", "postgresql"]
FILES, SERVER = "files", "server"
FILES_VARIABLE: Final = "XDG_DATA_HOME"
"""The environment variable with the folder for the files of databases on a server."""
SETTINGS: Final = {
    "shared_buffers": "1MB",
    "wal_buffers": "32kB",
    "max_wal_size": "2MB",
    "min_wal_size": "2MB",
    "fsync": "on",
    "wal_sync_method": "fdatasync",
}
_LONGEST_PAUSE_S: Final = 1.0
"""Longest time between two checkpoints of a server."""
NOT_WAITING: Final = {"synchronous_commit": "off", "wal_writer_delay": "10000", "shared_buffers": "16MB"}
"""Settings of a server whose commits do not wait for the disk, and whose log stays in memory for ten seconds.

All pages fit into its memory, because a server syncs its log before it writes a page.
"""


class Machine(Protocol):
    """A machine whose power is cut."""

    template: Path
    environment: dict[str, str]
    """The environment variables of the trainer."""
    files: Path
    """The folder of the trainer."""

    @contextmanager
    def started(self, rng: random.Random) -> Generator[str]:
        """Make the machine from the template, and yield the URL of its database. `rng` draws settings of the server."""
        ...

    def list_servers(self) -> list[int]:
        """List the processes of the machine that are not the trainer."""
        ...

    def take(self, target: Path, end: str, rng: random.Random) -> None:
        """Copy to `target` what the disk may have after a power cut now, see `Disk.take`."""
        ...

    @contextmanager
    def opened(self, folder: Path) -> Generator[str]:
        """Yield the URL of the database of the template or of a copy."""
        ...


class SqliteMachine:
    """A trainer on a SQLite file."""

    def __init__(self, parent: Path, library: Path) -> None:
        """Make a template without a run, in a new folder in `parent`."""
        self.template, self._disk = parent / "template", Disk(parent / "trainer")
        (self.template / FILES).mkdir(parents=True)
        self.environment = self._disk.environment(library)
        self.files = self._disk.folder

    @contextmanager
    def started(self, rng: random.Random) -> Generator[str]:  # nothing is drawn
        """Make the machine from the template, and yield the URL of its database."""
        self._disk.fill(self.template / FILES)
        yield _make_url(self.files)

    def list_servers(self) -> list[int]:
        """Return no process."""
        return []

    def take(self, target: Path, end: str, rng: random.Random) -> None:
        """Copy to `target` what the disk may have after a power cut now."""
        self._disk.take(target / FILES, end, rng)

    @contextmanager
    def opened(self, folder: Path) -> Generator[str]:
        """Yield the URL of the database of the template or of a copy."""
        yield _make_url(folder / FILES)


class PostgresMachine:
    """A trainer and a PostgreSQL server."""

    def __init__(self, parent: Path, library: Path, *, waits: bool | None = None) -> None:
        """Make a template without a run, in a new folder in `parent`.

        Args:
            parent: An existing folder.
            library: The compiled `power_cut.c`.
            waits: Whether commits wait for the disk. None draws at each start whether they wait, and whether the server
                writes its log to the data files repeatedly. This also syncs the log.

        Raises:
            ConfigError: If no server is installed.
        """
        if find_server_binaries() is None:
            raise ConfigError("No PostgreSQL server is installed", hint="Install one, e.g. the package postgresql.")
        self.template, self._disk, self._server = parent / "template", Disk(parent / "trainer"), Disk(parent / SERVER)
        self._waits = waits
        for path in (parent, library.parent):  # the user postgres reads them
            path.chmod(0o755)
        for name in (FILES, SERVER):
            (self.template / name).mkdir(parents=True)
        self.environment, self.files = self._disk.environment(library), self._disk.folder
        self._server_environment = self._server.environment(library)
        make_cluster(self.template / SERVER, "--wal-segsize=1")

    @contextmanager
    def started(self, rng: random.Random) -> Generator[str]:
        """Make the machine from the template, start its server, and yield the URL of its database."""
        self._disk.fill(self.template / FILES)
        self._server.fill(self.template / SERVER / "data")
        folder = self._server.folder.parent
        give_to_server(folder)
        waits = rng.choice([False, True]) if self._waits is None else self._waits
        has_checkpoints = self._waits is None and rng.choice([False, True])
        settings = SETTINGS | ({} if waits else NOT_WAITING)
        with (
            running_server(folder, settings, environment={**os.environ, **self._server_environment}) as url,
            _server_checkpoints(url, random.Random(rng.random())) if has_checkpoints else nullcontext(),
        ):
            yield url

    def list_servers(self) -> list[int]:
        """Return the first process of the server, whose children are the others."""
        return [int((self._server.folder / "postmaster.pid").read_text().split()[0])]

    def take(self, target: Path, end: str, rng: random.Random) -> None:
        """Copy to `target` what the disk may have after a power cut now."""
        self._disk.take(target / FILES, end, rng)
        self._server.take(target / SERVER / "data", end, rng)
        give_to_server(target / SERVER)

    @contextmanager
    def opened(self, folder: Path) -> Generator[str]:
        """Start the server of the template or of a copy, and yield the URL of its database. Its files are found."""
        with (
            pytest.MonkeyPatch.context() as patch,
            running_server(folder / SERVER, {"fsync": "off"}, stop="fast") as url,
        ):
            patch.setenv(FILES_VARIABLE, str(folder / FILES))
            yield url


def make_machine(engine: Engine, parent: Path, library: Path, *, syncs: bool) -> Machine:
    """Make a machine with a database engine. If the recorder does not sync, commits of a server do not wait either."""
    if engine == "sqlite":
        return SqliteMachine(parent, library)
    return PostgresMachine(parent, library, waits=None if syncs else False)


@contextmanager
def _server_checkpoints(url: str, rng: random.Random) -> Generator[None]:
    """Let a server write its log to the data files at random times during the block."""
    ended = threading.Event()

    def repeat() -> None:
        engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            while not ended.wait(rng.uniform(0, _LONGEST_PAUSE_S)):
                connection.execute(text("CHECKPOINT"))

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _make_url(files: Path) -> str:
    return f"sqlite:///{files / 'x.db'}"
