"""Commands about the installation: `emtc doctor`, `emtc envs`, `emtc setup`, `emtc check`.

`emtc doctor` checks what is installed. `emtc envs` lists environments and maps, and why one cannot be used. `emtc
setup` installs requirements of an environment that pip cannot install next to this project. `emtc check device`
compares the results of a device with the CPU.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli.output import AsJson, choose, print_json, print_message, print_rows, print_table, printable
from app.jobs.device_check import DeviceReport, write_number
from app.jobs.doctor import run_checks
from emtc_core.envs.registry import get_adapter, list_envs
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.setup import GAME_HELP, InstallTask, list_tasks
from emtc_core.errors import ConfigError, EnvUnavailableError

Quick = Annotated[bool, typer.Option("--quick", help="Smaller sizes: about one minute instead of five")]

app = typer.Typer(no_args_is_help=True, help="Install the requirements of an environment.")
check_app = typer.Typer(no_args_is_help=True, help="Check the results of a device.")


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
    """Check the results of a device."""


@check_app.command()
def device(
    device: Annotated[str, typer.Option("--device", help="cpu or cuda; default: cuda if there is a GPU")] = "",
    quick: Quick = False,
    json: AsJson = False,
) -> int:
    """Compare the results of a device with the CPU and time both. The exit code is 1 if a check fails."""
    return _check_device(choose("device", device, ("cpu", "cuda")) if device else None, quick=quick, json=json)


@check_app.command()
def gpu(quick: Quick = False, json: AsJson = False) -> int:
    """Compare the results of the GPU with the CPU and time both. The same as: emtc check device --device cuda."""
    return _check_device("cuda", quick=quick, json=json)


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


def _check_device(name: Literal["cpu", "cuda"] | None, *, quick: bool, json: bool) -> int:
    import torch

    from app.device_check.checks import run_checks as run_device_checks
    from app.device_check.target import Target
    from emtc_core.devices import choose_device

    device = torch.device(name) if name else choose_device("auto")

    def on_result(report: DeviceReport) -> None:
        line = report.checks[-1].describe()
        print_message(line) if json else typer.echo(printable(line))

    report = run_device_checks(Target(device), quick=quick, on_result=on_result)
    if json:
        print_json({name: value for name, value in report.to_json().items() if not name.startswith("pid")})
        return 0 if report.passed else 1
    rows = [
        {"stage": row.stage, "unit": row.unit, "CPU": write_number(row.cpu), "device": write_number(row.device)}
        for row in report.speeds
    ]
    if rows:
        print_table(rows, title=f"Throughput, device = {device}", empty="")
    failed = [result.name for result in report.checks if not result.passed]
    print_message(
        f"{len(failed)} of {report.total} checks failed: {', '.join(failed)}." if failed else "All checks passed."
    )
    return 0 if report.passed else 1
