"""Recomputed gate: beta and the incentive with another tau, delta or lookup rule, compared with the recorded values.

The nodes of the episodic memory store the highest return H that was reached from a state. delta_mem is the error
between H of a state and that of its successor. The gate computes beta, the weight of the episodic incentive r_p, from
delta_mem and the temperature tau. The gate law is the formula for this. A lookup searches the node of a state; it finds
nothing if no node is near enough. The memory merges states whose embeddings are within the radius delta. A snapshot is
the memory at one env step.

Two sets of transitions are evaluated again with the functions of `emtc_core`:

  * **transitions**: the newest recorded transitions up to a snapshot, with another tau and the recorded delta_mem.
    Lookups are not recomputed, because the memory at that time is not stored.
  * **links**: the stored successors of the nodes of the snapshot, with another tau, with nodes merged again at another
    delta (`emtc_core.memory.remerge`), and with another lookup rule for both ends of a link.

The incentive r_p is computed from H and the fraction of successful visits (N_xi / N_call) of the nodes. The fraction of
r_p that the gate removes is computed as the metric `gate/incentive_removed`, but over all recorded transitions. Q(s')
of the learner is not recorded per transition; 0 is used.

If the snapshot is a sample of the memory, some successors are missing. Recorded values and another tau can still be
evaluated. The incentive is NaN and nodes cannot be merged, because both need a whole snapshot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from app.analysis.format import format_decimals
from app.analysis.samples import NEEDS_WHOLE, explain_sample
from app.analysis.tables import MISSING, Table, make_table
from emtc_core.config.base import ConfigSection, convert_errors
from emtc_core.config.memory import GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.errors import ConfigError
from emtc_core.gate.gate import delta_mem, get_miss_beta, make_gate_law
from emtc_core.gate.incentive import compute_incentive_inputs, incentive
from emtc_core.gate_laws import INVERTIBLE, unknown_context
from emtc_core.kernel_cache import check_kernel_cache
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.gate import newest_transitions
from storage.queries.memory import Snapshot

if TYPE_CHECKING:
    from emtc_core.memory.remerge import MergedNodes

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Lookup = Literal["nearest", "written"]
"""Node that is used for a state after merging. nearest: by a new search; written: the one that contains the state."""
Successor = Literal["nn", "link"]
"""Node that is used for the next state: by lookup ("nn", nearest neighbor), or the stored successor of the node."""
Section = TypeVar("Section", bound=ConfigSection)

DEFAULT_MAX_TRANSITIONS = 200_000
"""Default maximum number of transitions that `read_recorded_transitions` reads."""
NO_NODE = -1
"""Row of a missing node."""


@dataclass(frozen=True)
class GateSettings:
    """Settings of the gate, the incentive and the memory of a run."""

    gate: GateConfig
    incentive: IncentiveConfig
    memory: MemoryConfig
    gamma: float
    bootstrap_on_timeout: bool


@dataclass(frozen=True)
class WhatIfSettings:
    """The changed settings; the defaults change nothing."""

    tau_factor: float = 1.0
    tau_fixed: float | None = None  # [return], replaces the recorded tau
    delta_factor: float | None = None  # None: nodes as recorded; 1: nodes merged again at the recorded delta
    lookup: Lookup = "nearest"
    successor: Successor = "nn"

    def change_tau(self, recorded: Any) -> Any:
        """Return the changed tau [return] for a recorded one, a number or an array."""
        if self.tau_fixed is None:
            return recorded * self.tau_factor
        return np.full_like(np.asarray(recorded, np.float64), self.tau_fixed)


@dataclass(frozen=True)
class RecordedTransitions:
    """The recorded transitions of a run [N] in their order.

    delta_mem is NaN if a lookup found nothing. beta and tau are NaN if the run has no gate.
    """

    delta_mem: Floats
    beta: Floats
    tau: Floats
    slot: Rows  # memory slot of the node that was recalled for the state; -1: no node
    next_slot: Rows  # the same for the next state
    ends: Flags  # last step of an episode, after which the target does not bootstrap

    def select(self, keep: Flags) -> "RecordedTransitions":
        """Select the transitions for which the mask `keep` [N] is true."""
        return RecordedTransitions(**{name: values[keep] for name, values in vars(self).items()})


@dataclass(frozen=True)
class WhatIfValues:
    """Values of the gate and the incentive for N transitions."""

    delta_mem: Floats  # [N] [return]; NaN if a lookup found nothing
    beta: Floats  # [N] in [0, 1]; NaN without a gate
    r_p: Floats  # [N] [return], before the gate; NaN if the snapshot is a sample


@dataclass(frozen=True)
class GateMeans:
    """Means of the gate over N transitions."""

    n: int
    missed: float  # fraction whose lookup found nothing
    delta_mem: float  # mean [return]
    beta: float  # mean
    closed: float  # fraction with beta < CLOSED_BELOW
    removed: float  # sum |(1 - beta) r_p| over sum |r_p|; 0 if every r_p is 0; NaN if r_p is unknown


@dataclass(frozen=True)
class ComparedSet:
    """Recorded and recomputed values of one set of transitions."""

    name: str
    recorded: WhatIfValues
    recomputed: WhatIfValues


@dataclass(frozen=True)
class WhatIfResult:
    """Effect of the changed settings."""

    sets: tuple[ComparedSet, ...]
    n_nodes: int  # number of nodes of the snapshot or the selection
    n_nodes_after: int
    tau: float  # recorded tau at the snapshot [return]; NaN if unknown
    tau_after: float
    delta: float  # recorded
    delta_after: float
    law_without_inverse: str | None = None  # name of the gate law if tau cannot be computed from its beta
    sample: str = ""  # sentence about the sample; empty for a whole snapshot


def read_gate_settings(config: Mapping[str, Any]) -> GateSettings:
    """Read the rules from the stored configuration of a run; settings that this version does not have are ignored.

    Raises:
        ConfigError: If a setting has an invalid value.
    """
    train = config.get("train")
    train = train if isinstance(train, Mapping) else {}
    try:
        gamma = float(train.get("gamma", 0.99))
    except (TypeError, ValueError) as exc:
        raise ConfigError("must be a number", key="train.gamma", value=train["gamma"]) from exc
    return GateSettings(
        gate=_read_section(GateConfig, config, "gate"),
        incentive=_read_section(IncentiveConfig, config, "incentive"),
        memory=_read_section(MemoryConfig, config, "memory"),
        gamma=gamma,
        bootstrap_on_timeout=bool(train.get("bootstrap_on_timeout", False)),
    )


def read_recorded_transitions(
    db: Database, run_id: str, rules: GateSettings, *, until: int, limit: int = DEFAULT_MAX_TRANSITIONS
) -> RecordedTransitions:
    """Read the newest transitions up to env step `until`; empty if they were removed by thinning.

    A run without a gate does not record delta_mem; it is computed from the recorded h and h_next. Time limits are not
    recorded. If the target bootstraps at a time limit, the last step of an episode is an end only if h_next = 0;
    any other last step is a time limit.

    Args:
        db: An open database.
        run_id: The run.
        rules: The settings of the run.
        until: Last env step.
        limit: Maximum number of transitions.
    """
    frame = newest_transitions(db, run_id, until, limit)
    names = ("reward", "h", "h_next", "delta_mem", "beta", "tau")
    reward, h, h_next, recorded, beta, tau = (frame[name].to_numpy(np.float64, na_value=np.nan) for name in names)
    slot, next_slot = (frame[name].to_numpy(np.int64, na_value=NO_NODE) for name in ("slot", "next_slot"))
    episode = frame["episode"].to_numpy(np.int64)
    is_last = np.append(episode[1:] != episode[:-1], True)
    is_last = is_last[: len(episode)]  # without transitions, this removes the appended value
    return RecordedTransitions(
        delta_mem=np.where(np.isnan(recorded), delta_mem(reward, h, h_next, gamma=rules.gamma), recorded),
        beta=beta,
        tau=tau,
        slot=slot,
        next_slot=next_slot,
        ends=is_last & (h_next == 0) if rules.bootstrap_on_timeout else is_last,
    )


def evaluate_what_if(
    snapshot: Snapshot,
    transitions: RecordedTransitions,
    rules: GateSettings,
    settings: WhatIfSettings,
    *,
    merged: "MergedNodes | None" = None,
    rows: Rows | None = None,
) -> WhatIfResult:
    """Evaluate the newest transitions and the links of a snapshot with changed settings.

    Args:
        snapshot: The memory at one env step.
        transitions: Transitions up to this env step.
        rules: The settings of the run.
        settings: The changed settings.
        merged: The nodes merged by `settings.delta_factor`, see `merge_nodes`; None for the recorded nodes.
        rows: Selected rows of the snapshot; None for all. Nodes are always merged in the whole memory.
    """
    law = make_gate_law(rules.gate)
    tau = find_tau(snapshot, transitions, rules.gate)
    if rows is not None:
        transitions = transitions.select(np.isin(transitions.slot, snapshot.slot[rows]))
    tau_after = float(settings.change_tau(tau))
    # For links, the tau of the snapshot is changed here; for transitions, each recorded tau is changed.
    sets = [_compare_links(snapshot, rules, settings, tau_after, merged, rows)]
    if len(transitions.beta):
        sets.insert(0, _compare_transitions(snapshot, transitions, rules, settings, tau))
    selected = np.arange(snapshot.size) if rows is None else rows
    n_nodes = n_merged = len(selected)
    delta = delta_after = rules.memory.delta
    if merged is not None:
        # `merged.node` is, for each row, the row of the node that contains it after merging
        n_merged = len(np.unique(merged.node[selected]))
        delta_after = delta * (settings.delta_factor or 1.0)
    return WhatIfResult(
        sets=tuple(sets),
        n_nodes=n_nodes,
        n_nodes_after=n_merged,
        tau=tau,
        tau_after=tau_after,
        delta=delta,
        delta_after=delta_after,
        law_without_inverse=None if law.is_invertible else rules.gate.type,
        sample=explain_sample(snapshot),
    )


def merge_nodes(snapshot: Snapshot, rules: GateSettings, factor: float) -> "MergedNodes":
    """Merge the nodes of a snapshot at `factor` times the delta of the run.

    Raises:
        ConfigError: If the factor is below 1, the snapshot is a sample, its embedding contains NaN or infinite values,
            or compiled kernels cannot be stored.
    """
    check_kernel_cache()
    from emtc_core.memory.remerge import StoredNodes, remerge  # imported here because it loads compiled code

    if snapshot.whole is not None:  # the snapshot is a sample
        raise ConfigError(f"needs {NEEDS_WHOLE}", key="delta_factor", value=factor)
    if factor < 1:
        rule = f"can only be increased, because nodes that were merged at {rules.memory.delta:g} cannot be split"
        raise ConfigError(rule, key="memory.delta", value=rules.memory.delta * factor)
    nodes = StoredNodes(
        embedding=snapshot.embedding,
        episode=snapshot.episode,
        t=snapshot.t,
        h=snapshot.h.astype(np.float64),
        xi=snapshot.xi,
        n_call=snapshot.n_call.astype(np.int64),
        n_xi=snapshot.n_xi.astype(np.int64),
        next=snapshot.rows_of(snapshot.idx_next),
    )
    # if no node is within delta, a lookup returns the nearest node at any distance
    at_any_distance = rules.gate.on_miss == "nearest"
    try:
        return remerge(nodes, delta=factor * rules.memory.delta, config=rules.memory, at_any_distance=at_any_distance)
    except ValueError as exc:
        raise ConfigError(f"cannot be merged: {exc}", key=f"snapshot {snapshot.id}") from exc


def find_tau(snapshot: Snapshot, transitions: RecordedTransitions, gate: GateConfig) -> float:
    """Compute the tau at a snapshot from its delta_mem and beta, or read it from the newest transition.

    If neither is possible and the law has an inverse, return the setting `gate.tau_end`.

    Args:
        snapshot: The memory at one env step.
        transitions: All transitions up to this env step.
        gate: The settings of the gate, including its law.

    Returns:
        tau [return]; NaN if the law has no inverse and no transition recorded a tau.

    Raises:
        PluginError: If the law belongs to a plug-in that is not installed.
    """
    law = make_gate_law(gate)
    min_beta, max_beta = INVERTIBLE  # outside this range, a rounded beta does not determine tau
    is_usable = (snapshot.beta > min_beta) & (snapshot.beta < max_beta) & (snapshot.delta_mem > 0)
    if law.is_invertible and is_usable.any():
        error, beta = (values[is_usable].astype(np.float64) for values in (snapshot.delta_mem, snapshot.beta))
        return float(np.median(law.temperature_for(beta, error)))
    recorded = transitions.tau[np.isfinite(transitions.tau)]
    if len(recorded):
        return float(recorded[-1])
    return gate.tau_end if law.is_invertible else np.nan


def explain_tau(result: WhatIfResult) -> str:
    """Explain why the tau at the snapshot was not computed from its beta; empty if it was."""
    if result.law_without_inverse is None:
        return ""
    reason = (
        f"τ at the snapshot cannot be computed from its β: the gate law {result.law_without_inverse} has no inverse."
    )
    if np.isfinite(result.tau):
        return f"{reason} The τ of the newest recorded transition is used."
    return f"{reason} No transition up to this snapshot is stored, so τ is unknown. Set a fixed τ."


def compute_gate_means(values: WhatIfValues) -> GateMeans:
    """Compute the means of the gate, defined as in `emtc_core.learner.targets.gate_ratios`."""
    n = len(values.beta)
    is_hit = np.isfinite(values.delta_mem)
    incentive_size = np.abs(values.r_p)
    total = float(incentive_size.sum())
    removed = float(((1 - values.beta) * incentive_size).sum() / total) if total else 0.0
    has_gate = n > 0 and not np.isnan(values.beta).any()
    return GateMeans(
        n=n,
        missed=float(1 - is_hit.mean()) if n else np.nan,
        delta_mem=float(values.delta_mem[is_hit].mean()) if is_hit.any() else np.nan,
        beta=float(values.beta.mean()) if has_gate else np.nan,
        closed=float((values.beta < CLOSED_BELOW).mean()) if has_gate else np.nan,
        removed=removed if has_gate else np.nan,
    )


def tabulate_what_if(result: WhatIfResult) -> Table:
    """Make the table of the recorded and the recomputed values and their differences, one row per quantity."""
    rows = [
        _make_row("τ at the snapshot [return]", result.tau, result.tau_after, 4),
        _make_row("nodes of the sample" if result.sample else "nodes", result.n_nodes, result.n_nodes_after, 0),
    ]
    for compared in result.sets:
        name = compared.name
        before = compute_gate_means(compared.recorded)
        after = compute_gate_means(compared.recomputed)
        rows += [
            _make_row(f"{name}: Δ̄_mem [return]", before.delta_mem, after.delta_mem, 4),
            _make_row(f"{name}: lookup found nothing [%]", 100 * before.missed, 100 * after.missed, 2),
            _make_row(f"{name}: β̄", before.beta, after.beta, 4),
            _make_row(f"{name}: β < {CLOSED_BELOW:g} [%]", 100 * before.closed, 100 * after.closed, 2),
            _make_row(
                f"{name}: incentive passed [%]",
                100 - 100 * before.removed,
                100 - 100 * after.removed,
                2,
            ),
            _make_row(f"{name}: incentive removed [%]", 100 * before.removed, 100 * after.removed, 2),
        ]
    sizes = ", ".join(f"{len(compared.recorded.beta):,} {compared.name}" for compared in result.sets)
    incentive_note = "The incentive is computed with Q(s′) = 0."
    if result.sample:
        incentive_note = f"{result.sample} The incentive is not computed: it needs the nodes of all successors."
    caption = f"Recorded and recomputed values of {sizes}; δ = {result.delta_after:.3g}. {incentive_note}"
    return make_table(["quantity", "recorded", "recomputed", "difference"], rows, caption=caption)


def _make_row(name: str, before: float, after: float, digits: int) -> tuple[str, str, str, str]:
    def write(value: float, sign: str = "") -> str:
        return format_decimals(value, digits, sign=sign) if np.isfinite(value) else MISSING

    difference = round(after - before, digits + 2)
    return name, write(before), write(after), write(difference, "+")


def _read_section(kind: type[Section], config: Mapping[str, Any], name: str) -> Section:
    stored = config.get(name)
    values = stored if isinstance(stored, Mapping) else {}
    try:
        return kind.model_validate({key: value for key, value in values.items() if key in kind.model_fields})
    except ValidationError as exc:
        raise ConfigError(*convert_errors(exc, lambda parts: ".".join((name, *parts)))) from exc


@dataclass(frozen=True)
class _RecalledRows:
    """Nodes of a snapshot in the form of a recall; implements the protocol `emtc_core.gate.incentive.RecalledNodes`."""

    h: Floats
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    xi: Flags
    hit: Flags


def _compute_incentive(nodes: "Snapshot | MergedNodes", rows: Rows, ends: Flags, rules: GateSettings) -> Floats:
    """Compute r_p of transitions with Q(s') = 0; `rows` are the rows of their successors in `nodes`.

    r_p is NaN for a sample of the memory, because it has not all successors.
    """
    if isinstance(nodes, Snapshot) and nodes.whole is not None:
        return np.full(rows.shape, np.nan)
    hit = rows >= 0
    existing_rows = np.maximum(rows, 0)  # row 0 is read where the lookup found nothing, and is replaced below
    recalled = _RecalledRows(
        h=np.where(hit, nodes.h[existing_rows].astype(np.float64), np.nan),
        n_call=np.where(hit, nodes.n_call[existing_rows], 0).astype(np.int32),
        n_xi=np.where(hit, nodes.n_xi[existing_rows], 0).astype(np.int32),
        xi=nodes.xi[existing_rows] & hit,
        hit=hit,
    )
    h_next, rho = compute_incentive_inputs(recalled, ends, rules.incentive)
    r_p: Floats = incentive(h_next, np.zeros_like(h_next), rho, gamma=rules.gamma, clamp=rules.incentive.clamp)
    return r_p


def _compare_transitions(
    snapshot: Snapshot, transitions: RecordedTransitions, rules: GateSettings, settings: WhatIfSettings, tau: float
) -> ComparedSet:
    """Evaluate the recorded transitions with another tau.

    `tau` is that of the snapshot; it is used for transitions without a recorded one. If a lookup found nothing, beta
    remains as recorded, because it does not depend on tau.
    """
    r_p = _compute_incentive(snapshot, snapshot.rows_of(transitions.next_slot), transitions.ends, rules)
    recorded_tau = np.where(np.isnan(transitions.tau), tau, transitions.tau)
    beta = _compute_beta(transitions.delta_mem, settings.change_tau(recorded_tau), rules.gate)
    is_recorded_miss = np.isnan(transitions.delta_mem) & np.isfinite(transitions.beta)
    beta = np.where(is_recorded_miss, transitions.beta, beta)
    recorded = WhatIfValues(transitions.delta_mem, transitions.beta, r_p)
    recomputed = WhatIfValues(transitions.delta_mem, beta, r_p)
    return ComparedSet("transitions", recorded, recomputed)


def _compare_links(
    snapshot: Snapshot,
    rules: GateSettings,
    settings: WhatIfSettings,
    tau: float,
    merged: "MergedNodes | None",
    rows: Rows | None,
) -> ComparedSet:
    """Evaluate the links from the selected nodes to their stored successors with another tau or with merged nodes."""
    sources = np.arange(snapshot.size) if rows is None else rows
    sources = sources[snapshot.idx_next[sources] >= 0]
    targets = snapshot.rows_of(snapshot.idx_next[sources])  # -1: not in the sample
    # The successor is the end of an episode if it has no successor and H = 0. A target of -1 reads the last row. This
    # has no effect: -1 occurs only in a sample, for which r_p is NaN and which cannot be merged.
    ends = (snapshot.idx_next[targets] < 0) & (snapshot.h[targets] == 0)
    recorded = WhatIfValues(
        snapshot.delta_mem[sources].astype(np.float64),
        snapshot.beta[sources].astype(np.float64),
        _compute_incentive(snapshot, targets, ends, rules),
    )
    if merged is None:
        error = recorded.delta_mem
        r_p = recorded.r_p
    else:
        error = _compute_link_errors(snapshot, rules, settings, merged, sources, targets, ends)
        r_p = _compute_incentive(merged, merged.node[targets], ends, rules)
    beta = _compute_beta(error, tau, rules.gate)
    return ComparedSet("links", recorded, WhatIfValues(error, beta, r_p))


def _compute_link_errors(
    snapshot: Snapshot,
    rules: GateSettings,
    settings: WhatIfSettings,
    merged: "MergedNodes",
    sources: Rows,
    targets: Rows,
    ends: Flags,
) -> Floats:
    """Compute delta_mem of the links [L] with merged nodes; NaN if a lookup finds nothing.

    `sources` and `targets` are the rows of both ends of the links in the snapshot. If a lookup finds nothing, its row
    is -1. The last row is read then, and its value is replaced.

    H is stored as float32, but delta_mem was computed before rounding. A link whose H did not change therefore keeps
    its recorded delta_mem.
    """
    lookup = merged.node if settings.lookup == "written" else merged.nearest
    node = lookup[sources]
    stored_successor = np.where(node >= 0, merged.next[node], NO_NODE)
    next_node = lookup[targets] if settings.successor == "nn" else stored_successor
    h = np.where(node >= 0, merged.h[node], np.nan)
    h_next = np.where(next_node >= 0, merged.h[next_node], np.nan)
    if rules.gate.terminal_value == "zero":
        h_next = np.where(ends, 0.0, h_next)
    error: Floats = delta_mem(snapshot.reward[sources].astype(np.float64), h, h_next, gamma=rules.gamma)
    is_unchanged = (h == snapshot.h[sources]) & (h_next == snapshot.h[targets])
    return np.where(is_unchanged, snapshot.delta_mem[sources], error)


def _compute_beta(error: Floats, tau: Any, gate: GateConfig) -> Floats:
    """Compute beta by the gate law, and by `gate.on_miss` if a lookup found nothing; NaN if tau is unknown."""
    is_miss = np.isnan(error)
    # The other inputs of a gate law (`GateContext`) are unknown here (NaN). If a lookup found nothing, the memory is
    # treated as not empty, so `gate.on_miss` is used instead of `gate.on_empty`.
    beta = make_gate_law(gate).weigh(np.where(is_miss, 0.0, error), tau, unknown_context(error.shape))
    return np.where(is_miss, get_miss_beta(gate, is_empty=False), beta)
