"""What does the gate do? Statistics over the memory, verdicts on transitions, and if it does nothing, why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import BigInteger, Double

from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.frames import Statement, in_parts, read_frame
from storage.models import SUMMARY_STEPS, EpisodeRow, GateStats, MetricRow, Run, Transition, TransitionSummary

if TYPE_CHECKING:
    import pandas as pd

_EXACT_STEPS = 40_000  # ranges up to this long are read from the transitions themselves

ACTIVE_SHARE = 0.001  # of the incentive removed, or of the transitions closed
_ENDED = ("finished", "stopped", "failed")
_MAY_NEVER_SAY_WON = frozenset({"pettingzoo"})
"""Environments of users; the others always say who won."""
_MERGED_ALL = 0.9
_NAMES = (
    *("gate/incentive_removed", "gate/closed_fraction", "gate/delta_mem_new", "gate/beta_new", "gate/tau"),
    *("memory/merge_rate", "memory/hit_rate", "memory/size", "incentive/rho", "rollout/win_rate", "rollout/return"),
)


def gate_stats(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How consistent is the whole memory? One row per report after env step `after`.

    Returns:
        env_step, delta_mem_mean, delta_mem_q05 q25 q50 q75 q95, beta_mean, beta_q05 … q95, tau,
        memory_size, desirable_fraction.
    """
    columns = [column for column in GateStats.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(GateStats.run_id == run_id, GateStats.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(GateStats.env_step))


def gate_chart(
    db: Database, run_id: str, points: int = 2000, start: int | None = None, end: int | None = None
) -> pd.DataFrame:
    """How did the gate judge the transitions of a run, or of a part of it?

    A long range is answered from sums over 1,000 transitions, whose borders then are its borders; a range
    of at most 40,000 from the transitions, unless they were thinned away. Misses have no delta_mem but count in
    beta and n.

    Args:
        db: An open database.
        run_id: The run.
        points: Rows at most.
        start: First env step; the run's first when missing.
        end: Last env step; the run's last when missing.

    Returns:
        env_step (last of its group), delta_mem_mean, delta_mem_max, beta_mean, beta_min, tau, n.
    """
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none() or 0
        first, last = max(1, start or 1), min(reached, end or reached)
        exact = last - first < _EXACT_STEPS and has_transitions(connection, run_id)
        statement = (_from_transitions if exact else _from_summary)(run_id, first, last, points)
        frame = read_frame(connection, statement)
    frame["env_step"] = frame["env_step"].clip(upper=last)
    return frame


def newest_transitions(db: Database, run_id: str, until: int, limit: int) -> pd.DataFrame:
    """How was each of the newest transitions judged, at most `limit` up to env step `until`?

    Returns:
        episode, reward, h, h_next, delta_mem, beta, tau, slot, next_slot in the order of env steps; no row where the
        transitions were thinned away.
    """
    table = Transition
    judged = (table.reward, table.h, table.h_next, table.delta_mem, table.beta, table.tau)
    columns = (table.episode, *judged, table.slot, table.next_slot)
    wanted = (table.run_id == run_id, table.env_step.between(until - limit + 1, until))
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(*wanted).order_by(table.env_step))


def has_transitions(connection: Connection, run_id: str) -> bool:
    """Whether a run's transitions are there, or only their sums."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    return connection.execute(first).first() is not None


def _mean(column: InstrumentedAttribute[float | None]) -> ColumnElement[float]:
    return func.avg(column, type_=Double())


def _ratio(total: InstrumentedAttribute[float], count: InstrumentedAttribute[int]) -> ColumnElement[float]:
    return func.sum(total, type_=Double()) / func.nullif(func.sum(count, type_=Double()), 0.0, type_=Double())


def _from_transitions(run_id: str, first: int, last: int, points: int) -> Statement:
    table = Transition
    width = max(1, -(-(last - first + 1) // points))
    group = (table.env_step - first) // width
    return (
        select(
            func.max(table.env_step).label("env_step"),
            _mean(table.delta_mem).label("delta_mem_mean"),
            func.max(table.delta_mem).label("delta_mem_max"),
            _mean(table.beta).label("beta_mean"),
            func.min(table.beta).label("beta_min"),
            _mean(table.tau).label("tau"),
            func.count().label("n"),
        )
        .where(table.run_id == run_id, table.env_step.between(first, last))
        .group_by(group)
        .order_by(group)
    )


def _from_summary(run_id: str, first: int, last: int, points: int) -> Statement:
    table = TransitionSummary
    low, high = (first - 1) // SUMMARY_STEPS, (last - 1) // SUMMARY_STEPS
    width = max(1, -(-(high - low + 1) // points))
    group = (table.bucket - low) // width
    return (
        select(
            ((func.max(table.bucket) + 1) * SUMMARY_STEPS).label("env_step"),
            _ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem_mean"),
            func.max(table.delta_mem_max).label("delta_mem_max"),
            _ratio(table.beta_sum, table.beta_n).label("beta_mean"),
            func.min(table.beta_min).label("beta_min"),
            _ratio(table.tau_sum, table.tau_n).label("tau"),
            func.sum(table.n, type_=BigInteger()).label("n"),
        )
        .where(table.run_id == run_id, table.bucket.between(low, high))
        .group_by(group)
        .order_by(group)
    )


def gate_parts(db: Database, run_ids: Sequence[str], parts: int = 10, *, from_first_win: bool = False) -> pd.DataFrame:
    """How did the gate judge new transitions in each part of a run?

    A run is cut into parts of equal numbers of blocks of 1,000 env steps.

    Args:
        db: An open database.
        run_ids: The runs.
        parts: Number of parts.
        from_first_win: Begin with the first block that lies wholly after the begin of the first won training episode,
            instead of with the first block of the run.

    Returns:
        run_id, part (0 for the first), delta_mem [return], beta: means over the transitions. With `from_first_win` a
        run that has not won has no row.
    """
    table = TransitionSummary
    edges = (
        select(table.run_id, func.min(table.bucket).label("first"), func.max(table.bucket).label("last"))
        .where(table.run_id.in_(run_ids))
        .group_by(table.run_id)
        .subquery()
    )
    win = _first_win().subquery()
    begin = (win.c.env_step + SUMMARY_STEPS - 2) // SUMMARY_STEPS if from_first_win else edges.c.first
    part = ((table.bucket - begin) * parts) // (edges.c.last - begin + 1)
    statement = (
        select(
            table.run_id,
            part.label("part"),
            _ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem"),
            _ratio(table.beta_sum, table.beta_n).label("beta"),
        )
        .join(edges, edges.c.run_id == table.run_id)
        .where(table.run_id.in_(run_ids), table.bucket >= begin)
        .group_by(table.run_id, part)
        .order_by(table.run_id, part)
    )
    if from_first_win:
        statement = statement.join(win, win.c.run_id == table.run_id)
    with db.read() as connection:
        return read_frame(connection, statement)


def removed_after_first_win(db: Database, run_ids: Sequence[str]) -> dict[str, float]:
    """Which share of the incentive did the gate remove, on average over the reports from the first win on?

    Returns:
        The share by run id; no entry for a run without a gate or without a won training episode.
    """
    first = _first_win().subquery()
    statement = (
        select(MetricRow.run_id, func.avg(MetricRow.value))
        .join(first, (first.c.run_id == MetricRow.run_id) & (first.c.env_step <= MetricRow.env_step))
        .where(MetricRow.run_id.in_(run_ids), MetricRow.name == "gate/incentive_removed", MetricRow.value.is_not(None))
        .group_by(MetricRow.run_id)
    )
    with db.read() as connection:
        return {str(run_id): float(mean) for run_id, mean in connection.execute(statement).all()}


def _first_win() -> Select[str, int, int]:
    """Select the first won training episode of each run: run_id, its number, its first env step."""
    return (
        select(
            EpisodeRow.run_id,
            func.min(EpisodeRow.episode).label("episode"),
            func.min(EpisodeRow.first_env_step).label("env_step"),
        )
        .where(EpisodeRow.won.is_(True))
        .group_by(EpisodeRow.run_id)
    )


def closed_by_outcome(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """On which transitions did the gate close, of won and of lost training episodes from the first win on?

    Returns:
        run_id, won, steps, closed: transitions, and those of them with β below CLOSED_BELOW; no row of a run without a
        gate.
    """
    first = _first_win().subquery()
    statement = (
        select(
            EpisodeRow.run_id,
            EpisodeRow.won,
            func.sum(EpisodeRow.length, type_=BigInteger()).label("steps"),
            func.sum(EpisodeRow.closed, type_=BigInteger()).label("closed"),
        )
        .join(first, (first.c.run_id == EpisodeRow.run_id) & (first.c.episode <= EpisodeRow.episode))
        .where(EpisodeRow.run_id.in_(run_ids), EpisodeRow.closed.is_not(None))
        .group_by(EpisodeRow.run_id, EpisodeRow.won)
        .order_by(EpisodeRow.run_id, EpisodeRow.won)
    )
    with db.read() as connection:
        return read_frame(connection, statement)


@dataclass(frozen=True)
class GateState:
    """What the gate of one run did so far."""

    state: Literal["active", "idle"]
    sentence: str  # reason, and for an idle gate a remedy
    values: dict[str, float]  # means over the reports so far, by metric name


def gate_state(db: Database, run_id: str) -> GateState | None:
    """Does the gate of this run act? None for a run without a gate, or one recorded before this was measured."""
    return gate_states(db, [run_id]).get(run_id)


def name_gate(removed: float | None) -> Literal["active", "idle"] | None:
    """The state of a gate that removed this share of the incentive; None or NaN where there is no gate."""
    if removed is None or isnan(removed):
        return None
    return "active" if removed >= ACTIVE_SHARE else "idle"


@dataclass(frozen=True)
class Verdict:
    """What the reports of a run tell of its gate, and of its incentive."""

    gate: GateState | None
    """None for a run without a gate."""
    idle: str | None
    """Why there is no incentive, with a gate or without, where nothing was a success yet."""


def gate_states(db: Database, run_ids: Sequence[str]) -> dict[str, GateState]:
    """Which of these runs have a gate that acts?"""
    return {run_id: each.gate for run_id, each in verdicts(db, run_ids).items() if each.gate is not None}


def idle_incentives(db: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Which of these runs have no incentive because nothing was a success yet, and why?"""
    return {run_id: each.idle for run_id, each in verdicts(db, run_ids).items() if each.idle is not None}


def verdicts(db: Database, run_ids: Sequence[str]) -> dict[str, Verdict]:
    """What do these runs' gates and incentives do? Answered from the index `ix_metrics_curve`."""
    found: dict[str, Verdict] = {}
    for part in in_parts(run_ids, 200):
        values, configs, ended = _read(db, part)
        found |= {
            run_id: _conclude(values[run_id], config, ended=run_id in ended) for run_id, config in configs.items()
        }
    return found


def _conclude(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> Verdict:
    gated = "gate/beta_new" in values  # every run with a gate reports it with its first episodes
    gate = judge(values, config, ended=ended) if gated else None
    idle = _explain_no_success(values, config, ended=ended) if values.get("incentive/rho") == 0 else None
    return Verdict(gate, idle)


def _read(
    db: Database, run_ids: Sequence[str]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, Any]], frozenset[str]]:
    """Read the mean of each metric over a run's reports, its configuration, and which runs have ended."""
    wanted = (MetricRow.run_id.in_(run_ids), MetricRow.name.in_(_NAMES), MetricRow.value.is_not(None))
    means = select(MetricRow.run_id, MetricRow.name, func.avg(MetricRow.value)).where(*wanted)
    with db.read() as connection:
        rows = connection.execute(means.group_by(MetricRow.run_id, MetricRow.name)).all()
        known = connection.execute(select(Run.id, Run.config, Run.status).where(Run.id.in_(run_ids))).all()
    values: dict[str, dict[str, float]] = {run_id: {} for run_id in run_ids}
    for run_id, name, mean in rows:
        values[run_id][name] = float(mean)
    ended = frozenset(row.id for row in known if row.status in _ENDED)
    return values, {row.id: row.config for row in known}, ended


def judge(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool = False) -> GateState:
    """The state of a gate by the means over a run's reports, with one sentence on why and what to try.

    Args:
        values: By metric name, at least `gate/beta_new`.
        config: The run's configuration as stored.
        ended: Whether it trains no more.
    """
    removed, closed = (values.get(f"gate/{name}", 0.0) for name in ("incentive_removed", "closed_fraction"))
    state = name_gate(removed) or "idle"
    if state == "active":
        sentence = (
            f"The gate removed {100 * removed:.1f} % of the incentive so far: "
            f"{100 * closed:.1f} % of the sampled transitions had β below {CLOSED_BELOW:g}."
        )
    else:
        sentence = _explain_idle(values, config, closed, ended=ended)
    return GateState(state, sentence, dict(values))


def _explain_idle(values: Mapping[str, float], config: Mapping[str, Any], closed: float, *, ended: bool) -> str:
    memory = config.get("memory", {})
    delta, merged = memory.get("delta", float("nan")), values.get("memory/merge_rate", 0.0)
    if "gate/closed_fraction" not in values:
        return "No update has been made yet: the gate acts on the incentive from the first one on."
    if merged > _MERGED_ALL:
        return (
            f"{100 * merged:.1f} % of states merged within δ = {delta:g}, into {values.get('memory/size', 0):.0f} "
            "nodes: the embedding hardly tells states apart. Try --set memory.delta_space=normalized, or a smaller "
            "memory.delta."
        )
    if not values.get("incentive/rho"):
        why = _explain_no_success(values, config, ended=ended)
        return f"{why} β is below {CLOSED_BELOW:g} on {100 * closed:.1f} % of transitions."
    if closed >= ACTIVE_SHARE:
        return (
            f"β is below {CLOSED_BELOW:g} on {100 * closed:.1f} % of transitions, but they carry next to no incentive. "
            "Look at incentive/r_p and incentive/rho on Live."
        )
    if merged < 0.0005:
        return (
            f"{100 * merged:.1f} % of states merged within δ = {delta:g}: every memory stands alone, β is 1 "
            f"everywhere. Try --set {_wider(config)}."
        )
    error, tau = values.get("gate/delta_mem_new", 0.0), values.get("gate/tau", float("nan"))
    return (
        f"{100 * merged:.1f} % of states merged within δ = {delta:g}, and their returns agree: mean Δ_mem "
        f"{error:.2g} against τ = {tau:.2g}, so β stays near 1. Try --set {_wider(config)}, or a colder "
        "gate by gate.tau_start."
    )


def _explain_no_success(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> str:
    memory = config.get("memory", {})
    found = "No sampled state belongs to a success yet, so there is no incentive (ρ = 0)"
    returned = f" (mean return so far: {values['rollout/return']:.4g})" if "rollout/return" in values else ""
    if memory.get("success") == "return_threshold":
        threshold = memory.get("success_threshold", float("nan"))
        return f"{found}: too few episodes reach memory.success_threshold = {threshold:g}{returned}. Lower it."
    if values.get("rollout/win_rate"):
        return f"{found}. {'Check' if ended else 'Train on, or check'} memory.success."
    env = config.get("env")
    if isinstance(env, Mapping) and env.get("name") in _MAY_NEVER_SAY_WON:
        return (
            f"{found}: no episode was won. {'If' if ended else 'Train on; if'} this environment never says won, set "
            f"memory.success=return_threshold and memory.success_threshold{returned}."
        )
    if ended:
        return f"{found}: the run ended before its first win. Train a longer one, or explore longer (train.eps_steps)."
    return f"{found}: it begins with the first win. Until then the run learns as its backbone alone would."


def _wider(config: Mapping[str, Any]) -> str:
    """A reading that merges more than this run's own, as the option of `emtc train`."""
    is_wide = config.get("memory", {}).get("delta", 0) >= 1.8e-2
    return "preset=emu_index" if is_wide or config.get("preset") == "wide" else "preset=wide"
