"""The result of a sweep: its best variants, the figure of its study, and folded tables with intervals and verdicts.

A study is here a figure that the sweep file names, with its table: for example the ablation of the paper.
"""

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.best_variants import describe_best_variants
from app.analysis.curves import RunTables
from app.analysis.format import escape_markdown
from app.analysis.published import PublishedStudy, find_published
from app.analysis.tables import Table
from app.analysis.varied_settings import list_varied_settings
from app.figures.named.comparisons import ComparisonOptions
from app.figures.named.curves import read_finals, read_run_tables
from app.figures.named.setting_effect import SettingEffectOptions
from app.figures.options import RateOptions, ResultOptions, SeedResultOptions
from app.figures.registry import TABLES, find_figure
from app.ui import data, messages
from app.ui.page_state import Choice, Flag
from app.ui.widgets import pin, reference_choice, result_table
from app.ui.widgets.option_widget import OptionWidget
from storage.runs.rows import RunRow
from storage.runs.sweeps import Sweep, sweep_runs

_STUDY: Final = Choice("study", "sweeps")
_RATE: Final = OptionWidget(RateOptions, "rate", "sweeps", kind="buttons", pins_default=True)
_SETTING: Final = OptionWidget(SettingEffectOptions, "setting", "sweeps")
_SHOWS_RESULT: Final = Flag("result", "sweeps")
_SHOWS_TRIALS: Final = Flag("trial_rates", "sweeps")
_DEFAULT: Final = "own"
"""Value of the URL parameter `study` that selects the study that the sweep file names."""
_SETTING_EFFECT: Final = "setting-effect"
_STUDY_NAMES: Final = {
    "lambda-heatmap": "Loss weights: heat map",
    "tau-study": "Gate temperature",
    "augmentation": "Augmentation",
    "delta-embedder": "Merge radius by embedder",
    "ablation": "Ablation",
    "learning-curves": "Learning curves",
    _SETTING_EFFECT: "Win rate by setting",
}
_FIGURES: Final = {"delta-embedder": "mu-w-by-delta"}
"""Study → name of its figure, if the names differ. mu_w is the time average of the win rate, δ the merge radius."""
_TABLES: Final = {"augmentation": "augmentation", "delta-embedder": "mu-w-embedders"}
"""Study → name of its table. The other studies have only a figure."""
_TEST_TITLES: Final = ("task", "against", "n", "difference [%]", "p (Holm)", "verdict")
"""Columns of the table of comparisons on the page; the select box names the reference variant."""
_X_NAMES: Final = {"mu-w-by-delta": "log₁₀ δ"}
"""Figure → name of its x axis in the tooltip, if it is not env steps."""


def show(sweep: Sweep) -> None:
    """Draw the best variants, the figure of a study, and its tables. The default study is that of the sweep file.

    The trials of a search have one seed each, so its figure is folded and there is no result over seeds.
    """
    runs = sweep_runs(data.database(), sweep.id)
    if all(run.win_rate is None for run in runs):
        messages.empty("No run of this sweep has been evaluated yet.", "The result appears after the first evaluation.")
        return
    if not sweep.trials:
        _show_study(sweep, runs)
        return
    box = st.expander("Win rates of the trials", icon=":material/stacked_line_chart:", **_SHOWS_TRIALS.bind())
    if box.open:
        with box:
            _show_study(sweep, runs)


def _show_result(sweep: Sweep, tables: RunTables, options: ResultOptions) -> None:
    """Draw the final win rates with intervals, and the differences to a reference variant with verdicts; folded."""
    box = st.expander("Final win rates and differences", icon=":material/table_rows:", **_SHOWS_RESULT.bind())
    if not box.open:
        return
    with box, messages.guarded():
        rates = TABLES["win-rates"].tabulate(tables, SeedResultOptions(rate=options.rate, band="ci"))
        result_table.show(rates, key="sweep-win-rates", stem=f"win-rates-{sweep.id}")
        reference = reference_choice.choose_reference(read_finals(tables, options, options.rate))
        tests = TABLES["comparisons"].tabulate(tables, ComparisonOptions.select({"rate": options.rate, **reference}))
        if len(tests):
            result_table.show(tests, key="sweep-comparisons", stem=f"comparisons-{sweep.id}", titles=_TEST_TITLES)


def _show_study(sweep: Sweep, runs: Sequence[RunRow]) -> None:
    """Draw the best variants, one figure with its options, and the folded tables."""
    sentences = st.container(gap="xsmall")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        title = st.empty()
        buttons = st.container(horizontal=True, width="content", gap="small")
    with buttons, st.popover("Figure", icon=":material/tune:"):
        rate = _RATE.draw()
        options = ResultOptions(rate=rate)
        tables = read_run_tables(data.database(), runs, options)
        study, values = _choose_study(sweep, tables, options)
    if not sweep.trials:
        for sentence in describe_best_variants(read_finals(tables, options, rate)):
            sentences.markdown(f"**{escape_markdown(sentence)}**")
    kind = find_figure(_FIGURES.get(study, study))
    with messages.guarded():
        figure = kind.make(data.database(), runs, kind.options.select(values))
        title.markdown(f"#### {escape_markdown(figure.title)}")
        key = f"sweep-{figure.name}-{sweep.id}"
        with buttons:
            pin.show_with_export(figure, key=key, stem=sweep.id, page="sweeps", run=runs, facts=values)
        pin.show_figure(figure, key=key, x_name=_X_NAMES.get(figure.name, ""), bands="pointed")
    if not sweep.trials:
        _show_result(sweep, tables, options)
    if study in _TABLES:
        with st.expander(f"Table: {_STUDY_NAMES[study]}", icon=":material/table:"), messages.guarded():
            table_kind = TABLES[_TABLES[study]]
            table = table_kind.make(data.database(), runs, table_kind.options.select(values))
            _show_table(table, key=f"sweep-{study}")
    env = str(sweep.plan.get("file", {}).get("env", ""))
    if (published := find_published(study, env)) is not None:
        _show_published(published, env=env or "skirmish")
    pin.show_more_figures("sweeps", runs, rate=rate)


def _choose_study(sweep: Sweep, tables: RunTables, options: ResultOptions) -> tuple[str, dict[str, str]]:
    """Draw the select boxes of the figure; return its study and the values of its options."""
    sweep_file = sweep.plan.get("file", {})
    default = str(sweep_file.get("study", ""))
    if default not in _STUDY_NAMES:
        default = "learning-curves"
    names = {_DEFAULT: f"Study of this sweep: {_STUDY_NAMES[default]}", **_STUDY_NAMES}
    selected = st.selectbox(
        "Figure", **_STUDY.bind(list(names), names.__getitem__),
        help="A study reads the settings of the runs, so other studies may apply too.",
    )  # fmt: skip
    study = default if str(selected) == _DEFAULT else str(selected)
    values = {"rate": options.rate}
    settings: list[str] = []
    if study == _SETTING_EFFECT:
        settings = list_varied_settings(read_finals(tables, options, options.rate))
    if settings:
        random_ranges = (sweep_file.get("random") or {}).get("ranges", {})
        swept = {*sweep_file.get("grid", {}), *random_ranges}
        settings.sort(key=lambda key: key not in swept)  # first the settings that the sweep varies; a stable sort
        values["setting"] = str(_SETTING.draw(settings))
    return study, values


def _show_table(table: Table, *, key: str) -> None:
    if not len(table):
        return

    def style_column(cells: pd.Series) -> list[str]:
        return ["font-weight: bold" if (row, cells.name) in table.best else "" for row in range(len(cells))]

    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.caption(escape_markdown(table.caption))
        result_table.download(table, key=key, stem=key)
    frame = result_table.make_text_frame(table)
    st.dataframe(frame.style.apply(style_column, axis=0), hide_index=True, key=f"{key}-table")
    result_table.show_excluded(table)


def _show_published(published: PublishedStudy, *, env: str) -> None:
    with st.expander("Numbers of the paper", icon=":material/article:"):
        st.markdown(f"**The paper**, on {escape_markdown(published.source)}")
        st.markdown(escape_markdown(published.note))
        if len(published.table):
            st.dataframe(published.table, hide_index=True, key="sweep-published")
        if env == "skirmish":
            st.caption("Our numbers are from the embedded simulator, not from that game. Compare ranks, not values.")
