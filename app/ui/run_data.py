"""Functions that read the data of one run: the state of its gate, its training time, its files, and its curves.

The gate is the weight β of the episodic incentive, the reward from the episodic memory. A verdict states whether the
gate changes the incentive. `LiveCurves` is mutable and belongs to one session.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
import streamlit as st

from app.jobs.launch import LOG_NAME
from app.ui import data
from emtc_core.errors import StorageError
from emtc_core.metrics import sort_metrics
from storage.engine import Database
from storage.files import run_folder
from storage.guards import hide_passwords
from storage.private_files import read_tail
from storage.queries import curves, gate, runs
from storage.queries.gate_state import GateVerdict, list_gate_verdicts
from storage.runs.rows import RunRow
from storage.runs.training_time import measure_training_s

_MAX_LOG_BYTES = 20_000
_MAX_LOG_LINES = 60
_MAX_DIFF_BYTES = 200_000
_SPEED_WINDOW_S = 60.0
"""The speed of a run is its mean over this time [s]."""
_LONGEST_GAP_S = 10.0
"""After a longer time without a record of the progress [s], this machine slept or no page showed the run."""


def get_gate_verdict(run_id: str, status: str) -> GateVerdict:
    """Evaluate the gate and the incentive of a run, cached for 5 s. For a deleted run, the verdict is empty.

    Args:
        run_id: The run.
        status: Its current status. It is part of the key in the cache, so a run that has ended is evaluated again.
    """
    return data.cached(_evaluate_gate, ttl=5)(run_id, status)


def _evaluate_gate(db: Database, run_id: str, status: str) -> GateVerdict:
    verdict = list_gate_verdicts(db, [run_id]).get(run_id)
    return verdict or GateVerdict(gate=None, no_incentive_reason=None)


def get_training_s(run: RunRow) -> float | None:
    """Measure how long a run has trained [s], without pauses; None if it was not started. Not cached."""
    with data.database().read() as connection:
        return measure_training_s(connection, [run]).get(run.id)


def read_code_changes(run: RunRow) -> str:
    """Read the uncommitted changes (`git diff`) of the code that trained a run.

    Empty if there were no changes, or if their file is not on this machine.
    """
    digest = str(run.versions.get("diff") or "")
    if not digest.isalnum():
        return ""
    path = run_folder(data.database(), run.id) / f"code-{digest}.diff"
    try:
        diff = read_tail(path, _MAX_DIFF_BYTES)
    except StorageError:
        return ""
    return hide_passwords(diff.decode(errors="replace"))


def read_log_tail(run_id: str) -> str:
    """Read the last lines of a run's log; empty if there is no log, the error's message if it cannot be read."""
    try:
        tail = read_tail(run_folder(data.database(), run_id) / LOG_NAME, _MAX_LOG_BYTES)
    except StorageError as exc:
        return str(exc)
    lines = hide_passwords(tail.decode(errors="replace")).splitlines()[-_MAX_LOG_LINES:]
    # A progress bar overwrites its line after each carriage return. Only the last text is shown.
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)


@dataclass
class LiveCurves:
    """A run's curves in one session. Each refresh reads only new rows.

    A page refreshes them every two seconds. For a run with 20,000 reports of 24 metrics, the new rows take 0.06 s and
    all rows take 1.2 s.
    """

    run_id: str
    metric_names: tuple[str, ...]
    has_tables: bool = True
    """Whether the evaluations and the statistics of the gate are read, too."""
    n_resumes: int = 0
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    gate_stats: pd.DataFrame = field(default_factory=pd.DataFrame)
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    has_trained: bool = False
    _progress: deque[tuple[float, int]] = field(default_factory=deque)
    """Monotonic time [s] and env steps at each record of the progress, oldest first."""

    def record_progress(self, run: RunRow) -> None:
        """Record the time and the env steps of the run. The records of the last `_SPEED_WINDOW_S` give its speed.

        The records start again if the run does not train, if it has no env step yet because its trainer still prepares,
        or if the last record is older than `_LONGEST_GAP_S`.
        """
        self.has_trained = run.env_steps > 0
        now = time.monotonic()
        has_gap = bool(self._progress) and now - self._progress[-1][0] > _LONGEST_GAP_S
        if has_gap or run.live_status != "running" or not self.has_trained:
            self._progress.clear()
        self._progress.append((now, run.env_steps))
        while now - self._progress[0][0] > _SPEED_WINDOW_S:
            self._progress.popleft()

    def steps_per_second(self) -> float | None:
        """Return the run's mean speed in the last minute [env steps/s]; None if its env steps have not increased."""
        first_time, first_step = self._progress[0]
        last_time, last_step = self._progress[-1]
        if last_step <= first_step or last_time <= first_time:
            return None
        return (last_step - first_step) / (last_time - first_time)

    def get_last_value(self, name: str) -> float | None:
        """Return the last value of one of the metrics; None if it has none."""
        if not len(self.metrics):
            return None
        values = self.metrics.loc[self.metrics["name"] == name, "value"]
        return float(values.iloc[-1]) if len(values) else None

    def refresh(self) -> int:
        """Read the new rows; return their number."""
        db = data.database()
        n_resumes = len(runs.list_resumes(db, self.run_id))
        if n_resumes != self.n_resumes:
            # The run has been resumed. Rows after its checkpoint are no longer valid, so all rows are read again.
            self.n_resumes = n_resumes
            self.evaluations = pd.DataFrame()
            self.gate_stats = pd.DataFrame()
            self.metrics = pd.DataFrame()
        n_before = self.n_rows
        if self.has_tables:
            new_evaluations = curves.evaluations(db, self.run_id, after=_last_step(self.evaluations))
            self.evaluations = _append(self.evaluations, new_evaluations)
            new_gate_stats = gate.gate_stats(db, self.run_id, after=_last_step(self.gate_stats))
            self.gate_stats = _append(self.gate_stats, new_gate_stats)
        for names in _split_by_source(self.metric_names):
            new_points = curves.metric_points(db, self.run_id, names, after=self._last_step_of(names))
            self.metrics = _append(self.metrics, new_points)
        return self.n_rows - n_before

    def list_metrics(self) -> list[str]:
        """List all metrics that the run has recorded, in the registry's order."""
        return sort_metrics(data.cached(curves.metric_names, ttl=5)(self.run_id))

    def add_metrics(self, names: Sequence[str]) -> None:
        """Read further metrics, up to the env step to which the other metrics have been read.

        The next `refresh` then reads the later points of all metrics.
        """
        new_names = tuple(name for name in names if name not in self.metric_names)
        if not new_names:
            return
        for group in _split_by_source(new_names):
            is_of_evaluations = _is_evaluation_metric(group[0])
            same_source = [name for name in self.metric_names if _is_evaluation_metric(name) == is_of_evaluations]
            points = curves.metric_points(data.database(), self.run_id, group)
            last_step = self._last_step_of(same_source)
            if last_step == 0:  # no other metric of this source has been read
                last_step = _last_step(points)
            self.metrics = _append(self.metrics, points.loc[points["env_step"] <= last_step, :])
        self.metric_names += new_names

    @property
    def n_rows(self) -> int:
        """Number of rows that have been read."""
        return len(self.evaluations) + len(self.gate_stats) + len(self.metrics)

    @property
    def version(self) -> str:
        """A text that changes when a curve has a new point. The page Live then draws its charts again."""
        last_steps = [_last_step(frame) for frame in (self.evaluations, self.gate_stats, self.metrics)]
        parts = [self.n_resumes, int(self.has_trained), *last_steps, len(self.metrics)]
        return "-".join(map(str, parts))

    def list_resume_steps(self) -> list[int]:
        """List the env steps at which the run was resumed."""
        return runs.list_resumes(data.database(), self.run_id)["env_step"].tolist()

    def _last_step_of(self, names: Sequence[str]) -> int:
        """Return the last env step at which one of these metrics has been read; 0 if there is none."""
        return _last_step(self.metrics.loc[self.metrics["name"].isin(names), :]) if len(self.metrics) else 0


def get_session_curves(run_id: str, metric_names: Sequence[str], *, key: str, has_tables: bool = True) -> LiveCurves:
    """Return the curves of a run that this session has read so far.

    Args:
        run_id: The run.
        metric_names: The metrics to read.
        key: Key of Streamlit's session state. It stores the curves of one run at a time.
        has_tables: Whether the evaluations and the statistics of the gate are read, too.
    """
    session_curves = st.session_state.get(key)
    if session_curves is None or session_curves.run_id != run_id:
        session_curves = LiveCurves(run_id, tuple(metric_names), has_tables)
        st.session_state[key] = session_curves
    return session_curves


def _split_by_source(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Split metrics into those of training and those of evaluations.

    At one env step, the metrics of evaluations are written later. A read of both together could miss them.
    """
    of_training = tuple(name for name in names if not _is_evaluation_metric(name))
    of_evaluations = tuple(name for name in names if _is_evaluation_metric(name))
    return [group for group in (of_training, of_evaluations) if group]


def _is_evaluation_metric(name: str) -> bool:
    return name.startswith(("eval/", "user/eval."))  # "user/eval.": numbers that a plug-in computes in evaluations


def _append(frame: pd.DataFrame, new_rows: pd.DataFrame) -> pd.DataFrame:
    if not len(frame):
        return new_rows
    if not len(new_rows):
        return frame
    return pd.concat([frame, new_rows], ignore_index=True)


def _last_step(frame: pd.DataFrame) -> int:
    """Return the last env step of a table; 0 if it is empty."""
    return int(frame["env_step"].to_numpy().max()) if len(frame) else 0
