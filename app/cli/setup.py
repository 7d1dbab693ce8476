"""Commands about the installation: `emtc doctor`, `emtc envs`, `emtc setup`, `emtc check`.

`emtc doctor` checks what is installed. `emtc envs` lists environments and maps, and why one cannot be used. `emtc
setup` installs requirements of an environment that pip cannot install next to this project. `emtc check plugin NAME`
checks the contract of a plug-in.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import AsJson, print_json, print_message, print_rows, print_table, printable
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import get_adapter, list_envs
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.setup import GAME_HELP, InstallTask, list_tasks
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
def smac(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation")] = False,
    python: Annotated[str, typer.Option(metavar="PYTHON", help="Interpreter of the virtual environment")] = "",
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Folder with wheels and SMAC_Maps.zip; nothing is downloaded"),
    ] = None,
    json: AsJson = False,
) -> int:
    """Install SMAC and SMACv2 without the game: a separate virtual environment, the packages and the maps.

    Installed parts are kept, so the command can be repeated. For a machine without a network: on another machine, run
    pip wheel -w FOLDER with the listed packages, put the archive of the maps into FOLDER, and use --from FOLDER.
    """
    if source is not None and not source.is_dir():
        raise ConfigError("must be a folder", key="--from", value=str(source))
    if sys.platform == "win32":
        raise ConfigError("StarCraft II's game worker needs Linux or macOS")
    tasks = list_tasks(python or sys.executable, source.absolute() if source else None)
    _confirm(tasks, yes=yes)
    try:
        with _setup_lock() if tasks else nullcontext():
            for task in tasks:
                print_message(f"{task.name} …")
                for line in task.run():
                    print_message(line)
    except EnvUnavailableError as error:
        print_message(str(error))
        return 1
    missing = {name: get_adapter(name).find_unavailable_reason() for name in ("smac", "smacv2")}
    if json:
        print_json({"done": [task.name for task in tasks], "missing": missing})
    reasons = list(dict.fromkeys(filter(None, missing.values())))
    for reason in reasons:
        print_message(reason[0].upper() + reason[1:])
    if game_link.find_game_obstacle() in reasons:
        print_message(GAME_HELP.format(folder=game_link.game_folder()))
    if not reasons:
        print_message("SMAC can be used: emtc train --env smac --map 3m, or --env smacv2 --map terran_5_vs_5")
    return 1 if reasons else 0


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


def _confirm(tasks: list[InstallTask], *, yes: bool) -> None:
    """Print the tasks and ask for confirmation."""
    for task in tasks:
        print_message(f"{task.name}: {task.description}")
    if not tasks or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("Nothing was done, because stdin is not a terminal", hint="Confirm with --yes")
    typer.confirm("Continue?", abort=True, err=True)


@contextmanager
def _setup_lock() -> Generator[None]:
    """Lock the folder of the SMAC installation, so that only one setup runs at a time."""
    import fcntl  # not available on Windows, where the game worker does not run either

    home = game_link.home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "setup.lock").open("w")
    except OSError as error:
        hint = "Set XDG_DATA_HOME to another folder."
        raise ConfigError(f"{home} cannot be written: {error.strerror}", hint=hint) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError("Another emtc setup smac is running", hint="Wait until it has ended.") from error
        yield


def _list_plugins(*, json: bool) -> int:
    rows = [{"kind": plugin.kind, "name": plugin.name, "origin": plugin.origin} for plugin in list_plugins()]
    for module, reason in list_failures().items():
        print_message(f"The module {module} in EMTC_PLUGINS cannot be imported: {reason}.")
    empty = "No plug-in is installed, and EMTC_PLUGINS lists none."
    print_rows(rows, title="Plug-ins", empty=empty, json=json)
    return 0
