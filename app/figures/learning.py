"""Learning curves over seeds: one panel for each task, one line for each variant, a band over its seeds."""

from collections.abc import Sequence
from dataclasses import replace

from app.comparison import WIN_RATE, Group, Quantity, list_tasks, name_line
from app.figures.chart import Chart, Line, Panel
from app.seed_statistics import Curve, Reading, align
from app.theme import Dash, style_methods

X_LABEL = "training env steps"


def draw_comparison(
    groups: Sequence[Group],
    quantity: Quantity = WIN_RATE,
    reading: Reading | None = None,
    *,
    per_seed: bool = False,
    name: str = "learning-curves",
    title: str = "",
    note: str = "",
) -> Chart:
    """Draw a quantity of every variant: its centre over seeds, a band, and each seed as a faint line when wanted.

    Args:
        groups: Variants with the curves of their seeds.
        quantity: What the curves are.
        reading: Centre and band; mean ± standard deviation when missing.
        per_seed: Draw each seed too.
        name: Of the chart and its files.
        title: Over the figure; made from the quantity when missing.
        note: A last sentence of the caption.
    """
    reading = reading or Reading()
    styles = style_methods([group.variant.method for group in groups])
    tasks = list_tasks(groups)
    panels = []
    for task in tasks:
        lines: list[Line] = []
        for group in (each for each in groups if each.variant.task == task):
            style = styles[group.variant.method]
            named = name_line(groups, group.variant.method)
            lines += [*(_seeds(group, style) if per_seed else []), _line(group, named, reading, style)]
        panels.append(Panel(f"{quantity.title}, {task}", quantity.unit, tuple(lines), range=quantity.range))
    panels = panels or [Panel(quantity.title, quantity.unit, ())]
    described = f"{quantity.title} over {X_LABEL}, one panel for each of {', '.join(tasks)}: " + ", ".join(
        f"{group.variant.label} (n = {group.n})" for group in groups
    )
    title = title or ("Learning curves" if quantity is WIN_RATE else f"{quantity.title} over training")
    caption = " ".join(filter(None, (describe_reading(groups, quantity, reading), note)))
    return Chart(name, title, X_LABEL, tuple(panels), caption, f"{described}.", columns=min(3, len(tasks)) or 1)


def split_panels(chart: Chart) -> list[Chart]:
    """Give each panel a chart of its own, so that each task has its own x axis on the page."""
    return [replace(chart, panels=(panel,), columns=1) for panel in chart.panels]


def describe_reading(groups: Sequence[Group], quantity: Quantity, reading: Reading) -> str:
    """Say what was averaged over what, what the band is, and over how many seeds."""
    what = quantity.meaning[:1].upper() + quantity.meaning[1:]
    each = "episodes are averaged per seed first" if quantity.is_evaluation else "each seed is one curve"
    counts = sorted({group.n for group in groups}) or [0]
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    band = "" if reading.band == "none" else " A single seed has no band."
    if reading.band == "ci":
        band = " The interval resamples whole seeds, 2000 times." + band
    return f"{what}; {each}, then the line is the {reading} ({n} seeds, in the legend).{band}"


def _line(group: Group, name: str, reading: Reading, style: tuple[str, Dash]) -> Line:
    steps, values = align(group.curves)
    summary = reading.summarize(values)
    return Line(name, style[0], steps, summary.center, summary.low, summary.high, dash=style[1])


def _seeds(group: Group, style: tuple[str, Dash]) -> list[Line]:
    def line(run_id: str, curve: Curve) -> Line:
        return Line(f"{group.variant.method}, {run_id}", style[0], *curve, width=1.0, faint=True)

    if group.n < 2:
        return []
    return [line(run_id, curve) for run_id, curve in zip(group.run_ids, group.curves, strict=True)]
