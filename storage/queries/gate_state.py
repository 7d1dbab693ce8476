"""Is the gate of a run active, and why does an idle gate or an incentive of 0 do nothing?

The answers are computed from the means of a run's metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

from sqlalchemy import func, select

from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.frames import in_parts
from storage.models import MetricRow, Run

ACTIVE_SHARE = 0.001
"""A gate is active if it removed at least this fraction of the incentive.

The sentence for an idle gate compares the fraction of closed transitions with the same number.
"""
_ENDED = ("finished", "stopped", "failed")
_ENVS_WITHOUT_WIN = frozenset({"pettingzoo"})
"""Environments in which an episode may have no winner. All others report whether an episode was won."""
_WIDE_DELTA = 1.8e-2
"""Merge radius `memory.delta` of the preset `wide`."""
_MAX_MERGE_RATE = 0.9
"""Above this merge rate the embedding does not separate the states."""
_MIN_MERGE_RATE = 0.0005
"""Below this merge rate almost every state is a separate node, so returns are never compared."""
_RUNS_PER_STATEMENT = 200
_METRICS = (
    *("gate/incentive_removed", "gate/closed_fraction", "gate/delta_mem_new", "gate/beta_new", "gate/tau"),
    *("memory/merge_rate", "memory/hit_rate", "memory/size", "incentive/rho", "rollout/win_rate", "rollout/return"),
)


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
    no_incentive_reason: str | None
    """Why the incentive is 0, if no success was recorded yet. Also set for runs without a gate."""


def gate_states(db: Database, run_ids: Sequence[str]) -> dict[str, GateState]:
    """What are the states of these runs' gates? Without runs that have no gate."""
    return {
        run_id: verdict.gate for run_id, verdict in list_gate_verdicts(db, run_ids).items() if verdict.gate is not None
    }


def idle_incentives(db: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Which of these runs have no incentive because no success was recorded yet? Run id → reason."""
    return {
        run_id: verdict.no_incentive_reason
        for run_id, verdict in list_gate_verdicts(db, run_ids).items()
        if verdict.no_incentive_reason is not None
    }


def list_gate_verdicts(db: Database, run_ids: Sequence[str]) -> dict[str, GateVerdict]:
    """What do the gates and incentives of these runs do? Answered from the index `ix_metrics_curve`."""
    verdicts: dict[str, GateVerdict] = {}
    for part in in_parts(run_ids, _RUNS_PER_STATEMENT):
        in_part = (MetricRow.run_id.in_(part), MetricRow.name.in_(_METRICS), MetricRow.value.is_not(None))
        statement = select(MetricRow.run_id, MetricRow.name, func.avg(MetricRow.value)).where(*in_part)
        with db.read() as connection:
            rows = connection.execute(statement.group_by(MetricRow.run_id, MetricRow.name)).all()
            runs = connection.execute(select(Run.id, Run.config, Run.status).where(Run.id.in_(part))).all()
        means: dict[str, dict[str, float]] = {run_id: {} for run_id in part}
        for run_id, name, mean in rows:
            means[run_id][name] = float(mean)
        for run in runs:
            values, ended = means[run.id], run.status in _ENDED
            has_gate = "gate/beta_new" in values  # every run with a gate reports it from its first episodes on
            verdicts[run.id] = GateVerdict(
                gate=_make_gate_state(values, run.config, ended=ended) if has_gate else None,
                no_incentive_reason=(
                    _explain_no_success(values, run.config, ended=ended) if values.get("incentive/rho") == 0 else None
                ),
            )
    return verdicts


def _make_gate_state(values: Mapping[str, float], config: Mapping[str, Any], *, ended: bool) -> GateState:
    """Return the state of a gate from the means over a run's reports.

    Args:
        values: Metric name → mean.
        config: The run's configuration as stored.
        ended: Whether the run has ended, so that the sentence does not advise to train on.
    """
    removed, closed = values.get("gate/incentive_removed", 0.0), values.get("gate/closed_fraction", 0.0)
    if name_gate(removed) != "active":
        return GateState("idle", _explain_idle_gate(values, config, closed, ended=ended), dict(values))
    sentence = (
        f"The gate removed {100 * removed:.1f} % of the incentive{'' if ended else ' so far'}. β was below "
        f"{CLOSED_BELOW:g} for {100 * closed:.1f} % of the sampled transitions."
    )
    return GateState("active", sentence, dict(values))


def _explain_idle_gate(values: Mapping[str, float], config: Mapping[str, Any], closed: float, *, ended: bool) -> str:
    memory = config.get("memory", {})
    delta, merged = memory.get("delta", float("nan")), values.get("memory/merge_rate", 0.0)
    if "gate/closed_fraction" not in values:
        train = config.get("train", {})
        n_episodes = max(train.get("burn_in", 1), train.get("batch", 1))
        if ended:
            return f"The run ended before its first update, which needs {n_episodes} episodes (train.burn_in)."
        return "No update has been made yet. The gate acts on the incentive from the first update on."
    if merged > _MAX_MERGE_RATE:
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
    if merged < _MIN_MERGE_RATE:
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
