"""A process that opens its database once more keeps the locks of the connections that it has."""

import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from storage.engine import open_database
from tests.process.trainers import environment

OTHER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("UPDATE runs SET name = 'x'").close()
connection.commit()
connection.close()
"""


def test_another_process_that_closes_the_database_keeps_the_write_ahead_log(tmp_path: Path) -> None:
    """POSIX drops all locks of a process on a file at any `close` of it; SQLite's last one to leave removes the log."""
    path = tmp_path / "x.db"
    db = open_database(f"sqlite:///{path}")
    with db.read() as connection:
        connection.execute(text("SELECT count(*) FROM runs")).all()
    log = path.with_name("x.db-wal")
    before = log.stat().st_ino
    open_database(f"sqlite:///{path}").dispose()
    subprocess.run([sys.executable, "-c", OTHER, str(path)], check=True, env=environment())
    assert log.stat().st_ino == before
    db.dispose()
