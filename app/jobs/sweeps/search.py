"""A search: Optuna asks for trials, the same trainers as of any sweep train them, and what is hopeless ends early.

Nothing is held here that the two databases do not hold: a trial and its run know each other by the run's key, so that a
search which is killed between any two steps goes on without a trial twice or one lost. A trial of which Optuna says
that it runs is looked up: without a run it gets one, with a run that has ended it is told. A run that somebody stopped
may be resumed while the search lasts; when it ends, its trial has failed.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from app.analysis.aggregates import Curve
from app.analysis.provenance import library_versions
from app.analysis.quantities import find_quantity
from app.analysis.series import read_seeds
from app.jobs.sweeps.control import plan_of
from app.jobs.sweeps.plan import Plan, make_trial, trial_key
from app.jobs.sweeps.scheduler import attached, start_all, tend
from app.jobs.sweeps.study import RUN, import_optuna, make_pruner, make_sampler, open_study, suggest
from app.jobs.sweeps.worker import Starter
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.runs.control import send_command
from storage.runs.labels import tag_runs
from storage.runs.rows import PRUNED, RunRow, shown_status
from storage.runs.sweeps import PlannedRun, Sweep, get_sweep, queue_run, sweep_runs

_OPEN = ("queued", "running", "paused", "lost")


class Search:
    """One study and the runs of its trials."""

    def __init__(self, db: Database, plan: Plan) -> None:
        """Open the study of a plan.

        Raises:
            ConfigError: If Optuna is missing, or has no place for its study.
        """
        assert plan.file.optuna is not None
        self._db, self._plan, self._asked = db, plan, plan.file.optuna
        self._quantity = find_quantity(self._asked.metric)
        config = plan.runs[0].config
        evaluated = self._quantity.is_evaluation or self._asked.metric.startswith("eval/")
        self._interval = max(1, config.eval.interval if evaluated else config.record.metrics_interval)
        optuna = import_optuna()
        self._running, self._states = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState
        self._make_trial: Callable[[Any, int], Any] = optuna.trial.Trial
        self._study = open_study(db, plan.id, self._asked)
        self._study.pruner = make_pruner(self._asked, interval=self._interval, steps=config.train.t_max)

    def step(self, jobs: int, *, is_last: bool = False) -> None:
        """Tell what has ended, prune what is hopeless, and ask for as many trials as there are free places.

        Args:
            jobs: Trials at once.
            is_last: The search is over: a run that somebody stopped has failed with that.

        Raises:
            StorageError: If one of the two databases does not answer just now.
        """
        try:
            self._step(jobs, is_last)
        except import_optuna().exceptions.StorageInternalError as error:
            raise StorageError(f"Optuna's storage does not answer: {error}") from error

    def _step(self, jobs: int, is_last: bool) -> None:
        runs = {str(row.launch_token): row for row in sweep_runs(self._db, self._plan.id)}
        trials = self._study.get_trials(deepcopy=False)
        places = jobs
        for trial in trials:
            if trial.state != self._running:
                continue
            row = runs.get(trial_key(self._plan.id, trial.number))
            if row is None:
                places -= self._begin_or_forget(trial)
            elif not self._tell(trial, row, is_last):
                places -= row.live_status in _OPEN
        for number in range(len(trials), min(self._asked.trials, len(trials) + max(0, places))):
            self._study.sampler = make_sampler(self._asked, number)
            self._begin(self._study.ask())

    def _begin_or_forget(self, trial: Any) -> bool:
        """Give a trial its run where it was interrupted before that; one whose run was deleted has failed."""
        if RUN in trial.user_attrs:
            self._study.tell(trial.number, state=self._states.FAIL, skip_if_finished=True)
            return False
        self._study.sampler = make_sampler(self._asked, trial.number)
        return self._begin(self._make_trial(self._study, trial._trial_id))

    def _begin(self, trial: Any) -> bool:
        """Queue the run of a trial; False where the sweep was stopped meanwhile."""
        run = make_trial(self._plan, trial.number, suggest(trial, self._asked.space))
        planned = PlannedRun(run.key, run.name, run.config.model_dump(mode="json"), run.config.train.t_max)
        run_id = queue_run(self._db, self._plan.id, planned, versions=library_versions())
        if run_id is not None:
            trial.set_user_attr(RUN, run_id)
        return run_id is not None

    def _tell(self, trial: Any, row: RunRow, is_last: bool) -> bool:
        """Report a run's new values; True where its trial is over with that."""
        if RUN not in trial.user_attrs:
            self._make_trial(self._study, trial._trial_id).set_user_attr(RUN, row.id)
        values = self._values(row)
        if shown_status(row.live_status, row.tags) == PRUNED:
            return self._end(trial, values, self._states.PRUNED)
        if row.live_status == "failed" or (row.live_status == "stopped" and is_last):
            return self._end(trial, values, self._states.FAIL)
        if row.live_status == "finished":
            done = self._states.COMPLETE if values else self._states.FAIL
            return self._end(trial, values, done)
        if PRUNED in row.tags:  # asked before; its trainer has still to obey
            self._ask_to_stop(row)
        elif row.live_status == "running":
            self._prune_if_hopeless(trial, row, values)
        return False

    def _end(self, trial: Any, values: Sequence[tuple[int, float]], state: Any) -> bool:
        self._report(trial, values)
        told = values[-1][1] if state == self._states.COMPLETE else None  # of a pruned one Optuna takes the last
        self._study.tell(trial.number, told, state=state, skip_if_finished=True)
        return True

    def _values(self, row: RunRow) -> list[tuple[int, float]]:
        """The values of what counts, at env steps that all trials share: multiples of the interval."""
        curve: Curve = read_seeds(self._db, [row], self._quantity)[0].curve
        points: dict[int, float] = {}
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            points[max(1, round(step / self._interval)) * self._interval] = value
        return sorted(points.items())

    def _report(self, trial: Any, values: Sequence[tuple[int, float]]) -> Any:
        live = self._make_trial(self._study, trial._trial_id)
        for step, value in values:
            if step not in trial.intermediate_values:
                live.report(value, step)
        return live

    def _prune_if_hopeless(self, trial: Any, row: RunRow, values: Sequence[tuple[int, float]]) -> None:
        """Ask a run to stop if the pruner says so; the tag comes first, so that it survives whatever happens next."""
        if not values or values[-1][0] in trial.intermediate_values:
            return
        live = self._report(trial, values)
        if live.should_prune():
            tag_runs(self._db, [row.id], add=[PRUNED])
            self._ask_to_stop(row)

    def _ask_to_stop(self, row: RunRow) -> None:
        since = row.claimed_at or row.started_at  # a stop of an earlier trainer is over
        asked = row.stop_asked_at is not None and since is not None and row.stop_asked_at >= since
        if not asked and row.live_status in ("running", "paused"):
            with suppress(RunStateError):  # it has ended meanwhile
                send_command(self._db, row.id, "stop")


def run_search(
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    trains: bool = True,
    on_progress: Callable[[Sweep], None] = lambda sweep: None,
) -> Sweep:
    """Search until every trial has ended, or the sweep is stopped.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Trials at once.
        trains: Train them here; otherwise `emtc worker` does, on any machine.
        on_progress: Is given the sweep now and then.

    Returns:
        The sweep at its end.

    Raises:
        RunStateError: If another process of this machine searches already.
        ConfigError: If Optuna is missing.
    """
    if get_sweep(db, sweep_id).scheduler_here not in (None, os.getpid()):
        raise RunStateError(
            f"Sweep {sweep_id} is searched by another process already. Watch it with: emtc sweep --list"
        )
    search, starter = Search(db, plan_of(get_sweep(db, sweep_id))), Starter(db)
    with attached(db, sweep_id, jobs) as me, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna, about what it calls experimental

        def fill() -> None:
            if get_sweep(db, sweep_id).status == "active":
                search.step(jobs)
            if trains:
                start_all(db, sweep_id, me, jobs, starter)

        ended = tend(db, sweep_id, fill, on_progress=on_progress)
        search.step(0, is_last=ended.status == "active")  # what ended last is told, too; a stopped search goes on
    return ended
