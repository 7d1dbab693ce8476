"""What was seen to be recorded, held against what stands there: every invariant of the tables as plain SQL."""

from typing import Any

from sqlalchemy import Connection, text

from emtc_core.config.run import RunConfig
from storage.engine import Database
from storage.maintenance.check_run import check_run

_PLACES = """
SELECT r.id FROM runs r LEFT JOIN
 (SELECT run_id, count(*) AS n, min(env_step) AS low, max(env_step) AS high FROM transitions GROUP BY run_id) t
 ON t.run_id = r.id
WHERE r.env_steps <> coalesce(t.n, 0) OR (t.n > 0 AND (t.low <> 1 OR t.high <> t.n))"""
_EPISODES = """
SELECT r.id FROM runs r LEFT JOIN
 (SELECT run_id, sum(length) AS steps, count(*) AS n, max(episode) AS last FROM episodes GROUP BY run_id) e
 ON e.run_id = r.id
WHERE r.env_steps <> coalesce(e.steps, 0) OR e.n <> e.last"""
_BETA = """
SELECT count(*) FROM transitions WHERE delta_mem IS NOT NULL AND
 abs(beta - exp(-(delta_mem * :scale) * (delta_mem * :scale) / (2 * tau * tau))) > 1e-5"""
_DELTA = """
SELECT count(*) FROM transitions WHERE delta_mem IS NOT NULL AND
 abs(delta_mem - abs(reward + :gamma * h_next - h)) > 1e-5 * (1 + abs(h))"""
_ORPHANS = """
SELECT count(*) FROM transitions t LEFT JOIN episodes e ON e.run_id = t.run_id AND e.episode = t.episode
WHERE e.episode IS NULL OR t.env_step <> e.first_env_step + t.t"""
_PAST = "SELECT count(*) FROM {table} x JOIN runs r ON r.id = x.run_id WHERE x.env_step > r.env_steps"
_TABLES = ("metrics", "evaluations", "eval_episodes", "gate_stats", "snapshots")
_LONGEST = "SELECT id FROM runs ORDER BY env_steps DESC, id LIMIT 1"
_COMPARED = ("reward", "h", "h_next", "delta_mem", "beta", "tau", "episode", "t", "slot", "next_slot")
_DIFFERENT = f"""
SELECT count(*) FROM transitions a JOIN transitions b ON b.run_id = :longest AND b.env_step = a.env_step
WHERE a.run_id <> :longest AND
 ({" OR ".join(f"coalesce(a.{each}, -7) <> coalesce(b.{each}, -7)" for each in _COMPARED)})"""


class RowWatch:
    """Remembers how far each run was seen to be; a step that is gone without being superseded is lost."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: dict[str, int] = {}
        self._last_resume = 0
        self.lost = self.superseded = 0

    def look(self) -> None:
        """Compare what stands there with what was seen before.

        Raises:
            StorageError: If the database cannot be read now.
        """
        with self._db.read() as connection:  # one state of both tables
            rows = connection.execute(text("SELECT id, env_steps FROM runs")).all()
            resumes = connection.execute(
                text("SELECT id, run_id, env_step, reached_env_step FROM resumes WHERE id > :last ORDER BY id"),
                {"last": self._last_resume},
            ).all()
        for resume_id, run_id, env_step, reached in resumes:
            self._notice(run_id, reached)
            self._seen[run_id], self._last_resume = env_step, resume_id
            self.superseded += reached - env_step
        for run_id, env_steps in rows:
            self._notice(run_id, env_steps)
        self.lost += sum(self._seen.pop(gone) for gone in set(self._seen) - {row.id for row in rows})

    def _notice(self, run_id: str, env_steps: int) -> None:
        self.lost += max(0, self._seen.get(run_id, 0) - env_steps)
        self._seen[run_id] = env_steps


def count_rows(db: Database) -> int:
    """Count the transitions that stand in a database."""
    with db.read() as connection:
        return _count(connection, "SELECT count(*) FROM transitions")


def find_wrong(db: Database, config: RunConfig) -> list[str]:
    """Look for breaches in runs of one configuration: gaps, duplicates, wrong β or Δ, rows that differ between runs.

    Returns:
        One sentence per breach.
    """
    values = {"gamma": config.train.gamma, "scale": config.gate.delta_scale}
    with db.read() as connection:
        found = [f"{run_id}: the transitions are not 1…env_steps" for run_id in _ids(connection, _PLACES)]
        found += [f"{run_id}: the episodes do not add up to env_steps" for run_id in _ids(connection, _EPISODES)]
        longest = connection.execute(text(_LONGEST)).scalar_one_or_none()
        counts = {
            "break the equation of β": _count(connection, _BETA, scale=values["scale"]),
            "break the equation of Δ_mem": _count(connection, _DELTA, gamma=values["gamma"]),
            "have no episode": _count(connection, _ORPHANS),
            "differ from the same step of another run": _count(connection, _DIFFERENT, longest=longest),
        } | {
            f"of {table} lie past the end of their run": _count(connection, _PAST.format(table=table))
            for table in _TABLES
        }
        runs = _ids(connection, "SELECT id FROM runs WHERE env_steps > 0")
    found += [f"{n} rows {what}" for what, n in counts.items() if n]
    return found + [breach for run_id in runs for breach in check_run(db, run_id)]


def _ids(connection: Connection, sql: str) -> list[str]:
    return list(connection.execute(text(sql)).scalars())


def _count(connection: Connection, sql: str, **values: Any) -> int:
    return int(connection.execute(text(sql), values).scalar_one())
