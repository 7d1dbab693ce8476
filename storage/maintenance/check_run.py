"""The invariants of a recorded run as one function, for tests and for every resume."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from emtc_core.config.memory import GateConfig
from emtc_core.errors import PluginError
from emtc_core.gate.gate import Temperature, beta_of_miss
from emtc_core.gate.gate import delta_mem as consistency_error
from emtc_core.gate.laws import GateContext, make_gate_law
from emtc_core.rollout.episode import discounted_returns
from storage.blobs import unpack
from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, Run, SnapshotRow, Transition, TransitionSummary
from storage.queries.episodes import THINNED
from storage.queries.memory import get_snapshot
from storage.runs.rows import find_run, imported_label

TOLERANCE = 1e-5
_CHUNK_STEPS = 200_000
_POINTS = 100  # nodes looked up per snapshot


def check_run(db: Database, run_id: str) -> list[str]:
    """Look for breaches of what must hold of a run's rows at every moment.

    Checked: transitions are 1…env_steps, cut into whole episodes; delta_mem and beta follow their
    equations (beta of a gate that is not here lies in [0, 1]); tau follows its schedule and is one per episode; the
    kept sums are the sums; the last snapshot's nodes are found where they say.

    Returns:
        One sentence per breach; empty when all is well.

    Raises:
        RunNotFoundError: If there is no such run.
    """
    config = find_run(db, run_id).config
    if imported_label(config) is not None:  # a curve, without a transition
        return []
    with db.read() as connection:
        outline = _read_outline(connection, run_id)
        return [
            *_check_counts(connection, run_id, outline),
            *_check_verdicts(connection, run_id, config, outline),
            *_check_summary(connection, run_id),
            *_check_snapshot(db, connection, run_id),
        ]


def _read_outline(connection: Connection, run_id: str) -> pd.DataFrame:
    columns = (EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length)
    statement = select(*columns).where(EpisodeRow.run_id == run_id)
    return read_frame(connection, statement.order_by(EpisodeRow.episode))


def _check_counts(connection: Connection, run_id: str, outline: pd.DataFrame) -> Iterator[str]:
    steps = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
    span = select(func.count(), func.min(Transition.env_step), func.max(Transition.env_step))
    n, low, high = connection.execute(span.where(Transition.run_id == run_id)).one()
    if (n, low or 1, high or 0) != (steps, 1, steps) and not _is_thinned(connection, run_id, n, steps):
        yield f"{run_id}: env_steps is {steps}, but {n} transitions stand at {low}…{high}"
    first = outline["first_env_step"].to_numpy()
    ends = first + outline["length"].to_numpy()
    if len(first) and (first[0] != 1 or (first[1:] != ends[:-1]).any() or ends[-1] != steps + 1):
        yield f"{run_id}: the episodes do not cover 1…{steps} one after the other"
    if (np.diff(outline["episode"].to_numpy()) != 1).any():
        yield f"{run_id}: an episode is missing"


def _is_thinned(connection: Connection, run_id: str, n: int, steps: int) -> bool:
    """Whether all transitions went and their sums stayed: on purpose, by a thinning."""
    kept = select(func.sum(TransitionSummary.n)).where(TransitionSummary.run_id == run_id)
    return n == 0 and connection.execute(kept).scalar_one() == steps


def _check_verdicts(
    connection: Connection, run_id: str, config: Mapping[str, Any], outline: pd.DataFrame
) -> Iterator[str]:
    gamma = config.get("train", {}).get("gamma", 0.99)
    gate = _gate_config(config)
    schedule = _TauSchedule(gate, config)
    first = outline["first_env_step"].to_numpy()
    for rows in _chunks(connection, run_id):
        env_step = rows["env_step"].to_numpy()
        place = np.searchsorted(first, env_step, side="right") - 1
        if len(first) == 0 or (place < 0).any():
            yield f"{run_id}: a transition has no episode"
            return
        episode, start, length = outline.iloc[place].to_numpy().T
        if (episode != rows["episode"]).any() or (env_step - start != rows["t"]).any():
            yield f"{run_id}: a transition names another episode or t than its place"
        yield from _check_equations(run_id, rows, gate, gamma=gamma)
        if not schedule.holds(rows, ends=start + length - 1):
            yield f"{run_id}: tau leaves its schedule near env step {env_step[0]}"


def _gate_config(config: Mapping[str, Any]) -> GateConfig:
    """Read the gate's settings and its own arguments, whatever version stored them."""
    gate = config.get("gate", {})
    known = {key: value for key, value in gate.items() if key in GateConfig.model_fields or key == gate.get("type")}
    return GateConfig.model_validate(known)


def _check_equations(run_id: str, rows: pd.DataFrame, gate: GateConfig, *, gamma: float) -> Iterator[str]:
    names = ("reward", "h", "h_next", "delta_mem", "beta", "tau")
    reward, h, h_next, delta_mem, beta, tau = (rows[name].to_numpy(np.float64) for name in names)
    size = np.maximum(1.0, np.maximum(np.abs(h), np.abs(h_next)))
    off_delta = np.abs(delta_mem - consistency_error(reward, h, h_next, gamma=gamma)) / size
    missed = np.isnan(delta_mem)
    context, warm = GateContext(reward, h, h_next, gamma), np.where(tau > 0, tau, 1.0)
    try:
        expected = make_gate_law(gate).coefficient(np.where(missed, 0.0, delta_mem), warm, context)
    except PluginError:  # of a gate from outside that is not here, only its range is known
        expected = np.clip(beta, 0.0, 1.0)
    allowed = [beta_of_miss(gate, is_empty=is_empty) for is_empty in (False, True)]
    off_miss = np.abs(beta[:, None] - allowed).min(axis=1)
    off_beta = np.where(missed, off_miss, np.abs(beta - expected))
    for name, off in (("delta_mem", off_delta), ("beta", off_beta)):
        worst = int(np.argmax(np.nan_to_num(off)))
        if off[worst] > TOLERANCE:
            yield f"{run_id}: {name} is off by {off[worst]:.1e} at env step {rows['env_step'].iloc[worst]}"


class _TauSchedule:
    """Follows a run's transitions in order and knows which tau each episode should carry."""

    def __init__(self, gate: GateConfig, config: Mapping[str, Any]) -> None:
        train = config.get("train", {})
        self._gamma = train.get("gamma", 0.99)
        self._observes = (gate.schedule, gate.tau_unit) != ("linear", "return")
        self._known = "tau_start" in config.get("gate", {}) and "t_max" in train
        self._temperature = Temperature(gate, t_max=train.get("t_max", 0))
        self._begun: list[pd.DataFrame] = []  # rows of an episode that a chunk cut

    def holds(self, rows: pd.DataFrame, *, ends: NDArray[np.int64]) -> bool:
        """Compare the next rows; `ends` [rows] is the last env step of each one's episode."""
        tau = rows["tau"].to_numpy(np.float64)
        if not self._known or np.isnan(tau).all():
            return True
        if self._observes:
            return self._follow(rows, ends)
        expected = [self._temperature.at(int(step)) for step in ends]
        return not (np.abs(tau - expected) > TOLERANCE).any()

    def _follow(self, rows: pd.DataFrame, ends: NDArray[np.int64]) -> bool:
        """Judge episode by episode, as training did: by what the episodes before left."""
        held = True
        for end in np.unique(ends).tolist():
            part = rows.loc[ends == end, :]
            tau = part["tau"].to_numpy(np.float64)
            held &= bool((np.abs(tau - self._temperature.at(end)) <= TOLERANCE * np.maximum(1.0, tau)).all())
            self._begun.append(part)
            if part["env_step"].iloc[-1] == end:
                whole = pd.concat(self._begun)
                self._begun = []
                returns = discounted_returns(whole["reward"].to_numpy(np.float32), self._gamma)[:-1]
                self._temperature.observe(whole["delta_mem"].to_numpy(np.float64), returns)
        return held


def _chunks(connection: Connection, run_id: str) -> Iterator[pd.DataFrame]:
    columns = [column for column in Transition.__table__.columns if column.name != "run_id"]
    after = 0
    while True:
        statement = select(*columns).where(Transition.run_id == run_id, Transition.env_step > after)
        rows = read_frame(connection, statement.order_by(Transition.env_step).limit(_CHUNK_STEPS))
        if rows.empty:
            return
        after = int(rows["env_step"].iloc[-1])
        yield rows


def _check_summary(connection: Connection, run_id: str) -> Iterator[str]:
    kept = select(
        func.sum(TransitionSummary.n),
        func.sum(TransitionSummary.delta_mem_sum),
        func.sum(TransitionSummary.beta_sum),
        func.max(TransitionSummary.delta_mem_max),
    ).where(TransitionSummary.run_id == run_id)
    true = select(
        *(func.count(), func.sum(Transition.delta_mem), func.sum(Transition.beta)),
        func.max(Transition.delta_mem),
    ).where(Transition.run_id == run_id)
    sums = connection.execute(true).one()
    if not sums[0]:  # none was recorded, or all were thinned away: their count says which
        return
    pairs = zip(connection.execute(kept).one(), sums, strict=True)
    if any(not math.isclose(a or 0, b or 0, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs):
        yield f"{run_id}: transition_summary does not hold the sums of the transitions"


def _check_snapshot(db: Database, connection: Connection, run_id: str) -> Iterator[str]:
    newest = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step.desc())
    snapshot_id = connection.execute(newest.limit(1)).scalar_one_or_none()
    if snapshot_id is None:
        return
    snapshot = get_snapshot(db, snapshot_id)
    for row in np.unique(np.linspace(0, snapshot.size - 1, min(_POINTS, snapshot.size)).astype(int)):
        episode, t, slot = int(snapshot.episode[row]), int(snapshot.t[row]), int(snapshot.slot[row])
        key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
        blob = connection.execute(select(EpisodeRow.trajectory).where(*key)).scalar_one_or_none()
        if blob == THINNED:
            continue
        slots = unpack(blob).get("slots") if blob is not None else None
        if slots is None or t >= len(slots) or slots[t] != slot:
            yield f"{run_id}: slot {slot} of snapshot {snapshot_id} was not written by episode {episode}, t {t}"
