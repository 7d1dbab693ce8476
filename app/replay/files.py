"""Episodes by name → the file of a replay, for `emtc export --replay` and the page's buttons."""

from collections.abc import Sequence
from typing import Literal, get_args

from app.analysis.provenance import describe_runs
from app.figures.theme import Mode
from app.replay.drawing import to_gif, to_svg
from app.replay.offline import make_page
from app.replay.replay import Replay, make_replay, tell_apart
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import get_playback, get_trajectory
from storage.runs.rows import find_run

Format = Literal["html", "gif", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
MIME: dict[Format, str] = {"html": "text/html", "gif": "image/gif", "svg": "image/svg+xml"}


def read_replays(db: Database, wanted: Sequence[tuple[str, str]]) -> list[Replay]:
    """Read episodes, each as the beginning of a run's id and a name: "512", or "80000-0" for a playback.

    Raises:
        ConfigError: If a name is none.
        StorageError: If there is no such run or episode.
    """
    return tell_apart([_read(db, run, name) for run, name in wanted])


def _read(db: Database, prefix: str, name: str) -> Replay:
    parts = name.split("-")
    if len(parts) > 2 or not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in parts):
        raise ConfigError(f"An episode is named by its number, or as 80000-0 for a playback, got {name[:80]!r}.")
    run = find_run(db, prefix)
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        return make_replay(run, get_trajectory(db, run.id, numbers[0]), training=True)
    return make_replay(run, get_playback(db, run.id, *numbers), training=False)


def make_file(replays: Sequence[Replay], format: Format, *, t: int = 0, mode: Mode = "light") -> bytes:
    """Write one or two episodes as a page that plays offline, as an animation, or step `t` of them as vectors.

    The page follows the reader's own light or dark theme; it starts at `t`.
    """
    sides = [replay.side for replay in replays]
    runs = {replay.run.id: replay.run for replay in replays}
    sources = describe_runs(
        {id: run.config for id, run in runs.items()}, {id: run.versions for id, run in runs.items()}
    )
    if format == "html":
        return make_page(sides, start=t, sources=sources)
    return to_gif(sides, mode=mode) if format == "gif" else to_svg(sides, frame=t, mode=mode, sources=sources)
