"""Charts of the two checks on the Method page, made from the results of `emtc_core.gate.propositions`."""

import numpy as np

from app.analysis.format import format_number, format_percent
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.theme import BETA, DELTA_MEM, LOSS, OKABE_ITO, RETURN
from emtc_core.gate.propositions import Proposition1, Proposition2


def draw_proposition_1(result: Proposition1, *, gamma: float, seed: int) -> Chart:
    """Draw each transition at (Δ_opt, Δ_mem) with the diagonal and its ±α band."""
    order = np.argsort(result.delta_opt, kind="stable")
    x = result.delta_opt[order]
    last = float(x[-1]) * 1.02 if len(x) else 0.0
    diagonal = np.linspace(0.0, max(last, 1e-6), 200)
    band = Line(
        "Δ_mem = Δ_opt, band ±α",
        LOSS,
        diagonal,
        diagonal,
        np.maximum(diagonal - result.alpha, 0.0),
        diagonal + result.alpha,
        width=1.2,
    )
    points = Line("one transition", DELTA_MEM, x, result.delta_mem[order], markers=True, width=0.0)
    inside = format_percent(result.share_inside, 1)
    caption = (
        f"{len(x)} sampled transitions of one grid task (seed {seed}, γ = {gamma:g}). α = (1+γ)(ε_rep + ε_store) = "
        f"{format_number(result.alpha)} return; {inside} of the points lie within ±α of the diagonal."
    )
    return Chart(
        name="proposition-1",
        title="Proposition 1: Δ_mem against Δ_opt",
        x_label="Δ_opt = |r + γV*(s′) − V*(s)| [return]",
        panels=(Panel("Δ_mem", "return", (band, points), from_zero=True),),
        caption=caption,
        description=(
            f"Scatter of Δ_mem over Δ_opt with a band of half-width {format_number(result.alpha)}; {inside} inside."
        ),
    )


def draw_proposition_2(
    free: Proposition2, clamped: Proposition2, any_action: Proposition2, *, mark: float, gamma: float, seed: int
) -> Chart:
    """Draw the distance of the two gradients, and the mean gate, over the distance of H from V*.

    Args:
        free: Results for optimal actions, without EMU's clamp.
        clamped: Results for optimal actions, with EMU's clamp.
        any_action: Results for random actions, without EMU's clamp.
        mark: Distance of the chosen H from V* [return].
        gamma: Discount factor.
        seed: Random seed of the grid task.
    """
    gradients = (
        _line("optimal actions, Eq. 11", OKABE_ITO[2], free, free.gradient_error),
        _line("the same with EMU's clamp", RETURN, clamped, clamped.gradient_error, dash=(7, 4)),
        _line("random actions, Eq. 11", OKABE_ITO[5], any_action, any_action.gradient_error, dash=(2, 3)),
    )
    gates = (
        _line("optimal actions", BETA, free, free.beta_mean),
        _line("random actions", OKABE_ITO[5], any_action, any_action.beta_mean, dash=(2, 3)),
    )
    caption = (
        f"Gradient of the gated loss, with ρ = 1, against the oracle's −2∇Q(r + γV*(s′) − Q), on one grid task (seed "
        f"{seed}, γ = {gamma:g}). H runs from the value of acting at random (right) to V* (left). Relative distance "
        f"at H = V*: {_format_error(free)} without the clamp, {_format_error(clamped)} with it, "
        f"{_format_error(any_action)} for random actions, whose Δ_opt is not 0, so that β stays below 1."
    )
    return Chart(
        name="proposition-2",
        title="Proposition 2: the gated gradient as H → V*",
        x_label="max |H − V*| [return]",
        panels=(
            Panel("‖g − g*‖ / ‖g*‖", "fraction", gradients, from_zero=True),
            Panel("β̄", "fraction", gates, range=(-0.03, 1.03)),
        ),
        caption=caption,
        description=f"Two panels over the distance of H from V*. Gradient distance at H = V*: {_format_error(free)}.",
        marks=(Mark(mark, "chosen H"),),
    )


def _line(name: str, color: str, result: Proposition2, y: np.ndarray, dash: tuple[int, int] | None = None) -> Line:
    """Make a curve with its points sorted by the distance of H from V*, smallest distance first."""
    order = np.argsort(result.distance, kind="stable")
    return Line(name, color, result.distance[order], y[order], dash=dash)


def _format_error(result: Proposition2) -> str:
    """Format the gradient error at the smallest distance of H from V*."""
    return f"{result.gradient_error[np.argmin(result.distance)]:.2g}"
