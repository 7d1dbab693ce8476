"""What a disk has of a folder after a power cut. The library `power_cut.c` stores a copy of a file at each sync.

Names of files, new or deleted ones included, are on the disk at once.
"""

import random
import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import psutil

ENDS: Final = ("none", "border", "middle", "all")
"""How many of the bytes after the last sync of a log are on the disk."""
_POLL_S: Final = 0.005
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes, of SQLite's log
_PAGE: Final = 8192  # bytes, of PostgreSQL's log and data files
_SEGMENT: Final = re.compile(r"pg_wal/[0-9A-F]{24}")
_PAGES: Final = re.compile(r"(base/\d+|global)/(\d+(_\w+)?(\.\d+)?|pg_control)|pg_(xact|multixact|subtrans)/.*")
_LOST: Final = re.compile(r".*-shm|postmaster\.pid")
"""Files of running processes. SQLite makes a new index of its log."""


class Disk:
    """The files of a folder and what the disk has of them."""

    def __init__(self, parent: Path) -> None:
        """Use two new folders in `parent`, which may be missing."""
        self.folder, self._stored = parent / "data", parent / "disk"
        self.folder.mkdir(parents=True)
        self._stored.mkdir()

    def fill(self, template: Path) -> None:
        """Empty the folder, then copy a template to it. The disk has all of it."""
        for place in (self.folder, self._stored):
            shutil.rmtree(place)
        shutil.copytree(template, self.folder)
        self._stored.mkdir()
        for file in self._list_files():
            shutil.copyfile(file, self._find_stored(file))

    def environment(self, library: Path) -> dict[str, str]:
        """Return the environment variables of the processes whose syncs are recorded."""
        folders = {"EMTC_POWER_CUT_FOLDER": str(self.folder), "EMTC_POWER_CUT_DISK": str(self._stored)}
        return {"LD_PRELOAD": str(library), **folders}

    def take(self, target: Path, end: str, rng: random.Random) -> None:
        """Copy to `target` what the disk may have after a power cut now. The processes must be suspended.

        Args:
            target: The new folder.
            end: One of ENDS.
            rng: Draws what the disk has of bytes that were not synced.
        """
        for folder in (self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())):
            (target / folder.relative_to(self.folder)).mkdir(mode=0o700, parents=True)
        for file in self._list_files():
            newest, place = file.read_bytes(), self._find_stored(file)
            stored = place.read_bytes() if place.exists() else None
            name = str(file.relative_to(self.folder))
            if file.suffix == ".db":
                content = _mix_pages(stored or b"", newest, int.from_bytes(newest[16:18], "big") or 4096, rng)
            elif _PAGES.fullmatch(name):
                content = _mix_pages(stored or b"", newest, _PAGE, rng)
            elif name.endswith("-wal"):
                size = int.from_bytes(newest[8:12], "big") + _FRAME_HEADER
                content = _end_log(stored or b"", newest, range(_LOG_HEADER, len(newest) + 1, size), end, rng)
            elif _SEGMENT.fullmatch(name):
                content = _end_log(stored or b"", newest, range(0, len(newest) + 1, _PAGE), end, rng)
            else:
                content = rng.choice([b"", newest]) if stored is None else stored
            (target / name).write_bytes(content)

    def _list_files(self) -> list[Path]:
        """List the files that a disk keeps."""
        return [file for file in self.folder.rglob("*") if file.is_file() and not _LOST.fullmatch(file.name)]

    def _find_stored(self, file: Path) -> Path:
        return self._stored / str(file.stat().st_ino)


@contextmanager
def suspended(*pids: int) -> Generator[None]:
    """Suspend processes and their children during the block. A process that has ended is not an error."""
    stopped: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            _suspend(parent, stopped)  # it starts no further children
            for child in parent.children(recursive=True):
                _suspend(child, stopped)
    try:
        yield
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def _suspend(process: psutil.Process, stopped: list[psutil.Process]) -> None:
    with suppress(psutil.NoSuchProcess):
        process.suspend()
        stopped.append(process)
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(_POLL_S)


def _mix_pages(stored: bytes, newest: bytes, size: int, rng: random.Random) -> bytes:
    """Take each page of a file from the disk or from the newest content."""
    pages = [rng.choice([stored, newest])[start : start + size] for start in range(0, len(newest), size)]
    return b"".join(page or bytes(size) for page in pages)


def _end_log(stored: bytes, newest: bytes, borders: range, end: str, rng: random.Random) -> bytes:
    """Take the bytes of a log up to one place from the newest content, and later ones from the disk."""
    n = min(len(stored), len(newest))
    (different,) = np.nonzero(np.frombuffer(stored[:n], np.uint8) != np.frombuffer(newest[:n], np.uint8))
    first = int(different[0]) if different.size else n
    last = len(newest) if len(newest) > n else int(different[-1]) + 1 if different.size else n
    place = {
        "none": first,
        "border": rng.choice([border for border in borders if first < border <= last] or [first]),
        "middle": rng.randint(first, last),
        "all": len(newest),
    }[end]
    return newest[:place] + stored[place:]
