"""`emtc bench`: the benchmarks of the performance budgets, each a figure with its budget."""

import importlib
import os
import platform
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, print_json, print_table, say

BENCHMARKS = (
    "learner", "memory", "embedder", "skirmish", "grf", "telemetry", "queries", "live", "projection",
    "atlas", "storm", "end_to_end",
)  # fmt: skip
EXTRA = ("calibration", "coverage", "crash_points", "embedding", "pictures", "what_if")
TAKES = {"storm": ("minutes", "trainers", "db", "pages", "workers"), "pictures": ("db",), "crash_points": ("points",)}
Minutes = Annotated[float | None, typer.Option(min=0.05, max=1440, help="storm: how long it lasts; 1 unless told")]
Trainers = Annotated[int | None, typer.Option(min=1, max=64, help="storm: how many work at a time; 4 unless told")]
Pages = Annotated[
    int | None, typer.Option(min=0, max=20, help="storm: pages of the app that are open meanwhile; 3 unless told")
]
Workers = Annotated[
    int | None, typer.Option(min=0, max=2, help="storm: workers whose clocks are ten minutes off; 2 unless told")
]
Points = Annotated[
    int | None,
    typer.Option(min=0, help="crash_points: calls at which each act is harmed; 24 unless told, 0: at every one"),
]
SomeDatabase = Annotated[
    str | None,
    typer.Option(
        "--db",
        help="storm: an empty database's URL; sqlite and postgresql make one that is gone afterwards. "
        "pictures: a database that holds the demo runs, which are trained without it",
    ),
]


def bench(
    name: Annotated[str, typer.Argument(help=f"{', '.join((*BENCHMARKS, *EXTRA))} or all")],
    minutes: Minutes = None,
    trainers: Trainers = None,
    db: SomeDatabase = None,
    points: Points = None,
    pages: Pages = None,
    workers: Workers = None,
    json: AsJson = False,
) -> None:
    """Run one benchmark, or all of the performance budgets."""
    if name not in (*BENCHMARKS, *EXTRA, "all"):
        raise typer.BadParameter(f"NAME must be one of {', '.join((*BENCHMARKS, *EXTRA, 'all'))}, got {name!r}.")
    told = {"minutes": minutes, "trainers": trainers, "db": db, "points": points, "pages": pages, "workers": workers}
    options = {key: value for key, value in told.items() if value is not None}
    if strange := [key for key in options if key not in TAKES.get(name, ())]:
        takers = " and ".join(each for each, taken in TAKES.items() if strange[0] in taken)
        raise typer.BadParameter(f"--{strange[0]} belongs to {takers}, not to {name}.")
    figures: list[dict[str, Any]] = []
    for one in BENCHMARKS if name == "all" else (name,):
        say(f"bench {one} …")
        figures += importlib.import_module(f"app.bench.{one}").run(**options)
    if json:
        print_json({"machine": machine(), "figures": figures})
    else:
        print_table(figures, title=f"bench {name}", empty="No figure was measured.")


def machine() -> dict[str, Any]:
    """Describe the machine that the figures were measured on."""
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
