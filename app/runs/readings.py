"""The figure gate-readings: one run's recorded episodes, judged by every reading of the paper.

This module runs memory, embedder and gate, so nothing on a page imports it; the command line does, when asked.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from app.figures.chart import Chart
from app.figures.readings import Reading, draw_readings
from emtc_core.config.resolve import config_from_stored, flatten, resolve
from emtc_core.config.run import PresetName, RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.readings import read_stream
from emtc_core.rollout.episode import Episode
from storage.engine import Database
from storage.queries.episodes import get_trajectory, list_episodes
from storage.runs import RunRow

READINGS: tuple[PresetName, ...] = ("paper", "emu_index", "prewrite", "literal_raw", "wide")
_OF_THE_METHOD = ("memory.", "embed.", "gate.", "incentive.")


def make_gate_readings(db: Database, rows: Sequence[RunRow], *, on_progress: Callable[[str], None]) -> Chart:
    """Judge one run's stream under each reading and draw them side by side.

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
    info = _info(db, row, run)
    readings = []
    for preset in READINGS:
        on_progress(f"Judging {len(numbers):,} episodes of {row.id} as {preset} …")
        config = configure(run, preset, steps=row.env_steps)
        readings.append(Reading(preset, read_stream(config, info, _episodes(db, row.id, numbers, run))))
    return draw_readings(readings, run=row.name)


def configure(run: RunConfig, preset: PresetName, *, steps: int) -> RunConfig:
    """Take memory, embedder and gate from a preset, everything else from the run."""
    algo = run.algo if run.algo.startswith("emtc-") else f"emtc-{run.backbone}"
    own = flatten(resolve(env=run.env.name, map=run.env.map, algo=algo, steps=steps, preset=preset))
    method = {key: value for key, value in own.items() if key.startswith(_OF_THE_METHOD)}
    kept = {key: value for key, value in flatten(run).items() if key.startswith(("env.", "train."))}
    values = {key: value for key, value in (kept | method).items() if value is not None}
    return resolve(
        env=run.env.name, map=run.env.map, algo=algo, steps=steps, seed=run.seed, preset=preset,
        overrides=values | {"train.t_max": steps},
    )  # fmt: skip


def _info(db: Database, row: RunRow, run: RunConfig) -> EnvInfo:
    """Say the sizes; what cannot be asked of the environment is read from the first episode."""
    known = get_env_info(run.env)
    if known is not None:
        return known
    first = get_trajectory(db, row.id, 1)
    longest = int(list_episodes(db, row.id, "-length", limit=1)["length"].iloc[0])
    n_agents = first.action.shape[1]
    return EnvInfo(
        row.env, row.map, n_agents, int(first.action.max()) + 1, 1, first.state.shape[1], longest, (0.0, 1.0)
    )


def _episodes(db: Database, run_id: str, numbers: Sequence[int], run: RunConfig) -> Iterator[Episode]:
    for number in numbers:
        told = get_trajectory(db, run_id, number)
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
