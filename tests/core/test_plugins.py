"""Plug-ins are found by name, their settings are validated, and a broken result is an error with their name."""

import sys
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field

from app.analysis.settings import find_changes
from emtc_core import plugins
from emtc_core.config.base import ConfigSection
from emtc_core.config.memory import GateConfig
from emtc_core.config.resolve import config_from_stored, describe_fields, flatten, resolve
from emtc_core.config.run import list_algos
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo, Observation
from emtc_core.envs.checker import check_env
from emtc_core.envs.registry import list_envs, make_env
from emtc_core.errors import NO_VALUE, ConfigError, EnvUnavailableError, PluginError
from emtc_core.gate.gate import gate_transitions, make_gate_law
from emtc_core.gate_laws import GateContext, GateLaw
from emtc_core.learner.backbones.value import make_mixer, make_value_backbone
from emtc_core.learner.factory import make_backbone
from emtc_core.metrics import METRICS, is_known, prepare_open_values, sort_metrics
from emtc_core.plugins import list_names, register
from emtc_core.rollout.collector import Collector, pack_episodes, unpack_episodes
from emtc_core.schedules import compute_epsilon
from tests.errors import raises

INFO = EnvInfo("made-up", "made-up", 3, 4, 5, 7, episode_limit=20, reward_range=(-1.0, 1.0))
CONTEXT = GateContext(*np.zeros((3, 4)), gamma=0.99)
DELTA = np.array([0.0, 0.5, 1.0, 5.0])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """An empty registry for each test."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    registry: dict[Any, Any] = {}
    monkeypatch.setattr(plugins, "_REGISTERED", registry)
    return registry


def linear(delta: Any, tau: Any, context: GateContext) -> Any:
    return np.clip(1 - delta / (2 * tau), 0, 1)


class MazeSettings(ConfigSection):
    size: Annotated[int, Field(ge=2, le=9)] = 5
    """Cells of a side [cells]."""
    kind: Literal["open", "closed"] = "open"


class PowerSettings(ConfigSection):
    power: Annotated[float, Field(gt=0, le=9)] = 2.0


def make_power(settings: PowerSettings) -> GateLaw:
    return GateLaw(lambda delta, tau, context: np.exp(-((delta / tau) ** settings.power)))


def test_a_plugin_gate_weighs_transitions_in_scaled_units() -> None:
    register("gate", "linear", lambda: GateLaw(linear, lambda beta, delta: delta / (2 * (1 - beta))))
    config = resolve(overrides={"gate.type": "linear", "gate.delta_scale": 0.1}).gate
    h, h_next = np.array([1.0, np.nan, 6.0]), np.array([1.0, 1.0, 1.0])
    delta, beta = gate_transitions(np.zeros(3), h, h_next, config=config, gamma=1.0, tau=1.0, is_empty=False)
    np.testing.assert_allclose(delta, [0, np.nan, 5])
    np.testing.assert_allclose(beta, [1, 0, 1 - 0.5 / 2])  # gate.on_miss decides beta of a miss
    np.testing.assert_allclose(make_gate_law(config).temperature_for(np.array([0.75]), np.array([5.0])), 1.0)


@pytest.mark.parametrize(("returned", "value"), [(lambda d: d * 0 + 1.5, 1.5), (lambda d: d[:2], (2,))])
def test_a_gate_that_returns_another_shape_or_range_is_refused(returned: Any, value: object) -> None:
    register("gate", "wild", lambda: GateLaw(lambda delta, tau, context: returned(delta)))
    with raises(PluginError, key="gate wild", value=value):
        make_gate_law(GateConfig(type="wild")).weigh(DELTA, 1.0, CONTEXT)


@pytest.mark.parametrize("name", ["My_Gate", "a.b", ""])
def test_a_name_that_cannot_be_part_of_a_setting_is_refused(name: str) -> None:
    with raises(PluginError, key="gate", value=name):
        register("gate", name, GateLaw)


def test_a_name_is_unique_and_not_builtin() -> None:
    register("gate", "mine", GateLaw)
    with raises(PluginError, key="gate mine"):
        register("mixer", "mine", object)
    register("mixer", "vdn", object)
    with raises(PluginError, key="mixer vdn"):
        list_algos()


def test_a_module_that_cannot_be_imported_is_one_sentence(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_lab.py").write_text("import not_there_at_all\n")
    monkeypatch.setenv(plugins.VARIABLE, "half_a_lab")
    monkeypatch.setenv("EMTC_ENV_FOLDER", str(tmp_path))
    for _ in range(2):
        with pytest.raises(PluginError, match="half_a_lab"):
            list_names("gate")


def test_mixers_and_backbones_are_algorithms_in_every_method() -> None:
    from torch import nn

    class Heads(nn.Module):
        def __init__(self, config: Any, info: Any, settings: PowerSettings) -> None:
            super().__init__()
            self.power = settings.power

    register("mixer", "heads", Heads, settings=PowerSettings)
    register("backbone", "two_vdn", lambda config, info: make_value_backbone(resolve(algo="vdn"), info))
    assert list_algos()[-6:] == ["emtc-heads", "emu-heads", "heads", "emtc-two_vdn", "emu-two_vdn", "two_vdn"]
    config = resolve(algo="emtc-heads", overrides=["plugin.heads.power=5"])
    assert make_mixer("heads", config_from_stored(config.model_dump(mode="json")), INFO).power == 5
    assert find_changes(flatten(config)) == {"plugin.heads.power": 5}
    assert "plugin.heads.power" not in flatten(resolve(overrides=["plugin.heads.power=5"])), "QPLEX mixes"
    assert type(make_backbone(resolve(algo="emu-two_vdn"), INFO).mixer).__name__ == "VdnMixer"
    register("backbone", "none", lambda config, info: None)
    with raises(PluginError, key="backbone none"):
        make_backbone(resolve(algo="none"), INFO)


def test_settings_of_a_plugin_are_settings_like_any_other() -> None:
    register("environment", "maze", lambda map, n_envs, settings: None, settings=MazeSettings)
    register("gate", "power", make_power, settings=PowerSettings)
    fields = {info.key: info for info in describe_fields()}
    size, kind = fields["env.plugin.maze.size"], fields["env.plugin.maze.kind"]
    assert (size.type, size.default, size.minimum, size.maximum, size.unit) == ("int", 5, 2, 9, "cells")
    assert (kind.type, kind.choices) == ("choice", ("open", "closed"))
    config = resolve(env="maze", map="default", overrides=["env.plugin.maze.size=7"])
    assert config.env.plugin == {"maze": {"size": 7, "kind": "open"}}
    steep = resolve(overrides=["gate.type=power", "gate.plugin.power.power=4"])
    np.testing.assert_allclose(make_gate_law(steep.gate).weigh(DELTA, 1.0, CONTEXT), np.exp(-(DELTA**4)))
    assert config_from_stored(steep.model_dump(mode="json")) == steep
    assert find_changes(flatten(steep)) == {"gate.type": "power", "gate.plugin.power.power": 4.0}
    assert "gate.plugin.power.power" not in flatten(resolve(overrides=["gate.plugin.power.power=4"]))


@pytest.mark.parametrize(
    ("given", "key", "value", "hint"),
    [
        ("env.plugin.maze.size=1", "env.plugin.maze.size", 1, ""),
        ("env.plugin.maze.kind=shut", "env.plugin.maze.kind", "shut", ""),
        ("env.plugin.maze.sise=3", "env.plugin.maze.sise", NO_VALUE, "env.plugin.maze.size"),
        ("gate.type=gone", "gate.type", "gone", "EMTC_PLUGINS"),
        ("record.metrics=gone", "record.metrics", "gone", "EMTC_PLUGINS"),
        ("gate.plugin.gone.x=1", "gate.plugin.gone.x", NO_VALUE, "EMTC_PLUGINS"),
    ],
)
def test_a_wrong_setting_or_a_missing_plugin_is_one_fault_with_its_key(
    given: str, key: str, value: object, hint: str
) -> None:
    register("environment", "maze", lambda map, n_envs, settings: None, settings=MazeSettings)
    with raises(ConfigError, key=key, value=value) as caught:
        resolve(env="maze", map="default", overrides=[given])
    assert hint in caught.value.faults[0].hint


def test_a_stored_run_keeps_the_settings_of_an_environment_that_is_not_installed(registered: dict[Any, Any]) -> None:
    register("environment", "maze", lambda map, n_envs, settings: None, settings=MazeSettings)
    stored = resolve(env="maze", map="default", overrides=["env.plugin.maze.size=7"]).model_dump(mode="json")
    registered.clear()
    assert flatten(config_from_stored(stored))["env.plugin.maze.size"] == 7


def test_a_plugin_schedule_decides_epsilon_within_its_bounds() -> None:
    register("schedule", "half", lambda env_step, train: 0.5)
    register("schedule", "more", lambda env_step, train: env_step)
    assert compute_epsilon(TrainConfig(eps_schedule="half"), 7) == 0.5
    assert compute_epsilon(TrainConfig(), 50_000) == TrainConfig().eps_end
    with raises(PluginError, key="schedule more", value=2):
        compute_epsilon(TrainConfig(eps_schedule="more"), 2)


def test_an_environment_of_a_listed_module_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.core.lab_example", raising=False)
    monkeypatch.setenv(plugins.VARIABLE, "tests.core.lab_example")
    plugins._import_modules.cache_clear()
    try:
        config = resolve(env="guess", map="dark", overrides=["env.plugin.guess.doors=5"]).env
        env = make_env(config, n_envs=3)
        assert check_env(env) == []
        assert (env.info.n_actions, env.info.map, env.n_envs) == (5, "dark", 3)
        with pytest.raises(EnvUnavailableError, match="dark"):
            make_env(config.model_copy(update={"map": "drak"}), n_envs=1)
        assert [(row.map, row.available) for row in list_envs() if row.env == "guess"] == [
            ("plain", True),
            ("dark", True),
        ]
    finally:
        plugins._import_modules.cache_clear()


@pytest.mark.parametrize("made", [None, [], [object(), object()]])
def test_an_environment_that_returns_no_copies_is_refused(made: object) -> None:
    register("environment", "bare", lambda map, n_envs: made)
    with pytest.raises(EnvUnavailableError, match="bare"):
        make_env(resolve(env="bare", map="default").env, n_envs=2)


class Counted:
    """Two copies that say a number: copy b ends after b + 1 steps."""

    info = EnvInfo("counted", "default", 1, 1, 1, 1, 5, (0.0, 0.0))
    n_envs = 2

    def reset(self, seed: int | None = None) -> Observation:
        self.t = 0
        return self._show({})

    def step(self, actions: Any) -> Observation:
        self.t += 1
        return self._show({"height": np.array([self.t, 10.0 * self.t], np.float32)})

    def _show(self, infos: dict[str, Any]) -> Observation:
        over = np.array([self.t >= 1, self.t >= 2])
        ones, no = np.ones((2, 1, 1), np.float32), np.zeros(2, bool)
        return Observation(ones, ones[:, 0], ones > 0, np.zeros(2, np.float32), over, no, no, infos)


class Idle:
    def start_episodes(self, n_envs: int) -> None: ...

    def act(self, obs: Any, avail: Any, *, epsilon: float, rng: Any) -> Any:
        return np.zeros((2, 1), np.int64)


def test_numbers_of_infos_are_averaged_over_an_episodes_own_steps() -> None:
    collector = Collector(Counted(), reward_scale=1.0, seed=1, stream="test")  # type: ignore[arg-type]  # it has no scene
    episodes = collector.collect(Idle(), epsilon=0.0, round=(1,))
    assert [each.infos for each in episodes] == [{"height": 1.0}, {"height": 15.0}]
    assert [each.infos for each in unpack_episodes(pack_episodes(episodes))] == [{"height": 1.0}, {"height": 15.0}]


def test_open_names_are_recorded_and_all_others_refused() -> None:
    assert prepare_open_values("env", {"a b": 1, "no": float("nan"), "word": "x"}) == {"env/a_b": 1.0}
    assert is_known("user/best")
    assert not is_known("user/")
    assert not is_known("mine/best")
    assert sort_metrics(["user/b", "gate/tau", "env/a", "strange"]) == ["gate/tau", "env/a", "user/b"]
    assert all(is_known(name) for name in METRICS)
    assert len(prepare_open_values("env", {f"n{i}": i for i in range(1000)})) == 64
