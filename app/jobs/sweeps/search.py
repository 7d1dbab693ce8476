"""A search: Optuna chooses the settings of each trial, and poor runs end early. The worker loop trains the runs.

A trial is Optuna's record of one run. All state is in the database of the runs and in Optuna's storage. The key of a
run (`trial_key`) contains the number of its trial, and the trial stores the id of its run. So a search that was killed
at any moment continues without a lost or repeated trial:

    a running trial without a run          gets a run
    a running trial whose run has ended    is reported to Optuna
    a running trial whose run was stopped  stays open while the search runs, because the user may resume the run;
                                           at the end of the search it is reported as failed
"""

import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from app.analysis.curves import read_quantity, read_tables
from app.analysis.provenance import library_versions
from app.analysis.quantities import find_quantity
from app.jobs.sweeps.control import remake_plan
from app.jobs.sweeps.plan import Plan, make_trial, trial_key
from app.jobs.sweeps.study import RUN, import_optuna, make_pruner, make_sampler, open_study, suggest
from emtc_core.errors import RunStateError, StorageError
from storage.engine import Database
from storage.retry import retry_transient
from storage.runs.claims import make_token
from storage.runs.control import send_command
from storage.runs.labels import tag_runs
from storage.runs.rows import PRUNED, RunRow, shown_status
from storage.runs.status import HEARTBEAT_S, LOST_AFTER_S
from storage.runs.sweeps import (
    PlannedRun,
    claim_search,
    get_sweep,
    queue_run,
    release_search,
    sweep_runs,
    write_search_heartbeat,
)

_ACTIVE_STATUSES = ("queued", "starting", "running", "paused", "stopping", "lost")


class Search:
    """One Optuna study and the runs of its trials. Only the process with the search's token may change them."""

    def __init__(self, db: Database, plan: Plan, *, jobs: int, token: str) -> None:
        """Open the study of a plan.

        Args:
            db: An open database.
            plan: Plan of the search.
            jobs: Number of trials at once.
            token: Token by which this process owns the search.

        Raises:
            ConfigError: If Optuna is missing or no storage is set for its study.
        """
        assert plan.file.optuna is not None
        self._db = db
        self._plan = plan
        self._options = plan.file.optuna
        self._jobs = jobs
        self._token = token
        self._heartbeat_at = time.monotonic()  # the claim of the search wrote a heartbeat
        self._quantity = find_quantity(self._options.metric)
        config = plan.runs[0].config
        is_evaluation = self._quantity.is_evaluation or self._options.metric.startswith("eval/")
        self._interval = max(1, config.eval.interval if is_evaluation else config.record.metrics_interval)
        optuna = import_optuna()
        self._states = optuna.trial.TrialState
        self._make_trial: Callable[[Any, int], Any] = optuna.trial.Trial
        self._study = open_study(db, plan.id, self._options)
        self._study.pruner = make_pruner(self._options, interval=self._interval, steps=config.train.t_max)

    def update(self) -> None:
        """Report ended runs to Optuna, prune poor runs, and queue as many trials as there are free slots.

        Raises:
            RunStateError: If another process has taken over the search.
            StorageError: If one of the two databases does not answer at the moment.
        """
        if time.monotonic() - self._heartbeat_at >= HEARTBEAT_S:
            if not write_search_heartbeat(self._db, self._plan.id, self._token):
                raise _make_owner_error(self._plan.id)
            self._heartbeat_at = time.monotonic()
        if get_sweep(self._db, self._plan.id).status == "active":
            self._report_and_queue(self._jobs)

    def finish(self) -> None:
        """Report the runs that ended last. If the search was stopped, the trials of stopped runs stay open.

        Raises:
            StorageError: If one of the two databases does not answer.
        """
        is_complete = get_sweep(self._db, self._plan.id).status == "active"  # not stopped
        self._report_and_queue(0, is_last=is_complete)

    def _report_and_queue(self, jobs: int, *, is_last: bool = False) -> None:
        """Report ended runs and queue trials for the free slots.

        Args:
            jobs: Number of trials at once; 0 queues none.
            is_last: The search is complete, so stopped runs are reported as failed.

        Raises:
            StorageError: If Optuna's storage does not answer.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna warns about experimental features
                self._update_trials(jobs, is_last)
        except import_optuna().exceptions.StorageInternalError as error:
            raise StorageError(f"Optuna's storage does not answer: {error}") from error

    def _update_trials(self, jobs: int, is_last: bool) -> None:
        runs = {str(row.launch_token): row for row in sweep_runs(self._db, self._plan.id)}
        trials = self._study.get_trials(deepcopy=False)
        n_active = 0
        for trial in trials:
            if trial.state != self._states.RUNNING:
                continue
            row = runs.get(trial_key(self._plan.id, trial.number))
            if row is None:
                is_active = self._queue_missing_run(trial)
            else:
                has_ended = self._report_run(trial, row, is_last)
                is_active = not has_ended and row.live_status in _ACTIVE_STATUSES
            if is_active:
                n_active += 1
        n_free = max(0, jobs - n_active)
        n_after = min(self._options.trials, len(trials) + n_free)
        for number in range(len(trials), n_after):
            self._study.sampler = make_sampler(self._options, number)
            self._queue(self._study.ask())

    def _queue_missing_run(self, trial: Any) -> bool:
        """Queue the run of a trial that has none, because the search was killed. If its run was deleted, it has failed.

        Returns:
            Whether a run was queued.
        """
        if RUN in trial.user_attrs:
            self._study.tell(trial.number, state=self._states.FAIL, skip_if_finished=True)
            return False
        self._study.sampler = make_sampler(self._options, trial.number)
        return self._queue(self._make_trial(self._study, trial._trial_id))

    def _queue(self, trial: Any) -> bool:
        """Queue the run of a trial; return False if the sweep is stopped."""
        run = make_trial(self._plan, trial.number, suggest(trial, self._options.space))
        planned = PlannedRun(run.key, run.name, run.config.model_dump(mode="json"), run.config.train.t_max)
        run_id = queue_run(self._db, self._plan.id, planned, versions=library_versions())
        if run_id is not None:
            trial.set_user_attr(RUN, run_id)
        return run_id is not None

    def _report_run(self, trial: Any, row: RunRow, is_last: bool) -> bool:
        """Report the new values of a run to Optuna; return True if the trial has ended."""
        if RUN not in trial.user_attrs:
            self._make_trial(self._study, trial._trial_id).set_user_attr(RUN, row.id)
        values = self._read_values(row)
        if shown_status(row.live_status, row.tags) == PRUNED:
            self._end(trial, values, self._states.PRUNED)
            return True
        if row.live_status == "failed" or (row.live_status == "stopped" and is_last):
            self._end(trial, values, self._states.FAIL)
            return True
        if row.live_status == "finished":
            self._end(trial, values, self._states.COMPLETE if values else self._states.FAIL)
            return True
        if PRUNED in row.tags:  # a stop was requested, and the trainer has not stopped yet
            self._request_stop(row)
        elif row.live_status == "running":
            self._prune_if_poor(trial, row, values)
        return False

    def _end(self, trial: Any, values: Sequence[tuple[int, float]], state: Any) -> None:
        """Report the values and the final state of a trial to Optuna."""
        self._report_values(trial, values)
        # For a pruned trial, Optuna itself uses the last reported value.
        final_value = values[-1][1] if state == self._states.COMPLETE else None
        self._study.tell(trial.number, final_value, state=state, skip_if_finished=True)

    def _read_values(self, row: RunRow) -> list[tuple[int, float]]:
        """Read the env steps and values of the metric.

        The env steps are rounded to multiples of the interval, so that the pruner can compare trials.
        """
        points = read_quantity(read_tables(self._db, [row]), self._quantity).get_points(row.id)
        values: dict[int, float] = {}
        for step, value in zip(points.env_step.tolist(), points.value.tolist(), strict=True):
            n_intervals = max(1, round(step / self._interval))
            values[n_intervals * self._interval] = value
        return sorted(values.items())

    def _report_values(self, trial: Any, values: Sequence[tuple[int, float]]) -> Any:
        """Report the values that the trial does not have yet; return the writable trial."""
        live_trial = self._make_trial(self._study, trial._trial_id)
        for step, value in values:
            if step not in trial.intermediate_values:
                live_trial.report(value, step)
        return live_trial

    def _prune_if_poor(self, trial: Any, row: RunRow, values: Sequence[tuple[int, float]]) -> None:
        """Stop a run if the pruner decides so. The tag is written first, so that a killed search repeats the stop."""
        if not values or values[-1][0] in trial.intermediate_values:
            return
        live_trial = self._report_values(trial, values)
        if live_trial.should_prune():
            tag_runs(self._db, [row.id], add=[PRUNED])
            self._request_stop(row)

    def _request_stop(self, row: RunRow) -> None:
        if row.live_status in ("running", "paused"):
            with suppress(RunStateError):  # the run has just ended
                send_command(self._db, row.id, "stop")


@contextmanager
def open_search(db: Database, sweep_id: str, *, jobs: int) -> Generator[Search]:
    """Claim a search for this process, and release it at the end.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Number of trials at once.

    Raises:
        RunStateError: If another process owns the search.
        ConfigError: If Optuna is missing.
    """
    plan = remake_plan(get_sweep(db, sweep_id))
    token = make_token()
    # The last owner may have been killed. After this time, its heartbeat is too old and the claim succeeds.
    ends_at = time.monotonic() + LOST_AFTER_S + HEARTBEAT_S
    while not retry_transient(db, lambda: claim_search(db, sweep_id, token)):
        if time.monotonic() > ends_at:
            raise _make_owner_error(sweep_id)
        time.sleep(HEARTBEAT_S / 4)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = Search(db, plan, jobs=jobs, token=token)
        yield search
    finally:
        with suppress(StorageError):
            release_search(db, sweep_id, token)


def _make_owner_error(sweep_id: str) -> RunStateError:
    return RunStateError(
        f"Another process already runs the search of sweep {sweep_id}. See its progress with: emtc sweep --list"
    )
