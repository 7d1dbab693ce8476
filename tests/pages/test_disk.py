"""Storage: sizes of runs; thinning, vacuum and backup report what they did."""

import pytest

from app.analysis.format import MISSING
from app.ui.disk import table_key
from storage.engine import open_database
from storage.maintenance.sizes import measure_sizes
from storage.queries.episodes import list_episodes
from storage.queries.memory import list_snapshots
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said
from tests.postgres import temporary_postgres_database


def select(db, app, *run_ids):
    runs = measure_sizes(db).runs
    rows = [row for row, run in enumerate(runs) if run.run_id in run_ids]
    app.session_state[table_key(runs)] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


@pytest.mark.postgres
def test_a_database_on_a_server_offers_no_backup_and_no_folders_of_another_database(
    postgres_server, use_database, tmp_path, monkeypatch
):
    use_database(tmp_path / "unused.db").dispose()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "emtc-lab" / "gone1234"
    folder.mkdir(parents=True)
    (folder / "checkpoint-000000000001.pt").write_bytes(b"x" * 77)
    with temporary_postgres_database(postgres_server) as url:
        open_database(url).dispose()
        monkeypatch.setenv("EMTC_DB", url)
        app = open_page("disk")
        assert not app.exception
        assert not app.error
        assert "backup" not in [button.key for button in app.button]
        assert "pg_dump" in said(app)
        assert "Folders of deleted runs" not in said(app)
        assert {metric.label: metric.value for metric in app.metric}["Freed by a vacuum"] == MISSING


def test_data_is_counted_before_it_is_removed(seeded):
    db, run_id = seeded
    app = open_page("disk")
    row = app.dataframe[0].value.iloc[0]
    assert (row["id"], row["name"]) == (run_id, "Seeded run")
    assert row["total"] >= row["transitions"] + row["snapshots"] > 0
    app = select(db, app, run_id)
    assert "Select the data to remove" in said(app)
    app.checkbox(key="thin_trajectories").check()
    app.text_input(key="thin_snapshots").set_value("2").run()
    assert "8 trajectories, 1 snapshot" in said(app).replace("\\", "")
    assert len(list_snapshots(db, run_id)) == 2
    app.button(key="thin").click().run()
    assert not app.exception
    assert "8 trajectories, 1 snapshot" in app.success[0].value.replace("\\", "")
    assert len(list_snapshots(db, run_id)) == 1
    assert len(list_episodes(db, run_id)) == 8
    assert "was deleted by thinning" in said(open_page("replay", run=run_id, episode="1"))
    assert not open_page("live", run=run_id).error


def test_an_active_run_is_not_thinned_and_a_new_run_clears_the_selection(seeded):
    db, run_id = seeded
    before = table_key(measure_sizes(db).runs)
    busy = seed_run(db, name="Busy", status="running")
    assert table_key(measure_sizes(db).runs) != before
    app = select(db, open_page("disk"), run_id, busy)
    app.checkbox(key="thin_transitions").check().run()
    assert [warning.value.count("is running") for warning in app.warning] == [1]
    assert "removes from 1 run" in said(app)
    app.button(key="vacuum").click().run()
    assert "must wait until no run is active" in app.error[0].value


def test_backup_and_vacuum_report_what_they_did(seeded):
    app = open_page("disk")
    app.button(key="backup").click().run()
    assert "Copied to" in app.success[0].value
    assert len(list(seeded[0].path.parent.glob("seeded.backup-*.db"))) == 1
    app.button(key="vacuum").click().run()
    assert "Vacuumed" in app.success[0].value
