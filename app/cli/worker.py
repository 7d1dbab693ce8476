"""`emtc worker`: train queued runs of a database, on any machine that reaches it."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, say
from app.sweeps.worker import Work, leave_signals, summarize
from storage.engine import open_database, refuse_when_read_only
from storage.places import check_place, describe_place


def worker(
    once: Annotated[bool, typer.Option("--once", help="End when no run waits, instead of waiting for more")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Trainers at once")] = 1,
    gpu: Annotated[int | None, typer.Option(min=0, help="Number of the GPU that its trainers use")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Take queued and lost runs from the database and train them; on SIGTERM or SIGUSR1 give them back and end."""
    with leave_signals() as leave:
        refuse_when_read_only("train runs")
        check_place()
        database = open_database(db, create=False)
        if where := describe_place(database):
            say(where)
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)  # the trainers inherit it
        try:
            done = Work(database, jobs=jobs, leave=leave, say=say).run(once=once)
        except KeyboardInterrupt:
            say("Ended at once. The next worker goes on from the last checkpoints.")
            return 1
    say(summarize(done))
    if json:
        print_json([asdict(left) for left in done])
    return 0
