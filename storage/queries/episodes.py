"""What happened in one episode? Trajectories of training episodes and of greedy playbacks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from emtc_core.errors import StorageError
from storage.blobs import pack, unpack_as
from storage.engine import Database
from storage.frames import read_frame
from storage.guards import damaged
from storage.models import EpisodeRow, EvalEpisode, Transition

Floats = NDArray[np.float64]
_FORMS = {"state": "f2", "action": "i2", "reward": "f1", "slots": "i1"}
_EPISODES_AT_ONCE = 200
MOST_TRAJECTORY_BYTES = 256 << 20
"""Unpacked: a long episode of a big game takes a hundredth."""
THINNED = pack({})
"""What stands where a trajectory was thinned away: the blob of no array."""
Order = Literal["episode", "-episode", "episode_return", "-episode_return", "length", "-length"]


@dataclass(frozen=True)
class Trajectory:
    """One episode: what happened, and what the gate said of each step (NaN where it said nothing).

    A playback has no slots and no verdict; its `env_step` is that of its evaluation.
    """

    run_id: str
    episode: int
    env_step: int  # of its first transition; of the evaluation for a playback
    won: bool
    episode_return: float
    state: NDArray[np.float32]  # [T+1, S]
    action: NDArray[np.int64]  # [T, N]
    reward: NDArray[np.float32]  # [T]
    slots: NDArray[np.int64] | None = None  # [T+1]; -1 where nothing is stored
    h: Floats | None = None  # [T]
    h_next: Floats | None = None  # [T]
    delta_mem: Floats | None = None  # [T]
    beta: Floats | None = None  # [T]
    tau: float | None = None

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)

    @property
    def first_env_step(self) -> int:
        """Env step of the first transition."""
        return self.env_step


def get_trajectory(db: Database, run_id: str, episode: int) -> Trajectory:
    """What happened in this training episode, and how did the gate judge it?

    Raises:
        StorageError: If the run has no such episode.
    """
    with db.read() as connection:
        return read_trajectory(connection, run_id, episode)


def read_trajectory(connection: Connection, run_id: str, episode: int) -> Trajectory:
    """Read a training episode on an open connection; see `get_trajectory`."""
    columns = (
        *(EpisodeRow.first_env_step, EpisodeRow.length, EpisodeRow.won, EpisodeRow.episode_return),
        EpisodeRow.trajectory,
    )
    key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
    row = connection.execute(select(*columns).where(*key)).one_or_none()
    if row is None:
        raise StorageError(f"Run {run_id} has no episode {episode}.")
    if not isinstance(row.first_env_step, int) or not isinstance(row.length, int):
        raise damaged("episodes", (row.first_env_step, row.length), "two whole numbers")
    last = row.first_env_step + row.length - 1
    verdict = (Transition.h, Transition.h_next, Transition.delta_mem, Transition.beta, Transition.tau)
    steps = connection.execute(
        select(*verdict)
        .where(Transition.run_id == run_id, Transition.env_step.between(row.first_env_step, last))
        .order_by(Transition.env_step)
    ).all()
    if row.trajectory == THINNED:
        raise StorageError(
            f"The trajectory of episode {episode} of run {run_id} was thinned away, or left out of a bundle; its "
            "outcome and the run's curves stay. Look at an evaluation episode instead."
        )
    arrays = _arrays(row.trajectory)
    outcome = (run_id, episode, row.first_env_step, row.won, row.episode_return)
    if not steps and row.length == len(arrays["reward"]):  # its transitions were thinned away
        return Trajectory(*outcome, **arrays)
    if not len(steps) == row.length == len(arrays["reward"]):
        raise StorageError(f"Episode {episode} of run {run_id} is damaged: its steps and its trajectory differ.")
    h, h_next, delta_mem, beta, tau = np.array([tuple(step) for step in steps], np.float64).reshape(-1, 5).T
    known_tau = tau[~np.isnan(tau)]
    return Trajectory(
        *outcome,
        **arrays,
        h=h,
        h_next=h_next,
        delta_mem=delta_mem,
        beta=beta,
        tau=float(known_tau[0]) if len(known_tau) else None,
    )


def iter_states(db: Database, run_id: str, episodes: Iterable[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Which states did these training episodes pass through? Episode and states [T+1, S], a few episodes at a time.

    Raises:
        StorageError: If an episode is missing, or its trajectory was thinned away.
    """
    remaining = iter(sorted(set(episodes)))
    while chunk := list(islice(remaining, _EPISODES_AT_ONCE)):
        statement = select(EpisodeRow.episode, EpisodeRow.trajectory).where(
            EpisodeRow.run_id == run_id, EpisodeRow.episode.in_(chunk)
        )
        with db.read() as connection:
            found = {row.episode: row.trajectory for row in connection.execute(statement)}
        for episode in chunk:
            if found.get(episode, THINNED) == THINNED:
                raise StorageError(f"The states of episode {episode} of run {run_id} are gone. Choose another run.")
            yield episode, _arrays(found[episode])["state"]


def get_playback(db: Database, run_id: str, env_step: int, episode: int) -> Trajectory:
    """What happened in this greedy episode of the evaluation at `env_step`?

    Raises:
        StorageError: If it was not kept.
    """
    columns = (EvalEpisode.won, EvalEpisode.episode_return, EvalEpisode.trajectory)
    key = (EvalEpisode.run_id == run_id, EvalEpisode.env_step == env_step, EvalEpisode.episode == episode)
    with db.read() as connection:
        row = connection.execute(select(*columns).where(*key)).one_or_none()
    if row is None:
        raise StorageError(f"Run {run_id} keeps no playback {episode} of the evaluation at step {env_step}.")
    return Trajectory(run_id, episode, env_step, row.won, row.episode_return, **_arrays(row.trajectory))


def list_playbacks(db: Database, run_id: str) -> pd.DataFrame:
    """Which greedy episodes were kept? env_step, episode, length, episode_return, won; newest first."""
    columns = (
        *(EvalEpisode.env_step, EvalEpisode.episode, EvalEpisode.length),
        *(EvalEpisode.episode_return, EvalEpisode.won),
    )
    order = (EvalEpisode.env_step.desc(), EvalEpisode.episode)
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(EvalEpisode.run_id == run_id).order_by(*order))


def list_episodes(db: Database, run_id: str, order_by: Order = "-episode", limit: int = 200) -> pd.DataFrame:
    """Which training episodes are there? A leading minus sorts downwards.

    Returns:
        episode, first_env_step, length, episode_return, won, epsilon.
    """
    columns = (
        *(EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length),
        *(EpisodeRow.episode_return, EpisodeRow.won, EpisodeRow.epsilon),
    )
    column = getattr(EpisodeRow, order_by.removeprefix("-"))
    order = column.desc() if order_by.startswith("-") else column
    statement = select(*columns).where(EpisodeRow.run_id == run_id)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(order, EpisodeRow.episode).limit(limit))


def _arrays(blob: bytes) -> dict[str, Any]:
    """Read a trajectory: T actions, rewards and slots, and T + 1 states."""
    arrays = unpack_as(blob, _FORMS, optional=frozenset({"slots"}), most_bytes=MOST_TRAJECTORY_BYTES)
    n_steps = len(arrays["reward"])
    lengths = {"state": n_steps + 1, "action": n_steps, "slots": n_steps + 1}
    if any(name in arrays and len(arrays[name]) != length for name, length in lengths.items()):
        raise StorageError("A stored trajectory is damaged: its arrays are not of one length.")
    for name in ("action", "slots"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int64)
    return arrays
