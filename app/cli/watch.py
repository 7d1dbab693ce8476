"""`emtc watch`: say, send, and if told so act on what happens to runs."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, printable, say
from app.jobs.alerts import STOPPABLE, Alert, Kind, Messenger, describe_alert, list_alerts, stop_alerted_runs
from emtc_core.errors import StorageError
from storage.engine import check_not_read_only, open_database


def watch(
    once: Annotated[bool, typer.Option("--once", help="List what is known now, and end")] = False,
    every: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Look so often [s]")] = 10.0,
    stop_on: Annotated[str, typer.Option(help="Ask a run to stop on these alerts, as nan,stagnation")] = "",
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Watch runs: print each new alert, and send it to the addresses in EMTC_NOTIFY (needs the extra `alerts`)."""
    kinds = _read_kinds(stop_on)
    if kinds:
        check_not_read_only("stop a run")
    database = open_database(db, read_only=not kinds, create=False)
    messenger = Messenger()
    if once:
        _tell(list_alerts(database), json=json)
        return
    earlier = list_alerts(database)
    known = {alert.key for alert in earlier}
    say(f"Watching {database.safe_url}; {len(known)} earlier alerts are not told again. End with Ctrl+C.")
    for sentence in stop_alerted_runs(database, earlier, kinds):
        say(sentence)
    while True:
        time.sleep(every)
        try:
            new = [alert for alert in list_alerts(database) if alert.key not in known]
        except StorageError as error:
            say(str(error))
            continue
        known |= {alert.key for alert in new}
        _tell(new, json=json)
        for sentence in stop_alerted_runs(database, new, kinds):
            say(sentence)
        if not messenger.send(new):
            say("The alerts could not be sent. Look at the address in EMTC_NOTIFY and at the network.")


def _tell(alerts: list[Alert], *, json: bool) -> None:
    for alert in alerts:
        if json:
            print_json(asdict(alert) | {"severity": alert.severity})
        else:
            typer.echo(f"{alert.at:%Y-%m-%d %H:%M:%S} {alert.severity} {printable(describe_alert(alert))}")


def _read_kinds(text: str) -> list[Kind]:
    asked = [part.strip() for part in text.split(",") if part.strip()]
    kinds: list[Kind] = [kind for kind in STOPPABLE if kind in asked]
    if len(kinds) != len(set(asked)):
        raise typer.BadParameter(f"--stop-on takes {', '.join(STOPPABLE)}, got {text!r}.")
    return kinds
