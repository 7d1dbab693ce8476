"""The buttons *Pin* and *Export* of a figure, and the expander *More figures* of a page.

*Pin* creates an entry of the research notebook: the figure, a note, and the view of the page, which are its parameters
in the URL. *Export* writes vector and raster images, an interactive HTML page, and the data as CSV. Both buttons open a
box, which is a popover whose content is drawn only after it was opened (`app.ui.widgets.box`).

With `icons`, `show_with_export` draws the two buttons as icons. They are visible while the pointer is on the container
of `make_panel` that contains them, or while the keyboard focus is in it; on touch screens always. See page.css.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal
from uuid import uuid4

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import escape_markdown, write_minus_signs
from app.analysis.provenance import describe_runs
from app.analysis.quantities import AUTO, RateName
from app.figures.figure import FigureKind
from app.figures.image_options import DEFAULT_IMAGE_OPTIONS, ImageOptions, replace_labels
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.options import RateOptions
from app.figures.registry import list_page_figures, write_command
from app.figures.render.export import EXPORT_FORMATS, MIME, ExportFormat, describe_figure, export_figure
from app.figures.render.plotly_view import to_plotly
from app.figures.theme import Mode
from app.notebook.view import Figure, freeze, make_view
from app.ui import data, messages, page_state, view
from app.ui.page_state import RUN, RUNS, Choice, Flag
from app.ui.widgets import box, canvas, files
from app.ui.widgets.result_table import show_notes
from emtc_core.errors import ConfigError, EmtcError
from storage.notebook import create_entry
from storage.runs.rows import RunRow

_Runs = RunRow | Sequence[RunRow] | None
"""The run or the runs in a figure; None: the figure shows no run."""
_LABELS: dict[ExportFormat, str] = {
    "svg": "SVG, vector",
    "png": "PNG, 300 dpi",
    "pdf": "PDF, vector",
    "html": "HTML, interactive",
    "csv": "CSV, data",
}
_SHOWS_MORE_FIGURES = Flag("more_figures")
_SELECTED_FIGURE = Choice("more_figure")
_WIDTH = "export_width"
"""Key of the session state: the last selected width of an image, as a text such as "3.25in"."""
_MAX_TITLE_LENGTH = 200
_PANEL_HEIGHT = 190  # [pixels]


def show_export(
    figure: AnyFigure | Callable[[], AnyFigure],
    *,
    key: str,
    stem: str,
    sources: Sequence[str] = (),
    label: str = "Export",
    help: str | None = None,
    show_more: Callable[[], None] | None = None,
) -> None:
    """Draw a download button for each format; a file is made when its button is pressed.

    Args:
        figure: The figure, or a function that makes it and is called only while the box is open.
        key: Unique among the figures of the page.
        stem: End of the file name, after the name of the figure.
        sources: Descriptions of the runs, which the file contains.
        label: Text of the button that opens the box.
        help: Tooltip of this button.
        show_more: Draws more content at the end of the box, for example a command.
    """
    export = _show_box(label, figure, icon=":material/download:", key=f"{key}-export", help=help)
    if not export.is_opened:
        return
    with export.container, messages.guarded():
        _show_downloads(figure() if callable(figure) else figure, key, stem, sources)
        if show_more is not None:
            show_more()


def _show_box(label: str, figure: Figure | Callable[[], Figure], **options: Any) -> box.Box:
    """Draw a box. If the figure exists already, its content is fast to draw: draw it at once, in a simple popover."""
    if callable(figure):
        return box.show(label, **options)
    return box.Box(st.popover(label, **options), is_opened=True)


def _show_downloads(figure: AnyFigure, key: str, stem: str, sources: Sequence[str] = ()) -> None:
    """Draw the options of the image, a download button for each format, and the notes that CSV files lack."""
    st.caption("Files are rendered on the server. Use light colors for papers.")
    mode: Mode = "dark" if st.toggle("Dark background", key=f"{key}-export-dark") else "light"
    options = _choose_image_options(figure, f"{key}-export")
    for format in EXPORT_FORMATS:
        files.button(
            _LABELS[format],
            partial(export_figure, figure, format, mode=mode, sources=sources, options=options),
            file_name=f"{figure.name}-{stem}.{format}",
            mime=MIME[format],
            key=f"{key}-export-{format}",
            width="stretch",
        )
    show_notes(describe_figure(figure, sources=sources, options=options), formats="CSV")


def _choose_image_options(figure: AnyFigure, key: str) -> ImageOptions:
    """Draw the width of an image, and the expander with its font and names; return the selected options.

    If the expander is closed, return the options that were selected last.
    """
    width = _choose_width(f"{key}-width")
    expander = st.expander("Font, names", key=f"{key}-image", on_change="rerun")
    options_key = f"{key}-image-options"
    last_options: ImageOptions = st.session_state.get(options_key, DEFAULT_IMAGE_OPTIONS)
    if expander.open:
        with expander:
            options = _draw_image_options(figure, last_options, key)
        st.session_state[options_key] = options
    else:
        options = _remove_unknown_labels(figure, last_options)
    return options.model_copy(update={"width": width})


def _choose_width(key: str) -> float:
    """Draw the choice of the width of images, which all figures of the session have in common; return it [inch]."""
    option = ImageOptions.list_options()["width"]
    st.session_state[key] = st.session_state.setdefault(_WIDTH, next(iter(option.choices)))

    def remember() -> None:
        st.session_state[_WIDTH] = st.session_state[key]

    text = st.segmented_control(
        option.label, list(option.choices), format_func=option.choices.__getitem__, key=key, required=True,
        on_change=remember, help=option.tooltip_text, label_visibility="collapsed", width="stretch",
    )  # fmt: skip
    return ImageOptions.read({"width": text}).width


def _draw_image_options(figure: AnyFigure, initial: ImageOptions, key: str) -> ImageOptions:
    """Draw a widget for each option of an image except its width; return the selected options.

    Args:
        figure: The figure, whose texts can be replaced.
        initial: The options that the widgets show first.
        key: Start of the keys of the widgets.
    """
    options = ImageOptions.list_options()
    values = initial.model_dump()
    for name in ("font", "line_names"):
        option = options[name]
        st.session_state.setdefault(f"{key}-{name}", values[name])
        values[name] = st.selectbox(
            option.label, list(option.choices), format_func=option.choices.__getitem__,
            key=f"{key}-{name}", help=option.tooltip_text,
        )  # fmt: skip
    option = options["no_title"]
    st.session_state.setdefault(f"{key}-no_title", initial.no_title)
    values["no_title"] = st.toggle(option.label, key=f"{key}-no_title", help=option.tooltip_text)
    option = options["label"]
    initial_lines = [f"{old}={new}" for old, new in initial.labels]
    st.session_state.setdefault(f"{key}-label", "\n".join(initial_lines))
    values["label"] = st.text_area(
        option.label, key=f"{key}-label", placeholder="A=B", height=80, help=option.tooltip_text
    )
    try:
        selected = ImageOptions.read(values)
        replace_labels(figure, selected.labels)  # raises if the figure does not have one of the texts
    except ConfigError as exc:
        st.error(escape_markdown(str(exc)), icon=":material/error:")
        return ImageOptions.read(values | {"label": ()})
    return selected


def _remove_unknown_labels(figure: AnyFigure, options: ImageOptions) -> ImageOptions:
    """Remove the replacements of labels if the figure lacks one of the labels: they were entered for another figure."""
    try:
        replace_labels(figure, options.labels)
    except ConfigError:
        return options.model_copy(update={"labels": ()})
    return options


def show(
    figure: Figure | Callable[[], Figure],
    *,
    key: str,
    page: str,
    run: _Runs = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Draw the button *Pin*, which stores the figure as it is drawn now.

    Args:
        figure: The figure on the page, or a function that makes it and is called only while the box is open.
        key: Unique among the figures of the page.
        page: Path of the page, such as "live".
        run: The run or runs in the figure.
        facts: Options of the figure as JSON values. An exported notebook makes the figure again from them and the runs.
    """
    name = f"{key}-pin"  # start of the keys of all widgets and session values below
    form = _show_box("Pin", figure, icon=":material/keep:", key=name, help="Pin this figure and view to the notebook")
    if not form.is_opened:
        return
    content = figure() if callable(figure) else figure
    with form.container:
        st.fragment(_show_pin)(content, name, page, run, dict(facts or {}))


def _show_pin(figure: Figure, name: str, page: str, run: _Runs, facts: dict[str, Any]) -> None:
    """Draw the form, or, if this view was just pinned, the link to its entry.

    A fragment, so that typing does not redraw the page.
    """
    last_entry: tuple[int, str] | None = st.session_state.get(f"{name}-made")
    if last_entry is None:
        _show_form(figure, name, page, run, facts)
        return
    entry_id, pinned_view = last_entry
    if st.session_state.pop(f"{name}-fresh", False):
        st.toast(f"Pinned as entry {entry_id} of the notebook.", icon=":material/keep:")
    if pinned_view == _describe_view(figure):
        _show_entry_link(name, entry_id)  # instead of the form, so that a double click does not pin twice
    else:
        _show_form(figure, name, page, run, facts)


def show_with_export(
    figure: Figure | Callable[[], Figure],
    *,
    key: str,
    stem: str,
    page: str,
    run: _Runs = None,
    facts: Mapping[str, Any] | None = None,
    sources: Sequence[str] = (),
    icons: bool = False,
) -> None:
    """Draw the buttons *Export* and *Pin* next to each other.

    Args:
        figure: The figure, or a function that makes it and is called only while one of the boxes is open.
        key: Unique among the figures of the page.
        stem: End of the file name, after the name of the figure.
        page: Path of the page, such as "live".
        run: The run or runs in the figure.
        facts: Options of the figure; see `show`.
        sources: Descriptions of the runs, which the exported file contains.
        icons: Draw the buttons as icons, in a container of `make_panel`. Screen readers and tooltips name them.
    """
    container_key = f"figure-icons-{key}" if icons else None
    with st.container(key=container_key, horizontal=True, width="content", gap=None if icons else "small"):
        show_export(figure, key=key, stem=stem, sources=sources, help="Export" if icons else None)
        show(figure, key=key, page=page, run=run, facts=facts)


def make_panel(key: str) -> DeltaGenerator:
    """Make the container of a figure, its title and its icons (`show_with_export`).

    Args:
        key: Unique among the figures of the page.
    """
    return st.container(key=f"figure-panel-{key}", gap=None)


def show_figure(
    figure: AnyFigure,
    *,
    key: str,
    x_name: str = "",
    panel_height: int = _PANEL_HEIGHT,
    bands: Literal["all", "pointed"] = "all",
) -> None:
    """Draw a figure with its caption: a line chart with `canvas`, which has `bands`, any other figure with Plotly."""
    if isinstance(figure, Chart):
        short_name = "env step" if "env step" in figure.x_label else figure.x_label.partition(",")[0]
        canvas.show(figure, key=key, panel_height=panel_height, x_name=x_name or short_name, bands=bands)
    else:
        mode: Mode = "dark" if st.context.theme.type == "dark" else "light"
        plot = to_plotly(figure, mode=mode).update_layout(title=None, margin={"t": 40})
        st.plotly_chart(plot, key=key, theme=None, config={"displayModeBar": False})
    st.caption(escape_markdown(write_minus_signs(figure.caption)))


def show_more_figures(page: str, runs: Sequence[RunRow], *, rate: RateName = AUTO) -> None:
    """Draw the expander *More figures* with the registered figures of a page; only the selected figure is made.

    Args:
        page: Path of the page, such as "compare".
        runs: The runs in the figures. Runs of bundles are skipped, because a figure reads one database.
        rate: The win rate in figures of win rates.
    """
    kinds = {kind.name: kind for kind in list_page_figures(page)}
    runs = [run for run in runs if not view.is_bundle_run(run.id)]
    if not kinds or not runs:
        return
    expander = st.expander("More figures", icon=":material/insights:", **_SHOWS_MORE_FIGURES.bind())
    if not expander.open:
        return
    with expander, messages.guarded():
        name = st.selectbox(
            "Figure",
            **_SELECTED_FIGURE.bind(["", *kinds], lambda name: kinds[name].question if name else "Select a figure"),
        )
        if name:
            _show_registered_figure(kinds[name], runs, page, rate)


def _show_form(figure: Figure, name: str, page: str, run: _Runs, facts: dict[str, Any]) -> None:
    token = str(st.session_state.setdefault(f"{name}-token", uuid4().hex))
    st.text_input(
        "Title", max_chars=_MAX_TITLE_LENGTH, placeholder=figure.title, key=f"{name}-title-{token}",
        persist_state="session",
    )  # fmt: skip
    st.text_area(
        "Note", placeholder="Markdown, formulas as $β = 1$", height=120, key=f"{name}-note-{token}",
        persist_state="session",
    )  # fmt: skip
    st.button(
        "Pin to notebook",
        type="primary",
        disabled=not messages.may_act(),
        key=f"{name}-save-{token}",
        on_click=_save,
        args=(figure, name, token, page, run, facts),
    )
    if (error := st.session_state.get(f"{name}-error")) is not None:
        st.error(escape_markdown(str(error)), icon=":material/error:")


def _save(figure: Figure, name: str, token: str, page: str, run: _Runs, facts: dict[str, Any]) -> None:
    """Create the entry. `token` is sent with it, so that a second press before the rerun creates no second entry."""
    runs = [run] if isinstance(run, RunRow) else list(run or ())
    is_one_own_run = len(runs) == 1 and not view.is_bundle_run(runs[0].id)
    run_id = runs[0].id if is_one_own_run else None
    title = str(st.session_state.get(f"{name}-title-{token}") or figure.title)[:_MAX_TITLE_LENGTH]
    try:
        entry_id = create_entry(
            data.database(),
            title=title,
            body=str(st.session_state.get(f"{name}-note-{token}") or ""),
            run_id=run_id,
            figure=freeze(figure),
            view=make_view(page=page, figure=figure.name, query=_make_query(page, runs), runs=runs, facts=facts),
            token=token,
        )
    except EmtcError as exc:
        st.session_state[f"{name}-error"] = str(exc)
        return
    st.session_state[f"{name}-made"] = (entry_id, _describe_view(figure))
    st.session_state[f"{name}-fresh"] = True
    st.session_state[f"{name}-token"] = uuid4().hex
    st.session_state.pop(f"{name}-error", None)


def _make_query(page: str, runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """Return the URL parameters of the view, with the ids of the runs, so that the pinned view shows no later runs."""
    query = page_state.read_pinned()
    if page == "compare":
        query[RUNS.name] = [",".join(run.id for run in runs)]
    elif len(runs) == 1:
        query[RUN.name] = [runs[0].id]
    return query


def _describe_view(figure: Figure) -> str:
    """Return a text that identifies this figure in this view."""
    return repr((figure.name, figure.title, figure.caption, sorted(page_state.read_pinned().items())))


def _show_entry_link(name: str, entry_id: int) -> None:
    st.success(f"Saved as entry {entry_id}.", icon=":material/check:")
    st.page_link(
        "../pages/notebook.py",
        label="Open the notebook",
        icon=":material/menu_book:",
        query_params={"entry": str(entry_id)},
    )
    st.button("Pin again", key=f"{name}-more", on_click=st.session_state.pop, args=(f"{name}-made", None))


def _show_registered_figure(kind: FigureKind[Any, Any], runs: Sequence[RunRow], page: str, rate: RateName) -> None:
    """Make and draw a figure of *More figures*, its buttons, and the command that exports it."""
    facts = {"rate": rate} if issubclass(kind.options, RateOptions) else {}
    options = kind.options.read(facts)
    try:
        with st.spinner("Drawing …"):
            figure = kind.make(data.database(), runs, options)
    except ConfigError as exc:  # the figure cannot be made of these runs
        st.info(escape_markdown(str(exc)), icon=":material/info:")
        return
    key = f"more-{kind.name}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"#### {escape_markdown(figure.title)}")
        with st.container(horizontal=True, width="content", gap="small"):
            show_export(figure, key=key, stem=page, sources=describe_runs(runs))
            show(figure, key=key, page=page, run=runs, facts=facts)
    show_figure(figure, key=key)
    st.code(
        write_command(kind, [run.id for run in runs], options, db=data.path_for_commands()),
        language=None,
        wrap_lines=True,
    )
