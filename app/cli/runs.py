"""`emtc runs | show | stop | pause | delete`: the same paths that the pages use."""

import shutil
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, print_table, say
from emtc_core.control import Command
from emtc_core.errors import RunStateError
from storage.control import send_command
from storage.engine import open_database, run_folder
from storage.queries.gate_state import GateState, gate_state
from storage.queries.runs import get_run, list_runs
from storage.runs import delete_run

COLUMNS = ("id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate", "device")


def runs(db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """List runs with their live status, newest first."""
    frame = list_runs(open_database(db, read_only=True))
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    if json:
        print_json(rows)
        return
    print_table(
        [{column: row[column] for column in COLUMNS} for row in rows],
        title="Runs",
        empty="No runs yet. Start one with: emtc train --set preset=demo",
    )


def show(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Show one run: status, progress, configuration, versions."""
    database = open_database(db, read_only=True)
    row = get_run(database, run)
    facts: dict[str, Any] = {**asdict(row), "folder": str(run_folder(database, row.id))}
    facts["gate"] = _gate_facts(gate_state(database, row.id))
    facts["steps_note"] = (
        f"Transitions are numbered 1 to {row.env_steps} without gaps. The run aims at {row.target_steps} "
        "and ends with the episode that reaches it."
    )
    if json:
        print_json(facts)
        return
    config = facts.pop("config")
    print_table([{"field": k, "value": v} for k, v in facts.items()], title=f"Run {row.id}", empty="")
    print_table([{"section": k, "values": v} for k, v in config.items()], title="Configuration", empty="")


def _gate_facts(state: GateState | None) -> dict[str, Any] | None:
    """Lay the gate's state out under the short names of its metrics; None for a run without a gate."""
    if state is None:
        return None
    values = {name.partition("/")[2]: value for name, value in state.values.items()}
    return {"state": state.state, "reason": state.sentence, **values}


def stop(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Ask a run to stop gracefully; it leaves a checkpoint behind."""
    _send(db, run, "stop", allowed=("running", "paused", "queued"))


def pause(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Ask a run to pause between two of its environment steps."""
    _send(db, run, "pause", allowed=("running",))


def delete(
    run: RunPrefix,
    db: DatabaseUrl = DEFAULT_DATABASE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; a script is never asked")] = False,
) -> None:
    """Delete a run with everything that it recorded, and its folder."""
    database = open_database(db)
    row = get_run(database, run)
    if row.live_status in ("running", "paused"):
        raise RunStateError(f"Run {row.id} is {row.live_status}. Stop it first: emtc stop {row.id}")
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete run {row.id} with {row.env_steps} recorded transitions?", abort=True)
    delete_run(database, row.id)
    shutil.rmtree(run_folder(database, row.id), ignore_errors=True)
    say(f"Deleted run {row.id}.")


def _send(db: str, prefix: str, command: Command, *, allowed: tuple[str, ...]) -> None:
    database = open_database(db)
    row = get_run(database, prefix)
    if row.live_status not in allowed:
        raise RunStateError(f"Run {row.id} is {row.live_status}, so it cannot obey {command}. See: emtc show {row.id}")
    send_command(database, row.id, command)
    say(f"Asked run {row.id} to {command}.")
