"""`emtc doctor`: what is installed and usable, and how to get what is missing."""

from dataclasses import asdict

from app.cli.output import AsJson, print_json, print_table
from app.jobs.doctor import run_checks


def doctor(json: AsJson = False) -> None:
    """Check device, search library, environments and browser."""
    checks = run_checks()
    rows = [asdict(check) for check in checks]
    if json:
        print_json({"ok": all(check.usable for check in checks if check.needed), "checks": rows})
    else:
        print_table(rows, title="emtc doctor", empty="Nothing was checked.")
