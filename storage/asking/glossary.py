"""What the tables and columns mean, for whoever asks in SQL; a test keeps it complete."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import LargeBinary

from storage.guards import unguarded
from storage.models import Base

EXAMPLES: Final[dict[str, str]] = {
    "The best runs": """select id, name, algo, map, seed, win_rate, return_mean
from runs
where win_rate is not null
order by win_rate desc, return_mean desc
limit 20""",
    "Runs by a setting": """select config -> 'gate' ->> 'enabled' as gate, config -> 'memory' ->> 'delta' as delta,
       count(*) as runs, avg(win_rate) as win_rate
from runs
group by 1, 2
order by win_rate desc""",
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
_COLUMNS: Final = {
    "runs.id": "short name of the run, in every table as run_id",
    "runs.env": "environment",
    "runs.map": "map or scenario",
    "runs.algo": "algorithm, as emtc-qplex",
    "runs.seed": "random seed",
    "runs.status": "queued, running, paused, finished, stopped or failed; a dead process cannot write that it is lost",
    "runs.env_steps": "env steps recorded",
    "runs.target_steps": "env steps asked for",
    "runs.started_at": "when training began (UTC)",
    "runs.ended_at": "when it ended (UTC)",
    "runs.heartbeat_at": "last sign of life (UTC)",
    "runs.device": "cpu or cuda",
    "runs.sweep_id": "whose plan it belongs to: sweeps.id",
    "runs.launch_token": "one press of a button",
    "runs.tags": "labels (JSON list)",
    "runs.notes": "what people wrote about it",
    "runs.versions": "code and libraries (JSON)",
    "runs.config": "every setting (JSON): config -> 'gate' ->> 'enabled'",
    "runs.parent_id": "the run that this one started again",
    "runs.owner_token": "mark of the process that may write it",
    "runs.claimed_at": "since when that process has it (UTC)",
    "runs.mu_w": "μ̄_w: area under the win-rate curve so far, per env step",
    "runs.gate_removed": "share of the incentive that the gate removed; NULL without a gate",
    "runs.hidden_at": "since when it is drawn only where it is chosen (UTC)",
    "runs.archived_at": "since when lists leave it out (UTC)",
    "runs.files": "folder or URL of its checkpoints and logs; NULL: beside the database",
    "sweeps.jobs": "trainers at once",
    "sweeps.plan": "its file and its runs (JSON)",
    "resumes.env_step": "where the run went on",
    "resumes.reached_env_step": "how far it had come before",
    "resumes.resumed_at": "when (UTC)",
    "resumes.episodes": "episodes that were superseded",
    "resumes.checkpoint": "file that was restored",
    "resumes.passed_over": "why newer files were not",
    "commands.command": "stop, pause, resume; evaluate and play ask what the present policy does",
    "commands.episode": "training episode whose start a play repeats",
    "commands.requested_at": "when it was asked (UTC)",
    "commands.acknowledged_at": "when the trainer took it (UTC)",
    "episodes.first_env_step": "env step of its first transition",
    "episodes.epsilon": "share of random actions",
    "eval_episodes.env_step": "env step of the evaluation",
    "transitions.env_step": "1, 2, 3 … without a gap",
    "transitions.reward": "extrinsic reward in the learner's unit",
    "transitions.h": "return that the memory recalls at s [return]",
    "transitions.h_next": "the same at s′; 0 at the end of an episode [return]",
    "transitions.delta_mem": "|r + γ h_next − h|; NULL where nothing was found [return]",
    "transitions.beta": "gate: exp(−(scale Δ_mem)² / 2τ²), 0 to 1",
    "transitions.slot": "node of s",
    "transitions.next_slot": "node of s′",
    "transition_summary.bucket": "(env_step − 1) // 1000",
    "transition_summary.n": "transitions in it",
    "transition_summary.delta_mem_n": "of them with a Δ_mem",
    "transition_summary.delta_mem_sum": "their sum of Δ_mem [return]",
    "transition_summary.delta_mem_max": "the largest of them [return]",
    "transition_summary.beta_n": "transitions with a β",
    "transition_summary.beta_sum": "their sum of β",
    "transition_summary.beta_min": "the smallest of them",
    "transition_summary.tau_n": "transitions with a τ",
    "transition_summary.tau_sum": "their sum of τ [return]",
    "gate_stats.memory_size": "nodes in the memory",
    "gate_stats.desirable_fraction": "share of nodes with ξ = 1",
    "metrics.name": "group/name, as train/loss; the Method page lists them",
    "metrics.value": "the number",
    "evaluations.episodes": "greedy episodes played",
    "evaluations.wins": "of them won",
    "evaluations.return_std": "standard deviation over the episodes [env return]",
    "evaluations.length_mean": "mean length [steps]",
    "asked_evaluations.command_id": "who asked what and when: commands.id",
    "asked_evaluations.episodes": "greedy episodes played, from 1000 × command_id in eval_episodes",
    "asked_evaluations.wins": "of them won",
    "asked_evaluations.return_std": "standard deviation over the episodes [env return]",
    "asked_evaluations.length_mean": "mean length [steps]",
    "asked_evaluations.again_of": "training episode whose start was repeated",
    "snapshots.size": "nodes in it",
    "snapshots.slot": "place of each node",
    "snapshots.embedding": "four coordinates of each node",
    "snapshots.H": "best return known from each node",
    "snapshots.xi": "whether each node belongs to a success",
    "snapshots.n_call": "how often each node was visited",
    "snapshots.n_xi": "how often successfully",
    "snapshots.t": "step in its episode",
    "snapshots.reward": "reward of each node",
    "snapshots.idx_next": "slot of the successor, −1 for none",
    "snapshots.episode": "whose state stands in the node",
    "snapshots.delta_mem": "Δ_mem along its link",
    "snapshots.beta": "gate along its link",
    "snapshots.state": "states of a sample of the nodes",
    "projections.seconds": "how long it took",
    "projections.coordinates": "x and y of each node; of embed-… what the embedder says",
    "jobs.progress": "0 to 1",
    "entries.title": "its heading",
    "entries.body": "the note (Markdown)",
    "entries.figure": "the figure as plain values (JSON)",
    "entries.view": "where it came from (JSON)",
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
            tuple(
                ColumnWords(column.name, _kind(column.type), _meaning(name, column.name)) for column in table.columns
            ),
        )
        for name, meaning in _TABLES.items()
        if (table := tables.get(name)) is not None
    ]


def _meaning(table: str, column: str) -> str:
    own = f"{table}.{column}"
    return _COLUMNS.get(own) or _QUANTILES.get(own) or _EVERYWHERE[column]


def _kind(kind: object) -> str:
    inner = unguarded(kind)  # type: ignore[arg-type]  # of a column
    if isinstance(inner, LargeBinary):
        return "blob"
    name = type(inner).__name__
    words = {"BigInteger": "integer", "Integer": "integer", "Double": "real", "Boolean": "boolean"}
    return words.get(name, {"UtcDateTime": "time", "JSON": "JSON"}.get(name, "text"))
