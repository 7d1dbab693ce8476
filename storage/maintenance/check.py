"""Check a database for damage: `emtc db check`. Nothing is changed.

A SQLite file is checked by `PRAGMA quick_check`. The rows of each run must have the invariants that are true at every
moment, also during a training and after a crash:

- The transitions are 1…env_steps without gaps, and the episodes divide them without gaps.
- delta_mem and beta follow their equations, and tau follows its schedule. If the gate is a plug-in that is not
  installed, beta must be in [0, 1].
- The sums in `transition_summary` are the sums of the transitions.
- The nodes of the snapshots were written by the episode and t that they name.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select, text

from emtc_core.config.memory import GateConfig
from emtc_core.errors import PluginError, StorageError
from emtc_core.gate.gate import delta_mem as consistency_error
from emtc_core.gate.gate import get_miss_beta, make_gate_law
from emtc_core.gate.temperature import Temperature
from emtc_core.gate_laws import GateContext
from emtc_core.rollout.episode import discounted_returns
from storage.blobs import unpack
from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, Run, SnapshotRow, Transition, TransitionSummary
from storage.queries.episodes import EMPTY_TRAJECTORY
from storage.queries.memory import get_snapshot
from storage.runs.rows import find_run, imported_label

TOLERANCE: Final = 1e-5
_CHUNK_EPISODES: Final = 2000
_CHECKED_NODES: Final = 100
"""Number of checked nodes of each snapshot."""
_EQUATION_COLUMNS: Final = ("reward", "h", "h_next", "delta_mem", "beta", "tau")


def check_database(db: Database) -> list[str]:
    """Check the pages of a SQLite file and, if they are valid, the rows of every run.

    Returns:
        One message per error.

    Raises:
        StorageError: If the list of runs cannot be read.
    """
    if db.path is not None and (errors := _check_pages(db)):
        return errors
    with db.read() as connection:
        run_ids = connection.execute(select(Run.id).order_by(Run.id)).scalars().all()
    errors = []
    for run_id in run_ids:
        try:
            errors += check_run(db, run_id)
        except Exception as error:  # damaged data can make any step fail
            reason = str(error) if isinstance(error, StorageError) else repr(error).splitlines()[0]
            errors.append(f"{run_id}: its rows cannot be checked: {reason}")
    return errors


def check_run(db: Database, run_id: str) -> list[str]:
    """Check the rows of a run.

    Returns:
        One message per violated invariant.

    Raises:
        RunNotFoundError: If there is no such run.
        StorageError: If an array or a row cannot be read.
    """
    config = find_run(db, run_id).config
    if imported_label(config) is not None:  # curves of another program, without transitions
        return []
    with db.read() as connection:
        columns = (EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length)
        statement = select(*columns).where(EpisodeRow.run_id == run_id)
        episodes = read_frame(connection, statement.order_by(EpisodeRow.episode))
        errors = [*_check_counts(connection, run_id, episodes)]
        if not errors:
            errors += _check_transitions(connection, run_id, config, episodes)
        errors += _check_summary(connection, run_id)
        errors += _check_snapshots(db, connection, run_id)
    return [f"{run_id}: {error}" for error in errors]


def _check_pages(db: Database) -> list[str]:
    try:
        with db.read() as connection:
            lines = connection.execute(text("PRAGMA quick_check")).scalars().all()
    except StorageError as error:  # some damage ends the check itself
        return [f"The file is damaged: {error}"]
    return [] if lines == ["ok"] else [f"The file is damaged: {line}" for line in lines]


def _check_counts(connection: Connection, run_id: str, episodes: pd.DataFrame) -> Iterator[str]:
    """Check that transitions and episodes cover 1…env_steps, unless all transitions were thinned away."""
    steps = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
    extent = select(func.count(), func.min(Transition.env_step), func.max(Transition.env_step))
    n, first, last = connection.execute(extent.where(Transition.run_id == run_id)).one()
    if (n, first or 1, last or 0) != (steps, 1, steps):
        summarized = select(func.sum(TransitionSummary.n)).where(TransitionSummary.run_id == run_id)
        is_thinned = n == 0 and connection.execute(summarized).scalar_one() == steps
        if not is_thinned:
            yield f"env_steps is {steps}, but it has {n} transitions with env_step {first} to {last}"
    starts = episodes["first_env_step"].to_numpy()
    next_starts = starts + episodes["length"].to_numpy()
    expected_starts = np.concatenate([[1], next_starts])
    if not np.array_equal([*starts, steps + 1], expected_starts):
        yield f"the episodes do not cover the steps 1 to {steps} without gaps and overlaps"
    if (np.diff(episodes["episode"].to_numpy()) != 1).any():
        yield "an episode is missing"


def _check_transitions(
    connection: Connection, run_id: str, config: Mapping[str, Any], episodes: pd.DataFrame
) -> Iterator[str]:
    """Check the episode, t, delta_mem, beta and tau of every transition, some episodes at a time."""
    train = config.get("train", {})
    gate = GateConfig.model_validate(config.get("gate", {}))
    gamma = train.get("gamma", 0.99)
    temperature = None
    if "t_max" in train and "tau_start" in config.get("gate", {}):
        temperature = Temperature(gate, t_max=train["t_max"])
    columns = [column for column in Transition.__table__.columns if column.name != "run_id"]
    for first in range(0, len(episodes), _CHUNK_EPISODES):
        chunk = episodes.iloc[first : first + _CHUNK_EPISODES]
        starts, lengths = chunk["first_env_step"].to_numpy(), chunk["length"].to_numpy()
        env_steps = Transition.env_step.between(int(starts[0]), int(starts[-1] + lengths[-1] - 1))
        statement = select(*columns).where(Transition.run_id == run_id, env_steps)
        rows = read_frame(connection, statement.order_by(Transition.env_step))
        if rows.empty:  # thinned away
            return
        t = rows["env_step"].to_numpy() - np.repeat(starts, lengths)
        episode = np.repeat(chunk["episode"].to_numpy(), lengths)
        if not (np.array_equal(rows["episode"], episode) and np.array_equal(rows["t"], t)):
            yield f"the episode or t of a transition does not match its env_step after env_step {starts[0]}"
        yield from _check_equations(rows, gate, gamma=gamma)
        if temperature is not None:
            yield from _check_tau(rows, lengths, temperature, gamma=gamma)


def _check_equations(rows: pd.DataFrame, gate: GateConfig, *, gamma: float) -> Iterator[str]:
    """Compare the stored delta_mem and beta with values that are computed from the other columns."""
    reward, h, h_next, delta_mem, beta, tau = (rows[name].to_numpy(np.float64) for name in _EQUATION_COLUMNS)
    scale = np.maximum(1.0, np.maximum(np.abs(h), np.abs(h_next)))
    delta_mem_error = np.abs(delta_mem - consistency_error(reward, h, h_next, gamma=gamma)) / scale
    is_miss = np.isnan(delta_mem)
    context, positive_tau = GateContext(reward, h, h_next, gamma), np.where(tau > 0, tau, 1.0)
    try:
        expected = make_gate_law(gate).weigh(np.where(is_miss, 0.0, delta_mem), positive_tau, context)
    except PluginError:  # the plug-in is not installed: only the range of beta is known
        expected = np.clip(beta, 0.0, 1.0)
    allowed_at_miss = [get_miss_beta(gate, is_empty=is_empty) for is_empty in (False, True)]
    error_at_miss = np.abs(beta[:, None] - allowed_at_miss).min(axis=1)
    beta_error = np.where(is_miss, error_at_miss, np.abs(beta - expected))
    for name, error in (("delta_mem", delta_mem_error), ("beta", beta_error)):
        worst = int(np.argmax(np.nan_to_num(error)))
        if error[worst] > TOLERANCE:
            yield f"{name} differs by {error[worst]:.1e} from its equation at env_step {rows['env_step'].iloc[worst]}"


def _check_tau(
    rows: pd.DataFrame, lengths: NDArray[np.int64], temperature: Temperature, *, gamma: float
) -> Iterator[str]:
    """Compare tau with its schedule at the last step of each episode. Then the episode updates the schedule.

    Args:
        rows: Transitions of whole episodes, [n].
        lengths: Length of each of these episodes, [E] [steps].
        temperature: Schedule that has observed all earlier episodes.
        gamma: Discount.
    """
    ends = np.cumsum(lengths)
    env_step = rows["env_step"].to_numpy()
    tau, delta_mem = rows["tau"].to_numpy(np.float64), rows["delta_mem"].to_numpy(np.float64)
    reward = rows["reward"].to_numpy(np.float32)
    if np.isnan(tau).all():  # an algorithm without a gate
        return
    for start, end in zip(ends - lengths, ends, strict=True):
        expected = temperature.at(int(env_step[end - 1]))
        error = np.abs(tau[start:end] - expected).max()
        if not error <= TOLERANCE * max(1.0, expected):
            yield f"tau does not follow its schedule from env_step {env_step[start]} to {env_step[end - 1]}"
        temperature.observe(delta_mem[start:end], discounted_returns(reward[start:end], gamma)[:-1])


def _check_summary(connection: Connection, run_id: str) -> Iterator[str]:
    """Compare the stored sums with the sums of the transitions."""
    stored = select(
        func.sum(TransitionSummary.n),
        func.sum(TransitionSummary.delta_mem_sum),
        func.sum(TransitionSummary.beta_sum),
        func.max(TransitionSummary.delta_mem_max),
    ).where(TransitionSummary.run_id == run_id)
    computed = select(
        func.count(),
        func.sum(Transition.delta_mem),
        func.sum(Transition.beta),
        func.max(Transition.delta_mem),
    ).where(Transition.run_id == run_id)
    sums = connection.execute(computed).one()
    if not sums[0]:  # no transitions: `_check_counts` checks that they were never recorded or thinned away
        return
    pairs = zip(connection.execute(stored).one(), sums, strict=True)
    if any(not math.isclose(a or 0, b or 0, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs):
        yield "transition_summary does not contain the sums of the transitions"


def _check_snapshots(db: Database, connection: Connection, run_id: str) -> Iterator[str]:
    """Check evenly spaced nodes of each snapshot: the trajectory of their episode must contain their slot at t."""
    snapshots = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step)
    for snapshot_id in connection.execute(snapshots).scalars().all():
        snapshot = get_snapshot(db, snapshot_id)
        nodes = np.unique(np.linspace(0, snapshot.size - 1, min(_CHECKED_NODES, snapshot.size)).astype(int))
        numbers = np.unique(snapshot.episode[nodes]).tolist()
        trajectories = select(EpisodeRow.episode, EpisodeRow.trajectory).where(
            EpisodeRow.run_id == run_id, EpisodeRow.episode.in_(numbers)
        )
        blobs = {row.episode: row.trajectory for row in connection.execute(trajectories)}
        thinned = {episode for episode, blob in blobs.items() if blob == EMPTY_TRAJECTORY}
        slots = {episode: unpack(blob).get("slots") for episode, blob in blobs.items() if episode not in thinned}
        for node in nodes:
            episode, t, slot = int(snapshot.episode[node]), int(snapshot.t[node]), int(snapshot.slot[node])
            written = slots.get(episode)
            if episode not in thinned and (written is None or t >= len(written) or written[t] != slot):
                yield f"slot {slot} of snapshot {snapshot_id} was not written by episode {episode}, t {t}"
