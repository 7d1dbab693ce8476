"""Alerts about runs: found from the database, shown in the app, sent by `emtc watch`.

`find_alerts` depends only on its arguments. The key of an alert identifies the event, not the time of the query, so
that two queries give the same key for the same event. `Messenger` sends alerts to the user's addresses, and
`emtc watch` can stop the runs of an alert. The gate is the weight (0 to 1) of the episodic incentive, the reward that
the memory adds. The gate is idle if this weight is always about 1.
"""

import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from emtc_core.errors import ConfigError, EmtcError
from emtc_core.install import get_install_command
from storage.alerts import RunFacts, alert_facts
from storage.engine import Database
from storage.runs.control import stop_run

Kind = Literal["finished", "failed", "lost", "nan", "stagnation", "gate-idle", "no-success", "disk-low"]
STOPPABLE: Final[tuple[Kind, ...]] = ("nan", "stagnation", "gate-idle", "no-success")
"""Kinds of alerts for which `emtc watch` can stop the run, because it may still be trained."""
Severity = Literal["info", "warning", "error"]
SEVERITY: Final[dict[Kind, Severity]] = {
    "finished": "info",
    "failed": "error",
    "lost": "error",
    "nan": "error",
    "stagnation": "warning",
    "gate-idle": "warning",
    "no-success": "warning",
    "disk-low": "error",
}
STAGNATION_EVALUATIONS: Final = 20
"""Number of consecutive evaluations without a better win rate, or the same win rate with a better return."""
_MAX_STAGNANT_WIN_RATE: Final = 0.99
"""A run with at least this win rate has no stagnation alert."""
_MIN_PROGRESS_FOR_IDLE_GATE: Final = 0.25
"""Fraction of the training length before which an idle gate causes no alert."""
_MIN_PROGRESS_FOR_NO_SUCCESS: Final = 0.5
"""Fraction of the training length before which a run without a success causes no alert: the first success is often
late."""
_MIN_STEPS: Final = 10_000
"""Env steps before which an idle gate or a missing success causes no alert: a run this short tests only the setup."""
LOW_DISK_BYTES: Final = 2_000_000_000
_MAX_AGE: Final = timedelta(days=7)
"""Older alerts are not listed."""
NOTIFY_VARIABLE = "EMTC_NOTIFY"
KIND_MEANINGS: Final[dict[Kind, str]] = {
    "finished": "The run has finished.",
    "failed": "The trainer has ended with an error.",
    "lost": "The trainer has ended without an error message.",
    "nan": "A loss or another number is not finite.",
    "stagnation": f"No better result for at least {STAGNATION_EVALUATIONS} evaluations.",
    "gate-idle": "The gate removes no incentive.",
    "no-success": "The run has had no success yet, so the memory pays no incentive.",
    "disk-low": "The disk of the database is almost full.",
}
"""Kind of alert → a sentence with its meaning."""
KIND_LABELS: Final[dict[Kind, str]] = {
    "finished": "finished",
    "failed": "failed",
    "lost": "trainer ended",
    "nan": "loss is not finite",
    "stagnation": "no progress",
    "gate-idle": "gate is idle",
    "no-success": "no success yet",
    "disk-low": "disk almost full",
}
"""Kind of alert → a few words."""


@dataclass(frozen=True)
class Alert:
    """One event of a run or of the machine."""

    kind: Kind
    at: datetime
    message: str
    run_id: str | None = None
    run_name: str = ""
    key: str = ""

    @property
    def severity(self) -> Severity:
        """The severity of the alert's kind."""
        return SEVERITY[self.kind]


def find_alerts(runs: Sequence[RunFacts], *, disk_free: int | None, now: datetime) -> list[Alert]:
    """Find the alerts of the last `_MAX_AGE`, newest first.

    Args:
        runs: Facts about active runs and runs that ended recently.
        disk_free: Free bytes on the disk of the database; None if the database is on a server.
        now: The present time, with a time zone.
    """
    alerts = [alert for run in runs for rule in _RULES for alert in rule(run)]
    if disk_free is not None and disk_free < LOW_DISK_BYTES:
        text = f"{disk_free / 1e9:.1f} GB are free on the disk of the database. Thin runs on Storage, or free space."
        alerts.append(Alert("disk-low", now, text, key=f"disk-low:{now:%Y-%m-%d}"))
    recent = (alert for alert in alerts if now - alert.at <= _MAX_AGE)
    return sorted(recent, key=lambda alert: alert.at, reverse=True)


def list_alerts(db: Database) -> list[Alert]:
    """List the present alerts of a database, newest first."""
    disk_free = shutil.disk_usage(db.path.parent).free if db.path else None
    return find_alerts(alert_facts(db, since=_MAX_AGE), disk_free=disk_free, now=datetime.now(UTC))


def stop_alerted_runs(db: Database, alerts: Iterable[Alert], kinds: Collection[Kind]) -> list[str]:
    """Send a stop command to each run with an alert of these kinds; return one message per run."""
    messages = []
    for run_id in dict.fromkeys(alert.run_id for alert in alerts if alert.kind in kinds and alert.run_id):
        try:
            stop_run(db, run_id)
        except EmtcError as error:
            messages.append(str(error))
        else:
            messages.append(f"Run {run_id} was asked to stop.")
    return messages


class Messenger:
    """Sends alerts with the library apprise to the addresses in EMTC_NOTIFY, separated by spaces.

    Without addresses it sends nothing.
    """

    def __init__(self) -> None:
        """Read the addresses. They may contain secrets and are never shown.

        Raises:
            ConfigError: If apprise is not installed or does not support an address.
        """
        addresses = os.environ.get(NOTIFY_VARIABLE, "").split()
        self._apprise = _make_apprise(addresses) if addresses else None

    def send(self, alerts: Iterable[Alert]) -> bool:
        """Send alerts as one message; return False if the message was not delivered."""
        lines = [describe_alert(alert) for alert in alerts]
        if self._apprise is None or not lines:
            return True
        title = f"EMTC Lab: {len(lines)} alert{'s' if len(lines) > 1 else ''}"
        return bool(self._apprise.notify(title=title, body="\n".join(lines)))


def describe_alert(alert: Alert) -> str:
    """Write an alert as one line."""
    run = f" {alert.run_name} ({alert.run_id})" if alert.run_id else ""
    return f"{alert.kind}{run}: {alert.message}"


def _make_alert(kind: Kind, run: RunFacts, at: datetime, sentence: str, *, event: object = None) -> Alert:
    """Make an alert of a run. Its key contains `event`, or the time of the alert if `event` is None."""
    event_id = int(at.timestamp()) if event is None else event
    return Alert(kind, at, sentence, run.id, run.name, f"{kind}:{run.id}:{event_id}")


def _find_ended(run: RunFacts) -> Iterator[Alert]:
    if run.status == "finished" and run.ended_at:
        win_rate = "" if run.win_rate is None else f" with a last greedy win rate of {100 * run.win_rate:.0f} %"
        yield _make_alert("finished", run, run.ended_at, f"Finished after {run.env_steps:,} steps{win_rate}.")
    if run.status == "failed" and run.ended_at and not _failed_with_nan(run):
        yield _make_alert("failed", run, run.ended_at, f"Failed: {run.error or 'see its log.'}")
    if run.status == "lost" and (at := run.heartbeat_at or run.claimed_at):
        text = "Its trainer has ended without an error message. Open Live to resume the run."
        yield _make_alert("lost", run, at, text)


def _find_nan(run: RunFacts) -> Iterator[Alert]:
    if run.status == "failed" and run.ended_at and _failed_with_nan(run):
        yield _make_alert("nan", run, run.ended_at, run.error or "")
    elif run.nan_metric is not None and (at := run.ended_at or run.heartbeat_at):
        value = f"{run.nan_metric} was not a finite number at step {run.nan_env_step:,}"
        text = f"{value}. Lower train.lr or train.reward_scale."
        yield _make_alert("nan", run, at, text, event=run.nan_env_step)


def _failed_with_nan(run: RunFacts) -> bool:
    """Whether the trainer ended with the error of a loss that is NaN or infinite."""
    return "loss became" in (run.error or "")


def _find_stagnation(run: RunFacts) -> Iterator[Alert]:
    scores = run.scores
    if run.status != "running" or run.heartbeat_at is None or len(scores) <= STAGNATION_EVALUATIONS:
        return
    # The best win rate, then the best return, then the earliest evaluation.
    best = max(range(len(scores)), key=lambda index: (scores[index][1:], -index))
    env_step, win_rate, return_mean = scores[best]
    n_later = len(scores) - 1 - best
    if n_later < STAGNATION_EVALUATIONS or win_rate >= _MAX_STAGNANT_WIN_RATE:
        return
    text = (
        f"No better evaluation since step {env_step:,} (win rate {100 * win_rate:.0f} %, return {return_mean:.2f}): "
        f"{n_later} in a row."
    )
    yield _make_alert("stagnation", run, run.heartbeat_at, text, event=env_step)


def _find_idle_gate(run: RunFacts) -> Iterator[Alert]:
    if run.gate_idle and not run.no_success and run.heartbeat_at and _has_trained(run, _MIN_PROGRESS_FOR_IDLE_GATE):
        yield _make_alert("gate-idle", run, run.heartbeat_at, run.gate_idle, event="once")


def _find_no_success(run: RunFacts) -> Iterator[Alert]:
    if run.no_success and run.heartbeat_at and _has_trained(run, _MIN_PROGRESS_FOR_NO_SUCCESS):
        yield _make_alert("no-success", run, run.heartbeat_at, run.no_success, event="once")


def _has_trained(run: RunFacts, fraction: float) -> bool:
    """Whether a running run has trained for this fraction of its length, and for at least `_MIN_STEPS`."""
    return run.status == "running" and run.env_steps >= max(fraction * run.target_steps, _MIN_STEPS)


_RULES: Final[tuple[Callable[[RunFacts], Iterator[Alert]], ...]] = (
    _find_ended,
    _find_nan,
    _find_stagnation,
    _find_idle_gate,
    _find_no_success,
)


def _make_apprise(addresses: list[str]) -> Any:
    """Make the object of apprise that sends to all addresses."""
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError(
            "needs apprise", key=NOTIFY_VARIABLE, hint=f"Install it with: {get_install_command('alerts')}"
        )
    import apprise  # pyright: ignore[reportMissingImports] - optional

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its warnings contain the addresses
    sender = apprise.Apprise()
    is_added = [sender.add(address) for address in addresses]
    if not all(is_added):
        raise ConfigError("must be addresses that apprise supports, such as json://host", key=NOTIFY_VARIABLE)
    return sender
