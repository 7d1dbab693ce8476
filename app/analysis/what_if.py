"""What would the gate have said with another tau, delta or lookup rule? Recomputed beside what was recorded.

Two sets of transitions are judged again, by the core's own functions:

  * **transitions**, the newest recorded up to a snapshot: another tau over the recorded delta_mem. Lookups are not
    recomputed, for the memory of that moment is gone.
  * **links**, the stored successors of the snapshot's nodes: another tau, nodes merged anew at another delta
    (`emtc_core.memory.remerge`), and each end of a link looked up by another rule.

The incentive is the core's r_p with H and N_xi/N_call of the nodes, its removed share `gate/incentive_removed` over
every recorded transition. The learner's Q(s') is not recorded for each transition and stands at 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

from app.analysis.tables import MISSING, describe_table
from emtc_core.config.base import Section, read_faults
from emtc_core.config.memory import GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.errors import ConfigError
from emtc_core.gate.gate import beta_of_miss, delta_mem, incentive, weigh_successors
from emtc_core.gate.laws import INVERTIBLE, make_gate_law, unknown_context
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.gate import newest_transitions
from storage.queries.memory import Snapshot

if TYPE_CHECKING:
    from emtc_core.memory.remerge import Remerged

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Lookup = Literal["nearest", "written"]
Successor = Literal["nn", "link"]
S = TypeVar("S", bound=Section)

MOST_TRANSITIONS = 200_000
NONE = -1


@dataclass(frozen=True)
class Rules:
    """The settings of a run that its gate, its incentive and its memory followed."""

    gate: GateConfig
    incentive: IncentiveConfig
    memory: MemoryConfig
    gamma: float
    bootstrap_on_timeout: bool


@dataclass(frozen=True)
class Question:
    """What is to be other than it was; the default changes nothing."""

    tau_factor: float = 1.0
    tau_fixed: float | None = None  # return units, in place of the recorded tau
    delta_factor: float | None = None  # None leaves the nodes as recorded; 1 merges anew at the recorded delta
    lookup: Lookup = "nearest"
    successor: Successor = "nn"

    def tau(self, recorded: Any) -> Any:
        """The tau [return units] where it was `recorded`, a number or an array."""
        fixed = self.tau_fixed
        return recorded * self.tau_factor if fixed is None else np.full_like(np.asarray(recorded, np.float64), fixed)


@dataclass(frozen=True)
class Stream:
    """Recorded transitions [N] in their order; NaN where nothing was found or there is no gate."""

    delta_mem: Floats
    beta: Floats
    tau: Floats
    slot: Rows  # -1: none
    next_slot: Rows
    ends: Flags  # nothing is bootstrapped

    def only(self, keep: Flags) -> "Stream":
        """Keep some of them."""
        return Stream(**{name: values[keep] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Judged:
    """The gate's verdicts on N transitions, and the incentive that it weighed."""

    delta_mem: Floats  # [N] return units; NaN where a lookup found nothing
    beta: Floats  # [N] in [0, 1]; NaN without a gate
    r_p: Floats  # [N] return units, before the gate


@dataclass(frozen=True)
class Shares:
    """What a gate did to all of them."""

    n: int
    missed: float  # share whose lookup found nothing
    delta_mem: float  # mean [return]
    beta: float  # mean
    closed: float  # share with beta < CLOSED_BELOW
    removed: float  # sum |(1 - beta) r_p| over sum |r_p|; 0 where none flows


@dataclass(frozen=True)
class Compared:
    """One set of transitions, judged twice."""

    name: str
    recorded: Judged
    recomputed: Judged


@dataclass(frozen=True)
class Answer:
    """What the question changes."""

    sets: tuple[Compared, ...]
    nodes: int  # of the snapshot, or of its selection
    nodes_after: int
    tau: float  # at the snapshot, as recorded [return]; NaN where it is unknown
    tau_after: float
    delta: float  # as recorded
    delta_after: float
    law_without_inverse: str | None = None  # label of the gate law from whose beta no tau can be computed


def read_rules(config: Mapping[str, Any]) -> Rules:
    """Read a run's stored configuration; settings that this version does not know are left out.

    Raises:
        ConfigError: If a setting has a value that it cannot have.
    """
    train = config.get("train")
    train = train if isinstance(train, Mapping) else {}
    try:
        gamma = float(train.get("gamma", 0.99))
    except (TypeError, ValueError) as exc:
        raise ConfigError("must be a number", key="train.gamma", value=train["gamma"]) from exc
    return Rules(
        gate=_section(GateConfig, config, "gate"),
        incentive=_section(IncentiveConfig, config, "incentive"),
        memory=_section(MemoryConfig, config, "memory"),
        gamma=gamma,
        bootstrap_on_timeout=bool(train.get("bootstrap_on_timeout", False)),
    )


def read_stream(db: Database, run_id: str, rules: Rules, *, until: int, limit: int = MOST_TRANSITIONS) -> Stream:
    """Read the newest transitions up to env step `until`; none where they were thinned away.

    A run without a gate recorded no delta_mem; it follows from the H that were looked up all the same. An episode's
    last row ends it. Where the target goes on after a time limit, which is not recorded as such, h_next tells: it is
    0 at the true ends alone.
    """
    frame = newest_transitions(db, run_id, until, limit)
    names = ("reward", "h", "h_next", "delta_mem", "beta", "tau")
    reward, h, h_next, error, beta, tau = (frame[name].to_numpy(np.float64, na_value=np.nan) for name in names)
    slot, next_slot = (frame[name].to_numpy(np.int64, na_value=NONE) for name in ("slot", "next_slot"))
    episode = frame["episode"].to_numpy(np.int64)
    is_last = np.append(episode[1:] != episode[:-1], True)[: len(episode)]
    return Stream(
        delta_mem=np.where(np.isnan(error), delta_mem(reward, h, h_next, gamma=rules.gamma), error),
        beta=beta,
        tau=tau,
        slot=slot,
        next_slot=next_slot,
        ends=is_last & (h_next == 0) if rules.bootstrap_on_timeout else is_last,
    )


def answer(
    snapshot: Snapshot,
    stream: Stream,
    rules: Rules,
    question: Question,
    *,
    merged: "Remerged | None" = None,
    rows: Rows | None = None,
) -> Answer:
    """Judge the newest transitions and the snapshot's links anew.

    Args:
        snapshot: The memory at one moment.
        stream: Transitions up to that moment.
        rules: The run's own settings.
        question: What is to be other.
        merged: The nodes merged by `question.delta_factor`, see `merge_nodes`; None leaves them as recorded.
        rows: Rows of the snapshot to look at; None for all. Merging always looks at all nodes.
    """
    law = make_gate_law(rules.gate)
    tau = tau_of(snapshot, stream, rules.gate)
    if rows is not None:
        stream = stream.only(np.isin(stream.slot, snapshot.slot[rows]))
    tau_after = float(question.tau(tau))
    links = _compare_links(snapshot, rules, question, tau_after, merged, rows)
    sets = (_compare_stream(snapshot, stream, rules, question, tau), links) if len(stream.beta) else (links,)
    chosen = np.arange(snapshot.size) if rows is None else rows
    factor = question.delta_factor if merged is not None else None
    return Answer(
        sets=sets,
        nodes=len(chosen),
        nodes_after=len(chosen) if merged is None else len(np.unique(merged.node[chosen])),
        tau=tau,
        tau_after=tau_after,
        delta=rules.memory.delta,
        delta_after=rules.memory.delta * (factor or 1.0),
        law_without_inverse=None if law.is_invertible else law.label,
    )


def merge_nodes(snapshot: Snapshot, rules: Rules, factor: float) -> "Remerged":
    """Merge a snapshot's nodes at `factor` times the run's delta.

    Raises:
        ConfigError: If the factor is below 1 or the snapshot holds an embedding that is no number.
    """
    from emtc_core.memory.remerge import StoredNodes, remerge  # compiled code: only who asks waits for its import

    if factor < 1:
        rule = f"can only grow, because nodes that merged at {rules.memory.delta:g} cannot be split again"
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
    nearest = rules.gate.on_miss == "nearest"
    try:
        return remerge(nodes, delta=factor * rules.memory.delta, config=rules.memory, at_any_distance=nearest)
    except ValueError as exc:
        raise ConfigError(f"cannot be merged again: {exc}", key=f"snapshot {snapshot.id}") from exc


def tau_of(snapshot: Snapshot, stream: Stream, gate: GateConfig) -> float:
    """Compute the tau at a snapshot from its delta_mem and beta, else read it from the newest transition.

    Args:
        snapshot: The memory at one moment.
        stream: All transitions up to that moment.
        gate: The gate's settings, which name its law.

    Returns:
        tau [return]; NaN where the law has no inverse and no transition recorded a tau.

    Raises:
        PluginError: If the law is of a plug-in that is not installed.
    """
    law = make_gate_law(gate)
    low, high = INVERTIBLE
    between = (snapshot.beta > low) & (snapshot.beta < high) & (snapshot.delta_mem > 0)
    if law.is_invertible and between.any():
        error, beta = (values[between].astype(np.float64) for values in (snapshot.delta_mem, snapshot.beta))
        return float(np.median(law.temperature_for(beta, error)))
    recorded = stream.tau[np.isfinite(stream.tau)]
    if len(recorded):
        return float(recorded[-1])
    return gate.tau_end if law.is_invertible else np.nan


def explain_tau(found: Answer) -> str:
    """Explain why the tau at the snapshot was not computed from its beta; empty where it was."""
    if found.law_without_inverse is None:
        return ""
    cannot = (
        f"τ at the snapshot cannot be computed from its β: the gate {found.law_without_inverse} has no inverse "
        "(temperature_for)."
    )
    if np.isfinite(found.tau):
        return f"{cannot} The τ of the newest recorded transition is used."
    return f"{cannot} No transition up to this snapshot is stored either, so τ is unknown; set one τ for all."


def shares(judged: Judged) -> Shares:
    """Measure what a gate did; see `emtc_core.learner.targets.gate_shares`, whose definitions these are."""
    n = len(judged.beta)
    known = np.isfinite(judged.delta_mem)
    offered = np.abs(judged.r_p)
    whole = float(offered.sum())
    removed = float(((1 - judged.beta) * offered).sum() / whole) if whole else 0.0
    has_gate = n > 0 and not np.isnan(judged.beta).any()
    return Shares(
        n=n,
        missed=float(1 - known.mean()) if n else np.nan,
        delta_mem=float(judged.delta_mem[known].mean()) if known.any() else np.nan,
        beta=float(judged.beta.mean()) if has_gate else np.nan,
        closed=float((judged.beta < CLOSED_BELOW).mean()) if has_gate else np.nan,
        removed=removed if has_gate else np.nan,
    )


def tabulate(found: Answer) -> pd.DataFrame:
    """Lay recorded, recomputed and difference side by side, one row per quantity."""
    rows = [
        _row("τ at the snapshot [return]", found.tau, found.tau_after, 4),
        _row("nodes", found.nodes, found.nodes_after, 0),
    ]
    for each in found.sets:
        before, after = shares(each.recorded), shares(each.recomputed)
        rows += [
            _row(f"{each.name}: Δ̄_mem [return]", before.delta_mem, after.delta_mem, 4),
            _row(f"{each.name}: lookup found nothing [%]", 100 * before.missed, 100 * after.missed, 2),
            _row(f"{each.name}: β̄", before.beta, after.beta, 4),
            _row(f"{each.name}: β < {CLOSED_BELOW:g} [%]", 100 * before.closed, 100 * after.closed, 2),
            _row(f"{each.name}: incentive passed [%]", 100 - 100 * before.removed, 100 - 100 * after.removed, 2),
            _row(f"{each.name}: incentive removed [%]", 100 * before.removed, 100 * after.removed, 2),
        ]
    columns = pd.Index(["quantity", "recorded", "recomputed", "difference"])
    return describe_table(pd.DataFrame(rows, columns=columns), caption=_caption(found))


def _caption(found: Answer) -> str:
    counted = ", ".join(f"{len(each.recorded.beta):,} {each.name}" for each in found.sets)
    return (
        f"Recorded beside recomputed, over {counted}; δ = {found.delta_after:.3g}. Q(s′) stands at 0 in the incentive."
    )


def _row(name: str, before: float, after: float, digits: int) -> tuple[str, str, str, str]:
    def write(value: float, sign: str = "") -> str:
        return f"{value + 0.0:{sign},.{digits}f}" if np.isfinite(value) else MISSING

    return name, write(before), write(after), write(round(after - before, digits), "+")


def _section(kind: type[S], config: Mapping[str, Any], name: str) -> S:
    given = config.get(name)
    known = (
        {key: value for key, value in given.items() if key in kind.model_fields} if isinstance(given, Mapping) else {}
    )
    try:
        return kind.model_validate(known)
    except ValidationError as exc:
        raise ConfigError(*read_faults(exc, lambda parts: ".".join((name, *parts)))) from exc


@dataclass(frozen=True)
class _Recalled:
    """Nodes as the incentive recalls them; see `emtc_core.gate.gate.RecalledNodes`."""

    h: Floats
    n_call: NDArray[np.int32]
    n_xi: NDArray[np.int32]
    xi: Flags
    hit: Flags


def _r_p(nodes: "Snapshot | Remerged", rows: Rows, ends: Flags, rules: Rules) -> Floats:
    """Compute r_p of transitions whose successors stand in these rows of `nodes`, with Q(s') = 0."""
    hit, at = rows >= 0, np.maximum(rows, 0)
    recalled = _Recalled(
        h=np.where(hit, nodes.h[at].astype(np.float64), np.nan),
        n_call=np.where(hit, nodes.n_call[at], 0).astype(np.int32),
        n_xi=np.where(hit, nodes.n_xi[at], 0).astype(np.int32),
        xi=nodes.xi[at] & hit,
        hit=hit,
    )
    h_next, rho = weigh_successors(recalled, ends, rules.incentive)
    offered: Floats = incentive(h_next, np.zeros_like(h_next), rho, gamma=rules.gamma, clamp=rules.incentive.clamp)
    return offered


def _compare_stream(snapshot: Snapshot, stream: Stream, rules: Rules, question: Question, tau: float) -> Compared:
    """Judge recorded transitions by another tau, or by that of the snapshot where none was recorded.

    A miss keeps its recorded gate, which knows no tau.
    """
    r_p = _r_p(snapshot, snapshot.rows_of(stream.next_slot), stream.ends, rules)
    beta = _gate(stream.delta_mem, question.tau(np.where(np.isnan(stream.tau), tau, stream.tau)), rules.gate)
    beta = np.where(np.isnan(stream.delta_mem) & np.isfinite(stream.beta), stream.beta, beta)
    return Compared("transitions", Judged(stream.delta_mem, stream.beta, r_p), Judged(stream.delta_mem, beta, r_p))


def _compare_links(
    snapshot: Snapshot, rules: Rules, question: Question, tau: float, merged: "Remerged | None", rows: Rows | None
) -> Compared:
    here = np.arange(snapshot.size) if rows is None else rows
    there = snapshot.rows_of(snapshot.idx_next[here])
    here, there = here[there >= 0], there[there >= 0]
    ends = (snapshot.idx_next[there] < 0) & (snapshot.h[there] == 0)
    recorded = Judged(
        snapshot.delta_mem[here].astype(np.float64),
        snapshot.beta[here].astype(np.float64),
        _r_p(snapshot, there, ends, rules),
    )
    if merged is None:
        error, r_p = recorded.delta_mem, recorded.r_p
    else:
        error = _error_of_links(snapshot, rules, question, merged, here, there, ends)
        r_p = _r_p(merged, merged.node[there], ends, rules)
    return Compared("links", recorded, Judged(error, _gate(error, tau, rules.gate), r_p))


def _error_of_links(
    snapshot: Snapshot, rules: Rules, question: Question, merged: "Remerged", here: Rows, there: Rows, ends: Flags
) -> Floats:
    """Compute delta_mem [L] over merged nodes; NaN where a lookup finds nothing.

    H is stored as float32, so a link of which nothing changed keeps the delta_mem that was computed before rounding.
    """
    found = merged.node if question.lookup == "written" else merged.nearest
    at = found[here]
    then = found[there] if question.successor == "nn" else np.where(at >= 0, merged.next[at], NONE)
    h, h_next = (np.where(rows >= 0, merged.h[rows], np.nan) for rows in (at, then))
    if rules.gate.terminal_value == "zero":
        h_next = np.where(ends, 0.0, h_next)
    error: Floats = delta_mem(snapshot.reward[here].astype(np.float64), h, h_next, gamma=rules.gamma)
    same = (h == snapshot.h[here]) & (h_next == snapshot.h[there])
    return np.where(same, snapshot.delta_mem[here], error)


def _gate(error: Floats, tau: Any, gate: GateConfig) -> Floats:
    """Weigh by the core's gate, a miss by its rule; NaN where tau is unknown."""
    missed = np.isnan(error)
    beta = make_gate_law(gate).coefficient(np.where(missed, 0.0, error), tau, unknown_context(error.shape))
    return np.where(missed, beta_of_miss(gate, is_empty=False), beta)
