"""`emtc watch`: print and send alerts about runs, and optionally stop runs.

An alert reports a problem of one run, for example a value that is not a number, or a win rate that stagnates.
"""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl
from app.cli.output import print_json, print_message, print_text
from app.jobs.alerts import STOPPABLE, Alert, Kind, Messenger, describe_alert, list_alerts, stop_alerted_runs
from emtc_core.errors import StorageError
from storage.engine import check_not_read_only, open_database


def watch(
    once: Annotated[bool, typer.Option("--once", help="List the present alerts and exit")] = False,
    every: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Time between two checks [s]")] = 10.0,
    stop_on: Annotated[str, typer.Option(help="Stop a run on these alerts, for example nan,stagnation")] = "",
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Watch runs: print each new alert, and send it to the addresses in EMTC_NOTIFY (needs the extra `alerts`)."""
    stopping_kinds = _parse_kinds(stop_on)
    if stopping_kinds:
        check_not_read_only("stop a run")
    database = open_database(db, read_only=not stopping_kinds, create=False)
    messenger = Messenger()
    if once:
        _print_alerts(list_alerts(database), json=json)
        return
    earlier_alerts = list_alerts(database)
    reported_keys = {alert.key for alert in earlier_alerts}
    print_message(
        f"Watching {database.safe_url}. {len(reported_keys)} earlier alerts are not repeated. Stop with Ctrl+C."
    )
    for message in stop_alerted_runs(database, earlier_alerts, stopping_kinds):
        print_message(message)
    while True:
        time.sleep(every)
        try:
            new_alerts = [alert for alert in list_alerts(database) if alert.key not in reported_keys]
        except StorageError as error:
            print_message(str(error))
            continue
        reported_keys |= {alert.key for alert in new_alerts}
        _print_alerts(new_alerts, json=json)
        for message in stop_alerted_runs(database, new_alerts, stopping_kinds):
            print_message(message)
        if not messenger.send(new_alerts):
            print_message("The alerts could not be sent. Check the address in EMTC_NOTIFY and the network.")


def _print_alerts(alerts: list[Alert], *, json: bool) -> None:
    for alert in alerts:
        if json:
            print_json(asdict(alert) | {"severity": alert.severity})
        else:
            print_text(f"{alert.at:%Y-%m-%d %H:%M:%S} {alert.severity} {describe_alert(alert)}\n")


def _parse_kinds(text: str) -> list[Kind]:
    """Parse the value of `--stop-on`.

    Raises:
        BadParameter: If it contains another name than those of alerts that can stop a run.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    kinds: list[Kind] = [kind for kind in STOPPABLE if kind in names]
    if len(kinds) != len(set(names)):
        raise typer.BadParameter(f"--stop-on must be a list of {', '.join(STOPPABLE)}, got {text!r}.")
    return kinds
