"""The `emtc` command.

Exit codes: 0 done, 1 the run failed or nobody heard, 2 unusable arguments (one sentence, nothing created).
Results go to stdout, everything else to stderr; with --json stdout holds one JSON value and nothing more.
"""

import gc
import io
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from app.cli.output import say
from emtc_core.control import StopRequested
from emtc_core.errors import CommandTimeoutError, EmtcError

# Set before torch loads OpenMP: threads that spin while they wait make two trainers on one machine, or a
# trainer beside the app, many times slower than threads that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TRACEBACK_VARIABLE = "EMTC_TRACEBACK"
LONGEST_COMPLAINT = 4000

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export it


@dataclass(frozen=True)
class Command:
    """Where a command is, so that no other one's modules are imported for it: those of `export` cost seconds."""

    place: str  # "module:function" of app.cli, or "module:app" for a group of commands
    about: str  # its line in the list of commands
    hidden: bool = False

    def load(self) -> Any:
        """Import it; meanwhile nobody looks for garbage, of which modules leave none: that is a tenth of the time."""
        module, _, name = self.place.partition(":")
        gc.disable()
        try:
            return getattr(import_module(f"app.cli.{module}"), name)
        finally:
            gc.enable()


COMMANDS = {
    "app": Command("serve:serve_app", "Start the app in the browser, from a checkout or a wheel."),
    "train": Command("train:train", "Train one run in the foreground, or detached."),
    "train-worker": Command("train:train_worker", "Train a run that another process has created.", hidden=True),
    "runs": Command("runs:runs", "List runs: search, filter, sort, page by page."),
    "show": Command("runs:show", "Show one run: status, progress, configuration, versions."),
    "stop": Command("runs:stop", "Stop a run, which leaves a checkpoint."),
    "pause": Command("runs:pause", "Pause a run between two of its environment steps."),
    "ask": Command("runs:ask_run", "Ask a living run to evaluate or play with its present policy."),
    "evaluate": Command("evaluate:evaluate", "Play greedy episodes with a stored policy, without its trainer."),
    "resume": Command("train:resume", "Go on with a run that paused, stopped, failed or was lost."),
    "delete": Command("runs:delete", "Delete a run with everything that it recorded, and its folder."),
    "tag": Command("runs:tag", "Give runs tags, or take tags from them."),
    "note": Command("runs:note", "Write a note to a run."),
    "archive": Command("runs:archive", "Put runs away, or back; nothing is deleted."),
    "hide": Command("runs:hide", "Leave runs out of figures, or show them again."),
    "sweep": Command("sweep:sweep", "Train every run of a sweep file, or go on with it."),
    "sweep-worker": Command("sweep:sweep_worker", "Start the runs of a sweep that another process saved.", hidden=True),
    "worker": Command("sweep:worker", "Train queued runs of a database, on any machine that reaches it."),
    "project": Command("project:project", "Project the memory of a run to the plane."),
    "export": Command("export:export", "Write one figure or one table of some runs."),
    "bundle": Command("bundle:bundle", "Write runs into one file for a colleague."),
    "open": Command("bundle:open_file", "Check a bundle and show it, or import its runs."),
    "import": Command(
        "exchange:import_foreign", "Import curves that another program trained: sacred, CSV, TensorBoard."
    ),
    "mirror": Command("exchange:mirror", "Show runs in TensorBoard, W&B or MLflow as they train."),
    "notebook": Command("notebook:app", "List the research notebook's entries, or export them."),
    "db": Command("database:app", "Care for a database, a foreign one too."),
    "sql": Command("database:sql", "Ask a database in SQL; nothing can be changed."),
    "watch": Command("watch:watch", "Tell what happens to runs, and stop those that a rule names."),
    "envs": Command("setup:envs", "List environments and maps with their sizes, usable here or not."),
    "setup": Command("setup:app", "Bring what an environment needs: emtc setup smac."),
    "bench": Command("bench:bench", "Run one benchmark, or all of the performance budgets."),
    "check": Command("setup:check_app", "Check a plug-in, or what a device computes: emtc check device."),
    "doctor": Command("setup:doctor", "Check device, search library, environments and browser."),
}


def make_app(asked: str | None) -> typer.Typer:
    """Make the command line with one command loaded, the asked one, and the others by name only."""
    app = typer.Typer(
        name="emtc",
        help="Train, watch and export runs of Episodic Memory Temporal Consistency and its baselines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name, command in COMMANDS.items():
        loaded = command.load() if name == asked else lambda: None
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name, help=None if name == asked else command.about, hidden=command.hidden)(loaded)
    return app


def main() -> None:
    """Run the command line; every deliberate error becomes one sentence and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may hold what the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        app = make_app(next((word for word in arguments if not word.startswith("-")), None))
        result = app(args=arguments, prog_name="emtc", standalone_mode=False)
    except UsageError as exc:
        return _complain(exc.format_message())  # type: ignore[attr-defined]  # every usage error of typer has it
    except CommandTimeoutError as exc:
        return _complain(str(exc), code=1)
    except EmtcError as exc:
        return _complain(str(exc))
    except (KeyboardInterrupt, StopRequested, typer.Abort):
        return _complain("Interrupted.", code=1)
    except BrokenPipeError:
        return 1
    except Exception as exc:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        kind = f"{type(exc).__name__}: {exc}".strip().splitlines()[0]
        return _complain(f"emtc has a fault of its own ({kind}). See where with: {TRACEBACK_VARIABLE}=1", code=1)
    return int(result) if isinstance(result, int) else 0


def _complain(sentence: str, code: int = 2) -> int:
    say(sentence if len(sentence) <= LONGEST_COMPLAINT else f"{sentence[:LONGEST_COMPLAINT]} …")
    return code


if __name__ == "__main__":
    main()
