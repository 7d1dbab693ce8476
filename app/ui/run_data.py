"""Reads of one run: its gate, its training time, its files, and the curves that one session has read.

`LiveCurves` is mutable and belongs to one session.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from threading import Timer

import pandas as pd
import streamlit as st

from app.jobs.launch import LOG_NAME, start_warmup
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

LOG_TAIL_BYTES = 20_000
_LOG_TAIL_LINES = 60
_MAX_DIFF_BYTES = 200_000
SPEED_WINDOW_S = 60.0
"""The speed of a run is measured over this time [s]."""
_LONGEST_GAP_S = 10.0
"""A longer time between two observations of a run means that this machine slept, or that no page observed the run."""
_IMPORT_DELAY_S = 1.0
"""Delay after the first page, before the figures and scipy are imported for the next page."""


@st.cache_resource(show_spinner=False)
def compile_ahead(url: str) -> bool:
    """Start to compile what a first run needs, and to import what the next page needs; once per server.

    Returns:
        Whether the compilation was started.
    """
    timer = Timer(_IMPORT_DELAY_S, import_module, ["app.figures.registry"])
    timer.daemon = True
    timer.start()
    db = data.open_url(url)
    folder = db.path.with_name(f"{db.path.stem}.files") if db.path else None
    return start_warmup(folder / "warm-up.txt") if folder else False


def get_gate_verdict(run_id: str, status: str) -> GateVerdict:
    """Evaluate the gate and the incentive of a run; at most five seconds old. A deleted run has neither.

    Args:
        run_id: The run.
        status: Its status now. When a run ends, its verdict is evaluated again.
    """
    return data.cached(_evaluate_gate, ttl=5)(run_id, status)


def _evaluate_gate(db: Database, run_id: str, status: str) -> GateVerdict:
    """Evaluate the gate and the incentive of a run. `status` is only a part of the key in the cache."""
    verdict = list_gate_verdicts(db, [run_id]).get(run_id)
    return verdict or GateVerdict(gate=None, no_incentive_reason=None)


def get_training_s(run: RunRow) -> float | None:
    """Measure how long a run has trained [s], without pauses; None if it was not started. Not cached."""
    with data.database().read() as connection:
        return measure_training_s(connection, [run]).get(run.id)


def read_code_changes(run: RunRow) -> str:
    """Read the uncommitted changes of the code that trained a run; empty if there are none, or not on this machine."""
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
    """Read the end of a run's log; empty if there is no log, and the error if it cannot be read."""
    try:
        tail = read_tail(run_folder(data.database(), run_id) / LOG_NAME, LOG_TAIL_BYTES)
    except StorageError as exc:
        return str(exc)
    lines = hide_passwords(tail.decode(errors="replace")).splitlines()[-_LOG_TAIL_LINES:]
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
    n_resumes: int = 0
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    gate: pd.DataFrame = field(default_factory=pd.DataFrame)
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    has_episodes: bool = False
    _progress: deque[tuple[float, int]] = field(default_factory=deque)
    """Monotonic time [s] and env steps at each record of the progress, oldest first."""

    def record_progress(self, run: RunRow) -> None:
        """Record the time and the env steps of the run. The records of the last `SPEED_WINDOW_S` give its speed.

        The records start again if the run does not train, or if the last record is older than `_LONGEST_GAP_S`.
        """
        self.has_episodes = run.env_steps > 0
        now = time.monotonic()
        has_gap = bool(self._progress) and now - self._progress[-1][0] > _LONGEST_GAP_S
        if has_gap or run.live_status != "running":
            self._progress.clear()
        self._progress.append((now, run.env_steps))
        while now - self._progress[0][0] > SPEED_WINDOW_S:
            self._progress.popleft()

    def steps_per_second(self) -> float | None:
        """Return the run's speed in the last minute [env steps/s]; None if no progress was recorded."""
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
        if n_resumes != self.n_resumes:  # rows after the checkpoint were superseded: read everything again
            self.n_resumes = n_resumes
            self.evaluations = pd.DataFrame()
            self.gate = pd.DataFrame()
            self.metrics = pd.DataFrame()
        n_before = self.n_rows
        new_evaluations = curves.evaluations(db, self.run_id, after=_last_step(self.evaluations))
        self.evaluations = _append(self.evaluations, new_evaluations)
        new_gate_rows = gate.gate_stats(db, self.run_id, after=_last_step(self.gate))
        self.gate = _append(self.gate, new_gate_rows)
        for names in _split_by_source(self.metric_names):
            new_points = curves.metric_points(db, self.run_id, names, after=self._last_step_of(names))
            self.metrics = _append(self.metrics, new_points)
        return self.n_rows - n_before

    def list_metrics(self) -> list[str]:
        """List all metrics that the run has recorded, in the registry's order."""
        return sort_metrics(data.cached(curves.metric_names, ttl=5)(self.run_id))

    def add_metrics(self, names: Sequence[str]) -> None:
        """Read further metrics, up to the env step to which the other metrics have been read."""
        new_names = tuple(name for name in names if name not in self.metric_names)
        if not new_names:
            return
        for group in _split_by_source(new_names):
            same_source = [name for name in self.metric_names if _is_evaluated(name) == _is_evaluated(group[0])]
            points = curves.metric_points(data.database(), self.run_id, group)
            last_step = self._last_step_of(same_source) or _last_step(points)
            self.metrics = _append(self.metrics, points.loc[points["env_step"] <= last_step, :])
        self.metric_names += new_names

    @property
    def n_rows(self) -> int:
        """Number of rows that have been read."""
        return len(self.evaluations) + len(self.gate) + len(self.metrics)

    @property
    def version(self) -> str:
        """A text that changes when a curve has a new point."""
        last_steps = [_last_step(frame) for frame in (self.evaluations, self.gate, self.metrics)]
        parts = [self.n_resumes, int(self.has_episodes), *last_steps, len(self.metrics)]
        return "-".join(map(str, parts))

    def list_resume_steps(self) -> list[int]:
        """List the env steps at which the run was resumed."""
        return runs.list_resumes(data.database(), self.run_id)["env_step"].tolist()

    def _last_step_of(self, names: Sequence[str]) -> int:
        return _last_step(self.metrics.loc[self.metrics["name"].isin(names), :]) if len(self.metrics) else 0


def get_session_curves(run_id: str, metric_names: Sequence[str], *, key: str) -> LiveCurves:
    """Return the curves of a run that this session has read so far.

    Args:
        run_id: The run.
        metric_names: The metrics that are read.
        key: Key of the session state, in which the curves of one run are stored.
    """
    session_curves = st.session_state.get(key)
    if session_curves is None or session_curves.run_id != run_id:
        session_curves = LiveCurves(run_id, tuple(metric_names))
        st.session_state[key] = session_curves
    return session_curves


def _split_by_source(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Split metrics into those of training and those of evaluations, which are written later at the same env step."""
    of_training = tuple(name for name in names if not _is_evaluated(name))
    of_evaluations = tuple(name for name in names if _is_evaluated(name))
    return [group for group in (of_training, of_evaluations) if group]


def _is_evaluated(name: str) -> bool:
    return name.startswith(("eval/", "user/eval."))


def _append(frame: pd.DataFrame, new_rows: pd.DataFrame) -> pd.DataFrame:
    if not len(frame):
        return new_rows
    if not len(new_rows):
        return frame
    return pd.concat([frame, new_rows], ignore_index=True)


def _last_step(frame: pd.DataFrame) -> int:
    return int(frame["env_step"].to_numpy().max()) if len(frame) else 0
