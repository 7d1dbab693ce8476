"""What the pages of one run read beside `data`: its files, and its curves as one session has read them so far.

Its checkpoints and the end of its log lie wherever the run says. What lies on this machine is read as it is; what a
network brings is at most FAR_S old, and so is a place that did not answer: a page must not wait for it at every
refresh. Curves are mutable, and never shared between sessions. What a first run needs compiled is begun here, once
per server, as soon as somebody opens the app.
"""

import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from threading import Timer

import pandas as pd
import streamlit as st

from app.jobs.launch import LOG_NAME, start_warmup
from app.jobs.resume import CheckpointStatus, examine_checkpoints
from app.ui import data
from emtc_core.errors import StorageError
from emtc_core.metrics import sort_metrics
from storage.files.places import get_run_place, run_folder
from storage.files.remote import Remote
from storage.guards import hide_passwords
from storage.private_files import read_tail
from storage.queries import curves, gate, runs
from storage.runs.rows import RunRow, find_run


@st.cache_resource(show_spinner=False)
def compile_ahead(url: str) -> bool:
    """Start it unless this server has done so."""
    later = Timer(_READING_S, import_module, ["app.figures.registry"])
    later.daemon = True
    later.start()
    db = data.open_url(url)
    folder = db.path.with_name(f"{db.path.stem}.files") if db.path else None
    return start_warmup(folder / "warm-up.txt") if folder else False


_READING_S = 1.0
"""After the first page was begun: the next one's drawing, and scipy, are loaded while that is read."""
FAR_S = 10
LOG_TAIL_BYTES = 20_000


@st.cache_data(ttl=FAR_S, show_spinner=False)
def _far_status(url: str, run_id: str, state: str, _row: RunRow) -> CheckpointStatus:
    return examine_checkpoints(data.database(), _row)


def checkpoint_status(row: RunRow) -> CheckpointStatus:
    """Examine a run's checkpoints."""
    if row.files and "://" in row.files:
        return _far_status(data.database_url(), row.id, row.state.value, row)
    return examine_checkpoints(data.database(), row)


@st.cache_data(ttl=FAR_S, show_spinner=False)
def _far_log(url: str, run_id: str) -> bytes | str:
    try:
        return Remote(url).files_of(run_id).read_tail(LOG_NAME, LOG_TAIL_BYTES)
    except StorageError as exc:
        return str(exc)


def code_changes(run: RunRow) -> str:
    """Read what was changed since the commit that a run was trained by; empty where there is nothing, or not here."""
    digest = str(run.versions.get("diff") or "")
    if not digest.isalnum():
        return ""
    with suppress(StorageError):
        text = read_tail(run_folder(data.database(), run.id) / f"code-{digest}.diff", LOG_TAIL_BYTES * 10)
        return hide_passwords(text.decode(errors="replace"))
    return ""


def log_tail(run_id: str) -> str:
    """Read the end of a run's log, or an empty text."""
    db = data.database()
    try:
        place, row = get_run_place(db, run_id), find_run(db, run_id)
        if place.remote is not None and row.started_at is not None and row.host != socket.gethostname():
            said = _far_log(place.remote.url, run_id)
        else:
            said = read_tail(run_folder(db, run_id) / LOG_NAME, LOG_TAIL_BYTES)
    except StorageError as exc:
        return str(exc)
    text = hide_passwords(said if isinstance(said, str) else said.decode(errors="replace"))
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.splitlines()[-60:])


SPEED_WINDOW_S = 30.0


@dataclass
class LiveCurves:
    """A run's curves as one session has read them so far; each refresh asks only for later rows."""

    run_id: str
    metric_names: tuple[str, ...]
    resumes: int = 0
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    gate: pd.DataFrame = field(default_factory=pd.DataFrame)
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    has_episodes: bool = False
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def observe(self, env_steps: int) -> None:
        """Note how far the run is now; the notes of the last half minute give its speed."""
        self.has_episodes = env_steps > 0
        now = time.monotonic()
        self._seen.append((now, env_steps))
        while len(self._seen) > 2 and now - self._seen[0][0] > SPEED_WINDOW_S:
            self._seen.popleft()

    def steps_per_second(self) -> float | None:
        """The run's speed as this session saw it, or None while it has not seen it move."""
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last > first and last_at > first_at else None

    def latest(self, name: str) -> float | None:
        """The last value of a metric that is followed; None before the first."""
        if not len(self.metrics):
            return None
        rows = self.metrics.loc[self.metrics["name"] == name, "value"]
        return float(rows.iloc[-1]) if len(rows) else None

    def refresh(self) -> int:
        """Read what is new and say how many rows that were."""
        db = data.database()
        resumed = runs.list_resumes(db, self.run_id)
        if len(resumed) != self.resumes:  # rows after the checkpoint were superseded: read everything again
            self.resumes = len(resumed)
            self.evaluations, self.gate, self.metrics = pd.DataFrame(), pd.DataFrame(), pd.DataFrame()
        before = self.rows
        self.evaluations = _append(
            self.evaluations, curves.evaluations(db, self.run_id, after=_last_step(self.evaluations))
        )
        self.gate = _append(self.gate, gate.gate_stats(db, self.run_id, after=_last_step(self.gate)))
        for names in _split(self.metric_names):
            fresh = curves.metric_points(db, self.run_id, names, after=self._read_until(names))
            self.metrics = _append(self.metrics, fresh)
        return self.rows - before

    def metric_list(self) -> list[str]:
        """List every number that the run has logged so far, in the registry's order."""
        return sort_metrics(data.metric_names(self.run_id))

    def follow(self, names: Sequence[str]) -> None:
        """Read further metrics, as far as the ones already followed have been read."""
        more = tuple(name for name in names if name not in self.metric_names)
        if not more:
            return
        for names in _split(more):
            followed = [name for name in self.metric_names if _is_evaluated(name) == _is_evaluated(names[0])]
            earlier = curves.metric_points(data.database(), self.run_id, names)
            read_until = self._read_until(followed) or _last_step(earlier)
            self.metrics = _append(self.metrics, earlier.loc[earlier["env_step"] <= read_until, :])
        self.metric_names += more

    def _read_until(self, names: Sequence[str]) -> int:
        """The last env step that was read of these metrics."""
        return _last_step(self.metrics.loc[self.metrics["name"].isin(names), :]) if len(self.metrics) else 0

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return len(self.evaluations) + len(self.gate) + len(self.metrics)

    @property
    def version(self) -> str:
        """Changes whenever a curve has a new point."""
        steps = (_last_step(frame) for frame in (self.evaluations, self.gate, self.metrics))
        return "-".join(map(str, (self.resumes, int(self.has_episodes), *steps, len(self.metrics))))

    def resume_steps(self) -> list[int]:
        """List the env steps at which the run was resumed."""
        return runs.list_resumes(data.database(), self.run_id)["env_step"].tolist()


def _split(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Part the numbers of an evaluation, which are logged after a report of the same env step, from the others."""
    parts = (tuple(name for name in names if _is_evaluated(name) == evaluated) for evaluated in (False, True))
    return [part for part in parts if part]


def _is_evaluated(name: str) -> bool:
    return name.startswith(("eval/", "user/eval."))


def _append(known: pd.DataFrame, fresh: pd.DataFrame) -> pd.DataFrame:
    if not len(known):
        return fresh
    return pd.concat([known, fresh], ignore_index=True) if len(fresh) else known


def _last_step(frame: pd.DataFrame) -> int:
    return int(frame["env_step"].to_numpy().max()) if len(frame) else 0
