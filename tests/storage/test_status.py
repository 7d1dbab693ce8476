"""The status of a run follows from its row and the time, and one table contains the actions that it allows."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from emtc_core.errors import RunStateError
from storage.runs.status import LOST_AFTER_S, START_LIMIT_S, allows, check_allowed, status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_row(stored: str, *, token: str | None = "a", heartbeat_s: float | None = 1.0, **values: Any) -> Any:
    """A run that was claimed a minute ago, with a heartbeat so many seconds ago."""
    heartbeat_at = None if heartbeat_s is None else NOW - timedelta(seconds=heartbeat_s)
    columns = {"claimed_at": NOW - timedelta(minutes=1), "stop_asked_at": None, "heartbeat_at": heartbeat_at}
    return SimpleNamespace(status=stored, owner_token=token, **(columns | values))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (make_row("queued", token=None), "queued"),
        (make_row("queued"), "starting"),
        (make_row("queued", claimed_at=NOW - timedelta(seconds=START_LIMIT_S + 1)), "lost"),
        (make_row("queued", stop_asked_at=NOW), "stopping"),
        (make_row("running"), "running"),
        (make_row("paused"), "paused"),
        (make_row("running", heartbeat_s=LOST_AFTER_S - 0.1), "running"),
        (make_row("running", heartbeat_s=LOST_AFTER_S + 0.1), "lost"),
        (make_row("paused", heartbeat_s=LOST_AFTER_S + 0.1), "lost"),
        (make_row("running", heartbeat_s=None), "lost"),
        (make_row("running", stop_asked_at=NOW), "stopping"),
        (make_row("running", stop_asked_at=NOW - timedelta(minutes=2)), "running"),  # it was for an earlier owner
        (make_row("running", stop_asked_at=NOW, heartbeat_s=60), "lost"),
        *((make_row(stored, heartbeat_s=60), stored) for stored in ("finished", "stopped", "failed")),
    ],
)
def test_the_status_follows_from_the_row_and_the_time(row: Any, expected: str) -> None:
    assert status(row, NOW) == expected


def test_a_run_without_a_trainer_can_be_deleted_and_started() -> None:
    for name in ("queued", "stopped", "failed", "lost"):
        assert allows(name, "delete")
        assert allows(name, "start") or allows(name, "resume")


def test_an_action_that_is_not_allowed_names_the_statuses_that_allow_it() -> None:
    with pytest.raises(RunStateError, match="abc") as error:
        check_allowed("abc", "running", "resume")
    assert "only a run that is stopped, failed or lost can be resumed" in str(error.value)
