"""What stands under a figure, pin and export, and the registered figures that a page has no widgets of its own for.

One press on the pin keeps a figure in the notebook with a note and the exact view it came from. The export button
gives vector and raster images, an interactive page, and the data.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import streamlit as st

from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.analysis.quantities import AUTO, RateName
from app.figures.figure import NO_OPTIONS, FigureKind, Options
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.registry import list_page_figures
from app.figures.render.export import EXPORT_FORMATS, MIME, ExportFormat, export_figure
from app.figures.render.plotly_view import to_plotly
from app.figures.theme import Mode
from app.notebook.view import RATED_PAGES, Figure, freeze, make_view
from app.ui import data, in_url, messages, state, view
from app.ui.widgets import canvas, rate_choice
from emtc_core.errors import ConfigError, EmtcError
from storage.notebook import create_entry
from storage.runs.rows import RunRow

_LABELS: dict[ExportFormat, str] = {
    "svg": "SVG, vector",
    "png": "PNG, 300 dpi",
    "pdf": "PDF, vector",
    "html": "HTML, interactive",
    "csv": "CSV, the data",
}


def show_export(figure: AnyFigure, *, key: str, stem: str, sources: Sequence[str] = ()) -> None:
    """Offer the figure in every format; a file is made only when it is asked for and names its `sources`, the runs."""
    with st.popover("Export", icon=":material/download:", key=f"{key}-export"):
        st.caption("Drawn on this machine, no browser needed. Light is the paper version.")
        mode: Mode = "dark" if st.toggle("Dark background", key=f"{key}-export-dark") else "light"
        for format in EXPORT_FORMATS:
            st.download_button(
                _LABELS[format],
                data=_writer(figure, format, mode, sources),
                file_name=f"{figure.name}-{stem}.{format}",
                mime=MIME[format],
                key=f"{key}-export-{format}",
                on_click="ignore",
                width="stretch",
            )


def _writer(figure: AnyFigure, format: ExportFormat, mode: Mode, sources: Sequence[str]) -> Callable[[], bytes]:
    return partial(export_figure, figure, format, mode=mode, sources=sources)


LONGEST_TITLE = 200
_Cited = RunRow | Sequence[RunRow] | None


def show(figure: Figure, *, key: str, page: str, run: _Cited = None, facts: Mapping[str, Any] | None = None) -> None:
    """Offer to keep the figure as it is drawn now.

    Args:
        figure: What the page shows.
        key: Unique among the figures of the page.
        page: The page's path, such as "live".
        run: The run or runs that it shows.
        facts: What the notebook's recipe needs to rebuild it beside the runs, as JSON values.
    """
    name = f"{key}-pin"
    with st.popover("Pin", icon=":material/keep:", key=name, help="Keep this figure and view in the notebook"):
        made: tuple[int, str] | None = st.session_state.get(f"{name}-made")
        if made is not None and st.session_state.pop(f"{name}-fresh", False):  # told even if the view has moved on
            st.toast(f"Pinned as entry {made[0]} of the notebook.", icon=":material/keep:")
        if made is not None and made[1] == _mark(figure):
            _report(name, made[0])  # in place of the form, so that the second half of a double press hits nothing
        else:
            _ask(figure, name, page, run, dict(facts or {}))


def show_with_export(
    figure: Figure, *, key: str, stem: str, page: str, run: _Cited = None, facts: Mapping[str, Any] | None = None
) -> None:
    """Draw the export button and the pin side by side."""
    with st.container(horizontal=True, width="content", gap="small"):
        show_export(figure, key=key, stem=stem)
        show(figure, key=key, page=page, run=run, facts=facts)


def _ask(figure: Figure, name: str, page: str, run: _Cited, facts: dict[str, Any]) -> None:
    token = str(st.session_state.setdefault(f"{name}-token", uuid4().hex))
    with st.form(f"{name}-form-{token}", border=False):
        st.text_input("Title", max_chars=LONGEST_TITLE, placeholder=figure.title, key=f"{name}-title-{token}")
        st.text_area("Note", placeholder="Markdown, maths as $β = 1$", height=120, key=f"{name}-note-{token}")
        st.form_submit_button(
            "Pin to notebook",
            type="primary",
            disabled=not messages.may_act(),
            key=f"{name}-save-{token}",
            on_click=_save,
            args=(figure, name, token, page, run, facts),
        )
    if (told := st.session_state.get(f"{name}-told")) is not None:
        st.error(escape_markdown(str(told)), icon=":material/error:")


def _save(figure: Figure, name: str, token: str, page: str, run: _Cited, facts: dict[str, Any]) -> None:
    """Write the entry; the same token a second time makes nothing new."""
    runs = [run] if isinstance(run, RunRow) else list(run or ())
    title = str(st.session_state.get(f"{name}-title-{token}") or figure.title)[:LONGEST_TITLE]
    try:
        made = create_entry(
            data.database(),
            title=title,
            body=str(st.session_state.get(f"{name}-note-{token}") or ""),
            run_id=runs[0].id if len(runs) == 1 and not view.is_bundle_run(runs[0].id) else None,
            figure=freeze(figure),
            view=make_view(page=page, figure=figure.name, query=_address(page, runs), runs=runs, facts=facts),
            token=token,
        )
    except EmtcError as exc:
        st.session_state[f"{name}-told"] = str(exc)
        return
    st.session_state[f"{name}-made"] = (made, _mark(figure))
    st.session_state[f"{name}-fresh"] = True
    st.session_state[f"{name}-token"] = uuid4().hex
    st.session_state.pop(f"{name}-told", None)


def _mark(figure: Figure) -> str:
    """A text that this view of this figure has and no other."""
    return repr((figure.name, figure.title, figure.caption, sorted(_query().items())))


def _query() -> dict[str, list[str]]:
    """Read the whole URL state."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _address(page: str, runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """The URL state, with the runs even where the page chose them by itself: later runs must not join the view."""
    query = ({rate_choice.PARAMETER: [AUTO]} if page in RATED_PAGES else {}) | _query()
    if page == "compare":
        return query | {state.RUNS: [",".join(run.id for run in runs)]}
    return query | ({state.RUN: [runs[0].id]} if len(runs) == 1 else {})


def _report(name: str, made: int) -> None:
    st.success(f"Kept as entry {made}.", icon=":material/check:")
    st.page_link(
        "../pages/notebook.py",
        label="Open the notebook",
        icon=":material/menu_book:",
        query_params={"entry": str(made)},
    )
    st.button("Pin once more", key=f"{name}-more", on_click=st.session_state.pop, args=(f"{name}-made", None))


_PANEL = 190


def show_figure(figure: AnyFigure, *, key: str, x_name: str = "") -> None:
    """Draw a figure with its caption: curves on the canvas of the pages, everything else by Plotly."""
    if isinstance(figure, Chart):
        short = "env step" if "env step" in figure.x_label else figure.x_label.partition(",")[0]
        canvas.show(figure, key=key, panel_height=_PANEL, x_name=x_name or short)
    else:
        mode: Mode = "dark" if st.context.theme.type == "dark" else "light"
        drawn = to_plotly(figure, mode=mode).update_layout(title=None, margin={"t": 40})
        st.plotly_chart(drawn, key=key, theme=None, config={"displayModeBar": False})
    st.caption(escape_markdown(figure.caption))


def show_more(page: str, runs: Sequence[RunRow], *, rate: RateName = AUTO) -> None:
    """Offer the registered figures of a page, each by its question; one is made when it is chosen.

    Args:
        page: The page's path, such as "compare".
        runs: What they are made of.
        rate: Which win rate, for those that are made of one.
    """
    kinds = {kind.name: kind for kind in list_page_figures(page)}
    runs = [run for run in runs if not view.is_bundle_run(run.id)]  # a figure is made of one database
    if not kinds or not runs:
        return
    box = st.expander("More figures", icon=":material/insights:", key="more_figures", bind="query-params")
    if not box.open:
        return
    with box, messages.guarded():
        chosen = st.selectbox(
            "Question", **in_url.one(page, "more_figure", ["", *kinds]),
            format_func=lambda name: kinds[name].question if name else "Choose a question",
        )  # fmt: skip
        if chosen:
            _draw(kinds[chosen], runs, page, rate)


def _draw(kind: FigureKind, runs: Sequence[RunRow], page: str, rate: RateName) -> None:
    has_rate = "rate" in kind.supported_options
    try:
        with st.spinner("Drawing …"):
            figure = kind.make(data.database(), runs, Options(rate=rate) if has_rate else NO_OPTIONS)
    except ConfigError as exc:  # it does not apply to these runs, which is no failure
        st.info(escape_markdown(str(exc)), icon=":material/info:")
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(figure.title)}")
        with st.container(horizontal=True, width="content", gap="small"):
            show_export(figure, key=f"more-{kind.name}", stem=page, sources=describe_runs(runs))
            facts = {"rate": rate} if has_rate else {}
            show(figure, key=f"more-{kind.name}", page=page, run=runs, facts=facts)
    show_figure(figure, key=f"more-{kind.name}")
    names = " ".join(run.id for run in runs)
    option = f" --rate {rate}" if has_rate and rate != AUTO else ""
    st.code(f"emtc export {names} --figure {kind.name}{option} --out {kind.name}.pdf", language=None, wrap_lines=True)
