"""Commands about the installation: `emtc doctor` checks what is installed, `emtc envs` lists environments and maps."""

from dataclasses import asdict

from app.cli.arguments import AsJson
from app.cli.output import print_json, print_table
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import list_envs


def doctor(json: AsJson = False) -> None:
    """Check device, nearest-neighbour library, environments and browser."""
    checks = run_checks()
    rows = [asdict(check) for check in checks]
    if json:
        print_json({"ok": all(check.usable for check in checks if check.needed), "checks": rows})
    else:
        print_table(rows, title="emtc doctor", empty="No checks.")


def envs(json: AsJson = False) -> None:
    """List environments and maps with their sizes, and whether they can be used."""
    rows = [asdict(row) for row in list_envs()]
    print_table(rows, title="Environments", empty="No environment is registered.", json=json)
