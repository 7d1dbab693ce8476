"""What can be done with the chosen rows of the runs table. Every button says how many runs it acts on.

What the runs table remembers between two drawings: which rows were shown and chosen, and what was just done.

Deleting chosen runs for good: offered, then counted and named, then done.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_run_count
from app.jobs import resume
from app.jobs.resume import BulkResult, resume_runs, stop_runs
from app.ui import data, messages, state, view
from app.ui.widgets import run_picker
from emtc_core.errors import EmtcError
from storage.queries.runs import RunFilter
from storage.runs import lifecycle
from storage.runs.labels import LONGEST_NOTE, ShelfAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.lifecycle import Event, State
from storage.runs.removal import count_contents_of_runs, count_run_contents

_ASKED = "runs_to_delete"
_NAMED = 10


def offer(states: Mapping[str, State]) -> None:
    """Draw the button that asks what would go; nothing is deleted by it."""
    free = [run_id for run_id, now in states.items() if lifecycle.allows(now, Event.DELETE)]
    can = bool(free) and messages.may_act()
    label = f"Delete {len(free):,} …"
    st.button(label, icon=":material/delete:", key="act-delete", disabled=not can, on_click=_ask, args=(free,))


def _ask(run_ids: Sequence[str]) -> None:
    st.session_state[_ASKED] = list(run_ids)


def confirm(rows: Sequence[Mapping[str, Any]]) -> None:
    """What goes with the runs that were asked for, as long as they are chosen; delete on a second press."""
    names = {str(row["id"]): str(row["name"]) for row in rows}
    asked = st.session_state.get(_ASKED, [])
    if not asked or not set(asked) <= names.keys() or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        _say_what_goes(asked, names)
        with st.container(horizontal=True):
            label = f"Delete {format_run_count(len(asked))} for good"
            st.button(label, type="primary", key="delete-now", on_click=_delete, args=(asked,))
            st.button("Keep", key="delete-not", on_click=_ask, args=([],))


def _say_what_goes(run_ids: Sequence[str], names: Mapping[str, str]) -> None:
    db = data.database()
    if len(run_ids) == 1:
        belongings = count_run_contents(db, run_ids[0])
        st.markdown(f"For good, this removes run `{run_ids[0]}`: {escape_markdown(str(belongings))}.")
        if belongings.entries or belongings.children:
            kept = (
                f"{format_count(belongings.entries)} notebook entries and {format_count(belongings.children)} "
                f"later runs"
            )
            st.caption(f"{kept} that name it stay.")
        return
    named = ", ".join(f"{escape_markdown(names[run_id])} (`{run_id}`)" for run_id in run_ids[:_NAMED])
    more = f" and {len(run_ids) - _NAMED:,} more" if len(run_ids) > _NAMED else ""
    total = escape_markdown(str(count_contents_of_runs(db, run_ids)))
    st.markdown(f"For good, this removes **{len(run_ids):,} runs**: {total}.")
    st.caption(f"{named}{more}. Notebook entries that name them stay.")


def _delete(run_ids: Sequence[str]) -> None:
    st.session_state[_ASKED] = []
    forget_choice()
    act(lambda: _remove(run_ids))


def _remove(run_ids: Sequence[str]) -> str:
    outcome = resume.delete_runs(data.database(), run_ids)
    for run_id in outcome.done:
        run_picker.forget(run_id)
    return describe("Deleted", outcome)


_SHOWN, _FORGOTTEN, _SAID = "run_table_shown", "run_table_forgotten", "run_table_said"


def key() -> str:
    """Key of the table's widget; another name is another table, in which nothing is chosen."""
    times = st.session_state.get(_FORGOTTEN, 0)
    return f"run_table-{times}" if times else "run_table"


def chosen_rows() -> Sequence[int]:
    """List the places of the chosen rows, as the browser told them last."""
    table = st.session_state.get(key())
    return table["selection"]["rows"] if table else ()


def forget_choice() -> None:
    """Choose no row any more."""
    st.session_state[_FORGOTTEN] = st.session_state.get(_FORGOTTEN, 0) + 1


def shown(view: str) -> list[str]:
    """List the runs that were shown last in this view, or none if it was another one."""
    known_view, ids = st.session_state.get(_SHOWN, ("", []))
    return ids if known_view == view else []


def remember_shown(view: str, ids: list[str]) -> None:
    """Keep which runs are shown now."""
    st.session_state[_SHOWN] = (view, ids)


def act(do: Callable[[], str]) -> None:
    """Do something to runs, and keep the sentence that it returns, or why it failed, for the next drawing."""
    try:
        st.session_state[_SAID] = (do(), False)
    except EmtcError as exc:
        st.session_state[_SAID] = (exc, True)
    st.cache_data.clear()


def tell() -> None:
    """What the last act did, once."""
    said, is_fault = st.session_state.pop(_SAID, (None, False))
    if is_fault:
        messages.error(said)
    elif said is not None:
        st.toast(escape_markdown(said), icon=":material/check:", duration="long")
        st.caption(escape_markdown(said))


def describe(what: str, outcome: BulkResult) -> str:
    """What was done, and what was not and why."""
    left = f" Not done to {format_run_count(len(outcome.refused))}: {outcome.refused[0]}" if outcome.refused else ""
    return f"{what} {format_run_count(len(outcome.done))}.{left}"


_DONE: dict[ShelfAction, str] = {"hide": "Hid", "show": "Show again", "archive": "Archived", "restore": "Restored"}
MOST_TO_COMPARE = 500
"""As many runs as a link may hold."""


def show(ids: Sequence[str], wanted: RunFilter, sort: str, total: int) -> None:
    """Draw what can be done with the chosen runs, or how to choose some."""
    with st.container():  # always there, so that what stands below keeps its place on the page
        tell()
    if not ids:
        st.caption("Choose rows to open, compare, tag, hide, archive, stop, resume or delete runs.")
        return
    rows = data.rows_of(data.runs_by_id(_reach(ids, wanted, sort, total)))
    if not rows:
        return
    with st.container():
        if len(rows) == 1:
            _about(rows[0])
    with st.container(horizontal=True, vertical_alignment="center"):
        _acts(rows)
    confirm(rows)


def _reach(ids: Sequence[str], wanted: RunFilter, sort: str, total: int) -> list[str]:
    """How many runs are chosen; offer all that match, also those on other pages."""
    with st.container(horizontal=True, vertical_alignment="center"):
        place = st.empty()
        every = total > len(ids) and st.checkbox(
            f"All {total:,} that match, on every page",
            key=f"every-{key()}",
            help="The buttons then act on runs that this page does not show; each says on how many.",
        )
    reached = data.matching_ids(wanted, sort) if every else list(ids)
    place.markdown(f"**{format_run_count(len(reached))} chosen**")
    return reached


def _about(run: dict[str, Any]) -> None:
    run_id = str(run["id"])
    with st.container(horizontal=True, vertical_alignment="center"):
        run_picker.links(run_id, str(run["name"]))
    run_picker.gate_badge(data.gate_states([(run_id, str(run["status"]), int(run["env_steps"]))]).get(run_id))
    if run["status"] in ("failed", "lost") and run["error"]:
        st.error(escape_markdown(str(run["error"])))
    if run["status"] == "lost":
        st.warning("The trainer of this run is gone without a word. Open *Live* to see what it can go on from.")
    if run["notes"]:
        st.caption(escape_markdown(str(run["notes"])))


def _acts(rows: Sequence[dict[str, Any]]) -> None:
    """Draw the buttons; one that nothing can be done with is disabled."""
    ids = [str(row["id"]) for row in rows]
    states = {str(row["id"]): State(str(row["state"])) for row in rows}
    may = messages.may_act()
    if 1 < len(ids) <= MOST_TO_COMPARE:
        st.page_link(
            "../pages/compare.py",
            label=f"Compare {len(ids)}",
            icon=":material/stacked_line_chart:",
            query_params=view.link({state.RUNS: ",".join(ids)}),
        )
    with st.popover(f"Tag {len(ids):,}", icon=":material/sell:", disabled=not may, key="act-tag"):
        _tag(rows, ids)
    with st.popover(f"Note {len(ids):,}", icon=":material/edit_note:", disabled=not may, key="act-note"):
        _note(rows, ids)
    _shelf(rows, "hidden_at", ("hide", "Hide", ":material/visibility_off:"), ("show", "Show", ":material/visibility:"))
    _shelf(
        rows,
        "archived_at",
        ("archive", "Archive", ":material/archive:"),
        ("restore", "Restore", ":material/unarchive:"),
    )
    stoppable = [each for each, now in states.items() if _can_stop(now)]
    resumable = [each for each, now in states.items() if now != State.CREATED and lifecycle.allows(now, Event.CLAIM)]
    _button(
        "stop",
        "Stop",
        ":material/stop:",
        stoppable,
        lambda: describe("Asked to stop", stop_runs(data.database(), stoppable)),
    )
    _button(
        "resume",
        "Resume",
        ":material/replay:",
        resumable,
        lambda: describe("Resumed", resume_runs(data.database(), resumable)),
    )
    offer(states)


def _can_stop(now: State) -> bool:
    return now == State.CREATED or (now != State.STOPPING and lifecycle.allows(now, Event.REQUEST_STOP))


def _button(key: str, label: str, icon: str, ids: Sequence[str], do: Callable[[], str]) -> None:
    can = bool(ids) and messages.may_act()
    st.button(f"{label} {len(ids):,}", icon=icon, key=f"act-{key}", disabled=not can, on_click=act, args=(do,))


def _shelf(
    rows: Sequence[dict[str, Any]], column: str, aside: tuple[ShelfAction, str, str], back: tuple[ShelfAction, str, str]
) -> None:
    """Offer to put aside what is not, or to bring back when all of it is."""
    away = [str(row["id"]) for row in rows if not _is_missing(row[column])]
    here = [str(row["id"]) for row in rows if _is_missing(row[column])]
    (how, label, icon), ids = (aside, here) if here else (back, away)
    _button(how, label, icon, ids, lambda: _shelve(ids, how))


def _shelve(ids: Sequence[str], how: ShelfAction) -> str:
    number = set_visibility(data.database(), ids, how)
    forget_choice()  # what is archived is no longer in sight
    return f"{_DONE[how]} {format_run_count(number)}."


def _is_missing(value: object) -> bool:
    return value is None or value != value


def _tag(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> None:
    known = sorted({str(tag) for row in rows for tag in row["tags"]})
    with st.form("tag-form", border=False, clear_on_submit=True):
        every = data.run_choices("all").tags
        st.multiselect("Add", every, key="tag-add", accept_new_options=True, placeholder="choose, or type a new tag")
        st.multiselect("Take away", known, key="tag-remove", placeholder="none")
        _submit(f"Tag {format_run_count(len(ids))}", lambda: _write_tags(ids))


def _write_tags(ids: Sequence[str]) -> str:
    add, remove = st.session_state["tag-add"], st.session_state["tag-remove"]
    return f"Changed the tags of {format_run_count(tag_runs(data.database(), ids, add=add, remove=remove))}."


def _note(rows: Sequence[dict[str, Any]], ids: Sequence[str]) -> None:
    alone = rows[0] if len(rows) == 1 else None
    about = ids[0] if alone else "many"
    with st.form("note-form", border=False, clear_on_submit=alone is None):
        if alone:
            st.text_input("Name", str(alone["name"]), key=f"name-{about}", max_chars=200)
        label = "Note" if alone else "A line for the note of each"
        st.text_area(label, str(alone["notes"]) if alone else "", key=f"note-{about}", max_chars=LONGEST_NOTE)
        _submit(f"Write for {format_run_count(len(ids))}", lambda: _write_note(ids, about))


def _write_note(ids: Sequence[str], about: str) -> str:
    text = str(st.session_state[f"note-{about}"] or "")
    if about == "many":
        note_runs(data.database(), ids, text.strip())
    else:
        edit_run(data.database(), ids[0], name=str(st.session_state[f"name-{about}"] or ""), notes=text)
    return f"Wrote the note of {format_run_count(len(ids))}."


def _submit(label: str, do: Callable[[], str]) -> None:
    st.form_submit_button(label, type="primary", disabled=not messages.may_act(), on_click=act, args=(do,))
