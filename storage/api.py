"""The way in for scripts and notebooks: a database as frames, without torch, Streamlit or the app.

    from storage import open_database

    with open_database("runs/emtc.db") as db:
        best = db.runs("map=3m win_rate>0.8")
        steps = db.run(best["id"][0]).transitions(["env_step", "delta_mem", "beta"])

What is opened here is only read: a running trainer is not disturbed, and an older database is refused with the
command that upgrades it, never upgraded. Columns are those of the tables (`storage.models`). Everything that takes an
open database takes this one too. What does not live here: how a table is read in parts (`storage.queries.tables`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pandas as pd

from emtc_core.errors import ConfigError, StorageError
from emtc_core.metrics import METRICS
from storage import engine
from storage.address import sqlite_address
from storage.column_types import unguarded
from storage.engine import Database
from storage.figures import draw_figure
from storage.frames import Field, make_frame
from storage.queries.curves import metric_names, policy_evaluations
from storage.queries.episodes import Trajectory, get_playback, get_trajectory
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.runs import RunFilter, get_rows, matching_ids
from storage.queries.tables import PART_ROWS, TableName, arrow_schema, choose_fields, read_parts
from storage.runs.rows import STORED, RunRow, find_run

ArrowReader = Any  # a pyarrow.RecordBatchReader; pyarrow, which may be missing, has no types
_KEPT_BACK: Final = frozenset({"launch_token", "owner_token", "pid_created_at"})  # of trainers, for trainers
_RUN_COLUMNS: Final = tuple(column for column in STORED if column.name not in _KEPT_BACK)


def open_database(place: str | Path, *, read_only: bool = True) -> "OpenDatabase":
    """Open a database to read it.

    >>> db = open_database("runs/emtc.db")
    >>> db.runs()[["id", "map", "status"]]
             id map    status
    0  k3f9aaaa  3m  finished

    Args:
        place: A SQLite file, or `sqlite:///file.db` or `postgresql://…`.
        read_only: Without it what is opened can be written, is made where it is missing, and is upgraded where it is
            older; that is for programs.

    Raises:
        StorageError: If there is no database, or it is of an older version: then with the command that upgrades it.
        NewerDatabaseError: If a newer version of EMTC Lab wrote it.
    """
    url = sqlite_address(place) if isinstance(place, Path) or "://" not in place else place
    opened = engine.open_database(url, read_only=read_only, create=not read_only)
    return OpenDatabase(**{part.name: getattr(opened, part.name) for part in fields(opened)})


@dataclass(frozen=True)
class OpenDatabase(Database):
    """An open database that can be asked; use it in a `with`, or close it with `dispose()`."""

    def __enter__(self) -> "OpenDatabase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dispose()

    def runs(self, where: str | Sequence[str] = (), *, archived: bool = False) -> pd.DataFrame:
        """List runs, newest first.

        >>> db.runs("map=3m gate.enabled=true")["env_steps"].tolist()
        [30]
        >>> db.runs(["algo=qmix"]).empty
        True

        Args:
            where: Words and comparisons of a search, as on Home ("corridor gate.enabled=false win_rate>0.8"), or a
                list of conditions that must all hold, as `emtc runs --where` takes them.
            archived: List what is archived instead.

        Returns:
            The columns of `runs`; `status` as it was stored, and `live_status`, which may be `lost`.

        Raises:
            ConfigError: If the search is none.
        """
        text, conditions = (where, ()) if isinstance(where, str) else ("", tuple(where))
        wanted = RunFilter(text=text, where=conditions, shelf="archived" if archived else "open")
        return _lay_out(get_rows(self, matching_ids(self, wanted, sort="-created")))

    def run(self, run_id: str) -> "RecordedRun":
        """Find a run by its id, or the beginning of one.

        >>> db.run("k3f9")
        <run k3f9aaaa: emtc-qplex on 3m, seed 7, finished, 30 env steps>

        Raises:
            RunNotFoundError: If there is none, or more than one.
        """
        return RecordedRun(find_run(self, run_id), self)

    def figure(self, name: str, runs: Sequence[str] = (), **options: Any) -> Any:
        """Draw a named figure of some runs, or of every evaluated one, as `emtc export --figure` does.

        >>> db.figure("learning-curves").layout.title.text  # robust, where every run of a task has it
        'robust win rate over training'
        >>> db.figure("learning-curves", rate="greedy").layout.title.text
        'Learning curves'

        Args:
            name: As in `emtc export --figure`.
            runs: Ids, or beginnings of ids.
            options: center, band, color, method, episodes, include_unfinished, rate.

        Returns:
            A Plotly figure, which a notebook shows.

        Raises:
            StorageError: If the app is not installed.
            ConfigError: If there is no such figure, or it cannot be made of these runs.
        """
        return draw_figure(self, name, runs, options)


@dataclass(frozen=True, repr=False)
class RecordedRun:
    """One run and what it recorded. `row` is the run as it was when it was found."""

    row: RunRow
    db: OpenDatabase = field(repr=False)

    def __repr__(self) -> str:
        row = self.row
        what = f"{row.algo} on {row.map}, seed {row.seed}, {row.live_status}"
        return f"<run {row.id}: {what}, {row.env_steps:,} env steps>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.row.id

    @property
    def config(self) -> dict[str, Any]:
        """Its full resolved configuration.

        >>> run.config["gate"]["tau_start"]
        1.0
        """
        return self.row.config

    def transitions(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read its training transitions with the gate's verdicts, one row for each env step.

        >>> run.transitions(["env_step", "delta_mem", "beta"], since=28)
           env_step  delta_mem      beta
        0        29   0.426575  0.913033
        1        30   0.053797  0.998554

        Of more rows than fit into memory, take `chunks` or `arrow`.

        Args:
            columns: Which; all of `transitions` when missing.
            since: Only those after this env step.

        Raises:
            StorageError: If they were thinned away.
            ConfigError: If there is no such column.
        """
        return self._frame("transitions", columns, since)

    def episodes(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read the outcomes of its training episodes.

        >>> run.episodes()[["episode", "first_env_step", "length", "won"]]
           episode  first_env_step  length    won
        0        1               1      10   True
        1        2              11      10  False
        2        3              21      10   True

        Args:
            columns: Which; all of `episodes` but the packed `trajectory` when missing. See `trajectory`.
            since: Only those that began after this env step.
        """
        return self._frame("episodes", columns, since)

    def evaluations(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read its evaluations: greedy episodes at one moment each.

        >>> run.evaluations(["env_step", "episodes", "wins", "win_rate"])
           env_step  episodes  wins  win_rate
        0        30         4     3      0.75
        """
        return self._frame("evaluations", columns, since)

    def policy_evaluations(self) -> pd.DataFrame:
        """List what `emtc evaluate` found out about its stored policies: greedy episodes that are on no curve.

        >>> run.policy_evaluations()[["env_step", "episodes", "wins", "seed", "settings"]]
           env_step  episodes  wins  seed settings
        0        30         4     3     7       {}
        """
        return policy_evaluations(self.db, [self.id])

    def metrics(self, name: str | Sequence[str] = (), *, since: int = 0) -> pd.DataFrame:
        """Read logged numbers, all of them or those of these names, every value as it was logged.

        >>> run.metrics("train/loss")
             run_id  env_step        name  value
        0  k3f9aaaa        30  train/loss    0.5

        Raises:
            ConfigError: If a name is that of no number, with the nearest ones.
        """
        names = [name] if isinstance(name, str) else name
        self._check_metrics(names)
        return self._frame("metrics", None, since, names)

    def gate_stats(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read what the gate said of the whole memory: mean and quantiles of delta_mem and beta, over env steps.

        >>> run.gate_stats(["env_step", "delta_mem_mean", "beta_mean", "memory_size"])
           env_step  delta_mem_mean  beta_mean  memory_size
        0        30            0.25       0.75           42
        """
        return self._frame("gate", columns, since)

    def snapshots(self) -> pd.DataFrame:
        """List the snapshots of its memory.

        >>> run.snapshots()[["env_step", "size"]]
           env_step  size
        0        30    30
        """
        return list_snapshots(self.db, self.id)

    def snapshot(self, step: int | None = None) -> pd.DataFrame:
        """Read its episodic memory at one moment, one row for each entry.

        >>> memory = run.snapshot()
        >>> np.stack(memory["embedding"]).shape, memory.attrs["env_step"]
        ((30, 4), 30)

        Args:
            step: The last snapshot at or before this env step; the newest when missing.

        Returns:
            slot, embedding (an array of 4), H, xi, n_call, n_xi, t, reward, idx_next, episode, delta_mem, beta, and
            state: an array for the sample of entries that keep theirs, None for the others. `attrs` tells id, run_id
            and env_step of the snapshot.

        Raises:
            StorageError: If there is none.
        """
        known = self.snapshots()
        before = [n for n, at in zip(known["id"], known["env_step"], strict=True) if step is None or at <= step]
        if not before:
            steps = ", ".join(map(str, known["env_step"])) or "none"
            raise StorageError(
                f"Run {self.id} has no snapshot at or before env step {step}; there are: {steps}.",
                reason="not_found",
                subject=step,
            )
        found = get_snapshot(self.db, int(before[-1]))
        names = ("xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode", "delta_mem", "beta")
        columns = {name: getattr(found, name) for name in names}
        frame = pd.DataFrame({"slot": found.slot, "embedding": list(found.embedding), "H": found.h, **columns})
        states = np.full(found.size, None, object)
        for row, state in zip(found.state_rows, found.state, strict=True):
            states[row] = state
        frame["state"] = states
        frame.attrs = {"id": found.id, "run_id": self.id, "env_step": found.env_step}
        return frame

    def trajectory(self, episode: int, *, env_step: int | None = None) -> pd.DataFrame:
        """Read one episode step by step, with the gate's verdicts; the last row is the state in which it ended.

        >>> steps = run.trajectory(2)
        >>> steps[["t", "env_step", "reward", "slot"]].tail(2)
             t  env_step    reward  slot
        9    9        20  0.897734   109
        10  10      <NA>       NaN   110
        >>> np.stack(steps["state"]).shape
        (11, 6)

        Args:
            episode: Number of the training episode.
            env_step: Of an evaluation: then it is that greedy episode, which has no verdicts.

        Returns:
            t, env_step, state, action, reward, slot, h, h_next, delta_mem, beta, tau. `attrs` tells run_id, episode,
            won and episode_return.

        Raises:
            StorageError: If there is none, or it was thinned away.
        """
        if env_step is not None:
            return _lay_out_episode(get_playback(self.db, self.id, env_step, episode), greedy=True)
        return _lay_out_episode(get_trajectory(self.db, self.id, episode))

    def chunks(
        self,
        table: TableName,
        columns: Sequence[str] | None = None,
        *,
        since: int = 0,
        names: Sequence[str] = (),
        rows: int = PART_ROWS,
    ) -> Iterator[pd.DataFrame]:
        """Read a table part by part, in the memory of one part, however long it is.

        >>> [len(part) for part in run.chunks("transitions", ["env_step", "beta"], rows=12)]
        [12, 12, 6]

        Args:
            table: transitions, episodes, evaluations, metrics or gate.
            columns: Which; all but blobs when missing.
            since: Only rows after this env step.
            names: Of metrics: which.
            rows: Of one part, at most.
        """
        parts = read_parts(self.db, table, self.id, columns=columns, since=since, names=names, rows=rows)
        return (part.to_frame() for part in parts)

    def arrow(
        self,
        table: TableName,
        columns: Sequence[str] | None = None,
        *,
        since: int = 0,
        names: Sequence[str] = (),
        rows: int = PART_ROWS,
    ) -> ArrowReader:
        """Read a table as a stream of Arrow batches, which Polars, DuckDB and Parquet writers take as it is.

        >>> run.arrow("transitions", ["env_step", "slot"]).read_all().shape
        (30, 2)

        Raises:
            StorageError: If pyarrow is missing; and as `chunks` does.
        """
        schema = arrow_schema(choose_fields(table, columns))
        import pyarrow as pa

        parts = read_parts(self.db, table, self.id, columns=columns, since=since, names=names, rows=rows)
        return pa.RecordBatchReader.from_batches(schema, (part.to_arrow() for part in parts))

    def figure(self, name: str, **options: Any) -> Any:
        """Draw a named figure of this run; see `OpenDatabase.figure`.

        >>> [axis.title.text for axis in run.figure("gate-dynamics").select_yaxes()]
        ['Δ̄_mem [return]', 'β̄ [fraction]', 'τ [return]']
        """
        return self.db.figure(name, [self.id], **options)

    def _check_metrics(self, names: Sequence[str]) -> None:
        """Refuse a name that is in no list of metrics and that this run never logged."""
        strange = [each for each in names if each not in METRICS]
        logged = metric_names(self.db, self.id) if strange else []
        for each in (name for name in strange if name not in logged):
            near = ", ".join(get_close_matches(each, {**METRICS, **dict.fromkeys(logged)}, n=3))
            hint = f"Did you mean {near}?" if near else f"It logged {', '.join(logged) or 'nothing'}."
            raise ConfigError(f"is not a metric that run {self.id} logged", key=each, hint=hint)

    def _frame(
        self, table: TableName, columns: Sequence[str] | None, since: int, names: Sequence[str] = ()
    ) -> pd.DataFrame:
        parts = list(self.chunks(table, columns, since=since, names=names))
        full = [part for part in parts if len(part)] or parts[:1]
        return pd.concat(full, ignore_index=True)


def _lay_out(rows: Sequence[RunRow]) -> pd.DataFrame:
    kinds = [Field(column.name, unguarded(column.type), bool(column.nullable)) for column in _RUN_COLUMNS]
    frame = make_frame(kinds, [[getattr(row, kind.name) for kind in kinds] for row in rows])
    frame["live_status"] = pd.Series([row.live_status for row in rows], dtype="object")
    return frame


def _lay_out_episode(episode: Trajectory, *, greedy: bool = False) -> pd.DataFrame:
    n = episode.length
    nothing = np.full(n, np.nan)
    steps = pd.array([pd.NA] * (n + 1) if greedy else [*range(episode.env_step, episode.env_step + n), pd.NA], "Int64")
    frame = pd.DataFrame({"t": np.arange(n + 1), "env_step": steps, "state": list(episode.state)})
    frame["action"] = pd.Series([*episode.action, None], dtype="object")
    frame["reward"] = np.append(episode.reward, np.float32(np.nan))
    slots = [-1] * (n + 1) if episode.slots is None else episode.slots.tolist()
    frame["slot"] = pd.array([pd.NA if slot < 0 else slot for slot in slots], "Int64")
    for name in ("h", "h_next", "delta_mem", "beta"):
        values = getattr(episode, name)
        frame[name] = np.append(nothing if values is None else values, np.nan)
    frame["tau"] = np.append(nothing if episode.tau is None else np.full(n, episode.tau), np.nan)
    known = {"run_id": episode.run_id, "episode": episode.episode, "won": bool(episode.won)}
    frame.attrs = {**known, "episode_return": episode.episode_return}
    return frame
