"""The gate of a stream of episodes against an independent implementation, and when refits of the embedder start."""

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import make_env
from emtc_core.learner.learner import make_learner
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.rollout.episode import Episode
from emtc_core.training.episodic import EpisodicPart
from tests.reference.reading import LoopedReading

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stream() -> list[Episode]:
    """Random play on 3m, every third episode called a success so that nodes move."""
    config = resolve(map="3m")
    env = make_env(config.env, n_envs=8)
    collector = Collector(env, reward_scale=1.0, seed=3, stream="test")
    learner = make_learner(config, env.info, device=CPU, seed=1)
    episodes = [e for r in range(3) for e in collector.collect(learner, epsilon=1.0, round=(r,))]
    return [Episode(**(vars(e) | {"won": i % 3 == 2})) for i, e in enumerate(episodes)]


def _make_part(config: RunConfig) -> tuple[EpisodicPart, EnvInfo]:
    info = make_env(config.env, n_envs=1).info
    return EpisodicPart(config, info, device=CPU), info


CASES = {
    "paper": ("paper", []),
    "wide": ("wide", []),
    "literal_raw, written": ("literal_raw", ["gate.lookup=written"]),
    "large delta": ("paper", ["memory.delta=0.8"]),
    "large delta, written": ("paper", ["memory.delta=0.8", "gate.lookup=written"]),
    "emu_index, passed while empty": ("emu_index", ["gate.on_empty=pass"]),
    "emu_index, blocked while empty": ("emu_index", ["gate.on_empty=block", "gate.lookup=written"]),
    "prewrite": ("prewrite", []),
}


@pytest.mark.parametrize("name", CASES)
def test_every_gate_equals_the_independent_one(name: str, stream: list[Episode]) -> None:
    """The stream has two refits and three updates of the target networks."""
    preset, overrides = CASES[name]
    config = resolve(map="3m", preset=preset, overrides=[*overrides, "embed.min_episodes=4", "embed.batch=64"])
    part, info = _make_part(config)
    embedder = part._embedder
    looped = LoopedReading(config, lambda s, t, w: embedder.embed(s[None], np.array([t]), for_write=w).numpy()[0])
    for number, episode in enumerate(stream[:16], start=1):
        tau = 1.2 - 0.01 * number
        gate = part.write_and_gate(episode, number=number, tau=tau).gate
        delta_mem, beta = looped.absorb(episode, number, tau)
        np.testing.assert_allclose(gate.delta_mem, delta_mem, atol=1e-6, err_msg=str(number))
        np.testing.assert_allclose(gate.beta, beta, atol=1e-6, err_msg=str(number))
        if number % 6 == 0 and part.refit(ReplayBuffer(10, info)):
            looped.memory.reproject()
        if number % 5 == 0:
            part.on_target_update()
            looped.memory.on_target_update()


@pytest.mark.parametrize(
    ("settings", "n_episodes"),
    [
        (["embed.min_episodes=3", "embed.min_entries=1000000"], 3),
        (["embed.min_episodes=0", "embed.min_entries=2"], 1),
        (["embed.min_episodes=0", "embed.min_entries=1000000"], None),
    ],
    ids=["episodes", "nodes", "EMU: nodes only"],
)
def test_refits_start_after_enough_nodes_or_episodes_also_in_a_resumed_run(
    settings: list[str], n_episodes: int | None, stream: list[Episode]
) -> None:
    config = resolve(map="3m", overrides=settings)
    part, info = _make_part(config)
    refitted = []
    for number, episode in enumerate(stream[:3], start=1):
        part.write_and_gate(episode, number=number, tau=1.0)
        resumed, _ = _make_part(config)
        resumed.set_state(part.get_state())
        if resumed.refit(ReplayBuffer(10, info)):
            refitted.append(number)
    assert refitted == ([] if n_episodes is None else list(range(n_episodes, 4)))


def test_a_memory_in_which_all_states_merge_is_reported_once(
    stream: list[Episode], caplog: pytest.LogCaptureFixture
) -> None:
    part, info = _make_part(resolve(map="3m", overrides=["memory.delta=5.0", "embed.min_episodes=1"]))
    part.write_and_gate(stream[0], number=1, tau=1.0)
    for _ in range(2):
        assert part.refit(ReplayBuffer(10, info))["embedder/fit_ms"] > 0
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"{part.memory.size} nodes" in message


def test_the_metrics_of_new_transitions_summarise_their_gates_once(stream: list[Episode]) -> None:
    part, _ = _make_part(resolve(map="3m", overrides=["memory.delta=0.2"]))
    gates = [part.write_and_gate(e, number=i, tau=1.0).gate for i, e in enumerate(stream, start=1)]
    beta = np.concatenate([gate.beta for gate in gates])
    error = np.concatenate([gate.delta_mem for gate in gates])
    values = part.metrics()
    assert values["gate/beta_new"] == pytest.approx(beta.mean())
    assert values["gate/beta_new_p10"] == pytest.approx(np.quantile(beta, 0.1))
    assert values["gate/delta_mem_new"] == pytest.approx(error.mean())
    assert values["gate/delta_mem_positive_fraction"] == np.mean(error > 0)
    assert values["gate/delta_mem_positive_p10"] == pytest.approx(np.quantile(error[error > 0], 0.1))
    assert "gate/beta_new" not in part.metrics()
