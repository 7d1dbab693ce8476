"""Estimate the duration, the disk space and the memory of a run before it starts.

The duration comes from finished runs of the same environment and algorithm on this machine. If there are none, it comes
from typical speeds that were measured on two CPU cores.
"""

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.format import format_run_count
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import EmtcError
from emtc_core.memory_estimate import estimate_gpu_memory, estimate_memory
from storage.engine import Database
from storage.queries.runs import list_speeds

TYPICAL_SPEED_SOURCE: Final = "a typical speed, because no run of this environment and algorithm has finished here yet"
_TYPICAL_STEPS_PER_S: Final = {"skirmish": 350.0, "grf": 200.0}
"""Typical speeds of a training on two cores [env steps/s].

The speed of skirmish was measured with its evaluations. Its time per evaluation episode below is therefore 0.
"""
_TYPICAL_STEPS_PER_S_OF_OTHERS = 200.0
_TYPICAL_EPISODE_S: Final = {"skirmish": 0.0, "grf": 1.25}
"""Typical durations of an evaluation episode on two cores [s].

Measured with football, 6,000 steps of the preset demo: 202 s = 10 s for the start + 30 s for the steps at 200 steps/s
+ 162 s for 128 evaluation episodes.
"""
_TYPICAL_EPISODE_S_OF_OTHERS = 1.25
_TYPICAL_START_S = 10.0
"""Typical time from the start of a trainer to its first env step on two cores [s], from the same measurement."""
_DISK_BYTES_PER_STEP = 150
_DISK_BYTES_PER_STATE_FEATURE = 1.5
"""Each env step stores the numbers of its state (the state features), compressed."""
_SNAPSHOT_BYTES_PER_NODE = 60
"""A snapshot is a copy of the episodic memory at one env step. A node is one stored state of the memory."""
_SNAPSHOT_BYTES_PER_STATE_FEATURE = 2
_MEAN_FILL_FRACTION = 0.5
"""The memory grows during the run, so a snapshot has on average half as many nodes as the last snapshot."""
_TYPICAL_STATE_DIM = 100
"""Size of the state of an environment whose sizes are unknown before its start."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run."""

    seconds: float
    """Duration of the run."""
    disk_bytes: float
    speed_source: str
    """Phrase that names the runs from which the speed was measured; `TYPICAL_SPEED_SOURCE` if there are none."""
    memory_bytes: float
    """Upper bound of the memory (RAM) of this machine that the run uses."""
    gpu_bytes: float
    """Upper bound of the GPU memory that the run uses, with the replay buffer on the GPU. Ignore it without a GPU."""


def estimate(db: Database | None, config: RunConfig) -> Estimate:
    """Estimate the duration, disk space and memory of a run, from finished runs of this machine if there are any."""
    seconds, speed_source = _estimate_duration(db, config)
    info = get_env_info(config.env)
    host_bytes_by_part = estimate_memory(config, info)
    gpu_bytes_by_part = estimate_gpu_memory(config, info)
    return Estimate(
        seconds=seconds,
        disk_bytes=_estimate_disk(config, state_dim=info.state_dim if info else _TYPICAL_STATE_DIM),
        speed_source=speed_source,
        memory_bytes=sum(host_bytes_by_part.values()),
        gpu_bytes=sum(gpu_bytes_by_part.values()) + host_bytes_by_part.get("replay", 0),
    )


def describe_speed(speed_source: str) -> str:
    """Return a sentence about the source of an assumed speed (`Estimate.speed_source`)."""
    if speed_source == TYPICAL_SPEED_SOURCE:
        return "Rough estimate: no finished run of this machine to measure from."
    return f"Assumed speed: {speed_source}."


def _estimate_disk(config: RunConfig, *, state_dim: int) -> float:
    """Estimate the disk space of the transitions and of the snapshots of the memory [bytes]."""
    steps = config.train.t_max
    n_nodes = min(steps, config.memory.capacity) if config.uses_memory else 0
    n_stored_states = min(n_nodes, config.record.snapshot_states)
    state_bytes = _SNAPSHOT_BYTES_PER_STATE_FEATURE * state_dim * n_stored_states
    snapshot_bytes = _MEAN_FILL_FRACTION * (n_nodes * _SNAPSHOT_BYTES_PER_NODE + state_bytes)
    step_bytes = _DISK_BYTES_PER_STEP + _DISK_BYTES_PER_STATE_FEATURE * state_dim
    return steps * step_bytes + config.record.snapshots * snapshot_bytes


def _estimate_duration(db: Database | None, config: RunConfig) -> tuple[float, str]:
    """Return the estimated duration of a run [s], and the source of the assumed speed as a phrase.

    The speed of a finished run includes its start and its evaluations, so they are added only to a typical speed.
    """
    steps = config.train.t_max
    env = config.env
    speeds: list[tuple[str, float]] = []
    if db is not None:
        with suppress(EmtcError):
            speeds = list_speeds(db, env=env.name, map=env.map, algo=config.algo, host=socket.gethostname())
    speeds_of_map = [speed for map, speed in speeds if map == env.map]
    comparable_speeds = speeds_of_map or [speed for _, speed in speeds]
    if not comparable_speeds:
        speed = _TYPICAL_STEPS_PER_S.get(env.name, _TYPICAL_STEPS_PER_S_OF_OTHERS)
        episode_s = _TYPICAL_EPISODE_S.get(env.name, _TYPICAL_EPISODE_S_OF_OTHERS)
        n_episodes = (1 + steps // config.eval.interval) * config.eval.episodes
        return _TYPICAL_START_S + steps / speed + n_episodes * episode_s, TYPICAL_SPEED_SOURCE
    speed_text = "the speed" if len(comparable_speeds) == 1 else "the median speed"
    kind = "map and algorithm" if speeds_of_map else "environment and algorithm, on other maps,"
    source = f"{speed_text} of {format_run_count(len(comparable_speeds))} of this {kind} that finished here"
    return steps / float(np.median(comparable_speeds)), source
