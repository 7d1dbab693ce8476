"""Evaluation of a run's recorded episodes by several readings of the paper: the data of the figure gate-readings.

A reading is an interpretation of the paper where its text allows several. This module runs memory, embedder and gate,
so pages must not import it; the command line does. Results are cached in the run's folder next to the database, so an
interrupted export continues where it ended.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from pydantic import TypeAdapter

from app.analysis.provenance import hash_core, library_versions
from emtc_core.atomic_file import replace_atomically
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from emtc_core.config.run import PresetName, RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.rollout.episode import Episode
from emtc_core.training.readings import ReadingPoint, group_by_memory, replay_readings
from storage.engine import Database, is_read_only, open_database
from storage.files import run_folder
from storage.private_files import make_private_folder
from storage.queries.episodes import iter_trajectories, list_episodes
from storage.runs.rows import RunRow

READINGS: tuple[PresetName, ...] = ("paper", "emu_index", "prewrite", "literal_raw", "wide")
POINTS = 100
"""Number of points of each reading."""
OnProgress = Callable[[str, float, float], None]
"""Called with the names of the current readings, their finished fraction and the finished fraction of all readings."""
_RESULTS = TypeAdapter(list[ReadingPoint])
_METHOD_SETTINGS = ("memory.", "embed.", "gate.", "incentive.")
_MIN_STEPS_FOR_PROCESSES = 50_000
"""Env steps of a run; below this, starting processes takes longer than the evaluation."""
_POLL_INTERVAL_S = 0.5
"""Time between two progress reports of other processes."""
_GroupResults = Iterator[tuple[int, list[list[ReadingPoint]]]]
"""For each finished group: its number and the points of its readings."""


@dataclass(frozen=True)
class GateReading:
    """One reading of the paper, evaluated at several points of a run."""

    name: str
    points: Sequence[ReadingPoint]

    def series(self, value: Callable[[ReadingPoint], float]) -> NDArray[np.float64]:
        """Compute one number per point."""
        return np.array([value(point) for point in self.points], np.float64)


class ReadingCache:
    """Cached readings of one run at one env step."""

    def __init__(self, db: Database, run_id: str, *, env_steps: int, episodes: int) -> None:
        self._folder = run_folder(db, run_id)
        self._key = [run_id, env_steps, episodes]

    def find(self, config: RunConfig, points: int) -> list[ReadingPoint] | None:
        """Read a cached reading; None if there is no valid file."""
        try:
            return _RESULTS.validate_json(self._file(config, points).read_bytes())
        except (OSError, ValueError):
            return None

    def save(self, config: RunConfig, points: int, result: list[ReadingPoint]) -> None:
        """Save a reading, unless this process is read-only."""
        if is_read_only():
            return
        with contextlib.suppress(OSError):  # without a cache the reading is evaluated again
            make_private_folder(self._folder)
            with replace_atomically(self._file(config, points), private=True) as file:
                file.write(json.dumps([asdict(point) for point in result]).encode())

    def _file(self, config: RunConfig, points: int) -> Path:
        inputs = [self._key, points, flatten(config), library_versions(), hash_core()]
        digest = blake2b(json.dumps(inputs, sort_keys=True).encode(), digest_size=8).hexdigest()
        return self._folder / f"gate-reading-{self._key[1]}-{config.preset}-{digest}.json"


@dataclass(frozen=True)
class _RecordedRun:
    """A run and the numbers of its recorded episodes."""

    db: Database
    row: RunRow
    config: RunConfig
    episodes: Sequence[int]

    def evaluate(self, configs: Sequence[RunConfig], on_fraction: Callable[[float], None]) -> list[list[ReadingPoint]]:
        """Evaluate the episodes by readings that share one memory; `on_fraction` gets the finished fraction."""
        steps = max(1, self.row.env_steps)
        return replay_readings(
            configs,
            _get_sizes(self.db, self.row, self.config),
            _iter_episodes(self.db, self.row.id, self.episodes, self.config),
            points=POINTS,
            on_step=lambda step: on_fraction(min(1.0, step / steps)),
        )


def evaluate_readings(
    db: Database,
    rows: Sequence[RunRow],
    *,
    on_progress: OnProgress,
    refit_every: int | None = None,
    jobs: int | None = None,
) -> list[GateReading]:
    """Evaluate the episodes of one run by each reading. Cached results are reused.

    Args:
        db: Database of the run.
        rows: The run, as the only row.
        on_progress: Called after every episode, or every half second with several processes.
        refit_every: Interval of the refits of each embedder [env steps]; None for that of the reading.
        jobs: Number of processes; None for one per core, or one for a short run. The results do not depend on it.

    Raises:
        ConfigError: If there is not exactly one run, or the run has no recorded episode.
    """
    if len(rows) != 1:
        raise ConfigError(f"needs exactly one run, got {len(rows)}", key="gate-readings")
    row = rows[0]
    config = config_from_stored(row.config)
    episodes = list_episodes(db, row.id, "episode", limit=10_000_000)["episode"].tolist()
    if not episodes:
        raise ConfigError(f"Run {row.id} has no recorded episodes yet", hint="Continue its training first.")
    configs = [make_reading_config(config, preset, steps=row.env_steps, refit_every=refit_every) for preset in READINGS]
    cache = ReadingCache(db, row.id, env_steps=row.env_steps, episodes=len(episodes))
    results = [cache.find(reading, POINTS) for reading in configs]
    missing = [i for i, points in enumerate(results) if points is None]
    groups = [[missing[j] for j in members] for members in group_by_memory([configs[i] for i in missing])]
    group_configs = [[configs[i] for i in group] for group in groups]
    recorded = _RecordedRun(db, row, config, episodes)
    default_jobs = psutil.cpu_count() or 1 if row.env_steps >= _MIN_STEPS_FOR_PROCESSES else 1
    processes = min(jobs or default_jobs, len(groups))
    if processes <= 1:
        finished = _evaluate_in_turn(recorded, group_configs, on_progress)
    else:
        finished = _evaluate_in_parallel(recorded, group_configs, on_progress, processes=processes)
    for number, group_results in finished:
        for i, points in zip(groups[number], group_results, strict=True):
            results[i] = points
            cache.save(configs[i], POINTS, points)
    return [GateReading(name, points) for name, points in zip(READINGS, results, strict=True) if points is not None]


def make_reading_config(run: RunConfig, preset: PresetName, *, steps: int, refit_every: int | None = None) -> RunConfig:
    """Make the configuration of a reading: memory, embedder, gate and incentive of a preset, the rest of the run.

    Args:
        run: Configuration of the run.
        preset: The reading.
        steps: Training length [env steps].
        refit_every: Interval of the refits of the embedder [env steps]; None for that of the preset.
    """
    algo = run.algo if run.algo.startswith("emtc-") else f"emtc-{run.backbone}"
    preset_values = flatten(resolve(env=run.env.name, map=run.env.map, algo=algo, steps=steps, preset=preset))
    method = {key: value for key, value in preset_values.items() if key.startswith(_METHOD_SETTINGS)}
    run_values = {key: value for key, value in flatten(run).items() if key.startswith(("env.", "train."))}
    values = {key: value for key, value in (run_values | method).items() if value is not None}
    interval = {} if refit_every is None else {"embed.interval": refit_every}
    return resolve(
        env=run.env.name, map=run.env.map, algo=algo, steps=steps, seed=run.seed, preset=preset,
        overrides=values | {"train.t_max": steps} | interval,
    )  # fmt: skip


def _evaluate_in_turn(
    recorded: _RecordedRun, groups: Sequence[Sequence[RunConfig]], on_progress: OnProgress
) -> _GroupResults:
    for number, group in enumerate(groups):
        names = _join_names(group)

        def report(fraction: float, names: str = names, number: int = number) -> None:
            on_progress(names, fraction, (number + fraction) / len(groups))

        yield number, recorded.evaluate(group, report)


def _evaluate_in_parallel(
    recorded: _RecordedRun, groups: Sequence[Sequence[RunConfig]], on_progress: OnProgress, *, processes: int
) -> _GroupResults:
    """Evaluate each group in a separate process. Groups are independent; only the order of the results can differ.

    joblib is used because, unlike the standard library, it needs no main guard in the script of the caller. The
    processes write their finished fractions to a shared memory-mapped file.
    """
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "fractions")
        fractions = np.memmap(file, np.float64, "w+", shape=(len(groups),))
        tasks = (
            delayed(_evaluate_in_process)(recorded.db.url, recorded.row, recorded.episodes, group, file, number)
            for number, group in enumerate(groups)
        )
        with _report_progress(fractions, [_join_names(group) for group in groups], on_progress):
            for result in Parallel(n_jobs=processes, return_as="generator_unordered")(tasks):
                assert result is not None  # the types of joblib allow it
                yield result


def _evaluate_in_process(
    url: str, row: RunRow, episodes: Sequence[int], configs: Sequence[RunConfig], file: str, number: int
) -> tuple[int, list[list[ReadingPoint]]]:
    """Evaluate one group in this process with one thread, because each core has its own process."""
    torch.set_num_threads(1)
    fractions = np.memmap(file, np.float64, "r+")
    recorded = _RecordedRun(open_database(url, read_only=True), row, config_from_stored(row.config), episodes)
    return number, recorded.evaluate(configs, lambda fraction: fractions.__setitem__(number, fraction))


@contextlib.contextmanager
def _report_progress(fractions: NDArray[np.float64], names: Sequence[str], on_progress: OnProgress) -> Generator[None]:
    """Report the current groups and their progress from a thread until the context ends."""
    is_finished = threading.Event()

    def report() -> None:
        while not is_finished.wait(_POLL_INTERVAL_S):
            current = [i for i, fraction in enumerate(fractions) if 0 < fraction < 1]
            if current:
                on_progress(
                    ", ".join(names[i] for i in current), float(fractions[current].mean()), float(fractions.mean())
                )

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_finished.set()
        thread.join()


def _join_names(group: Sequence[RunConfig]) -> str:
    return ", ".join(config.preset for config in group)


def _get_sizes(db: Database, row: RunRow, config: RunConfig) -> EnvInfo:
    """Return the sizes of the environment, from the stored episodes if the environment is not installed."""
    info = get_env_info(config.env)
    if info is not None:
        return info
    first = next(iter_trajectories(db, row.id, [1]))
    longest = int(list_episodes(db, row.id, "-length", limit=1)["length"].iloc[0])
    n_agents = first.action.shape[1]
    return EnvInfo(
        row.env, row.map, n_agents, int(first.action.max()) + 1, 1, first.state.shape[1], longest, (0.0, 1.0)
    )


def _iter_episodes(db: Database, run_id: str, numbers: Sequence[int], config: RunConfig) -> Iterator[Episode]:
    """Read recorded episodes. Observations and available actions are not stored; the gate does not need them."""
    for trajectory in iter_trajectories(db, run_id, numbers):
        steps, n_agents = trajectory.action.shape
        yield Episode(
            obs=np.zeros((steps + 1, n_agents, 1), np.float32),
            state=trajectory.state,
            avail=np.ones((steps + 1, n_agents, 1), np.bool_),
            action=trajectory.action,
            reward=trajectory.reward,
            terminated=not config.train.bootstrap_on_timeout,
            truncated=config.train.bootstrap_on_timeout,
            won=trajectory.won,
            episode_return=trajectory.episode_return,
        )
