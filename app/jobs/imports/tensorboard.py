"""Read event files of TensorBoard with TensorBoard's own reader. Each folder with event files is a run.

There is one exception: `SummaryWriter.add_scalars` writes a folder for each tag, and the folders of one writer are one
run. MAPPO (on-policy) does this in results/ENV/MAP/ALGO/EXPERIMENT/run1/logs. BenchMARL counts iterations instead of
env steps. Its tag counters_total_frames contains the env steps of each iteration.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from app.jobs.imports.parsed_run import ParsedRun, SourceOverrides, find_first, make_series
from app.jobs.imports.run_names import find_seed, parse_run_name
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
"""Tag, or column of `evaluations` → values by the step of TensorBoard."""


def read_tensorboard(root: Path, overrides: SourceOverrides) -> Iterator[ParsedRun | ConfigError]:
    """Read every run. Algorithm, map and seed are in the name of its folder, or set by the user.

    Raises:
        ConfigError: If there is no event file, or TensorBoard is missing.
    """
    folders = sorted({file.parent for file in root.rglob("*tfevents*")})
    if not folders:
        raise ConfigError(f"{root} contains no event file of TensorBoard (events.out.tfevents.…)")
    runs: dict[Path, Scalars] = {}
    settings: dict[Path, dict[str, str]] = {}  # of runs of BenchMARL
    for folder in folders:
        try:
            events = _load_events(folder)
        except ValueError as error:
            yield ConfigError(f"{folder} cannot be read by TensorBoard: {error}")
            continue
        tags = events.Tags()
        run_folder = _find_run_folder(folder, root, tags["scalars"])
        for tag in tags["scalars"]:
            points = ((event.step, event.value) for event in events.Scalars(tag))
            runs.setdefault(run_folder, {})[tag] = make_series(points)
        if _BENCHMARL_SETTINGS in tags["tensors"]:
            text = events.Tensors(_BENCHMARL_SETTINGS)[0].tensor_proto.string_val[0].decode()
            settings[run_folder] = dict(re.findall(r"^\s*(\w+): (.*)$", text, re.MULTILINE))
    if not runs:
        raise ConfigError(f"{root} contains event files, but neither a win rate nor a return")
    for number, (folder, scalars) in enumerate(runs.items(), start=1):
        try:
            yield _make_run(folder, root, scalars, settings.get(folder, {}), overrides, number)
        except ConfigError as error:
            yield error


def _make_run(
    folder: Path, root: Path, scalars: Scalars, settings: Mapping[str, str], overrides: SourceOverrides, number: int
) -> ParsedRun:
    if folder == root:
        name = description = folder.name
    else:
        name = folder.relative_to(root).as_posix()
        description = f"{root.name}/{name}"
    curves: Scalars = {}
    names = overrides.list_source_names(EVENT_WIN_RATES, EVENT_RETURNS) | {"length_mean": _LENGTHS}
    for column, tags in names.items():
        tag = find_first(tags, scalars)
        if tag is not None:
            curves[column] = scalars[tag]
    has_benchmarl_tag = any(_BENCHMARL_TAG.match(tag) for tag in scalars)
    if has_benchmarl_tag or any(tag in scalars for tag in BENCHMARL_RETURNS):
        curves = _convert_iterations(curves, scalars, folder, description)
    if "algorithm_name" in settings:
        return ParsedRun(
            description=description,
            curves=curves,
            env=settings.get("environment_name"),
            map=settings.get("task_name"),
            algo=settings["algorithm_name"],
            seed=settings.get("seed"),
        )
    if match := _MAPPO_FOLDER.search(folder.as_posix()):
        env, map_name, algo, experiment, run_number = match.groups()
        return ParsedRun(
            description=description,
            curves=curves,
            env=env,
            map=map_name,
            algo=algo,
            seed=-int(run_number),
            settings={"experiment_name": experiment},
        )
    parsed_name = parse_run_name(name, overrides)
    seed = find_seed(description) if parsed_name.seed is None else parsed_name.seed
    if seed is None:
        seed = -number
    return ParsedRun(description, curves, map=parsed_name.map, algo=parsed_name.algo, seed=seed)


def _convert_iterations(curves: Scalars, scalars: Scalars, folder: Path, description: str) -> Scalars:
    """Replace BenchMARL's iterations by env steps. Evaluations of iterations without env steps are left out."""
    tag = find_first(BENCHMARL_STEPS, scalars)
    if tag is None:
        files = [*folder.glob("*.json"), *folder.parent.glob("*.json"), *folder.parent.parent.glob("*.json")]
        name = files[0] if files else "the JSON file of the experiment"
        raise ConfigError(
            f"{description} counts iterations of BenchMARL, and has no {BENCHMARL_STEPS[1]} to convert them to env "
            f"steps. Import {name} with --format marl-eval."
        )
    env_steps = dict(scalars[tag].items())  # iteration → env steps
    converted: Scalars = {}
    for column, curve in curves.items():
        points = curve.items()
        converted[column] = make_series((env_steps[number], value) for number, value in points if number in env_steps)
    return converted


def _find_run_folder(folder: Path, root: Path, tags: list[str]) -> Path:
    """Return the folder of the writer: `folder`, or its parent if `add_scalars` made `folder` for a single tag."""
    if len(tags) == 1:
        name = tags[0].replace("/", "_")
        for suffix in (f"/{tags[0]}/{tags[0]}", f"/{name}_{name}"):  # tensorboardX, torch
            writer_folder = Path(folder.as_posix().removesuffix(suffix))
            if writer_folder != folder and writer_folder.is_relative_to(root):
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
