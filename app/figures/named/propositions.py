"""Figures of the numerical check of the paper's Propositions 1 and 2 on one grid task with a known V*.

Δ_mem is the consistency error of the returns H in the memory, and Δ_opt the same error with V* instead of H. The gate β
is the weight of the episodic incentive. The figures read no run. The page Method shows them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from app.analysis.format import format_number, format_percent
from app.figures.figure import FigureKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.options import Options
from app.figures.theme import BETA_COLOR, DELTA_MEM_COLOR, LOSS_COLOR, OKABE_ITO, RETURN_COLOR
from emtc_core.gate.propositions import (
    Behavior,
    Proposition1,
    Proposition2,
    check_proposition_1,
    check_proposition_2,
    make_memory,
    make_task,
    sample_transitions,
    solve,
)
from storage.engine import Database
from storage.runs.rows import RunRow

GAMMA: Final = 0.99
SEED: Final = 1
"""Random seed of goal, costs, transitions and errors."""
N_TRANSITIONS: Final = 1000
N_MIXES: Final = 41
"""Number of memories between the values of the random policy and V*."""
MAX_STORED_ERROR: Final = 0.5
"""Maximum of the uniform error of each stored H [return]."""
DELTA: Final = 2.0
"""Retrieval radius [cells]. States within this distance share one node."""
TAU: Final = 1.2
"""Temperature of the gate [return]."""
TARGET_ERROR: Final = 1.0
"""Standard deviation of the error of the target network [return]."""


class GradientComparisons(NamedTuple):
    """The gated gradient compared with the gradient of an oracle that uses V*.

    H of the compared memories is between the values of the random policy and V*.
    """

    unclamped: Proposition2
    """Optimal actions, without EMU's clamp of the incentive."""
    clamped: Proposition2
    """Optimal actions, with EMU's clamp."""
    random_actions: Proposition2
    """Random actions, without EMU's clamp."""


def compute_proposition_1(db: Database, rows: Sequence[RunRow], options: Options) -> Proposition1:
    """Compute Δ_mem and Δ_opt of random transitions, with a memory whose stored values have errors."""
    task = make_task(gamma=GAMMA, seed=SEED)
    solution = solve(task)
    memory = make_memory(task, solution.v, delta=DELTA, noise=MAX_STORED_ERROR, seed=SEED)
    transitions = sample_transitions(task, solution, behavior="random", n=N_TRANSITIONS, seed=SEED)
    return check_proposition_1(task, solution.v, memory, transitions, delta=DELTA)


def draw_proposition_1(result: Proposition1, options: Options | None = None) -> Chart:
    """Draw each transition at (Δ_opt, Δ_mem) with the diagonal and its ±α band.

    ε_rep: largest difference of V* between a state and the state of its recalled node. ε_store: largest error of a
    stored return H.
    """
    order = np.argsort(result.delta_opt, kind="stable")
    x = result.delta_opt[order]
    x_max = float(x[-1]) * 1.02 if len(x) else 0.0
    diagonal = np.linspace(0.0, max(x_max, 1e-6), 200)
    diagonal_line = Line(
        "Δ_mem = Δ_opt, band ±α",
        LOSS_COLOR,
        x=diagonal,
        y=diagonal,
        low=np.maximum(diagonal - result.alpha, 0.0),
        high=diagonal + result.alpha,
        width=1.2,
    )
    points = Line("one transition", DELTA_MEM_COLOR, x, result.delta_mem[order], markers=True, width=0.0)
    inside = format_percent(result.share_inside, 1)
    alpha = format_number(result.alpha)
    caption = (
        f"{len(x)} sampled transitions of one grid task (seed {SEED}, γ = {GAMMA:g}). "
        f"α = (1+γ)(ε_rep + ε_store) = {alpha} return; {inside} of the points lie within ±α of the diagonal."
    )
    return Chart(
        name="proposition-1",
        title="Proposition 1: Δ_mem against Δ_opt",
        x_label="Δ_opt = |r + γV*(s′) − V*(s)| [return]",
        panels=(Panel("Δ_mem", "return", (diagonal_line, points), from_zero=True),),
        caption=caption,
        description=f"Scatter of Δ_mem over Δ_opt with a band of half-width {alpha}; {inside} inside.",
    )


def compute_proposition_2(db: Database, rows: Sequence[RunRow], options: Options) -> GradientComparisons:
    """Compare the gated gradient with the oracle's, which uses V* instead of H."""
    task = make_task(gamma=GAMMA, seed=SEED)
    solution = solve(task)

    def compare(behavior: Behavior, *, clamp: bool = False) -> Proposition2:
        transitions = sample_transitions(task, solution, behavior=behavior, n=N_TRANSITIONS, seed=SEED)
        return check_proposition_2(
            task,
            solution,
            transitions,
            mix=np.linspace(0.0, 1.0, N_MIXES),
            tau=TAU,
            target_error=TARGET_ERROR,
            clamp="positive" if clamp else "none",
            seed=SEED,
        )

    return GradientComparisons(compare("greedy"), compare("greedy", clamp=True), compare("random"))


def draw_proposition_2(comparisons: GradientComparisons, options: Options | None = None) -> Chart:
    """Draw the distance between gated and oracle's gradient, and the mean of β, over the distance of H from V*."""
    unclamped, clamped, random_actions = comparisons
    gradients = (
        _make_line("optimal actions, Eq. 11", OKABE_ITO[2], unclamped, unclamped.gradient_error),
        _make_line("the same with EMU's clamp", RETURN_COLOR, clamped, clamped.gradient_error, dash=(7, 4)),
        _make_line("random actions, Eq. 11", OKABE_ITO[5], random_actions, random_actions.gradient_error, dash=(2, 3)),
    )
    gates = (
        _make_line("optimal actions", BETA_COLOR, unclamped, unclamped.beta_mean),
        _make_line("random actions", OKABE_ITO[5], random_actions, random_actions.beta_mean, dash=(2, 3)),
    )
    caption = (
        f"Gradient of the gated loss, with ρ = 1, against the oracle's −2∇Q(r + γV*(s′) − Q), on one grid task (seed "
        f"{SEED}, γ = {GAMMA:g}). H runs from the value of acting at random (right) to V* (left). Relative "
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
    )


def _make_line(name: str, color: str, result: Proposition2, y: np.ndarray, dash: tuple[int, int] | None = None) -> Line:
    """Make a curve with its points sorted by the distance of H from V*, smallest distance first."""
    order = np.argsort(result.distance, kind="stable")
    return Line(name, color, result.distance[order], y[order], dash=dash)


def _format_error(result: Proposition2) -> str:
    """Format the gradient error at the smallest distance of H from V*."""
    return f"{result.gradient_error[np.argmin(result.distance)]:.2g}"


FIGURES = (
    FigureKind(
        "proposition-1",
        draw_proposition_1,
        compute_proposition_1,
        question="Does Δ_mem follow Δ_opt within ±α?",
    ),
    FigureKind(
        "proposition-2",
        draw_proposition_2,
        compute_proposition_2,
        question="Does the gated gradient become the gradient of the oracle as H → V*?",
    ),
)
