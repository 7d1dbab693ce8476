"""Check the invariants of a recorded run, in tests, before every resume and in every imported bundle."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from emtc_core.config.memory import GateConfig
from emtc_core.errors import PluginError
from emtc_core.gate.gate import delta_mem as consistency_error
from emtc_core.gate.gate import get_miss_beta
from emtc_core.gate.laws import make_gate_law
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
_CHUNK_STEPS: Final = 200_000
_CHECKED_NODES: Final = 100  # per snapshot


def check_run(db: Database, run_id: str) -> list[str]:
    """Check what must be true of the rows of a run at any time, also while it is written.

    - The transitions are 1…env_steps without gaps, and the episodes divide them without gaps.
    - delta_mem and beta follow their equations. If the gate is a plug-in that is not installed, beta must be in [0, 1].
    - tau follows its schedule and is the same in all transitions of an episode.
    - The sums in `transition_summary` are the sums of the transitions.
    - Nodes of the last snapshot were written by the episode and t that they name.

    Returns:
        One message per violation.

    Raises:
        RunNotFoundError: If there is no such run.
    """
    config = find_run(db, run_id).config
    if imported_label(config) is not None:  # curves of another program, without transitions
        return []
    with db.read() as connection:
        columns = (EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length)
        statement = select(*columns).where(EpisodeRow.run_id == run_id)
        episodes = read_frame(connection, statement.order_by(EpisodeRow.episode))
        return [
            *_check_counts(connection, run_id, episodes),
            *_check_transitions(connection, run_id, config, episodes),
            *_check_summary(connection, run_id),
            *_check_snapshot(db, connection, run_id),
        ]


def _check_counts(connection: Connection, run_id: str, episodes: pd.DataFrame) -> Iterator[str]:
    """Check that transitions and episodes cover 1…env_steps, unless all transitions were thinned away."""
    steps = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
    extent = select(func.count(), func.min(Transition.env_step), func.max(Transition.env_step))
    n, first, last = connection.execute(extent.where(Transition.run_id == run_id)).one()
    if (n, first or 1, last or 0) != (steps, 1, steps):
        summarized = select(func.sum(TransitionSummary.n)).where(TransitionSummary.run_id == run_id)
        is_thinned = n == 0 and connection.execute(summarized).scalar_one() == steps
        if not is_thinned:
            yield f"{run_id}: env_steps is {steps}, but it has {n} transitions with env_step {first} to {last}"
    starts = episodes["first_env_step"].to_numpy()
    next_starts = starts + episodes["length"].to_numpy()
    if len(starts) and (starts[0] != 1 or (starts[1:] != next_starts[:-1]).any() or next_starts[-1] != steps + 1):
        yield f"{run_id}: the episodes do not cover the steps 1 to {steps} without gaps and overlaps"
    if (np.diff(episodes["episode"].to_numpy()) != 1).any():
        yield f"{run_id}: an episode is missing"


def _check_transitions(
    connection: Connection, run_id: str, config: Mapping[str, Any], episodes: pd.DataFrame
) -> Iterator[str]:
    """Check the episode, t, delta_mem, beta and tau of every transition, in chunks."""
    gamma = config.get("train", {}).get("gamma", 0.99)
    stored = config.get("gate", {})  # other versions may have stored settings that this version does not have
    gate = GateConfig.model_validate(
        {key: value for key, value in stored.items() if key in GateConfig.model_fields or key == stored.get("type")}
    )
    tau_checker = _TauChecker(gate, config)
    starts = episodes["first_env_step"].to_numpy()
    for rows in _read_chunks(connection, run_id):
        env_step = rows["env_step"].to_numpy()
        index = np.searchsorted(starts, env_step, side="right") - 1
        if len(starts) == 0 or (index < 0).any():
            yield f"{run_id}: a transition has no episode"
            return
        episode, start, length = episodes.iloc[index].to_numpy().T
        if (episode != rows["episode"]).any() or (env_step - start != rows["t"]).any():
            yield f"{run_id}: the episode or t of a transition does not match its env_step"
        yield from _check_equations(run_id, rows, gate, gamma=gamma)
        if not tau_checker.is_on_schedule(rows, episode_ends=start + length - 1):
            yield f"{run_id}: tau does not follow its schedule near env_step {env_step[0]}"


def _check_equations(run_id: str, rows: pd.DataFrame, gate: GateConfig, *, gamma: float) -> Iterator[str]:
    """Compare the stored delta_mem and beta with values that are computed from the other columns."""
    names = ("reward", "h", "h_next", "delta_mem", "beta", "tau")
    reward, h, h_next, delta_mem, beta, tau = (rows[name].to_numpy(np.float64) for name in names)
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
            env_step = rows["env_step"].iloc[worst]
            yield f"{run_id}: {name} differs by {error[worst]:.1e} from its equation at env_step {env_step}"


class _TauChecker:
    """Compares tau with its schedule. Chunks must be passed in order: tau may depend on all earlier episodes."""

    def __init__(self, gate: GateConfig, config: Mapping[str, Any]) -> None:
        train = config.get("train", {})
        self._gamma = train.get("gamma", 0.99)
        self._depends_on_episodes = (gate.schedule, gate.tau_unit) != ("linear", "return")
        self._is_known = "tau_start" in config.get("gate", {}) and "t_max" in train
        self._temperature = Temperature(gate, t_max=train.get("t_max", 0))
        self._unfinished: list[pd.DataFrame] = []  # parts of an episode that continues in the next chunk

    def is_on_schedule(self, rows: pd.DataFrame, *, episode_ends: NDArray[np.int64]) -> bool:
        """Compare tau of the next transitions.

        Args:
            rows: The transitions, [n].
            episode_ends: Last env_step of each transition's episode, [n].
        """
        tau = rows["tau"].to_numpy(np.float64)
        if not self._is_known or np.isnan(tau).all():
            return True
        if not self._depends_on_episodes:
            expected = [self._temperature.at(int(step)) for step in episode_ends]
            return not (np.abs(tau - expected) > TOLERANCE).any()
        is_correct = True
        for end in np.unique(episode_ends).tolist():
            part = rows.loc[episode_ends == end, :]
            tau = part["tau"].to_numpy(np.float64)
            error = np.abs(tau - self._temperature.at(end))
            is_correct &= bool((error <= TOLERANCE * np.maximum(1.0, tau)).all())
            self._unfinished.append(part)
            if part["env_step"].iloc[-1] == end:
                episode = pd.concat(self._unfinished)
                self._unfinished = []
                returns = discounted_returns(episode["reward"].to_numpy(np.float32), self._gamma)[:-1]
                self._temperature.observe(episode["delta_mem"].to_numpy(np.float64), returns)
        return is_correct


def _read_chunks(connection: Connection, run_id: str) -> Iterator[pd.DataFrame]:
    """Read the transitions of a run in the order of env_step."""
    columns = [column for column in Transition.__table__.columns if column.name != "run_id"]
    last_step = 0
    while True:
        statement = select(*columns).where(Transition.run_id == run_id, Transition.env_step > last_step)
        rows = read_frame(connection, statement.order_by(Transition.env_step).limit(_CHUNK_STEPS))
        if rows.empty:
            return
        last_step = int(rows["env_step"].iloc[-1])
        yield rows


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
        yield f"{run_id}: transition_summary does not contain the sums of the transitions"


def _check_snapshot(db: Database, connection: Connection, run_id: str) -> Iterator[str]:
    """Check evenly spaced nodes of the last snapshot: the trajectory of their episode must contain their slot at t."""
    newest = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step.desc())
    snapshot_id = connection.execute(newest.limit(1)).scalar_one_or_none()
    if snapshot_id is None:
        return
    snapshot = get_snapshot(db, snapshot_id)
    for row in np.unique(np.linspace(0, snapshot.size - 1, min(_CHECKED_NODES, snapshot.size)).astype(int)):
        episode, t, slot = int(snapshot.episode[row]), int(snapshot.t[row]), int(snapshot.slot[row])
        key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
        blob = connection.execute(select(EpisodeRow.trajectory).where(*key)).scalar_one_or_none()
        if blob == EMPTY_TRAJECTORY:
            continue
        slots = unpack(blob).get("slots") if blob is not None else None
        if slots is None or t >= len(slots) or slots[t] != slot:
            yield f"{run_id}: slot {slot} of snapshot {snapshot_id} was not written by episode {episode}, t {t}"
