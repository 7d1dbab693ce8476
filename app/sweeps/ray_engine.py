"""The Ray engine: each queued run of a sweep is one Ray task that trains it with the same worker as everywhere."""

from importlib import import_module
from typing import Any

from app.sweeps.control import this_process
from emtc_core.errors import ConfigError
from emtc_core.install import how_to_install
from storage.claims import claim_run
from storage.engine import Database
from storage.queries.sweeps import Sweep, get_sweep
from storage.sweeps import attach_scheduler, detach_scheduler


def import_ray() -> Any:
    """Import ray.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as exc:
        raise ConfigError(f"The Ray engine needs ray. Install it with: {how_to_install('ray')}") from exc


def run_sweep_on_ray(db: Database, sweep_id: str, *, jobs: int) -> Sweep:
    """Hand every queued or lost run to Ray, one CPU each, and wait for all of them.

    Ray decides how many run at once; every machine of the cluster must reach the database by its URL.
    """
    ray = import_ray()
    ray.init(ignore_reinit_error=True)
    me = this_process()
    attach_scheduler(db, sweep_id, me, jobs=jobs)
    task = ray.remote(num_cpus=1, max_retries=0)(_train)
    pending = []
    try:
        while claim := claim_run(db, sweep_id, me, jobs=len(pending) + 1_000_000):
            pending.append(task.remote(db.url, claim.run_id, claim.resume, claim.token))
        ray.get(pending)
    finally:
        detach_scheduler(db, sweep_id, me)
    return get_sweep(db, sweep_id)


def _train(url: str, run_id: str, resume: bool, token: str) -> None:
    from app.runs.training import train_run
    from emtc_core.errors import EmtcError
    from storage.engine import open_database

    try:
        train_run(open_database(url), run_id, resume=resume, token=token)
    except EmtcError:  # the run's row says why
        return
