"""The contracts of plug-ins as programs: one finding per rule, for whoever writes one.

What lives here: gates, mixers, embedders, schedules, callbacks, metrics and environments held to what their users rely
on, by small made-up inputs. What does not: whether they are any good.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from emtc_core.config.memory import EmbedConfig
from emtc_core.config.outside import PLUGGED, arguments_of
from emtc_core.config.resolve import resolve
from emtc_core.config.run import BACKBONES, METHODS, RunConfig
from emtc_core.config.train import EnvConfig, TrainConfig
from emtc_core.embedder.outside import OutsideEmbedder
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.checker import check_env
from emtc_core.envs.registry import ADAPTERS, make_env, usual_map
from emtc_core.errors import EmtcError
from emtc_core.gate.laws import INVERTIBLE, GateContext, GateLaw, make_gate_law, unknown_context
from emtc_core.learner.backbones.value import make_mixer
from emtc_core.learner.mixers.base import Mixed, MixInputs
from emtc_core.memory.memory import NodeSample
from emtc_core.metrics import open_values
from emtc_core.plugins import Kind, Plugin, find_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import exploration
from emtc_core.training.monitor import EVENTS, make_callback

INFO = EnvInfo("made-up", "made-up", 3, 4, 5, 7, episode_limit=20, reward_range=(-1.0, 1.0))
INVERTS = "temperature_for gives the tau from which beta was computed"
_TAUS = (0.05, 0.6, 1.2, 20.0)
_TAU_TOLERANCE = 1e-6  # relative


@dataclass(frozen=True)
class Finding:
    """One rule, and what breaks it."""

    rule: str
    fault: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing breaks it."""
        return not self.fault


def check_plugin(plugin: Plugin, settings: Sequence[str] = ()) -> list[Finding]:
    """Hold a plug-in to the contract of its kind; `settings` are "key=value" for its arguments."""
    found = [
        _try("its name is its own", lambda: _name_fault(plugin)),
        _try("it can be imported", lambda: _load(plugin)),
    ]
    if all(each.holds for each in found):
        found += _CHECKS[plugin.kind](plugin, settings)
    return found


def _try(rule: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(rule, look())
    except EmtcError as error:
        return Finding(rule, str(error))
    except Exception as error:  # anything may go wrong in a stranger's code: that is the finding
        return Finding(rule, f"{type(error).__name__}: {error}")


def _load(plugin: Plugin) -> str:
    made = plugin.load()
    return "" if callable(made) else f"It must be something to call, got {type(made).__name__}."


def _name_fault(plugin: Plugin) -> str:
    find_plugin(plugin.kind, plugin.name)  # raises where two packages bring it
    taken: Mapping[Kind, Sequence[str]] = {
        **dict(PLUGGED.values()),
        "mixer": (*BACKBONES, *METHODS, "emc"),
        "env": (*ADAPTERS, *EnvConfig.model_fields),
    }
    return f"{plugin.name} is this project's own name." if plugin.name in taken.get(plugin.kind, ()) else ""


def _check_gate(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    rng = np.random.default_rng(0)
    delta = np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 199)])
    context = make_context(rng.normal(size=(3, len(delta))))

    made: list[GateLaw] = []

    def configure() -> str:
        made.append(make_gate_law(resolve(overrides=[f"gate.type={plugin.name}", *settings]).gate))
        return ""

    def ask(tau: Any = 0.6, at: Any = delta, told: GateContext = context) -> Any:
        return made[0].coefficient(at, tau, told)

    def say(is_well: bool | np.bool_, fault: str) -> str:
        return "" if is_well else fault

    def keeps_arguments() -> str:
        arrays = (delta, context.reward, context.h, context.h_next)
        before = [each.copy() for each in arrays]
        made[0].function(delta, 0.6, context)  # not `coefficient`, which passes a copy of delta
        return say(all(map(np.array_equal, before, arrays)), "It changes them.")

    def in_two_dimensions() -> str:
        wide = make_context([x.reshape(20, 10) for x in (context.reward, context.h, context.h_next)])
        same = np.array_equal(ask(at=delta.reshape(20, 10), told=wide).ravel(), ask())
        return say(same, "The same transitions in another shape give another beta.")

    configured = _try("its arguments have types and values", configure)
    yield configured
    if not configured.holds:
        return
    yield _try("beta has delta's shape and lies in [0, 1], for every tau", lambda: _each(ask))
    yield _try("equal inputs give equal beta", lambda: say(np.array_equal(ask(), ask()), "They do not."))
    yield _try("its arguments stay as they were", keeps_arguments)
    yield _try("a batch of episodes [B, T] is judged as its transitions are", in_two_dimensions)
    yield _try("tau may be an array", lambda: _nothing(ask(np.full(len(delta), 0.6))))
    yield _try("no transition at all is judged", lambda: _nothing(ask(at=delta[:0], told=context.only(delta < 0))))
    yield _try("an unknown context is taken", lambda: _nothing(ask(told=unknown_context(delta.shape))))
    if getattr(plugin.load(), "monotone", False):
        yield _try("beta never rises with delta (claimed: monotone)", lambda: _rises(ask, delta, context))
    if made[0].is_invertible:
        yield _try(INVERTS, lambda: _inverse_fault(made[0], delta, context))


def make_context(arrays: Any) -> GateContext:
    """A context of three arrays: reward, h and h_next."""
    reward, h, h_next = arrays
    return GateContext(reward, h, h_next, 0.99)


def _each(ask: Callable[..., Any]) -> str:
    for tau in _TAUS:
        ask(tau)
    return ""


def _nothing(value: object) -> str:
    return ""


def _rises(ask: Callable[..., Any], delta: Any, context: GateContext) -> str:
    for place in range(len(delta)):  # one transition's context, and every delta
        alike = make_context([np.full(len(delta), x[place]) for x in (context.reward, context.h, context.h_next)])
        for tau in _TAUS:
            beta = ask(tau, told=alike)
            if (np.diff(beta) > 1e-12).any():
                return f"It rises near delta = {delta[np.argmax(np.diff(beta))]:g} at tau = {tau:g}."
    return ""


def _inverse_fault(law: GateLaw, delta: Any, context: GateContext) -> str:
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
            return f"It gives {got}, where tau was {tau:g}."
        n_checked += len(rows)
    return "" if n_checked else f"No beta between {low:g} and {high:g} was found, so that nothing can be inverted."


def _check_mixer(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    told: list[RunConfig] = []

    def configure() -> str:
        told.append(resolve(algo=plugin.name, overrides=list(settings)))
        return ""

    def make(seed: int = 0) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_mixer(plugin.name, told[0], INFO)

    yield _try("its arguments have types and values", configure)
    if not told:
        return
    made = _try("it makes a torch.nn.Module", lambda: "" if isinstance(make(), nn.Module) else "It does not.")
    yield made
    if not made.holds:
        return

    def copies() -> str:
        first = make()
        other = make(1)
        other.load_state_dict(first.state_dict())
        alike = [
            torch.equal(each(_mix_inputs()).q_tot, first(_mix_inputs()).q_tot) for each in (other, copy.deepcopy(first))
        ]
        return "" if all(alike) else "Another with its state, or a deep copy, mixes otherwise."

    def seeded() -> str:
        same = torch.equal(make()(_mix_inputs()).q_tot, make()(_mix_inputs()).q_tot)
        return "" if same else "Two mixers made under one seed mix otherwise."

    yield _try("it returns Mixed with q_tot [R], finite float32", lambda: _mixed_fault(make()(_mix_inputs())))
    yield _try("a seed decides its weights", seeded)
    yield _try("its state_dict and a deep copy hold all of it", copies)
    yield _try("a row does not depend on the others", lambda: _row_fault(make()))
    yield _try("the gradient reaches every agent's value", lambda: _gradient_fault(make(), claimed=False))
    if getattr(plugin.load(), "monotone", False):
        faults = (_gradient_fault(make(seed), claimed=True) for seed in range(5))
        yield _try("Q_tot never falls when a value rises (claimed: monotone)", lambda: next(filter(None, faults), ""))


def _mix_inputs(rows: int = 64) -> MixInputs:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(rows, INFO.n_agents, generator=draw)
    return MixInputs(
        q_taken=q,
        q_max=q + torch.rand(q.shape, generator=draw),
        action=torch.randint(INFO.n_actions, q.shape, generator=draw),
        state=torch.randn(rows, INFO.state_dim, generator=draw),
        obs=torch.randn(rows, INFO.n_agents, INFO.obs_dim, generator=draw),
    )


def _mixed_fault(mixed: Any) -> str:
    if not isinstance(mixed, Mixed):
        return f"It must return emtc_core.learner.mixers.base.Mixed, got {type(mixed).__name__}."
    for name, values in (("q_tot", mixed.q_tot), ("regularizer", mixed.regularizer)):
        if values is None and name == "regularizer":
            continue
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (64,):
            return f"{name} must have shape [R] = (64,), got {tuple(getattr(values, 'shape', ()))}."
        if values.dtype != torch.float32 or not torch.isfinite(values).all():
            return f"{name} must be finite float32."
    return ""


def _row_fault(mixer: nn.Module) -> str:
    inputs = _mix_inputs()
    half = MixInputs(*(values[:20] for values in vars(inputs).values()))
    with torch.no_grad():
        same = torch.allclose(mixer(half).q_tot, mixer(inputs).q_tot[:20], atol=1e-5)
    return "" if same else "The same rows in a smaller batch are mixed otherwise."


def _gradient_fault(mixer: nn.Module, *, claimed: bool) -> str:
    inputs = _mix_inputs(256)
    inputs.q_taken.requires_grad_(True)
    mixer(inputs).q_tot.sum().backward()
    slope = inputs.q_taken.grad
    if slope is None or not (slope != 0).any(dim=0).all():
        return "Some agent's value changes nothing."
    return f"It falls, by up to {-float(slope.min()):g} per unit." if claimed and (slope < -1e-6).any() else ""


def _check_embedder(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    rng = np.random.default_rng(0)
    state = rng.normal(size=(50, INFO.state_dim)).astype(np.float32)
    t, h = np.arange(50, dtype=np.int32) % 20, rng.normal(size=50)
    config = EmbedConfig(type=plugin.name)

    def make() -> OutsideEmbedder:
        sizes: dict[str, Any] = {"state_dim": INFO.state_dim, "episode_limit": INFO.episode_limit, "device": "cpu"}
        return OutsideEmbedder(plugin, config, **sizes, seed=3)

    def embed(made: OutsideEmbedder, rows: slice = slice(None)) -> Any:
        return made.embed(state[rows], t[rows]).numpy()

    def fitted() -> OutsideEmbedder:
        made = make()
        made.fit(NodeSample(state, t, h))
        return made

    def restored() -> str:
        first, other = fitted(), make()
        other.set_state(first.get_state())
        return "" if np.array_equal(embed(first), embed(other)) else "One with its state embeds otherwise."

    def finite(made: OutsideEmbedder) -> str:
        return "" if np.isfinite(embed(made)).all() else "It is NaN or infinite."

    def alone() -> str:
        made = make()
        same = np.array_equal(embed(made)[10:20], embed(made, slice(10, 20)))
        return "" if same else "The same rows in a smaller batch are embedded otherwise, so a node misses itself."

    yield _try("it embeds [M, S] into finite [M, embed.dim]", lambda: finite(make()))
    yield _try("a row's embedding does not depend on the others", alone)
    yield _try("a seed decides it", lambda: "" if np.array_equal(embed(fitted()), embed(fitted())) else "It does not.")
    yield _try("it embeds after a refit", lambda: finite(fitted()))
    if hasattr(plugin.load(), "get_state") or hasattr(plugin.load(), "set_state"):
        yield _try("its state restores it", restored)


def _check_schedule(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    train = TrainConfig(eps_schedule=plugin.name)
    steps = [0, 1, *range(1000, train.t_max, train.t_max // 200), train.t_max]

    def values() -> list[float]:
        return [exploration(train, step) for step in steps]

    yield _try("epsilon lies in [0, 1] at every env step", lambda: _nothing(values()))
    yield _try("the env step decides it", lambda: "" if values() == values() else "Two calls differ.")


def _check_callback(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    config = RunConfig()
    evaluation = EvaluationRecord(100, np.ones(4, np.float32), np.full(4, 9), np.ones(4, bool))
    about = {"on_episode": _episode(), "on_evaluation": evaluation, "on_refit": {"embedder/loss": 1.0}}
    made = _try(f"it has one of {', '.join(EVENTS)}", lambda: _nothing(make_callback(plugin, config)))
    yield made
    if not made.holds:
        return
    for event in EVENTS:
        if hear := getattr(make_callback(plugin, config), event, None):
            yield _try(
                f"{event} returns None or numbers", lambda hear=hear, event=event: _told(hear(about[event], 100))
            )


def _told(told: Any) -> str:
    if told is None:
        return ""
    if not isinstance(told, Mapping):
        return f"It must return None or a dictionary, got {type(told).__name__}."
    lost = sorted(set(map(str, told)) - {name.partition("/")[2] for name in open_values("user", told)})
    return f"{lost[0]!r} is no finite number under a name of letters, digits, _, - and dots." if lost else ""


def _check_metric(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    def measure() -> Any:
        return plugin.load()(_episode())

    yield _try("it returns a finite number of an episode", lambda: _told({plugin.name: measure()}))
    yield _try("the episode decides it", lambda: "" if measure() == measure() else "Two calls differ.")


def _check_env(plugin: Plugin, settings: Sequence[str]) -> Iterator[Finding]:
    made: list[EnvConfig] = []

    def configure() -> str:
        arguments_of(plugin)
        made.append(resolve(env=plugin.name, map=usual_map(plugin.name), overrides=list(settings)).env)
        return ""

    def play() -> list[str]:
        env = make_env(made[0], n_envs=2)
        try:
            return check_env(env, steps=200, seed=0)
        finally:
            env.close()

    yield _try("its arguments have types and values", configure)
    if not made:
        return
    faults: list[str] = []
    yield _try("it can be made and played at random", lambda: _nothing(faults.extend(play())))
    told = [Finding("the environment contract", fault) for fault in faults]
    yield from told or [Finding("the environment contract: shapes, dtypes, seeds, ends")]


def _episode(length: int = 9) -> Episode:
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


_CHECKS: dict[Kind, Callable[[Plugin, Sequence[str]], Iterator[Finding]]] = {
    "env": _check_env,
    "mixer": _check_mixer,
    "embedder": _check_embedder,
    "gate": _check_gate,
    "schedule": _check_schedule,
    "callback": _check_callback,
    "metric": _check_metric,
}
