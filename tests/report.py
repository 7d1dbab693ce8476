"""Rows of a report, and the command line of the programs that print one: benchmarks and test tools."""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any, TypedDict

import psutil

from app.cli.output import print_json, print_table
from emtc_core.errors import EmtcError


class BenchResult(TypedDict):
    """One measured number, as a row of the report."""

    name: str
    value: float
    unit: str
    budget: float | None
    met: bool | None
    reference: str


def make_result(
    name: str,
    value: float,
    unit: str,
    budget: float | None = None,
    reference: str = "",
    *,
    met: bool | None = None,
    digits: int | None = None,
) -> BenchResult:
    """Make one row of the report. A rate meets its budget if value >= budget, any other value if value <= budget.

    Args:
        name: Dotted name: benchmark, quantity, and the case if there are several.
        value: The measured value, in `unit`.
        unit: A unit that ends in "/s" marks a rate.
        budget: The limit, or None if there is none.
        reference: A number to compare with, or the load during the measurement.
        met: Whether the budget is met, if the rule above does not apply.
        digits: Number of decimals in the report, or None for all. `met` is computed from the unrounded value.
    """
    if met is None and budget is not None:
        met = value >= budget if unit.endswith("/s") else value <= budget
    rounded = value if digits is None else round(value, digits or None)  # 0 digits give an integer
    return {"name": name, "value": rounded, "unit": unit, "budget": budget, "met": met, "reference": reference}


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
        with redirect_stdout(sys.stderr):  # libraries print messages when they are imported
            results = run(**options)
    except EmtcError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print_results(results, title=name, json=json)
    return 0


def print_results(results: Sequence[BenchResult], *, title: str, json: bool) -> None:
    """Print results as one JSON object with a description of this machine, or as a table."""
    if json:
        print_json({"machine": describe_machine(), "figures": results})
    else:
        print_table(results, title=title, empty="Nothing was measured.")


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, versions of Python and torch, and device."""
    import torch  # takes seconds, and most test tools do not need it

    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
