"""`emtc worker`: train queued runs of a database, on any machine that reaches it."""

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, say
from app.jobs.sweeps.worker import Work, leave_signals, summarize
from storage.engine import Database, refuse_when_read_only
from storage.files.places import check_place, describe_place
from storage.queries.sweeps import get_sweep
from storage.retry import open_patiently
from storage.runs.claims import NO_LIMIT, Claim, claim_any, claim_run


def worker(
    once: Annotated[bool, typer.Option("--once", help="End when no run waits, instead of waiting for more")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Trainers at once")] = 1,
    gpu: Annotated[int | None, typer.Option(min=0, help="Number of the GPU that its trainers use")] = None,
    sweep: Annotated[str | None, typer.Option(help="Take runs of this sweep only; its id, or how it begins")] = None,
    at_most: Annotated[int | None, typer.Option(min=1, help="Take none while so many runs of the sweep train")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Take queued and lost runs from the database and train them; on SIGTERM or SIGUSR1 give them back and end."""
    if at_most is not None and sweep is None:
        raise typer.BadParameter("--at-most counts the runs of one sweep. Name it with --sweep")
    with leave_signals() as leave:
        refuse_when_read_only("train runs")
        check_place()
        database = open_patiently(db, say=say, is_over=lambda: leave.asked)
        if where := describe_place(database):
            say(where)
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)  # the trainers inherit it
        try:
            claim = _claim_of(database, sweep, at_most) if sweep else claim_any
            done = Work(database, jobs=jobs, leave=leave, say=say, claim=claim).run(once=once)
        except KeyboardInterrupt:
            say("Ended at once. The next worker goes on from the last checkpoints.")
            return 1
    say(summarize(done))
    if json:
        print_json([asdict(left) for left in done])
    return 0


def _claim_of(db: Database, sweep: str, at_most: int | None) -> Callable[..., Claim | None]:
    return partial(claim_run, sweep_id=get_sweep(db, sweep).id, jobs=at_most or NO_LIMIT)
