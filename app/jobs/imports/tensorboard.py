"""Event files of TensorBoard, read with TensorBoard's own reader. Each folder with event files is a run.

`SummaryWriter.add_scalars` writes a folder for each tag; the folders of one writer are one run. MAPPO (on-policy) does
this in results/ENV/MAP/ALGO/EXPERIMENT/run1/logs. BenchMARL counts iterations instead of env steps; its tag
counters_total_frames converts them.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from app.jobs.imports.parsed_run import ParsedRun, SourceOverrides, find_first, find_seed, make_series, parse_run_name
from emtc_core.errors import ConfigError, Fault

BENCHMARL_RETURNS: Final = ("eval/reward/episode_reward_mean", "eval_reward_episode_reward_mean")
BENCHMARL_STEPS: Final = ("counters/total_frames", "counters_total_frames")
EVENT_WIN_RATES: Final = (
    *("eval/win_rate", "eval_win_rate", "test_battle_won_mean", "test/battle_won_mean", "test_win_rate"),
)
EVENT_RETURNS: Final = (
    *("eval/return_mean", "test_return_mean", "test_total_return_mean", "test/return_mean"),
    *("eval_average_episode_rewards", *BENCHMARL_RETURNS),
)
_LENGTHS: Final = ("eval/length_mean", "test_ep_length_mean")
_BENCHMARL_TAG: Final = re.compile(r"(counters|collection)[/_]")
_BENCHMARL_SETTINGS: Final = "hparams/text_summary"
_MAPPO_FOLDER: Final = re.compile(r"([^/]+)/([^/]+)/([^/]+)/([^/]+)/run(\d+)/logs$")

Scalars = dict[str, pd.Series]
"""Tag → values by the step of TensorBoard."""


def read_tensorboard(path: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read every run. Algorithm, map and seed are in the name of its folder, or options.

    Raises:
        ConfigError: If there is no event file, or TensorBoard is missing.
    """
    folders = sorted({file.parent for file in path.rglob("*tfevents*")})
    if not folders:
        raise ConfigError(f"{path} contains no event file of TensorBoard (events.out.tfevents.…)")
    runs: dict[Path, Scalars] = {}
    settings: dict[Path, dict[str, str]] = {}
    for folder in folders:
        try:
            events = _load_events(folder)
        except ValueError as error:
            yield ConfigError(f"{folder} cannot be read by TensorBoard: {error}")
            continue
        tags = events.Tags()
        run_folder = _find_run_folder(folder, path, tags["scalars"])
        for tag in tags["scalars"]:
            points = ((event.step, event.value) for event in events.Scalars(tag))
            runs.setdefault(run_folder, {})[tag] = make_series(points)
        if _BENCHMARL_SETTINGS in tags["tensors"]:
            text = events.Tensors(_BENCHMARL_SETTINGS)[0].tensor_proto.string_val[0].decode()
            settings[run_folder] = dict(re.findall(r"^\s*(\w+): (.*)$", text, re.MULTILINE))
    if not runs:
        raise ConfigError(f"{path} contains event files, but neither a win rate nor a return")
    for number, (folder, scalars) in enumerate(runs.items(), start=1):
        try:
            yield _make_run(folder, path, scalars, settings.get(folder, {}), overrides, number)
        except ConfigError as error:
            yield error


def _make_run(
    folder: Path, path: Path, scalars: Scalars, settings: Mapping[str, str], overrides: SourceOverrides, number: int
) -> ParsedRun:
    name = folder.relative_to(path).as_posix() if folder != path else folder.name
    where = f"{path.name}/{name}" if folder != path else name
    names = overrides.name_columns(EVENT_WIN_RATES, EVENT_RETURNS) | {"length_mean": _LENGTHS}
    tag_of_column = {column: find_first(tags, scalars) for column, tags in names.items()}
    curves = {column: scalars[tag] for column, tag in tag_of_column.items() if tag is not None}
    is_benchmarl = any(_BENCHMARL_TAG.match(tag) or tag in BENCHMARL_RETURNS for tag in scalars)
    if is_benchmarl:
        curves = _convert_iterations(curves, scalars, folder, where)
    if "algorithm_name" in settings:
        return ParsedRun(
            where,
            curves,
            env=settings.get("environment_name"),
            map=settings.get("task_name"),
            algo=settings["algorithm_name"],
            seed=settings.get("seed"),
        )
    match = _MAPPO_FOLDER.search(folder.as_posix())
    if match:
        env, map_name, algo, experiment, run_number = match.groups()
        settings = {"experiment_name": experiment}
        return ParsedRun(where, curves, env, map_name, algo, -int(run_number), settings=settings)
    named = parse_run_name(name, overrides)
    seed = find_seed(where) if named.seed is None else named.seed
    return ParsedRun(where, curves, map=named.map, algo=named.algo, seed=-number if seed is None else seed)


def _convert_iterations(curves: Scalars, scalars: Scalars, folder: Path, where: str) -> Scalars:
    """Replace the iterations of BenchMARL by its env steps. Evaluations without a number of env steps are left out."""
    tag = find_first(BENCHMARL_STEPS, scalars)
    if tag is None:
        files = [*folder.glob("*.json"), *folder.parent.glob("*.json"), *folder.parent.parent.glob("*.json")]
        name = files[0] if files else "the JSON file of the experiment"
        raise ConfigError(
            f"{where} counts iterations of BenchMARL, and has no {BENCHMARL_STEPS[1]} to convert them to env steps. "
            f"Import {name} with --format marl-eval."
        )
    frames = dict(scalars[tag].items())
    return {
        column: make_series((frames[step], value) for step, value in curve.items() if step in frames)
        for column, curve in curves.items()
    }


def _find_run_folder(folder: Path, path: Path, tags: list[str]) -> Path:
    """Return the folder of the writer: `folder`, or the one above the folder that `add_scalars` made for its tag."""
    if len(tags) == 1:
        name = tags[0].replace("/", "_")
        for suffix in (f"/{tags[0]}/{tags[0]}", f"/{name}_{name}"):  # tensorboardX, torch
            writer_folder = Path(folder.as_posix().removesuffix(suffix))
            if writer_folder != folder and writer_folder.is_relative_to(path):
                return writer_folder
    return folder


def _load_events(folder: Path) -> Any:
    """Load all scalars of a folder.

    Raises:
        ConfigError: If TensorBoard is missing.
        ValueError: If an event file is damaged.
    """
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        hint = "TensorBoard's reader is missing. Install it with: pip install tensorboard"
        raise ConfigError(Fault(hint=hint)) from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    try:
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    except DecodeError as error:
        raise ValueError(str(error)) from error
