"""Results as other programs write them: by sacred and TensorBoard's writer, or in the format of BenchMARL and W&B."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.require import require

SACRED = """
import importlib.util, json, os, sys, types
if importlib.util.find_spec("pkg_resources") is None:  # sacred 0.8.7 asks it for a file of its own and for versions
    shim = types.ModuleType("pkg_resources")
    place = importlib.util.find_spec("sacred").submodule_search_locations[0]
    shim.resource_filename = lambda package, name: f"{place}/{name}"
    shim.parse_version = lambda version: version
    shim.working_set = type("WorkingSet", (list,), {"by_key": {}})()
    sys.modules["pkg_resources"] = shim
import numpy as np
from sacred import SETTINGS, Experiment
from sacred.observers import FileStorageObserver
SETTINGS.CAPTURE_MODE = "no"
folder, epymarl, ends_as_pymarl = sys.argv[1], sys.argv[2] == "epymarl", sys.argv[5] == "os._exit"
config, curves = json.loads(sys.argv[3]), json.loads(sys.argv[4])
experiment = Experiment("pymarl", save_git_info=False, interactive=True)
experiment.add_config(config)
experiment.observers.append(FileStorageObserver(folder))
@experiment.main
def main(_run):
    for name, points in curves.items():
        for step, value in points:
            if epymarl:
                _run.log_scalar(name, np.float64(value), step)
            else:
                _run.info.setdefault(name + "_T", []).append(step)
                _run.info.setdefault(name, []).append(np.float64(value))
    if ends_as_pymarl:  # the last line of PyMARL's run.py; sacred has written the values before, every ten seconds
        _run._emit_heartbeat()
        os._exit(os.EX_OK)
experiment.run()
"""
TWO_SEEDS = {
    1: {
        "test_battle_won_mean": [(60, 0.0), (10_060, 0.25), (20_050, 0.5)],
        "test_return_mean": [(60, 1.0), (20_050, 9.5)],
    },
    2: {
        "test_battle_won_mean": [(55, 0.0), (10_055, 0.5), (20_055, 1.0)],
        "test_return_mean": [(55, 2.0), (20_055, 19.0)],
    },
}


def write_sacred(
    folder: Path, config: dict[str, Any], curves: dict[str, Any], *, epymarl: bool = False, end: str = "return"
) -> None:
    """Let sacred itself write one run, as PyMARL (info.json) or EPyMARL (metrics.json) has it do.

    With `end` = "os._exit" the process ends as PyMARL's does, so that sacred does not write the end of the run.
    """
    require("sacred", importlib.util.find_spec("sacred") is not None, "sacred is not installed")
    kind = "epymarl" if epymarl else "pymarl"
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        SACRED,
        str(folder),
        kind,
        json.dumps(config),
        json.dumps(curves),
        end,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=folder.parent)
    assert done.returncode == 0, done.stderr


def write_two_seeds(folder: Path) -> Path:
    """Two seeds of PyMARL's QMIX on 3m."""
    for seed, curves in TWO_SEEDS.items():
        config = {"name": "qmix", "seed": seed, "env": "sc2", "env_args": {"map_name": "3m"}, "t_max": 20_000}
        write_sacred(folder, config, curves)
    return folder


def marl_eval(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs under the keys of marl-eval's JSON."""
    return {"smax": {"3m": {"MAPPO": runs}}}


def steps(values: dict[int, list[float]], key: str = "return") -> dict[str, Any]:
    """One run of marl-eval's JSON, laid out as BenchMARL writes it: what is absolute stands first."""
    best = max(value for each in values.values() for value in each)
    told = {f"step_{n}": {"step_count": at, key: each} for n, (at, each) in enumerate(values.items())}
    return {"absolute_metrics": {key: [best]}, **told}


def write_tensorboard(folder: Path, curves: dict[str, list[tuple[int, float]]], text: str = "") -> Path:
    """Let TensorBoard's writer write one run; `text` is what TorchRL logs as hyperparameters."""
    require("tensorboard", importlib.util.find_spec("tensorboard") is not None, "tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for tag, points in curves.items():
            for step, value in points:
                writer.add_scalar(tag, value, step)
        if text:
            writer.add_text("hparams", text)
    return folder


def write_mappo(folder: Path, number: int, curves: dict[str, list[tuple[int, float]]], *, torch: bool = False) -> Path:
    """Write run `number` of on-policy's rmappo on 3m: one folder per tag, as `add_scalars` of tensorboardX does it.

    With `torch`, the names of the folders are those of PyTorch's `add_scalars`.
    """
    logs = folder / "StarCraft2" / "3m" / "rmappo" / "check" / f"run{number}" / "logs"
    if not torch:
        write_tensorboard(logs, {})
        for tag, points in curves.items():
            write_tensorboard(logs / tag / tag, {tag: points})
        return folder
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(logs)) as writer:
        for tag, points in curves.items():
            for step, value in points:
                writer.add_scalars(tag, {tag: value}, step)
    return folder


def write_wandb(file: Path, curves: dict[str, list[tuple[int, float]]], metric: str, x_axis: str = "Step") -> Path:
    """Write the CSV export of a chart of W&B: the x axis, and three columns per run, empty where a run has no value."""
    steps = sorted({step for points in curves.values() for step, _ in points})
    columns = [f"{run} - {metric}{edge}" for run in curves for edge in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in (x_axis, *columns))]
    for step in steps:
        values = [dict(points).get(step, "") for points in curves.values()]
        lines.append(",".join([f'"{step}"', *(f'"{value}"' for value in values for _ in range(3))]))
    file.write_text("\n".join(lines) + "\n")
    return file
