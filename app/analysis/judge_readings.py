"""One run's recorded episodes, judged by every reading of the paper: what the figure gate-readings shows.

This module runs memory, embedder and gate, so nothing on a page imports it; the command line does, when asked.

Readings of a run that were judged before, kept in its folder beside the database: an export goes on where it ended.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from pydantic import TypeAdapter

from app.analysis.provenance import digest_of_core, library_versions
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from emtc_core.config.run import PresetName, RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.rollout.episode import Episode
from emtc_core.training.readings import ReadingPoint, find_shared, read_together
from storage.engine import Database, is_read_only, open_database
from storage.files.places import local_folder
from storage.queries.episodes import iter_trajectories, list_episodes
from storage.runs.rows import RunRow

_POINTS = TypeAdapter(list[ReadingPoint])


@dataclass(frozen=True)
class Reading:
    """What one reading of the paper said about the episodes: its points in order."""

    name: str
    points: Sequence[ReadingPoint]

    def series(self, value: Callable[[ReadingPoint], float]) -> NDArray[np.float64]:
        """One number of every point, as an array."""
        return np.array([value(point) for point in self.points], np.float64)


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
        decides = [self._stream, points, flatten(config), library_versions(), digest_of_core()]
        digest = blake2b(json.dumps(decides, sort_keys=True).encode(), digest_size=8).hexdigest()
        return self._folder / f"gate-reading-{self._stream[1]}-{config.preset}-{digest}.json"


READINGS: tuple[PresetName, ...] = ("paper", "emu_index", "prewrite", "literal_raw", "wide")
POINTS = 100
OnProgress = Callable[[str, float, float], None]
"""Hears which readings are judged now, the share of their own that is done, and the share of all."""
_OF_THE_METHOD = ("memory.", "embed.", "gate.", "incentive.")


def judge_readings(
    db: Database,
    rows: Sequence[RunRow],
    *,
    on_progress: OnProgress,
    refit_every: int | None = None,
    jobs: int | None = None,
) -> list[Reading]:
    """Judge one run's stream under each reading.

    What was judged before, also by an export that was interrupted, is not judged again.

    Args:
        db: Where the run is recorded.
        rows: The run, alone.
        on_progress: Told after every episode, or each half second where several processes judge.
        refit_every: Refit each reading's embedder this often [env steps]; None: as the reading itself says.
        jobs: Processes; None: one for each core, and this one alone for a short stream. They change no number.

    Raises:
        ConfigError: If it is not one run, or the run recorded no episode.
    """
    if len(rows) != 1:
        raise ConfigError(f"evaluates the episodes of one run, got {len(rows)} runs", key="gate-readings")
    row = rows[0]
    run = config_from_stored(row.config)
    numbers = list_episodes(db, row.id, "episode", limit=10_000_000)["episode"].tolist()
    if not numbers:
        raise ConfigError(f"Run {row.id} has recorded no episode yet", hint="Let it train on.")
    configs = [configure(run, preset, steps=row.env_steps, refit_every=refit_every) for preset in READINGS]
    kept = KeptReadings(db, row.id, env_steps=row.env_steps, episodes=len(numbers))
    said = [kept.find(config, POINTS) for config in configs]
    missing = [place for place, points in enumerate(said) if points is None]
    groups = [[missing[i] for i in places] for places in find_shared([configs[place] for place in missing])]
    stream = _Stream(db, row, run, numbers)
    usual = psutil.cpu_count() or 1 if row.env_steps >= _WORTH_PROCESSES else 1
    processes = min(jobs or usual, len(groups))
    judge = _judge_in_turn if processes <= 1 else partial(_judge_side_by_side, processes=processes)
    for number, points in judge(stream, [[configs[place] for place in group] for group in groups], on_progress):
        for place, found in zip(groups[number], points, strict=True):
            said[place] = found
            kept.keep(configs[place], POINTS, found)
    return [Reading(name, points) for name, points in zip(READINGS, said, strict=True) if points is not None]


_WORTH_PROCESSES = 50_000
"""Env steps; below, starting processes takes longer than judging."""
_LOOK_EVERY = 0.5
"""Seconds between two looks at what other processes have reached."""
_Judged = Iterator[tuple[int, list[list[ReadingPoint]]]]
"""The number of each group once it is done, with the points of its readings."""


@dataclass(frozen=True)
class _Stream:
    """One run's recorded episodes."""

    db: Database
    row: RunRow
    run: RunConfig
    numbers: Sequence[int]

    def judge(self, configs: Sequence[RunConfig], on_share: Callable[[float], None]) -> list[list[ReadingPoint]]:
        """Judge all of it by readings that write one memory; `on_share` hears what share is done."""
        steps = max(1, self.row.env_steps)
        episodes = _episodes(self.db, self.row.id, self.numbers, self.run)
        info = _info(self.db, self.row, self.run)
        return read_together(
            configs, info, episodes, points=POINTS, on_step=lambda step: on_share(min(1.0, step / steps))
        )


def _judge_in_turn(stream: _Stream, groups: Sequence[Sequence[RunConfig]], on_progress: OnProgress) -> _Judged:
    for number, group in enumerate(groups):
        names = _name(group)

        def tell(share: float, names: str = names, number: int = number) -> None:
            on_progress(names, share, (number + share) / len(groups))

        yield number, stream.judge(group, tell)


def _judge_side_by_side(
    stream: _Stream, groups: Sequence[Sequence[RunConfig]], on_progress: OnProgress, *, processes: int
) -> _Judged:
    """Judge each group in a process of its own; groups share no number, so nothing but the order of ends differs.

    joblib's processes, for unlike the standard library's they need no guard in the script that asks. What each has
    reached stands in a file that all map.
    """
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "shares")
        shares = np.memmap(file, np.float64, "w+", shape=(len(groups),))
        tasks = (
            delayed(_judge_apart)(stream.db.url, stream.row, stream.numbers, group, file, number)
            for number, group in enumerate(groups)
        )
        with _telling(shares, [_name(group) for group in groups], on_progress):
            for done in Parallel(n_jobs=processes, return_as="generator_unordered")(tasks):
                assert done is not None  # joblib's types allow it
                yield done


def _judge_apart(
    url: str, row: RunRow, numbers: Sequence[int], configs: Sequence[RunConfig], file: str, number: int
) -> tuple[int, list[list[ReadingPoint]]]:
    """Judge one group in this process, which leaves the other cores to others."""
    torch.set_num_threads(1)
    shares = np.memmap(file, np.float64, "r+")
    stream = _Stream(open_database(url, read_only=True), row, config_from_stored(row.config), numbers)
    return number, stream.judge(configs, lambda share: shares.__setitem__(number, share))


@contextlib.contextmanager
def _telling(shares: NDArray[np.float64], names: Sequence[str], on_progress: OnProgress) -> Generator[None]:
    """Tell again and again which groups are at work and how far they are, until the end."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_LOOK_EVERY):
            at_work = [at for at, share in enumerate(shares) if 0 < share < 1]
            if at_work:
                on_progress(", ".join(names[at] for at in at_work), float(shares[at_work].mean()), float(shares.mean()))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def _name(group: Sequence[RunConfig]) -> str:
    return ", ".join(config.preset for config in group)


def configure(run: RunConfig, preset: PresetName, *, steps: int, refit_every: int | None = None) -> RunConfig:
    """Take memory, embedder and gate from a preset, everything else from the run; refit at another interval if told."""
    algo = run.algo if run.algo.startswith("emtc-") else f"emtc-{run.backbone}"
    own = flatten(resolve(env=run.env.name, map=run.env.map, algo=algo, steps=steps, preset=preset))
    method = {key: value for key, value in own.items() if key.startswith(_OF_THE_METHOD)}
    kept = {key: value for key, value in flatten(run).items() if key.startswith(("env.", "train."))}
    values = {key: value for key, value in (kept | method).items() if value is not None}
    coarser = {} if refit_every is None else {"embed.interval": refit_every}
    return resolve(
        env=run.env.name, map=run.env.map, algo=algo, steps=steps, seed=run.seed, preset=preset,
        overrides=values | {"train.t_max": steps} | coarser,
    )  # fmt: skip


def _info(db: Database, row: RunRow, run: RunConfig) -> EnvInfo:
    """The sizes; what cannot be asked of the environment is read from the first episode."""
    known = get_env_info(run.env)
    if known is not None:
        return known
    first = next(iter_trajectories(db, row.id, [1]))
    longest = int(list_episodes(db, row.id, "-length", limit=1)["length"].iloc[0])
    n_agents = first.action.shape[1]
    return EnvInfo(
        row.env, row.map, n_agents, int(first.action.max()) + 1, 1, first.state.shape[1], longest, (0.0, 1.0)
    )


def _episodes(db: Database, run_id: str, numbers: Sequence[int], run: RunConfig) -> Iterator[Episode]:
    for told in iter_trajectories(db, run_id, numbers):
        steps, n_agents = told.action.shape
        yield Episode(
            obs=np.zeros((steps + 1, n_agents, 1), np.float32),
            state=told.state,
            avail=np.ones((steps + 1, n_agents, 1), np.bool_),
            action=told.action,
            reward=told.reward,
            terminated=not run.train.bootstrap_on_timeout,
            truncated=run.train.bootstrap_on_timeout,
            won=told.won,
            episode_return=told.episode_return,
        )
