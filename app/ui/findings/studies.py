"""Cached reads of studies: their runs, win rates, findings and tables. Do not mutate cached values.

A study is a plan: a question, sweeps, and claims about their variants. A finding is the verdict on a claim. Findings
take seconds to compute. They are computed again when the study file changes, and when a run of the study starts, ends,
or has trained another 1 % of its budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from app.analysis.curves import Curves
from app.analysis.findings import StudyFindings, StudyRuns, measure_study, read_study
from app.analysis.findings import read_win_rates as read_study_rates
from app.analysis.study_plans import StudyPlan, list_plans
from app.analysis.tables import Table
from app.figures.registry import TABLES
from app.figures.theme import ENDED_STATUSES
from app.ui import data
from storage.engine import Database
from storage.runs.rows import RunRow
from storage.runs.sweeps import list_sweeps, sweep_runs

_CACHE_TTL_S: Final = 600
_MAX_CACHED: Final = 32
"""Maximum number of cached results of all studies."""


@dataclass(frozen=True)
class StoredStudy:
    """A study plan with its runs and sweeps in this session's database."""

    plan: StudyPlan
    rows: tuple[RunRow, ...]
    sweeps: dict[str, str]
    """Sweep id → name."""

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """The plan, and the properties of the runs on which cached results depend."""
        run_keys = ((row.id, row.live_status, _get_cached_progress(row)) for row in self.rows)
        return self.plan.model_dump_json(), *run_keys


def list_studies() -> list[StoredStudy]:
    """List the studies with at least one run here that is not hidden or archived.

    Raises:
        ConfigError: If a study file in the folder `EMTC_STUDIES` is invalid.
    """
    db = data.database()
    all_sweeps = list_sweeps(db, limit=10_000)
    studies = []
    for plan in list_plans():
        sweep_names: dict[str, str] = {}
        for planned_name in plan.sweeps:
            sweep_names |= {sweep.id: sweep.name for sweep in all_sweeps if sweep.name == planned_name}
        rows = [row for sweep_id in sweep_names for row in sweep_runs(db, sweep_id)]
        visible = tuple(row for row in rows if row.hidden_at is None and row.archived_at is None)
        if visible:
            studies.append(StoredStudy(plan, visible, sweep_names))
    return studies


def read_runs(study: StoredStudy) -> StudyRuns:
    """Read the runs that the findings use."""
    return _read_cached(data.database_url(), "runs", study.cache_key, lambda db: read_study(db, study.plan, study.rows))


def read_win_rates(study: StoredStudy) -> list[Curves]:
    """Read the win rates: the curves of one task after the other."""
    runs = read_runs(study)
    return _read_cached(data.database_url(), "win rates", study.cache_key, lambda db: read_study_rates(db, runs))


def measure_claims(study: StoredStudy) -> StudyFindings:
    """Measure the claims of the plan."""
    runs = read_runs(study)
    return _read_cached(data.database_url(), "findings", study.cache_key, lambda db: measure_study(db, runs))


def tabulate(study: StoredStudy, table: str) -> Table:
    """Make a table of the runs of a study.

    Args:
        study: The study.
        table: Name of the table: "study-measures", which computes every measure of every run, or "study-settings".
    """
    kind = TABLES[table]
    return _read_cached(data.database_url(), table, study.cache_key, lambda db: kind.make(db, study.rows))


@st.cache_resource(ttl=_CACHE_TTL_S, max_entries=_MAX_CACHED, show_spinner=False)
def _read_cached(url: str, result: str, cache_key: tuple[Any, ...], _read: Callable[[Database], Any]) -> Any:
    """Read a result once per database, result and cache key. Streamlit does not use `_read` as a part of the key."""
    return _read(data.open_url(url))


def _get_cached_progress(row: RunRow) -> int:
    """Return the env steps of an ended run, or the progress of an active run [%], which changes less often."""
    if row.live_status in ENDED_STATUSES:
        return row.env_steps
    return 100 * row.env_steps // max(1, row.target_steps)
