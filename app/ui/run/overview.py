"""The page Overview: what was trained, with which settings, code and machine, how to repeat it, and the user's note.

At the end, the use of the machine over time: processor, memory and GPU. A preset is a named set of defaults for the
settings; a clone is a new run with the settings of this one. Runs that another program trained are imported: the
database has only their curves, so they cannot be cloned.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app.analysis.format import (
    MISSING,
    escape_markdown,
    format_count,
    format_duration,
    format_final_rate,
    format_number,
    format_percent,
    format_time,
)
from app.analysis.intervals import compute_score_interval
from app.analysis.settings import describe_code as describe_repository
from app.analysis.settings import list_libraries, write_value
from app.figures.named.live import MetricOptions, read_run_data
from app.figures.registry import draw_chart
from app.figures.run_charts import MACHINE_METRICS
from app.figures.theme import ENDED_STATUSES
from app.jobs.launch_request import break_lines, make_clone_texts, make_texts, write_command
from app.ui import data, messages, run_data, view
from app.ui.live import controls
from app.ui.page_state import RUN, SWEEP, WINDOW
from app.ui.run import settings
from app.ui.widgets import canvas, config_form, pin
from emtc_core.config.base import IMPORTED
from emtc_core.errors import EmtcError
from storage.queries.curves import policy_evaluations
from storage.queries.final_rates import FINAL_RATE_LABEL, read_final_rates
from storage.queries.run_search import list_filter_options
from storage.queries.runs import find_unused_seed, list_resumes
from storage.runs.labels import LONGEST_NOTE, edit_run, tag_runs
from storage.runs.rows import RunRow, imported_label

_SAVE_RESULT = "run_save_result"
"""Key of the session state: the message or the error of the last *Save*."""
_DUPLICATE_HELP = (
    "Opens the Launch form with all settings of this run and the smallest seed that no run with these settings has. "
    "Press *Start* there."
)
_NO_CLONE = "An imported run contains only curves. Its settings are not stored, so it cannot be repeated here."
_PANEL_HEIGHT = 110
_MACHINE_METRICS = tuple(name for name in MACHINE_METRICS if name != "machine/cpu_seconds")
"""The panels of *Machine over time*. CPU seconds are CPU percent multiplied by the time between two reports."""


def show(run: RunRow) -> None:
    """Draw the whole body of the page."""
    _show_actions(run)
    if run.error:
        st.error(escape_markdown(run.error), icon=":material/error:")
    with st.container(key="run_facts", horizontal=True, gap="large"):
        with st.container():
            _show_properties(run)
        with st.container():
            _show_code(run)
            if run.tags:
                st.markdown(" ".join(f":blue-badge[{escape_markdown(tag)}]" for tag in run.tags))
            if run.notes:
                st.markdown(escape_markdown(run.notes))
    _show_policies(run)
    st.subheader("Settings")
    with messages.guarded():
        settings.show(run)
    with messages.guarded():
        _show_machine(run)


def tabulate_policies(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulate policy evaluations for the page, newest first."""
    newest_first = frame.sort_values("id", ascending=False)
    lows, highs = compute_score_interval(newest_first["win_rate"].to_numpy(), newest_first["distinct"].to_numpy())
    rows: list[dict[str, Any]] = []
    for row, low, high in zip(data.rows_of(newest_first), lows.tolist(), highs.tolist(), strict=True):
        changed_settings = [f"{key} = {write_value(value)}" for key, value in row["settings"].items()]
        rows.append(
            {
                "Checkpoint": f"{format_count(row['env_step'])} env steps",
                "Episodes": f"{row['episodes']} ({row['distinct']} distinct)",
                "Win rate": format_percent(row["win_rate"], 1),
                "95 % interval": f"{format_percent(low, 1)} to {format_percent(high, 1)}",
                "Return": f"{format_number(row['return_mean'])} ± {format_number(row['return_std'])}",
                "Length": format_number(row["length_mean"]),
                "Seed": row["seed"],
                "Environment settings": ", ".join(changed_settings) or "as in training",
                "Made": format_time(row["created_at"]),
            }
        )
    return pd.DataFrame(rows)


def describe_version(run: RunRow) -> str:
    """Write which version trained a run, or from which file it was imported."""
    origin = run.versions.get(IMPORTED)
    if isinstance(origin, dict):
        return f"another program; imported as {origin.get('format')} from {origin.get('source')}"
    version = run.versions.get("emtc_lab")
    return f"EMTC Lab {version}" if version else "not stored"


def _show_actions(run: RunRow) -> None:
    """Draw the buttons that request the run again, and the form for its name, tags and note."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        is_imported = imported_label(run.config) is not None
        help_text = "Opens the Launch form with all settings of this run. You can change them before you start."
        if st.button(
            "Clone in Launch", icon=":material/content_copy:", key="clone_run", disabled=is_imported,
            help=_NO_CLONE if is_imported else help_text,
        ):  # fmt: skip
            st.switch_page("../pages/launch.py", query_params=make_clone_texts(run))
        if st.button(
            "Duplicate with another seed", icon=":material/casino:", key="duplicate_run", disabled=is_imported,
            help=_NO_CLONE if is_imported else _DUPLICATE_HELP,
        ):  # fmt: skip
            seed = find_unused_seed(data.database(), run)
            st.switch_page("../pages/launch.py", query_params=make_clone_texts(run, seed=seed))
        with st.popover("Name, tags and note", icon=":material/edit_note:", key="run-labels-box"):
            _show_name_form(run)
    result = st.session_state.pop(_SAVE_RESULT, None)
    if isinstance(result, Exception):
        messages.error(result)
    elif result:
        st.success(result, icon=":material/check:")


def _show_name_form(run: RunRow) -> None:
    """Draw the fields for name, tags and note. They show the stored values until the user edits them."""
    is_disabled = not messages.may_act()
    name_key = f"run-name-{run.id}"
    tags_key = f"run-tags-{run.id}"
    note_key = f"run-note-{run.id}"
    config_form.set_fields_to_stored_values({name_key: run.name, tags_key: list(run.tags), note_key: run.notes})
    st.text_input("Name", key=name_key, max_chars=200, disabled=is_disabled, persist_state="session")
    all_tags = data.cached(list_filter_options, ttl=5)("all").tags
    st.multiselect(
        "Tags", sorted({*all_tags, *run.tags}), key=tags_key, accept_new_options=True,
        placeholder="Select or type a tag", disabled=is_disabled, persist_state="session",
    )  # fmt: skip
    st.text_area(
        "Note", key=note_key, max_chars=LONGEST_NOTE, height=110, disabled=is_disabled, persist_state="session"
    )
    st.button("Save", disabled=is_disabled, key="run-keep", on_click=_save_name_form, args=(run,))


def _save_name_form(run: RunRow) -> None:
    name = str(st.session_state[f"run-name-{run.id}"] or "")
    note = str(st.session_state[f"run-note-{run.id}"] or "")
    new_tags = set(st.session_state[f"run-tags-{run.id}"])
    former_tags = set(run.tags)
    try:
        edit_run(data.database(), run.id, name=name, notes=note)
        tag_runs(data.database(), [run.id], add=sorted(new_tags - former_tags), remove=sorted(former_tags - new_tags))
    except EmtcError as exc:
        st.session_state[_SAVE_RESULT] = exc
    else:
        st.session_state[_SAVE_RESULT] = "Saved."
    st.cache_data.clear()


def _show_properties(run: RunRow) -> None:
    """Draw the table with progress, results, times, machine, code and related runs."""
    final = data.cached(read_final_rates, ttl=2)([run.id]).get(run.id)
    properties = {
        "Steps": f"{format_count(run.env_steps)} of {format_count(run.target_steps)} env steps",
        FINAL_RATE_LABEL: format_final_rate(final.rate, final.episodes) if final else MISSING,
        "Last greedy win rate": f"{format_percent(run.win_rate)}, return {format_number(run.return_mean)}, "
        f"μ̄_w {format_number(run.mu_w)}",
        "Created": format_time(run.created_at),
        "Trained": _describe_training_time(run),
        "Machine": ", ".join(filter(None, (run.host, run.device or "no device yet"))),
        "Code": describe_version(run),
        **describe_repository(run.versions),
        "Family": _link_family(run),
        "Resumed": controls.describe_resumes(list_resumes(data.database(), run.id)),
    }
    rows: list[str] = []
    for name, text in properties.items():
        if not text:
            continue
        cell = text if name == "Family" else escape_markdown(text)  # the related runs are Markdown links
        rows.append(f"| {name} | {cell} |")
    st.markdown("\n".join([rows[0], "|---|---|", *rows[1:]]))


def _describe_training_time(run: RunRow) -> str:
    if run.started_at is None:
        return "not yet" if imported_label(run.config) is None else "by another program"
    return f"from {format_time(run.started_at)}, for {format_duration(run_data.get_training_s(run))}"


def _link_family(run: RunRow) -> str:
    """Write links to the run's sweep and to the run that it restarts; empty if it has neither."""
    links = []
    if run.sweep_id:
        address = view.address_of("sweeps", {SWEEP.name: run.sweep_id})
        links.append(f"[{escape_markdown(f'sweep {run.sweep_id}')}]({address})")
    if run.parent_id:
        address = view.address_of("run", {RUN.name: run.parent_id})
        links.append(f"restarted from step 0 after [{escape_markdown(f'run {run.parent_id}')}]({address})")
    return ", ".join(links)


def _show_code(run: RunRow) -> None:
    """Draw the command that repeats the run, and the versions that trained it; for an imported run, its origin."""
    import_label = imported_label(run.config)
    if import_label is not None:
        text = f"Imported ({import_label}): trained by another program. {_NO_CLONE}"
        st.info(escape_markdown(text), icon=":material/input:")
    else:
        st.markdown("**Command that repeats this run**")
        st.code(break_lines(write_command(make_texts(run.config))), language=None, wrap_lines=True)
    if run.versions:
        with st.expander("Versions", icon=":material/inventory_2:"):
            st.caption(escape_markdown(list_libraries(run.versions)))
        changes = run_data.read_code_changes(run)
        if changes:
            with st.expander("Uncommitted changes", icon=":material/difference:"):
                st.code(changes, language="diff", height=320)


def _show_policies(run: RunRow) -> None:
    """Draw the evaluations of the run's stored policies, if there are any."""
    frame = data.cached(policy_evaluations, ttl=5)([run.id])
    if not len(frame):
        return
    st.subheader("Policy evaluations")
    st.dataframe(
        tabulate_policies(frame),
        hide_index=True,
        key="policy_evaluations",
        alt="Table of policy evaluations: checkpoint, episodes, win rate with its interval, return.",
    )
    st.caption(
        "Greedy episodes of stored checkpoints (`emtc evaluate`). They are not part of any curve. Interval: 95 % "
        "Wilson interval, computed from the number of different episodes."
    )


def _show_machine(run: RunRow) -> None:
    st.subheader("Machine over time")
    recorded = read_run_data(data.database(), run, _MACHINE_METRICS)
    if not len(recorded.metrics):
        is_ended = run.live_status in ENDED_STATUSES
        reason = "this run has no record of the use of its machine" if is_ended else "the trainer has not reported yet"
        st.caption(f"No data: {reason}.")
        return
    recorded_names = {*recorded.metrics["name"]}
    names = tuple(name for name in _MACHINE_METRICS if name in recorded_names)
    chart = draw_chart("metrics", recorded, MetricOptions(metrics=names))
    chart = replace(chart, name="machine", title=f"Machine of {run.name}")
    with st.container(horizontal=True, horizontal_alignment="right"):
        pin.show_export(chart, key="run-machine", stem=run.id)
    # The URL parameter of the x range is the same as on Live.
    canvas.show(
        chart, key="run-machine-curves", window=WINDOW.read(), panel_height=_PANEL_HEIGHT, on_window=WINDOW.on_window,
    )  # fmt: skip
    st.caption(escape_markdown(chart.caption))
