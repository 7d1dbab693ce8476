"""What happened in one episode? Reads the trajectories of training episodes and of greedy playbacks.

`episode_search` searches the episodes of a run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from emtc_core.errors import DataRemovedError, StorageError
from storage.blobs import EMPTY, unpack
from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, EvalEpisode, Transition

Floats = NDArray[np.float64]
Order = Literal["episode", "-episode", "episode_return", "-episode_return", "length", "-length"]
EMPTY_TRAJECTORY = EMPTY
"""Value of the column `trajectory` after thinning has deleted its arrays: a blob without arrays."""
OUTLINE = (
    *(EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length),
    *(EpisodeRow.episode_return, EpisodeRow.won, EpisodeRow.epsilon, EpisodeRow.closed),
)
"""The columns of a training episode in a list."""
_EPISODES_PER_READ = 200


@dataclass(frozen=True)
class Trajectory:
    """One episode: states, actions and rewards, and for a training episode the gate's values at each step.

    The gate's values are NaN where the memory returned nothing. A playback has neither slots nor gate values, and its
    `env_step` is that of its evaluation.

    Source: tables `episodes`, `transitions` and `eval_episodes`.
    """

    run_id: str
    episode: int
    env_step: int  # of its first transition; of the evaluation for a playback
    won: bool
    episode_return: float
    state: NDArray[np.float32]  # [T+1, S] [state features]
    action: NDArray[np.int64]  # [T, N] action indices
    reward: NDArray[np.float32]  # [T] [reward]
    slots: NDArray[np.int64] | None = None  # [T+1] slot indices; -1 where the state is not in the memory
    h: Floats | None = None  # [T] [return]
    h_next: Floats | None = None  # [T] [return]
    delta_mem: Floats | None = None  # [T] [return]
    beta: Floats | None = None  # [T] dimensionless
    tau: float | None = None  # [return]

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)

    @property
    def first_env_step(self) -> int:
        """Env step of the first transition; for a playback the env step of its evaluation."""
        return self.env_step


def get_trajectory(db: Database, run_id: str, episode: int) -> Trajectory:
    """What happened in this training episode, and what did the gate compute for each step?

    Args:
        db: An open database.
        run_id: The run.
        episode: Number of the episode.

    Raises:
        DataRemovedError: If its trajectory was deleted by thinning or is not part of the bundle.
        StorageError: If the run has no such episode, or it cannot be read.
    """
    outline = select(*OUTLINE, EpisodeRow.trajectory)
    key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
    gate_values = select(Transition.h, Transition.h_next, Transition.delta_mem, Transition.beta, Transition.tau)
    with db.read() as connection:
        row = connection.execute(outline.where(*key)).one_or_none()
        if row is None:
            raise StorageError(f"Run {run_id} has no episode {episode}.")
        in_episode = Transition.env_step.between(row.first_env_step, row.first_env_step + row.length - 1)
        statement = gate_values.where(Transition.run_id == run_id, in_episode).order_by(Transition.env_step)
        steps = connection.execute(statement).all()
        if row.trajectory == EMPTY_TRAJECTORY:
            raise _make_removed_error(connection, run_id, episode)
    arrays = unpack_trajectory(row.trajectory)
    outcome = (run_id, episode, row.first_env_step, row.won, row.episode_return)
    if not steps:  # thinning has deleted the transitions
        return Trajectory(*outcome, **arrays)
    h, h_next, delta_mem, beta, tau = np.array([tuple(step) for step in steps], np.float64).reshape(-1, 5).T
    stored_tau = tau[~np.isnan(tau)]
    return Trajectory(
        *outcome,
        **arrays,
        h=h,
        h_next=h_next,
        delta_mem=delta_mem,
        beta=beta,
        tau=float(stored_tau[0]) if len(stored_tau) else None,
    )


def _make_removed_error(connection: Connection, run_id: str, episode: int) -> DataRemovedError:
    playback = select(EvalEpisode.run_id).where(EvalEpisode.run_id == run_id).limit(1)
    advice = " Look at an evaluation episode instead." if connection.execute(playback).first() else ""
    return DataRemovedError(
        f"The trajectory of episode {episode} of run {run_id} was deleted by thinning (emtc db thin), or is not part "
        f"of this bundle. Its outcome and the run's curves are still stored.{advice}"
    )


def iter_states(db: Database, run_id: str, episodes: Iterable[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Which states did these training episodes visit?

    Only 200 episodes are in memory at the same time. Source: table `episodes`.

    Args:
        db: An open database.
        run_id: The run.
        episodes: Numbers of the episodes.

    Yields:
        The number of an episode and its states [T+1, S] [state features].

    Raises:
        StorageError: If an episode does not exist, or its trajectory was deleted by thinning.
    """
    columns = (EpisodeRow.episode, EpisodeRow.trajectory)
    remaining = iter(sorted(set(episodes)))
    while chunk := list(islice(remaining, _EPISODES_PER_READ)):
        statement = select(*columns).where(EpisodeRow.run_id == run_id, EpisodeRow.episode.in_(chunk))
        with db.read() as connection:
            rows = {row.episode: row for row in connection.execute(statement)}
        for episode in chunk:
            row = rows.get(episode)
            if row is None or row.trajectory == EMPTY_TRAJECTORY:
                raise StorageError(
                    f"The states of episode {episode} of run {run_id} are not stored. Choose another run."
                )
            yield episode, unpack_trajectory(row.trajectory)["state"]


def get_playback(db: Database, run_id: str, env_step: int, episode: int) -> Trajectory:
    """What happened in this greedy episode of an evaluation?

    Args:
        db: An open database.
        run_id: The run.
        env_step: Env step of the evaluation.
        episode: Number of the episode in the evaluation.

    Raises:
        StorageError: If no such playback is stored.
    """
    columns = (EvalEpisode.won, EvalEpisode.episode_return, EvalEpisode.trajectory)
    key = (EvalEpisode.run_id == run_id, EvalEpisode.env_step == env_step, EvalEpisode.episode == episode)
    with db.read() as connection:
        row = connection.execute(select(*columns).where(*key)).one_or_none()
    if row is None:
        raise StorageError(f"Run {run_id} has no stored playback {episode} of the evaluation at env step {env_step}.")
    return Trajectory(run_id, episode, env_step, row.won, row.episode_return, **unpack_trajectory(row.trajectory))


def list_episodes(db: Database, run_id: str, order_by: Order = "-episode", limit: int = 200) -> pd.DataFrame:
    """Which training episodes does a run have?

    Source: table `episodes`.

    Args:
        db: An open database.
        run_id: The run.
        order_by: Column to sort by; a leading minus sorts in descending order.
        limit: Maximum number of rows.

    Returns:
        One row per episode: episode, first_env_step [env steps], length [steps], episode_return [return], won, epsilon,
        closed (transitions).
    """
    column = getattr(EpisodeRow, order_by.removeprefix("-"))
    order = column.desc() if order_by.startswith("-") else column
    statement = select(*OUTLINE).where(EpisodeRow.run_id == run_id)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(order, EpisodeRow.episode).limit(limit))


def unpack_trajectory(blob: bytes) -> dict[str, Any]:
    """Unpack a trajectory of T transitions.

    Returns:
        state [T+1, S] float32, action [T, N] int64, reward [T] float32, and slots [T+1] int64 if they are stored.

    Raises:
        StorageError: If the blob cannot be read.
    """
    arrays = unpack(blob)
    for name in ("action", "slots"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int64)
    return arrays
