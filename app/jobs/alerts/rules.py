"""What somebody should know: a pure function from what the database says of its runs to alerts.

An alert names its event, not the moment that somebody looked: the same event has the same key for every reader.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from storage.alerts import RunFacts

Kind = Literal["finished", "failed", "lost", "nan", "stagnation", "gate-idle", "no-success", "disk-low"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
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
STANDING_STILL: Final = 20
"""Evaluations in a row without a better win rate, or a better return at the same one."""
NEARLY_ALL: Final = 0.99
"""A team that wins this share has nothing left to gain."""
GATE_AFTER: Final = 0.25
"""Of the steps asked for: before it, an idle gate says little, and so does an incentive without a success."""
SCARCE_BYTES: Final = 2_000_000_000
REMEMBERED: Final = timedelta(days=7)


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


def _standing_still(run: RunFacts) -> Iterator[Alert]:
    scores = run.scores
    if run.status != "running" or run.heartbeat_at is None or len(scores) <= STANDING_STILL:
        return
    best = max(range(len(scores)), key=lambda place: (scores[place][1:], -place))
    env_step, win_rate, return_mean = scores[best]
    if len(scores) - 1 - best < STANDING_STILL or win_rate >= NEARLY_ALL:
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
    *(_ended, _not_a_number, _standing_still),
    *(_idle_gate, _no_success),
)
