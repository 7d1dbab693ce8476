"""Figures of the numerical check of the paper's Propositions 1 and 2 on a grid task.

The page Method draws them for the selected settings.
"""

from collections.abc import Sequence

import numpy as np

from app.analysis.format import format_number, format_percent
from app.analysis.propositions import (
    Proposition1Check,
    Proposition2Check,
    make_solved_task,
    run_proposition_1_check,
    run_proposition_2_check,
)
from app.figures.figure import FigureKind
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.options import Options
from app.figures.theme import BETA, DELTA_MEM, LOSS, OKABE_ITO, RETURN
from emtc_core.gate.propositions import Proposition2
from storage.engine import Database
from storage.runs.rows import RunRow


def draw_proposition_1(check: Proposition1Check, options: Options) -> Chart:
    """Draw each transition at (Δ_opt, Δ_mem) with the diagonal and its ±α band.

    ε_rep: largest difference of V* between a state and the state of its recalled node. ε_store: largest error of a
    stored return H.
    """
    result = check.result
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
    alpha = format_number(result.alpha)
    caption = (
        f"{len(x)} sampled transitions of one grid task (seed {check.seed}, γ = {check.gamma:g}). "
        f"α = (1+γ)(ε_rep + ε_store) = {alpha} return; {inside} of the points lie within ±α of the diagonal."
    )
    return Chart(
        name="proposition-1",
        title="Proposition 1: Δ_mem against Δ_opt",
        x_label="Δ_opt = |r + γV*(s′) − V*(s)| [return]",
        panels=(Panel("Δ_mem", "return", (band, points), from_zero=True),),
        caption=caption,
        description=(f"Scatter of Δ_mem over Δ_opt with a band of half-width {alpha}; {inside} inside."),
    )


def draw_proposition_2(check: Proposition2Check, options: Options) -> Chart:
    """Draw the distance between the gated and the oracle's gradient, and the mean gate, over the distance of H from V*.

    The oracle's gradient uses V* instead of H. A mark shows max |H − V*| of the selected memory, the last value of the
    arrays.
    """
    unclamped, clamped, random_actions = check.unclamped, check.clamped, check.random_actions
    gradients = (
        _line("optimal actions, Eq. 11", OKABE_ITO[2], unclamped, unclamped.gradient_error),
        _line("the same with EMU's clamp", RETURN, clamped, clamped.gradient_error, dash=(7, 4)),
        _line("random actions, Eq. 11", OKABE_ITO[5], random_actions, random_actions.gradient_error, dash=(2, 3)),
    )
    gates = (
        _line("optimal actions", BETA, unclamped, unclamped.beta_mean),
        _line("random actions", OKABE_ITO[5], random_actions, random_actions.beta_mean, dash=(2, 3)),
    )
    caption = (
        f"Gradient of the gated loss, with ρ = 1, against the oracle's −2∇Q(r + γV*(s′) − Q), on one grid task (seed "
        f"{check.seed}, γ = {check.gamma:g}). H runs from the value of acting at random (right) to V* (left). Relative "
        f"distance at H = V*: {_format_error(unclamped)} without the clamp, {_format_error(clamped)} with it, "
        f"{_format_error(random_actions)} for random actions, whose Δ_opt is not 0, so that β stays below 1."
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
        description=(
            f"Two panels over the distance of H from V*. Gradient distance at H = V*: {_format_error(unclamped)}."
        ),
        marks=(Mark(float(unclamped.distance[-1]), "selected H"),),
    )


def _line(name: str, color: str, result: Proposition2, y: np.ndarray, dash: tuple[int, int] | None = None) -> Line:
    """Make a curve with its points sorted by the distance of H from V*, smallest distance first."""
    order = np.argsort(result.distance, kind="stable")
    return Line(name, color, result.distance[order], y[order], dash=dash)


def _format_error(result: Proposition2) -> str:
    """Format the gradient error at the smallest distance of H from V*."""
    return f"{result.gradient_error[np.argmin(result.distance)]:.2g}"


def _read_proposition_1_check(db: Database, rows: Sequence[RunRow], options: Options) -> Proposition1Check:
    return run_proposition_1_check(make_solved_task())


def _read_proposition_2_check(db: Database, rows: Sequence[RunRow], options: Options) -> Proposition2Check:
    return run_proposition_2_check(make_solved_task())


FIGURES = (
    FigureKind(
        "proposition-1", draw_proposition_1, _read_proposition_1_check, question="Does Δ_mem follow Δ_opt within ±α?"
    ),
    FigureKind(
        "proposition-2", draw_proposition_2, _read_proposition_2_check,
        question="Does the gated gradient become the gradient of the oracle as H → V*?",
    ),
)  # fmt: skip
"""Both read no run: the exported figures have the default settings of the page."""
