"""Bundles: opened on Home, shown on every page, compared with the user's own runs, imported and removed."""

import os
import shlex
from pathlib import Path

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from app.cli.main import run
from app.navigation import PAGES
from app.notebook.export import export_entries
from app.ui.home import open_bundle
from app.ui.page_url import OPENED_BOX
from storage.bundles.bundle_cache import Bundle, cache_bundle, list_bundles
from storage.bundles.contents import WHOLE
from storage.bundles.read import find_cache
from storage.bundles.write import write_bundle
from storage.engine import open_database
from storage.models import Evaluation
from storage.notebook import list_entries
from storage.queries.runs import list_runs
from tests.pages.seed import seed_run
from tests.pages.several import seed_runs
from tests.pages.test_pages import open_page, said


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("theirs")
    db = open_database(f"sqlite:///{folder / 'theirs.db'}")
    run_id = seed_run(db, name="A <b>co-author's</b> run")
    ids = seed_runs(db, prefix="t", maps=("3m",))
    write_bundle(db, [run_id, *ids], folder / "study.emtc", WHOLE, made_by="emtc-lab test")
    return folder / "study.emtc", run_id


@pytest.fixture
def own(use_database, tmp_path):
    db = use_database(tmp_path / "own.db")
    return db, seed_runs(db, maps=("3m",))


@pytest.fixture
def opened(own, file) -> Bundle:
    return cache_bundle(file[0])


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def open_bundles() -> AppTest:
    """Open Home and its box *Bundles*."""
    app = open_page("home")
    app.session_state[OPENED_BOX] = "bundles"
    return app.run()


def type_path(app: AppTest, path: str) -> AppTest:
    app.text_input(key="bundle_path").input(path)
    return press(app, "Check and open")


def upload(app: AppTest, name: str, content: bytes) -> AppTest:
    return app.file_uploader[0].upload(name, content, "application/octet-stream").run()


def test_a_bundle_is_opened_by_its_path_shown_left_and_removed(own, file):
    app = type_path(open_bundles(), str(file[0]))
    assert not app.exception
    assert not app.error
    text = said(app).replace("\\", "")
    assert "5 runs: EMTC(QPLEX), QMIX on 3m, seeds 1, 2" in text
    assert "made by emtc-lab test" in text
    assert len(list_runs(own[0])) == 4, "nothing was imported"
    (bundle,) = list_bundles()
    press(app, "Open")
    app.switch_page("../pages/compare.py").run()
    assert "Evaluated runs that match: 5" in said(app), "the session keeps the bundle"
    assert any(f"--db {bundle.study} " in code.value for code in app.code)
    press(app, "Back to my own runs")
    assert "Evaluated runs that match: 4" in said(app)
    assert "from study" not in said(app)
    assert "from" not in app.query_params
    app = press(open_bundles(), "Remove")
    assert not app.exception
    assert list_bundles() == []
    assert list(find_cache().iterdir()) == []
    assert file[0].is_file()


@pytest.mark.parametrize("name", ["study.emtc", "../../../study.emtc"])
def test_an_upload_is_written_only_into_the_cache_folder_from_which_old_parts_are_deleted(own, file, tmp_path, name):
    left, in_use = find_cache() / ".opening-left", find_cache() / ".opening-in-use"
    for folder in (left, in_use):
        folder.mkdir(parents=True)
        (folder / "study.db").write_bytes(b"half")
    os.utime(left, (0, 0))
    app = upload(open_bundles(), name, file[0].read_bytes())
    assert not app.exception
    assert not app.error
    (bundle,) = list_bundles()
    assert bundle.name == "study.emtc"
    assert {path.name for path in find_cache().iterdir()} == {f"{bundle.key}.db", f"{bundle.key}.json", in_use.name}
    assert not list(tmp_path.rglob("*.emtc"))


def test_a_damaged_upload_is_refused_once_and_checked_once(own, file, monkeypatch):
    checks: list[Path] = []
    monkeypatch.setattr(open_bundle, "cache_bundle", lambda path: checks.append(path) or cache_bundle(path))
    app = upload(open_bundles(), "cut.emtc", file[0].read_bytes()[:9999])
    for _ in range(2):
        assert not app.exception
        assert ["is not a bundle of EMTC Lab" in error.value for error in app.error] == [True]
        app.run()
    assert len(checks) == 1
    assert list(find_cache().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.emtc", None, "There is no bundle at"),
        ("/etc/passwd", None, "bundle ends in"),
        ("cut.emtc", b"PK\3\4 cut", "is not a bundle of EMTC Lab"),
    ],
)
def test_an_invalid_path_shows_one_error_and_leaves_no_files(own, tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    app = type_path(open_bundles(), str(tmp_path / name))
    assert not app.exception
    assert [words in error.value.replace("\\", "") for error in app.error] == [True]
    assert list_bundles() == []
    assert not find_cache().exists() or list(find_cache().iterdir()) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_marks_a_bundle_as_read_only_and_disables_its_actions(own, opened, file, page):
    app = open_page(page, **{"from": opened.key})
    assert not app.exception
    assert not app.error
    assert "**Read-only: study\\.emtc.**" in said(app)
    assert app.query_params["from"] in (opened.key, [opened.key])
    links = [link.proto.query_string for link in app.sidebar.get("page_link")]
    assert {f"from={opened.key}" in query for query in links} == {True}, "links keep the bundle"
    acting = {button.label for button in app.button if not button.disabled}
    assert not acting & {
        "Start the demo run", "Start", "Start the sweep", "Pin to notebook", "Back up", "Vacuum", "Mark all as read",
        "Stop", "Resume", "Import …", "Save",
    }  # fmt: skip


def test_a_link_to_a_bundle_that_is_not_open_warns_and_shows_the_own_runs(own):
    app = open_page("home", **{"from": "0123456789abcdef"})
    assert not app.exception
    assert "bundle that is not open here" in said(app)
    assert "4 runs" in said(app)
    assert "from" not in app.query_params


def test_runs_of_a_bundle_are_compared_as_separate_lines(own, opened):
    app = open_page("compare", **{"with": opened.key})
    assert not app.exception
    assert not app.error
    text = said(app).replace("\\", "")
    assert "emtc open FILE --import" in text, "a command reads one database"
    assert "Evaluated runs that match: 4. Runs of study.emtc: 5." in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:5] == ["EMTC(QPLEX)", "EMTC(QPLEX), from study.emtc", "QMIX", "QMIX, from study.emtc"]


def test_a_bundle_without_robust_evaluations_makes_a_shared_task_greedy(own, opened):
    with own[0].transaction() as connection:
        connection.execute(update(Evaluation).values(robust_win_rate=0.25))
    alone, beside = open_page("compare"), open_page("compare", **{"with": opened.key})
    assert not beside.exception
    assert "Final robust win rate" in said(alone).replace("\\", "")
    assert "Final robust win rate" not in said(beside).replace("\\", "")
    assert "Greedy win rates on 3m, because runs" in said(beside).replace("\\", "")


def test_the_command_of_a_figure_of_a_bundle_names_its_database(own, opened, tmp_path):
    app = open_page("compare", **{"from": opened.key})
    assert not app.exception
    (command,) = (block.value for block in app.code if "--figure learning-curves" in block.value)
    out = tmp_path / "curves.csv"
    assert run([*shlex.split(command)[1:-1], str(out)]) == 0
    assert out.stat().st_size > 0


def test_an_import_is_summarized_first_and_its_runs_are_tagged_and_drawn_once(own, opened):
    db, _ = own
    app = press(open_bundles(), "Import …")
    assert "Adds 5 runs: " in said(app).replace("\\", "")
    assert len(list_runs(db)) == 4
    press(app, "Import 5 runs")
    assert not app.exception
    assert "Imported 5 runs from study.emtc" in "".join(each.value for each in app.success).replace("\\", "")
    found = list_runs(db)
    assert sorted(tuple(tags) for tags in found["tags"]).count(("from study.emtc",)) == 3
    assert len(found) == 9
    assert "9 runs" in said(app)
    press(app, "Import …")
    assert "Already in your database and not changed: " in said(app)
    app = open_page("compare", **{"with": opened.key})
    assert not app.exception
    text = said(app).replace("\\", "")
    assert "5 runs of the selected bundles are also in this database and are drawn once." in text
    assert ", from study.emtc" not in text


def test_a_read_only_server_shows_no_bundle(own, opened, monkeypatch):
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    app = open_page("home", **{"from": opened.key})
    app.session_state[OPENED_BOX] = "bundles"
    app.run()
    assert not app.file_uploader
    assert "study" not in said(app)
    assert "5 runs" not in said(app)
    app = open_page("compare", **{"with": opened.key}, runs=f"t0000@{opened.key}")
    assert "from study" not in said(app)


def test_single_runs_of_a_bundle_are_compared_and_pinned_to_the_own_notebook(own, opened):
    db, (run_id, *_) = own
    app = open_page("compare", runs=f"{run_id},t0000@{opened.key}")
    text = said(app).replace("\\", "")
    assert "EMTC(QPLEX), from study.emtc" in text
    assert "QMIX" not in text
    assert "not in the database" not in text
    app = press(open_page("compare", runs=f"t0000@{opened.key}"), "Pin to notebook")
    assert not app.exception
    assert not app.error
    (entry,) = list_entries(db)
    assert entry.run_id is None, "it is not a run of this database"
    assert "no longer in this database" not in said(open_page("notebook"))
    content = export_entries(db, [entry.id], "ipynb").decode()
    assert f"t0000@{opened.key}" in content
