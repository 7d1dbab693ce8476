"""Cached reads of studies: which plans have runs here, their win rates, findings and tables. Never change a result.

Findings take seconds. They are computed again when a run of the study ends, starts, or trains another hundredth of its
budget.
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
from app.figures.named.findings import tabulate_measures, tabulate_settings
from app.figures.theme import ENDED_STATUSES
from app.ui import data
from storage.engine import Database
from storage.runs.rows import RunRow
from storage.runs.sweeps import list_sweeps, sweep_runs

_KEPT_S: Final = 600
_MOST_KEPT: Final = 32


@dataclass(frozen=True)
class Study:
    """A plan with the runs and sweeps that it has in this session's database."""

    plan: StudyPlan
    rows: tuple[RunRow, ...]
    sweeps: dict[str, str]
    """Name of each sweep, by id."""

    @property
    def state(self) -> tuple[Any, ...]:
        """The part of its runs that decides whether a kept result is still right."""
        return self.plan.title, *((row.id, row.live_status, _progress(row)) for row in self.rows)


def _progress(row: RunRow) -> int:
    return row.env_steps if row.live_status in ENDED_STATUSES else 100 * row.env_steps // max(1, row.target_steps)


def list_studies() -> list[Study]:
    """List the plans that have runs here, hidden and archived ones left out."""
    db = data.database()
    sweeps = list_sweeps(db, limit=10_000)
    studies = []
    for plan in PLANS:
        names = {sweep.id: sweep.name for name in plan.sweeps for sweep in sweeps if sweep.name == name}
        rows = [row for sweep_id in names for row in sweep_runs(db, sweep_id)]
        shown = tuple(row for row in rows if row.hidden_at is None and row.archived_at is None)
        if shown:
            studies.append(Study(plan, shown, names))
    return studies


def read_runs(study: Study) -> StudyRuns:
    """Read which runs are in the findings."""
    return _keep(data.database_url(), "runs", study.state, study, lambda db: read_studies(db, study.rows)[0])


def read_win_rates(study: Study) -> list[Comparison]:
    """Read the win rates, one comparison for each task."""
    runs = read_runs(study)
    return _keep(data.database_url(), "win rates", study.state, study, lambda db: read_study_rates(db, runs))


def find(study: Study) -> StudyFindings:
    """Measure the claims."""
    runs = read_runs(study)
    return _keep(data.database_url(), "findings", study.state, study, lambda db: measure_study(db, runs))


def list_measures(study: Study) -> Table:
    """Compute every measure of every run, also those that no claim of the plan needs."""
    return _keep(data.database_url(), "measures", study.state, study, lambda db: tabulate_measures(db, study.rows))


def list_settings(study: Study) -> Table:
    """List the settings that differ between the variants of a task."""
    return _keep(data.database_url(), "settings", study.state, study, lambda db: tabulate_settings(db, study.rows))


@st.cache_resource(ttl=_KEPT_S, max_entries=_MOST_KEPT, show_spinner=False)
def _keep(url: str, result: str, state: tuple[Any, ...], _study: Study, _read: Callable[[Database], Any]) -> Any:
    """Read once for each database, result and state of the study."""
    return _read(data.open_url(url))
