"""The paper's studies as figures and tables: loss weights, gate temperature, merge radius, augmentation.

Everything here reads what varies from the configurations, never from the names of runs, and refuses runs that differ in
anything else. A cell or line without a run that counts is left empty.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from app.analysis.comparable import (
    AUGMENTATION,
    DELTA,
    EMBEDDER,
    LAMBDAS,
    TAUS,
    check_one_study,
    find_studies,
    group_seeds,
    read_study,
    tell_left_out,
)
from app.analysis.finals import (
    FinalRule,
    caption_final,
    final_rate,
    final_rates,
    name_final,
    rate_of_final,
    rate_of_whole_mu_w,
    title_final,
)
from app.analysis.format import percent
from app.analysis.quantities import UNIT_RANGE, Quantity, average_over_time
from app.analysis.series import DAGGER, Comparison, Seed
from app.analysis.settings import EMBEDDERS, name_algo, name_task, show_value
from app.analysis.statistics import CENTER_NAMES, Rate, Reading, center_of, finite
from app.analysis.tables import NESTED, describe_table
from app.analysis.win_rates import find_best, quote
from app.figures.figure import AT_A_BUDGET, AT_THE_END, OF_A_RATE, FigureKind, Option, Options, TableKind
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.kinds.maps import Grid, Heatmap
from app.figures.named.curves import X_LABEL, draw_line, say_reading
from app.figures.theme import Style, style_methods
from emtc_core.config.resolve import Value, flatten_tree
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

Number = Callable[[Seed], float]
RateOf = Callable[[Sequence[Seed]], Rate]
_NO_BAND: frozenset[Option] = AT_THE_END - {"band"}

SHARES = (1 / 3, 2 / 3, 1.0)


def _lambda_heatmap(db: Database, rows: Sequence[RunRow], options: Options) -> Heatmap:
    return _heatmap(db, rows, options, "lambda-heatmap", "Loss weights of the embedder", LAMBDAS, ("λ_rcon", "λ_cl"))


def _augmentation(db: Database, rows: Sequence[RunRow], options: Options) -> Heatmap:
    names = ("p_mask [fraction]", "σ [normalised state]")
    return _heatmap(db, rows, options, "augmentation", "Augmentation of the embedder", AUGMENTATION, names)


def _tau_study(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    """Draw the win rate of every temperature schedule, and below it the schedules."""
    unfinished, rate = options.include_unfinished, options.rate_name
    comparison = read_study(db, rows, include_unfinished=unfinished, rate=rate, final=False)
    seeds, reading, quantity = comparison.seeds, options.reading or Reading(), comparison.quantity
    check_one_study("tau-study", seeds, TAUS)
    by_tau = group_seeds(seeds, *TAUS)
    styles = _style(seeds, {_name_taus(taus): taus for taus in by_tau}, TAUS)
    panels = []
    for task in comparison.tasks:
        lines = [
            draw_line(f"{name} (n = {len(here)})", here, reading, styles[name], quantity=quantity.at(task), label=name)
            for taus, here in group_seeds((seed for seed in seeds if seed.task == task), *TAUS).items()
            for name in [_name_taus(taus)]
        ]
        panels.append(Panel(f"{quantity.at(task).title}, {task}", "fraction", tuple(lines), range=UNIT_RANGE))
    schedules = [_schedule(taus, here[0], styles[_name_taus(taus)]) for taus, here in by_tau.items()]
    panels.append(Panel("τ", "return", tuple(schedules), from_zero=True))
    what = f"{quantity.title} ({quantity.meaning})"
    caption = f"{what[:1].upper()}{what[1:]}, {_say(reading)}; below, the gate's temperature τ of each line."
    caption += f" {quantity.note}" if quantity.note else ""
    return _chart("tau-study", "Gate temperature", X_LABEL, panels, caption, comparison, reading)


def _mu_w_by_delta(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    """Draw μ̄_w and the final win rate of every embedder over the merge radius, on a logarithmic axis."""
    comparison = _read_finals(db, rows, options)
    seeds, reading = comparison.seeds, options.reading or Reading()
    rule, quantity = options.final_rule, comparison.quantity
    check_one_study("mu-w-by-delta", seeds, (DELTA, EMBEDDER))
    if not seeds:
        raise ConfigError("mu-w-by-delta needs a finished run", hint="Wait for one, or name others.")
    panels = [
        Panel(
            f"{title}, {task}", "fraction",
            _over_delta([seed for seed in seeds if seed.task == task], *number, reading), from_zero=True,
        )
        for task in comparison.tasks
        for title, number in _numbers_of(quantity.at(task), rule).items()
    ]  # fmt: skip
    gate = "off" if not seeds[0].settings.get("gate.enabled") else "on"
    said = (
        f"μ̄_w is the time average of the {quantity.title} over the whole run (area under its curve, trapezoid rule); "
        f"each seed first, then {_say(reading)}. Gate {gate}. The axis shows the logarithm of δ."
    )
    caption, _ = caption_final(seeds, rule, said, of=quantity, at=comparison)
    return _chart("mu-w-by-delta", "Merge radius", "log₁₀ δ", panels, caption, comparison, reading)


def _read_finals(db: Database, rows: Sequence[RunRow], options: Options) -> Comparison:
    unfinished, rate = options.include_unfinished, options.rate_name
    return read_study(db, rows, include_unfinished=unfinished, rate=rate, budget=options.read_at)


def _numbers_of(quantity: Quantity, rule: FinalRule) -> dict[str, tuple[Number, RateOf]]:
    """The two numbers of a run that are drawn over the merge radius, by title."""
    return {
        average_over_time(quantity).title: (
            partial(Seed.mu_w_at, share=1.0),
            partial(rate_of_whole_mu_w, of=quantity),
        ),
        title_final(rule, quantity): (
            partial(final_rate, rule=rule),
            partial(rate_of_final, rule=rule, of=quantity),
        ),
    }


def _heatmap(
    db: Database,
    rows: Sequence[RunRow],
    options: Options,
    name: str,
    title: str,
    keys: tuple[str, str],
    labels: tuple[str, str],
) -> Heatmap:
    comparison = _read_finals(db, rows, options)
    check_one_study(name, comparison.seeds, keys)
    settings = [flatten_tree(row.config) for row in rows]
    ys, xs = (sorted({v for each in settings if isinstance(v := each.get(key), int | float)}) for key in keys)
    if not (ys and xs):  # of an earlier version, or somebody else's
        raise ConfigError(f"{name} needs runs whose settings say {' and '.join(keys)}")
    reading, rule = options.reading or Reading(), options.final_rule
    grids = tuple(
        _grid(task, [seed for seed in comparison.seeds if seed.task == task], keys, ys, xs, reading, rule)
        for task in dict.fromkeys(map(name_task, settings))
    )
    done = len(comparison.seeds)
    said = (
        f"{CENTER_NAMES[reading.center].capitalize()} over the seeds of each combination; ★ marks the best "
        f"of a map among those with two seeds or more, empty cells have no run that counts. "
        f"{done} of {len(rows)} runs count."
        f"{tell_left_out(comparison.left_out)}"
    )
    quantity = comparison.quantity
    caption, _ = caption_final(comparison.seeds, rule, said, of=quantity, at=comparison)
    x, y = (tuple(map(show_value, values)) for values in (xs, ys))
    over_seeds = f"{name_final(rule, of=quantity)}, {CENTER_NAMES[reading.center]} over seeds"
    at_end = f"{title_final(rule, quantity)} [fraction]"
    return Heatmap(name, title, labels[1], labels[0], x, y, grids, at_end, caption, over_seeds)


def _grid(
    task: str,
    seeds: Sequence[Seed],
    keys: tuple[str, str],
    ys: Sequence[Value],
    xs: Sequence[Value],
    reading: Reading,
    rule: FinalRule,
) -> Grid:
    values, counts = np.full((len(ys), len(xs)), np.nan), np.zeros((len(ys), len(xs)), np.int64)
    for (y, x), here in group_seeds(seeds, *keys).items():
        finals = finite(final_rates(here, rule))
        if len(finals) and y in ys and x in xs:
            values[ys.index(y), xs.index(x)] = center_of(finals, reading.center)
            counts[ys.index(y), xs.index(x)] = len(finals)
    return Grid(task, values, counts)


def _over_delta(seeds: Sequence[Seed], number: Number, rate: RateOf, reading: Reading) -> tuple[Line, ...]:
    styles = _style(seeds, {name: (embedder,) for embedder, name in EMBEDDERS.items()}, (EMBEDDER,))
    lines = []
    for embedder, name in EMBEDDERS.items():
        cells = group_seeds((seed for seed in seeds if seed.settings.get(EMBEDDER) == embedder), DELTA)
        points = [
            (np.log10(float(delta)), numbers, rate(here))
            for (delta,), here in cells.items()
            if isinstance(delta, int | float) and len(numbers := finite(map(number, here)))
        ]
        if points:
            lines.append(_delta_line(name, styles[name], points, reading))
    return tuple(lines)


def _delta_line(name: str, style: Style, points: Sequence[tuple[float, np.ndarray, Rate]], reading: Reading) -> Line:
    """Join the points of an embedder; without a band where a point rests on a single seed."""
    summaries = [reading.summarize(numbers[:, None], rate) for _, numbers, rate in points]
    x = np.array([where for where, _, _ in points])
    center = np.concatenate([each.center for each in summaries])
    low, high = (_join(edges) for edges in ([each.low for each in summaries], [each.high for each in summaries]))
    seeds = np.array([len(numbers) for _, numbers, _ in points])
    counts = sorted(set(seeds.tolist()))
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    marker = style.marker or "circle"
    return Line(
        f"{name} (n = {n})", style.color, x, center, low, high, style.dash, True,
        marker=marker, label=name, statistic=reading.say(share=True), n=seeds,
    )  # fmt: skip


def _join(edges: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Join the edges of a band; no band where one point has none."""
    known = [edge for edge in edges if edge is not None]
    return np.concatenate(known) if len(known) == len(edges) else None


def _style(seeds: Sequence[Seed], values: dict[str, tuple[Value, ...]], keys: Sequence[str]) -> dict[str, Style]:
    """Give each line of a study the shade of its algorithm's colour, and a marker."""
    algo = str(seeds[0].settings.get("algo")) if seeds else ""
    return style_methods(
        {
            name: (algo, ", ".join(f"{key} = {value}" for key, value in zip(keys, here, strict=True)))
            for name, here in values.items()
        }
    )


def _name_taus(taus: tuple[Value, ...]) -> str:
    start, end = map(show_value, taus)
    return f"τ = {start}" if start == end else f"τ from {start} to {end}"


def _schedule(taus: tuple[Value, ...], seed: Seed, style: Style) -> Line:
    decay = seed.settings.get("gate.tau_decay_steps")
    until = min(float(decay), seed.t_max) if isinstance(decay, int | float) else seed.t_max / 2
    x = np.array([0.0, until, seed.t_max])
    y = np.array([float(taus[0] or 0), float(taus[1] or 0), float(taus[1] or 0)])
    return Line(_name_taus(taus), style.color, x, y, dash=style.dash, marker=style.marker)


def _say(reading: Reading) -> str:
    band = reading.name_band(share=True)
    return f"{CENTER_NAMES[reading.center]} over seeds, band: {band} (n in the legend; none for a single seed)"


def _chart(
    name: str,
    title: str,
    x_label: str,
    panels: Sequence[Panel],
    caption: str,
    comparison: Comparison,
    reading: Reading,
) -> Chart:
    algos = dict.fromkeys(name_algo(str(seed.settings.get("algo"))) for seed in comparison.seeds)
    lines = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    shown = ", ".join(panel.title for panel in panels)
    described = f"{title} in {len(panels)} panels ({shown}): {', '.join(lines)}."
    said = f"{', '.join(algos)}. {caption}{tell_left_out(comparison.left_out)}"
    return Chart(name, title, x_label, tuple(panels), said, described, subtitle=say_reading(reading, share=True))


FIGURES = (
    FigureKind("lambda-heatmap", _lambda_heatmap, _NO_BAND, question="Which weights of the two losses are best?"),
    FigureKind("tau-study", _tau_study, OF_A_RATE, question="Which gate temperature is best?"),
    FigureKind("mu-w-by-delta", _mu_w_by_delta, AT_THE_END, question="How do embedders fare at each merge radius?"),
    FigureKind("augmentation", _augmentation, _NO_BAND, question="Which masking and noise are best?"),
)


def _embedders(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give μ̄_w over seeds: task and merge radius × training time and embedder; gate off."""
    reading = options.reading or Reading()
    comparison = _read_finals(db, rows, options)
    fits = [seed for seed in comparison.seeds if not seed.settings.get("gate.enabled")]
    seeds = find_studies(fits, (EMBEDDER, DELTA), lambda seed: EMBEDDER in seed.settings)
    table, best = [], []
    for task in dict.fromkeys(seed.task for seed in seeds):
        for (delta,), here in group_seeds((seed for seed in seeds if seed.task == task), DELTA).items():
            cells = _cells_over_time(here, reading, comparison.quantity.at(task))
            for share in SHARES:
                names = [name for name in cells if name.startswith(f"{percent(share)}{NESTED}")]
                best += [(len(table), names[place]) for place in find_best([cells[name] or None for name in names])]
            table.append({"task": task, "δ": show_value(delta), **cells})
    columns = ["task", "δ", *(_time_column(share, name) for share in SHARES for name in EMBEDDERS.values())]
    title, note = average_over_time(comparison.quantity).title, comparison.quantity.note
    caption = f"{title} after a third, two thirds and all of the training, {reading.say(share=True)}, gate off."
    caption = " ".join(filter(None, (caption, note, comparison.budget)))
    return _describe(table, columns, caption, best, comparison, [note, comparison.unequal])


def _cells_over_time(seeds: Sequence[Seed], reading: Reading, quantity: Quantity) -> dict[str, str]:
    return {
        _time_column(share, name): _quote(
            [seed for seed in seeds if seed.settings.get(EMBEDDER) == each],
            partial(Seed.mu_w_at, share=share),
            reading,
            rate_of_whole_mu_w(seeds, share, quantity),
            of=average_over_time(quantity).title,
        )
        for share in SHARES
        for each, name in EMBEDDERS.items()
    }


def _time_column(share: float, embedder: str) -> str:
    return f"{percent(share)}{NESTED}{embedder}"


def _augmentation_table(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give the final win rate over seeds of every measured combination of masking and noise, one column per task."""
    reading = options.reading or Reading()
    comparison = _read_finals(db, rows, options)
    seeds = find_studies(comparison.seeds, AUGMENTATION, lambda seed: seed.settings.get(EMBEDDER) == "tcse")
    tasks, final = list(dict.fromkeys(seed.task for seed in seeds)), options.final_rule
    quantity = comparison.quantity
    table = [
        {"p_mask": show_value(p_mask), "σ": show_value(sigma)}
        | {
            task: _quote_final([seed for seed in here if seed.task == task], final, reading, quantity.at(task))
            for task in tasks
        }
        for (p_mask, sigma), here in group_seeds(seeds, *AUGMENTATION).items()
    ]
    best = [(at, task) for task in tasks for at in find_best([row[task] or None for row in table])]
    said = f"A cell is the {reading.say(share=True)}; combinations without a run are not listed."
    caption, about = caption_final(seeds, final, said, of=quantity, at=comparison)
    return _describe(table, ["p_mask", "σ", *tasks], caption, best, comparison, about)


def _quote_final(seeds: Sequence[Seed], final: FinalRule, reading: Reading, quantity: Quantity) -> str:
    number, rate = partial(final_rate, rule=final), rate_of_final(seeds, final, of=quantity)
    return _quote(seeds, number, reading, rate, of=name_final(final, of=quantity))


def _quote(seeds: Sequence[Seed], number: Callable[[Seed], float], reading: Reading, rate: Rate, *, of: str) -> str:
    """Quote one number over seeds: "0.920 ± 0.010 (n = 5)"; an empty text when there is none."""
    numbers = finite(map(number, seeds))
    mark = "" if all(seed.is_result for seed in seeds) else DAGGER
    if not len(numbers):
        return ""
    quoted = quote(numbers, reading, digits=3, rate=rate, of=of)
    return quoted.followed_by(f"{mark} (n = {len(numbers)})")


def _describe(
    table: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    caption: str,
    best: Sequence[tuple[int, str]],
    comparison: Comparison,
    about: Sequence[str] = (),
) -> pd.DataFrame:
    frame = pd.DataFrame(table, columns=pd.Index(columns))
    cells = {name: [row.get(name) for row in table] for name in columns}
    said: Mapping[bool, str] = {True: f" {DAGGER} rests on a run that has not finished and is never bold.", False: ""}
    marked = any(group.unfinished for group in comparison.groups)
    left_out, best = [str(each) for each in comparison.left_out], [] if comparison.mixed else best
    return describe_table(frame, caption=caption + said[marked], best=best, left_out=left_out, about=about, cells=cells)


TABLES = (
    TableKind(
        "mu-w-embedders", _embedders, AT_A_BUDGET | OF_A_RATE,
        needs="finished runs with the gate off that differ in embed.type or memory.delta and in nothing else",
    ),
    TableKind(
        "augmentation", _augmentation_table, AT_THE_END,
        needs="finished runs with embed.type = tcse that differ in embed.p_mask or embed.sigma and in nothing else",
    ),
)  # fmt: skip
