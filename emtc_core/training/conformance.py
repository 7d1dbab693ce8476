"""Checks that a plug-in fulfils the contract of its kind: one finding per rule.

Each check calls the plug-in with small made-up inputs. Gates, mixers, embedders, schedules, callbacks, metrics and
environments are checked. The checks do not measure how well a plug-in works.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from emtc_core.config.memory import EmbedConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS, make_argument_model
from emtc_core.config.resolve import resolve
from emtc_core.config.run import BACKBONES, METHODS, RunConfig
from emtc_core.config.train import EnvConfig, TrainConfig
from emtc_core.embedder.plugin import PluginEmbedder
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.checker import check_env
from emtc_core.envs.registry import ADAPTERS, get_default_map, make_env
from emtc_core.errors import EmtcError
from emtc_core.gate.laws import INVERTIBLE, GateContext, GateLaw, make_gate_law, unknown_context
from emtc_core.learner.backbones.value import make_mixer
from emtc_core.learner.mixers.base import Mixed, MixInputs
from emtc_core.memory.memory import NodeSample
from emtc_core.metrics import prepare_open_values
from emtc_core.plugins import Kind, Plugin, find_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import exploration
from emtc_core.training.monitor import EVENTS, make_callback

INFO = EnvInfo("made-up", "made-up", 3, 4, 5, 7, episode_limit=20, reward_range=(-1.0, 1.0))
INVERTS = "temperature_for returns the tau from which beta was computed"
_ARGUMENTS_RULE = "the arguments have types and valid values"
_TAUS = (0.05, 0.6, 1.2, 20.0)
_TAU_TOLERANCE = 1e-6  # relative


@dataclass(frozen=True)
class RuleResult:
    """Result of checking one rule."""

    rule: str
    fault: str = ""
    """How the plug-in breaks the rule; empty if it does not."""

    @property
    def holds(self) -> bool:
        """Whether the plug-in fulfils the rule."""
        return not self.fault


class _BrokenRule(Exception):  # noqa: N818  (the text of a finding)
    """Raised by a check, with the fault."""


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
        _require(plugin.name not in builtin.get(plugin.kind, ()), f"{plugin.name} is a built-in name.")

    def check_import() -> None:
        factory = plugin.load()
        _require(callable(factory), f"It must be callable, got {type(factory).__name__}.")

    findings = [_check("the name is unique", check_name), _check("it can be imported", check_import)]
    if all(finding.holds for finding in findings):
        findings += _CHECKS[plugin.kind](plugin, settings)
    return findings


def make_context(arrays: Any) -> GateContext:
    """Make a context with gamma = 0.99.

    Args:
        arrays: reward, h and h_next, arrays of one shape.
    """
    reward, h, h_next = arrays
    return GateContext(reward, h, h_next, 0.99)


def _check(rule: str, function: Callable[[], object]) -> RuleResult:
    """Call a function that raises if the plug-in breaks the rule. Its return value is ignored."""
    try:
        function()
    except (EmtcError, _BrokenRule) as error:
        return RuleResult(rule, str(error))
    except Exception as error:  # the code of a plug-in may raise anything
        return RuleResult(rule, f"{type(error).__name__}: {error}")
    return RuleResult(rule)


def _require(condition: bool | np.bool_, fault: str) -> None:
    if not condition:
        raise _BrokenRule(fault)


def _check_gate(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    rng = np.random.default_rng(0)
    delta = np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 199)])
    context = make_context(rng.normal(size=(3, len(delta))))

    def make_law() -> GateLaw:
        return make_gate_law(resolve(overrides=[f"gate.type={plugin.name}", *settings]).gate)

    configured = _check(_ARGUMENTS_RULE, make_law)
    yield configured
    if not configured.holds:
        return
    law = make_law()

    def compute_beta(tau: Any = 0.6, delta: Any = delta, context: GateContext = context) -> Any:
        return law.coefficient(delta, tau, context)

    def check_arguments_unchanged() -> None:
        arrays = (delta, context.reward, context.h, context.h_next)
        before = [array.copy() for array in arrays]
        law.function(delta, 0.6, context)  # not `coefficient`, which passes a copy of delta
        _require(all(map(np.array_equal, before, arrays)), "It changes its arguments.")

    def check_two_dimensions() -> None:
        context_BT = make_context([x.reshape(20, 10) for x in (context.reward, context.h, context.h_next)])
        beta_BT = compute_beta(delta=delta.reshape(20, 10), context=context_BT)
        same = np.array_equal(beta_BT.ravel(), compute_beta())
        _require(same, "The same transitions in another shape give another beta.")

    yield _check("beta has delta's shape and is in [0, 1], for every tau", lambda: [compute_beta(tau) for tau in _TAUS])
    yield _check(
        "equal inputs give equal beta",
        lambda: _require(np.array_equal(compute_beta(), compute_beta()), "Two calls differ."),
    )
    yield _check("it does not change its arguments", check_arguments_unchanged)
    yield _check("a batch of episodes [B, T] gives the same beta as its transitions", check_two_dimensions)
    yield _check("tau may be an array", lambda: compute_beta(np.full(len(delta), 0.6)))
    yield _check("an empty batch is accepted", lambda: compute_beta(delta=delta[:0], context=context.select(delta < 0)))
    yield _check("a context of NaN is accepted", lambda: compute_beta(context=unknown_context(delta.shape)))
    if getattr(plugin.load(), "monotone", False):
        yield _check("beta never rises with delta (claimed: monotone)", lambda: _check_falls(law, delta, context))
    if law.is_invertible:
        yield _check(INVERTS, lambda: _check_inverse(law, delta, context))


def _check_falls(law: GateLaw, delta: Any, context: GateContext) -> None:
    """Raise if beta rises with delta [N] while the context is that of one transition."""
    for row in range(len(delta)):
        constant = make_context([np.full(len(delta), x[row]) for x in (context.reward, context.h, context.h_next)])
        for tau in _TAUS:
            change = np.diff(law.coefficient(delta, tau, constant))
            where = f"delta = {delta[np.argmax(change)]:g} at tau = {tau:g}"
            _require(not (change > 1e-12).any(), f"It rises near {where}.")


def _check_inverse(law: GateLaw, delta: Any, context: GateContext) -> None:
    """Compare `temperature_for` with the tau from which beta was computed; delta [N], no NaN in the context."""
    low, high = INVERTIBLE
    n_checked = 0
    for tau in _TAUS:
        beta = law.coefficient(delta, tau, context)
        rows = np.flatnonzero((beta > low) & (beta < high) & (delta > 0))
        computed = law.temperature_for(beta[rows], delta[rows])
        wrong = np.flatnonzero(np.abs(computed - tau) > _TAU_TOLERANCE * tau)
        if len(wrong):
            at = rows[wrong[0]]
            got = f"tau = {computed[wrong[0]]:g} for beta = {beta[at]:g} at delta = {delta[at]:g}"
            raise _BrokenRule(f"It returns {got}; expected tau = {tau:g}.")
        n_checked += len(rows)
    _require(n_checked > 0, f"It cannot be checked: no beta is between {low:g} and {high:g}.")


def _check_mixer(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    def configure() -> RunConfig:
        return resolve(algo=plugin.name, overrides=list(settings))

    configured = _check(_ARGUMENTS_RULE, configure)
    yield configured
    if not configured.holds:
        return
    config = configure()

    def make(seed: int = 0) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_mixer(plugin.name, config, INFO)

    is_module = _check("it makes a torch.nn.Module", lambda: _require(isinstance(make(), nn.Module), "It does not."))
    yield is_module
    if not is_module.holds:
        return

    def check_copies() -> None:
        mixer, restored = make(), make(1)
        restored.load_state_dict(mixer.state_dict())
        q_tot = mixer(_make_mix_inputs()).q_tot
        for other, name in ((restored, "mixer with the same state_dict"), (copy.deepcopy(mixer), "deep copy")):
            _require(torch.equal(other(_make_mix_inputs()).q_tot, q_tot), f"A {name} gives a different output.")

    def check_seed() -> None:
        same = torch.equal(make()(_make_mix_inputs()).q_tot, make()(_make_mix_inputs()).q_tot)
        _require(same, "Two mixers made with one seed give different outputs.")

    yield _check("it returns Mixed with q_tot [R], finite float32", lambda: _check_mixed(make()(_make_mix_inputs())))
    yield _check("the weights depend only on the seed", check_seed)
    yield _check("a state_dict and a deep copy contain the whole mixer", check_copies)
    yield _check("a row does not depend on the others", lambda: _check_rows(make()))
    yield _check("the gradient reaches every agent's value", lambda: _compute_gradient(make()))
    if getattr(plugin.load(), "monotone", False):
        mixers = map(make, range(5))
        yield _check("Q_tot never falls when a value rises (claimed: monotone)", lambda: _check_monotone(mixers))


def _make_mix_inputs(rows: int = 64) -> MixInputs:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(rows, INFO.n_agents, generator=generator)
    return MixInputs(
        q_taken=q,
        q_max=q + torch.rand(q.shape, generator=generator),
        action=torch.randint(INFO.n_actions, q.shape, generator=generator),
        state=torch.randn(rows, INFO.state_dim, generator=generator),
        obs=torch.randn(rows, INFO.n_agents, INFO.obs_dim, generator=generator),
    )


def _check_mixed(mixed: Any) -> None:
    if not isinstance(mixed, Mixed):
        raise _BrokenRule(f"It must return emtc_core.learner.mixers.base.Mixed, got {type(mixed).__name__}.")
    for name, values in (("q_tot", mixed.q_tot), ("regularizer", mixed.regularizer)):
        if values is None and name == "regularizer":
            continue
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (64,):
            raise _BrokenRule(f"{name} must have shape [R] = (64,), got {tuple(getattr(values, 'shape', ()))}.")
        if values.dtype != torch.float32 or not torch.isfinite(values).all():
            raise _BrokenRule(f"{name} must be finite float32.")


def _check_rows(mixer: nn.Module) -> None:
    inputs = _make_mix_inputs()
    first_rows = MixInputs(*(values[:20] for values in vars(inputs).values()))
    with torch.no_grad():
        same = torch.allclose(mixer(first_rows).q_tot, mixer(inputs).q_tot[:20], atol=1e-5)
    _require(same, "The same rows in a smaller batch give a different output.")


def _compute_gradient(mixer: nn.Module) -> torch.Tensor:
    """Compute the gradient [R, N] of Q_tot. Raise if an agent's value has no effect."""
    inputs = _make_mix_inputs(256)
    inputs.q_taken.requires_grad_(True)
    mixer(inputs).q_tot.sum().backward()
    slope = inputs.q_taken.grad
    if slope is None or not (slope != 0).any(dim=0).all():
        raise _BrokenRule("The value of an agent has no effect on Q_tot.")
    return slope


def _check_monotone(mixers: Iterable[nn.Module]) -> None:
    for mixer in mixers:
        slope = _compute_gradient(mixer)
        _require(not (slope < -1e-6).any(), f"It falls, by up to {-float(slope.min()):g} per unit.")


def _check_embedder(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    rng = np.random.default_rng(0)
    state = rng.normal(size=(50, INFO.state_dim)).astype(np.float32)
    t, h = np.arange(50, dtype=np.int32) % 20, rng.normal(size=50)
    config = EmbedConfig(type=plugin.name)

    def make() -> PluginEmbedder:
        sizes: dict[str, Any] = {"state_dim": INFO.state_dim, "episode_limit": INFO.episode_limit, "device": "cpu"}
        return PluginEmbedder(plugin, config, **sizes, seed=3)

    def make_fitted() -> PluginEmbedder:
        embedder = make()
        embedder.fit(NodeSample(state, t, h))
        return embedder

    def embed(embedder: PluginEmbedder, rows: slice = slice(None)) -> Any:
        return embedder.embed(state[rows], t[rows]).numpy()

    def check_finite(embedder: PluginEmbedder) -> None:
        _require(np.isfinite(embed(embedder)).all(), "The embedding contains NaN or infinity.")

    def check_rows() -> None:
        embedder = make()
        same = np.array_equal(embed(embedder)[10:20], embed(embedder, slice(10, 20)))
        _require(same, "The same rows in a smaller batch have another embedding, so a lookup can miss its own node.")

    def check_seed() -> None:
        same = np.array_equal(embed(make_fitted()), embed(make_fitted()))
        _require(same, "Two embedders with one seed give different embeddings.")

    def check_restored() -> None:
        fitted, restored = make_fitted(), make()
        restored.set_state(fitted.get_state())
        _require(np.array_equal(embed(fitted), embed(restored)), "A restored embedder gives different embeddings.")

    yield _check("it embeds [M, S] into finite [M, embed.dim]", lambda: check_finite(make()))
    yield _check("a row's embedding does not depend on the others", check_rows)
    yield _check("the embedding depends only on the seed and the data", check_seed)
    yield _check("it embeds after a refit", lambda: check_finite(make_fitted()))
    if hasattr(plugin.load(), "get_state") or hasattr(plugin.load(), "set_state"):
        yield _check("set_state restores it", check_restored)


def _check_schedule(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    train = TrainConfig(eps_schedule=plugin.name)
    steps = [0, 1, *range(1000, train.t_max, train.t_max // 200), train.t_max]

    def compute_epsilons() -> list[float]:
        return [exploration(train, step) for step in steps]

    yield _check("epsilon is in [0, 1] at every env step", compute_epsilons)
    yield _check(
        "epsilon depends only on the env step",
        lambda: _require(compute_epsilons() == compute_epsilons(), "Two calls differ."),
    )


def _check_callback(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    config = RunConfig()
    evaluation = EvaluationRecord(100, np.ones(4, np.float32), np.full(4, 9), np.ones(4, bool))
    subjects = {"on_episode": _make_episode(), "on_evaluation": evaluation, "on_refit": {"embedder/loss": 1.0}}
    has_event = _check(f"it has one of {', '.join(EVENTS)}", lambda: make_callback(plugin, config))
    yield has_event
    if not has_event.holds:
        return
    for event in EVENTS:
        if method := getattr(make_callback(plugin, config), event, None):
            yield _check(
                f"{event} returns None or numbers",
                lambda method=method, event=event: _check_numbers(method(subjects[event], 100)),
            )


def _check_numbers(values: Any) -> None:
    """Raise if a value of a plug-in cannot be recorded under its name."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        raise _BrokenRule(f"It must return None or a dictionary, got {type(values).__name__}.")
    recorded = {name.partition("/")[2] for name in prepare_open_values("user", values)}
    for name in sorted(set(map(str, values)) - recorded):
        rule = "must be a finite number, and its name must consist of letters, digits, _, - and dots."
        raise _BrokenRule(f"{name!r} {rule}")


def _check_metric(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    def measure() -> Any:
        return plugin.load()(_make_episode())

    yield _check("it returns a finite number for an episode", lambda: _check_numbers({plugin.name: measure()}))
    yield _check("the value depends only on the episode", lambda: _require(measure() == measure(), "Two calls differ."))


def _check_env(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    def configure() -> EnvConfig:
        make_argument_model(plugin)
        return resolve(env=plugin.name, map=get_default_map(plugin.name), overrides=list(settings)).env

    configured = _check(_ARGUMENTS_RULE, configure)
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

    yield _check("it can be created and played with random actions", play)
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
    "mixer": _check_mixer,
    "embedder": _check_embedder,
    "gate": _check_gate,
    "schedule": _check_schedule,
    "callback": _check_callback,
    "metric": _check_metric,
}
