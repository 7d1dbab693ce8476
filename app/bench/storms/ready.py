"""Imported by the process that a storm's trainers come out of: compiled kernels are loaded once, not in each of them.

It plays and remembers, but learns nothing: a process that has computed gradients must not be copied.
"""

import tempfile
from pathlib import Path

import torch

from app.bench.storms.fleet import storm_config
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl
from emtc_core.devices import configure_threads
from emtc_core.envs.registry import make_env
from emtc_core.recorder import ListRecorder
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.trainer import Trainer

STEPS = 400


def play(config: RunConfig) -> None:
    """Train a short run that is kept nowhere and updates no learner."""
    configure_threads()
    patient = config.train.model_copy(update={"burn_in": 10**6})
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            config.model_copy(update={"train": patient}),
            env=make_env(config.env, n_envs=config.train.n_envs),
            eval_env=make_env(config.env, n_envs=config.eval.episodes),
            recorder=ListRecorder(),
            control=NoControl(),
            checkpoints=CheckpointStore(Path(folder), keep=1),
            device=torch.device("cpu"),
        ).run()


play(storm_config(STEPS))
