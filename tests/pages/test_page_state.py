"""The state of a page: parameters of the URL, their widgets, and the view that a pin stores."""

import ast
import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, update

from app.notebook.view import make_view, read_view
from app.ui import page_state, page_url
from storage.models import Run
from storage.notebook import create_entry
from storage.runs.rows import find_run
from storage.runs.sweeps import PlannedRun, save_sweep
from tests.pages.conftest import read_address
from tests.pages.seed import seed_run
from tests.pages.test_pages import ROOT, open_page, said

MODULE = "app/ui/page_url.py"
VIEWS = {
    "home": {"q": "Seeded", "sort": "name", "down": "false", "states": "finished", "shelf": "all"},
    "launch": {"algo": "emtc-qmix", "map": "2s3z", "gate.tau_end": "0.3"},
    "run": {"find": "tau", "list": "preset"},
    "live": {"x": "0-150", "metrics": "train/loss", "smoothing": "0.6"},
    "memory": {
        "method": "umap",
        "color": "beta",
        "point": "3",
        "near": "true",
        "ranges": "t:5:40",
        "what_if": "true",
        "wi_tau": "10",
        "two": "true",
        "b_embedder": "tcse",
        "collapse": "true",
    },
    "replay": {"episode": "2", "beside": "3", "t": "4", "find": "episode<9", "episode_order": "episode"},
    "compare": {
        "y": "return",
        "center": "median",
        "band": "minmax",
        "rate": "greedy",
        "each": "true",
        "smooth": "20k",
        "log": "x",
        "part": "Runs",
        "final": "last",
        "algos": "emtc-qplex",
        "x": "0-150",
        "more_figures": "true",
    },
    "sweeps": {"template": "tau-study-demo", "jobs": "3"},
    "notebook": {"q": "Pinned", "about": "every"},
    "sql": {"q": "select 1", "table": "metrics", "rows": "100"},
    "health": {"unread": "true"},
    "method": {"part": "Presets", "algo": "qmix", "presets": "emu_code", "find": "tau"},
    "guide": {"page": "sweeps", "q": "seed"},
}
"""Page → parameters of a changed view, for each page that has any."""


def read_widgets(app, page: str) -> dict[str, object]:
    return {key: value for key, value in app.session_state.items() if str(key).startswith(f"{page}?")}


def test_only_one_module_reads_and_writes_the_url() -> None:
    found = []
    for folder in ("app", "pages"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if "query_params" not in text and "bind" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                is_url = isinstance(node, ast.Attribute) and ast.unparse(node) == "st.query_params"
                is_binding = (
                    isinstance(node, ast.keyword) and node.arg == "bind" and not isinstance(node.value, ast.Name)
                )
                if is_url or is_binding:
                    found.append(str(file.relative_to(ROOT)))
    assert set(found) == {MODULE}


@pytest.mark.parametrize("page", VIEWS)
def test_a_pin_of_a_changed_view_opens_the_same_view(seeded, monkeypatch, page):
    db, run_id = seeded
    pinned: list[dict[str, list[str]]] = []
    finish = page_url.finish_page

    def record() -> None:
        pinned.append(page_state.read_pinned())
        finish()

    create_entry(db, title="Pinned", body="β")
    monkeypatch.setattr(page_url, "finish_page", record)
    app = open_page(page, run=run_id, **VIEWS[page])
    assert not app.exception
    assert not [warning.value for warning in app.warning if "was not found" in warning.value]
    view = read_view(make_view(page=page, figure="", query=pinned[-1], runs=[], facts={}))
    assert view is not None
    assert {**view.query, "run": [run_id]}.items() >= {name: [text] for name, text in VIEWS[page].items()}.items()
    again = open_page(page, **{name: texts[0] for name, texts in view.query.items()})
    assert not again.exception
    assert read_widgets(again, page) == read_widgets(app, page)
    # the address of a pinned view also contains defaults that a later version may change
    assert read_address(again).items() >= read_address(app).items()


@pytest.mark.parametrize(
    ("page", "query", "shown"),
    [
        ("memory", {"snap": "5555"}, "snap"),
        ("memory", {"method": "FOO"}, "Shown instead: PCA"),
        ("memory", {"camera": "1,2,-3"}, "Shown instead: the whole map"),
        ("live", {"x": "nan-inf"}, "It is ignored"),
        ("live", {"ref": "gone"}, "ref"),
        ("compare", {"budget": "nothing"}, "Shown instead: most common length"),
        ("live", {"smoothing": "7"}, "Shown instead: 0.0"),
    ],
)
def test_a_value_that_is_not_found_is_named_in_one_line(seeded, page, query, shown):
    app = open_page(page, run=seeded[1], **query)
    assert not app.exception
    (name, text), *_ = query.items()
    (line,) = [str(warning.value).replace("\\", "") for warning in app.warning if "address" in str(warning.value)]
    assert f'{name} = "{text}", which was not found' in line
    assert shown in line
    assert "\n" not in line
    assert read_address(app).get(name) != text
    app.run()
    assert "which was not found" not in said(app)


def test_the_address_decides_again_when_it_changes(seeded):
    app = open_page("memory", run=seeded[1], point="3")
    app.number_input(key="memory?point").set_value(5).run()
    assert read_address(app)["point"] == "5"
    app.query_params["point"] = "3"  # as the back button does
    app.run()
    assert app.number_input(key="memory?point").value == 3


@pytest.mark.parametrize(("kind", "limits"), [(page_state.Integer, {}), (page_state.Number, {"low": 0})])
def test_a_second_declaration_of_a_name_is_refused_unless_it_is_the_same(kind, limits):
    for _ in range(2):
        page_state.Number("twice", "a page of a test")
    with pytest.raises(ValueError, match="two different parameters"):
        kind("twice", "a page of a test", **limits)


def read_list(app) -> dict:
    """Read what the list of the run picker draws; an empty dictionary while it is closed."""
    parts = [json.loads(part.proto.json) for part in app.get("bidi_component") if part.proto.json]
    return next((part for part in parts if "groups" in part), {})


def open_list(app):
    app.session_state[page_url.OPENED_BOX] = "run_picker_box-0"
    return app.run()


def test_the_list_of_runs_is_grouped_by_sweep_and_marks_the_current_run(seeded):
    db, run_id = seeded
    run = PlannedRun("key", "Two seeds · EMTC · seed 1", find_run(db, run_id).config, target_steps=100)
    save_sweep(db, "aaaa0000", name="Two seeds", plan={"runs": []}, runs=[run], versions={}, jobs=1)
    newest = seed_run(db, name="Newest")
    app = open_page("live", run=run_id)
    assert not read_list(app), "the list is drawn only while it is open"
    drawn = read_list(open_list(app))
    assert not app.exception
    assert drawn["current"] == run_id
    runs_by_group = {group["title"]: group["runs"] for group in drawn["groups"]}
    assert [run["name"] for run in runs_by_group["Two seeds"]] == ["EMTC · seed 1"]
    assert [run["id"] for run in runs_by_group["Single runs"]] == [newest, run_id]


@pytest.mark.parametrize("page", ["live", "compare"])
def test_a_run_that_was_deleted_elsewhere_is_replaced_by_the_newest_with_one_notice(seeded, page):
    db, newest = seeded
    deleted = seed_run(db, name="Deleted")
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == deleted).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    app = open_page(page, run=deleted)
    with db.transaction() as connection:
        connection.execute(delete(Run).where(Run.id == deleted))
    app.run()
    assert not app.exception
    assert not app.error
    assert read_address(app)["run"] == newest
    assert len([warning for warning in app.warning if deleted in warning.value]) == 1
    assert not app.run().warning


def test_a_link_to_a_missing_run_is_an_error_only_on_its_page(seeded):
    app = open_page("live", run="zzzz")
    assert len(app.error) == 1
    app.switch_page("../pages/memory.py")
    app.query_params["run"] = "zzzz"
    app.run()
    assert not app.error
    assert read_address(app)["run"] == seeded[1]


def test_a_run_is_not_overlaid_on_itself(seeded):
    db, run_id = seeded
    other = seed_run(db, name="Other")
    app = open_page("live", run=run_id, ref=f"{run_id},{other}", list="true")
    assert not app.exception
    lists = [json.loads(part.proto.json) for part in app.get("bidi_component") if "isolates" in part.proto.json]
    runs = {run["id"]: run["shown"] for group in lists[0]["groups"] for run in group["runs"]}
    assert runs == {other: "true"}
