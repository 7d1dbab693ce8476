"""The `emtc` command.

Exit codes: 0 success; 1 the run failed or did not respond; 2 invalid arguments (one message, nothing is created).
Results are written to stdout, all other messages to stderr. With --json, stdout contains exactly one JSON value.
"""

import gc
import io
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from app.cli.output import print_message
from emtc_core import __version__
from emtc_core.control import StopRequested
from emtc_core.errors import CommandTimeoutError, EmtcError, shorten

# Set before torch loads OpenMP. By default, waiting threads spin. Two trainers on one machine, or a trainer and the
# app, then run many times slower than with sleeping threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TRACEBACK_VARIABLE = "EMTC_TRACEBACK"
MAX_ERROR_LENGTH = 4000
"""Maximum number of characters of an error message."""

# The base class of all errors in arguments. Typer does not export it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True)
class Command:
    """Location of a command. Only the modules of the command that runs are imported: those of `export` take seconds."""

    location: str
    """`module:function` in `app.cli`, or `module:app` for a group of commands."""
    summary: str
    """Line in the list of commands."""
    hidden: bool = False

    def load(self) -> Any:
        """Import the command."""
        module, _, name = self.location.partition(":")
        return getattr(import_module(f"app.cli.{module}"), name)


COMMANDS = {
    "app": Command("serve:serve_app", "Start the app in the browser, from a checkout or a wheel."),
    "train": Command("train:train", "Train one run in the foreground, or detached."),
    "train-worker": Command("train:train_detached_run", "Train a run that another process has created.", hidden=True),
    "runs": Command("runs:runs", "List runs: search, filter, sort."),
    "show": Command("runs:show", "Show one run: status, progress, configuration, versions."),
    "diff": Command("diff:diff", "Compare two runs: settings, versions and results that differ."),
    "stop": Command("runs:stop", "Stop runs, each with a checkpoint."),
    "pause": Command("runs:pause", "Pause runs between two of their environment steps."),
    "ask": Command("runs:ask_run", "Evaluate or play the present policy of an active run."),
    "evaluate": Command("evaluate:evaluate", "Play greedy episodes with a stored policy, without its trainer."),
    "resume": Command("train:resume", "Resume runs that are paused, stopped, failed or lost."),
    "delete": Command("runs:delete", "Delete runs with their recorded data and their folders."),
    "tag": Command("runs:tag", "Add tags to runs, or remove tags."),
    "note": Command("runs:note", "Write the note of a run."),
    "archive": Command("runs:archive", "Archive runs, or restore them; nothing is deleted."),
    "hide": Command("runs:hide", "Hide runs in figures, or show them again."),
    "sweep": Command("sweep:sweep", "Train every run of a sweep file, or continue or stop it."),
    "worker": Command("worker:worker", "Train queued runs of a database, on any machine that can connect to it."),
    "project": Command("project:project", "Project the memory of a run to two dimensions."),
    "export": Command("export:export", "Write one figure or one table of runs to a file."),
    "bundle": Command("bundle:bundle", "Write runs to one file, to share them."),
    "open": Command("bundle:open_file", "Check a bundle and show it in the app, or import its runs."),
    "import": Command("exchange:import_foreign", "Import curves from another program: sacred, CSV, TensorBoard."),
    "mirror": Command("exchange:mirror", "Copy runs to TensorBoard, W&B or MLflow during training."),
    "notebook": Command("notebook:app", "List the research notebook's entries, or export them."),
    "db": Command("database:app", "Maintain a database, also one from another person."),
    "sql": Command("database:sql", "Query a database in SQL, read-only."),
    "watch": Command("watch:watch", "Print and send alerts about runs, and stop runs by rules."),
    "envs": Command("installation:envs", "List environments and maps with their sizes, and whether they can be used."),
    "doctor": Command("installation:doctor", "Check device, nearest-neighbour library, environments and browser."),
}


def make_app(requested: str | None) -> typer.Typer:
    """Make the command line. Only the requested command is imported; the others are only listed by name."""
    app = typer.Typer(
        name="emtc",
        help="Train, watch and export runs of Episodic Memory Temporal Consistency and its baselines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_main_options)
    for name, command in COMMANDS.items():
        if name != requested:
            app.command(name, help=command.summary, hidden=command.hidden)(lambda: None)
            continue
        loaded = command.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name, hidden=command.hidden)(loaded)
    return app


def _print_version(is_requested: bool) -> None:
    if is_requested:
        sys.stdout.write(f"emtc-lab {__version__}\n")
        raise typer.Exit


def _main_options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version"),
    ] = False,
) -> None:
    """Options of `emtc` itself."""


def main() -> None:
    """Run the command line. Each `EmtcError` is printed as one message and gives an exit code."""
    # By default, the garbage collector looks at all objects many times while modules are imported. That takes a tenth
    # of the processor time of a trainer's start.
    gc.set_threshold(50_000)
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding of the terminal may not have every character of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    requested = next((word for word in arguments if not word.startswith("-")), None)
    try:
        result = make_app(requested)(args=arguments, prog_name="emtc", standalone_mode=False)
    except UsageError as exc:
        return _fail(exc.format_message())  # type: ignore[attr-defined]  # every usage error of typer has this method
    except CommandTimeoutError as exc:
        return _fail(str(exc), code=1)
    except EmtcError as exc:
        return _fail(str(exc))
    except (KeyboardInterrupt, StopRequested, typer.Abort):
        return _fail("Interrupted.", code=1)
    except BrokenPipeError:
        return 1
    except Exception as exc:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        kind = f"{type(exc).__name__}: {exc}".strip().splitlines()[0]
        return _fail(
            f"Internal error ({kind}): the program has an error, or the data cannot be read. Print the traceback with: "
            f"{TRACEBACK_VARIABLE}=1",
            code=1,
        )
    return int(result) if isinstance(result, int) else 0


def _fail(message: str, code: int = 2) -> int:
    """Print a message and return the exit code."""
    print_message(shorten(message, MAX_ERROR_LENGTH))
    return code


if __name__ == "__main__":
    main()
