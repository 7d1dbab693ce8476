"""Charts of the recorded curves of one run: gate, outcomes, learning and speed.

They are made from data frames that `storage.queries` returns. The constants before the first function are names of
metrics, limits of drawing, and the texts of captions.

The gate β is the weight of the episodic incentive: 1 is open, 0 is closed. It closes where the consistency error Δ_mem
of the memory is near its temperature τ or above it. A bar, as in β̄, means the mean over transitions. r_p is the
episodic incentive. Sampled transitions are those that were sampled from the replay buffer for learning. The robust win
rate is that of evaluation episodes from shifted starts.

The colors of `app.figures.theme` are named after the quantity for which they are used most. A line of another quantity
may have one of them, for example LOSS_COLOR for the links in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from app.analysis.aggregates import trailing_mean
from app.analysis.curves import read_float_column
from app.analysis.intervals import compute_interval_of_wins
from app.analysis.quantities import SUCCESS_RATE, name_success
from app.analysis.x_axes import X_AXES
from app.figures.curve_style import clip_spikes, with_log_y_axis
from app.figures.kinds.chart import Chart, Line, Mark, Panel, Values
from app.figures.theme import (
    BETA_COLOR,
    DELTA_MEM_COLOR,
    H_VALUE_COLOR,
    LOSS_COLOR,
    OKABE_ITO,
    RETURN_COLOR,
    SPEED_COLOR,
    TAU_COLOR,
    WIN_RATE_COLOR,
)
from emtc_core.metrics import CLOSED_BELOW, METRICS, describe_metric, is_known

X_LABEL = X_AXES["env_steps"].label
TRAINING_RATES = ("rollout/win_rate", "rollout/success_rate")
"""Rates of the exploring policy: the win rate, and the success rate of a task where the return defines success."""
_EVALUATION_COLUMNS = ("env_step", "episodes", "wins", "win_rate", "return_mean", "distinct", "robust_win_rate")
_POSITIVE = "gate/delta_mem_positive"
"""Prefix of the names of metrics over the transitions with Δ_mem above 0."""
_POSITIVE_ENDINGS = ("_fraction", "_p10", "_p50", "_p90")
"""Ends of these names: the fraction of such transitions, and quantiles of their Δ_mem."""
_TAU = "gate/tau"
_MEMORY_METRICS = ("memory/merge_rate", "memory/hit_rate")
_OVERESTIMATION = "eval/overestimation"
# The first line: gate/delta_mem_new, gate/delta_mem_new_p10, gate/delta_mem_new_p90 and the same of gate/beta_new.
# The second line: gate/delta_mem_positive_fraction, gate/delta_mem_positive_p10, …_p50 and …_p90.
GATE_METRICS = (
    *(f"gate/{name}_new{ending}" for name in ("delta_mem", "beta") for ending in ("", "_p10", "_p90")),
    *(f"{_POSITIVE}{ending}" for ending in _POSITIVE_ENDINGS),
    *("gate/incentive_removed", "gate/closed_fraction", "incentive/rho", _TAU, *_MEMORY_METRICS, _OVERESTIMATION),
)
"""Metrics of the two gate charts. The statistics over the links in memory come from `storage.queries.gate`."""
_ACCURACY = "embedder/info_nce_accuracy"
DEFAULT_METRICS = ("train/loss", "train/q_taken", _ACCURACY, "time/env_steps_per_second")
"""Metrics that the figure `metrics` draws by default."""
MACHINE_METRICS = tuple(name for name in METRICS if name.startswith("machine/"))
"""Metrics of the machine that a trainer uses."""
N_INTERVALS = 400
"""Number of intervals of a run. A point of the training return is the mean of one interval."""
N_SMOOTHED_INTERVALS = 10
"""Number of intervals in the trailing mean of the training return."""
_FRACTION_RANGE = (-0.03, 1.03)
"""Range of the y axis of fractions. Lines at 0 and at 1 are fully visible."""
_NARROW_RANGE = 0.2
"""If β̄ varies by less than this, the y axis is fitted to the values."""
_MIN_BAND_HEIGHT = 0.01
"""A band is visible at a point if its height is above this fraction of the range of the y values of the lines."""
_MIN_VISIBLE_SHARE = 0.02
"""A band is drawn if it is visible at this fraction of the points or more."""
_DASHED = (6, 4)
_SOURCES = (
    "New transitions: collected since the last row of metrics, with the values at the time of collection. "
    "Links in memory: all stored links from a node to its successor."
)
_BANDS = (
    "Bands: 10–90 % of the new transitions, 5–95 % of the links. A mean outside its band results from a few extreme "
    "values."
)
_TAU_TEXT = (
    "τ is the temperature of the gate, which closes where Δ_mem is near τ or above it. The logarithmic axis has no 0."
)
# 1 − β measures how far the gate is closed: 0 is fully open. Only its mean is drawn.
_CLOSING_NOTE = (
    "Mean of 1 − β, which is how far the gate is closed, without bands. The logarithmic axis has no 0, so there is no "
    "point where the gate is fully open (β̄ = 1)."
)
ACTIVITY_PANEL: Final = "gate activity"
POSITIVE_PANEL: Final = "Δ_mem where it is above 0"
ERROR_PANEL: Final = "Δ̄_mem"
BETA_PANEL: Final = "β̄"
CLOSING_PANEL: Final = "1 − β̄"
_ACTIVITY_TEXT: Final = (
    "When the gate acts. Fraction of the new transitions with Δ_mem above 0, fraction of the sampled transitions with "
    f"a closed gate (β below {CLOSED_BELOW:g}), and fraction of the incentive (Σ|r_p| of the sampled transitions) that "
    "the gate removed (not drawn while there is no incentive)."
)
_POSITIVE_TEXT: Final = (
    "Quantiles of Δ_mem over the new transitions with Δ_mem above 0, and the temperature τ. The gate closes where "
    "Δ_mem is near τ or above it."
)
# Merge rate: written states that were merged into an existing node. Hit rate: lookups that found a node.
_MEMORY_TEXT: Final = "Fraction of written states that merged into a node, and of successor lookups that found a node."
_OVERESTIMATION_TEXT: Final = (
    "Greedy Q_tot(s₀) minus the return of the same episode: above 0, the network overestimates the return."
)
OUTCOME_METRICS: Final = (*TRAINING_RATES, SUCCESS_RATE)


class TrainingReturns(NamedTuple):
    """The training returns of a run."""

    frame: pd.DataFrame
    """Mean return of each interval, from `storage.queries.curves.training_returns`."""
    window: float
    """Length of the trailing mean [env steps]."""


NO_RETURNS = TrainingReturns(pd.DataFrame(), 0.0)


def draw_gate_dynamics(
    stats: pd.DataFrame,
    metrics: pd.DataFrame | None = None,
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    closing: bool = False,
) -> Chart:
    """Draw Δ̄_mem with τ, and β̄, both with a band, for new transitions and for the links in memory.

    Δ̄_mem and τ have one unit, because β is computed from their ratio. Their axis is logarithmic: Δ̄_mem is often
    hundreds of times smaller than τ. If β̄ varies little, its axis is fitted to the values.

    Args:
        stats: Statistics of the links in memory from `storage.queries.gate.gate_stats`.
        metrics: `GATE_METRICS` of the run from `storage.queries.curves.metric_points`. Without them, there are no
            lines for new transitions.
        run: Name of the run, for the title.
        marks: The steps at which the run was resumed.
        closing: Draw 1 − β̄ instead of β̄, on a logarithmic axis. On the axis of β̄, a gate that closes by 0.001 looks
            like a flat line.
    """
    x = read_float_column(stats, "env_step")

    def make_lines(name: str, color: str) -> tuple[Line, ...]:
        mean, low, high = (read_float_column(stats, f"{name}_{part}") for part in ("mean", "q05", "q95"))
        legend, label = "links in memory: mean, band 5–95 %", "links in memory"
        links = Line(legend, LOSS_COLOR, x, mean, low, high, dash=_DASHED, label=label)
        return (*_make_new_transition_lines(metrics, f"gate/{name}_new", color), links)

    delta_lines, flat_deltas = _hide_flat_bands("Δ_mem", make_lines("delta_mem", DELTA_MEM_COLOR))
    beta_lines, flat_betas = _hide_flat_bands("β", make_lines("beta", BETA_COLOR))
    low, high = _find_extent(beta_lines)
    is_fitted = not closing and 0 < high - low < _NARROW_RANGE
    error_text = "Consistency error Δ_mem, mean and band."
    # Caption of the panel of β̄. With `closing`, another text replaces it, and no band is drawn or described.
    beta_text = "Gate β, mean and band: 1 is open, 0 is closed."
    beta_bands = f" {_BANDS}{_describe_flat_bands(flat_betas)}"
    beta = Panel(BETA_PANEL, "fraction", beta_lines, range=None if is_fitted else _FRACTION_RANGE)
    if closing:
        beta_text = _CLOSING_NOTE
        beta_bands = ""
        flat_betas = []
        # Only the mean is drawn, so the bands are removed, also from the names.
        lines = [replace(line, name=f"{line.label}: mean", y=1 - line.y, low=None, high=None) for line in beta.lines]
        beta = with_log_y_axis(replace(beta, title=CLOSING_PANEL, lines=tuple(lines)))
    elif is_fitted:
        beta_text += " The axis of β̄ is fitted to the values and does not start at 0."
    delta_text = f"{error_text} {_TAU_TEXT} {_SOURCES} {_BANDS}{_describe_flat_bands(flat_deltas)}"
    tau = Line("τ", TAU_COLOR, x, read_float_column(stats, "tau"), dash=_DASHED, width=1.5, smoothable=False)
    panels = (
        with_log_y_axis(Panel(ERROR_PANEL, "return", (*delta_lines, tau), caption=delta_text)),
        replace(beta, caption=f"{beta_text} {_SOURCES}{beta_bands}"),
    )
    # The caption of the whole chart has the same sentences as the captions of the panels, but each only once.
    flat_bands = _describe_flat_bands([*flat_deltas, *flat_betas])
    caption = f"{error_text} {_TAU_TEXT} {beta_text} {_SOURCES} {_BANDS}{flat_bands}"
    values = "; ".join(f"{panel.title}: {panel.format_last_values()}" for panel in panels)
    description = f"Two aligned panels over training env steps. Latest values of {values}."
    subtitle = "one run; means over the transitions since the last row of metrics and over all stored links"
    title = f"Gate dynamics of {run}"
    return Chart("gate-dynamics", title, X_LABEL, panels, caption, description, marks, subtitle=subtitle)


def draw_gate_effect(metrics: pd.DataFrame, *, run: str, marks: tuple[Mark, ...] = (), has_gate: bool = True) -> Chart:
    """Draw when the gate acts, Δ_mem where it is above 0, the rates of the memory, and the overestimation of Q.

    Args:
        metrics: `GATE_METRICS` of the run from `storage.queries.curves.metric_points`.
        run: Name of the run, for the title.
        marks: The steps at which the run was resumed.
        has_gate: Whether to draw the panels of the gate.
    """
    gate_panels = (
        Panel(ACTIVITY_PANEL, "fraction", _make_activity_lines(metrics), from_zero=True, caption=_ACTIVITY_TEXT),
        with_log_y_axis(Panel(POSITIVE_PANEL, "return", _make_positive_lines(metrics), caption=_POSITIVE_TEXT)),
    )
    panels = (
        *(gate_panels if has_gate else ()),
        Panel("memory", "fraction", _make_memory_lines(metrics), range=_FRACTION_RANGE, caption=_MEMORY_TEXT),
        Panel("overestimation", "return", _make_overestimation_lines(metrics), caption=_OVERESTIMATION_TEXT),
    )
    panels = tuple(panel for panel in panels if panel.lines)
    values = "; ".join(f"{panel.title}: {panel.format_last_values()}" for panel in panels)
    return Chart(
        "gate-effect",
        f"Effect of the gate of {run}",
        X_LABEL,
        panels,
        " ".join(panel.caption for panel in panels),
        f"Aligned panels over training env steps. Latest values of {values}." if panels else "No point yet.",
        marks,
    )


def draw_outcomes(
    evaluations: pd.DataFrame,
    returns: TrainingReturns,
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    threshold: float | None = None,
    metrics: pd.DataFrame | None = None,
) -> Chart:
    """Draw win rates (greedy with its 95 % interval, robust, training) and the returns of evaluation and training.

    Args:
        evaluations: Rows of `storage.queries.curves.evaluations`.
        returns: Training returns from `read_returns`.
        run: Name of the run, for the title.
        marks: The steps at which the run was resumed.
        threshold: Smallest return of a success, if the return defines success. Then the success rate is drawn.
        metrics: `TRAINING_RATES` from `storage.queries.curves.metric_points`. With a threshold also `SUCCESS_RATE`.
    """
    if threshold is not None and metrics is not None:
        evaluations = _replace_wins_by_successes(evaluations, metrics)
    evaluations = evaluations.reindex(columns=[*_EVALUATION_COLUMNS])
    x = read_float_column(evaluations, "env_step")
    title = "win rate" if threshold is None else name_success(threshold)
    verb = "were won" if threshold is None else "reached this return"
    rates = (
        _make_greedy_line(evaluations),
        *_make_other_lines(evaluations, metrics, by_return=threshold is not None),
    )
    return_lines = [Line("greedy evaluation", RETURN_COLOR, x, read_float_column(evaluations, "return_mean"))]
    if len(returns.frame):
        steps, means, counts = (
            read_float_column(returns.frame, name) for name in ("first_env_step", "episode_return", "episodes")
        )
        smoothed = trailing_mean(steps, means, returns.window, counts)
        return_lines.append(Line("training", SPEED_COLOR, steps, smoothed, width=1.5, smoothable=False))
    # `_describe_distinct_episodes` returns the end of the second sentence: "Its n is the number of episodes that differ
    # in actions or outcome (of the last evaluation's 32: 30)". The last sentence describes the other lines.
    rate_text = (
        f"Share of greedy evaluation episodes that {verb}, with the Wilson 95 % interval. Its n is the number of "
        f"episodes that differ{_describe_distinct_episodes(evaluations)}. The same share for episodes from shifted "
        "starts (robust) and for training episodes, which explore."
    )
    return_text = (
        "Mean undiscounted return of evaluation and of "
        f"training (running mean over the last {100 * N_SMOOTHED_INTERVALS / N_INTERVALS:g} % of the run's whole "
        "length)."
    )
    panels = (
        Panel(title, "fraction", rates, range=_FRACTION_RANGE, caption=rate_text),
        Panel("episode return", "env return", tuple(return_lines), caption=return_text),
    )
    description = f"{title[0].upper()}{title[1:]} and return over training env steps. "
    if len(evaluations):
        rate, mean_return = (
            f"{float(value):.3g}" if pd.notna(value) else "none"
            for value in (evaluations["win_rate"].iloc[-1], evaluations["return_mean"].iloc[-1])
        )
        description += f"Latest evaluation: {title} {rate}, return {mean_return}."
    else:
        description += "No evaluation yet."
    return Chart(
        "outcomes",
        f"Learning curve of {run}",
        X_LABEL,
        panels,
        f"{rate_text} {return_text}",
        description,
        marks,
        subtitle="one run; mean over the greedy episodes of each evaluation, band: 95 % (Wilson)",
    )


def draw_metrics(
    metrics: pd.DataFrame,
    names: Sequence[str],
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    chance: float | None = None,
) -> Chart:
    """Draw one panel for each metric that has rows. `chance` is drawn in the panel of the InfoNCE accuracy."""
    panels: list[Panel] = []
    spike_notes: list[str] = []
    for name in names:
        x, y = _get_curve(metrics, name)
        if not len(x):
            continue
        lines = [Line(_get_label(name), _get_metric_color(name), x, y)]
        if name == _ACCURACY and chance is not None:
            level = np.full(len(x), chance)
            lines.append(Line(f"chance, 1/{1 / chance:.0f}", OKABE_ITO[1], x, level, dash=_DASHED, smoothable=False))
        from_zero = len(lines) > 1 or name in MACHINE_METRICS
        panel = Panel(_get_label(name), describe_metric(name).unit, tuple(lines), from_zero=from_zero)
        if name.startswith("time/"):
            panel, note = clip_spikes(panel)
            if note:
                spike_notes.append(f" {note}")
        panels.append(panel)
    known_names = filter(is_known, names)
    meanings = "; ".join(f"{_get_label(name)}: {describe_metric(name).meaning}" for name in known_names)
    description = f"One panel each for {', '.join(map(_get_label, names))} over training env steps."
    return Chart(
        "metrics",
        f"Learning and speed of {run}",
        X_LABEL,
        tuple(panels),
        f"{meanings}.{''.join(spike_notes)}",
        description if panels else "No point yet.",
        marks,
    )


def _find_extent(lines: Sequence[Line]) -> tuple[float, float]:
    """Find the smallest and the largest finite value of lines and bands; (NaN, NaN) if there is none."""
    arrays = [array for line in lines for array in (line.y, line.low, line.high) if array is not None]
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return (float(finite.min()), float(finite.max())) if len(finite) else (np.nan, np.nan)


def _hide_flat_bands(quantity: str, lines: Sequence[Line]) -> tuple[tuple[Line, ...], list[str]]:
    """Remove bands that are invisible, because their two edges are equal at almost all points.

    Returns:
        The lines, and a name for each removed band.
    """
    low, high = _find_extent([replace(line, low=None, high=None) for line in lines])
    result: list[Line] = []
    names: list[str] = []
    for line in lines:
        if line.low is not None and line.high is not None and np.isfinite(line.y).any():
            is_visible = line.high - line.low > _MIN_BAND_HEIGHT * (high - low)
            if is_visible.mean() < _MIN_VISIBLE_SHARE:
                names.append(f"{quantity} of {line.label}")
                # a name ends with its band: "links in memory: mean, band 5–95 %"
                name_without_band = line.name.partition(", band")[0]
                line = replace(line, name=name_without_band, low=None, high=None)
        result.append(line)
    return tuple(result), names


def _describe_flat_bands(names: Sequence[str]) -> str:
    """Make the sentence about removed bands for a caption; empty if there are none.

    The two quantiles of each named band are equal.
    """
    if not names:
        return ""
    return f" No band of {', '.join(names)}: its two quantiles are equal, because the gate acts on few transitions."


def _make_new_transition_lines(metrics: pd.DataFrame | None, name: str, color: str) -> tuple[Line, ...]:
    x, mean = _get_curve(metrics, name)
    if not len(x):
        return ()
    low, high = (_interpolate(x, *_get_curve(metrics, f"{name}_{part}")) for part in ("p10", "p90"))
    return (Line("new transitions: mean, band 10–90 %", color, x, mean, low, high, label="new transitions"),)


def _make_activity_lines(metrics: pd.DataFrame) -> tuple[Line, ...]:
    x_removed, removed = _get_curve(metrics, "gate/incentive_removed")
    # rho: mean N_ξ / N_call of the successors: the fraction of their visits that successful episodes made
    rho = _interpolate(x_removed, *_get_curve(metrics, "incentive/rho"))
    if rho is not None:
        removed = np.where(rho > 0, removed, np.nan)  # rho = 0: there is no incentive
    lines = (
        Line("Δ_mem above 0", DELTA_MEM_COLOR, *_get_curve(metrics, f"{_POSITIVE}_fraction"), width=1.5),
        Line(f"closed (β < {CLOSED_BELOW:g})", BETA_COLOR, *_get_curve(metrics, "gate/closed_fraction"), dash=_DASHED),
        Line("incentive removed", H_VALUE_COLOR, x_removed, removed, width=2.5),
    )
    return tuple(line for line in lines if len(line.x))


def _make_positive_lines(metrics: pd.DataFrame) -> tuple[Line, ...]:
    x, median = _get_curve(metrics, f"{_POSITIVE}_p50")
    if not len(x):
        return ()
    low, high = (_interpolate(x, *_get_curve(metrics, f"{_POSITIVE}_{part}")) for part in ("p10", "p90"))
    return (
        Line("median, band 10–90 %", DELTA_MEM_COLOR, x, median, low, high),
        Line("τ", TAU_COLOR, *_get_curve(metrics, _TAU), dash=_DASHED, width=1.5, smoothable=False),
    )


def _make_memory_lines(metrics: pd.DataFrame) -> tuple[Line, ...]:
    merge_rate_name, hit_rate_name = _MEMORY_METRICS
    x_merge, merge_rate = _get_curve(metrics, merge_rate_name)
    x_hit, hit_rate = _get_curve(metrics, hit_rate_name)
    lines = (
        Line("merge rate", H_VALUE_COLOR, x_merge, merge_rate),
        Line("hit rate", SPEED_COLOR, x_hit, hit_rate, dash=_DASHED),
    )
    return tuple(line for line in lines if len(line.x))


def _make_overestimation_lines(metrics: pd.DataFrame) -> tuple[Line, ...]:
    x, difference = _get_curve(metrics, _OVERESTIMATION)
    if not len(x):
        return ()
    zero = Line("no overestimation", LOSS_COLOR, x, np.zeros(len(x)), dash=_DASHED, width=1.0, smoothable=False)
    return Line("greedy Q − return", RETURN_COLOR, x, difference), zero


def _get_curve(metrics: pd.DataFrame | None, name: str) -> tuple[Values, Values]:
    """Return the env steps and the values of one metric from a frame in long form."""
    if metrics is None or not len(metrics):
        return np.zeros(0), np.zeros(0)
    is_metric = (metrics["name"] == name).to_numpy()
    return read_float_column(metrics, "env_step")[is_metric], read_float_column(metrics, "value")[is_metric]


def _interpolate(x: Values, curve_x: Values, curve_y: Values) -> Values | None:
    """Interpolate a curve at the points `x` of another one; None if the curve is empty.

    The curves of two metrics are down-sampled separately, so the second may have no point at an x of the first.
    """
    return np.interp(x, curve_x, curve_y) if len(curve_x) else None


def _describe_distinct_episodes(evaluations: pd.DataFrame) -> str:
    """Return the text about how many episodes of the last evaluation differ; empty if this was not counted."""
    counted = evaluations.loc[evaluations["distinct"].notna(), :]
    if not len(counted):
        return ""
    last = counted.iloc[-1]
    return f" in actions or outcome (of the last evaluation's {last['episodes']:.0f}: {last['distinct']:.0f})"


def _make_greedy_line(evaluations: pd.DataFrame) -> Line:
    """Make the line of the greedy win rate. For the interval, episodes that are equal to each other count once."""
    rate, episodes, distinct = (read_float_column(evaluations, name) for name in ("win_rate", "episodes", "distinct"))
    n = np.where(np.isfinite(distinct), distinct, episodes)
    band = compute_interval_of_wins(rate * n, n)
    x = read_float_column(evaluations, "env_step")
    return Line(
        "greedy evaluation, 95 % Wilson interval", WIN_RATE_COLOR, x, rate, *band, label="greedy, 95 % interval"
    )


def _make_other_lines(evaluations: pd.DataFrame, metrics: pd.DataFrame | None, *, by_return: bool) -> Iterator[Line]:
    """Make the lines next to the greedy win rate: the robust and the training win rate.

    `by_return`: the return defines success. Then only the success rate of the training is drawn.
    """
    robust = read_float_column(evaluations, "robust_win_rate")
    if np.isfinite(robust).any() and not by_return:
        yield Line(
            "greedy, shifted starts (robust)",
            DELTA_MEM_COLOR,
            read_float_column(evaluations, "env_step"),
            robust,
            dash=_DASHED,
            label="robust (shifted starts)",
        )
    win_rate, success_rate = TRAINING_RATES
    x, training_rate = _get_curve(metrics, success_rate if by_return else win_rate)
    if len(x):
        yield Line("training, exploring", SPEED_COLOR, x, training_rate, width=1.5, label="training")


def _replace_wins_by_successes(evaluations: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Replace the win rate of each evaluation by its success rate; NaN if the success rate was not logged."""
    steps, rates = _get_curve(metrics.reindex(columns=["env_step", "name", "value"]), SUCCESS_RATE)
    rates_by_step = pd.Series(rates, index=steps)
    return evaluations.assign(win_rate=rates_by_step.reindex(read_float_column(evaluations, "env_step")).to_numpy())


def _get_metric_color(name: str) -> str:
    if name.startswith("time/"):
        return SPEED_COLOR
    if name in ("train/q_taken", "eval/overestimation", "train/target"):
        return RETURN_COLOR
    return LOSS_COLOR if name.startswith("train/") else OKABE_ITO[0]


def _get_label(name: str) -> str:
    return describe_metric(name).label if is_known(name) else name.partition("/")[2].replace("_", " ")
