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


def test_an_entry_outlives_the_run_that_it_cites(db: Database, run_id: str) -> None:
    made = create_entry(db, title="Kept", run_id=run_id, figure=FIGURE, view=cite(run_id))
    remove_run(db, run_id)
    row = get_entry(db, made)
    assert row.run_id is None
    assert row.cited_runs[0]["name"] == "first"
    assert get_figure(db, made) == FIGURE
    assert [found.id for found in list_entries(db, run_id=run_id)] == [made]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["Q-Werte", "Überschätzung", "Idea"]),
        ({"text": "CORRIDOR überschätzung"}, ["Überschätzung"]),
        ({"text": " corridor "}, ["Q-Werte", "Überschätzung"]),
        ({"text": "%"}, []),
        ({"run_id": "cited234"}, ["Q-Werte", "Überschätzung"]),
        ({"run_id": "cited234", "text": "q-werte"}, ["Q-Werte"]),
    ],
    ids=str,
)
def test_entries_with_all_words_and_the_run_are_listed_newest_first(
    sqlite_db: Database, options: dict[str, str], found: list[str]
) -> None:
    create_entry(sqlite_db, title="Idea")
    create_entry(
        sqlite_db, title="Überschätzung", body="on corridor", view={"runs": [{"id": "abcd2345"}, {"id": "cited234"}]}
    )
    create_entry(sqlite_db, title="Q-Werte", body="on Corridor", run_id="cited234", view=cite("cited234"))
    assert [row.title for row in list_entries(sqlite_db, **options)] == found


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
    with pytest.raises(EntryNotFoundError, match=rf"\b{made}\b"):
        get_entry(db, made)
    restore_entry(db, deleted)
    restore_entry(db, deleted)
    assert list_entries(db) == [before]
    assert get_figure(db, made) == FIGURE
