"""Descriptions of all tables and columns, and example queries, for users who write SQL."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column

from storage.column_types import name_type
from storage.models import Base

EXAMPLES: Final[dict[str, str]] = {
    "The best runs": """select id, name, algo, map, seed, win_rate, return_mean
from runs
where win_rate is not null
order by win_rate desc, return_mean desc
limit 20""",
    "Runs by a setting": """select config -> 'gate' ->> 'enabled' as gate, config -> 'memory' ->> 'delta' as delta,
       count(*) as runs, avg(win_rate) as last_win_rate
from runs
group by 1, 2
order by last_win_rate desc""",
    "Does the gate close more in lost episodes?": """select e.run_id, e.won, count(*) as steps,
       avg(t.delta_mem) as delta_mem, avg(t.beta) as beta
from transitions t
join episodes e on e.run_id = t.run_id and e.episode = t.episode
where t.run_id = (select id from runs order by created_at desc limit 1)
group by e.run_id, e.won""",
    "The gate over time, newest run": """select env_step, delta_mem_mean, beta_mean, tau, memory_size
from gate_stats
where run_id = (select id from runs order by created_at desc limit 1)
order by env_step""",
    "Steps with the largest Δ_mem": """select env_step, episode, t, reward, h, h_next, delta_mem, beta
from transitions
where run_id = (select id from runs order by created_at desc limit 1) and delta_mem is not null
order by delta_mem desc
limit 50""",
    "The last value of every metric": """select m.run_id, m.name, m.env_step, m.value
from metrics m
join (select run_id, name, max(env_step) as env_step from metrics group by run_id, name) last
  on last.run_id = m.run_id and last.name = m.name and last.env_step = m.env_step
where m.run_id = (select id from runs order by created_at desc limit 1)
order by m.name""",
}
"""Title → query. Each query runs on SQLite and on PostgreSQL."""

_TABLES: Final = {
    "runs": "one row per training run: its settings and its progress",
    "sweeps": "plans of several runs",
    "resumes": "resumes of runs, and what was removed at each",
    "commands": "commands to trainers, and when they were executed",
    "episodes": "training episodes",
    "eval_episodes": "greedy episodes that were recorded for the replay",
    "transitions": "one row per training transition, with Δ_mem and β",
    "transition_summary": "sums over every 1,000 transitions",
    "gate_stats": "statistics of Δ_mem and β over the whole episodic memory, at intervals",
    "metrics": "every logged metric: losses, Q-values, speed …",
    "evaluations": "greedy test episodes: wins and returns",
    "asked_evaluations": "evaluations that users requested during training; not part of the curves",
    "policy_evaluations": "greedy episodes of a stored policy (emtc evaluate); not part of the curves",
    "snapshots": "the episodic memory at one step, each column packed into a blob",
    "projections": "coordinates of every node of a snapshot: 2-D layouts, or embeddings of another embedder (embed-…)",
    "jobs": "computations of projections",
    "entries": "entries of the research notebook",
}
_COMMON_COLUMNS: Final = {
    "id": "number or name of the row",
    "run_id": "the run (runs.id)",
    "env_step": "environment steps of the run at that time",
    "episode": "number of the episode in the run",
    "created_at": "time of creation (UTC)",
    "updated_at": "time of the last change (UTC)",
    "name": "name",
    "status": "last status that its process wrote",
    "host": "machine of the process",
    "pid": "process id",
    "error": "reason of the failure",
    "length": "number of steps of the episode",
    "episode_return": "sum of the rewards [return of the environment]",
    "won": "whether the episode was won",
    "trajectory": "packed arrays of the episode: states, actions, rewards, slots",
    "tau": "gate temperature [return]",
    "method": "pca, tsne or umap",
    "params": "parameters of the projection (JSON)",
    "snapshot_id": "the snapshot (snapshots.id)",
    "t": "step in the episode",
    "return_mean": "mean return of the last evaluation [return of the environment]",
    "win_rate": "fraction of greedy test episodes that were won",
}
_QUANTILES: Final = {
    f"gate_stats.{name}_{part}": f"{'mean' if part == 'mean' else f'{int(part[1:])} % quantile'} of {symbol}"
    for name, symbol in (("delta_mem", "Δ_mem [return]"), ("beta", "β"))
    for part in ("mean", "q05", "q25", "q50", "q75", "q95")
}


@dataclass(frozen=True)
class ColumnDescription:
    """Description of one column."""

    name: str
    kind: str
    """Type: integer, real, boolean, text, time, JSON or blob."""
    meaning: str


@dataclass(frozen=True)
class TableDescription:
    """Description of one table."""

    name: str
    meaning: str
    columns: tuple[ColumnDescription, ...]


def describe_schema() -> list[TableDescription]:
    """List every table with its columns and their descriptions."""
    return [
        TableDescription(
            table_name,
            meaning,
            tuple(
                ColumnDescription(column.name, name_type(column), _describe_column(column))
                for column in Base.metadata.tables[table_name].columns
            ),
        )
        for table_name, meaning in _TABLES.items()
    ]


def _describe_column(column: Column[Any]) -> str:
    return column.doc or _QUANTILES.get(f"{column.table.name}.{column.name}") or _COMMON_COLUMNS[column.name]
