"""Checks that a plug-in fulfils the contract of its kind: one result per rule.

Each check calls the plug-in with small made-up inputs. Gates, mixers, embedders, schedules, callbacks, metrics and
environments are checked. The checks do not measure how well a plug-in works.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from emtc_core.config.plugin_settings import PLUGIN_SETTINGS, make_argument_model
from emtc_core.config.resolve import resolve
from emtc_core.config.run import BACKBONES, METHODS, RunConfig
from emtc_core.config.train import EnvConfig, TrainConfig
from emtc_core.envs.checker import check_env
from emtc_core.envs.registry import ADAPTERS, get_default_map, make_env
from emtc_core.metrics import prepare_open_values
from emtc_core.plugins import Kind, Plugin, find_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import exploration
from emtc_core.training.conformance.embedder import check_embedder
from emtc_core.training.conformance.gate import check_gate
from emtc_core.training.conformance.mixer import check_mixer
from emtc_core.training.conformance.rules import ARGUMENTS_RULE, INFO, BrokenRuleError, RuleResult, check_rule, require
from emtc_core.training.monitor import EVENTS, make_callback


def check_plugin(plugin: Plugin, settings: Sequence[str] = ()) -> list[RuleResult]:
    """Check a plug-in against the contract of its kind.

    Args:
        plugin: The plug-in.
        settings: "key=value" texts for its arguments.
    """

    def check_name() -> None:
        find_plugin(plugin.kind, plugin.name)  # raises if two packages provide it
        builtin: Mapping[Kind, Sequence[str]] = {
            **dict(PLUGIN_SETTINGS.values()),
            "mixer": (*BACKBONES, *METHODS, "emc"),
            "env": (*ADAPTERS, *EnvConfig.model_fields),
        }
        require(plugin.name not in builtin.get(plugin.kind, ()), f"{plugin.name} is a built-in name.")

    def check_import() -> None:
        factory = plugin.load()
        require(callable(factory), f"It must be callable, got {type(factory).__name__}.")

    results = [check_rule("the name is unique", check_name), check_rule("it can be imported", check_import)]
    if all(result.holds for result in results):
        results += _CHECKS[plugin.kind](plugin, settings)
    return results


def _check_schedule(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    train = TrainConfig(eps_schedule=plugin.name)
    steps = [0, 1, *range(1000, train.t_max, train.t_max // 200), train.t_max]

    def compute_epsilons() -> list[float]:
        return [exploration(train, step) for step in steps]

    yield check_rule("epsilon is in [0, 1] at every env step", compute_epsilons)
    yield check_rule(
        "epsilon depends only on the env step",
        lambda: require(compute_epsilons() == compute_epsilons(), "Two calls differ."),
    )


def _check_callback(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    config = RunConfig()
    evaluation = EvaluationRecord(100, np.ones(4, np.float32), np.full(4, 9), np.ones(4, bool))
    subjects = {"on_episode": _make_episode(), "on_evaluation": evaluation, "on_refit": {"embedder/loss": 1.0}}
    has_event = check_rule(f"it has one of {', '.join(EVENTS)}", lambda: make_callback(plugin, config))
    yield has_event
    if not has_event.holds:
        return
    for event in EVENTS:
        if method := getattr(make_callback(plugin, config), event, None):
            yield check_rule(
                f"{event} returns None or numbers",
                lambda method=method, event=event: _check_numbers(method(subjects[event], 100)),
            )


def _check_numbers(values: Any) -> None:
    """Raise if a value of a plug-in cannot be recorded under its name."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        raise BrokenRuleError(f"It must return None or a dictionary, got {type(values).__name__}.")
    recorded = {name.partition("/")[2] for name in prepare_open_values("user", values)}
    for name in sorted(set(map(str, values)) - recorded):
        rule = "must be a finite number, and its name must consist of letters, digits, _, - and dots."
        raise BrokenRuleError(f"{name!r} {rule}")


def _check_metric(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    def measure() -> Any:
        return plugin.load()(_make_episode())

    yield check_rule("it returns a finite number for an episode", lambda: _check_numbers({plugin.name: measure()}))
    yield check_rule(
        "the value depends only on the episode", lambda: require(measure() == measure(), "Two calls differ.")
    )


def _check_env(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    def configure() -> EnvConfig:
        make_argument_model(plugin)
        return resolve(env=plugin.name, map=get_default_map(plugin.name), overrides=list(settings)).env

    configured = check_rule(ARGUMENTS_RULE, configure)
    yield configured
    if not configured.holds:
        return
    faults: Sequence[str] = ()

    def play() -> None:
        nonlocal faults
        env = make_env(configure(), n_envs=2)
        try:
            faults = check_env(env, steps=200, seed=0)
        finally:
            env.close()

    yield check_rule("it can be created and played with random actions", play)
    contract = "the environment contract: shapes, dtypes, seeds, ends"
    yield from [RuleResult("the environment contract", fault) for fault in faults] or [RuleResult(contract)]


def _make_episode(length: int = 9) -> Episode:
    rng = np.random.default_rng(0)
    n, a = INFO.n_agents, INFO.n_actions
    return Episode(
        obs=rng.normal(size=(length + 1, n, INFO.obs_dim)).astype(np.float32),
        state=rng.normal(size=(length + 1, INFO.state_dim)).astype(np.float32),
        avail=np.ones((length + 1, n, a), bool),
        action=rng.integers(a, size=(length, n)),
        reward=rng.normal(size=length).astype(np.float32),
        terminated=True,
        truncated=False,
        won=True,
        episode_return=1.0,
    )


_CHECKS: dict[Kind, Callable[[Plugin, Sequence[str]], Iterator[RuleResult]]] = {
    "env": _check_env,
    "mixer": check_mixer,
    "embedder": check_embedder,
    "gate": check_gate,
    "schedule": _check_schedule,
    "callback": _check_callback,
    "metric": _check_metric,
}
