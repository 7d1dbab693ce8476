"""What somebody should know about runs: judged from the database, shown in the app, sent by `emtc watch`.

`find_alerts` is a pure function from what the database says of its runs to alerts. An alert names its event, not the
moment that somebody looked: the same event has the same key for every reader. Others send the alerts of a database
now to where the user wants them, and ask for the stop that one may call for.
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
from emtc_core.install import how_to_install
from storage.alerts import RunFacts, alert_facts
from storage.engine import Database
from storage.runs.control import send_command

Kind = Literal["finished", "failed", "lost", "nan", "stagnation", "gate-idle", "no-success", "disk-low"]
STOPPABLE: Final[tuple[Kind, ...]] = ("nan", "stagnation", "gate-idle", "no-success")
"""Alerts of runs that still train."""
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
STAGNANT_AFTER: Final = 20
"""Evaluations in a row without a better win rate, or a better return at the same one."""
NEARLY_ALL: Final = 0.99
"""A team that wins this share has nothing left to gain."""
GATE_AFTER: Final = 0.25
"""Of the steps asked for: before it, an idle gate says little, and so does an incentive without a success."""
SCARCE_BYTES: Final = 2_000_000_000
REMEMBERED: Final = timedelta(days=7)

NOTIFY_VARIABLE = "EMTC_NOTIFY"


@dataclass(frozen=True)
class Alert:
    """One thing that happened."""

    kind: Kind
    at: datetime
    sentence: str
    run_id: str | None = None
    run_name: str = ""
    key: str = ""

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return SEVERITY[self.kind]


def find_alerts(runs: Sequence[RunFacts], *, disk_free: int | None, now: datetime) -> list[Alert]:
    """What happened in the last days, newest first.

    Args:
        runs: What the database says of the runs at work and of those that ended lately.
        disk_free: Bytes on the disk of the database, None where it is elsewhere.
        now: An aware time.
    """
    found = [alert for run in runs for rule in _RULES for alert in rule(run)]
    if disk_free is not None and disk_free < SCARCE_BYTES:
        told = f"{disk_free / 1e9:.1f} GB are free on the disk of the database. Thin runs on Storage, or make room."
        found.append(Alert("disk-low", now, told, key=f"disk-low:{now:%Y-%m-%d}"))
    return sorted((alert for alert in found if now - alert.at <= REMEMBERED), key=lambda alert: alert.at, reverse=True)


def _alert(kind: Kind, run: RunFacts, at: datetime, sentence: str, *, event: object = None) -> Alert:
    named = int(at.timestamp()) if event is None else event
    return Alert(kind, at, sentence, run.id, run.name, f"{kind}:{run.id}:{named}")


def _ended(run: RunFacts) -> Iterator[Alert]:
    if run.status == "finished" and run.ended_at:
        won = "" if run.win_rate is None else f" with a last win rate of {100 * run.win_rate:.0f} %"
        yield _alert("finished", run, run.ended_at, f"Finished after {run.env_steps:,} steps{won}.")
    if run.status == "failed" and run.ended_at and not _says_nan(run):
        yield _alert("failed", run, run.ended_at, f"Failed: {run.error or 'its log may say why.'}")
    if run.status == "lost" and (seen := run.heartbeat_at or run.claimed_at):
        told = "Its trainer is gone without a word. Open Live to see what it can go on from."
        yield _alert("lost", run, seen, told)


def _not_a_number(run: RunFacts) -> Iterator[Alert]:
    if run.status == "failed" and run.ended_at and _says_nan(run):
        yield _alert("nan", run, run.ended_at, run.error or "")
    elif run.nan_metric is not None and (at := run.ended_at or run.heartbeat_at):
        told = f"{run.nan_metric} was no number at step {run.nan_env_step:,}. Lower train.lr or train.reward_scale."
        yield _alert("nan", run, at, told, event=run.nan_env_step)


def _says_nan(run: RunFacts) -> bool:
    return "loss became" in (run.error or "")


def _stagnation(run: RunFacts) -> Iterator[Alert]:
    scores = run.scores
    if run.status != "running" or run.heartbeat_at is None or len(scores) <= STAGNANT_AFTER:
        return
    best = max(range(len(scores)), key=lambda place: (scores[place][1:], -place))
    env_step, win_rate, return_mean = scores[best]
    if len(scores) - 1 - best < STAGNANT_AFTER or win_rate >= NEARLY_ALL:
        return
    told = (
        f"No better evaluation since step {env_step:,} (win rate {100 * win_rate:.0f} %, return {return_mean:.2f}): "
        f"{len(scores) - 1 - best} in a row."
    )
    yield _alert("stagnation", run, run.heartbeat_at, told, event=env_step)


def _idle_gate(run: RunFacts) -> Iterator[Alert]:
    if run.gate_idle and not run.no_success and run.heartbeat_at and _is_due(run):
        yield _alert("gate-idle", run, run.heartbeat_at, run.gate_idle, event="once")


def _no_success(run: RunFacts) -> Iterator[Alert]:
    if run.no_success and run.heartbeat_at and _is_due(run):
        yield _alert("no-success", run, run.heartbeat_at, run.no_success, event="once")


def _is_due(run: RunFacts) -> bool:
    return run.status == "running" and run.env_steps >= GATE_AFTER * run.target_steps


_RULES: Final[tuple[Callable[[RunFacts], Iterator[Alert]], ...]] = (
    *(_ended, _not_a_number, _stagnation),
    *(_idle_gate, _no_success),
)


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

    def send(self, alerts: Iterable[Alert]) -> bool:
        """Send alerts as one message; tell whether it arrived."""
        lines = [describe_alert(alert) for alert in alerts]
        if self._target is None or not lines:
            return True
        return bool(
            self._target.notify(
                title=f"EMTC Lab: {len(lines)} alert{'s' if len(lines) > 1 else ''}", body="\n".join(lines)
            )
        )


def _make_target(addresses: list[str]) -> Any:
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError("needs apprise", key=NOTIFY_VARIABLE, hint=f"Install it with: {how_to_install('alerts')}")
    import apprise  # pyright: ignore[reportMissingImports] - optional

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its warnings quote addresses
    target = apprise.Apprise()
    added = [target.add(address) for address in addresses]
    if not all(added):
        raise ConfigError("must be addresses of a kind that apprise knows, such as json://host", key=NOTIFY_VARIABLE)
    return target


def describe_alert(alert: Alert) -> str:
    """Write an alert as one line."""
    whose = f" {alert.run_name} ({alert.run_id})" if alert.run_id else ""
    return f"{alert.kind}{whose}: {alert.sentence}"
