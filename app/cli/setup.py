"""Commands about the installation: `emtc doctor`, `emtc envs`, `emtc setup`, `emtc check`.

`emtc doctor` checks what is installed. `emtc envs` lists environments and maps, and why one cannot be used. `emtc
setup` installs requirements of an environment that pip cannot install next to this project. `emtc check plugin NAME`
checks the contract of a plug-in.
"""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.output import AsJson, print_json, print_message, print_rows, print_table, printable
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import get_adapter, list_envs
from emtc_core.envs.smac.setup import install
from emtc_core.errors import ConfigError, EnvUnavailableError, PluginError
from emtc_core.plugins import KINDS, list_failures, list_plugins, make_missing_fault

app = typer.Typer(no_args_is_help=True, help="Install the requirements of an environment.")
check_app = typer.Typer(no_args_is_help=True, help="Check a plug-in.")


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


@check_app.callback()
def check() -> None:
    """Check a plug-in."""


@check_app.command()
def plugin(
    name: Annotated[str, typer.Argument(help="Name of a plug-in; default: list all")] = "",
    kind: Annotated[str, typer.Option("--kind", help=f"Kind of the plug-in: {', '.join(KINDS)}")] = "",
    set: Annotated[list[str] | None, typer.Option("--set", help="env.NAME.argument=value, repeatable")] = None,
    json: AsJson = False,
) -> int:
    """Check a plug-in: one line per rule. Exit code 0: no violation, 1: a violation, 2: no such plug-in."""
    if not name:
        return _list_plugins(json=json)
    if kind and kind not in KINDS:
        raise PluginError(f"must be one of {', '.join(KINDS)}", key="--kind", value=kind)
    plugins = [plugin for plugin in list_plugins() if plugin.name == name and kind in ("", plugin.kind)]
    if not plugins:
        raise PluginError(make_missing_fault(kind or "plug-in", name))
    from emtc_core.training.conformance.check import check_plugin  # imports torch

    rows = [
        {"kind": plugin.kind, "plugin": plugin.label, "rule": result.rule, "holds": result.holds, "fault": result.fault}
        for plugin in plugins
        for result in check_plugin(plugin, set or ())
    ]
    if json:
        print_json(rows)
    else:
        for row in rows:
            mark, fault = ("ok", "") if row["holds"] else ("BROKEN", f": {row['fault']}")
            typer.echo(printable(f"{mark:6} {row['kind']} {row['plugin']}: {row['rule']}{fault}"))
    return 0 if all(row["holds"] for row in rows) else 1


def _list_plugins(*, json: bool) -> int:
    rows = [{"kind": plugin.kind, "name": plugin.name, "origin": plugin.origin} for plugin in list_plugins()]
    for module, reason in list_failures().items():
        print_message(f"The module {module} in EMTC_PLUGINS cannot be imported: {reason}.")
    empty = "No plug-in is installed, and EMTC_PLUGINS lists none."
    print_rows(rows, title="Plug-ins", empty=empty, json=json)
    return 0
