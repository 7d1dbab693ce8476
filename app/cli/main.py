"""The `emtc` command.

Exit codes: 0 done, 1 the run failed or nobody heard, 2 unusable arguments (one sentence, nothing created).
Results go to stdout, everything else to stderr; with --json stdout holds one JSON value and nothing more.
"""

import io
import os
import sys

import typer

from app.cli import bench, database, doctor, envs, export, labels, notebook, project, runs, sweep, train
from app.cli.output import say
from emtc_core.control import StopRequested
from emtc_core.errors import EmtcError, UnheardError

# Set before torch loads OpenMP: threads that spin while they wait make two trainers on one machine, or a
# trainer beside the app, many times slower than threads that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TRACEBACK_VARIABLE = "EMTC_TRACEBACK"
LONGEST_COMPLAINT = 4000

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export it

app = typer.Typer(
    name="emtc",
    help="Train, watch and export runs of Episodic Memory Temporal Consistency and its baselines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("train-worker", hidden=True)(train.train_worker)
app.command("runs")(runs.runs)
app.command("show")(runs.show)
app.command("stop")(runs.stop)
app.command("pause")(runs.pause)
app.command("resume")(train.resume)
app.command("delete")(runs.delete)
app.command("tag")(labels.tag)
app.command("note")(labels.note)
app.command("archive")(labels.archive)
app.command("hide")(labels.hide)
app.command("sweep")(sweep.sweep)
app.command("sweep-worker", hidden=True)(sweep.sweep_worker)
app.command("project")(project.project)
app.command("export")(export.export)
app.add_typer(notebook.app, name="notebook")
app.add_typer(database.app, name="db")
app.command("envs")(envs.envs)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run the command line; every deliberate error becomes one sentence and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may hold what the terminal's encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        result = app(args=arguments, prog_name="emtc", standalone_mode=False)
    except UsageError as exc:
        return _complain(exc.format_message())  # type: ignore[attr-defined]  # every usage error of typer has it
    except UnheardError as exc:
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
