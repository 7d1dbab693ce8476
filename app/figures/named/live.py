"""The curves of one run: the gate at work, outcomes, learning and speed.

Live draws them from what it has followed so far, everything else from the database.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from app.analysis.quantities import SUCCESS_RATE, name_success, success_threshold
from app.analysis.series import column
from app.analysis.statistics import trailing_mean, wilson_interval
from app.figures.chart_choices import BESIDE, beside, complement, on_log_axis, read_marks, without_spikes
from app.figures.figure import WINDOW, FigureKind, Options, Own, one_run
from app.figures.kinds.chart import Chart, Line, Mark, Panel, Values
from app.figures.theme import BETA, DELTA_MEM, ENDED, H_VALUE, LOSS, OKABE_ITO, RETURN, SPEED, TAU, WIN_RATE
from emtc_core.errors import ConfigError
from emtc_core.metrics import CLOSED_BELOW, METRICS, describe_metric, is_known
from storage.engine import Database
from storage.queries.curves import evaluations, metric, training_returns
from storage.queries.gate import gate_stats
from storage.runs.rows import RunRow

X_LABEL = "training env steps"
_EVALUATION = ("env_step", "episodes", "wins", "win_rate", "return_mean", "distinct", "robust_win_rate")
_INCENTIVE = ("gate/incentive_removed", "gate/closed_fraction", "incentive/rho")
_MEMORY = ("memory/merge_rate", "memory/hit_rate")
_GAP = "eval/overestimation"
TRAINING_RATES = ("rollout/win_rate", "rollout/success_rate")
"""What the exploring policy reached, drawn beside the greedy one: by `won`, and where the return decides."""
GATE_METRICS = (
    *(f"gate/{name}_new{part}" for name in ("delta_mem", "beta") for part in ("", "_p10", "_p90")),
    *(*_INCENTIVE, *_MEMORY, _GAP),
)
"""What the two charts of the gate draw beside the statistics over the memory."""
_ACCURACY = "embedder/info_nce_accuracy"
FIRST_METRICS = ("train/loss", "train/q_taken", _ACCURACY, "time/env_steps_per_second")
"""What is drawn of the logged numbers where none is named."""
MACHINE = tuple(name for name in METRICS if name.startswith("machine/"))
"""What a trainer took of its machine."""
STRETCHES = 400
"""Into so many parts a run's length is cut; the training episodes of each are one point."""
SMOOTHED = 10
"""Stretches, back from each point, whose mean is drawn."""
_FRACTION = (-0.03, 1.03)
_NARROW = 0.2
"""β̄ of an ended run that varies less has an axis of its values alone."""
_CLOSING = (
    " 1 − β̄ stands for β̄ on a logarithmic axis: how far the gate is closed. Where it is open altogether there is no "
    "point, and a band that reaches 0 ends at the least value drawn."
)
_DASHED = (6, 4)


def draw_gate_dynamics(
    stats: pd.DataFrame,
    metrics: pd.DataFrame | None = None,
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    closing: bool = False,
    ended: bool = False,
) -> Chart:
    """Δ̄_mem and β̄ of new transitions and over the memory's links, each with its band, and τ.

    Args:
        stats: `storage.queries.gate.gate_stats`, of the links in memory.
        metrics: `GATE_METRICS` of the run as `storage.queries.curves.metric` reads them; a run of an earlier
            version has none of the new transitions.
        run: Name for the title.
        marks: Where the run was resumed.
        closing: Draw 1 − β̄ on a logarithmic axis: a gate that closes by a thousandth is a flat line otherwise.
        ended: Whether no more points follow. Then the axis of β̄ shows only the values, if they are close together.
    """
    x = column(stats, "env_step")

    def faces(name: str, color: str) -> tuple[Line, ...]:
        low, high = column(stats, f"{name}_q05"), column(stats, f"{name}_q95")
        mean = column(stats, f"{name}_mean")
        legend, short = "links in memory: mean, band 5–95 %", "links in memory"
        stored = Line(legend, LOSS, x, mean, low, high, dash=_DASHED, label=short)
        return (*_new_transitions(metrics, f"gate/{name}_new", color), stored)

    lines = faces("beta", BETA)
    low, high = _extent(lines)
    is_fitted = ended and not closing and 0 < high - low < _NARROW
    beta = Panel("β̄", "fraction", lines, range=None if is_fitted else _FRACTION)
    panels = (
        Panel("Δ̄_mem", "return", faces("delta_mem", DELTA_MEM), from_zero=True),
        on_log_axis(replace(beta, title="1 − β̄", lines=tuple(map(complement, beta.lines)))) if closing else beta,
        Panel("τ", "return", (Line("temperature", TAU, x, column(stats, "tau"), dash=_DASHED),), from_zero=True),
    )
    caption = (
        "Consistency error Δ_mem and gate β, mean and band. New transitions: those collected since the last report, as "
        "they were judged, 10–90 %. Links in memory: all that is stored, from each node to its successor, 5–95 %. "
        "A mean outside its band is made by the few beyond it. τ is the gate's temperature."
        f"{_CLOSING if closing else ''}"
        f"{f' The axis of β̄ shows {low:.4g} to {high:.4g} only.' if is_fitted else ''}"
    )
    chart = Chart(
        "gate-dynamics", f"Gate dynamics of {run}", X_LABEL, panels, caption, _describe_dynamics(panels), marks
    )
    return replace(
        chart, subtitle="one run; means over the transitions since the last report and over all stored links"
    )


def draw_gate_effect(metrics: pd.DataFrame, *, run: str, marks: tuple[Mark, ...] = ()) -> Chart:
    """What the gate takes from the incentive, how the memory grows, and the overestimation that is left."""
    panels = [
        Panel("incentive", "fraction", _incentive(metrics), range=_FRACTION),
        Panel("memory", "fraction", _memory(metrics), range=_FRACTION),
        Panel("overestimation", "return", _overestimation(metrics)),
    ]
    caption = (
        "Share of Σ|r_p| that the gate passed and removed in the sampled transitions (none is drawn while no incentive "
        f"flows), and the share of them that it closed (β below {CLOSED_BELOW:g}). Share of written states that merged "
        "into a node, and of successors that found one within δ. Greedy Q_tot(s₀) minus the return then obtained: "
        "above 0 the network promises too much."
    )
    drawn = tuple(panel for panel in panels if panel.lines)
    described = "; ".join(f"{panel.title}: {_latest(panel)}" for panel in drawn)
    described = f"Aligned panels over training env steps. Latest values of {described}." if drawn else "No point yet."
    return Chart("gate-effect", f"Effect of the gate of {run}", X_LABEL, drawn, caption, described, marks)


def _extent(lines: Sequence[Line]) -> tuple[float, float]:
    """Find the least and the greatest value of some lines and their bands; NaN without a value."""
    parts = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    values = np.concatenate([np.empty(0), *parts])
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (np.nan, np.nan)


def _new_transitions(metrics: pd.DataFrame | None, name: str, color: str) -> tuple[Line, ...]:
    x, mean = _curve(metrics, name)
    if not len(x):
        return ()
    low, high = (_at(x, *_curve(metrics, f"{name}_{part}")) for part in ("p10", "p90"))
    return (Line("new transitions: mean, band 10–90 %", color, x, mean, low, high, label="new transitions"),)


def _incentive(metrics: pd.DataFrame) -> tuple[Line, ...]:
    (x, removed), (x_closed, closed), (x_rho, rho) = (_curve(metrics, name) for name in _INCENTIVE)
    if not len(x):
        return ()
    flowing = _at(x, x_rho, rho)
    removed = removed if flowing is None else np.where(flowing > 0, removed, np.nan)
    return (
        Line("passed", WIN_RATE, x, 1 - removed),
        Line("removed", DELTA_MEM, x, removed, width=2.5),
        Line("transitions closed", BETA, x_closed, closed, dash=_DASHED),
    )


def _memory(metrics: pd.DataFrame) -> tuple[Line, ...]:
    (x_merge, merged), (x_hit, hit) = (_curve(metrics, name) for name in _MEMORY)
    merging = (Line("merge rate", H_VALUE, x_merge, merged),) if len(x_merge) else ()
    return (*merging, *((Line("hit rate", SPEED, x_hit, hit, dash=_DASHED),) if len(x_hit) else ()))


def _overestimation(metrics: pd.DataFrame) -> tuple[Line, ...]:
    x, gap = _curve(metrics, _GAP)
    if not len(x):
        return ()
    none = Line("none", LOSS, x, np.zeros(len(x)), dash=_DASHED, width=1.0)
    return Line("greedy Q − return", RETURN, x, gap), none


def _curve(metrics: pd.DataFrame | None, name: str) -> tuple[Values, Values]:
    """Take one logged number out of the long frame: its env steps and values."""
    if metrics is None or not len(metrics):
        return np.zeros(0), np.zeros(0)
    here = (metrics["name"] == name).to_numpy()
    return column(metrics, "env_step")[here], column(metrics, "value")[here]


def _at(x: Values, known_x: Values, known: Values) -> Values | None:
    """Read a curve at the points of another, which a thinned one may lack; None if it was never logged."""
    return np.interp(x, known_x, known) if len(known_x) else None


def _describe_dynamics(panels: Sequence[Panel]) -> str:
    told = "; ".join(f"{panel.title}: {_latest(panel)}" for panel in panels)
    return f"Three aligned panels over training env steps. Latest values of {told}."


def _latest(panel: Panel) -> str:
    """The last value of every line."""
    values = [(line.label or line.name, line.y[np.isfinite(line.y)]) for line in panel.lines]
    return ", ".join(f"{name} {y[-1]:.3g}" if len(y) else f"{name} none yet" for name, y in values)


def draw_outcomes(
    evaluations: pd.DataFrame,
    episodes: pd.DataFrame,
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    threshold: float | None = None,
    metrics: pd.DataFrame | None = None,
) -> Chart:
    """Win rates (greedy with its 95 % interval, robust, of training), and returns of evaluation and training.

    Args:
        evaluations: As `storage.queries.curves.evaluations` reads them.
        episodes: Training returns, as `read_returns` reads them.
        run: Name for the title.
        marks: Where the run was resumed.
        threshold: The return from which on an episode is a success, where the return decides; its share is drawn then.
        metrics: `TRAINING_RATES`, and `SUCCESS_RATE` of such a run, as `storage.queries.curves.metric` reads them.
    """
    if threshold is not None and metrics is not None:
        evaluations = _count_successes(evaluations, metrics)
    evaluations = evaluations.reindex(columns=[*_EVALUATION])
    x = column(evaluations, "env_step")
    title, verb = ("win rate", "were won") if threshold is None else (name_success(threshold), "returned that much")
    rates = (_greedy_rate(evaluations), *_other_rates(evaluations, metrics, by_return=threshold is not None))
    returns = [Line("greedy evaluation", RETURN, x, column(evaluations, "return_mean"))]
    if len(episodes):
        returns.append(_smooth_returns(episodes))
    panels = (
        Panel(title, "fraction", rates, range=(-0.03, 1.03)),
        Panel("episode return", "env return", tuple(returns)),
    )
    caption = (
        f"Share of greedy evaluation episodes that {verb}, with the Wilson 95 % interval of as many episodes as differ"
        f"{_tell_distinct(evaluations)}; of episodes from shifted starts (robust), and of training, which explores. "
        "Mean undiscounted return of evaluation and of training (running mean over the last "
        f"{100 * SMOOTHED / STRETCHES:g} % of the run's whole length)."
    )
    last = _last(evaluations, ("win_rate", "return_mean"))
    described = f"{title[0].upper()}{title[1:]} and return over training env steps. " + (
        f"Latest evaluation: {title} {last[0]}, return {last[1]}." if last else "No evaluation yet."
    )
    chart = Chart("outcomes", f"Learning curve of {run}", X_LABEL, panels, caption, described, marks)
    return replace(chart, subtitle="one run; mean over the greedy episodes of each evaluation, band: 95 % (Wilson)")


def _greedy_rate(evaluations: pd.DataFrame) -> Line:
    """The greedy win rate; episodes that are copies of each other count once in its band."""
    rate, episodes, distinct = (column(evaluations, name) for name in ("win_rate", "episodes", "distinct"))
    different = np.where(np.isfinite(distinct), distinct, episodes)
    band = wilson_interval(rate * different, different)
    return Line("greedy evaluation, 95 % Wilson interval", WIN_RATE, column(evaluations, "env_step"), rate, *band)


def _other_rates(evaluations: pd.DataFrame, metrics: pd.DataFrame | None, *, by_return: bool) -> Iterator[Line]:
    robust = column(evaluations, "robust_win_rate")
    if np.isfinite(robust).any() and not by_return:
        yield Line("greedy, shifted starts (robust)", DELTA_MEM, column(evaluations, "env_step"), robust, dash=_DASHED)
    x, trained = _curve(metrics, TRAINING_RATES[by_return])
    if len(x):
        yield Line("training, exploring", SPEED, x, trained, width=1.5)


def _tell_distinct(evaluations: pd.DataFrame) -> str:
    """How many episodes of the last evaluation differ, in brackets; nothing where that was not counted."""
    counted = evaluations.loc[evaluations["distinct"].notna(), :]
    if not len(counted):
        return ""
    last = counted.iloc[-1]
    return f" in actions or outcome (of the last evaluation's {last['episodes']:.0f}: {last['distinct']:.0f})"


def _count_successes(evaluations: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Put the successes of each evaluation in the place of its wins; one without a rate has none to draw."""
    frame = metrics.reindex(columns=["env_step", "name", "value"])
    rated = frame.loc[frame["name"] == SUCCESS_RATE, :]
    rates = pd.Series(column(rated, "value"), index=column(rated, "env_step"))
    return evaluations.assign(win_rate=rates.reindex(column(evaluations, "env_step")).to_numpy())


def draw_metrics(
    metrics: pd.DataFrame,
    names: Sequence[str],
    *,
    run: str,
    marks: tuple[Mark, ...] = (),
    chance: float | None = None,
) -> Chart:
    """One panel for each registered metric that has rows; `chance` is drawn beside the InfoNCE accuracy."""
    panels, cut = [], []
    for name in names:
        x, y = _curve(metrics, name)
        if not len(x):
            continue
        lines = [Line(_short(name), _metric_color(name), x, y)]
        if name == _ACCURACY and chance is not None:
            level = np.full(len(x), chance)
            lines.append(Line(f"chance, 1/{1 / chance:.0f}", OKABE_ITO[1], x, level, dash=_DASHED))
        unit, from_zero = describe_metric(name).unit, len(lines) > 1 or name in MACHINE
        panel = Panel(_short(name), unit, tuple(lines), from_zero=from_zero)
        panel, beyond = without_spikes(panel) if name.startswith("time/") else (panel, "")
        panels.append(panel)
        cut += [f" {beyond}"] if beyond else []
    meanings = "; ".join(f"{_short(n)}: {describe_metric(n).meaning}" for n in names if is_known(n))
    described = f"One panel each for {', '.join(_short(n) for n in names)} over training env steps."
    described = described if panels else "No point yet."  # a metric's first row is younger than what was read
    return Chart(
        "metrics",
        f"Learning and speed of {run}",
        X_LABEL,
        tuple(panels),
        f"{meanings}.{''.join(cut)}",
        described,
        marks,
    )


def contrast_chance(config: Mapping[str, Any]) -> float | None:
    """The InfoNCE accuracy of a guess, one of a whole batch, in a run configured (as stored) like this."""
    batch = config.get("embed", {}).get("batch")
    return 1 / batch if batch else None


def read_returns(db: Database, run: RunRow) -> pd.DataFrame:
    """Training returns over stretches of fixed length, and in `attrs` the env steps over which they are smoothed."""
    width = max(1, run.target_steps // STRETCHES)
    frame = training_returns(db, run.id, width)
    frame.attrs["window"] = width * SMOOTHED
    return frame


def _smooth_returns(episodes: pd.DataFrame) -> Line:
    x, y, n = (column(episodes, name) for name in ("first_env_step", "episode_return", "episodes"))
    mean = trailing_mean(x, y, float(episodes.attrs["window"]), n)
    return Line("training", SPEED, x, mean, width=1.5)


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


def _gate_dynamics(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run = one_run("gate-dynamics", rows)
    stats = gate_stats(db, run.id)
    if stats.empty:
        raise ConfigError(
            f"Run {run.id} ({run.algo}) has no gate statistics", hint="Choose a run of an EMTC algorithm."
        )
    marks = read_marks(db, run)
    logged, closing = metric(db, run.id, GATE_METRICS), options.get("closing", False)
    ended = run.live_status in ENDED
    return draw_gate_dynamics(stats, logged, run=run.name, marks=marks, closing=closing, ended=ended)


def _gate_effect(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run = one_run("gate-effect", rows)
    drawn = draw_gate_effect(metric(db, run.id, GATE_METRICS), run=run.name, marks=read_marks(db, run))
    if drawn.is_empty:
        raise ConfigError(f"Run {run.id} ({run.algo}) logged nothing of what its gate did", hint="Choose another.")
    return drawn


def _outcomes(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run = one_run("outcomes", rows)
    return draw_outcomes(
        evaluations(db, run.id),
        read_returns(db, run),
        run=run.name,
        marks=read_marks(db, run),
        threshold=success_threshold(run.config),
        metrics=metric(db, run.id, [*TRAINING_RATES, SUCCESS_RATE]),
    )


def _metrics(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run, names = one_run("metrics", rows), options.get("metrics", FIRST_METRICS)
    logged = metric(db, run.id, names)
    marks, chance = read_marks(db, run), contrast_chance(run.config)
    return draw_metrics(logged, names, run=run.name, marks=marks, chance=chance)


def _read_metrics(value: Any) -> list[str]:
    names = value.split(",") if isinstance(value, str) else [str(each) for each in value]
    if strange := [each for each in names if not is_known(each)]:
        raise ValueError(strange)
    return names


FIGURES = (
    FigureKind(
        "gate-dynamics", beside(_gate_dynamics), needs_runs=True,
        own=(WINDOW, BESIDE, Own("closing", bool, "true or false: 1 − β̄ on a logarithmic axis in the place of β̄")),
        question="How does the gate judge, over training?",
    ),
    FigureKind(
        "gate-effect", beside(_gate_effect), needs_runs=True, own=(WINDOW, BESIDE),
        question="What do gate and memory do to the incentive?",
    ),
    FigureKind(
        "outcomes", beside(_outcomes), needs_runs=True, own=(WINDOW, BESIDE),
        question="What came of one run's training?",
    ),
    FigureKind(
        "metrics", beside(_metrics), needs_runs=True,
        own=(WINDOW, BESIDE, Own("metrics", _read_metrics, "names of metrics, with commas between them")),
        question="How do the logged numbers of one run develop?",
    ),
)  # fmt: skip
