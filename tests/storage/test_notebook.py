"""The notebook: entries survive what they cite, are made once, and are not overwritten unseen."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from emtc_core.errors import EntryChangedError, EntryNotFoundError
from storage.engine import Database
from storage.notebook import (
    create_entry,
    delete_entry,
    edit_entry,
    get_entry,
    get_figure,
    list_entries,
    restore_entry,
)
from storage.runs.removal import remove_run

FIGURE = {"type": "Chart", "title": "Δ̄", "panels": [{"y": [1.0, None, 3.5]}]}


def cite(run_id: str) -> dict[str, object]:
    return {"page": "live", "query": {"run": [run_id]}, "runs": [{"id": run_id, "name": "first", "algo": "emtc-qplex"}]}


def test_an_entry_is_read_as_it_was_written(db: Database, run_id: str) -> None:
    before = datetime.now(UTC)
    made = create_entry(db, title="β falls", body="Why $\\beta$?", run_id=run_id, figure=FIGURE, view=cite(run_id))
    row = get_entry(db, made)
    assert (row.title, row.body, row.run_id, row.has_figure) == ("β falls", "Why $\\beta$?", run_id, True)
    assert before <= row.created_at == row.updated_at <= datetime.now(UTC)
    assert row.view == cite(run_id)
    assert get_figure(db, made) == FIGURE


def test_a_note_needs_neither_figure_nor_run(db: Database) -> None:
    row = get_entry(db, create_entry(db, title="Idea"))
    assert (row.run_id, row.view, row.has_figure, row.cited_runs, row.body) == (None, None, False, [], "")
    assert get_figure(db, row.id) is None


def test_an_entry_outlives_the_run_that_it_cites(db: Database, run_id: str) -> None:
    made = create_entry(db, title="Kept", run_id=run_id, figure=FIGURE, view=cite(run_id))
    remove_run(db, run_id)
    row = get_entry(db, made)
    assert row.run_id is None
    assert row.cited_runs[0]["name"] == "first"
    assert get_figure(db, made) == FIGURE
    assert [found.id for found in list_entries(db, run_id=run_id)] == [made]


def test_a_run_that_is_gone_when_the_figure_is_pinned_is_left_out(db: Database) -> None:
    made = create_entry(db, title="Late", run_id="gone2345", view=cite("gone2345"))
    assert get_entry(db, made).run_id is None


def test_entries_come_newest_first(db: Database) -> None:
    made = [create_entry(db, title=title) for title in ("one", "two", "three")]
    assert [row.id for row in list_entries(db)] == made[::-1]


def test_a_search_finds_every_word_in_title_or_body_in_any_case(db: Database) -> None:
    first = create_entry(db, title="Überschätzung der Q-Werte", body="on corridor")
    create_entry(db, title="Other", body="on corridor")
    assert [row.id for row in list_entries(db, text="CORRIDOR überschätzung")] == [first]
    assert len(list_entries(db, text=" corridor ")) == 2
    assert list_entries(db, text="%") == []


def test_entries_are_filtered_by_the_run_that_they_cite(db: Database, run_id: str) -> None:
    mine = create_entry(db, title="mine", run_id=run_id)
    several = create_entry(db, title="several", view={"runs": [{"id": "abcd2345"}, {"id": run_id}]})
    create_entry(db, title="none")
    assert {row.id for row in list_entries(db, run_id=run_id)} == {mine, several}


def test_one_press_makes_one_entry_however_often_it_arrives(db: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: create_entry(db, title="Pinned", token="press-1"), range(8)))
    assert len(set(made)) == 1
    assert len(list_entries(db)) == 1
    assert create_entry(db, title="Pinned", token="press-2") != made[0]


def test_an_edit_changes_text_and_time_only(db: Database, run_id: str) -> None:
    made = create_entry(db, title="Draft", run_id=run_id, figure=FIGURE, view=cite(run_id))
    before = get_entry(db, made)
    changed_at = edit_entry(db, made, title="Final", body="Done\0.", base_updated_at=before.updated_at)
    after = get_entry(db, made)
    assert (after.title, after.body, after.updated_at) == ("Final", "Done.", changed_at)
    assert (after.created_at, after.view, after.run_id) == (before.created_at, before.view, run_id)
    assert after.updated_at > before.updated_at


def test_a_writer_who_has_not_seen_the_last_change_is_told(db: Database) -> None:
    made = create_entry(db, title="Draft")
    seen = get_entry(db, made).updated_at
    edit_entry(db, made, title="Theirs", body="", base_updated_at=seen)
    with pytest.raises(EntryChangedError, match=str(made)):
        edit_entry(db, made, title="Mine", body="", base_updated_at=seen)
    assert get_entry(db, made).title == "Theirs"
    edit_entry(db, made, title="Mine", body="")
    assert get_entry(db, made).title == "Mine"


def test_a_deleted_entry_comes_back_as_it_was(db: Database, run_id: str) -> None:
    made = create_entry(db, title="Pinned", run_id=run_id, figure=FIGURE, view=cite(run_id))
    before = get_entry(db, made)
    deleted = delete_entry(db, made)
    assert list_entries(db) == []
    restore_entry(db, deleted)
    restore_entry(db, deleted)
    assert list_entries(db) == [before]
    assert get_figure(db, made) == FIGURE


def test_an_unknown_entry_is_one_sentence_and_one_action(db: Database) -> None:
    for act in (get_entry, get_figure, delete_entry):
        with pytest.raises(EntryNotFoundError, match=r"\b77\b"):
            act(db, 77)
    with pytest.raises(EntryNotFoundError):
        edit_entry(db, 77, title="x", body="")


def test_the_id_of_a_deleted_entry_is_not_given_again(db: Database) -> None:
    made = create_entry(db, title="one")
    delete_entry(db, made)
    assert create_entry(db, title="two") > made
