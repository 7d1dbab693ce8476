"""Check of a gate law that is a plug-in."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emtc_core.config.resolve import resolve
from emtc_core.gate.laws import make_gate_law
from emtc_core.gate_laws import INVERTIBLE, GateContext, GateLaw, unknown_context
from emtc_core.plugins import Plugin
from emtc_core.training.conformance.rules import ARGUMENTS_RULE, BrokenRuleError, RuleResult, check_rule, require

INVERTS = "temperature_for returns the tau from which beta was computed"
_TAUS = (0.05, 0.6, 1.2, 20.0)
_TAU_TOLERANCE = 1e-6  # relative


def check_gate(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    """Check the rules of a gate law; `settings` are "key=value" texts for its arguments."""
    rng = np.random.default_rng(0)
    delta = np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 199)])
    context = _make_context(rng.normal(size=(3, len(delta))))

    def make_law() -> GateLaw:
        return make_gate_law(resolve(overrides=[f"gate.type={plugin.name}", *settings]).gate)

    configured = check_rule(ARGUMENTS_RULE, make_law)
    yield configured
    if not configured.holds:
        return
    law = make_law()

    def compute_beta(tau: Any = 0.6, delta: Any = delta, context: GateContext = context) -> Any:
        return law.weigh(delta, tau, context)

    def check_arguments_unchanged() -> None:
        arrays = (delta, context.reward, context.h, context.h_next)
        before = [array.copy() for array in arrays]
        law.function(delta, 0.6, context)  # not `weigh`, which multiplies delta and so passes a copy
        require(all(map(np.array_equal, before, arrays)), "It changes its arguments.")

    def check_two_dimensions() -> None:
        context_BT = _make_context([x.reshape(20, 10) for x in (context.reward, context.h, context.h_next)])
        beta_BT = compute_beta(delta=delta.reshape(20, 10), context=context_BT)
        same = np.array_equal(beta_BT.ravel(), compute_beta())
        require(same, "The same transitions in another shape give another beta.")

    yield check_rule(
        "beta has delta's shape and is in [0, 1], for every tau", lambda: [compute_beta(tau) for tau in _TAUS]
    )
    yield check_rule(
        "equal inputs give equal beta",
        lambda: require(np.array_equal(compute_beta(), compute_beta()), "Two calls differ."),
    )
    yield check_rule("it does not change its arguments", check_arguments_unchanged)
    yield check_rule("a batch of episodes [B, T] gives the same beta as its transitions", check_two_dimensions)
    yield check_rule("tau may be an array", lambda: compute_beta(np.full(len(delta), 0.6)))
    yield check_rule(
        "an empty batch is accepted", lambda: compute_beta(delta=delta[:0], context=context.select(delta < 0))
    )
    yield check_rule("a context of NaN is accepted", lambda: compute_beta(context=unknown_context(delta.shape)))
    if getattr(plugin.load(), "monotone", False):
        yield check_rule("beta never rises with delta (claimed: monotone)", lambda: _check_falls(law, delta, context))
    if law.is_invertible:
        yield check_rule(INVERTS, lambda: _check_inverse(law, delta, context))


def _check_falls(law: GateLaw, delta: Any, context: GateContext) -> None:
    """Raise if beta rises with delta [N] while the context is that of one transition."""
    for row in range(len(delta)):
        constant = _make_context([np.full(len(delta), x[row]) for x in (context.reward, context.h, context.h_next)])
        for tau in _TAUS:
            change = np.diff(law.weigh(delta, tau, constant))
            where = f"delta = {delta[np.argmax(change)]:g} at tau = {tau:g}"
            require(not (change > 1e-12).any(), f"It rises near {where}.")


def _check_inverse(law: GateLaw, delta: Any, context: GateContext) -> None:
    """Compare `temperature_for` with the tau from which beta was computed; delta [N], no NaN in the context."""
    low, high = INVERTIBLE
    n_checked = 0
    for tau in _TAUS:
        beta = law.weigh(delta, tau, context)
        rows = np.flatnonzero((beta > low) & (beta < high) & (delta > 0))
        computed = law.temperature_for(beta[rows], delta[rows])
        wrong = np.flatnonzero(np.abs(computed - tau) > _TAU_TOLERANCE * tau)
        if len(wrong):
            at = rows[wrong[0]]
            got = f"tau = {computed[wrong[0]]:g} for beta = {beta[at]:g} at delta = {delta[at]:g}"
            raise BrokenRuleError(f"It returns {got}; expected tau = {tau:g}.")
        n_checked += len(rows)
    require(n_checked > 0, f"It cannot be checked: no beta is between {low:g} and {high:g}.")


def _make_context(arrays: Any) -> GateContext:
    """Make a context with gamma = 0.99.

    Args:
        arrays: reward, h and h_next, arrays of one shape.
    """
    reward, h, h_next = arrays
    return GateContext(reward, h, h_next, 0.99)
