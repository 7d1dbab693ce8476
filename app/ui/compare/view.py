"""The Compare page below the choice of runs: curves, tables, what differs, the paper's numbers, the runs themselves.

One legend for all panels of a comparison; what the reader hides stands in the URL.

The compared runs one by one, sorted as you like; chosen rows become the whole comparison.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
import streamlit as st
from streamlit.components.v2 import component

from app.analysis.aggregates import BAND_NAMES, BANDS, Aggregation, compute_mu_w
from app.analysis.finals import (
    FINAL_MEANINGS,
    FINAL_NAMES,
    FINAL_RULES,
    HIGH_WIN_RATE,
    LOW_WIN_RATE,
    FinalRule,
    compute_final_rate,
    count_falls,
)
from app.analysis.format import escape_markdown
from app.analysis.intervals import CENTER_NAMES, CENTERS, Center
from app.analysis.provenance import describe_runs
from app.analysis.quantities import (
    AUTO,
    EVALUATION_QUANTITIES,
    MU_W,
    SELECTED_MU_W,
    SELECTED_RATE,
    SUCCESS_RATE,
    WIN_RATE,
    RateName,
    find_quantity,
    find_rate,
    get_success_threshold,
    is_mu_w,
    uses_selected_rate,
)
from app.analysis.series import Comparison, SeedRun, choose_mu_w_steps, join_seeds
from app.analysis.settings import parse_steps
from app.analysis.variants import group_variants, list_differences, list_run_code_warnings
from app.analysis.win_rates import (
    PUBLISHED_WARNING,
    list_published_maps,
    tabulate_falls,
    tabulate_mu_w,
    tabulate_win_rates,
    tabulate_with_published,
)
from app.figures.assets import read_asset, read_script
from app.figures.chart_choices import AXES, CurveStyle
from app.figures.named.comparisons import draw_profiles, explain_no_shared_tasks, list_shared_tasks, tabulate_tests
from app.figures.named.curves import draw_comparison, split_panels, style_comparison
from app.ui import data, in_url, messages, state, view
from app.ui.compare import choice
from app.ui.compared import Compared, decided_by_return, read_compared, shared_metrics
from app.ui.state import RUNS
from app.ui.widgets import canvas, config_form, pin, rate_choice, result_table
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

_COUNTS = ("falls", "after")
_COLUMNS = (
    *("variant", "map", "seed", "status", "episodes"),
    *FINAL_NAMES.values(),
    *("μ̄_w", *_COUNTS, "last evaluation", "run", "id"),
)


def show_runs(compared: Compared) -> None:
    """Draw one row for each run with its final and its last win rate, mu_w, and its falls."""
    frame = make_rows(compared)
    picked = st.dataframe(
        frame,
        key="compared_runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            **{
                FINAL_NAMES[rule]: st.column_config.NumberColumn(
                    format=result_table.PERCENT, help=FINAL_MEANINGS[rule].capitalize()
                )
                for rule in FINAL_RULES
            },
            "episodes": st.column_config.TextColumn(help="Which win rate the next columns are of; empty: it has none"),
            "falls": st.column_config.NumberColumn(
                format="localized",
                help=(
                    f"Greedy evaluations below {LOW_WIN_RATE:g} after the first of at least {HIGH_WIN_RATE:g}; "
                    f"empty without one"
                ),
            ),
            "after": st.column_config.NumberColumn(format="localized", help="Of how many evaluations after that one"),
            "μ̄_w": st.column_config.NumberColumn(
                format="%.3f", help="Of these episodes, up to the last evaluation; Home and SQL have the greedy one"
            ),
            "last evaluation": st.column_config.NumberColumn(format="localized", help="Env step"),
        },
        alt="One row for each compared run. Choose rows to compare only them.",
    )
    rows = [row for row in picked["selection"]["rows"] if row < len(frame)]
    chosen = [str(frame["id"].iloc[row]) for row in rows]
    st.button(
        f"Compare only the {len(chosen)} chosen" if chosen else "Choose rows to compare only them",
        disabled=not chosen,
        key="compare_chosen",
        on_click=choice.choose,
        args=(chosen,),
    )


def make_rows(compared: Compared) -> pd.DataFrame:
    """List the runs by variant with what they reached."""
    rows, rated = [], {seed.id: seed for seed in compared.rated.seeds}
    for group in join_seeds(compared.greedy, include_unfinished=True).groups:
        episodes = compared.rated.quantity.at(group.variant.task).episodes
        for seed in group.seeds:
            row = compared.rows[seed.id]
            fallen = dict(zip(_COUNTS, count_falls(seed.curve) or (None, None), strict=True))
            about = {"variant": group.variant.name, "map": group.variant.task, "seed": row.seed}
            reached = _outcome(rated.get(seed.id), episodes) | fallen | {"last evaluation": int(seed.curve.steps[-1])}
            rows.append(about | {"status": row.live_status} | reached | {"run": row.name, "id": seed.id})
    return pd.DataFrame(rows, columns=pd.Index(_COLUMNS)).astype(dict.fromkeys(_COUNTS, "Int64"))


def _outcome(seed: SeedRun | None, episodes: str) -> dict[str, str | float]:
    """List the win rates of a run by column; nothing where it has none of these episodes."""
    if seed is None or not len(seed.curve.steps):
        return {}
    finals = {FINAL_NAMES[rule]: 100 * compute_final_rate(seed, rule) for rule in FINAL_RULES}
    return {"episodes": episodes, **finals, "μ̄_w": float(compute_mu_w(seed.curve)[-1])}


HIDDEN = "hide"

_legend = component(
    "emtc_lab_legend",
    html='<div class="legend" role="group" aria-label="Lines"></div>',
    css=read_asset("legend.css"),
    js=read_script("legend.js"),
)


def show_legend(comparison: Comparison, *, key: str) -> Comparison:
    """Draw a button for each method and return the comparison without the hidden ones.

    A press hides a line, resting on its button lets it stand out in every panel.
    """
    styles = style_comparison(comparison)
    hidden = set(state.read_list(HIDDEN, separator=""))
    items = [
        {
            "name": method,
            "label": comparison.name_line(method),
            "color": styles[method].color,
            "dash": list(styles[method].dash or ()) or None,
            "marker": styles[method].marker or None,
            "hidden": method in hidden,
        }
        for method in comparison.methods
    ]

    def toggled() -> None:
        heard = st.session_state.get(key)
        name = heard.get("toggle") if heard else None
        if name:
            state.write_list(HIDDEN, sorted(hidden ^ {str(name)}), separator="")

    _legend(key=key, data={"items": items}, on_toggle_change=toggled)
    return comparison.without(hidden)


_PANEL = 260
_WON = (
    "Won is what the environment says. Where the return decides what a success is, choose the quantity "
    f"*{SUCCESS_RATE}* above."
)


def show(run_ids: list[str]) -> None:
    """Draw everything about these runs."""
    drawn, reading, per_seed, unfinished, look = _controls(run_ids)
    compared = read_compared(run_ids, drawn.key, drawn.rate)
    _curves(compared, drawn, reading, look, per_seed=per_seed, unfinished=unfinished)
    final, budget = choice.ask_end(compared.lengths(include_unfinished=unfinished))
    rated = compared.ends(include_unfinished=unfinished, budget=budget)
    choice.tell_lengths(rated)
    results, times, comparisons, settings, paper, runs = st.tabs(
        ["Win rates", "μ̄_w", "Statistics", "Settings that differ", "Beside the paper", "Runs"],
        key="part",
        on_change="rerun",
        bind="query-params",
    )
    with results, messages.guarded():
        if any(get_success_threshold(config) is not None for config in compared.configs.values()):
            st.caption(_WON)
        result_table.show(tabulate_win_rates(rated, reading, final), key="win-rates", stem="win-rates")
        greedy = compared.greedy_ends(include_unfinished=unfinished, budget=budget)
        result_table.show(tabulate_falls(greedy, reading), key="falls", stem="falls")
    with times, messages.guarded():
        _mu_w(compared, reading, unfinished=unfinished)
    if comparisons.open:  # thousands of draws: only when it is looked at
        with comparisons, messages.guarded():
            _statistics(rated, compared.rows, final)
    with settings, messages.guarded():
        _differences(compared)
    with paper, messages.guarded():
        _published(compared.greedy_ends(include_unfinished=unfinished, budget=budget), reading, final)
    with runs, messages.guarded():
        show_runs(compared)
    pin.show_more("compare", list(compared.rows.values()), rate=drawn.rate)


class _Drawn(NamedTuple):
    """What was chosen to be drawn: the key of a quantity, and which win rate the runs are compared by."""

    key: str
    rate: RateName


def _controls(run_ids: list[str]) -> tuple[_Drawn, Aggregation, bool, bool, CurveStyle]:
    keys = [SELECTED_RATE, SELECTED_MU_W, *EVALUATION_QUANTITIES, *shared_metrics(run_ids)]
    if SUCCESS_RATE in keys and decided_by_return(run_ids):
        keys = [SUCCESS_RATE, *(key for key in keys if key != SUCCESS_RATE)]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        key = st.selectbox(
            "Quantity", keys, format_func=_name_quantity, width=270, **in_url.key_of("compare", "y", keys),
            help="Evaluations, or any number that the runs logged; the Method page explains each.",
        )  # fmt: skip
        rate = rate_choice.choose_rate(
            "compare", more="Falls and the numbers beside the paper are always of greedy episodes."
        )
        center = st.segmented_control(
            "Line over seeds",
            CENTERS,
            required=True,
            format_func=CENTER_NAMES.__getitem__,
            **in_url.key_of("compare", "center", CENTERS),
        )
        band = st.selectbox(
            "Band over seeds",
            BANDS,
            format_func=BAND_NAMES.__getitem__,
            width=200,
            **in_url.key_of("compare", "band", BANDS),
        )
        with st.container(width="content", gap="xxsmall"):
            per_seed = st.toggle("Each seed", key="each", bind="query-params", help="A thin line for every single run")
            unfinished = st.toggle(
                "Unfinished runs", key="unfinished", bind="query-params",
                help="Count runs that have not reached their last step, marked †; a line ends where its shortest does.",
            )  # fmt: skip
        look = _ask_look()
    middle: Center = next(each for each in CENTERS if each == center)
    return _Drawn(str(key), rate), Aggregation(middle, band), per_seed, unfinished, look


def _ask_look() -> CurveStyle:
    with st.popover("Smoothing, axes", icon=":material/tune:", key="look"):
        smooth = config_form.integer_field(
            "Smooth over [env steps]", key="smooth", page="compare", default=0, low=0, high=10**9,
            help_text="Each point is the mean of its seed over this many env steps before it, e.g. 20k; empty: no "
            "smoothing. The unsmoothed values are drawn faintly.",
        )  # fmt: skip
        log = st.pills("Logarithmic axes", **in_url.several("compare", "log", AXES), selection_mode="multi")
    return CurveStyle(smooth or 0, tuple(axis for axis in AXES if axis in log))


def _name_quantity(key: str) -> str:
    quantity = find_quantity({SELECTED_RATE: WIN_RATE.key, SELECTED_MU_W: MU_W.key}.get(key, key))
    greedy = "greedy " if key in (WIN_RATE.key, MU_W.key) else ""
    return f"{greedy}{quantity.title} [{quantity.unit}]"


def _curves(
    compared: Compared, drawn: _Drawn, reading: Aggregation, look: CurveStyle, *, per_seed: bool, unfinished: bool
) -> None:
    quantity, comparison = compared.drawn.quantity, compared.curves(include_unfinished=unfinished)
    if not comparison.groups:
        messages.empty(
            "None of these runs has a point of this quantity yet.",
            "Choose another quantity or other runs; a first evaluation follows the first training round.",
        )
        return
    place = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
    comparison = show_legend(comparison, key="legend")
    chart = draw_comparison(comparison, reading, per_seed=per_seed, look=look)
    window = state.read_window()
    shown = chart.keep_window(window)
    used = {seed.id: compared.rows[seed.id] for seed in comparison.seeds}
    with place:
        st.subheader(chart.title)
        with st.container(horizontal=True, width="content", gap="small"):
            stem, sources = quantity.key.replace("/", "-"), describe_runs(used.values())
            pin.show_export(shown, key="compare", stem=stem, sources=sources)
            facts = {"quantity": drawn.key, "center": reading.center, "band": reading.band, "window": window}
            facts |= {"rate": drawn.rate} if uses_selected_rate(drawn.key) else {}
            facts |= {name: value for name, value in (("smooth", look.smooth), ("log", "".join(look.log))) if value}
            pin.show(shown, key="compare", page="compare", run=list(used.values()), facts=facts)
    together = canvas.Place("compare")
    columns = st.columns(min(2, len(chart.panels))) if comparison.groups else []
    for i, part in enumerate(split_panels(chart) if comparison.groups else []):
        with columns[i % len(columns)]:
            canvas.show(
                part, key=f"compare-{part.panels[0].title}", window=window, panel_height=_PANEL, legend=False,
                on_window=lambda chosen: state.write_window(chosen or None), place=together,
            )  # fmt: skip
    st.caption(escape_markdown(chart.caption) + " Drag over a panel to zoom all of them; a double click shows all.")
    configs = compared.configs
    for doubt in list_run_code_warnings({run_id: configs[run_id] for run_id in used}):
        st.warning(escape_markdown(doubt), icon=":material/difference:")
    _command(list(used), drawn, reading, look, unfinished=unfinished)


def _command(run_ids: list[str], drawn: _Drawn, reading: Aggregation, look: CurveStyle, *, unfinished: bool) -> None:
    rate, figure = find_rate(drawn.key, drawn.rate), "mu-w" if is_mu_w(drawn.key) else "learning-curves"
    if rate is None or any(map(view.is_bundle_run, run_ids)):  # the command line reads one database
        return
    with st.expander("The same figure on the command line", icon=":material/terminal:"):
        options = f"--figure {figure} --center {reading.center} --band {reading.band}"
        options += f"{f' --rate {rate}' if rate != AUTO else ''}"
        options += f"{f' --set smooth={look.smooth}' if look.smooth else ''}"
        options += f"{' --set log=' + ''.join(look.log) if look.log else ''}"
        options += f"{' --include-unfinished' if unfinished else ''} --out {figure}.pdf"
        st.code(f"emtc export {' '.join(run_ids)} {options}", language=None, wrap_lines=True)


def _mu_w(compared: Compared, reading: Aggregation, *, unfinished: bool) -> None:
    everything = join_seeds(*compared.rated, include_unfinished=True)
    usual = choose_mu_w_steps(compared.ends(include_unfinished=unfinished).groups or everything.groups)
    text = st.text_input(
        "At env steps", key="at", bind="query-params", placeholder=", ".join(map(str, usual)) or "50000, 100000",
        help="For example 0.8M, 1.6M, 2.4M. Empty: the paper's steps if every run reached them, else quarters.",
    )  # fmt: skip
    times = parse_steps(text or "")
    if text and not times:
        st.error("Env steps must be written as 50000, 0.8M or 100k, with commas between them.")
    result_table.show(tabulate_mu_w(everything, times or usual, reading), key="mu-w", stem="mu-w")


def _statistics(comparison: Comparison, rows: Mapping[str, RunRow], final: FinalRule) -> None:
    if len(comparison.methods) < 2:
        st.info("Tests compare two variants at least; choose more runs.")
        return
    result_table.show(tabulate_tests(comparison, final), key="comparisons", stem="comparisons")
    if not list_shared_tasks(comparison):
        st.info(escape_markdown(explain_no_shared_tasks(comparison)), icon=":material/info:")
        return
    profiles = draw_profiles(comparison, final)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {profiles.title}")
        sources = describe_runs(rows[seed.id] for seed in comparison.seeds)
        pin.show_export(profiles, key="profiles", stem="compare", sources=sources)
    canvas.show(profiles, key="profiles", panel_height=_PANEL, x_name=profiles.x_label)
    st.caption(escape_markdown(profiles.caption))


def _differences(compared: Compared) -> None:
    variants = group_variants(compared.configs)
    frame = list_differences(compared.configs, variants)
    if frame.empty:
        st.info("These runs are configured alike, seed included.")
        return
    st.caption("Only what differs, of settings and code; – means that the run knew no such setting or left it open.")
    st.dataframe(frame, hide_index=True, alt="Settings that differ between the compared variants.")


def _published(comparison: Comparison, reading: Aggregation, final: FinalRule) -> None:
    frame = tabulate_with_published(comparison, reading, final)
    st.warning(PUBLISHED_WARNING, icon=":material/info:")
    if frame.empty:
        st.markdown(
            "The paper prints no win rate for these maps. It has: "
            + ", ".join(f"`{name}`" for name in list_published_maps())
            + "."
        )
        return
    result_table.show(frame, key="published", stem="beside-the-paper")


NEWEST = 10


def show_newest() -> None:
    """Draw the newest runs' curves below Home's table, when at least one was evaluated."""
    newest = list(data.run_names(RunFilter(shelf="drawn", evaluated=True), NEWEST)[0])
    compared = read_compared(newest, SELECTED_RATE)
    comparison = compared.curves(include_unfinished=False)
    chart = draw_comparison(comparison, per_seed=True, name="win-rates", title="Win rate of the last runs")
    if chart.is_empty:
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader("The last runs compared")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            st.page_link(
                "../pages/compare.py",
                label="Open in Compare",
                icon=":material/stacked_line_chart:",
                query_params=view.link({RUNS: ",".join(newest)}),
            )
            sources = describe_runs(compared.rows.values())
            pin.show_export(chart, key="compare", stem="last-runs", sources=sources)
    canvas.show(chart, key="compare", panel_height=240)
    st.caption(escape_markdown(chart.caption))
