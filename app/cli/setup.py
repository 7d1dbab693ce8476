"""What there is, what is missing, and how to get it: `emtc doctor`, `emtc envs`, `emtc setup`, `emtc check`.

`emtc setup` brings what an environment needs and pip cannot install beside this project; `emtc envs` lists
environments and maps, and why one cannot be used here; `emtc check plugin NAME` holds what comes from outside this
project to its contract; `emtc check device` compares what a device computes with the CPU.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.output import AsJson, choose, print_json, print_rows, print_table, printable, say
from app.jobs.device_check import DeviceReport, write_number
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import get_adapter, list_envs
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.setup import GAME_HELP, Task, list_tasks
from emtc_core.errors import ConfigError, EnvUnavailableError, PluginError
from emtc_core.plugins import KINDS, list_failures, list_plugins, make_missing_fault


def doctor(json: AsJson = False) -> None:
    """Check device, search library, environments and browser."""
    checks = run_checks()
    rows = [asdict(check) for check in checks]
    if json:
        print_json({"ok": all(check.usable for check in checks if check.needed), "checks": rows})
    else:
        print_table(rows, title="emtc doctor", empty="Nothing was checked.")


def envs(json: AsJson = False) -> None:
    """List environments and maps with their sizes, usable here or not."""
    rows = [asdict(row) for row in list_envs()]
    print_rows(rows, title="Environments", empty="No environment is registered.", json=json)


app = typer.Typer(no_args_is_help=True, help="Bring what an environment needs.")


@app.callback()
def setup() -> None:
    """Bring what an environment needs."""


@app.command()
def smac(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before downloading")] = False,
    python: Annotated[str, typer.Option(metavar="PYTHON", help="Interpreter to make the environment with")] = "",
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Wheels and SMAC_Maps.zip that were brought; nothing is loaded"),
    ] = None,
    json: AsJson = False,
) -> int:
    """Make SMAC and SMACv2 usable, but for the game: an interpreter of their own, the packages, the maps.

    What is there already is kept, so it may be run again at any time. For a machine without a network: elsewhere, run
    pip wheel -w FOLDER with what it names as packages, put the archive of the maps beside, and give --from FOLDER.
    """
    if source is not None and not source.is_dir():
        raise ConfigError("must be a folder", key="--from", value=str(source))
    if sys.platform == "win32":
        raise ConfigError("StarCraft II's game worker needs Linux or macOS")
    tasks = list_tasks(python or sys.executable, source.absolute() if source else None)
    _ask(tasks, yes=yes)
    try:
        _carry_out(tasks)
    except EnvUnavailableError as error:
        say(str(error))
        return 1
    missing = {name: get_adapter(name).find_unavailable_reason() for name in ("smac", "smacv2")}
    if json:
        print_json({"done": [task.name for task in tasks], "missing": missing})
    return _conclude(missing)


def _ask(tasks: list[Task], *, yes: bool) -> None:
    """What will be done and wait for a yes."""
    for task in tasks:
        say(f"{task.name}: {task.description}")
    if not tasks or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("Nothing was done, because this terminal cannot ask", hint="Agree with --yes")
    typer.confirm("Do this?", abort=True, err=True)


def _carry_out(tasks: list[Task]) -> None:
    if not tasks:
        return
    with _alone():
        for task in tasks:
            say(f"{task.name} …")
            for line in task.run():
                say(line)


def _conclude(missing: dict[str, str]) -> int:
    reasons = list(dict.fromkeys(filter(None, missing.values())))
    for reason in reasons:
        say(reason[0].upper() + reason[1:])
    if game_link.find_game_obstacle() in reasons:
        say(GAME_HELP.format(folder=game_link.game_folder()))
    if reasons:
        return 1
    say("Everything is there: emtc train --env smac --map 3m, or --env smacv2 --map terran_5_vs_5")
    return 0


@contextmanager
def _alone() -> Generator[None]:
    """Keep a second setup from working in the same folder."""
    import fcntl  # no such thing on Windows, where the worker does not run either

    home = game_link.home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "setup.lock").open("w")
    except OSError as error:
        raise ConfigError(f"{home} cannot be written: {error.strerror}", hint="Set XDG_DATA_HOME elsewhere.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError("Another emtc setup smac is at work", hint="Wait for it.") from error
        yield


check_app = typer.Typer(no_args_is_help=True, help="Check a plug-in, or what a device computes.")


@check_app.callback()
def check() -> None:
    """Check a plug-in, or what a device computes."""


@check_app.command()
def plugin(
    name: Annotated[str, typer.Argument(help="Name of a plug-in; without one, all that are here are listed")] = "",
    kind: Annotated[str, typer.Option("--kind", help=f"Only of this kind: {', '.join(KINDS)}")] = "",
    set: Annotated[list[str] | None, typer.Option("--set", help="env.NAME.argument=value, repeatable")] = None,
    json: AsJson = False,
) -> int:
    """Check a plug-in: one line per rule; exit code 0 if all hold, 1 if one is broken, 2 if there is none."""
    if not name:
        return _list(json=json)
    if kind and kind not in KINDS:
        raise PluginError(f"must be one of {', '.join(KINDS)}", key="--kind", value=kind)
    chosen = [each for each in KINDS if kind in ("", each)]
    found = [plugin for plugin in list_plugins() if plugin.name == name and plugin.kind in chosen]
    if not found:
        raise PluginError(make_missing_fault(kind or "plug-in", name))
    from emtc_core.training.conformance import check_plugin  # loads torch

    rows = [
        {"kind": plugin.kind, "plugin": plugin.label, "rule": each.rule, "holds": each.holds, "fault": each.fault}
        for plugin in found
        for each in check_plugin(plugin, set or ())
    ]
    if json:
        print_json(rows)
    else:
        for row in rows:
            mark, fault = ("ok", "") if row["holds"] else ("BROKEN", f": {row['fault']}")
            typer.echo(printable(f"{mark:6} {row['kind']} {row['plugin']}: {row['rule']}{fault}"))
    return 0 if all(row["holds"] for row in rows) else 1


def _list(*, json: bool) -> int:
    rows = [{"kind": each.kind, "name": each.name, "origin": each.origin} for each in list_plugins()]
    for module, why in list_failures().items():
        say(f"The module {module} of EMTC_PLUGINS failed when it was imported: {why}.")
    print_rows(rows, title="Plug-ins", empty="None is installed, and EMTC_PLUGINS lists none.", json=json)
    return 0


Quick = Annotated[bool, typer.Option("--quick", help="Smaller sizes: about one minute instead of five")]


@check_app.command()
def device(
    device: Annotated[str, typer.Option("--device", help="cpu or cuda; cuda where there is a GPU if missing")] = "",
    quick: Quick = False,
    json: AsJson = False,
) -> int:
    """Compare what a device computes with the CPU, and time both: one line per check; exit code 1 if one fails."""
    return _check_device(choose("device", device, ("cpu", "cuda")) if device else None, quick=quick, json=json)


@check_app.command()
def gpu(quick: Quick = False, json: AsJson = False) -> int:
    """Compare what the GPU computes with the CPU, and time both; the same as emtc check device --device cuda."""
    return _check_device("cuda", quick=quick, json=json)


def _check_device(name: Literal["cpu", "cuda"] | None, *, quick: bool, json: bool) -> int:
    import torch

    from app.device_check.checks import run_checks as run_device_checks
    from app.device_check.target import Target
    from emtc_core.devices import choose_device

    chosen = torch.device(name) if name else choose_device("auto")

    def on_result(report: DeviceReport) -> None:
        line = report.checks[-1].describe()
        say(line) if json else typer.echo(printable(line))

    report = run_device_checks(Target(chosen), quick=quick, on_result=on_result)
    if json:
        print_json({name: value for name, value in report.to_json().items() if not name.startswith("pid")})
        return 0 if report.passed else 1
    rows = [
        {"stage": each.stage, "unit": each.unit, "CPU": write_number(each.cpu), "device": write_number(each.device)}
        for each in report.speeds
    ]
    if rows:
        print_table(rows, title=f"Throughput, device = {chosen}", empty="")
    failed = [each.name for each in report.checks if not each.passed]
    say(f"{len(failed)} of {report.total} checks failed: {', '.join(failed)}." if failed else "Every check passed.")
    return 0 if report.passed else 1
