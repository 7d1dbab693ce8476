"""`emtc worker`: train queued runs of a database, on any machine."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl
from app.cli.output import print_json, print_message
from app.jobs.sweeps.worker import WorkerLoop, handle_leave_signals, summarize
from storage.engine import check_not_read_only
from storage.files import check_files_folder, describe_files_folder
from storage.retry import open_with_retry
from storage.runs.sweeps import get_sweep


def worker(
    once: Annotated[bool, typer.Option("--once", help="Exit when no run is queued, instead of waiting")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Trainers at the same time")] = 1,
    gpu: Annotated[int | None, typer.Option(min=0, help="Index of the GPU that the trainers use")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Train only runs of this sweep; its id or a beginning of it")
    ] = None,
    env_module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also train runs whose map is NAME:factory; NAME is imported; repeatable"),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Claim queued and lost runs of the database and train them. SIGTERM or SIGUSR1 returns them to the queue."""
    with handle_leave_signals() as leave_request:
        check_not_read_only("train runs")
        check_files_folder()
        database = open_with_retry(db, report=print_message, is_cancelled=lambda: leave_request.is_requested)
        if message := describe_files_folder(database):
            print_message(message)
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)  # the trainers inherit it
        try:
            loop = WorkerLoop(
                database,
                jobs=jobs,
                leave=leave_request,
                announce=print_message,
                sweep_id=get_sweep(database, sweep).id if sweep else None,
                env_modules=env_module or (),
            )
            trained_runs = loop.run(once=once)
        except KeyboardInterrupt:
            print_message("Ended immediately. The next worker resumes the runs from their last checkpoints.")
            return 1
    print_message(summarize(trained_runs))
    if json:
        print_json([asdict(run) for run in trained_runs])
    return 0
