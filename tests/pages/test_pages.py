"""Every page on an empty, a seeded and a failed database, reached as a user reaches it: through Home.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, func, insert, select, update
from streamlit.testing.v1 import AppTest

from app.analysis.collapse import measure_collapse, scale_like_memory
from app.analysis.format import format_number, format_percent
from app.analysis.neighborhoods import find_outliers, measure_neighbor_agreement
from app.analysis.projections.linear import compute_pca
from app.navigation import HOME
from app.navigation import PAGES as EVERY_PAGE
from app.ui.live.all_metrics import MAX_POINTS
from app.ui.page_url import OPENED_BOX
from emtc_core.config.resolve import resolve
from storage.models import EpisodeRow, Evaluation, MetricRow, Run, SnapshotRow
from storage.queries.curves import metric_names
from storage.queries.episodes import EMPTY_TRAJECTORY, get_trajectory
from storage.queries.final_rates import FINAL_RATE_LABEL
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.recording.writer import DatabaseRecorder
from tests.pages.seed import seed_run
from tests.storage.records import make_snapshot

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("home", "launch", "run", "live", "memory", "replay")
RENAMED = ("disk",)
"""Pages whose address is not named after their file: AppTest finds them after another page was drawn."""


def start_app() -> AppTest:
    """The app before its first run; its patience is for a busy machine, no page needs it."""
    return AppTest.from_file(str(ROOT / "app" / "Home.py"), default_timeout=120)


def open_page(page: str, /, **query: str) -> AppTest:
    """Open a page as its link does, without another one before it."""
    app = start_app()
    if page in RENAMED:
        app.run()
    if page != "home":
        app.switch_page(f"../pages/{page}.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def said(app: AppTest) -> str:
    parts = [*app.markdown, *app.caption, *app.error, *app.warning, *app.info, *app.title, *app.subheader]
    links = [link.proto.label for link in app.get("page_link")]
    return "\n".join([*(str(part.value) for part in parts), *links])


def explained(app: AppTest) -> str:
    """What the tooltips of texts, headings and badges say."""
    return "\n".join(str(part.proto.help) for part in app.markdown)


def read_last_snapshot(db, run_id: str) -> Snapshot:
    return get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))


def read_map(app: AppTest, key: str) -> Any:
    """Read a value that a memory map gets from the server."""
    parts = [json.loads(part.proto.json) for part in app.get("bidi_component") if f'"{key}"' in part.proto.json]
    return parts[0][key]


@pytest.mark.parametrize("page", [*PAGES, "disk", "sql", "health"])
def test_a_page_opens_on_an_empty_database(empty, page):
    app = open_page(page)
    assert not app.exception
    assert not app.error
    assert "There is no run yet" in said(app) or page in ("launch", "sql", "health")


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_page_opens_on_a_seeded_database(seeded, page):
    app = open_page(page, run=seeded[1])
    assert not app.exception
    assert not app.error
    assert app.title[0].value == ("EMTC Lab" if page == HOME else EVERY_PAGE[page].title)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_on_a_failed_run_and_shows_the_reason_and_its_name_as_text(failed, page):
    app = open_page(page, run=failed[1])
    assert not app.exception
    reasons = {
        "run": "could not be started",
        "live": "could not be started",
        "memory": "ended before its first snapshot",
        "replay": "contains no episodes of this run",
    }
    if page in reasons:
        assert reasons[page] in said(app)
        assert "\\<b\\>run" in said(app)
    assert "<b>run" not in said(app)


@pytest.mark.parametrize("page", ["run", "live"])
def test_an_unknown_run_is_one_sentence_with_a_command(seeded, page):
    app = open_page(page, run="zzzz")
    assert not app.exception
    assert ["zzzz" in error.value and "emtc runs" in error.value for error in app.error] == [True]


@pytest.mark.parametrize(
    ("page", "query"),
    [
        *((page, {"x": "nan-inf", "episode": "<script>", "point": "9" * 40}) for page in PAGES),
        ("memory", {"snap": "-1", "method": "evil", "color": "evil", "lasso": "1,2", "ranges": "h:nan:1"}),
        ("memory", {"camera": "1,2,-3", "point": "5", "against": "999"}),
        ("notebook", {"q": "<b>" * 500, "about": "nobody", "sheet": "-5", "entry": "'; drop"}),
        ("replay", {"episode": "1", "beside": "<script>"}),
        ("replay", {"episode": "1", "beside": "999"}),
        ("replay", {"episode": "1", "beside_play": "1-2-3"}),
        ("replay", {"play": "1-0"}),
        ("replay", {"episode": "1", "beside": "1", "beside_run": "zzzz"}),
    ],
)
def test_hostile_url_parameters_are_harmless(seeded, page, query):
    assert not open_page(page, run=seeded[1], **query).exception


def test_an_unreadable_database_is_one_sentence(monkeypatch, use_database, tmp_path):
    use_database(tmp_path / "fine.db")
    monkeypatch.setenv("EMTC_DB", "sqlite:////proc/nowhere/x.db")
    app = start_app().run()
    assert not app.exception
    assert len(app.error) == 1
    assert "EMTC_DB" in said(app)


def test_the_app_reports_that_its_database_file_was_moved(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    assert not app.error
    away = db.path.rename(db.path.with_suffix(".away"))
    app.run()
    assert ["moved" in error.value for error in app.error] == [True]
    away.rename(db.path)
    assert not app.run().error


def test_the_header_of_an_ended_run_has_its_final_win_rate_and_no_progress(seeded):
    db, run_id = seeded
    with db.transaction() as connection:
        reached = connection.execute(select(func.max(Evaluation.env_step)).where(Evaluation.run_id == run_id)).scalar()
        connection.execute(update(Run).where(Run.id == run_id).values(target_steps=reached, env_steps=reached))
    metrics = {metric.label: metric.value for metric in open_page("live", run=run_id).metric}
    assert metrics[FINAL_RATE_LABEL] == "50 % greedy"
    assert not any("left" in label or "Speed" in label for label in metrics)
    with db.transaction() as connection:
        for step, rate in ((0, 0.1), (reached, 0.75)):
            here = (Evaluation.run_id == run_id, Evaluation.env_step >= step)
            connection.execute(update(Evaluation).where(*here).values(robust_win_rate=rate))
    app = open_page("live", run=run_id)
    final = next(metric for metric in app.metric if metric.label == FINAL_RATE_LABEL)
    assert final.value == "75 % robust"
    assert "Last greedy evaluation: 50 %" in final.help
    assert not app.get("progress")


def test_all_metrics_draws_a_small_chart_of_each_metric_that_the_search_finds(seeded):
    db, run_id = seeded
    charts = list_small_charts(open_page("live", run=run_id, part="metrics"))
    assert {*charts} == set(metric_names(db, run_id))
    assert charts["gate/beta_drift"]["unit"] == "fraction"
    assert not list_small_charts(open_page("live", run=run_id)), "the other tab sends none of them"
    app = open_page("live", run=run_id, part="metrics", find="current memory drift")
    assert not app.exception
    assert [*list_small_charts(app)] == ["gate/beta_drift"]
    assert [str(part.value) for part in app.markdown if str(part.value).startswith("##### ")] == ["##### gate"]


def list_small_charts(app: AppTest) -> dict[str, dict[str, Any]]:
    """List the panels of the small charts by the name of the metric, which starts their description."""
    charts: dict[str, dict[str, Any]] = {}
    for part in app.get("bidi_component"):
        content = json.loads(part.proto.json) if part.proto.json else {}
        if isinstance(content, dict) and content.get("opens"):
            charts[content["alt"].partition(":")[0]] = content["panels"][0]
    return charts


def test_a_small_chart_keeps_the_extremes_of_a_long_line(seeded):
    db, run_id = seeded
    with db.transaction() as connection:
        rows = [
            {"run_id": run_id, "env_step": step, "name": "train/td_loss", "value": 9.0 if step == 777 else step % 7}
            for step in range(1, 1001)
        ]
        connection.execute(insert(MetricRow), rows)
    (line,) = list_small_charts(open_page("live", run=run_id, part="metrics"))["train/td_loss"]["lines"]
    assert len(line["x"]) <= MAX_POINTS
    assert (line["x"][0], line["x"][-1]) == (1, 1000)
    assert (min(line["y"]), max(line["y"])) == (0, 9)


def test_a_chart_is_smoothed_for_files_only_while_export_is_open(seeded, monkeypatch):
    smoothed = []
    monkeypatch.setattr("app.ui.live.cells.smooth_chart", lambda chart, weight: smoothed.append(weight) or chart)
    app = open_page("live", run=seeded[1], smoothing="0.9")
    assert not app.exception
    assert smoothed == [], "the browser smooths what is shown"
    app.session_state[OPENED_BOX] = "live-outcomes-win rate-export"
    app.run()
    assert not app.exception
    assert smoothed == [0.9]


def test_a_run_without_snapshots_links_the_runs_that_have_some(seeded):
    db, run_id = seeded
    with db.writer.begin() as connection:
        connection.execute(delete(SnapshotRow).where(SnapshotRow.run_id == run_id))
    seed_run(db, name="With snapshots")
    app = open_page("memory", run=run_id)
    assert not app.exception
    assert "no memory snapshots of this finished run" in said(app)
    assert [link.label for link in app.get("page_link") if link.label == "With snapshots"]


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
def test_memory_reports_a_collapsed_embedding_under_every_projection(seeded, method):
    db, run_id = seeded
    recorder = DatabaseRecorder(db, run_id)
    snapshot = make_snapshot(10, 40)
    recorder.record_snapshot(replace(snapshot, embedding=np.full_like(snapshot.embedding, 0.3)))
    recorder.close()
    snapshots = list_snapshots(db, run_id)
    chosen = str(snapshots.loc[snapshots["env_step"] == 10, "id"].item())
    app = open_page("memory", run=run_id, method=method, snap=chosen, collapse="true")
    assert not app.exception
    assert not app.error
    assert "All nodes have the same embedding." in said(app)


def test_memory_lists_the_states_that_it_confuses_until_one_is_selected(seeded):
    snapshot = read_last_snapshot(*seeded)
    outliers = find_outliers(snapshot, scale_like_memory(snapshot.embedding))
    app = open_page("memory", run=seeded[1])
    listed = next(frame.value for frame in app.dataframe if "difference" in frame.value)
    assert listed["memory"].tolist() == [each.slot for each in outliers]
    assert listed["difference"].tolist() == [each.h - each.neighbors_h for each in outliers]
    assert len(read_map(app, "outliers")) == len(outliers)
    app.number_input(key="memory?point").set_value(outliers[0].slot).run()
    assert not app.exception
    assert not [frame for frame in app.dataframe if "difference" in frame.value]
    app.button(key="deselect").click().run()
    assert [frame for frame in app.dataframe if "difference" in frame.value]


def test_a_typed_memory_id_opens_its_entry_and_an_unknown_one_is_one_sentence(seeded):
    app = open_page("memory", run=seeded[1])
    app.number_input(key="memory?point").set_value(5).run()
    assert not app.exception
    assert not app.error
    assert "wrote this memory at t =" in said(app)
    assert app.query_params["point"] in ("5", ["5"])
    app.number_input(key="memory?point").set_value(99999).run()
    assert not app.exception
    assert ["99999" in error.value for error in app.error] == [True]


def test_the_nearest_nodes_of_a_node_are_listed_by_distance(seeded):
    snapshot = read_last_snapshot(*seeded)
    app = open_page("memory", run=seeded[1], point="7", near="true")
    assert not app.exception
    listed = next(frame.value for frame in app.dataframe if "distance" in frame.value)
    scaled = (snapshot.embedding - snapshot.embedding.mean(0)) / snapshot.embedding.std(0)
    away = np.linalg.norm(scaled - scaled[snapshot.slot.tolist().index(7)], axis=1)
    rows = np.argsort(away)[1:11]
    assert listed["memory"].tolist() == snapshot.slot[rows].tolist()
    assert listed["H [return]"].tolist() == [format_number(float(h)) for h in snapshot.h[rows]]
    assert (listed["ξ"] == "desirable").tolist() == snapshot.xi[rows].tolist()


def test_the_opposite_of_an_episode_is_found_and_compared_in_numbers(seeded):
    db, run_id = seeded
    app = open_page("memory", run=run_id, point="5")
    app.button(key="find_opposite").click().run()
    assert not app.exception
    (against,) = app.query_params["against"]
    assert app.number_input(key="memory?against").value == int(against) != 1
    for number in (1, int(against)):
        largest = get_trajectory(db, run_id, number).delta_mem.max()
        assert f"largest {largest:.3g}".replace(".", "\\.") in said(app)
    assert said(app).index("episode 1, won") < said(app).index(f"episode {against}, not won"), "the won one is first"


def test_a_link_to_a_selection_shows_its_counts_and_its_neighbor_agreement(seeded):
    snapshot = read_last_snapshot(*seeded)
    app = open_page("memory", run=seeded[1], ranges="t:0:4;xi:1:1", agreement="true")
    assert not app.exception
    assert f"20 of {snapshot.size}" in said(app), "five states of each of four episodes that were won"
    assert read_map(app, "n") == read_map(app, "nMemory") == snapshot.size
    rows = app.dataframe[0].value.set_index("")
    assert rows.loc["episodes of origin", "selected"] == "4"
    assert rows.loc["desirable, ξ", "selected"] == "1"
    chosen = np.flatnonzero((snapshot.t <= 4) & snapshot.xi)
    found = measure_neighbor_agreement(snapshot.embedding, compute_pca(snapshot.embedding).coordinates, chosen)
    assert f"**{format_percent(found.selected)}** in the selection ({len(chosen)} nodes measured)" in said(app)


def test_a_second_map_starts_with_the_first_snapshot_and_has_its_numbers_and_nodes(seeded):
    db, run_id = seeded
    first, last = (int(each) for each in list_snapshots(db, run_id)["id"])
    query = {"collapse": "true", "b_collapse": "true", "point": "4", "map": "b_"}
    app = open_page("memory", run=run_id, two="true", **query)
    assert not app.exception
    assert not app.error
    assert [app.select_slider(key=key).value for key in ("memory?snap", "memory?b_snap")] == [last, first]
    tables = [frame.value for frame in app.dataframe if "value [95 %]" in frame.value]
    assert sum("by chance" in str(part.value) for part in app.markdown) == len(tables) == 2
    for table, snapshot in zip(tables, (get_snapshot(db, last), get_snapshot(db, first)), strict=True):
        numbers = measure_collapse(snapshot, delta=resolve(preset="demo").memory.delta)
        assert table["value [95 %]"].iloc[0].startswith(format_number(numbers["h_r2_knn"].value))
    fields = next(frame.value for frame in app.dataframe if "field" in frame.value).set_index("field")
    assert fields.loc["snapshot at env step", "value"] == f"{get_snapshot(db, first).env_step:,}"


def test_an_embedder_that_was_never_fitted_is_offered_for_a_second_map(seeded):
    app = open_page("memory", run=seeded[1], two="true", b_embedder="random")
    assert not app.exception
    assert "PCA of random projection" in said(app)
    assert app.button(key="compute_projectionatlas-b").label == "Compute PCA of random projection"


def test_a_node_of_a_thinned_episode_is_shown_without_an_error(seeded):
    db, run_id = seeded
    snapshot = read_last_snapshot(db, run_id)
    with db.transaction() as connection:
        connection.execute(update(EpisodeRow).where(EpisodeRow.run_id == run_id).values(trajectory=EMPTY_TRAJECTORY))
    app = open_page("memory", run=run_id, point=str(snapshot.slot[3]))
    assert not app.exception
    assert not app.error
    assert any("was deleted by thinning" in each.value for each in app.info)
    assert {metric.label: metric.value for metric in app.metric}["H"] == format_number(float(snapshot.h[3]))
