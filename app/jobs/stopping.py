"""How a trainer that was told to stop leaves its run: stopped, or given back to the queue."""

from app.jobs.signals import StopSignals
from storage.engine import Database
from storage.runs.changes import finish_run
from storage.runs.claims import give_back


def leave_run(db: Database, run_id: str, token: str | None, signals: StopSignals) -> None:
    """Write that a run stopped, or give it back if the machine wanted its trainer to go.

    Raises:
        RunStateError: If the run belongs to somebody else by now, or has ended.
    """
    if signals.gives_back and token is not None:
        give_back(db, run_id, token=token)
    else:
        finish_run(db, run_id, "stopped", token=token)
