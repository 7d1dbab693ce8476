"""The alerts of a database now, sent to where the user wants them, and the stop that one may ask for."""

import importlib.util
import logging
import os
import shutil
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from app.jobs.alerts.rules import REMEMBERED, Alert, Kind, find_alerts
from emtc_core.errors import ConfigError, EmtcError
from emtc_core.install import how_to_install
from storage.alerts import alert_facts
from storage.engine import Database
from storage.runs.control import send_command

NOTIFY_VARIABLE = "EMTC_NOTIFY"


def list_alerts(db: Database) -> list[Alert]:
    """Judge the runs of a database as they are now, newest alert first."""
    free = shutil.disk_usage(db.path.parent).free if db.path else None
    return find_alerts(alert_facts(db, since=REMEMBERED), disk_free=free, now=datetime.now(UTC))


def stop_what_is_due(db: Database, alerts: Iterable[Alert], kinds: Collection[Kind]) -> list[str]:
    """Ask the trainers of alerts of these kinds to stop; say what was asked of whom."""
    said = []
    for run_id in dict.fromkeys(alert.run_id for alert in alerts if alert.kind in kinds and alert.run_id):
        try:
            send_command(db, run_id, "stop")
        except EmtcError as error:
            said.append(str(error))
        else:
            said.append(f"Run {run_id} was asked to stop.")
    return said


class Messenger:
    """Sends alerts to the addresses in EMTC_NOTIFY, separated by spaces; without any it sends nothing."""

    def __init__(self) -> None:
        """Read the addresses, which may hold secrets and are never shown.

        Raises:
            ConfigError: If there is an address and nothing that could send, or none can be used.
        """
        addresses = os.environ.get(NOTIFY_VARIABLE, "").split()
        self._target = _make_target(addresses) if addresses else None

    @property
    def is_set(self) -> bool:
        """Whether alerts are sent anywhere."""
        return self._target is not None

    def send(self, alerts: Iterable[Alert]) -> bool:
        """Send alerts as one message; tell whether it arrived."""
        lines = [describe(alert) for alert in alerts]
        if self._target is None or not lines:
            return True
        return bool(
            self._target.notify(
                title=f"EMTC Lab: {len(lines)} alert{'s' if len(lines) > 1 else ''}", body="\n".join(lines)
            )
        )


def _make_target(addresses: list[str]) -> Any:
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError(f"{NOTIFY_VARIABLE} needs apprise. Install it with: {how_to_install('alerts')}")
    import apprise  # pyright: ignore[reportMissingImports] - optional

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its warnings quote addresses
    target = apprise.Apprise()
    added = [target.add(address) for address in addresses]
    if not all(added):
        raise ConfigError(f"{NOTIFY_VARIABLE} holds an address that apprise does not know. Write it as json://host")
    return target


def describe(alert: Alert) -> str:
    """Write an alert as one line."""
    whose = f" {alert.run_name} ({alert.run_id})" if alert.run_id else ""
    return f"{alert.kind}{whose}: {alert.sentence}"
