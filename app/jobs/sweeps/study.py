"""Optuna's side of a search: its storage, its study, samplers and pruners, and what a trial suggests.

The storage is Optuna's own, so that optuna-dashboard opens it: a SQLite file beside the database, or EMTC_OPTUNA. A
sweep file does not name it, since sweeps come from colleagues, too.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from app.jobs.sweeps.file import Leaf, OptunaSearch, Range
from app.jobs.sweeps.plan import is_whole
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database

STORAGE_VARIABLE: Final = "EMTC_OPTUNA"
MISSING: Final = 'Optuna is missing. Install it with: pip install -e ".[optuna]"'
NO_PLACE: Final = (
    f"Optuna needs a database of its own beside a server's: name it in {STORAGE_VARIABLE}, as "
    "postgresql+psycopg://me@dbhost/optuna."
)
RUN: Final = "run"
"""The user attribute of a trial that names its run."""
Study = Any  # Optuna, which may be missing, has its types when it is imported
Trial = Any


def import_optuna() -> Any:
    """Import Optuna, whose own log stays quiet.

    Raises:
        ConfigError: If it is missing.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(Fault(hint=MISSING)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def study_name(sweep_id: str) -> str:
    """What Optuna calls the study of a sweep."""
    return f"emtc-{sweep_id}"


def storage_url(db: Database) -> str:
    """Where Optuna keeps the studies of a database.

    Raises:
        ConfigError: If the database is a server's and nobody says where.
    """
    if told := os.environ.get(STORAGE_VARIABLE):
        return told
    if db.path is None:
        raise ConfigError(Fault(hint=NO_PLACE))
    return f"sqlite:///{db.path.with_suffix('.optuna.db')}"


def check_storage(url: str) -> None:
    """Refuse a search before anything is created.

    Args:
        url: Of the runs' database.

    Raises:
        ConfigError: If Optuna is missing, or has no place for its study.
    """
    import_optuna()
    if not url.startswith("sqlite") and STORAGE_VARIABLE not in os.environ:
        raise ConfigError(Fault(hint=NO_PLACE))


def open_study(db: Database, sweep_id: str, search: OptunaSearch) -> Study:
    """Open the study of a sweep, which is made where it is not there."""
    optuna = import_optuna()
    return optuna.create_study(
        storage=storage_url(db),
        study_name=study_name(sweep_id),
        direction=search.direction,
        load_if_exists=True,
    )


def find_study(db: Database, sweep_id: str) -> Study | None:
    """Find the study of a sweep for reading; None where there is none, or no Optuna."""
    try:
        optuna, url = import_optuna(), storage_url(db)
        if STORAGE_VARIABLE not in os.environ and db.path and not db.path.with_suffix(".optuna.db").exists():
            return None
        return optuna.load_study(study_name=study_name(sweep_id), storage=url)
    except (ConfigError, KeyError):
        return None


def told_runs(db: Database, sweep_id: str) -> set[str]:
    """List the runs of trials that have ended for Optuna; nothing for a sweep that is no search."""
    study = find_study(db, sweep_id)
    trials = study.get_trials(deepcopy=False) if study is not None else ()
    return {str(trial.user_attrs[RUN]) for trial in trials if trial.state.is_finished() and RUN in trial.user_attrs}


def make_sampler(search: OptunaSearch, number: int) -> Any:
    """The sampler for one trial: its chance depends on the trial's number, not on when the search was interrupted."""
    samplers = import_optuna().samplers
    if search.sampler == "qmc":
        return samplers.QMCSampler(seed=search.seed, scramble=True)
    seed = (search.seed * 100_003 + number) % 2**31
    if search.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, constant_liar=True)


def make_pruner(search: OptunaSearch, *, interval: int, steps: int) -> Any:
    """The pruner, which counts in env steps.

    Args:
        search: What was asked for.
        interval: Env steps between two values.
        steps: Env steps of a whole trial.
    """
    pruners = import_optuna().pruners
    warmup = search.warmup or interval
    early: dict[str, Any] = {"n_startup_trials": search.startup, "n_warmup_steps": warmup}
    if search.pruner == "median":
        return pruners.MedianPruner(**early)
    if search.pruner == "percentile":
        return pruners.PercentilePruner(25.0, **early)
    if search.pruner == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=max(1, warmup), reduction_factor=3)
    if search.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=max(1, warmup), max_resource=steps, reduction_factor=3)
    return pruners.NopPruner()


def suggest(trial: Trial, space: Mapping[str, Range | tuple[Leaf, ...]]) -> dict[str, Leaf]:
    """Let Optuna choose every setting; what a trial has chosen already stays, whatever interrupted it."""
    return {key: _suggest(trial, key, space[key]) for key in sorted(space)}


def _suggest(trial: Trial, key: str, where: Range | tuple[Leaf, ...]) -> Leaf:
    if isinstance(where, tuple):
        return trial.suggest_categorical(key, list(where))
    if is_whole(key):
        return trial.suggest_int(key, int(where.low), int(where.high), log=where.log)
    return trial.suggest_float(key, where.low, where.high, log=where.log)
