"""`emtc runs | show | stop | pause | delete`: the same paths that the pages use."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, print_table, say
from app.runs.resume import look
from storage import lifecycle
from storage.control import ask, ask_stop
from storage.engine import open_database, run_folder
from storage.lifecycle import Event
from storage.queries.gate_state import GateState, gate_state
from storage.queries.runs import get_run, list_resumes, list_runs
from storage.removal import list_belongings, remove_run
from storage.runs import state_now

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
    del facts["owner_token"]
    facts["gate"] = _gate_facts(gate_state(database, row.id))
    standing = look(database, row)
    facts["checkpoints"] = [asdict(each) for each in standing.checkpoints]
    facts["resumes"] = list_resumes(database, row.id).astype(object).to_dict("records")
    facts["superseded_steps"] = sum(each["reached_env_step"] - each["env_step"] for each in facts["resumes"])
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
    """Stop a run, which leaves a checkpoint; exit code 1 says that nobody has heard."""
    say(ask_stop(open_database(db, create=False), run))


def pause(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Pause a run between two of its environment steps; exit code 1 says that nobody has heard."""
    database = open_database(db, create=False)
    row = get_run(database, run)
    lifecycle.check(row.id, row.state, Event.PAUSE)
    say(ask(database, row.id, "pause"))


def delete(
    run: RunPrefix,
    db: DatabaseUrl = DEFAULT_DATABASE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; a script is never asked")] = False,
) -> None:
    """Delete a run with everything that it recorded, and its folder."""
    database = open_database(db, create=False)
    row = get_run(database, run)
    lifecycle.check(row.id, state_now(row), Event.DELETE)
    belongings = list_belongings(database, row.id)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete run {row.id} for good: {belongings}?", abort=True)
    remove_run(database, row.id)
    say(f"Deleted run {row.id}: {belongings}.")
