"""Saved sweeps whose runs have win rates, written through storage's own recorder."""

import numpy as np

from app.jobs.sweeps.control import create_sweep
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import make_plan
from emtc_core.recorder import EvaluationRecord
from storage.engine import Database
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import finish_run, start_run
from storage.runs.sweeps import sweep_runs

LAMBDA = """
name = "Weights *of* <b>losses</b>"
study = "lambda-heatmap"
steps = 1000
seeds = 2
[grid]
embed.lambda_rcon = [0.05, 0.1]
embed.lambda_cl = [0.05, 0.1, 0.15]
"""
TAU = """
name = "Temperatures"
study = "tau-study"
steps = 1000
seeds = 2
[[variant]]
name = "fixed"
set = { gate.tau_start = 0.6, gate.tau_end = 0.6 }
[[variant]]
name = "cooling"
"""
DELTA = """
name = "Radii"
study = "delta-embedder"
steps = 1000
seeds = 2
[set]
gate.enabled = false
[grid]
memory.delta = [1.8e-7, 1.8e-3]
embed.type = ["random", "dcae", "tcse"]
"""
ABLATION = """
name = "Parts"
study = "ablation"
steps = 1000
seeds = 1
[[variant]]
name = "one"
[[variant]]
name = "two"
set.gate.enabled = false
[[variant]]
name = "three"
set.embed.type = "dcae"
[[variant]]
name = "four"
algo = "emu-qplex"
"""
AUGMENTATION = """
name = "Noise"
study = "augmentation"
steps = 1000
seeds = 2
[[variant]]
name = "a"
set = { embed.p_mask = 0.1, embed.sigma = 0.05 }
[[variant]]
name = "b"
set = { embed.p_mask = 0.2, embed.sigma = 0.05 }
[[variant]]
name = "c"
set = { embed.p_mask = 0.2, embed.sigma = 0.1 }
"""


def seed_sweep(db: Database, text: str, *, unfinished: tuple[int, ...] = ()) -> str:
    """Save a sweep and finish its runs, but for those at `unfinished`; run i ends with a win rate of i/16."""
    plan = make_plan(parse_sweep(text))
    create_sweep(db, plan, jobs=1)
    for i, run in enumerate(sweep_runs(db, plan.id)):
        if i not in unfinished:
            _train(db, run.id, wins=i % 17)
    return plan.id


def _train(db: Database, run_id: str, *, wins: int) -> None:
    start_run(db, run_id, device="cpu")
    recorder = DatabaseRecorder(db, run_id)
    for step, won in ((250, 0), (500, wins), (1000, wins)):
        flags = np.arange(16) < won
        lengths = np.full(16, 10)
        recorder.record_evaluation(
            EvaluationRecord(env_step=step, returns=flags.astype(np.float32), lengths=lengths, won=flags, playbacks=())
        )
    recorder.close()
    finish_run(db, run_id, "finished")
