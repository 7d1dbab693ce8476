"""The numerical check of both propositions: sliders, numbers, and one figure each."""

from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown, format_number, format_percent
from app.analysis.propositions import SolvedTask, make_solved_task, run_proposition_1_check, run_proposition_2_check
from app.figures.kinds.chart import Chart
from app.figures.registry import draw_chart
from app.ui.page_state import Integer, Number
from app.ui.widgets import canvas, pin

_SEED: Final = Integer("seed", "method", default=1, low=0, high=50)
_GAMMA: Final = Number("gamma", "method", default=0.99, low=0.5, high=0.99)
_SLIP: Final = Number("slip", "method", default=0.0, low=0.0, high=0.5)
_NOISE: Final = Number("noise", "method", default=0.5, low=0.0, high=5.0)
_DELTA: Final = Number("delta", "method", default=2.0, low=1.0, high=5.0)
_MIX: Final = Number("mix", "method", default=1.0, low=0.0, high=1.0)
_TAU: Final = Number("tau", "method", default=1.2, low=0.1, high=3.0)
_TARGET_ERROR: Final = Number("target_error", "method", default=1.0, low=0.0, high=5.0)
_INTRODUCTION: Final = r"""
A grid of 10 × 10 cells with four moves, a random cost of at most 0.5 for entering a cell, and one goal with reward 10
that ends the episode. $V^*$ is computed by value iteration, not estimated. $\Delta_{mem}$, $\beta$ and $r_p$ are
computed by the functions of the learner. Every change of a slider repeats both checks.
"""
_PROPOSITION_1: Final = r"""
Let $\hat s$ be the stored state that $s$ retrieves, $\varepsilon_{rep} = \max_s |V^*(s) - V^*(\hat s)|$ the error of
the retrieval and $\varepsilon_{store} = \max_{\hat s} |H(\hat s) - V^*(\hat s)|$ the error of the stored values. Then
$\Delta_{mem} \le \Delta_{opt} + \alpha$ with $\alpha = (1+\gamma)(\varepsilon_{rep} + \varepsilon_{store})$. The same
proof gives the other direction, which the method also needs (a large $\Delta_{mem}$ must imply a large
$\Delta_{opt}$). Therefore $|\Delta_{mem} - \Delta_{opt}| \le \alpha$ is checked as well. If $V^*$ changes by at most
$L$ per unit of latent distance, $\varepsilon_{rep} \le L\,\delta$.
"""
_PROPOSITION_2: Final = r"""
If $H \to V^*$, $\rho \to 1$ and $\Delta_{mem} \to 0$, hence $\beta \to 1$, the gated gradient becomes the gradient of
the oracle's target $r + \gamma V^*(s')$ for any target network $Q^-$: the incentive $\gamma (V^*(s') - \max Q^-(s'))$
replaces the bootstrap value exactly. The identity fails in two cases. EMU's code uses only the positive part of
$H - \max Q^-$, so an overestimate $\max Q^- > V^*$ is not corrected. $\Delta_{mem}$ uses the sampled step: for an
action that is not optimal, or if moves slip, $\Delta_{opt} > 0$ and the gate stays below 1.
"""


@st.fragment
def show() -> None:
    """Draw sliders, numbers and figures. A change of a slider reruns only this fragment."""
    st.markdown(_INTRODUCTION)
    solved = _select_task()
    st.caption(
        f"Value iteration: {solved.solution.sweeps} sweeps, V* within "
        f"{max(solved.solution.residual, 1e-12):.0e} of its fixed point."
    )
    st.subheader("Proposition 1: Δ_mem follows Δ_opt")
    st.markdown(_PROPOSITION_1)
    _show_proposition_1(solved)
    st.subheader("Proposition 2: the gated gradient equals the oracle's")
    st.markdown(_PROPOSITION_2)
    _show_proposition_2(solved)


def _select_task() -> SolvedTask:
    left, middle, right = st.columns(3)
    with left:
        seed = st.slider("Seed", **_SEED.bind(), help="Random seed of goal, costs, transitions and errors.")
    with middle:
        gamma = st.slider("Discount γ", **_GAMMA.bind(), step=0.01, help="The method uses 0.99.")
    with right:
        slip = st.slider(
            "Slip probability", **_SLIP.bind(), step=0.05,
            help="Share of moves in a random direction; 0 makes the task deterministic.",
        )  # fmt: skip
    return make_solved_task(gamma=gamma, seed=seed, slip=slip)


def _show_proposition_1(solved: SolvedTask) -> None:
    left, right = st.columns(2)
    with left:
        noise = st.slider(
            "Error of the stored H [return]", **_NOISE.bind(), step=0.1,
            help="Maximum of the uniform error of each stored H: ε_store.",
        )  # fmt: skip
    with right:
        delta = st.slider(
            "Retrieval radius δ [cells]", **_DELTA.bind(), step=0.25,
            help="States within this distance share one node: ε_rep. At 1, each state has a separate node.",
        )  # fmt: skip
    check = run_proposition_1_check(solved, noise=noise, delta=delta)
    result = check.result
    columns = st.columns(4)
    columns[0].metric("Inside ±α", format_percent(result.share_inside, 1), help="Two-sided: |Δ_mem − Δ_opt| ≤ α")
    columns[1].metric("Below Δ_opt + α", format_percent(result.share_below, 1), help="One-sided, as in the paper")
    columns[2].metric("α [return]", format_number(result.alpha), help="(1+γ)(ε_rep + ε_store)")
    columns[3].metric("max |Δ_mem − Δ_opt| [return]", format_number(result.largest_difference))
    st.caption(
        f"ε_rep = {format_number(result.eps_rep)} (bound Lδ = {format_number(result.lipschitz_bound)}), "
        f"ε_store = {format_number(result.eps_store)} [return]; {check.n_nodes} nodes for "
        f"{len(solved.solution.v) - 1} states."
    )
    _show_figure(draw_chart("proposition-1", check), panel_height=320, x_name="Δ_opt")


def _show_proposition_2(solved: SolvedTask) -> None:
    left, middle, right = st.columns(3)
    with left:
        selected_mix = st.slider(
            "Interpolation of H towards V*", **_MIX.bind(), step=0.025,
            help="0: H is the value of the random policy; 1: H = V*.",
        )  # fmt: skip
    with middle:
        tau = st.slider("Temperature τ [return]", **_TAU.bind(), step=0.1, help="Temperature of the gate, Eq. 8.")
    with right:
        error = st.slider(
            "Error of the target network [return]", **_TARGET_ERROR.bind(), step=0.1,
            help="Standard deviation of Q⁻ − Q*. The maximum over actions turns it into overestimation.",
        )  # fmt: skip

    check = run_proposition_2_check(solved, mix=selected_mix, tau=tau, target_error=error)
    unclamped, clamped = check.unclamped, check.clamped
    columns = st.columns(4)
    columns[0].metric(
        "Gradient distance", f"{unclamped.gradient_error[-1]:.2g}", help="‖g − g*‖ / ‖g*‖ at the selected H"
    )
    columns[1].metric(
        "Gradient distance, EMU's clamp", f"{clamped.gradient_error[-1]:.2g}", help="max(H − Q⁻, 0), option C9"
    )
    columns[2].metric(
        "Mean gate β̄", format_number(float(unclamped.beta_mean[-1])), help="At the selected H, optimal actions"
    )
    columns[3].metric("max Q⁻ > V*", format_percent(unclamped.share_overestimated), help="Share of transitions")
    _show_figure(draw_chart("proposition-2", check), panel_height=200, x_name="max |H − V*|")


def _show_figure(chart: Chart, *, panel_height: int, x_name: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="right"):
        pin.show_export(chart, key=f"method-{chart.name}", stem="method")
    canvas.show(chart, key=f"method-{chart.name}", panel_height=panel_height, x_name=x_name)
    st.caption(escape_markdown(chart.caption))
