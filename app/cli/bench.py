"""`emtc bench`: measure the performance of EMTC Lab and compare each result with its budget."""

import importlib
import os
import platform
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, print_json, print_message, print_table

BENCHMARKS = (
    "learner", "memory", "embedder", "skirmish", "grf", "telemetry", "queries", "live", "projection",
    "atlas", "storm", "end_to_end",
)  # fmt: skip
EXTRA = ("calibration", "coverage", "crash_points", "embedding", "pictures", "what_if")
OPTIONS = {"storm": ("minutes", "trainers", "db", "pages", "workers"), "pictures": ("db",), "crash_points": ("points",)}
"""Options by benchmark. A benchmark that is not listed has no options."""
Minutes = Annotated[float | None, typer.Option(min=0.05, max=1440, help="storm: duration [min]; default: 1")]
Trainers = Annotated[int | None, typer.Option(min=1, max=64, help="storm: trainers at the same time; default: 4")]
Pages = Annotated[int | None, typer.Option(min=0, max=20, help="storm: number of open pages of the app; default: 3")]
Workers = Annotated[
    int | None, typer.Option(min=0, max=2, help="storm: workers whose clocks are wrong by ten minutes; default: 2")
]
Points = Annotated[
    int | None,
    typer.Option(min=0, help="crash_points: calls per operation at which a crash is simulated; default: 24, 0: all"),
]
BenchDatabase = Annotated[
    str | None,
    typer.Option(
        "--db",
        help="storm: URL of an empty database; sqlite or postgresql creates a temporary one. "
        "pictures: database with the demo runs; they are trained if it is missing",
    ),
]


def bench(
    name: Annotated[str, typer.Argument(help=f"{', '.join((*BENCHMARKS, *EXTRA))} or all")],
    minutes: Minutes = None,
    trainers: Trainers = None,
    db: BenchDatabase = None,
    points: Points = None,
    pages: Pages = None,
    workers: Workers = None,
    json: AsJson = False,
) -> None:
    """Run one benchmark, or all that have performance budgets."""
    if name not in (*BENCHMARKS, *EXTRA, "all"):
        raise typer.BadParameter(f"NAME must be one of {', '.join((*BENCHMARKS, *EXTRA, 'all'))}, got {name!r}.")
    values = {"minutes": minutes, "trainers": trainers, "db": db, "points": points, "pages": pages, "workers": workers}
    options = {key: value for key, value in values.items() if value is not None}
    if unknown_options := [key for key in options if key not in OPTIONS.get(name, ())]:
        benchmarks = " and ".join(benchmark for benchmark, keys in OPTIONS.items() if unknown_options[0] in keys)
        raise typer.BadParameter(f"--{unknown_options[0]} is an option of {benchmarks}, not of {name}.")
    figures: list[dict[str, Any]] = []
    for benchmark in BENCHMARKS if name == "all" else (name,):
        print_message(f"bench {benchmark} …")
        figures += importlib.import_module(f"app.bench.{benchmark}").run(**options)
    if json:
        print_json({"machine": machine(), "figures": figures})
    else:
        print_table(figures, title=f"bench {name}", empty="No results.")


def machine() -> dict[str, Any]:
    """Describe the machine on which the benchmarks run."""
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
