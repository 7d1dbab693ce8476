"""Run benchmarks and print each result with its budget: `python -m tests.bench NAME… [--json]`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a trainer, before torch loads OpenMP

from app.cli.output import print_message
from tests.report import BenchResult, add_json_option, run_and_report

BENCHMARKS = (
    "learner", "memory", "embedder", "skirmish", "grf", "telemetry", "queries", "live", "projection", "atlas",
    "end_to_end",
)  # fmt: skip
"""The benchmarks of the performance budgets."""
EXTRA = ("embedding", "what_if")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the benchmarks and return the exit code."""
    names = (*BENCHMARKS, *EXTRA, "all")
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=names, help=", ".join(names))
    add_json_option(parser)
    options = parser.parse_args(arguments)
    names = BENCHMARKS if "all" in options.names else options.names
    return run_and_report(f"bench {' '.join(options.names)}", run_benchmarks, json=options.json, names=names)


def run_benchmarks(names: Sequence[str]) -> list[BenchResult]:
    """Run the benchmarks in their order."""
    results = []
    for name in names:
        print_message(f"bench {name} …")
        results += import_module(f"tests.bench.{name}").run()
    return results


if __name__ == "__main__":
    sys.exit(main())
