"""Every reading of the paper against an independent one: the same stream of episodes, the same gates."""

from itertools import product

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import make_env
from emtc_core.gate.gate import GateValues
from emtc_core.gate.temperature import Temperature
from emtc_core.learner.learner import make_learner
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.intervals import Interval
from emtc_core.training.readings import BAND, ReadingPoint, group_by_memory, replay_readings
from tests.reference.reading import LoopedReading

READINGS = ["paper", "emu_index", "prewrite", "literal_raw", "wide"]
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


def _write_all(config: RunConfig, stream: list[Episode]) -> tuple[list[float], list[float], EpisodicPart]:
    """Run both readings, refits and target updates included; return their gates one after the other."""
    env = make_env(config.env, n_envs=1)
    part = EpisodicPart(config, env.info, device=CPU)
    embedder = part._embedder
    looped = LoopedReading(config, lambda s, t, w: embedder.embed(s[None], np.array([t]), for_write=w).numpy()[0])
    ours, theirs = [], []
    for number, episode in enumerate(stream, start=1):
        tau = 1.2 - 0.01 * number
        verdict = part.write_and_gate(episode, number=number, tau=tau).gate
        delta, beta = looped.absorb(episode, number, tau)
        np.testing.assert_allclose(verdict.delta_mem, delta, atol=1e-6)
        ours += verdict.beta.tolist()
        theirs += beta
        if number % 6 == 0 and part.refit(ReplayBuffer(10, env.info)):
            looped.memory.reproject()
        if number % 5 == 0:
            part.on_target_update()
            looped.memory.on_target_update()
    return ours, theirs, part


@pytest.mark.parametrize(
    ("preset", "lookup"),
    [each for each in product(READINGS, ["nearest", "written"]) if each != ("prewrite", "written")],
)  # nothing is written when that reading looks
def test_every_gate_equals_the_independent_reading(preset: str, lookup: str, stream: list[Episode]) -> None:
    overrides = [f"gate.lookup={lookup}", "embed.min_episodes=4", "embed.batch=64"]
    some = stream[:16]  # two refits and three updates of the target
    ours, theirs, _ = _write_all(resolve(map="3m", preset=preset, overrides=overrides), some)
    assert len(ours) == sum(episode.length for episode in some)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_two_lookups_differ_where_a_later_node_is_nearer(stream: list[Episode]) -> None:
    by_lookup = [
        _write_all(resolve(map="3m", overrides=[f"gate.lookup={lookup}", "memory.delta=0.8"]), stream)[0]
        for lookup in ("nearest", "written")
    ]
    assert not np.allclose(*by_lookup, atol=1e-6)


@pytest.mark.parametrize("rule", ["pass", "block"])
def test_an_index_not_yet_built_has_nothing_to_doubt(rule: str, stream: list[Episode]) -> None:
    config = resolve(map="3m", preset="emu_index", overrides=[f"gate.on_empty={rule}"])
    env = make_env(config.env, n_envs=1)
    part = EpisodicPart(config, env.info, device=CPU)
    verdict = part.write_and_gate(stream[0], number=1, tau=1.2).gate
    assert np.isnan(verdict.delta_mem).all()
    assert set(verdict.beta) == {1.0 if rule == "pass" else 0.0}
    part.on_target_update()
    later = part.write_and_gate(stream[1], number=2, tau=1.2).gate
    assert np.isfinite(later.delta_mem).all()


def test_where_everything_merges_the_embedder_still_learns_and_says_so(
    stream: list[Episode], caplog: pytest.LogCaptureFixture
) -> None:
    config = resolve(map="3m", preset="literal_raw", overrides=["memory.delta=5.0", "embed.min_episodes=8"])
    env = make_env(config.env, n_envs=1)
    part, buffer = EpisodicPart(config, env.info, device=CPU), ReplayBuffer(10, env.info)
    for number, episode in enumerate(stream[:8], start=1):
        assert part.refit(buffer) == {}
        part.write_and_gate(episode, number=number, tau=1.0)
    assert part.memory.size < config.embed.min_entries
    assert part.refit(buffer)["embedder/fit_ms"] > 0
    part.refit(buffer)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"After 8 episodes the memory has {part.memory.size} nodes" in said


def test_without_min_episodes_only_nodes_count_as_in_emus_code(stream: list[Episode]) -> None:
    config = resolve(map="3m", overrides=["embed.min_episodes=0", "embed.min_entries=1000000"])
    env = make_env(config.env, n_envs=1)
    part = EpisodicPart(config, env.info, device=CPU)
    for number, episode in enumerate(stream, start=1):
        part.write_and_gate(episode, number=number, tau=1.0)
    assert part.refit(ReplayBuffer(10, env.info)) == {}


def test_a_resumed_memory_counts_the_episodes_before(stream: list[Episode]) -> None:
    config = resolve(map="3m", overrides=["embed.min_episodes=3", "embed.min_entries=1000000"])
    env = make_env(config.env, n_envs=1)
    first, second = (EpisodicPart(config, env.info, device=CPU) for _ in range(2))
    for number, episode in enumerate(stream[:3], start=1):
        first.write_and_gate(episode, number=number, tau=1.0)
    second.set_state(first.get_state())
    assert second.refit(ReplayBuffer(10, env.info))


def test_new_transitions_are_reported_as_they_were_judged(stream: list[Episode]) -> None:
    config = resolve(map="3m", overrides=["memory.delta=0.2"])
    env = make_env(config.env, n_envs=1)
    part = EpisodicPart(config, env.info, device=CPU)
    verdicts = [part.write_and_gate(e, number=i, tau=1.0).gate for i, e in enumerate(stream, start=1)]
    beta = np.concatenate([v.beta for v in verdicts])
    values = part.metrics()
    assert values["gate/beta_new"] == pytest.approx(beta.mean())
    assert values["gate/beta_new_p10"] == pytest.approx(np.quantile(beta, 0.1))
    error = np.concatenate([v.delta_mem for v in verdicts])
    assert values["gate/delta_mem_new"] == pytest.approx(error.mean())
    assert values["gate/delta_mem_positive_fraction"] == np.mean(error > 0)
    assert values["gate/delta_mem_positive_p10"] == pytest.approx(np.quantile(error[error > 0], 0.1))
    assert "gate/beta_new" not in part.metrics()  # nothing new since


# ---- a recorded stream ----


def _read_alone(config: RunConfig, stream: list[Episode], points: int) -> list[ReadingPoint]:
    """What `replay_readings` says, by an episodic part that absorbs one episode after the other as a trainer's does."""
    info = make_env(config.env, n_envs=1).info
    part, buffer = EpisodicPart(config, info, device=CPU), ReplayBuffer(1, info)
    temperature = Temperature(config.gate, t_max=config.train.t_max)
    refit, target = Interval(config.embed.interval), Interval(config.train.target_interval)
    point = Interval(max(1, config.train.t_max // points))
    env_step, verdicts, told = 0, [], []
    for number, episode in enumerate(stream, start=1):
        env_step += episode.length
        tau = temperature.at(env_step)
        verdicts.append(part.write_and_gate(episode, number=number, tau=tau).gate)
        temperature.observe(verdicts[-1].delta_mem, discounted_returns(episode.reward, config.train.gamma)[:-1])
        if target.start_if_due(number * config.train.updates_per_episode):
            part.on_target_update()
        if refit.start_if_due(env_step):
            part.refit(buffer)
        if point.start_if_due(env_step):
            told.append(_tell(part, verdicts, env_step, tau))
            verdicts = []
    return told


def _tell(part: EpisodicPart, verdicts: list[GateValues], env_step: int, tau: float) -> ReadingPoint:
    delta, beta = (np.concatenate([getattr(v, name) for v in verdicts]) for name in ("delta_mem", "beta"))
    known = delta[np.isfinite(delta)]
    links = part.gate_stats(env_step, tau=tau)
    assert links is not None
    bands = [(float(v.mean()), *np.quantile(v, BAND).tolist()) if len(v) else (np.nan,) * 3 for v in (known, beta)]
    merge_rate = part.metrics()["memory/merge_rate"]
    means = (links.delta_mem_mean, links.beta_mean)
    return ReadingPoint(env_step, tau, *bands, *means, merge_rate, float((beta < 0.5).mean()), part.memory.size)


def _configs(presets: list[str], *more: str) -> list[RunConfig]:
    short = ["embed.interval=150", "embed.min_episodes=4", "embed.batch=64", "train.target_interval=5", *more]
    return [resolve(map="3m", steps=600, preset=preset, overrides=short) for preset in presets]


@pytest.mark.parametrize("preset", READINGS)
def test_a_reading_says_what_a_trainers_episodic_part_says(preset: str, stream: list[Episode]) -> None:
    (config,) = _configs([preset])
    points = replay_readings([config], make_env(config.env, n_envs=1).info, stream, points=20)[0]
    assert len(points) > 10
    assert repr(points) == repr(_read_alone(config, stream, 20))


@pytest.mark.parametrize("capacity", [1_000_000, 150])
@pytest.mark.parametrize("options", [(), ("gate.successor=link", "memory.delta=0.5"), ("memory.evict=fifo",)])
def test_readings_that_share_a_memory_say_what_each_says_alone(
    capacity: int, options: tuple[str, ...], stream: list[Episode]
) -> None:
    configs = _configs(["paper", "prewrite"], f"memory.capacity={capacity}", *options)
    info, heard = make_env(configs[0].env, n_envs=1).info, []
    together = replay_readings(configs, info, stream, points=20, on_step=heard.append)
    assert repr(together) == repr([replay_readings([config], info, stream, points=20)[0] for config in configs])
    assert (together[0][-1].size == capacity) == (capacity == 150)
    assert together[0] != together[1]
    assert heard == np.cumsum([episode.length for episode in stream]).tolist()


def test_only_what_the_gate_alone_decides_is_shared() -> None:
    assert group_by_memory(_configs(READINGS)) == [[0, 2], [1], [3], [4]]
    paper, wide = _configs(["paper", "wide"])
    with pytest.raises(ValueError, match=r"\bmemory\b"):
        replay_readings([paper, wide], make_env(paper.env, n_envs=1).info, [])
