"""Run benchmarks and print each result with its budget: `python -m tests.bench NAME… [--json]`.

`python -m tests.bench end_to_end --jobs 1,2,4,8` measures so many trainings at the same time.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a trainer, before torch loads OpenMP

from app.cli.output import print_message
from emtc_core.errors import ConfigError
from tests.report import BenchResult, add_json_option, run_and_report

BENCHMARKS = (
    "learner", "memory", "embedder", "skirmish", "grf", "telemetry", "queries", "live", "projection", "atlas",
    "end_to_end",
)  # fmt: skip
"""The benchmarks of the performance budgets."""
EXTRA = ("embedding", "what_if")
MAX_JOBS = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the benchmarks and return the exit code."""
    names = (*BENCHMARKS, *EXTRA, "all")
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument(
        "--jobs", type=_parse_counts, default=(), metavar="1,2,…", help="end_to_end: numbers of trainings at once"
    )
    add_json_option(parser)
    options = parser.parse_args(arguments)
    names = BENCHMARKS if "all" in options.names else options.names
    title = f"bench {' '.join(options.names)}"
    return run_and_report(title, run_benchmarks, json=options.json, names=names, jobs=options.jobs)


def run_benchmarks(names: Sequence[str], jobs: Sequence[int] = ()) -> list[BenchResult]:
    """Run the benchmarks in their order, or trainings at the same time for each number of `jobs`.

    Raises:
        ConfigError: If `jobs` is given for another benchmark than end_to_end.
    """
    if jobs:
        if list(names) != ["end_to_end"]:
            raise ConfigError("is an option of the benchmark end_to_end only", key="--jobs")
        return import_module("tests.bench.parallel_runs").run(jobs)
    results = []
    for name in names:
        print_message(f"bench {name} …")
        results += import_module(f"tests.bench.{name}").run()
    return results


def _parse_counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(1 <= count <= MAX_JOBS for count in counts):
        raise argparse.ArgumentTypeError(f"must be numbers from 1 to {MAX_JOBS}, such as 1,2,4,8 (got {text})")
    return counts


if __name__ == "__main__":
    sys.exit(main())
