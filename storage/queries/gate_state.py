"""Does the gate of a run do anything, and if not, why and what to try?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

from sqlalchemy import func, select

from storage.engine import Database
from storage.frames import in_parts
from storage.models import MetricRow, Run

ACTIVE_SHARE = 0.001  # of the incentive removed, or of the transitions closed
_ENDED = ("finished", "stopped", "failed")
_MAY_NEVER_SAY_WON = frozenset({"pettingzoo"})
"""Environments of users; the others always say who won."""
_MERGED_ALL = 0.9
_NAMES = (
    *("gate/incentive_removed", "gate/closed_fraction", "gate/delta_mem_new", "gate/beta_new", "gate/tau"),
    *("memory/merge_rate", "memory/hit_rate", "memory/size", "incentive/rho", "rollout/win_rate", "rollout/return"),
)


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


def gate_states(db: Database, run_ids: Sequence[str]) -> dict[str, GateState]:
    """Which of these runs have a gate that acts? Answered from the index `ix_metrics_curve`."""
    found: dict[str, GateState] = {}
    for part in in_parts(run_ids, 200):
        found |= _states_of(db, part)
    return found


def idle_incentives(db: Database, run_ids: Sequence[str]) -> dict[str, str]:
    """Which of these runs, with a gate or without, have no incentive because nothing was a success yet, and why?"""
    values, configs, ended = _read(db, run_ids)
    return {
        run_id: _explain_no_success(values[run_id], config, ended=run_id in ended)
        for run_id, config in configs.items()
        if values[run_id].get("incentive/rho") == 0
    }


def _states_of(db: Database, run_ids: Sequence[str]) -> dict[str, GateState]:
    values, configs, ended = _read(db, run_ids)
    return {
        run_id: judge(values[run_id], config, ended=run_id in ended)
        for run_id, config in configs.items()
        if "gate/beta_new" in values[run_id]  # every run with a gate reports it with its first episodes
    }


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
            f"The gate removed {removed:.1%} of the incentive so far: "
            f"{closed:.1%} of the sampled transitions had β below 0.5."
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
            f"{merged:.1%} of states merged within δ = {delta:g}, into {values.get('memory/size', 0):.0f} nodes: the "
            "embedding hardly tells states apart. Try --set memory.delta_space=normalized, or a smaller memory.delta."
        )
    if not values.get("incentive/rho"):
        return f"{_explain_no_success(values, config, ended=ended)} β is below 0.5 on {closed:.1%} of transitions."
    if closed >= ACTIVE_SHARE:
        return (
            f"β is below 0.5 on {closed:.1%} of transitions, but they carry next to no incentive. "
            "Look at incentive/r_p and incentive/rho on Live."
        )
    if merged < 0.0005:
        return (
            f"{merged:.1%} of states merged within δ = {delta:g}: every memory stands alone, β is 1 everywhere. "
            f"Try --set {_wider(config)}."
        )
    error, tau = values.get("gate/delta_mem_new", 0.0), values.get("gate/tau", float("nan"))
    return (
        f"{merged:.1%} of states merged within δ = {delta:g}, and their returns agree: mean Δ_mem {error:.2g} against "
        f"τ = {tau:.2g}, so β stays near 1. Try --set {_wider(config)}, or a colder gate by gate.tau_start."
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
    if config.get("env", {}).get("name") in _MAY_NEVER_SAY_WON:
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
