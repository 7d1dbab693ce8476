"""`emtc bench`: run the benchmarks of the performance budgets and print each result with its budget."""

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, print_json, print_message, print_table
from app.jobs.launch import ROOT
from tests.bench import BenchResult

BENCHMARKS = (
    "learner", "memory", "embedder", "skirmish", "grf", "telemetry", "queries", "live", "projection", "atlas",
    "end_to_end",
)  # fmt: skip
EXTRA = ("embedding", "gallery", "pictures", "what_if")
MOVED = {
    "storm": "tests.torture.storm",
    "crash_points": "tests.torture.crash_points",
    "coverage": "tests.reference.coverage",
    "calibration": "tests.reference.calibration",
}
"""Former benchmarks that are test tools now. `emtc bench NAME` still starts them in a checkout."""
OPTIONS = {"pictures": ("db",), "storm": ("minutes", "trainers", "db", "pages", "workers"), "crash_points": ("points",)}
_Hidden = typer.Option(hidden=True)


def bench(
    name: Annotated[str, typer.Argument(help=f"{', '.join((*BENCHMARKS, *EXTRA))} or all")],
    db: Annotated[
        str | None,
        typer.Option(
            "--db", help="pictures: a database with the demo runs. Without it they are trained, which takes minutes"
        ),
    ] = None,
    json: AsJson = False,
    minutes: Annotated[float | None, _Hidden] = None,
    trainers: Annotated[int | None, _Hidden] = None,
    points: Annotated[int | None, _Hidden] = None,
    pages: Annotated[int | None, _Hidden] = None,
    workers: Annotated[int | None, _Hidden] = None,
) -> int:
    """Run one benchmark, or all of the performance budgets."""
    names = (*BENCHMARKS, *EXTRA, "all")
    if name not in (*names, *MOVED):
        raise typer.BadParameter(f"NAME must be one of {', '.join(names)} (got {name!r}).")
    values = {"minutes": minutes, "trainers": trainers, "db": db, "points": points, "pages": pages, "workers": workers}
    options = {key: value for key, value in values.items() if value is not None}
    if unknown := [key for key in options if key not in OPTIONS.get(name, ())]:
        owners = " and ".join(owner for owner, keys in OPTIONS.items() if unknown[0] in keys)
        raise typer.BadParameter(f"--{unknown[0]} is an option of {owners}, not of {name}.")
    if name in MOVED:
        return _run_test_tool(MOVED[name], options, json=json)
    results: list[BenchResult] = []
    for benchmark in BENCHMARKS if name == "all" else (name,):
        print_message(f"bench {benchmark} …")
        results += importlib.import_module(f"tests.bench.{benchmark}").run(**options)
    print_results(results, title=f"bench {name}", json=json)
    return 0


def _run_test_tool(module: str, options: Mapping[str, Any], *, json: bool) -> int:
    """Run a test tool in another process and return its exit code."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = ["-m", module, *words, *(["--json"] if json else [])]
    print_message(f"This is a test tool now: python {' '.join(command)}")
    if not (ROOT / "tests" / "torture").is_dir():
        raise typer.BadParameter("Test tools need a checkout of the project. A wheel does not contain them.")
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode


def print_results(results: Sequence[BenchResult], *, title: str, json: bool) -> None:
    """Print results as one JSON object with a description of this machine, or as a table."""
    if json:
        print_json({"machine": describe_machine(), "figures": results})
    else:
        print_table(results, title=title, empty="Nothing was measured.")


def describe_machine() -> dict[str, Any]:
    """Describe this machine: processor, memory, versions of Python and torch, device."""
    import psutil
    import torch

    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
