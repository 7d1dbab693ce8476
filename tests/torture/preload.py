"""Load the trainer's libraries and compiled kernels once, in the process from which the trainers are forked.

A short run is played without an update of the learner: a process that has computed gradients must not be forked.
"""

import tempfile
from pathlib import Path

import torch

import tests.frequent_checkpoints  # noqa: F401
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl
from emtc_core.envs.registry import make_env
from emtc_core.recorder import ListRecorder
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.trainer import Trainer
from tests.torture.fleet import storm_config

STEPS = 400


def play(config: RunConfig) -> None:
    """Play a short run in memory. `train.burn_in` is so large that the learner is not updated."""
    configure_threads()
    train = config.train.model_copy(update={"burn_in": 10**6})
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            config.model_copy(update={"train": train}),
            env=make_env(config.env, n_envs=config.train.n_envs),
            eval_env=make_env(config.env, n_envs=config.eval.episodes),
            recorder=ListRecorder(),
            control=NoControl(),
            checkpoints=CheckpointStore(Path(folder), keep=1),
            device=torch.device("cpu"),
        ).run()


play(storm_config(STEPS))
