"""Several trainers and pages on one SQLite file."""

from pathlib import Path

import pytest

from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.bench.telemetry import run_contention


@pytest.mark.slow
def test_four_recorders_and_three_live_pages_never_meet_a_locked_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    report = run_contention(url, seconds=20)
    assert report.lock_errors == []
    assert report.ticks > 0
    db = open_database(url)
    assert sum(list_runs(db)["env_steps"].tolist()) == report.transitions > 0
    db.dispose()
