"""Actions on the selected runs: compare, tag, note, hide, archive, stop, resume and delete.

The label of each button contains the number of runs it acts on. Deletion needs a second press, after the page has shown
what would be deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_run_count
from app.jobs import resume
from app.jobs.resume import BulkResult, resume_runs, stop_runs
from app.ui import data, messages, run_data, view
from app.ui.home import selection
from app.ui.page_state import RUNS
from app.ui.widgets import config_form, run_picker
from emtc_core.errors import EmtcError
from storage.queries.run_search import RunFilter, list_filter_options, matching_ids, runs_by_id
from storage.runs.labels import LONGEST_NOTE, VisibilityAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.removal import count_contents_of_runs, count_run_contents
from storage.runs.status import Action, allows

MAX_COMPARED: Final = 500
"""Maximum number of runs in a link to Compare."""
_TO_DELETE: Final = "runs_to_delete"
_OUTCOME: Final = "run_action_outcome"
"""Key of the session state: the message or the error of the last action."""
_MAX_NAMED: Final = 10
_VISIBILITY_VERBS: Final[dict[VisibilityAction, str]] = {
    "hide": "Hid",
    "show": "Unhid",
    "archive": "Archived",
    "restore": "Restored",
}


def show(ids: Sequence[str], run_filter: RunFilter, sort: str, total: int) -> None:
    """Draw the actions on the selected runs, or nothing if no run is selected.

    Args:
        ids: The selected runs.
        run_filter: The filter of the table.
        sort: The order of the table.
        total: Number of runs that match the filter.
    """
    with st.container():  # always drawn, so that the parts below keep their positions on the page
        _show_outcome()
    if not ids:
        return
    with st.container(key="run_actions"):
        selected_ids = _choose_selected_runs(ids, run_filter, sort, total)
        rows = data.rows_of(runs_by_id(data.database(), selected_ids))
        with st.container():  # always drawn, for the same reason
            if len(rows) == 1:
                _show_run(rows[0])
        with st.container(horizontal=True, vertical_alignment="center"):
            _show_buttons(rows)
        _show_delete_confirmation(rows)


def _show_outcome() -> None:
    """Show the message or the error of the last action once."""
    outcome = st.session_state.pop(_OUTCOME, None)
    if isinstance(outcome, EmtcError):
        messages.error(outcome)
    elif outcome is not None:
        st.toast(escape_markdown(outcome), icon=":material/check:", duration="long")
        st.caption(escape_markdown(outcome))


def _choose_selected_runs(ids: Sequence[str], run_filter: RunFilter, sort: str, total: int) -> list[str]:
    """Draw the number of selected runs and a checkbox that selects all matching runs; return the selected ids."""
    with st.container(horizontal=True, vertical_alignment="center"):
        count = st.empty()
        select_all = total > len(ids) and st.checkbox(
            f"Select all {total:,} matching runs",
            key=f"every-{selection.table_key()}",
            help="Also selects the runs on other pages of the table.",
        )
    selected = matching_ids(data.database(), run_filter, sort=sort) if select_all else list(ids)
    count.markdown(f"**{format_run_count(len(selected))} selected**")
    return selected


def _show_run(run: dict[str, Any]) -> None:
    """Draw the links, the state of the gate (the weight of the incentive), the error and the note of one run."""
    run_id = str(run["id"])
    with st.container(horizontal=True, vertical_alignment="center"):
        run_picker.show_page_links(run_id, str(run["name"]))
    run_picker.show_gate(run_data.get_gate_verdict(run_id, str(run["status"])).gate)
    if run["status"] in ("failed", "lost") and run["error"]:
        st.error(escape_markdown(str(run["error"])))
    if run["status"] == "lost":
        st.warning("The trainer of this run sends no heartbeat. Open *Live* to resume the run.")
    if run["notes"]:
        st.caption(escape_markdown(str(run["notes"])))


def _show_buttons(rows: Sequence[dict[str, Any]]) -> None:
    """Draw the buttons; a button that applies to none of the runs is disabled."""
    ids = [str(row["id"]) for row in rows]
    may_act = messages.may_act()
    if 1 < len(ids) <= MAX_COMPARED:
        st.page_link(
            "../pages/compare.py",
            label=f"Compare {len(ids)}",
            icon=":material/stacked_line_chart:",
            query_params=view.add_bundle({RUNS.name: ",".join(ids)}),
        )
    with st.popover(f"Tag {len(ids):,}", icon=":material/sell:", disabled=not may_act, key="act-tag"):
        _show_tag_form(rows, ids)
    with st.popover(f"Note {len(ids):,}", icon=":material/edit_note:", disabled=not may_act, key="act-note"):
        _show_note_form(rows, ids)
    _show_visibility_button(
        rows, "hidden_at", ("hide", "Hide", ":material/visibility_off:"), ("show", "Show", ":material/visibility:")
    )
    _show_visibility_button(
        rows,
        "archived_at",
        ("archive", "Archive", ":material/archive:"),
        ("restore", "Restore", ":material/unarchive:"),
    )
    stoppable = _list_allowing(rows, "stop")
    _show_button(
        "stop",
        "Stop",
        ":material/stop:",
        stoppable,
        lambda: _describe("Requested stop of", stop_runs(data.database(), stoppable)),
    )
    resumable = _list_allowing(rows, "resume")
    _show_button(
        "resume",
        "Resume",
        ":material/replay:",
        resumable,
        lambda: _describe("Resumed", resume_runs(data.database(), resumable)),
    )
    deletable = _list_allowing(rows, "delete")
    st.button(
        f"Delete {len(deletable):,} …",
        icon=":material/delete:",
        key="act-delete",
        disabled=not (deletable and may_act),
        on_click=_set_runs_to_delete,
        args=(deletable,),
    )


def _list_allowing(rows: Sequence[dict[str, Any]], action: Action) -> list[str]:
    """List the ids of the runs whose status allows an action."""
    return [str(row["id"]) for row in rows if allows(row["status"], action)]


def _show_button(key: str, label: str, icon: str, ids: Sequence[str], action: Callable[[], str]) -> None:
    can_act = bool(ids) and messages.may_act()
    st.button(
        f"{label} {len(ids):,}", icon=icon, key=f"act-{key}", disabled=not can_act, on_click=_run_action, args=(action,)
    )


def _run_action(action: Callable[[], str]) -> None:
    """Apply an action and store its message, or its error, for the next run of the page."""
    try:
        st.session_state[_OUTCOME] = action()
    except EmtcError as exc:
        st.session_state[_OUTCOME] = exc
    st.cache_data.clear()


def _describe(verb: str, result: BulkResult) -> str:
    """Describe how many runs an action changed and why it refused others."""
    refused = f" Refused for {format_run_count(len(result.errors))}: {result.errors[0]}" if result.errors else ""
    return f"{verb} {format_run_count(len(result.changed_ids))}.{refused}"


def _show_visibility_button(
    rows: Sequence[dict[str, Any]],
    column: str,
    do: tuple[VisibilityAction, str, str],
    undo: tuple[VisibilityAction, str, str],
) -> None:
    """Draw the button that hides or archives runs; if all of them are hidden or archived, the button that undoes it.

    Args:
        rows: The runs.
        column: Column with the time at which a run was hidden or archived.
        do: Action, label and icon of the button that hides or archives.
        undo: Action, label and icon of the button that undoes it.
    """
    ids = [str(row["id"]) for row in rows if _is_null(row[column])]
    action, label, icon = do
    if not ids:
        ids = [str(row["id"]) for row in rows]
        action, label, icon = undo
    _show_button(action, label, icon, ids, lambda: _set_visibility(ids, action))


def _is_null(value: object) -> bool:
    """Return whether a value is None, NaN or NaT. NaN and NaT are not equal to themselves."""
    return value is None or value != value


def _set_visibility(ids: Sequence[str], action: VisibilityAction) -> str:
    number = set_visibility(data.database(), ids, action)
    selection.clear_selection()  # archived runs are no longer listed
    return f"{_VISIBILITY_VERBS[action]} {format_run_count(number)}."


def _show_tag_form(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> None:
    tags_of_runs = sorted({str(tag) for row in rows for tag in row["tags"]})
    with st.form("tag-form", border=False, clear_on_submit=True):
        all_tags = data.cached(list_filter_options, ttl=5)("all").tags
        st.multiselect("Add", all_tags, key="tag-add", accept_new_options=True, placeholder="Select or type a tag")
        st.multiselect("Remove", tags_of_runs, key="tag-remove", placeholder="Select a tag")
        st.form_submit_button(
            f"Tag {format_run_count(len(ids))}", type="primary", disabled=not messages.may_act(),
            on_click=_run_action, args=(lambda: _write_tags(ids),),
        )  # fmt: skip


def _write_tags(ids: Sequence[str]) -> str:
    add = st.session_state["tag-add"]
    remove = st.session_state["tag-remove"]
    n_changed = tag_runs(data.database(), ids, add=add, remove=remove)
    return f"Changed the tags of {format_run_count(n_changed)}."


def _show_note_form(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> None:
    """Draw the name and the note of one run, or a line to append to the notes of several runs."""
    run = rows[0] if len(rows) == 1 else None
    suffix = ids[0] if run else "many"
    if run:
        config_form.set_fields_to_stored_values(
            {f"name-{suffix}": str(run["name"]), f"note-{suffix}": str(run["notes"])}
        )
        st.text_input("Name", key=f"name-{suffix}", max_chars=200, persist_state="session")
    label = "Note" if run else "Line to append to each note"
    st.text_area(label, key=f"note-{suffix}", max_chars=LONGEST_NOTE, persist_state="session")
    st.button(
        f"Save for {format_run_count(len(ids))}", type="primary", disabled=not messages.may_act(),
        on_click=_run_action, args=(lambda: _write_note(ids, suffix),),
    )  # fmt: skip


def _write_note(ids: Sequence[str], suffix: str) -> str:
    text = str(st.session_state[f"note-{suffix}"] or "")
    if suffix == "many":
        note_runs(data.database(), ids, text.strip())
        st.session_state["note-many"] = ""
    else:
        edit_run(data.database(), ids[0], name=str(st.session_state[f"name-{suffix}"] or ""), notes=text)
    return f"Saved the note of {format_run_count(len(ids))}."


def _set_runs_to_delete(run_ids: Sequence[str]) -> None:
    st.session_state[_TO_DELETE] = list(run_ids)


def _show_delete_confirmation(rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw what the requested deletion would remove, and its buttons, while these runs are still selected."""
    names = {str(row["id"]): str(row["name"]) for row in rows}
    run_ids = st.session_state.get(_TO_DELETE, [])
    if not run_ids or not set(run_ids) <= names.keys() or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        _describe_deletion(run_ids, names)
        with st.container(horizontal=True):
            label = f"Delete {format_run_count(len(run_ids))} permanently"
            st.button(label, type="primary", key="delete-now", on_click=_delete, args=(run_ids,))
            st.button("Cancel", key="delete-not", on_click=_set_runs_to_delete, args=([],))


def _describe_deletion(run_ids: Sequence[str], names: Mapping[str, str]) -> None:
    db = data.database()
    if len(run_ids) == 1:
        contents = count_run_contents(db, run_ids[0])
        st.markdown(f"Permanently deletes run `{run_ids[0]}`: {escape_markdown(str(contents))}.")
        if contents.entries or contents.children:
            st.caption(
                f"{format_count(contents.entries)} notebook entries and {format_count(contents.children)} later runs "
                "that refer to it are kept."
            )
        return
    listed = ", ".join(f"{escape_markdown(names[run_id])} (`{run_id}`)" for run_id in run_ids[:_MAX_NAMED])
    more = f" and {len(run_ids) - _MAX_NAMED:,} more" if len(run_ids) > _MAX_NAMED else ""
    total = escape_markdown(str(count_contents_of_runs(db, run_ids)))
    st.markdown(f"Permanently deletes **{len(run_ids):,} runs**: {total}.")
    st.caption(f"{listed}{more}. Notebook entries that refer to them are kept.")


def _delete(run_ids: Sequence[str]) -> None:
    _set_runs_to_delete([])
    selection.clear_selection()

    def delete_runs() -> str:
        result = resume.delete_runs(data.database(), run_ids)
        for run_id in result.changed_ids:
            run_picker.clear_deleted_run(run_id)
        return _describe("Deleted", result)

    _run_action(delete_runs)
