"""Check of a mixer that is a plug-in."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.learner.backbones.value import make_mixer
from emtc_core.learner.mixers.base import Mixed, MixInputs
from emtc_core.plugins import Plugin
from emtc_core.training.conformance.rules import ARGUMENTS_RULE, INFO, BrokenRuleError, RuleResult, check_rule, require


def check_mixer(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    """Check the rules of a mixer; `settings` are "key=value" texts for its arguments."""

    def configure() -> RunConfig:
        return resolve(algo=plugin.name, overrides=list(settings))

    configured = check_rule(ARGUMENTS_RULE, configure)
    yield configured
    if not configured.holds:
        return
    config = configure()

    def make(seed: int = 0) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make_mixer(plugin.name, config, INFO)

    is_module = check_rule("it makes a torch.nn.Module", lambda: require(isinstance(make(), nn.Module), "It does not."))
    yield is_module
    if not is_module.holds:
        return

    def check_copies() -> None:
        mixer, restored = make(), make(1)
        restored.load_state_dict(mixer.state_dict())
        q_tot = mixer(_make_mix_inputs()).q_tot
        for other, name in ((restored, "mixer with the same state_dict"), (copy.deepcopy(mixer), "deep copy")):
            require(torch.equal(other(_make_mix_inputs()).q_tot, q_tot), f"A {name} gives a different output.")

    def check_seed() -> None:
        same = torch.equal(make()(_make_mix_inputs()).q_tot, make()(_make_mix_inputs()).q_tot)
        require(same, "Two mixers made with one seed give different outputs.")

    yield check_rule(
        "it returns Mixed with q_tot [R], finite float32", lambda: _check_mixed(make()(_make_mix_inputs()))
    )
    yield check_rule("the weights depend only on the seed", check_seed)
    yield check_rule("a state_dict and a deep copy contain the whole mixer", check_copies)
    yield check_rule("a row does not depend on the others", lambda: _check_rows(make()))
    yield check_rule("the gradient reaches every agent's value", lambda: _compute_gradient(make()))
    if getattr(plugin.load(), "monotone", False):
        mixers = map(make, range(5))
        yield check_rule("Q_tot never falls when a value rises (claimed: monotone)", lambda: _check_monotone(mixers))


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
        raise BrokenRuleError(f"It must return emtc_core.learner.mixers.base.Mixed, got {type(mixed).__name__}.")
    for name, values in (("q_tot", mixed.q_tot), ("regularizer", mixed.regularizer)):
        if values is None and name == "regularizer":
            continue
        if not isinstance(values, torch.Tensor) or tuple(values.shape) != (64,):
            raise BrokenRuleError(f"{name} must have shape [R] = (64,), got {tuple(getattr(values, 'shape', ()))}.")
        if values.dtype != torch.float32 or not torch.isfinite(values).all():
            raise BrokenRuleError(f"{name} must be finite float32.")


def _check_rows(mixer: nn.Module) -> None:
    inputs = _make_mix_inputs()
    first_rows = MixInputs(*(values[:20] for values in vars(inputs).values()))
    with torch.no_grad():
        same = torch.allclose(mixer(first_rows).q_tot, mixer(inputs).q_tot[:20], atol=1e-5)
    require(same, "The same rows in a smaller batch give a different output.")


def _compute_gradient(mixer: nn.Module) -> torch.Tensor:
    """Compute the gradient [R, N] of Q_tot. Raise if an agent's value has no effect."""
    inputs = _make_mix_inputs(256)
    inputs.q_taken.requires_grad_(True)
    mixer(inputs).q_tot.sum().backward()
    slope = inputs.q_taken.grad
    if slope is None or not (slope != 0).any(dim=0).all():
        raise BrokenRuleError("The value of an agent has no effect on Q_tot.")
    return slope


def _check_monotone(mixers: Iterable[nn.Module]) -> None:
    for mixer in mixers:
        slope = _compute_gradient(mixer)
        require(not (slope < -1e-6).any(), f"It falls, by up to {-float(slope.min()):g} per unit.")
