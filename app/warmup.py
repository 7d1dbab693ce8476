"""`python -m app.warmup`: compile the Numba kernels that a first run uses, and unpack the runs of the example study.

Numba compiles a kernel at its first call and stores it on disk. Each of `PARTS` is compiled in a separate process, so
that the parts compile in parallel. A short training run then loads these kernels from disk and compiles the others.
Kernels that only 2-D projections of the memory use are compiled by the first projection, or here with `--all`. Imports
are local, so that the process of a part imports only the modules it compiles.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from emtc_core.config.resolve import resolve
from emtc_core.errors import ConfigError
from emtc_core.kernel_cache import check_kernel_cache

NICENESS = 10
STEPS = 200
"""Env steps of the short training run."""
SHORT_RUN_SETTINGS = {
    "eval.episodes": 8,
    "train.burn_in": 4,
    "train.batch": 4,
    "embed.interval": 100,
    "embed.min_entries": 32,
    "embed.min_episodes": 4,
    "embed.batch": 32,
}
"""Settings with which a run of `STEPS` env steps updates its learner and fits its embedder."""


def compile_simulator() -> None:
    """Compile the kernels of skirmish, the embedded simulator."""
    from emtc_core.envs.skirmish.env import warm_up

    warm_up()


def compile_memory() -> None:
    """Compile the writes and lookups of the episodic memory, its order of eviction, and the merging of nodes again."""
    import torch

    from emtc_core.embedder.networks import Embedder
    from emtc_core.memory.memory import EpisodicMemory
    from emtc_core.memory.remerge import StoredNodes, remerge
    from emtc_core.threads import configure_threads

    configure_threads()
    config = resolve(preset="demo", steps=STEPS)
    embedder = Embedder(config.embed, state_dim=8, episode_limit=16, device=torch.device("cpu"), seed=0)
    memory = EpisodicMemory(config.memory, state_dim=8, gamma=config.train.gamma, embedder=embedder)
    state = np.random.default_rng(0).normal(size=(17, 8)).astype(np.float32)
    slots = memory.write(state=state, reward=np.ones(16, np.float32), won=True, episode=0, episode_return=16.0)
    memory.find(state, np.arange(17))
    memory.recall(slots)
    memory.keep_unchanged(slots[None], memory.uids(slots)[None], length=np.array([16]), episode=np.array([0]))
    memory.get_state()
    # *What if* on the page Memory merges stored nodes again with another radius. The values are arbitrary.
    rows = np.arange(17)
    zeros = np.zeros(17)
    nodes = StoredNodes(state[:, :4].copy(), rows, rows.astype(np.int32), zeros, rows > 8, rows, rows, rows)
    remerge(nodes, delta=1.0, config=config.memory)


def compile_learner() -> None:
    """Compile the agents' recurrent network, their actions, and the embedder's losses, forward and backward."""
    import torch
    from torch import nn

    from emtc_core.embedder.fit import fit
    from emtc_core.embedder.networks import Embedder
    from emtc_core.envs.registry import get_env_info
    from emtc_core.learner.learner import make_learner
    from emtc_core.learner.recurrence import run_linear_gru
    from emtc_core.learner.step_rows import StepRows
    from emtc_core.memory.memory import NodeSample
    from emtc_core.threads import configure_threads

    rows = StepRows(np.array([3, 3]), 3)
    run_linear_gru(nn.Linear(4, 8), nn.GRU(8, 8), torch.zeros(6, 4), rows).sum().backward()
    configure_threads()
    config = resolve(preset="demo", steps=STEPS)
    info = get_env_info(config.env)
    assert info is not None, "the demo preset uses skirmish, which is always installed"
    learner = make_learner(config, info, device="cpu", seed=0)
    obs = np.zeros((1, info.n_agents, info.obs_dim), np.float32)
    avail = np.ones((1, info.n_agents, info.n_actions), np.bool_)
    learner.act(obs, avail, epsilon=1.0, rng=np.random.default_rng(0))
    embedder = Embedder(config.embed, state_dim=8, episode_limit=16, device=torch.device("cpu"), seed=0)
    state = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    fit(embedder, NodeSample(state, np.zeros(64, np.int32), np.arange(64.0)))
    embedder.embed_float64(state, np.zeros(64, np.int32))


def compile_projections() -> None:
    """Compile the kernels of UMAP and t-SNE."""
    from app.analysis.projections.placing import place_points
    from app.analysis.projections.snapshots import compute_projection

    points = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    place_points(points, compute_projection("umap", points, seed=0), points)


PARTS: dict[str, Callable[[], None]] = {
    "simulator": compile_simulator,
    "memory": compile_memory,
    "learner": compile_learner,
}
"""Name of each part → function that compiles it."""


def train_short_run() -> None:
    """Train the demo preset for `STEPS` env steps in a temporary database."""
    from app.jobs.training import train_run
    from storage.address import sqlite_address
    from storage.engine import open_database
    from storage.runs.changes import create_run

    config = resolve(preset="demo", steps=STEPS, overrides=SHORT_RUN_SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        db = open_database(sqlite_address(f"{folder}/warm-up.db"))
        run_id = create_run(db, config.model_dump(mode="json"), target_steps=STEPS, versions={})
        train_run(db, run_id, resume=False)
        db.dispose()


def compile_in_processes() -> None:
    """Compile all parts in parallel processes and unpack the example study, then train; print a line after each step.

    Raises:
        CalledProcessError: If compiling a part failed.
    """
    from app.jobs.launch import EXAMPLE_BUNDLE
    from storage.bundles.read import open_bundle

    started = time.monotonic()
    n_steps = len(PARTS) + 2  # also the example study and the short training run

    def report(n_done: int, step: str) -> None:
        _print(f"[{n_done}/{n_steps}] {step}: {time.monotonic() - started:.0f} s")

    _print(f"Compiling {', '.join(PARTS)}: needed once per machine, about 30 s on two cores …")
    with ThreadPoolExecutor(len(PARTS) + 1) as pool:
        command = [sys.executable, "-m", "app.warmup", "--part"]
        jobs: dict[Future[Any], str] = {
            pool.submit(subprocess.run, [*command, part], check=True): part for part in PARTS
        }
        jobs[pool.submit(open_bundle, EXAMPLE_BUNDLE)] = "example study"
        for n_done, job in enumerate(as_completed(jobs), 1):
            job.result()  # raises the error of a failed part
            report(n_done, jobs[job])
    train_short_run()
    report(n_steps, "short training")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile kernels before they are needed, at low process priority."""
    parser = argparse.ArgumentParser(prog="python -m app.warmup", description=main.__doc__)
    parser.add_argument("--all", action="store_true", help="also compile the kernels of projections")
    parser.add_argument("--part", choices=PARTS, help="compile only this part, in this process")
    options = parser.parse_args(arguments)
    if options.part:
        PARTS[options.part]()
        return
    try:
        check_kernel_cache("emtc_core", "umap")
    except ConfigError as exc:
        sys.exit(str(exc))
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    compile_in_processes()
    if options.all:
        _print("Compiling projections …")
        compile_projections()


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
