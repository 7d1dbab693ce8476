"""Several live trainers stopped and resumed at once, as the buttons of the runs table do it."""

from pathlib import Path

import pytest

from app.jobs.resume import resume_runs, stop_runs
from storage.engine import open_database
from tests.process.trainers import breaches, emtc, read, train_command, wait_until

STEPS = 60_000


def _rows(path: Path) -> dict[str, tuple[str, int]]:
    return {run: (status, steps) for run, status, steps in read(path, "select id, status, env_steps from runs")}


@pytest.mark.slow
def test_several_live_runs_are_stopped_and_resumed_together(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.db"
    url = f"sqlite:///{path}"
    monkeypatch.setenv("EMTC_DB", url)
    for seed in (1, 2):
        command = train_command(url, steps=STEPS, seed=seed)
        assert emtc(*command[command.index("train") :], "--detach").returncode == 0
    wait_until(lambda: all(steps > 300 for _, steps in _rows(path).values()), what="step 300")
    ids = list(_rows(path))
    db = open_database(url)
    try:
        assert set(stop_runs(db, ids).changed_ids) == set(ids)
        _wait_for(path, "stopped")
        before = _rows(path)
        assert set(resume_runs(db, ids).changed_ids) == set(ids)
        wait_until(
            lambda: all(steps > before[run][1] for run, (_, steps) in _rows(path).items()),
            what="the runs to go on",
        )
    finally:
        stop_runs(db, ids)
        _wait_for(path, "stopped")
        db.dispose()
    assert len(ids) == 2
    assert breaches(path) == []


def _wait_for(path: Path, wanted: str) -> None:
    wait_until(lambda: {status for status, _ in _rows(path).values()} == {wanted}, what=f"both runs {wanted}")
