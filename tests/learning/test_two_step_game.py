"""Whole training on a game whose answer is known."""

from pathlib import Path

import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.control import NoControl
from emtc_core.recorder import ListRecorder
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.trainer import Trainer
from tests.learning.two_step_game import TwoStepGame

SETTINGS = ["train.eps_end=1.0", "train.target_interval=50", "eval.interval=100000", "qplex.mixer=dmaq",
            "embed.min_entries=100000", "record.snapshots=0", "memory.delta=1e-4"]  # fmt: skip


def final_return(algo: str, seed: int, folder: Path) -> float:
    torch.set_num_threads(1)
    config = resolve(algo=algo, steps=6000, seed=seed, overrides=SETTINGS)
    trainer = Trainer(
        config, env=TwoStepGame(8), eval_env=TwoStepGame(8), recorder=ListRecorder(), control=NoControl(),
        checkpoints=CheckpointStore(folder, keep=1), device=torch.device("cpu"),
    )  # fmt: skip
    value = trainer.run().return_mean
    assert value is not None
    return value


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["qmix", "qplex", "emtc-qplex"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_monotonic_or_complete_value_finds_the_best_joint_action(algo: str, seed: int, tmp_path: Path) -> None:
    assert final_return(algo, seed, tmp_path) == pytest.approx(8.0)


@pytest.mark.slow
def test_an_additive_value_settles_for_the_safe_game(tmp_path: Path) -> None:
    assert final_return("vdn", 1, tmp_path) == pytest.approx(7.0)
