"""Read runs of PyMARL and EPyMARL, whose files are written by the library sacred.

Each run is a folder with config.json, run.json, and metrics.json or info.json. PyMARL writes its curves to info.json,
as lists KEY and KEY_T. EPyMARL writes them to metrics.json, as {steps, values}.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

import pandas as pd

from app.jobs.imports.parsed_run import ParsedRun, SourceOverrides, make_series, read_json
from emtc_core.errors import ConfigError

WIN_RATES: Final = ("test_battle_won_mean", "test_win_rate_mean", "test_win_rate")
RETURNS: Final = ("test_return_mean", "test_total_return_mean")
_RETURN_STDS: Final = ("test_return_std", "test_total_return_std")
_LENGTHS: Final = ("test_ep_length_mean",)
_IGNORED_SETTINGS: Final = (
    *("seed", "env_args.seed", "name", "t_max", "label", "hypergroup", "evaluate", "unique_token", "db_"),
    *("test_interval", "test_nepisode", "log_interval", "learner_log_interval", "runner_log_interval"),
    *("save_", "checkpoint_path", "load_step", "local_results_path", "use_tensorboard", "use_wandb", "wandb_"),
    *("use_cuda", "buffer_cpu_only", "env_args.replay_", "env_args.debug", "env_args.window_size_"),
)
"""Beginnings of settings that do not affect learning. Runs that differ only in them are seeds of one variant."""


def read_sacred(root: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read all runs in a folder and its subfolders, in the order of their numbers.

    Raises:
        ConfigError: If there is no run.
    """
    folders = [file.parent for file in root.rglob("config.json")]
    if not folders:
        raise ConfigError(f"{root} contains no run of sacred: no folder with config.json.")
    for folder in sorted(folders, key=lambda folder: (len(folder.name), folder)):  # "2" before "10"
        parent = folder.parent.parent if folder == root else root.parent
        description = str(folder.relative_to(parent))
        try:
            yield _read_run(folder, description, overrides)
        except ConfigError as error:
            yield error


def _read_run(folder: Path, description: str, overrides: SourceOverrides) -> ParsedRun:
    config = read_json(folder / "config.json")
    metrics = _read_optional(folder / "metrics.json")
    info = _read_optional(folder / "info.json")
    run = _read_optional(folder / "run.json")
    names = {**overrides.list_source_names(WIN_RATES, RETURNS), "return_std": _RETURN_STDS, "length_mean": _LENGTHS}
    curves = {column: _find_curve(metrics, info, keys) for column, keys in names.items()}
    n_episodes = config.get("test_nepisode")
    if isinstance(n_episodes, int) and n_episodes > 0:
        batch_size = config.get("batch_size_run")
        n_parallel = batch_size if isinstance(batch_size, int) and batch_size > 0 else 1
        n_batches = max(1, n_episodes // n_parallel)
        steps = curves["win_rate"].index.union(curves["return_mean"].index, sort=False)
        curves["episodes"] = make_series((step, n_batches * n_parallel) for step in steps)
    env, map_name = _read_task(config)
    flat = pd.json_normalize(config).iloc[0].to_dict()
    return ParsedRun(
        description=description,
        curves=curves,
        env=env,
        map=map_name,
        algo=config.get("name"),
        seed=config.get("seed"),
        budget=config.get("t_max"),
        eval_interval=config.get("test_interval"),
        is_finished=run.get("status", "COMPLETED") == "COMPLETED",
        settings={key: _make_plain(flat[key]) for key in sorted(flat) if not key.startswith(_IGNORED_SETTINGS)},
    )


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _find_curve(metrics: Mapping[str, Any], info: Mapping[str, Any], keys: Sequence[str]) -> pd.Series:
    """Return the curve of the first key that the run contains, or an empty curve.

    If PyMARL was killed between the writes of its two lists, one list is longer by one. Its last item is ignored.
    """
    for key in keys:
        metric = metrics.get(key, {})
        steps = metric.get("steps", info.get(f"{key}_T"))
        values = metric.get("values", info.get(key))
        if steps and values:
            return make_series(zip(steps, values, strict=False))
    return make_series([])


def _read_task(config: Mapping[str, Any]) -> tuple[str, object]:
    """Return environment and map. On SMACv2, the map contains the numbers of units: terran_5_vs_5."""
    env = str(config.get("env", ""))
    args = config.get("env_args") or {}
    if gym_id := str(args.get("key", "")):
        package, _, name = gym_id.rpartition(":")
        return package or env, name
    if env.startswith("academy_"):
        return "grf", env
    map_name = args.get("map_name") or args.get("scenario_name") or args.get("scenario")
    if teams := args.get("capability_config"):
        race = str(map_name).removeprefix("10gen_")
        return env, f"{race}_{teams.get('n_units')}_vs_{teams.get('n_enemies')}"
    return env, map_name


def _make_plain(value: object) -> object:
    """Convert a value that JSON cannot store, such as NaN or infinity, to text. Return other plain values unchanged."""
    is_plain = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
    return value if is_plain else str(value)
