"""Commands about the installation: `emtc doctor`, `emtc envs`, `emtc setup`.

`emtc doctor` checks what is installed. `emtc envs` lists environments and maps, and why one cannot be used. `emtc
setup` installs requirements of an environment that pip cannot install next to this project.
"""

import sys
from dataclasses import asdict

import typer

from app.cli.output import AsJson, print_json, print_message, print_rows, print_table
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import get_adapter, list_envs
from emtc_core.envs.smac.setup import install
from emtc_core.errors import ConfigError, EnvUnavailableError

app = typer.Typer(no_args_is_help=True, help="Install the requirements of an environment.")


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
    print_rows(rows, title="Environments", empty="No environment is registered.", json=json)


@app.callback()
def setup() -> None:
    """Install the requirements of an environment."""


@app.command()
def smac() -> int:
    """Install SMAC and SMACv2 without the game: a separate virtual environment (350 MB), the packages and the maps."""
    if sys.platform == "win32":
        raise ConfigError("StarCraft II's game worker needs Linux or macOS")
    try:
        install(print_message)
    except EnvUnavailableError as error:
        print_message(str(error))
        return 1
    reasons = filter(None, (get_adapter(name).find_unavailable_reason() for name in ("smac", "smacv2")))
    if reason := next(reasons, ""):
        print_message(reason[0].upper() + reason[1:])
        return 1
    print_message("SMAC can be used: emtc train --env smac --map 3m, or --env smacv2 --map terran_5_vs_5")
    return 0
