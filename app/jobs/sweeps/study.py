"""The interface of a search to Optuna: storage, study, samplers, pruners and suggested settings.

A study is Optuna's record of a search: one trial per run, with its settings and result. It is in a storage of Optuna,
which optuna-dashboard can open: the URL in EMTC_OPTUNA, or a SQLite file next to the database. A sweep file cannot set
the URL, because a sweep file may come from another user. The studies of `app.analysis.study_plans`, which have claims
and variants, are something else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.analysis.settings import write_value
from app.jobs.sweeps.file import OptunaSearch, Range, SettingValue
from app.jobs.sweeps.plan import is_integer_setting
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database

STORAGE_VARIABLE: Final = "EMTC_OPTUNA"
MISSING: Final = 'Optuna is missing. Install it with: pip install -e ".[optuna]"'
NO_STORAGE: Final = (
    f"With a database server, Optuna needs a separate database. Set its URL in {STORAGE_VARIABLE}, for example "
    "postgresql+psycopg://me@dbhost/optuna."
)
RUN: Final = "run"
"""Name of the user attribute of a trial that contains the id of its run."""
Study = Any  # Optuna is optional, so its types cannot be imported here
Trial = Any
_QUANTILE_PERCENT: Final = 25.0
"""Percentage of the trials that the percentile pruner keeps: the best 25 %."""
_REDUCTION_FACTOR: Final = 3
"""Successive halving and Hyperband keep one third of the trials at each stage."""


def import_optuna() -> Any:
    """Import Optuna, with its log limited to warnings.

    Raises:
        ConfigError: If Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        # a Fault is one fault of the user's input; this one has only the next step for the user
        raise ConfigError(Fault(hint=MISSING)) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def study_name(sweep_id: str) -> str:
    """Return the name of a sweep's study in Optuna."""
    return f"emtc-{sweep_id}"


def storage_url(db: Database) -> str:
    """Return the URL of Optuna's storage.

    Raises:
        ConfigError: If the database is on a server and EMTC_OPTUNA is not set.
    """
    if url := os.environ.get(STORAGE_VARIABLE):
        return url
    if db.path is None:
        raise ConfigError(Fault(hint=NO_STORAGE))
    return f"sqlite:///{db.path.with_suffix('.optuna.db')}"


def check_storage(url: str) -> None:
    """Check that a search can start, before anything is created.

    Args:
        url: URL of the database of the runs, not of Optuna's storage. See `storage_url`, which has the same rule for an
            open database.

    Raises:
        ConfigError: If Optuna is missing or no storage is set for its study.
    """
    import_optuna()
    if not url.startswith("sqlite") and STORAGE_VARIABLE not in os.environ:
        raise ConfigError(Fault(hint=NO_STORAGE))


def open_study(db: Database, sweep_id: str, search: OptunaSearch) -> Study:
    """Open the study of a sweep, or create it."""
    optuna = import_optuna()
    return optuna.create_study(
        storage=storage_url(db),
        study_name=study_name(sweep_id),
        direction=search.direction,
        load_if_exists=True,
    )


def find_study(db: Database, sweep_id: str) -> Study | None:
    """Find the study of a sweep for reading; None if there is none or Optuna is missing. No file is created."""
    try:
        optuna = import_optuna()
        url = storage_url(db)
        if STORAGE_VARIABLE not in os.environ and db.path and not db.path.with_suffix(".optuna.db").exists():
            return None
        return optuna.load_study(study_name=study_name(sweep_id), storage=url)
    except (ConfigError, KeyError):
        return None


def find_best_trial(study: Study) -> Trial | None:
    """Find the trial with the best value; None if no trial is complete."""
    try:
        return study.best_trial
    except ValueError:
        return None


@dataclass(frozen=True)
class BestTrial:
    """The best trial of a search."""

    trial: int
    """Number of the trial."""
    run: str | None
    """Id of its run."""
    value: float
    """Final value of the metric that the search optimizes."""
    settings: dict[str, SettingValue]

    @property
    def options(self) -> str:
        """The settings as options of the command line: "--set train.lr=0.001 --set train.batch=12"."""
        # true and false in lower case, as on the command line; a number is written with all its digits
        texts = {key: write_value(value) if isinstance(value, bool) else value for key, value in self.settings.items()}
        return " ".join(f"--set {key}={text}" for key, text in texts.items())


def read_best_trial(db: Database, sweep_id: str) -> BestTrial | None:
    """Read the best trial of a search; None if no trial is complete."""
    study = find_study(db, sweep_id)
    best = None if study is None else find_best_trial(study)
    if best is None:
        return None
    return BestTrial(trial=best.number, run=best.user_attrs.get(RUN), value=best.value, settings=dict(best.params))


def describe_settings(trial: Trial) -> str:
    """Write the settings that Optuna chose for a trial: "train.lr = 0.001, train.batch = 12"."""
    return ", ".join(f"{key} = {write_value(value)}" for key, value in trial.params.items())


def list_reported_runs(db: Database, sweep_id: str) -> set[str]:
    """List the ids of runs whose trials have ended in Optuna, so their result was reported.

    Empty for a sweep that is not a search.
    """
    study = find_study(db, sweep_id)
    if study is None:
        return set()
    trials = study.get_trials(deepcopy=False)
    return {str(trial.user_attrs[RUN]) for trial in trials if trial.state.is_finished() and RUN in trial.user_attrs}


def make_sampler(search: OptunaSearch, number: int) -> Any:
    """Make the sampler of one trial. Its seed depends only on the search's seed and the trial's number.

    So a resumed search gives each trial the same seed as before.
    """
    samplers = import_optuna().samplers
    if search.sampler == "qmc":
        return samplers.QMCSampler(seed=search.seed, scramble=True)
    seed = (search.seed * 100_003 + number) % 2**31  # 100,003 is a prime > the largest number of trials
    if search.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, constant_liar=True)


def make_pruner(search: OptunaSearch, *, interval: int, steps: int) -> Any:
    """Make the pruner, which decides at some env steps whether a trial ends early.

    Args:
        search: Options of the search.
        interval: Interval between two values of the metric [env steps].
        steps: Length of a trial that is not pruned [env steps].
    """
    pruners = import_optuna().pruners
    warmup = search.warmup or interval
    halving: dict[str, Any] = {"min_resource": max(1, warmup), "reduction_factor": _REDUCTION_FACTOR}
    startup: dict[str, Any] = {"n_startup_trials": search.startup, "n_warmup_steps": warmup}
    if search.pruner == "median":
        return pruners.MedianPruner(**startup)
    if search.pruner == "percentile":
        return pruners.PercentilePruner(_QUANTILE_PERCENT, **startup)
    if search.pruner == "asha":
        return pruners.SuccessiveHalvingPruner(**halving)
    if search.pruner == "hyperband":
        return pruners.HyperbandPruner(max_resource=steps, **halving)
    return pruners.NopPruner()


def suggest(trial: Trial, space: Mapping[str, Range | tuple[SettingValue, ...]]) -> dict[str, SettingValue]:
    """Let Optuna choose a value for each setting. For a trial that already has a value, Optuna returns it again."""
    return {key: _suggest(trial, key, space[key]) for key in sorted(space)}


def _suggest(trial: Trial, key: str, space: Range | tuple[SettingValue, ...]) -> SettingValue:
    if isinstance(space, tuple):
        return trial.suggest_categorical(key, list(space))
    if is_integer_setting(key):
        return trial.suggest_int(key, int(space.low), int(space.high), log=space.log)
    return trial.suggest_float(key, space.low, space.high, log=space.log)
