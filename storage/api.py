"""Read a database as pandas frames, for scripts and notebooks, without torch, Streamlit or the app.

    from storage import open_database

    with open_database("runs/emtc.db") as db:
        best = db.runs("map=3m win_rate>0.8")
        steps = db.run(best["id"][0]).transitions(["env_step", "delta_mem", "beta"])

By default the database is opened read-only, so a running trainer is not affected. The columns are those of the tables
(`storage.models`). Functions that take a `Database` accept an `OpenDatabase` as well.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from storage.column_types import get_use
from storage.engine import Database
from storage.figures import draw_figure
from storage.frames import FrameField, make_frame
from storage.models import RUN_TABLE_COLUMNS
from storage.queries.curves import metric_names, policy_evaluations
from storage.queries.episodes import Trajectory, get_playback, get_trajectory
from storage.queries.final_rates import FinalRate, read_final_rates
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.runs import get_rows
from storage.queries.tables import PART_ROWS, TableName, arrow_schema, read_parts, select_fields
from storage.runs.rows import RunRow, find_run

ArrowReader = Any  # pyarrow.RecordBatchReader; pyarrow is optional and has no types
_RUN_COLUMNS: Final = tuple(column for column in RUN_TABLE_COLUMNS if get_use(column).is_public)


def open_database(place: str | Path, *, read_only: bool = True) -> "OpenDatabase":
    """Open a database, read-only by default.

    >>> db = open_database("runs/emtc.db")
    >>> db.runs()[["id", "map", "status"]]
             id map    status
    0  k3f9aaaa  3m  finished

    Args:
        place: A SQLite file, or `sqlite:///file.db` or `postgresql://…`.
        read_only: If False, the database can be written; a missing one is created.

    Raises:
        StorageError: If there is no database, or it has another schema.
    """
    url = sqlite_address(place) if isinstance(place, Path) or "://" not in place else place
    database = engine.open_database(url, read_only=read_only, create=not read_only)
    return OpenDatabase(**{attribute.name: getattr(database, attribute.name) for attribute in fields(database)})


@dataclass(frozen=True)
class OpenDatabase(Database):
    """An open database with methods that return frames. Use it in a `with` block, or close it with `dispose()`."""

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

        Source: table `runs`.

        Args:
            where: A search as on Home ("corridor gate.enabled=false win_rate>0.8"), or a list of conditions that must
                all be true, as for `emtc runs --where`.
            archived: List the archived runs instead of the others.

        Returns:
            One row per run with the columns of `runs`; units as in `models.py` [unit varies]. `status` is the stored
            status, `live_status` the one that pages show (see `storage.runs.status`). `final_rate` (fraction) is the
            final win rate, and `final_rate_episodes` the episodes that it counts, robust or greedy (see
            `storage.queries.final_rates`).

        Raises:
            ConfigError: If the search is invalid.
        """
        text, conditions = (where, ()) if isinstance(where, str) else ("", tuple(where))
        run_filter = RunFilter(text=text, where=conditions, visibility="archived" if archived else "open")
        run_ids = matching_ids(self, run_filter, sort="-created")
        return _make_run_frame(get_rows(self, run_ids), read_final_rates(self, run_ids))

    def run(self, run_id: str) -> "RecordedRun":
        """Get a run by its id, or by the start of its id.

        >>> db.run("k3f9")
        <run k3f9aaaa: emtc-qplex on 3m, seed 7, finished, 30 env steps>

        Raises:
            RunNotFoundError: If no run matches, or more than one.
        """
        return RecordedRun(find_run(self, run_id), self)

    def figure(self, name: str, runs: Sequence[str] = (), **options: Any) -> Any:
        """Draw a named figure of some runs, or of all evaluated runs, like `emtc export --figure`.

        >>> db.figure("learning-curves").layout.title.text  # robust if all runs of a task have it
        'robust win rate over training'
        >>> db.figure("learning-curves", rate="greedy").layout.title.text
        'Learning curves'

        Args:
            name: Name of the figure, as for `emtc export --figure`.
            runs: Ids, or starts of ids.
            options: center, band, color, method, episodes, include_unfinished, rate; for the PNG image also width,
                no_title, font, line_names, label.

        Returns:
            A Plotly figure.

        Raises:
            StorageError: If the app is not installed.
            ConfigError: If there is no such figure, or it cannot be drawn for these runs.
        """
        return draw_figure(self, name, runs, options)


@dataclass(frozen=True, repr=False)
class RecordedRun:
    """One run and its recorded data. `row` is the run at the time of `OpenDatabase.run`."""

    row: RunRow
    db: OpenDatabase = field(repr=False)

    def __repr__(self) -> str:
        row = self.row
        return (
            f"<run {row.id}: {row.algo} on {row.map}, seed {row.seed}, {row.live_status}, {row.env_steps:,} env steps>"
        )

    @property
    def id(self) -> str:
        """Id of the run."""
        return self.row.id

    @property
    def config(self) -> dict[str, Any]:
        """The full resolved configuration of the run.

        >>> run.config["gate"]["tau_start"]
        1.0
        """
        return self.row.config

    def transitions(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read the training transitions with the gate's values, one row per env step.

        >>> run.transitions(["env_step", "delta_mem", "beta"], since=28)
           env_step  delta_mem      beta
        0        29   0.426575  0.913033
        1        30   0.053797  0.998554

        Use `chunks` or `arrow` if the rows do not fit into memory.

        Source: table `transitions`.

        Args:
            columns: Names of columns; None reads all columns of `transitions`: reward [reward], h, h_next, delta_mem
                and tau [return], beta (dimensionless), …
            since: Read only rows after this env step.

        Raises:
            StorageError: If thinning has deleted the transitions.
            ConfigError: If there is no such column.
        """
        return self._frame("transitions", columns, since)

    def episodes(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read the outcomes of the training episodes, one row per episode.

        >>> run.episodes()[["episode", "first_env_step", "length", "won"]]
           episode  first_env_step  length    won
        0        1               1      10   True
        1        2              11      10  False
        2        3              21      10   True

        Source: table `episodes`.

        Args:
            columns: Names of columns; None reads all columns of `episodes` except the packed `trajectory`, which the
                method `trajectory` unpacks: first_env_step [env steps], length [steps], episode_return [return], …
            since: Read only episodes that began after this env step.
        """
        return self._frame("episodes", columns, since)

    def evaluations(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read the evaluations, one row per evaluated env step.

        >>> run.evaluations(["env_step", "episodes", "wins", "win_rate"])
           env_step  episodes  wins  win_rate
        0        30         4     3      0.75

        Source: table `evaluations`.

        Args:
            columns: Names of columns; None reads all columns of `evaluations`: win_rate (fraction), return_mean
                [return], …
            since: Read only rows after this env step.
        """
        return self._frame("evaluations", columns, since)

    def policy_evaluations(self) -> pd.DataFrame:
        """Read the results of `emtc evaluate` for the stored policies. They are not part of learning curves.

        >>> run.policy_evaluations()[["env_step", "episodes", "wins", "seed", "settings"]]
           env_step  episodes  wins  seed settings
        0        30         4     3     7       {}

        Source: table `policy_evaluations`.

        Returns:
            One row per result with all columns of the table; units as in `models.py` [unit varies].
        """
        return policy_evaluations(self.db, [self.id])

    def metrics(self, name: str | Sequence[str] = (), *, since: int = 0) -> pd.DataFrame:
        """Read every logged value of some metrics, or of all.

        >>> run.metrics("train/loss")
             run_id  env_step        name  value
        0  k3f9aaaa        30  train/loss    0.5

        Source: table `metrics`.

        Args:
            name: Name or names of metrics; empty reads all.
            since: Read only rows after this env step.

        Returns:
            One row per value; units as in `emtc_core.metrics` [unit varies].

        Raises:
            ConfigError: If there is no metric of that name. The message lists similar names.
        """
        names = [name] if isinstance(name, str) else name
        self._check_metrics(names)
        return self._frame("metrics", None, since, names)

    def gate_stats(self, columns: Sequence[str] | None = None, *, since: int = 0) -> pd.DataFrame:
        """Read the gate's statistics over the whole memory: mean and quantiles of delta_mem and beta per env step.

        >>> run.gate_stats(["env_step", "delta_mem_mean", "beta_mean", "memory_size"])
           env_step  delta_mem_mean  beta_mean  memory_size
        0        30            0.25       0.75           42

        Source: table `gate_stats`.

        Args:
            columns: Names of columns; None reads all.
            since: Read only rows after this env step.

        Returns:
            One row per env step: delta_mem and tau [return], beta (dimensionless), memory_size [nodes].
        """
        return self._frame("gate", columns, since)

    def snapshots(self) -> pd.DataFrame:
        """List the snapshots of the episodic memory.

        >>> run.snapshots()[["env_step", "size"]]
           env_step  size
        0        30    30

        Source: table `snapshots`.

        Returns:
            One row per snapshot, oldest first: id, env_step [env steps], size [nodes], memory_size [nodes], created_at
            [UTC]. In a sample, the whole memory has at least `memory_size` nodes, which are more than `size`.
        """
        return list_snapshots(self.db, self.id)

    def snapshot(self, step: int | None = None) -> pd.DataFrame:
        """Read a snapshot of the episodic memory, one row per node.

        >>> memory = run.snapshot()
        >>> np.stack(memory["embedding"]).shape, memory.attrs["env_step"]
        ((30, 4), 30)

        Source: table `snapshots`, which contains the nodes of Algorithm 2.

        Args:
            step: Read the last snapshot at or before this env step; None reads the newest.

        Returns:
            slot, embedding (array [X]), H [return], xi, n_call [visits], n_xi [visits], t [steps], reward [reward],
            idx_next, episode, delta_mem [return], beta, and state: an array [S] for the sampled nodes whose state is
            stored, else None. `attrs` contains id, run_id, env_step and memory_size of the snapshot (`snapshots`).

        Raises:
            StorageError: If there is no such snapshot.
        """
        listed = self.snapshots()
        ids = [n for n, at in zip(listed["id"], listed["env_step"], strict=True) if step is None or at <= step]
        if not ids:
            steps = ", ".join(map(str, listed["env_step"])) or "none"
            raise StorageError(f"Run {self.id} has no snapshot at or before env step {step}; there are: {steps}.")
        snapshot = get_snapshot(self.db, int(ids[-1]))
        names = ("xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode", "delta_mem", "beta")
        columns = {name: getattr(snapshot, name) for name in names}
        frame = pd.DataFrame({"slot": snapshot.slot, "embedding": list(snapshot.embedding), "H": snapshot.h, **columns})
        states = np.full(snapshot.size, None, object)
        for row, state in zip(snapshot.state_rows, snapshot.state, strict=True):
            states[row] = state
        frame["state"] = states
        memory_size = snapshot.size if snapshot.whole is None else snapshot.whole.size
        frame.attrs = {
            "id": snapshot.id, "run_id": self.id, "env_step": snapshot.env_step, "memory_size": memory_size
        }  # fmt: skip
        return frame

    def trajectory(self, episode: int, *, env_step: int | None = None) -> pd.DataFrame:
        """Read one episode with the gate's values, one row per step. The last row is the final state.

        >>> steps = run.trajectory(2)
        >>> steps[["t", "env_step", "reward", "slot"]].tail(2)
             t  env_step    reward  slot
        9    9        20  0.897734   109
        10  10      <NA>       NaN   110
        >>> np.stack(steps["state"]).shape
        (11, 6)

        Source: tables `episodes`, `transitions` and `eval_episodes`.

        Args:
            episode: Number of the episode.
            env_step: None for a training episode. The env step of an evaluation for one of its greedy episodes, which
                has no gate values.

        Returns:
            t [steps], env_step [env steps], state (array [S]), action (array [N]), reward [reward], slot, h, h_next,
            delta_mem [return], beta (dimensionless), tau [return]. `attrs` contains run_id, episode, won and
            episode_return.

        Raises:
            StorageError: If there is no such episode, or thinning has deleted its trajectory.
        """
        if env_step is not None:
            return _make_step_frame(get_playback(self.db, self.id, env_step, episode), greedy=True)
        return _make_step_frame(get_trajectory(self.db, self.id, episode))

    def chunks(
        self,
        table: TableName,
        columns: Sequence[str] | None = None,
        *,
        since: int = 0,
        names: Sequence[str] = (),
        rows: int = PART_ROWS,
    ) -> Iterator[pd.DataFrame]:
        """Read a table in parts, so that only one part is in memory at a time.

        >>> [len(part) for part in run.chunks("transitions", ["env_step", "beta"], rows=12)]
        [12, 12, 6]

        Source: the table.

        Args:
            table: transitions, episodes, evaluations, metrics or gate.
            columns: Names of columns; None reads all but binary ones.
            since: Read only rows after this env step.
            names: Names of metrics, for the table metrics; empty reads all.
            rows: Maximum number of rows per part.

        Returns:
            Frames with one row per row of the table; units as in `models.py` [unit varies].

        Raises:
            ConfigError: If there is no such column.
            StorageError: If thinning has deleted the rows.
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
        """Read a table as a stream of Arrow batches, for example for Polars, DuckDB or a Parquet file.

        >>> run.arrow("transitions", ["env_step", "slot"]).read_all().shape
        (30, 2)

        Args:
            table: transitions, episodes, evaluations, metrics or gate.
            columns: Names of columns; None reads all but binary ones.
            since: Read only rows after this env step.
            names: Names of metrics, for the table metrics; empty reads all.
            rows: Maximum number of rows per batch.

        Raises:
            ConfigError: If there is no such column.
            StorageError: If pyarrow is not installed, or thinning has deleted the rows.
        """
        schema = arrow_schema(select_fields(table, columns))
        import pyarrow as pa

        parts = read_parts(self.db, table, self.id, columns=columns, since=since, names=names, rows=rows)
        return pa.RecordBatchReader.from_batches(schema, (part.to_arrow() for part in parts))

    def figure(self, name: str, **options: Any) -> Any:
        """Draw a named figure of this run; see `OpenDatabase.figure`.

        >>> [axis.title.text for axis in run.figure("gate-dynamics").select_yaxes()]
        ['Δ̄_mem [return]', 'β̄ [fraction]']
        """
        return self.db.figure(name, [self.id], **options)

    def _check_metrics(self, names: Sequence[str]) -> None:
        """Raise if a name is neither a registered metric nor logged by this run."""
        unregistered = [name for name in names if name not in METRICS]
        logged = metric_names(self.db, self.id) if unregistered else []
        for name in unregistered:
            if name not in logged:
                similar = ", ".join(get_close_matches(name, {**METRICS, **dict.fromkeys(logged)}, n=3))
                hint = f"Did you mean {similar}?" if similar else f"It logged {', '.join(logged) or 'nothing'}."
                raise ConfigError(f"is not a metric that run {self.id} logged", key=name, hint=hint)

    def _frame(
        self, table: TableName, columns: Sequence[str] | None, since: int, names: Sequence[str] = ()
    ) -> pd.DataFrame:
        parts = list(self.chunks(table, columns, since=since, names=names))
        not_empty = [part for part in parts if len(part)] or parts[:1]
        return pd.concat(not_empty, ignore_index=True)


def _make_run_frame(rows: Sequence[RunRow], final_rates: Mapping[str, FinalRate]) -> pd.DataFrame:
    columns = [FrameField(column.name, column.type, bool(column.nullable)) for column in _RUN_COLUMNS]
    frame = make_frame(columns, [[getattr(row, column.name) for column in columns] for row in rows])
    frame["live_status"] = pd.Series([row.live_status for row in rows], dtype="object")
    finals = [final_rates.get(row.id) for row in rows]
    frame["final_rate"] = pd.Series([final.rate if final else np.nan for final in finals], dtype="float64")
    frame["final_rate_episodes"] = pd.Series([final.episodes if final else None for final in finals], dtype="object")
    return frame


def _make_step_frame(episode: Trajectory, *, greedy: bool = False) -> pd.DataFrame:
    n = episode.length
    missing = np.full(n, np.nan)
    steps = [pd.NA] * (n + 1) if greedy else [*range(episode.env_step, episode.env_step + n), pd.NA]
    frame = pd.DataFrame({"t": np.arange(n + 1), "env_step": pd.array(steps, "Int64"), "state": list(episode.state)})
    frame["action"] = pd.Series([*episode.action, None], dtype="object")
    frame["reward"] = np.append(episode.reward, np.float32(np.nan))
    slots = [-1] * (n + 1) if episode.slots is None else episode.slots.tolist()
    frame["slot"] = pd.array([pd.NA if slot < 0 else slot for slot in slots], "Int64")
    for name in ("h", "h_next", "delta_mem", "beta"):
        values = getattr(episode, name)
        frame[name] = np.append(missing if values is None else values, np.nan)
    frame["tau"] = np.append(missing if episode.tau is None else np.full(n, episode.tau), np.nan)
    frame.attrs = {
        "run_id": episode.run_id,
        "episode": episode.episode,
        "won": bool(episode.won),
        "episode_return": episode.episode_return,
    }
    return frame
