"""PostgreSQL for tests and benchmarks: a private server on a Unix socket, databases, network latency and outages.

If EMTC_TEST_POSTGRES contains a URL, this server is used instead of a private one.
"""

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from sqlalchemy import NullPool, create_engine, make_url, text

SERVER_VARIABLE = "EMTC_TEST_POSTGRES"
_PREFIX = "emtc-pg-"


def find_server_binaries() -> Path | None:
    """Find the folder of `initdb` and `pg_ctl`. Return None if no server is installed."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return packaged[-1].parent if packaged else Path(on_path).parent if on_path else None


def is_server_available() -> bool:
    """Return whether `open_server` can give a URL."""
    return bool(os.environ.get(SERVER_VARIABLE)) or find_server_binaries() is not None


@contextmanager
def open_server(*, fsync: bool) -> Generator[str]:
    """Yield the URL of a server's database `postgres`. A private server ends with the block.

    Args:
        fsync: Whether a private server writes as durably as a server in production. Tests do not need this.

    Raises:
        FileNotFoundError: If EMTC_TEST_POSTGRES is unset and no server is installed.
    """
    given_url = os.environ.get(SERVER_VARIABLE)
    if given_url:
        yield given_url
        return
    if find_server_binaries() is None:
        raise FileNotFoundError(f"no PostgreSQL server is installed and {SERVER_VARIABLE} is unset")
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        make_cluster(folder)
        with running_server(folder, {"fsync": "on" if fsync else "off"}) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_cluster(folder: Path, *options: str) -> None:
    """Make the data folder of a private server, `data` in `folder`.

    Args:
        folder: An existing folder.
        options: Further options of `initdb`.
    """
    give_to_server(folder)
    command = ("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    _call(folder, *command, *options)


def give_to_server(folder: Path) -> None:
    """Give a folder and its files to the user `postgres`, if this process is root. A server cannot run as root."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, "postgres", "postgres")


@contextmanager
def running_server(
    folder: Path,
    settings: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    stop: Literal["immediate", "fast"] = "immediate",
) -> Generator[str]:
    """Start the server of `make_cluster`, and yield the URL of its database `postgres`.

    Args:
        folder: The folder of `make_cluster`, or a copy. The server's socket and log are in it.
        settings: Settings of the server.
        environment: The server's environment variables; None for those of this process.
        stop: `immediate`, as in a crash, or `fast`, which completes the files first.
    """
    named = {"listen_addresses": "", "max_connections": "40", **settings}
    options = ["-k", str(folder), *(part for name, value in named.items() for part in ("-c", f"{name}={value}"))]
    _start(folder, shlex.join(options), environment)
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    finally:
        _stop(folder, stop)


@contextmanager
def temporary_postgres_database(server_url: str, template: str = "template1") -> Generator[str]:
    """Create a database, yield its URL, and drop it."""
    name = f"emtc_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)  # an outage breaks idle ones
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@contextmanager
def add_latency(url: str, *, delay_s: float) -> Generator[str]:
    """Yield a URL of the same private server with a network latency of `delay_s` [s] per query and answer."""
    name = f"/.s.PGSQL.{make_url(url).port or 5432}"
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}{name}")
        listener.listen()
        target = f"{_get_folder(url)}{name}"
        threading.Thread(target=_forward_connections, args=(listener, target, delay_s / 2), daemon=True).start()
        yield make_url(url).update_query_dict({"host": folder}).render_as_string(hide_password=False)


def is_private(url: str) -> bool:
    """Return whether a URL belongs to a server that `open_server` started, so that `outage` can stop it."""
    return _get_folder(url).name.startswith(_PREFIX)


@contextmanager
def outage(url: str) -> Generator[None]:
    """Stop a private server immediately, as in a crash of its machine, and start it again after the block.

    Raises:
        ValueError: If `open_server` did not start the server.
    """
    folder = _get_folder(url)
    if not is_private(url):
        raise ValueError(f"only a private server can be stopped, not {url}")
    options = shlex.split((folder / "data" / "postmaster.opts").read_text())[3:]  # without the program and its -D
    _stop(folder)
    try:
        yield
    finally:
        _start(folder, shlex.join(options))


def _forward_connections(listener: socket.socket, target: str, delay_s: float) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            client = listener.accept()[0]
            server = socket.socket(socket.AF_UNIX)
            server.connect(target)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_forward_bytes, args=(*ends, delay_s), daemon=True).start()


def _forward_bytes(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Forward bytes. Each part is delayed by `delay_s` from its arrival, independently of the other parts."""
    waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_send_when_due, args=(waiting, target), daemon=True).start()
    with suppress(OSError):
        while data := source.recv(1 << 16):
            waiting.put((time.monotonic() + delay_s, data))
    waiting.put((0.0, b""))


def _send_when_due(waiting: "SimpleQueue[tuple[float, bytes]]", target: socket.socket) -> None:
    with suppress(OSError):
        while (part := waiting.get())[1]:
            due, data = part
            time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _get_folder(url: str) -> Path:
    host = make_url(url).query.get("host", "")
    return Path(host if isinstance(host, str) else host[0])


def _start(folder: Path, options: str, environment: Mapping[str, str] | None = None) -> None:
    command = ("pg_ctl", "-D", folder / "data", "-w", "-o", options, "-l", folder / "log", "start")
    _call(folder, *command, environment=environment)


def _stop(folder: Path, mode: str = "immediate") -> None:
    _call(folder, "pg_ctl", "-D", folder / "data", "-w", "-m", mode, "stop")


def _call(folder: Path, program: str, *options: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a program of PostgreSQL, as the user `postgres` if this process is root."""
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    command = [*as_user, str((find_server_binaries() or Path()) / program), *map(str, options)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)
