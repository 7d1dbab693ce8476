"""The paper's studies as figures: loss weights, gate temperature, merge radius, augmentation, ablation.

Every figure reads what varies from the configurations, never from the names of runs. Final win rates come from
finished runs alone; a cell or line without a finished run is left empty.
"""

from collections.abc import Callable, Sequence

import numpy as np

from app.figures.chart import Chart, Line, Panel
from app.figures.heatmap import Grid, Heatmap
from app.paper.study_runs import (
    StudyRun,
    check_one_study,
    group_runs,
    known,
    list_tasks,
    read_study,
    show_value,
)
from app.seed_statistics import Reading, align
from app.theme import OKABE_ITO
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs import RunRow

LAMBDAS = ("embed.lambda_rcon", "embed.lambda_cl")
AUGMENTATION = ("embed.p_mask", "embed.sigma")
TAUS = ("gate.tau_start", "gate.tau_end")
DELTA, EMBEDDER = "memory.delta", "embed.type"
X_LABEL = "training env steps"
WIN_RANGE = (-0.03, 1.03)
SHARES = (1 / 3, 2 / 3, 1.0)
EMBEDDER_NAMES = {"random": "random projection", "dcae": "dCAE", "tcse": "TCSE"}
_DASHES = (None, (7, 4), (2, 3), (10, 3), (4, 4), (1, 2))
_BAND = "band: standard deviation over seeds (n in the legend; none for a single seed)"


def make_lambda_heatmap(db: Database, rows: list[RunRow]) -> Heatmap:
    """Draw the final win rate over both loss weights of the embedder, one grid for each task."""
    return _heatmap("lambda-heatmap", "Loss weights of the embedder", read_study(db, rows), LAMBDAS, ("λ_rcon", "λ_cl"))


def make_augmentation(db: Database, rows: list[RunRow]) -> Heatmap:
    """Draw the final win rate over masking and noise; combinations without a run stay empty."""
    names = ("p_mask [fraction]", "σ [normalised state]")
    return _heatmap("augmentation", "Augmentation of the embedder", read_study(db, rows), AUGMENTATION, names)


def make_tau_study(db: Database, rows: list[RunRow]) -> Chart:
    """Draw the win rate of every temperature schedule, and below it the schedules."""
    runs = read_study(db, rows)
    check_one_study("tau-study", runs, TAUS)
    styles = {taus: i for i, taus in enumerate(group_runs(runs, *TAUS))}
    panels = [
        Panel(
            f"win rate, {task}",
            "fraction",
            _curves(
                {
                    _tau_name(taus): (styles[taus], seeds)
                    for taus, seeds in group_runs((run for run in runs if run.task == task), *TAUS).items()
                }
            ),
            range=WIN_RANGE,
        )
        for task in list_tasks(runs)
    ]
    schedules = [_schedule(taus, seeds[0], styles[taus]) for taus, seeds in group_runs(runs, *TAUS).items()]
    panels.append(Panel("τ", "return", tuple(schedules), from_zero=True))
    caption = f"Greedy win rate, mean over seeds, {_BAND}; below, the gate's temperature τ of each line."
    return Chart("tau-study", "Gate temperature", X_LABEL, tuple(panels), caption, _describe("Win rate", panels))


def make_ablation(db: Database, rows: list[RunRow]) -> Chart:
    """Draw the win rate with and without the gate, the embedder, and of EMU, one panel for each task."""
    runs = read_study(db, rows)
    names = sorted({name_parts(run) for run in runs}, key=_ablation_order)
    panels = []
    for task in list_tasks(runs):
        lines = {
            name: (i, [run for run in runs if run.task == task and name_parts(run) == name])
            for i, name in enumerate(names)
        }
        panels.append(Panel(f"win rate, {task}", "fraction", _curves(lines), range=WIN_RANGE))
    caption = (
        f"Greedy win rate, mean over seeds, {_BAND}. No-TCGM: β = 1 everywhere. No-TCSE: the autoencoder alone, "
        "without contrast. What was left out is read from each run's configuration."
    )
    return Chart("ablation", "Ablation", X_LABEL, tuple(panels), caption, _describe("Win rate", panels))


def make_mu_w_by_delta(db: Database, rows: list[RunRow]) -> Chart:
    """Draw μ̄_w and the final win rate of every embedder over the merge radius, on a logarithmic axis."""
    runs = [run for run in read_study(db, rows) if run.is_finished]
    check_one_study("mu-w-by-delta", runs, (DELTA, EMBEDDER))
    if not runs:
        raise ConfigError("mu-w-by-delta needs a finished run. Wait for one, or name others.")
    panels = [
        Panel(f"{title}, {task}", "fraction", _over_delta([r for r in runs if r.task == task], number), from_zero=True)
        for task in list_tasks(runs)
        for title, number in (("μ̄_w", lambda run: run.mu_w_at(1.0)), ("final win rate", lambda run: run.final))
    ]
    gate = "off" if not runs[0].settings.get("gate.enabled") else "on"
    caption = (
        "μ̄_w is the time average of the greedy win rate over the whole run (area under its curve, trapezoid rule); "
        f"each seed first, then mean over seeds, {_BAND}. Gate {gate}. The axis shows the logarithm of δ."
    )
    return Chart("mu-w-by-delta", "Merge radius", "log₁₀ δ", tuple(panels), caption, _describe("μ̄_w", panels))


def name_parts(run: StudyRun) -> str:
    """Name a run of an ablation by what it leaves out, read from its configuration."""
    method, _, backbone = run.algo.rpartition("-")
    if method != "emtc":
        return f"{method.upper()}({backbone.upper()})" if method else run.algo.upper()
    missing = [] if run.settings.get("gate.enabled") else ["No-TCGM"]
    if run.settings.get(EMBEDDER) != "tcse" or not run.settings.get("embed.lambda_cl"):
        missing.append("No-TCSE")
    return ", ".join(missing) or f"EMTC({backbone.upper()})"


def _heatmap(
    name: str, title: str, runs: Sequence[StudyRun], keys: tuple[str, str], labels: tuple[str, str]
) -> Heatmap:
    check_one_study(name, runs, keys)
    ys, xs = (sorted({value for run in runs if isinstance(value := run.settings[key], int | float)}) for key in keys)
    tasks = list_tasks(runs)
    grids = tuple(_grid(task, [run for run in runs if run.task == task], keys, ys, xs) for task in tasks)
    done = sum(run.is_finished for run in runs)
    caption = (
        "Last greedy win rate, mean over the seeds of each combination; ★ marks the best of a map, empty cells have "
        f"no finished run. {done} of {len(runs)} runs have finished."
    )
    x, y = (tuple(map(show_value, values)) for values in (xs, ys))
    return Heatmap(name, title, labels[1], labels[0], x, y, grids, "final win rate [fraction]", caption)


def _grid(task: str, runs: Sequence[StudyRun], keys: tuple[str, str], ys: Sequence[Value], xs: Sequence[Value]) -> Grid:
    values, counts = np.full((len(ys), len(xs)), np.nan), np.zeros((len(ys), len(xs)), np.int64)
    for (y, x), seeds in group_runs(runs, *keys).items():
        finals = known(run.final for run in seeds)
        if len(finals):
            values[ys.index(y), xs.index(x)] = finals.mean()
            counts[ys.index(y), xs.index(x)] = len(finals)
    return Grid(task, values, counts)


def _curves(groups: dict[str, tuple[int, list[StudyRun]]]) -> tuple[Line, ...]:
    """Draw one line for each group that has an evaluation: its mean over seeds, and its band."""
    lines = []
    for name, (i, runs) in groups.items():
        curves = [run.curve for run in runs if len(run.curve.steps)]
        if not curves:
            continue
        steps, values = align(curves)
        summary = Reading().summarize(values)
        color, dash = OKABE_ITO[i % len(OKABE_ITO)], _DASHES[i % len(_DASHES)]
        label = f"{name} (n = {len(curves)})"
        lines.append(Line(label, color, steps, summary.center, summary.low, summary.high, dash=dash))
    return tuple(lines)


def _over_delta(runs: Sequence[StudyRun], number: Callable[[StudyRun], float]) -> tuple[Line, ...]:
    lines = []
    for i, (embedder, name) in enumerate(EMBEDDER_NAMES.items()):
        cells = group_runs((run for run in runs if run.settings.get(EMBEDDER) == embedder), DELTA)
        points = [
            (np.log10(float(delta)), numbers)
            for (delta,), seeds in cells.items()
            if isinstance(delta, int | float) and len(numbers := known(map(number, seeds)))
        ]
        if points:
            lines.append(_delta_line(name, i, points))
    return tuple(lines)


def _delta_line(name: str, i: int, points: Sequence[tuple[float, np.ndarray]]) -> Line:
    x = np.array([where for where, _ in points])
    mean = np.array([numbers.mean() for _, numbers in points])
    spread = np.array([numbers.std(ddof=1) if len(numbers) > 1 else np.nan for _, numbers in points])
    n = max(len(numbers) for _, numbers in points)
    low, high = (mean - spread, mean + spread) if np.isfinite(spread).all() else (None, None)
    return Line(f"{name} (n = {n})", OKABE_ITO[i], x, mean, low, high, dash=_DASHES[i], markers=True)


def _tau_name(taus: tuple[Value, ...]) -> str:
    start, end = map(show_value, taus)
    return f"τ = {start}" if start == end else f"τ from {start} to {end}"


def _schedule(taus: tuple[Value, ...], run: StudyRun, i: int) -> Line:
    decay = run.settings.get("gate.tau_decay_steps")
    until = min(float(decay), run.t_max) if isinstance(decay, int | float) else run.t_max / 2
    x = np.array([0.0, until, run.t_max])
    y = np.array([float(taus[0] or 0), float(taus[1] or 0), float(taus[1] or 0)])
    return Line(_tau_name(taus), OKABE_ITO[i % len(OKABE_ITO)], x, y, dash=_DASHES[i % len(_DASHES)])


def _ablation_order(name: str) -> tuple[bool, bool, str]:
    return (not name.startswith("EMTC"), not name.startswith("No-"), name)


def _describe(what: str, panels: Sequence[Panel]) -> str:
    lines = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    return f"{what} in {len(panels)} panels ({', '.join(panel.title for panel in panels)}): {', '.join(lines)}."


FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart | Heatmap]] = {
    "lambda-heatmap": make_lambda_heatmap,
    "tau-study": make_tau_study,
    "ablation": make_ablation,
    "mu-w-by-delta": make_mu_w_by_delta,
    "augmentation": make_augmentation,
}
