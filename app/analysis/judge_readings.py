"""One run's recorded episodes, judged by every reading of the paper: what the figure gate-readings shows.

This module runs memory, embedder and gate, so nothing on a page imports it; the command line does, when asked.

Readings of a run that were judged before, kept in its folder beside the database: an export goes on where it ended.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

import emtc_core
from app.analysis.provenance import library_versions
from app.analysis.readings import Reading
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from emtc_core.config.run import PresetName, RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.rollout.episode import Episode
from emtc_core.training.readings import ReadingPoint, find_shared, read_together
from storage.engine import Database, is_read_only
from storage.files.places import local_folder
from storage.queries.episodes import iter_trajectories, list_episodes
from storage.runs.rows import RunRow

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


READINGS: tuple[PresetName, ...] = ("paper", "emu_index", "prewrite", "literal_raw", "wide")
POINTS = 100
OnProgress = Callable[[str, float, float], None]
"""Hears which readings are judged now, the share of their own that is done, and the share of all."""
_OF_THE_METHOD = ("memory.", "embed.", "gate.", "incentive.")


def judge_readings(
    db: Database, rows: Sequence[RunRow], *, on_progress: OnProgress, refit_every: int | None = None
) -> list[Reading]:
    """Judge one run's stream under each reading.

    What was judged before, also by an export that was interrupted, is not judged again.

    Args:
        db: Where the run is recorded.
        rows: The run, alone.
        on_progress: Told after every episode.
        refit_every: Refit each reading's embedder this often [env steps]; None: as the reading itself says.

    Raises:
        ConfigError: If it is not one run, or the run recorded no episode.
    """
    if len(rows) != 1:
        raise ConfigError(f"gate-readings judges the episodes of one run, got {len(rows)} runs. Name one.")
    row = rows[0]
    run = config_from_stored(row.config)
    numbers = list_episodes(db, row.id, "episode", limit=10_000_000)["episode"].tolist()
    if not numbers:
        raise ConfigError(f"Run {row.id} has recorded no episode yet. Let it train on.")
    configs = [configure(run, preset, steps=row.env_steps, refit_every=refit_every) for preset in READINGS]
    kept = KeptReadings(db, row.id, env_steps=row.env_steps, episodes=len(numbers))
    said = [kept.find(config, POINTS) for config in configs]
    groups = find_shared([config for config, points in zip(configs, said, strict=True) if points is None])
    missing = [place for place, points in enumerate(said) if points is None]
    for done, group in enumerate([[missing[i] for i in places] for places in groups]):
        judged = [configs[place] for place in group]
        on_step = _tell(on_progress, judged, before=done, groups=len(groups), steps=row.env_steps)
        stream = _episodes(db, row.id, numbers, run)
        together = read_together(judged, _info(db, row, run), stream, points=POINTS, on_step=on_step)
        for place, points in zip(group, together, strict=True):
            said[place] = points
            kept.keep(configs[place], POINTS, points)
    return [Reading(name, points) for name, points in zip(READINGS, said, strict=True) if points is not None]


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


def _tell(
    on_progress: OnProgress, judged: Sequence[RunConfig], *, before: int, groups: int, steps: int
) -> Callable[[int], None]:
    """Turn env steps of one group of readings into the shares that `on_progress` hears."""
    names = ", ".join(config.preset for config in judged)

    def on_step(env_step: int) -> None:
        share = min(1.0, env_step / max(1, steps))
        on_progress(names, share, (before + share) / groups)

    return on_step


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
