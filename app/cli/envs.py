"""`emtc envs`: which environments and maps there are, and why one cannot be used here."""

from dataclasses import asdict

from app.cli.output import AsJson, print_json, print_table
from emtc_core.envs.registry import list_envs


def envs(json: AsJson = False) -> None:
    """List environments and maps with their sizes, usable here or not."""
    rows = [asdict(row) for row in list_envs()]
    if json:
        print_json(rows)
    else:
        print_table(rows, title="Environments", empty="No environment is registered.")
