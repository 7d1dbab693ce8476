"""Registry of every logged number: `group/name` → what it means and its unit.

The recorder refuses a name that is not here, so an undocumented number cannot reach a chart. Two groups are open: `env`
has what an environment's infos name, `user` what metrics and callbacks from outside return.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import SupportsFloat


@dataclass(frozen=True)
class Metric:
    """One logged number."""

    name: str
    unit: str
    meaning: str


def _registry(*rows: tuple[str, str, str]) -> dict[str, Metric]:
    return {name: Metric(name, unit, meaning) for name, unit, meaning in rows}


CLOSED_BELOW = 0.5
"""The gate is closed on a transition with a smaller beta."""
MEASURED = ("time/", "machine/", "embedder/fit_ms", "memory/write_ms", "memory/lookup_ms", "memory/reproject_ms")
"""Beginnings of names whose numbers belong to the machine, not to the seed: two runs alike differ in them."""
METRICS = _registry(
    (
        "rollout/return",
        "env return",
        "mean undiscounted return of the training episodes since the last report",
    ),
    ("rollout/win_rate", "fraction", "share of won training episodes since the last report"),
    (
        "rollout/success_rate",
        "fraction",
        "share of training episodes since the last report that returned memory.success_threshold or more, where the "
        "return decides what a success is (memory.success=return_threshold)",
    ),
    ("rollout/length", "steps", "mean length of the training episodes since the last report"),
    ("rollout/epsilon", "fraction", "probability of a random action"),
    ("train/loss", "return²", "masked mean squared TD error plus the backbone's own terms"),
    ("train/td_loss", "return²", "masked mean squared TD error alone"),
    ("train/td_error_abs", "return", "masked mean absolute TD error"),
    ("train/grad_norm", "1", "global gradient norm before clipping"),
    ("train/q_taken", "return", "mean Q_tot of the actions taken"),
    ("train/target", "return", "mean TD target"),
    ("train/regularizer", "return²", "backbone's extra loss: attention, L1, prediction, entropy"),
    ("train/updates", "1", "gradient updates so far"),
    ("train/policy_loss", "1", "clipped PPO objective"),
    ("train/value_loss", "1", "value loss in normalised units"),
    ("train/entropy", "nats", "mean policy entropy"),
    ("train/intrinsic_reward", "return", "mean intrinsic reward added to the target"),
    ("train/episodic_loss", "return²", "conventional episodic-control loss (EMC)"),
    ("incentive/r_p", "return", "mean episodic incentive r_p before the gate"),
    ("incentive/gated_r_p", "return", "mean incentive after the gate, beta times r_p"),
    ("incentive/rho", "fraction", "mean N_xi / N_call of the successors"),
    ("gate/delta_mem_batch", "return", "mean consistency error of the last sampled batch in the memory of this moment"),
    ("gate/delta_mem_batch_p10", "return", "its 10 % quantile"),
    ("gate/delta_mem_batch_p50", "return", "its median"),
    ("gate/delta_mem_batch_p90", "return", "its 90 % quantile"),
    ("gate/beta_batch", "fraction", "mean gate of the sampled transitions, as the updates used it"),
    ("gate/beta_batch_p10", "fraction", "10 % quantile of the gates that the last batch used"),
    ("gate/beta_batch_p50", "fraction", "median of the gates that the last batch used"),
    ("gate/beta_batch_p90", "fraction", "90 % quantile of the gates that the last batch used"),
    ("gate/beta_drift", "fraction", "mean distance of the gates used from what the memory would say now (C5, C6)"),
    (
        "gate/incentive_removed",
        "fraction",
        "share of the incentive removed: Σ|(1-beta) r_p| over Σ|r_p| of the sampled transitions; 0 where none flows",
    ),
    ("gate/closed_fraction", "fraction", f"share of sampled transitions with beta < {CLOSED_BELOW:g}"),
    (
        "gate/delta_mem_new",
        "return",
        "mean consistency error of the transitions collected since the last report, as they were judged",
    ),
    ("gate/delta_mem_new_p10", "return", "its 10 % quantile"),
    ("gate/delta_mem_new_p50", "return", "its median"),
    ("gate/delta_mem_new_p90", "return", "its 90 % quantile"),
    ("gate/beta_new", "fraction", "mean gate of the transitions collected since the last report"),
    ("gate/beta_new_p10", "fraction", "its 10 % quantile"),
    ("gate/beta_new_p50", "fraction", "its median"),
    ("gate/beta_new_p90", "fraction", "its 90 % quantile"),
    ("gate/tau", "return", "gate temperature"),
    ("memory/size", "nodes", "stored nodes"),
    ("memory/merge_rate", "fraction", "share of written states that merged into an existing node"),
    ("memory/hit_rate", "fraction", "share of successor lookups that found a node within delta"),
    ("memory/desirable_fraction", "fraction", "share of nodes with xi = 1"),
    ("memory/evicted", "nodes", "nodes evicted so far"),
    ("memory/write_ms", "ms", "time of Algorithm 2 per episode"),
    ("memory/lookup_ms", "ms", "time of successor lookups per update"),
    ("memory/reproject_ms", "ms", "time of one re-projection with index rebuild"),
    ("embedder/loss", "return²", "mean total embedder loss of the last refit"),
    ("embedder/return_loss", "return²", "mean squared return reconstruction error"),
    ("embedder/state_loss", "1", "mean squared state reconstruction error, summed over coordinates"),
    ("embedder/info_nce", "nats", "mean InfoNCE"),
    ("embedder/info_nce_accuracy", "fraction", "share of anchors whose own view is their nearest candidate"),
    ("embedder/info_nce_chance", "fraction", "that share for an embedder that tells no rows apart: 1 / batch"),
    ("embedder/return_unit", "return", "divisor of H in the embedder's return loss: 1, or its running spread"),
    ("embedder/fit_ms", "ms", "time of one refit"),
    (
        "eval/success_rate",
        "fraction",
        "share of greedy evaluation episodes that returned memory.success_threshold [env return] or more, where the "
        "return decides what a success is (memory.success=return_threshold)",
    ),
    ("eval/overestimation", "return", "greedy Q_tot(s_0) minus the discounted return then obtained"),
    ("eval/q_start", "return", "greedy Q_tot at the first step of the evaluation episodes"),
    ("time/env_steps_per_second", "steps/s", "training env steps per second since the last report"),
    ("time/update_ms", "ms", "time of one learner update"),
    ("time/rollout_share", "fraction", "share of wall time spent stepping and acting"),
    ("machine/cpu_percent", "% of a core", "processor time of the trainer since the last report, over wall time"),
    (
        "machine/cpu_seconds",
        "s",
        "processor time of the trainer since the last report; the sum over a run is its CPU time",
    ),
    ("machine/memory_bytes", "bytes", "main memory that the trainer holds (resident set)"),
    ("machine/gpu_percent", "%", "use of the run's GPU, by all who use it; where NVIDIA's library can tell"),
    ("machine/gpu_memory_bytes", "bytes", "memory that the trainer holds on its GPU"),
)

OPEN_GROUPS = {
    "env": Metric("env/…", "", "number that the environment's infos name, averaged over an episode's steps and agents"),
    "user": Metric("user/…", "", "number of a metric or callback from outside"),
}
"""Groups whose names nobody knows beforehand."""
MOST_OPEN = 64
"""Names of an open group that one run records; those that come first in the alphabet."""
_OPEN_NAME = re.compile(r"(?:env|user)/[\w.-]{1,60}", re.ASCII)


def is_known(name: str) -> bool:
    """Whether a number may be recorded under a name."""
    return name in METRICS or _OPEN_NAME.fullmatch(name) is not None


def describe_metric(name: str) -> Metric:
    """What a recorded number means."""
    if name in METRICS:
        return METRICS[name]
    return replace(OPEN_GROUPS[name.partition("/")[0]], name=name)


def in_order(names: Iterable[str]) -> list[str]:
    """Put names of recorded numbers in the registry's order, those of open groups last; strangers are left out."""
    place = {name: number for number, name in enumerate(METRICS)}
    return sorted(filter(is_known, set(names)), key=lambda name: (place.get(name, len(place)), name))


def open_values(group: str, values: Mapping[str, object]) -> dict[str, float]:
    """Name numbers of an open group as they are recorded; what is no finite number is left out."""
    named = {f"{group}/{re.sub(r'[^a-zA-Z0-9_.-]', '_', str(name))[:60]}": value for name, value in values.items()}
    numbers = {name: float(value) for name, value in named.items() if isinstance(value, SupportsFloat)}
    finite = {name: value for name, value in numbers.items() if isfinite(value) and is_known(name)}
    return {name: finite[name] for name in sorted(finite)[:MOST_OPEN]}
