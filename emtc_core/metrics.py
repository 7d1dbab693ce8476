"""Registry of all metrics: `group/name`, meaning and unit.

The recorder accepts only registered names, so every metric of a chart is documented. Two groups accept any name: `env`
has the values of an environment's infos, `user` has the values that plug-in metrics and callbacks return.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import SupportsFloat


@dataclass(frozen=True)
class Metric:
    """Name, unit and meaning of one metric."""

    name: str
    unit: str
    meaning: str
    chart: str = ""
    """Title of the chart of the page Live that always shows the metric. Metrics with the same title share a chart."""

    @property
    def label(self) -> str:
        """Title of the metric in figures: "InfoNCE accuracy" for "embedder/info_nce_accuracy"."""
        group, _, short_name = self.name.partition("/")
        label = short_name.replace("_", " ")
        if group in OPEN_GROUPS:
            return label
        for words, text in _LABEL_WORDS.items():
            label = re.sub(rf"\b{words}\b", text, label)
        prefix = _LABEL_PREFIXES.get(group, "")
        return label if label.startswith("InfoNCE") else f"{prefix}{label}"


def _registry(*rows: tuple[str, ...]) -> dict[str, Metric]:
    """Make the registry of rows with the fields of `Metric`; the title of the chart may be missing."""
    return {row[0]: Metric(*row) for row in rows}


_LABEL_WORDS = {
    "info nce": "InfoNCE",
    "td error abs": "absolute TD error",
    "td": "TD",
    "q taken": "Q of the actions taken",
    "q start": "Q at the first step",
    "grad": "gradient",
    "r p": "r_p",
    "delta mem": "Δ_mem",
    "beta": "β",
    "rho": "ρ",
    "tau": "τ",
    "epsilon": "ε",
    "p([159]0)": r"(\1 % quantile)",
    "cpu": "CPU",
    "gpu": "GPU",
    "ms": "time",
}
"""Words of a metric's name → words of its label, in the order of replacement. Units are next to the label."""
_LABEL_PREFIXES = {"rollout": "training ", "memory": "memory ", "embedder": "embedder "}
"""Group → start of the labels of its metrics, except InfoNCE."""
CLOSED_BELOW = 0.5
"""The gate counts as closed on a transition with a smaller beta."""
ROBUST_JITTER = 0.05
"""Maximum random shift of each unit along each axis in the robust evaluation [cells]. Our choice: the paper evaluates
from fixed starts only."""
MACHINE_PREFIXES = (
    "time/",
    "machine/",
    "embedder/fit_ms",
    "memory/write_ms",
    "memory/lookup_ms",
    "memory/reproject_ms",
)
"""Name prefixes of metrics that depend on the machine: they differ between two runs with one configuration and seed."""
METRICS = _registry(
    (
        "rollout/return",
        "env return",
        "mean undiscounted return of the training episodes since the last report",
    ),
    ("rollout/win_rate", "fraction", "fraction of the training episodes since the last report that were won"),
    (
        "rollout/success_rate",
        "fraction",
        "fraction of the training episodes since the last report with a return of at least memory.success_threshold; "
        "only with memory.success=return_threshold",
    ),
    ("rollout/length", "steps", "mean length of the training episodes since the last report"),
    ("rollout/epsilon", "fraction", "probability of a random action"),
    ("train/loss", "return²", "masked mean squared TD error plus the extra loss terms of the backbone"),
    ("train/td_loss", "return²", "masked mean squared TD error without extra terms"),
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
    ("gate/delta_mem_batch", "return", "mean delta_mem of the last sampled batch, computed from the current memory"),
    ("gate/delta_mem_batch_p10", "return", "10 % quantile of delta_mem of the last sampled batch"),
    ("gate/delta_mem_batch_p50", "return", "median of delta_mem of the last sampled batch"),
    ("gate/delta_mem_batch_p90", "return", "90 % quantile of delta_mem of the last sampled batch"),
    ("gate/beta_batch", "fraction", "mean beta of the batches sampled since the last report, as used in the updates"),
    ("gate/beta_batch_p10", "fraction", "10 % quantile of beta of the last sampled batch"),
    ("gate/beta_batch_p50", "fraction", "median of beta of the last sampled batch"),
    ("gate/beta_batch_p90", "fraction", "90 % quantile of beta of the last sampled batch"),
    (
        "gate/beta_drift",
        "fraction",
        "mean distance between the beta used and the beta from the current memory (C5, C6)",
    ),
    (
        "gate/incentive_removed",
        "fraction",
        "fraction of the incentive that the gate removes: Σ|(1-beta) r_p| / Σ|r_p| over the sampled transitions; "
        "0 if the incentive is 0",
    ),
    ("gate/closed_fraction", "fraction", f"fraction of the sampled transitions with beta < {CLOSED_BELOW:g}"),
    (
        "gate/delta_mem_new",
        "return",
        "mean delta_mem of the transitions collected since the last report, computed when they were written",
    ),
    ("gate/delta_mem_new_p10", "return", "10 % quantile of delta_mem of the new transitions"),
    ("gate/delta_mem_new_p50", "return", "median of delta_mem of the new transitions"),
    ("gate/delta_mem_new_p90", "return", "90 % quantile of delta_mem of the new transitions"),
    (
        "gate/delta_mem_positive_fraction",
        "fraction",
        "fraction of the transitions collected since the last report with delta_mem > 0",
    ),
    ("gate/delta_mem_positive", "return", "mean of delta_mem of the new transitions with delta_mem > 0"),
    ("gate/delta_mem_positive_p10", "return", "10 % quantile of delta_mem of the new transitions with delta_mem > 0"),
    ("gate/delta_mem_positive_p50", "return", "median of delta_mem of the new transitions with delta_mem > 0"),
    ("gate/delta_mem_positive_p90", "return", "90 % quantile of delta_mem of the new transitions with delta_mem > 0"),
    ("gate/beta_new", "fraction", "mean beta of the transitions collected since the last report"),
    ("gate/beta_new_p10", "fraction", "10 % quantile of beta of the new transitions"),
    ("gate/beta_new_p50", "fraction", "median of beta of the new transitions"),
    ("gate/beta_new_p90", "fraction", "90 % quantile of beta of the new transitions"),
    ("gate/tau", "return", "gate temperature"),
    ("memory/size", "nodes", "stored nodes"),
    ("memory/merge_rate", "fraction", "fraction of written states that merged into an existing node"),
    (
        "memory/hit_rate",
        "fraction",
        "fraction of successor lookups that found a node: within delta, or at any distance with "
        "incentive.on_miss = nearest",
    ),
    ("memory/desirable_fraction", "fraction", "fraction of nodes with xi = 1"),
    ("memory/evicted", "nodes", "nodes evicted so far"),
    ("memory/write_ms", "ms", "time of Algorithm 2 per episode"),
    ("memory/lookup_ms", "ms", "time of successor lookups per update"),
    ("memory/reproject_ms", "ms", "time of one re-projection with index rebuild"),
    ("embedder/loss", "return²", "mean total embedder loss of the last refit"),
    ("embedder/return_loss", "return²", "mean squared return reconstruction error"),
    ("embedder/state_loss", "1", "mean squared state reconstruction error, summed over coordinates"),
    ("embedder/info_nce", "nats", "mean InfoNCE"),
    ("embedder/info_nce_accuracy", "fraction", "fraction of anchors whose positive view is their nearest candidate"),
    ("embedder/info_nce_chance", "fraction", "embedder/info_nce_accuracy at chance level: 1 / batch"),
    ("embedder/return_unit", "return", "divisor of H in the embedder's return loss: 1, or the running std of H"),
    ("embedder/fit_ms", "ms", "time of one refit"),
    (
        "eval/success_rate",
        "fraction",
        "fraction of greedy evaluation episodes with a return of at least memory.success_threshold [env return]; "
        "only with memory.success=return_threshold",
    ),
    ("eval/overestimation", "return", "greedy Q_tot(s_0) minus the discounted return of the evaluation episodes"),
    ("eval/q_start", "return", "greedy Q_tot at the first step of the evaluation episodes"),
    ("time/env_steps_per_second", "steps/s", "training env steps per second since the last report, without pauses"),
    ("time/update_ms", "ms", "time of one learner update"),
    (
        "time/rollout_share",
        "fraction",
        "fraction of time in environment steps and action selection, without pauses",
    ),
    ("machine/cpu_percent", "% of a core", "CPU time of the trainer since the last report, divided by wall time"),
    (
        "machine/cpu_seconds",
        "s",
        "CPU time of the trainer since the last report; the sum over a run is its CPU time",
    ),
    ("machine/memory_bytes", "bytes", "main memory of the trainer (resident set size)"),
    ("machine/gpu_percent", "%", "utilization of the run's GPU by all processes; needs NVIDIA's library"),
    ("machine/gpu_memory_bytes", "bytes", "GPU memory that the trainer has reserved"),
)

OPEN_GROUPS = {
    "env": Metric("env/…", "", "value of the environment's infos, averaged over the steps and agents of an episode"),
    "user": Metric("user/…", "", "value of a plug-in metric or callback"),
}
"""Groups that accept any name."""
MAX_OPEN_NAMES = 64
"""Maximum number of names of an open group in one call. The first names in alphabetical order are recorded."""
_OPEN_NAME = re.compile(r"(?:env|user)/[\w.-]{1,60}", re.ASCII)


def is_known(name: str) -> bool:
    """Whether a name is registered, or is a valid name of an open group."""
    return name in METRICS or _OPEN_NAME.fullmatch(name) is not None


def describe_metric(name: str) -> Metric:
    """Return name, unit and meaning of a recorded metric."""
    if name in METRICS:
        return METRICS[name]
    return replace(OPEN_GROUPS[name.partition("/")[0]], name=name)


def sort_metrics(names: Iterable[str]) -> list[str]:
    """Sort metric names in the order of the registry, open groups last. Unknown names are dropped."""
    rank = {name: number for number, name in enumerate(METRICS)}
    return sorted(filter(is_known, set(names)), key=lambda name: (rank.get(name, len(rank)), name))


def prepare_open_values(group: str, values: Mapping[str, object]) -> dict[str, float]:
    """Prepare values of an open group for recording.

    Args:
        group: "env" or "user".
        values: Values by name. Values that are not finite numbers are dropped.

    Returns:
        At most `MAX_OPEN_NAMES` values by full name; other characters than letters, digits, _, - and dots become _.
    """
    renamed = {f"{group}/{re.sub(r'[^a-zA-Z0-9_.-]', '_', str(name))[:60]}": value for name, value in values.items()}
    numbers = {name: float(value) for name, value in renamed.items() if isinstance(value, SupportsFloat)}
    finite = {name: value for name, value in numbers.items() if isfinite(value) and is_known(name)}
    return {name: finite[name] for name in sorted(finite)[:MAX_OPEN_NAMES]}
