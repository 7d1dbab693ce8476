"""Cached reads of studies: plans with runs, win rates, findings and tables. Do not mutate cached values.

Findings take seconds to compute. They are computed again when a run of the study starts, ends, or has trained another
1 % of its budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from app.analysis.findings import StudyFindings, StudyRuns, measure_study, read_studies
from app.analysis.findings import read_win_rates as read_study_rates
from app.analysis.series import Comparison
from app.analysis.study_plans import PLANS, StudyPlan
from app.analysis.tables import Table
from app.figures.registry import TABLES
from app.figures.theme import ENDED_STATUSES
from app.ui import data
from storage.engine import Database
from storage.runs.rows import RunRow
from storage.runs.sweeps import list_sweeps, sweep_runs

_CACHE_TTL_S: Final = 600
_MAX_CACHED: Final = 32


@dataclass(frozen=True)
class Study:
    """A study plan with its runs and sweeps in this session's database."""

    plan: StudyPlan
    rows: tuple[RunRow, ...]
    sweeps: dict[str, str]
    """Sweep id → name."""

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """The properties of the runs on which cached results depend."""
        return self.plan.title, *((row.id, row.live_status, _measure_progress(row)) for row in self.rows)


def list_studies() -> list[Study]:
    """List the plans with at least one run here that is not hidden or archived."""
    db = data.database()
    sweeps = list_sweeps(db, limit=10_000)
    studies = []
    for plan in PLANS:
        names = {sweep.id: sweep.name for name in plan.sweeps for sweep in sweeps if sweep.name == name}
        rows = [row for sweep_id in names for row in sweep_runs(db, sweep_id)]
        visible = tuple(row for row in rows if row.hidden_at is None and row.archived_at is None)
        if visible:
            studies.append(Study(plan, visible, names))
    return studies


def read_runs(study: Study) -> StudyRuns:
    """Read the runs that the findings use."""
    return _read_cached(data.database_url(), "runs", study.cache_key, study, lambda db: read_studies(db, study.rows)[0])


def read_win_rates(study: Study) -> list[Comparison]:
    """Read the win rates, one comparison per task."""
    runs = read_runs(study)
    return _read_cached(data.database_url(), "win rates", study.cache_key, study, lambda db: read_study_rates(db, runs))


def measure_claims(study: Study) -> StudyFindings:
    """Measure the claims of the plan."""
    runs = read_runs(study)
    return _read_cached(data.database_url(), "findings", study.cache_key, study, lambda db: measure_study(db, runs))


def list_measures(study: Study) -> Table:
    """Compute every measure of every run, including measures that no claim uses."""
    return _read_cached(
        data.database_url(),
        "measures",
        study.cache_key,
        study,
        lambda db: TABLES["study-measures"].make(db, study.rows),
    )


def list_settings(study: Study) -> Table:
    """List the settings that differ between the variants of a task."""
    return _read_cached(
        data.database_url(),
        "settings",
        study.cache_key,
        study,
        lambda db: TABLES["study-settings"].make(db, study.rows),
    )


@st.cache_resource(ttl=_CACHE_TTL_S, max_entries=_MAX_CACHED, show_spinner=False)
def _read_cached(
    url: str, result: str, cache_key: tuple[Any, ...], _study: Study, _read: Callable[[Database], Any]
) -> Any:
    """Read once per database, result and cache key."""
    return _read(data.open_url(url))


def _measure_progress(row: RunRow) -> int:
    """Return the env steps of an ended run, or the progress of an active run [%]."""
    return row.env_steps if row.live_status in ENDED_STATUSES else 100 * row.env_steps // max(1, row.target_steps)
