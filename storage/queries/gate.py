"""What does the gate do, over the memory and over the transitions, and why does an idle gate do nothing?"""

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

ACTIVE_SHARE = 0.001
"""A gate is active if it removed at least this fraction of the incentive.

The sentence for an idle gate compares the fraction of closed transitions with the same number.
"""

_EXACT_STEPS = 40_000
"""A range of at most this many env steps is read from the transitions, a longer one from their sums."""
_ENDED = ("finished", "stopped", "failed")
_ENVS_WITHOUT_WIN = frozenset({"pettingzoo"})
"""Environments in which an episode may have no winner. All others report whether an episode was won."""
_WIDE_DELTA = 1.8e-2
"""Merge radius `memory.delta` of the preset `wide`."""
_TOO_MANY_MERGED = 0.9
"""Above this merge rate the embedding does not separate the states."""
_TOO_FEW_MERGED = 0.0005
"""Below this merge rate almost every state is a separate node, so returns are never compared."""
_RUNS_PER_STATEMENT = 200
_METRICS = (
    *("gate/incentive_removed", "gate/closed_fraction", "gate/delta_mem_new", "gate/beta_new", "gate/tau"),
    *("memory/merge_rate", "memory/hit_rate", "memory/size", "incentive/rho", "rollout/win_rate", "rollout/return"),
)


def gate_stats(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How consistent is the whole memory?

    Source: table `gate_stats`.

    Args:
        db: An open database.
        run_id: The run.
        after: Read only later env steps.

    Returns:
        One row per report of the gate: env_step [env steps], delta_mem_mean, delta_mem_q05 q25 q50 q75 q95 [return],
        beta_mean, beta_q05 … q95 (dimensionless), tau [return], memory_size [nodes], desirable_fraction.
    """
    columns = [column for column in GateStats.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(GateStats.run_id == run_id, GateStats.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(GateStats.env_step))


def gate_chart(
    db: Database, run_id: str, points: int = 2000, start: int | None = None, end: int | None = None
) -> pd.DataFrame:
    """How did the gate evaluate the transitions of a run, or of a part of it?

    A range of at most 40,000 env steps is read from the transitions, unless thinning has deleted them. A longer range
    is read from sums over blocks of 1,000 env steps, so it is extended to whole blocks. A transition for which
    the lookup found no node has no delta_mem, but counts in beta and n.

    Source: tables `transitions` and `transition_summary`.

    Args:
        db: An open database.
        run_id: The run.
        points: Maximum number of rows.
        start: First env step; None is the first of the run.
        end: Last env step; None is the last of the run.

    Returns:
        One row per group of transitions: env_step (last of the group), delta_mem_mean [return], delta_mem_max
        [return], beta_mean, beta_min, tau [return], n (transitions).
    """
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one_or_none() or 0
        first, last = max(1, start or 1), min(reached, end or reached)
        exact = last - first < _EXACT_STEPS and has_transitions(connection, run_id)
        make_statement = _select_from_transitions if exact else _select_from_summary
        statement = make_statement(run_id, first, last, points)
        frame = read_frame(connection, statement)
    frame["env_step"] = frame["env_step"].clip(upper=last)
    return frame


def newest_transitions(db: Database, run_id: str, until: int, limit: int) -> pd.DataFrame:
    """What did the gate compute for the newest transitions?

    Source: table `transitions`.

    Args:
        db: An open database.
        run_id: The run.
        until: Last env step.
        limit: Maximum number of rows.

    Returns:
        One row per transition, by env step: episode, reward [reward], h, h_next, delta_mem [return], beta
        (dimensionless), tau [return], slot, next_slot. There are no rows if thinning has deleted the transitions.
    """
    table = Transition
    gate_values = (table.reward, table.h, table.h_next, table.delta_mem, table.beta, table.tau)
    columns = (table.episode, *gate_values, table.slot, table.next_slot)
    newest = (table.run_id == run_id, table.env_step.between(until - limit + 1, until))
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(*newest).order_by(table.env_step))


def has_transitions(connection: Connection, run_id: str) -> bool:
    """Return whether the transitions of a run are stored. After thinning only their sums are."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    return connection.execute(first).first() is not None


def _mean(column: InstrumentedAttribute[float | None]) -> ColumnElement[float]:
    return func.avg(column, type_=Double())


def _ratio(total: InstrumentedAttribute[float], count: InstrumentedAttribute[int]) -> ColumnElement[float]:
    return func.sum(total, type_=Double()) / func.nullif(func.sum(count, type_=Double()), 0.0, type_=Double())


def _select_from_transitions(run_id: str, first: int, last: int, points: int) -> Statement:
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


def _select_from_summary(run_id: str, first: int, last: int, points: int) -> Statement:
    table = TransitionSummary
    first_bucket, last_bucket = (first - 1) // SUMMARY_STEPS, (last - 1) // SUMMARY_STEPS
    width = max(1, -(-(last_bucket - first_bucket + 1) // points))
    group = (table.bucket - first_bucket) // width
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
        .where(table.run_id == run_id, table.bucket.between(first_bucket, last_bucket))
        .group_by(group)
        .order_by(group)
    )


def compute_gate_by_run_part(
    db: Database, run_ids: Sequence[str], parts: int = 10, *, from_first_win: bool = False
) -> pd.DataFrame:
    """What did the gate compute for the new transitions in each part of a run?

    Each part has the same number of blocks of 1,000 env steps, up to rounding.

    Source: table `transition_summary`.

    Args:
        db: An open database.
        run_ids: The runs.
        parts: Number of parts.
        from_first_win: Start with the first block that begins at or after the start of the first won training episode.
            Otherwise start with the first block of the run.

    Returns:
        One row per run and part: run_id, part (from 0), delta_mem [return] and beta (dimensionless), means over the
        transitions. With `from_first_win` a run without a win has no row.
    """
    table = TransitionSummary
    block_ranges = (
        select(table.run_id, func.min(table.bucket).label("first"), func.max(table.bucket).label("last"))
        .where(table.run_id.in_(run_ids))
        .group_by(table.run_id)
        .subquery()
    )
    win = _first_win().subquery()
    begin = (win.c.env_step + SUMMARY_STEPS - 2) // SUMMARY_STEPS if from_first_win else block_ranges.c.first
    part = ((table.bucket - begin) * parts) // (block_ranges.c.last - begin + 1)
    statement = (
        select(
            table.run_id,
            part.label("part"),
            _ratio(table.delta_mem_sum, table.delta_mem_n).label("delta_mem"),
            _ratio(table.beta_sum, table.beta_n).label("beta"),
        )
        .join(block_ranges, block_ranges.c.run_id == table.run_id)
        .where(table.run_id.in_(run_ids), table.bucket >= begin)
        .group_by(table.run_id, part)
        .order_by(table.run_id, part)
    )
    if from_first_win:
        statement = statement.join(win, win.c.run_id == table.run_id)
    with db.read() as connection:
        return read_frame(connection, statement)


def compute_removed_after_first_win(db: Database, run_ids: Sequence[str]) -> dict[str, float]:
    """Which fraction of the incentive did the gate remove, on average over the reports from the first win on?

    Returns:
        Run id → fraction. A run without a gate or without a won training episode has no entry.
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
    """Select the first won training episode of each run: run_id, episode, env_step (the first of the episode)."""
    return (
        select(
            EpisodeRow.run_id,
            func.min(EpisodeRow.episode).label("episode"),
            func.min(EpisodeRow.first_env_step).label("env_step"),
        )
        .where(EpisodeRow.won.is_(True))
        .group_by(EpisodeRow.run_id)
    )


def count_closed_by_outcome(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """How many transitions of won and of lost training episodes did the gate close, from the first win on?

    Source: table `episodes`.

    Args:
        db: An open database.
        run_ids: The runs.

    Returns:
        One row per run and outcome: run_id, won, steps [steps], closed [steps] (transitions with β below CLOSED_BELOW).
        A run without a gate has no row.
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
    """State of the gate of one run, over all reports so far."""

    state: Literal["active", "idle"]
    sentence: str
    """The reason, and for an idle gate what to change."""
    values: dict[str, float]
    """Metric name → mean over the reports."""


def gate_state(db: Database, run_id: str) -> GateState | None:
    """Is the gate of this run active? None for a run without a gate, or recorded by a version without this metric."""
    return gate_states(db, [run_id]).get(run_id)


def name_gate(removed: float | None) -> Literal["active", "idle"] | None:
    """Return the state of a gate that removed this fraction of the incentive; None or NaN means no gate."""
    if removed is None or isnan(removed):
        return None
    return "active" if removed >= ACTIVE_SHARE else "idle"


@dataclass(frozen=True)
class GateVerdict:
    """State of a run's gate and of its incentive, computed from the reports of the run."""

    gate: GateState | None
    """None for a run without a gate."""
    idle: str | None
    """Why the incentive is 0, if no success was recorded yet. Also set for runs without a gate."""


def gate_states(db: Database, run_ids: Sequence[str]) -> dict[str, GateState]:
    """What are the states of these runs' gates? Without runs that have no gate."""
    return {
        run_id: verdict.gate for run_id, verdict in list_gate_verdicts(db, run_ids).items() if verdict.gate is not None
    }


def idle_incentives(db: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Which of these runs have no incentive because no success was recorded yet? Run id → reason."""
    return {
        run_id: verdict.idle for run_id, verdict in list_gate_verdicts(db, run_ids).items() if verdict.idle is not None
    }


def list_gate_verdicts(db: Database, run_ids: Sequence[str]) -> dict[str, GateVerdict]:
    """What do the gates and incentives of these runs do? Answered from the index `ix_metrics_curve`."""
    result: dict[str, GateVerdict] = {}
    for part in in_parts(run_ids, _RUNS_PER_STATEMENT):
        in_part = (MetricRow.run_id.in_(part), MetricRow.name.in_(_METRICS), MetricRow.value.is_not(None))
        means = select(MetricRow.run_id, MetricRow.name, func.avg(MetricRow.value)).where(*in_part)
        with db.read() as connection:
            rows = connection.execute(means.group_by(MetricRow.run_id, MetricRow.name)).all()
            runs = connection.execute(select(Run.id, Run.config, Run.status).where(Run.id.in_(part))).all()
        values: dict[str, dict[str, float]] = {run_id: {} for run_id in part}
        for run_id, name, mean in rows:
            values[run_id][name] = float(mean)
        result |= {run.id: _make_verdict(values[run.id], run.config, ended=run.status in _ENDED) for run in runs}
    return result


def _make_verdict(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> GateVerdict:
    has_gate = "gate/beta_new" in values  # every run with a gate reports it from its first episodes on
    gate = _make_gate_state(values, config, ended=ended) if has_gate else None
    no_incentive_reason = _explain_no_success(values, config, ended=ended) if values.get("incentive/rho") == 0 else None
    return GateVerdict(gate, no_incentive_reason)


def _make_gate_state(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> GateState:
    """Return the state of a gate from the means over a run's reports.

    Args:
        values: Metric name → mean.
        config: The run's configuration as stored.
        ended: Whether the run has ended, so that the sentence does not advise to train on.
    """
    removed, closed = values.get("gate/incentive_removed", 0.0), values.get("gate/closed_fraction", 0.0)
    state = name_gate(removed) or "idle"
    if state == "active":
        sentence = (
            f"The gate removed {100 * removed:.1f} % of the incentive so far: "
            f"{100 * closed:.1f} % of the sampled transitions had β below {CLOSED_BELOW:g}."
        )
    else:
        sentence = _explain_idle_gate(values, config, closed, ended=ended)
    return GateState(state, sentence, dict(values))


def _explain_idle_gate(values: Mapping[str, float], config: Mapping[str, Any], closed: float, *, ended: bool) -> str:
    memory = config.get("memory", {})
    delta, merged = memory.get("delta", float("nan")), values.get("memory/merge_rate", 0.0)
    if "gate/closed_fraction" not in values:
        return "No update has been made yet. The gate acts on the incentive from the first update on."
    if merged > _TOO_MANY_MERGED:
        return (
            f"{100 * merged:.1f} % of states merged within δ = {delta:g}, into {values.get('memory/size', 0):.0f} "
            "nodes: the embedding does not separate the states. Try --set memory.delta_space=normalized, or a smaller "
            "memory.delta."
        )
    if not values.get("incentive/rho"):
        reason = _explain_no_success(values, config, ended=ended)
        return f"{reason} β is below {CLOSED_BELOW:g} on {100 * closed:.1f} % of transitions."
    if closed >= ACTIVE_SHARE:
        return (
            f"β is below {CLOSED_BELOW:g} on {100 * closed:.1f} % of transitions, but their incentive is almost 0. "
            "Look at incentive/r_p and incentive/rho on Live."
        )
    if merged < _TOO_FEW_MERGED:
        return (
            f"{100 * merged:.1f} % of states merged within δ = {delta:g}: almost every state is a separate node, so β "
            f"is 1 everywhere. Try --set {_suggest_preset(config)}."
        )
    error, tau = values.get("gate/delta_mem_new", 0.0), values.get("gate/tau", float("nan"))
    return (
        f"{100 * merged:.1f} % of states merged within δ = {delta:g}, and their returns agree: mean Δ_mem "
        f"{error:.2g} against τ = {tau:.2g}, so β stays near 1. Try --set {_suggest_preset(config)}, or a lower "
        "temperature gate.tau_start."
    )


def _explain_no_success(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> str:
    memory = config.get("memory", {})
    reason = "No sampled state belongs to a success yet, so there is no incentive (ρ = 0)"
    mean_return = f" (mean return so far: {values['rollout/return']:.4g})" if "rollout/return" in values else ""
    if memory.get("success") == "return_threshold":
        threshold = memory.get("success_threshold", float("nan"))
        return f"{reason}: too few episodes reach memory.success_threshold = {threshold:g}{mean_return}. Lower it."
    if values.get("rollout/win_rate"):
        return f"{reason}. {'Check' if ended else 'Train on, or check'} memory.success."
    env = config.get("env")
    if isinstance(env, Mapping) and env.get("name") in _ENVS_WITHOUT_WIN:
        return (
            f"{reason}: no episode was won. {'If' if ended else 'Train on; if'} this environment never reports a win, "
            f"set memory.success=return_threshold and memory.success_threshold{mean_return}."
        )
    if ended:
        return f"{reason}: the run ended before its first win. Train a longer one, or explore longer (train.eps_steps)."
    return f"{reason}: it starts with the first win. Until then the run trains like its backbone alone."


def _suggest_preset(config: Mapping[str, Any]) -> str:
    """Return the option of `emtc train` for a preset that merges more states than the run's configuration."""
    is_wide = config.get("memory", {}).get("delta", 0) >= _WIDE_DELTA
    return "preset=emu_index" if is_wide or config.get("preset") == "wide" else "preset=wide"
