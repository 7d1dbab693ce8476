"""What the tables and columns mean, for whoever asks in SQL; a test keeps it complete."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, LargeBinary

from storage.column_types import unguarded
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
    "The steps where memory contradicts itself most": """select env_step, episode, t, reward, h, h_next, delta_mem, beta
from transitions
where run_id = (select id from runs order by created_at desc limit 1) and delta_mem is not null
order by delta_mem desc
limit 50""",
    "The last value of every logged number": """select m.run_id, m.name, m.env_step, m.value
from metrics m
join (select run_id, name, max(env_step) as env_step from metrics group by run_id, name) last
  on last.run_id = m.run_id and last.name = m.name and last.env_step = m.env_step
where m.run_id = (select id from runs order by created_at desc limit 1)
order by m.name""",
}
"""Questions to begin with; each runs on SQLite and on PostgreSQL."""

_TABLES: Final = {
    "runs": "one row per training run: what was asked, where it stands",
    "sweeps": "plans of several runs",
    "resumes": "where runs went on after a stop, and what that superseded",
    "commands": "what was asked of trainers, and when they took it",
    "episodes": "training episodes",
    "eval_episodes": "greedy episodes kept for the replay",
    "transitions": "one row per training transition, with the gate's verdict",
    "transition_summary": "sums over every 1,000 transitions",
    "gate_stats": "Δ_mem and β over the whole episodic memory, now and then",
    "metrics": "every logged number: losses, Q-values, speed …",
    "evaluations": "greedy test episodes: wins and returns",
    "asked_evaluations": "what somebody asked a living run; in no curve",
    "policy_evaluations": "greedy episodes of a stored policy (emtc evaluate); in no curve",
    "snapshots": "the episodic memory at one moment, each column packed into a blob",
    "projections": "coordinates for every node of a snapshot: two of a map, or those of another embedder (embed-…)",
    "jobs": "projections being computed",
    "entries": "the research notebook",
}
_EVERYWHERE: Final = {
    "id": "its own number or name",
    "run_id": "whose it is: runs.id",
    "env_step": "env steps of the run at that moment",
    "episode": "number of the episode in its run",
    "created_at": "when it was made (UTC)",
    "updated_at": "when it was changed last (UTC)",
    "name": "its name",
    "status": "the word that its process wrote last",
    "host": "machine of that process",
    "pid": "number of the process at work",
    "pid_created_at": "when that process began [Unix s]",
    "error": "why it failed",
    "length": "steps of the episode",
    "episode_return": "sum of rewards [env return]",
    "won": "whether the episode was won",
    "trajectory": "packed arrays of the episode: states, actions, rewards, slots",
    "tau": "gate temperature [return]",
    "method": "pca, tsne or umap",
    "params": "parameters of the projection (JSON)",
    "snapshot_id": "whose it is: snapshots.id",
    "t": "step inside the episode",
    "return_mean": "mean return of the last evaluation [env return]",
    "win_rate": "share of greedy test episodes won",
}
_QUANTILES: Final = {
    f"gate_stats.{name}_{part}": f"{'mean' if part == 'mean' else f'{int(part[1:])} % quantile'} of {symbol}"
    for name, symbol in (("delta_mem", "Δ_mem [return]"), ("beta", "β"))
    for part in ("mean", "q05", "q25", "q50", "q75", "q95")
}


@dataclass(frozen=True)
class ColumnWords:
    """One column: name, type in plain words, and what it means."""

    name: str
    kind: str
    meaning: str


@dataclass(frozen=True)
class TableWords:
    """One table: name, what a row of it is, and its columns."""

    name: str
    meaning: str
    columns: tuple[ColumnWords, ...]


def describe_schema() -> list[TableWords]:
    """List every table with its columns and what they mean."""
    tables = {table.name: table for table in Base.metadata.tables.values()}
    return [
        TableWords(
            name,
            meaning,
            tuple(ColumnWords(column.name, _kind(column.type), _meaning(name, column)) for column in table.columns),
        )
        for name, meaning in _TABLES.items()
        if (table := tables.get(name)) is not None
    ]


def _meaning(table: str, column: Column[Any]) -> str:
    return column.doc or _QUANTILES.get(f"{table}.{column.name}") or _EVERYWHERE[column.name]


def _kind(kind: object) -> str:
    inner = unguarded(kind)  # type: ignore[arg-type]  # of a column
    if isinstance(inner, LargeBinary):
        return "blob"
    name = type(inner).__name__
    words = {"BigInteger": "integer", "Integer": "integer", "Double": "real", "Boolean": "boolean"}
    return words.get(name, {"UtcDateTime": "time", "JSON": "JSON"}.get(name, "text"))
