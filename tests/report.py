"""The command line of the test tools: they print their results like `emtc bench`."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from emtc_core.errors import EmtcError
from tests.bench import BenchResult
from tests.bench.__main__ import print_results


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def limited(kind: Callable[[str], float], low: float, high: float) -> Callable[[str], float]:
    """Make an argument type that accepts numbers from `low` to `high`."""

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be {low:g} to {high:g} (got {text})")
        return value

    parse.__name__ = "number"
    return parse


def run_and_report(name: str, run: Callable[..., list[BenchResult]], *, json: bool, **options: Any) -> int:
    """Run a tool and print its results; print an error to stderr.

    Returns:
        Exit code: 0, or 2 if the tool cannot run with these options or on this machine.
    """
    try:
        results = run(**options)
    except EmtcError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print_results(results, title=name, json=json)
    return 0
