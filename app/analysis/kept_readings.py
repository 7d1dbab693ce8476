"""Readings of a run that were judged before, kept in its folder beside the database: an export goes on where it ended.

One small file for each reading. Its name tells the run's last step and a digest of everything that decides the numbers:
configuration, number of points, stream, libraries, and the core's own code. So nothing stale is ever read.
"""

import contextlib
import json
import os
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path

from pydantic import TypeAdapter

import emtc_core
from app.analysis.versions import library_versions
from emtc_core.config.resolve import flatten
from emtc_core.config.run import RunConfig
from emtc_core.training.readings import ReadingPoint
from storage.engine import Database, is_read_only
from storage.files.places import local_folder

_POINTS = TypeAdapter(list[ReadingPoint])


class KeptReadings:
    """The readings of one run at one step that need not be judged again."""

    def __init__(self, db: Database, run_id: str, *, env_steps: int, episodes: int) -> None:
        self._folder = local_folder(db, run_id)
        self._stream = [run_id, env_steps, episodes]

    def find(self, config: RunConfig, points: int) -> list[ReadingPoint] | None:
        """Read what was kept of a reading; None where nothing whole is there."""
        try:
            return _POINTS.validate_json(self._file(config, points).read_bytes())
        except (OSError, ValueError):
            return None

    def keep(self, config: RunConfig, points: int, said: list[ReadingPoint]) -> None:
        """Keep a reading, where this process may write."""
        if is_read_only():
            return
        file = self._file(config, points)
        partial = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # what cannot be kept is judged again
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps([asdict(point) for point in said]))
            partial.replace(file)

    def _file(self, config: RunConfig, points: int) -> Path:
        decides = [self._stream, points, flatten(config), library_versions(), _digest_of_core()]
        digest = blake2b(json.dumps(decides, sort_keys=True).encode(), digest_size=8).hexdigest()
        return self._folder / f"gate-reading-{self._stream[1]}-{config.preset}-{digest}.json"


@cache
def _digest_of_core() -> str:
    digest = blake2b(digest_size=8)
    for file in sorted(Path(emtc_core.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
