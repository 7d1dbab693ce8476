"""What comes from outside is found by its name, held to its contract, and named where it fails."""

import os
import sys
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from app.analysis.settings import find_changes
from emtc_core import plugins
from emtc_core.config.memory import GateConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS
from emtc_core.config.resolve import config_from_stored, describe_fields, flatten, resolve
from emtc_core.config.run import list_algos
from emtc_core.config.train import TrainConfig
from emtc_core.envs.base import EnvInfo, Observation
from emtc_core.envs.registry import list_envs, make_env
from emtc_core.errors import NO_VALUE, ConfigError, EnvUnavailableError, PluginError
from emtc_core.gate.gate import gate_transitions
from emtc_core.gate.laws import make_gate_law
from emtc_core.gate_laws import GateContext, gate_coefficient, gaussian_temperature
from emtc_core.learner.backbones.value import make_mixer
from emtc_core.metrics import METRICS, is_known, prepare_open_values, sort_metrics
from emtc_core.plugins import describe_failure, find_plugin, get_plugin, list_loaded, list_names, register
from emtc_core.rollout.collector import Collector, pack_episodes, unpack_episodes
from emtc_core.schedules import exploration
from emtc_core.training.conformance.check import check_plugin
from emtc_core.training.conformance.gate import INVERTS
from emtc_core.training.conformance.rules import INFO
from tests.errors import raises


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """A registry of its own for each test."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(plugins, "_REGISTERED", kept)
    return kept


def linear(delta: Any, tau: Any, context: GateContext) -> Any:
    return np.clip(1 - delta / (2 * tau), 0, 1)


def maze(size: Annotated[int, Field(ge=2, le=9, description="Cells of a side [cells]")] = 5, walls: bool = True,
         kind: Literal["open", "closed"] = "open") -> None:  # fmt: skip
    """Make nothing: only its arguments are looked at."""


def broken_rule(rules: dict[str, str] | None = None) -> None:
    """Take what no setting can be."""


CONTEXT = GateContext(*np.zeros((3, 4)), gamma=0.99)
DELTA = np.array([0.0, 0.5, 1.0, 5.0])


def faults(name: str) -> dict[str, str]:
    (plugin,) = [each for each in plugins.list_plugins() if each.name == name]
    return {each.rule: each.fault for each in check_plugin(plugin) if not each.holds}


def test_the_papers_gate_is_what_it_was() -> None:
    beta = make_gate_law(GateConfig(delta_scale=0.5)).weigh(DELTA, 0.7, CONTEXT)
    np.testing.assert_array_equal(beta, gate_coefficient(DELTA, tau=0.7, scale=0.5))


def test_a_run_without_plugins_stores_what_it_stored() -> None:
    config = resolve()
    assert "plugins" not in config.model_dump(mode="json")
    assert (config.gate.type, config.train.eps_schedule) == ("gaussian", "linear")
    assert list_algos()[-1] == "emc"


def test_a_gate_from_outside_judges_transitions_in_scaled_units() -> None:
    register("gate", "linear")(linear)
    config = resolve(overrides={"gate.type": "linear", "gate.delta_scale": 0.1}).gate
    h, h_next = np.array([1.0, np.nan, 6.0]), np.array([1.0, 1.0, 1.0])
    delta, beta = gate_transitions(np.zeros(3), h, h_next, config=config, gamma=1.0, tau=1.0, is_empty=False)
    np.testing.assert_allclose(delta, [0, np.nan, 5])
    np.testing.assert_allclose(beta, [1, 0, 1 - 0.5 / 2])  # a miss is the rule's to say, not the gate's


@pytest.mark.parametrize(("returned", "value"), [(lambda d: d * 0 + 1.5, 1.5), (lambda d: d[:2], (2,))])
def test_a_gate_that_leaves_its_range_or_shape_is_refused(returned: Any, value: object) -> None:
    register("gate", "wild")(lambda delta, tau, context: returned(delta))
    with raises(PluginError, key=f"gate wild (module {__name__})", value=value):
        make_gate_law(GateConfig(type="wild")).weigh(DELTA, 1.0, CONTEXT)


def invert_linear(beta: Any, delta: Any) -> Any:
    return delta / (2 * (1 - beta))


def with_inverse(law: Any, inverse: Any) -> Any:
    def gate(delta: Any, tau: Any, context: Any) -> Any:
        return law(delta, tau, context)

    gate.temperature_for = inverse
    return gate


def test_every_gate_law_of_this_project_inverts_itself() -> None:
    tau = np.full(3, 0.7)
    for name in PLUGIN_SETTINGS["gate.type"][1]:
        law = make_gate_law(GateConfig(type=name, delta_scale=0.5))
        beta = law.weigh(DELTA[1:], tau, CONTEXT.select(DELTA > 0))
        np.testing.assert_allclose(law.temperature_for(beta, DELTA[1:]), tau, rtol=1e-9)


def test_a_gate_law_brings_its_own_inverse_or_has_none() -> None:
    register("gate", "invertible")(with_inverse(linear, invert_linear))
    register("gate", "linear")(linear)
    law, plain = (make_gate_law(GateConfig(type=name, delta_scale=0.1)) for name in ("invertible", "linear"))
    np.testing.assert_allclose(law.temperature_for(np.array([0.75]), np.array([5.0])), 1.0)
    assert (law.is_invertible, plain.is_invertible) == (True, False)
    with pytest.raises(ValueError, match=r"\blinear\b"):
        plain.temperature_for(np.array([0.75]), np.array([5.0]))


def test_an_inverse_takes_the_arguments_of_its_gate() -> None:
    def power(delta: Any, tau: Any, context: Any, power: float = 2.0) -> Any:
        return bent(delta, tau, context, power)

    power.temperature_for = lambda beta, delta, power: delta / (-np.log(beta)) ** (1 / power)
    register("gate", "power")(power)
    assert faults("power") == {}
    law = make_gate_law(resolve(overrides=["gate.type=power", "gate.power.power=4"]).gate)
    beta = law.weigh(DELTA[1:], 1.5, CONTEXT.select(DELTA > 0))
    np.testing.assert_allclose(law.temperature_for(beta, DELTA[1:]), 1.5, rtol=1e-9)


@pytest.mark.parametrize("tau", [np.array([0.0]), np.array([np.nan]), np.ones(2), -1.0])
def test_an_inverse_that_returns_no_temperature_is_refused(tau: Any) -> None:
    register("gate", "wild")(with_inverse(linear, lambda beta, delta: tau))
    with pytest.raises(PluginError):
        make_gate_law(GateConfig(type="wild")).temperature_for(np.array([0.5]), np.array([1.0]))


def test_conformance_checks_that_an_inverse_inverts() -> None:
    def by_expectation(delta: Any, tau: Any, context: Any) -> Any:
        return linear(delta, np.where(context.h_next < context.h, tau / 2, tau), context)

    register("gate", "right")(with_inverse(linear, invert_linear))
    register("gate", "gaussian_inverse")(with_inverse(linear, gaussian_temperature))
    register("gate", "reads_context")(with_inverse(by_expectation, invert_linear))
    register("gate", "step")(with_inverse(lambda delta, tau, context: (delta <= tau).astype(float), invert_linear))
    register("gate", "no_inverse")(linear)
    assert faults("right") == faults("no_inverse") == {}
    for name in ("gaussian_inverse", "reads_context", "step"):
        assert list(faults(name)) == [INVERTS], name


@pytest.mark.parametrize("changed", ["delta", "reward", "h", "h_next"])
def test_conformance_finds_a_gate_that_writes_into_its_arguments(changed: str) -> None:
    def writes(delta: Any, tau: Any, context: Any) -> Any:
        beta = linear(delta, tau, context)
        array = delta if changed == "delta" else getattr(context, changed)
        array += 1
        return beta

    register("gate", "writes")(writes)
    assert "it does not change its arguments" in faults("writes")


def test_where_a_run_had_it_from_is_recorded_and_named_when_it_is_gone(registered: dict[Any, Any]) -> None:
    register("gate", "linear")(linear)
    register("mixer", "mymixer")(maze)
    stored = resolve(algo="emtc-mymixer", overrides={"gate.type": "linear"}).model_dump(mode="json")
    origin = f"module {__name__}"
    assert stored["plugins"] == {"mixer": {"mymixer": origin}, "gate": {"linear": origin}}
    assert config_from_stored(stored).plugins == stored["plugins"]
    registered.clear()
    stored["plugins"]["gate"]["linear"] = "my-package 0.3"
    with raises(ConfigError, key="algo", value="emtc-mymixer") as caught:
        config_from_stored(stored)
    assert "EMTC_PLUGINS" in caught.value.faults[0].hint
    with raises(ConfigError, key="gate.type", value="linear") as caught:
        config_from_stored(stored | {"algo": "emtc-qplex", "plugins": {"gate": {"linear": "my-package 0.3"}}})
    assert "pip install my-package==0.3" in caught.value.faults[0].hint


def test_nobody_sets_where_something_comes_from() -> None:
    with raises(ConfigError, key="plugins.gate.linear"):
        resolve(overrides=["plugins.gate.linear=mine"])


def test_a_mixer_from_outside_is_an_algorithm_in_every_method() -> None:
    register("mixer", "mymixer")(object)
    register("mixer", "vdn")(object)
    assert list_algos()[-3:] == ["emtc-mymixer", "emu-mymixer", "mymixer"]
    assert resolve(algo="emu-mymixer").backbone == "mymixer"
    assert "the name is unique" in faults("vdn")


def test_arguments_of_an_environment_are_settings_like_any_other() -> None:
    register("env", "maze")(maze)
    fields = {info.key: info for info in describe_fields()}
    size, kind = fields["env.maze.size"], fields["env.maze.kind"]
    assert (size.type, size.default, size.minimum, size.maximum, size.unit) == ("int", 5, 2, 9, "cells")
    assert (kind.type, kind.choices) == ("choice", ("open", "closed"))
    config = resolve(env="maze", map="default", overrides=["env.maze.size=7"])
    assert config.env.arguments == {"size": 7, "walls": True, "kind": "open"}
    assert flatten(config)["env.maze.size"] == 7
    assert "env.maze.size" not in flatten(resolve())


@pytest.mark.parametrize(
    ("given", "key", "value", "hint"),
    [
        ("env.maze.size=1", "env.maze.size", 1, ""),
        ("env.maze.kind=shut", "env.maze.kind", "shut", ""),
        ("env.maze.sise=3", "env.maze.sise", NO_VALUE, "env.maze.size"),
    ],
)
def test_a_wrong_argument_is_one_fault_with_its_key(given: str, key: str, value: object, hint: str) -> None:
    register("env", "maze")(maze)
    with raises(ConfigError, key=key, value=value) as caught:
        resolve(env="maze", map="default", overrides=[given])
    assert hint in caught.value.faults[0].hint


def test_a_model_may_stand_for_the_arguments() -> None:
    class Rooms(BaseModel):
        count: Annotated[int, Field(ge=1)] = 3

    def rooms(options: Rooms) -> None: ...

    rooms.__annotations__["options"] = Rooms
    register("env", "rooms")(rooms)
    assert resolve(env="rooms", map="default", overrides=["env.rooms.count=4"]).env.arguments == {"count": 4}


def bent(delta: Any, tau: Any, context: Any, power: Annotated[float, Field(gt=0, le=9)] = 2.0) -> Any:
    return np.exp(-((np.asarray(delta) / np.asarray(tau)) ** power))


def test_arguments_of_a_gate_are_settings_and_decide_beta() -> None:
    register("gate", "bent")(bent)
    info = next(each for each in describe_fields() if each.key == "gate.bent.power")
    assert (info.type, info.default, info.maximum) == ("float", 2.0, 9.0)
    plain, steep = (resolve(overrides=["gate.type=bent", *more]) for more in ([], ["gate.bent.power=4"]))
    assert (plain.gate.arguments, steep.gate.arguments) == ({"power": 2.0}, {"power": 4.0})
    np.testing.assert_allclose(
        make_gate_law(steep.gate).weigh(DELTA, 1.0, CONTEXT), bent(DELTA, 1.0, CONTEXT, 4.0), rtol=1e-12
    )
    assert config_from_stored(steep.model_dump(mode="json")) == steep
    assert "gate.bent.power" not in find_changes(flatten(plain))
    assert find_changes(flatten(steep))["gate.bent.power"] == 4.0
    assert "gate.bent.power" not in flatten(resolve(overrides=["gate.bent.power=4"])), "another gate is used"
    assert faults("bent") == {}
    assert "gate.bent.power" in check_plugin(get_plugin("gate", "bent"), ["gate.bent.power=0"])[-1].fault


@pytest.mark.parametrize(
    ("given", "key", "hint"),
    [
        (["gate.type=bent", "gate.bent.power=0"], "gate.bent.power", ""),
        (["gate.type=bent", "gate.bent.powr=1"], "gate.bent.powr", "gate.bent.power"),
        (["gate.typo=1"], "gate.typo", "gate.type"),
        (["gate.gone.x=1"], "gate.gone.x", "EMTC_PLUGINS"),
        (["mixer.gone.x=1"], "mixer.gone.x", "EMTC_PLUGINS"),
    ],
)
def test_a_wrong_argument_of_a_gate_or_mixer_is_one_fault(given: list[str], key: str, hint: str) -> None:
    register("gate", "bent")(bent)
    with raises(ConfigError, key=key) as caught:
        resolve(overrides=given)
    assert hint in caught.value.faults[0].hint
    assert "\n" not in str(caught.value)


def test_arguments_of_a_mixer_reach_it() -> None:
    from torch import nn

    class Heads(nn.Module):
        def __init__(self, config: Any, info: Any, *, heads: Annotated[int, Field(ge=1)] = 2) -> None:
            super().__init__()
            self.heads = heads

    register("mixer", "heads")(Heads)
    config = resolve(algo="emtc-heads", overrides=["mixer.heads.heads=5"])
    assert config.mixer == {"heads": {"heads": 5}}
    assert make_mixer("heads", config_from_stored(config.model_dump(mode="json")), INFO).heads == 5
    assert find_changes(flatten(config))["mixer.heads.heads"] == 5
    assert "mixer" not in resolve(overrides=["mixer.heads.heads=5"]).model_dump(mode="json"), "QPLEX mixes"
    with raises(ConfigError, key="mixer.heads.heads", value=0):
        resolve(algo="heads", overrides=["mixer.heads.heads=0"])


def test_a_stored_run_keeps_arguments_of_an_environment_that_is_gone(registered: dict[Any, Any]) -> None:
    register("env", "maze")(maze)
    stored = resolve(env="maze", map="default", overrides=["env.maze.size=7"]).model_dump(mode="json")
    registered.clear()
    with raises(ConfigError, key="env.name", value="maze"):
        config_from_stored(stored)
    without_origin = {key: value for key, value in stored.items() if key != "plugins"}
    assert config_from_stored(without_origin).env.arguments["size"] == 7


def test_what_failed_is_named_with_its_origin() -> None:
    def boom(delta: Any, tau: Any, context: Any) -> Any:
        return 1 / 0

    register("gate", "zero")(linear)
    register("gate", "boom")(boom)
    with pytest.raises(ZeroDivisionError) as caught:
        make_gate_law(GateConfig(type="boom")).weigh(DELTA, 1.0, CONTEXT)
    assert describe_failure(caught.value).startswith("The gate ")
    assert f"(module {__name__}) failed: ZeroDivisionError: division by zero." in describe_failure(caught.value)
    assert describe_failure(ValueError("of our own")) == "ValueError: of our own"


def test_loaded_plugins_are_listed_with_their_files() -> None:
    register("gate", "linear")(linear)
    (found,) = list_loaded()
    assert (found.kind, found.name, found.module) == ("gate", "linear", __name__)
    assert found.file is not None
    assert found.file.name == "test_plugins.py"


def test_a_listed_module_that_fails_stops_only_what_needs_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_lab.py").write_text("import not_there_at_all\n")
    monkeypatch.setenv(plugins.VARIABLE, "half_a_lab")
    monkeypatch.setenv(plugins.FOLDER_VARIABLE, str(tmp_path))
    assert resolve().gate.type == "gaussian"
    with raises(PluginError, key="gate", value="linear") as caught:
        get_plugin("gate", "linear")
    assert "half_a_lab" in caught.value.faults[0].hint


@pytest.mark.parametrize("name", ["My_Gate", "a-b", "1st", "a.b", ""])
def test_a_name_that_can_be_no_part_of_a_setting_is_refused(name: str) -> None:
    with raises(PluginError, key="gate", value=name):
        register("gate", name)


def test_a_schedule_from_outside_decides_epsilon_within_its_bounds() -> None:
    register("schedule", "half")(lambda env_step, train: 0.5)
    register("schedule", "more")(lambda env_step, train: env_step)
    assert exploration(TrainConfig(eps_schedule="half"), 7) == 0.5
    assert exploration(TrainConfig(), 50_000) == TrainConfig().eps_end
    with raises(PluginError, key=f"schedule more (module {__name__})", value=2):
        exploration(TrainConfig(eps_schedule="more"), 2)


def test_conformance_names_the_rule_that_is_broken() -> None:
    def falls(delta: Any, tau: Any, context: Any) -> Any:
        return delta / (1 + delta)

    falls.monotone = True
    rng = np.random.default_rng()
    register("gate", "falls")(falls)
    register("gate", "noisy")(lambda delta, tau, context: rng.random(delta.shape))
    register("metric", "words")(lambda episode: "many")
    register("callback", "deaf")(lambda config: object())
    register("schedule", "high")(lambda env_step, train: 1.5)
    register("env", "untyped")(broken_rule)
    assert list(faults("falls")) == ["beta never rises with delta (claimed: monotone)"]
    assert "equal inputs give equal beta" in faults("noisy")
    assert "it returns a finite number for an episode" in faults("words")
    assert "on_episode" in next(iter(faults("deaf").values()))
    assert "epsilon is in [0, 1] at every env step" in faults("high")
    assert faults("untyped")


def test_a_game_that_brings_its_own_batch_keeps_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.core.lab_example", raising=False)
    monkeypatch.setenv(plugins.VARIABLE, "tests.core.lab_example")
    plugins._import_listed_modules.cache_clear()
    try:
        assert faults("guess") == {}
        assert faults("steep") == {}
        config = resolve(env="guess", map="dark", overrides=["env.guess.doors=5"]).env
        env = make_env(config, n_envs=3)
        assert (env.info.n_actions, env.info.map, env.n_envs) == (5, "dark", 3)
        with pytest.raises(EnvUnavailableError, match="drak") as caught:
            make_env(config.model_copy(update={"map": "drak"}), n_envs=1)
        assert "dark" in caught.value.hint
        rows = [row for row in list_envs() if row.env == "guess"]
        assert [(row.map, row.available, row.origin) for row in rows] == [
            (map, True, "module tests.core.lab_example") for map in ("plain", "dark")
        ]
    finally:
        plugins._import_listed_modules.cache_clear()


def test_a_mixer_that_breaks_its_contract_is_told_how() -> None:
    import torch
    from torch import nn

    from emtc_core.learner.mixers.base import Mixed

    class Minus(nn.Module):
        monotone = True

        def __init__(self, config: Any, info: Any) -> None:
            super().__init__()

        def forward(self, inputs: Any) -> Any:
            return Mixed(-inputs.q_taken.sum(-1))

    class Bare(Minus):
        def forward(self, inputs: Any) -> Any:
            return inputs.q_taken.sum(-1)

    class Mean(Minus):
        def forward(self, inputs: Any) -> Any:
            return Mixed(inputs.q_taken.sum(-1) - inputs.q_taken.mean())

    for name, mixer in (("minus", Minus), ("bare", Bare), ("mean", Mean)):
        register("mixer", name)(mixer)
    assert list(faults("minus")) == ["Q_tot never falls when a value rises (claimed: monotone)"]
    assert "Mixed" in faults("bare")["it returns Mixed with q_tot [R], finite float32"]
    assert "a row does not depend on the others" in faults("mean")
    assert isinstance(torch.zeros(1), torch.Tensor)


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


def test_entry_points_are_found_by_their_groups_only() -> None:
    assert list_names("gate") == []
    assert find_plugin("gate", "gaussian") is None
    assert os.environ.get(plugins.VARIABLE) is None
