"""The background process of the page Health: `python -m tests.gpu --device cuda --report FILE`."""

import argparse
import sys
from pathlib import Path

import torch

from tests.gpu.checks import run_checks
from tests.gpu.report import DeviceReport, sign_report, write_report
from tests.gpu.target import Target


def main() -> int:
    """Run the checks and replace the report after each check. Return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.gpu")
    parser.add_argument("--device", required=True, choices=("cpu", "cuda"))
    parser.add_argument("--report", required=True, type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()

    def on_result(report: DeviceReport) -> None:
        # The signature is the id of this process, by which the page sees whether the checks still run.
        write_report(arguments.report, sign_report(report))
        sys.stdout.write(f"{report.checks[-1].describe()}\n")

    device_under_test = Target(torch.device(arguments.device))
    return 0 if run_checks(device_under_test, quick=arguments.quick, on_result=on_result).passed else 1


if __name__ == "__main__":
    sys.exit(main())
