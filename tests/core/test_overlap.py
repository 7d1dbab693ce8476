"""A refit beside the training: applied at the next refit step exactly, the same rows under any schedule and resume."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder import overlap
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.overlap import RefitRunner
from emtc_core.errors import NonFiniteLossError
from emtc_core.memory.memory import NodeSample
from emtc_core.recorder import ListRecorder
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from tests.core.test_trainer import StopWhen, assert_same_state, make_trainer, run_in_parts, short_config
from tests.errors import raises

CONFIG = short_config("embed.overlap=on")


def make_embedder() -> Embedder:
    return Embedder(EmbedConfig(batch=16), state_dim=5, episode_limit=9, device="cpu", seed=3)


def make_sample(seed: int) -> NodeSample:
    rng = np.random.default_rng(seed)
    return NodeSample(rng.random((64, 5), np.float32), rng.integers(0, 9, 64).astype(np.int32), rng.random(64))


def test_what_was_begun_takes_effect_at_the_next_step_and_not_before():
    embedder, plain = make_embedder(), make_embedder()
    fits, before = RefitRunner(embedder), make_embedder().get_state()
    assert fits.finish() is None
    fits.start(make_sample(1))
    fits.get_state()
    assert_same_state(embedder.get_state(), before)
    stats = fits.finish()
    expected = fit(plain, make_sample(1))
    assert stats is not None
    assert (stats.loss, stats.updates) == (expected.loss, expected.updates)
    assert_same_state(embedder.get_state(), plain.get_state())
    assert fits.finish() is None


def test_a_failed_fit_is_raised_where_it_would_take_effect():
    embedder, bad = make_embedder(), make_sample(1)
    bad.state[:] = np.nan
    fits = RefitRunner(embedder)
    fits.start(bad)
    with pytest.raises(NonFiniteLossError):
        fits.finish()


def observed(recorder: ListRecorder) -> list[tuple[int, bytes, bytes, bytes]]:
    return [(r.env_step, r.h.tobytes(), r.beta.tobytes(), r.embedding.tobytes()) for r in recorder.snapshots]


def test_rows_do_not_depend_on_how_long_a_fit_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs = []
    for delay_s in (0.0, 0.3):
        monkeypatch.setattr(overlap, "fit", lambda *args, s=delay_s: (time.sleep(s), fit(*args))[1])
        trainer, recorder = make_trainer(CONFIG, tmp_path / str(delay_s))
        trainer.run()
        runs.append((trainer.get_state(), observed(recorder)))
    assert runs[0][1] == runs[1][1]
    first, second = (state["episodic"] for state, _ in runs)
    assert_same_state(first["memory"], second["memory"])
    assert_same_state(first["embedder"], second["embedder"])


def is_refitting(trainer: Trainer) -> bool:
    assert isinstance(trainer._episodic, EpisodicPart)
    return trainer._episodic._fits._wait is not None


def test_a_run_stopped_in_the_middle_of_a_refit_goes_on_with_equal_rows(tmp_path: Path):
    whole, recorder = make_trainer(CONFIG, tmp_path / "whole")
    whole.run()
    stops = [StopWhen(is_refitting, polls=n) for n in (1, 40)]
    resumed, records = run_in_parts(CONFIG, tmp_path / "parts", stops)
    ends = [trainer.get_state()["episodic"] for trainer in (resumed, whole)]
    for end in ends:
        end["overlapped"]["stats"].pop("seconds")
    assert_same_state(*ends)
    for again, once in zip(records.episodes, recorder.episodes, strict=True):
        np.testing.assert_equal((again.beta, again.h_next), (once.beta, once.h_next))
    assert torch.equal(
        resumed.get_state()["learner"]["online"]["agent.fc1.weight"],
        whole.get_state()["learner"]["online"]["agent.fc1.weight"],
    )


def test_overlapping_changes_what_is_learned(tmp_path: Path):
    states = []
    for name in ("off", "on"):
        trainer, _ = make_trainer(short_config(f"embed.overlap={name}"), tmp_path / name)
        trainer.run()
        states.append(trainer.get_state()["episodic"])
    assert (states[0]["overlapped"] is None, states[1]["overlapped"] is None) == (True, False)
    assert not torch.equal(states[0]["memory"]["table"]["x"], states[1]["memory"]["table"]["x"])


def test_an_embedder_from_outside_cannot_be_fitted_beside_the_training():
    with raises(ValidationError, key="embed.overlap", value="on", related=("embed.type",)):
        EmbedConfig(type="mine", overlap="on")
