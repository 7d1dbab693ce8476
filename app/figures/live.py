"""The curves of one run: the gate at work, outcomes, learning and speed. Frames in, Charts out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from app.figures.chart import Chart, Line, Mark, Panel, Values, column
from app.theme import BETA, DELTA_MEM, LOSS, OKABE_ITO, RETURN, SPEED, TAU, WIN_RATE
from emtc_core.metrics import METRICS

X_LABEL = "training env steps"
_EVALUATION = ("env_step", "episodes", "wins", "win_rate", "return_mean")
_Z95 = 1.959963984540054


def draw_gate_dynamics(stats: pd.DataFrame, *, run: str, marks: tuple[Mark, ...] = ()) -> Chart:
    """Δ̄_mem and β̄ over the whole memory, with the 5–95 % band over its nodes, and τ."""
    x = column(stats, "env_step")

    def banded(name: str, label: str, color: str) -> Line:
        low, high = column(stats, f"{name}_q05"), column(stats, f"{name}_q95")
        return Line(label, color, x, column(stats, f"{name}_mean"), low, high)

    panels = (
        Panel("Δ̄_mem", "return", (banded("delta_mem", "mean, band 5–95 %", DELTA_MEM),), from_zero=True),
        Panel("β̄", "fraction", (banded("beta", "mean, band 5–95 %", BETA),), range=(-0.03, 1.03)),
        Panel("τ", "return", (Line("temperature", TAU, x, column(stats, "tau"), dash=(6, 4)),), from_zero=True),
    )
    caption = (
        "Consistency error Δ_mem and gate β over all nodes of the episodic memory: mean, and the band from the "
        "5 % to the 95 % quantile of the nodes. τ is the gate's temperature."
    )
    last = _last(stats, ("delta_mem_mean", "beta_mean", "tau"))
    described = "Three aligned panels over training env steps. " + (
        f"Latest values: mean Δ_mem {last[0]}, mean β {last[1]}, τ {last[2]}." if last else "No point yet."
    )
    chart = Chart("gate-dynamics", f"Gate dynamics of {run}", X_LABEL, panels, caption, described, marks)
    return replace(
        chart, subtitle="one run; mean over all nodes of its episodic memory, band: 5 % to 95 % of the nodes"
    )


def draw_outcomes(
    evaluations: pd.DataFrame, episodes: pd.DataFrame, *, run: str, marks: tuple[Mark, ...] = ()
) -> Chart:
    """Greedy win rate with its 95 % interval, and returns of evaluation and training."""
    evaluations = evaluations.reindex(columns=[*_EVALUATION])
    x = column(evaluations, "env_step")
    low, high = wilson_interval(column(evaluations, "wins"), column(evaluations, "episodes"))
    win_rate = Line("greedy evaluation, 95 % interval", WIN_RATE, x, column(evaluations, "win_rate"), low, high)
    returns = [Line("greedy evaluation", RETURN, x, column(evaluations, "return_mean"))]
    if len(episodes):
        returns.append(_smooth_returns(episodes))
    panels = (
        Panel("win rate", "fraction", (win_rate,), range=(-0.03, 1.03)),
        Panel("episode return", "env return", tuple(returns)),
    )
    caption = (
        "Share of greedy evaluation episodes that were won, with the Wilson 95 % interval of that many episodes "
        "of this one run; mean undiscounted return of evaluation and of training (running mean over 5 % of the "
        "shown episodes)."
    )
    last = _last(evaluations, ("win_rate", "return_mean"))
    described = "Win rate and return over training env steps. " + (
        f"Latest evaluation: win rate {last[0]}, return {last[1]}." if last else "No evaluation yet."
    )
    chart = Chart("learning-curves", f"Learning curve of {run}", X_LABEL, panels, caption, described, marks)
    return replace(chart, subtitle="one run; mean over the greedy episodes of each evaluation, band: 95 % (Wilson)")


def draw_metrics(metrics: pd.DataFrame, names: Sequence[str], *, run: str, marks: tuple[Mark, ...] = ()) -> Chart:
    """One panel for each registered metric that has rows."""
    panels = []
    for name in names:
        here = (metrics["name"] == name).to_numpy()
        if not here.any():
            continue
        known = METRICS[name]
        line = Line(
            _short(name), _metric_color(name), column(metrics, "env_step")[here], column(metrics, "value")[here]
        )
        panels.append(Panel(_short(name), known.unit, (line,)))
    meanings = "; ".join(f"{_short(n)}: {METRICS[n].meaning}" for n in names if n in METRICS)
    title = f"Learning and speed of {run}"
    described = f"One panel each for {', '.join(_short(n) for n in names)} over training env steps."
    return Chart("metrics", title, X_LABEL, tuple(panels), f"{meanings}.", described, marks)


def wilson_interval(wins: Values, n: Values) -> tuple[Values, Values]:
    """Bound a win probability with 95 % confidence from wins out of n (Wilson 1927); NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        p, z2 = wins / n, _Z95**2
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = _Z95 / (1 + z2 / n) * np.sqrt(p * (1 - p) / n + z2 / (4 * n**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def _smooth_returns(episodes: pd.DataFrame) -> Line:
    span = max(1, len(episodes) // 20)
    mean = pd.Series(column(episodes, "episode_return")).rolling(span, min_periods=1).mean()
    return Line("training", SPEED, column(episodes, "first_env_step"), np.asarray(mean, np.float64), width=1.5)


def _metric_color(name: str) -> str:
    if name.startswith("time/"):
        return SPEED
    if name in ("train/q_taken", "eval/overestimation", "train/target"):
        return RETURN
    return LOSS if name.startswith("train/") else OKABE_ITO[0]


def _short(name: str) -> str:
    return name.partition("/")[2].replace("_", " ")


def _last(frame: pd.DataFrame, names: Sequence[str]) -> list[str] | None:
    if not len(frame):
        return None
    return [f"{float(frame[name].iloc[-1]):.3g}" if pd.notna(frame[name].iloc[-1]) else "none" for name in names]
