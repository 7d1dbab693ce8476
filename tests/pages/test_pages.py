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
from app.ui.live.all_metrics import MAX_POINTS
from app.ui.page_url import OPENED_BOX
from emtc_core.config.resolve import resolve
from storage.models import EpisodeRow, Evaluation, MetricRow, Run, SnapshotRow
from storage.queries.curves import metric_names
from storage.queries.episodes import EMPTY_TRAJECTORY, get_trajectory
from storage.queries.final_rates import FINAL_RATE_LABEL
from storage.queries.memory import get_snapshot, list_snapshots
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


def test_every_page_is_found_by_its_file(seeded):
    pages = [file.stem for file in (ROOT / "pages").glob("[!_]*.py")]
    assert len({open_page(page).title[0].value for page in pages}) == len(pages) > 10


@pytest.mark.parametrize("page", PAGES)
def test_page_opens_on_an_empty_database_and_says_what_to_do(empty, page):
    app = open_page(page)
    assert not app.exception
    assert not app.error
    assert "There is no run yet" in said(app) or page == "launch"


@pytest.mark.parametrize("page", PAGES)
def test_page_opens_on_a_seeded_database(seeded, page):
    app = open_page(page, run=seeded[1])
    assert not app.exception
    assert not app.error
    assert app.title[0].value


def test_memory_names_a_collapsed_embedding_under_every_projection(seeded):
    db, run_id = seeded
    recorder = DatabaseRecorder(db, run_id)
    snapshot = make_snapshot(10, 40)
    recorder.record_snapshot(replace(snapshot, embedding=np.full_like(snapshot.embedding, 0.3)))
    recorder.close()
    snapshots = list_snapshots(db, run_id)
    chosen = str(snapshots.loc[snapshots["env_step"] == 10, "id"].item())
    for method in ("pca", "tsne", "umap"):
        app = open_page("memory", run=run_id, method=method, snap=chosen, collapse="true")
        assert not app.exception
        assert not app.error
        assert "All nodes have the same embedding." in said(app)


def test_memory_says_that_a_finished_run_came_without_its_snapshots(seeded):
    db, run_id = seeded
    with db.writer.begin() as connection:
        connection.execute(delete(SnapshotRow).where(SnapshotRow.run_id == run_id))
    assert "no memory snapshots of this finished run" in said(open_page("memory", run=run_id))


def test_memory_links_the_runs_with_snapshots_if_a_run_has_none(seeded):
    db, run_id = seeded
    with db.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM snapshots")
    seed_run(db, name="With snapshots")
    app = open_page("memory", run=run_id)
    assert not app.exception
    assert [link.label for link in app.get("page_link") if link.label == "With snapshots"]


@pytest.mark.parametrize("page", PAGES)
def test_page_opens_on_a_failed_run_and_tells_why_or_what_to_do(failed, page):
    app = open_page(page, run=failed[1])
    assert not app.exception
    if page == "memory":
        assert "ended before its first snapshot" in said(app)
    if page == "replay":
        assert "contains no episodes of this run" in said(app)
    if page == "live":
        assert "could not be started" in said(app)


@pytest.mark.parametrize("page", ["run", "live", "memory", "replay"])
def test_unknown_run_is_one_sentence_and_one_action(seeded, page):
    app = open_page(page, run="zzzz")
    assert not app.exception
    assert [error.value for error in app.error] == ['Run "zzzz" not found\\. List runs with\\: emtc runs']


@pytest.mark.parametrize("page", PAGES)
def test_hostile_url_parameters_are_harmless(seeded, page):
    app = open_page(
        page,
        run=seeded[1],
        snap="-1",
        point="9" * 40,
        x="nan-inf",
        episode="<script>",
        method="evil",
        lasso="1,2",
        ranges="h:nan:1",
        camera="1,2,-3",
        color="evil",
    )
    assert not app.exception


def test_what_users_typed_is_shown_as_text_and_not_as_markup(failed):
    app = open_page("live", run=failed[1])
    assert "\\<b\\>run\\<\\/b\\>" in said(app) or "\\<b\\>run\\</b\\>" in said(app)


def test_home_lists_runs_and_the_guide_offers_the_demo(seeded):
    assert not open_page("guide").button(key="start_demo").disabled
    app = open_page("home")
    assert any("called=Seeded%20run&" in link for link in app.dataframe[0].value["name"])


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


def test_a_link_with_metrics_opens_them_enlarged(seeded):
    app = open_page("live", run=seeded[1], metrics="gate/beta_drift")
    assert not app.exception
    assert app.query_params["part"] == "metrics"
    assert "the beta from the current memory" in explained(app)
    app.button(key="live_close").click().run()
    assert "metrics" not in app.query_params
    assert "the beta from the current memory" not in explained(app)


def test_live_smooths_a_chart_for_files_only_while_export_is_open(seeded, monkeypatch):
    smoothed = []
    monkeypatch.setattr("app.ui.live.cells.smooth_chart", lambda chart, weight: smoothed.append(weight) or chart)
    app = open_page("live", run=seeded[1], smoothing="0.9")
    assert not app.exception
    assert smoothed == [], "the browser smooths what is shown"
    app.session_state[OPENED_BOX] = "live-outcomes-win rate-export"
    app.run()
    assert not app.exception
    assert smoothed == [0.9]


def test_live_without_a_run_in_the_address_shows_the_newest(seeded):
    app = open_page("live")
    assert "Seeded run" in said(app)


def test_memory_says_how_many_nodes_it_shows_and_how_they_were_chosen(seeded):
    db, run_id = seeded
    app = open_page("memory", run=run_id)
    text = said(app)
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    data = next(json.loads(each.proto.json) for each in app.get("bidi_component") if '"nMemory"' in each.proto.json)
    assert (data["n"], data["nMemory"]) == (snapshot.size, snapshot.size)
    assert "PCA" in data["alt"]
    assert (
        "Snapshot at env step" in [each.label for each in app.select_slider]
        or "One snapshot so far, at env step" in text
    )


def test_memory_lists_the_states_that_it_confuses_until_one_is_selected(seeded):
    db, run_id = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    outliers = find_outliers(snapshot, scale_like_memory(snapshot.embedding))
    app = open_page("memory", run=run_id)
    listed = next(frame.value for frame in app.dataframe if "difference" in frame.value)
    assert listed["memory"].tolist() == [each.slot for each in outliers]
    assert listed["difference"].tolist() == [each.h - each.neighbors_h for each in outliers]
    marks = next(json.loads(each.proto.json) for each in app.get("bidi_component") if '"outliers"' in each.proto.json)
    assert len(marks["outliers"]) == len(outliers)
    app.number_input(key="memory?point").set_value(outliers[0].slot).run()
    assert not app.exception
    assert not [frame for frame in app.dataframe if "difference" in frame.value]
    app.button(key="deselect").click().run()
    assert [frame for frame in app.dataframe if "difference" in frame.value]


def test_typing_a_memory_id_opens_its_entry_and_replay(seeded):
    app = open_page("memory", run=seeded[1])
    app.number_input(key="memory?point").set_value(5).run()
    assert not app.exception
    assert not app.error
    text = said(app)
    assert "Memory 5" in text
    assert "wrote this memory at t =" in text
    assert app.query_params["point"] == ["5"] or app.query_params["point"] == "5"


def test_link_to_a_point_opens_the_same_entry(seeded):
    app = open_page("memory", run=seeded[1], point="5")
    assert "Memory 5" in said(app)
    assert app.number_input(key="memory?point").value == 5


def test_an_episode_is_held_against_another_in_numbers(seeded):
    db, run_id = seeded
    app = open_page("memory", run=run_id, point="5", against="2")
    assert not app.exception
    episodes = [get_trajectory(db, run_id, number) for number in (1, 2)]
    for episode in episodes:
        told = f"largest {episode.delta_mem.max():.3g}".replace(".", "\\.")
        assert told in said(app)
    assert said(app).index("episode 1, won") < said(app).index("episode 2, not won"), "the good one stands first"


def test_the_opposite_of_an_episode_is_found_and_kept_in_the_address(seeded):
    app = open_page("memory", run=seeded[1], point="5")
    app.button(key="find_opposite").click().run()
    assert not app.exception
    (against,) = app.query_params["against"]
    assert app.number_input(key="memory?against").value == int(against) != 1


def test_an_episode_that_there_is_not_is_one_sentence_beside_the_map(seeded):
    app = open_page("memory", run=seeded[1], point="5", against="999")
    assert not app.exception
    assert "999" in said(app)
    assert "wrote this memory at t =" in said(app)


def test_a_link_to_a_selection_shows_what_was_selected(seeded):
    app = open_page("memory", run=seeded[1], ranges="t:0:4;xi:1:1")
    assert not app.exception
    assert "20 of" in said(app), "five states of each of four episodes that were won"
    assert "N_ξ" in said(app) or "success" in " ".join(app.dataframe[0].value[""])
    rows = app.dataframe[0].value.set_index("")
    assert rows.loc["episodes of origin", "selected"] == "4"
    assert rows.loc["desirable, ξ", "selected"] == "1"


def test_two_maps_stand_side_by_side_with_the_numbers_of_each(seeded):
    db, run_id = seeded
    first = int(list_snapshots(db, run_id)["id"].iloc[0])
    app = open_page("memory", run=run_id, two="true", b_snap=str(first), collapse="true", b_collapse="true")
    assert not app.exception
    assert not app.error
    tables = [frame.value for frame in app.dataframe if "value [95 %]" in frame.value]
    assert [table["quantity"].tolist()[0].partition(" predicted")[0] for table in tables] == ["R² of H", "R² of H"]
    assert all(not value.startswith("–") for table in tables for value in table["value [95 %]"])
    assert sum("by chance" in str(part.value) for part in app.markdown) == 2, "each has its verdict in words"
    assert tables[0]["nodes"].tolist() != tables[1]["nodes"].tolist(), "the numbers are those of each snapshot"
    snapshot = get_snapshot(db, first)
    numbers = measure_collapse(snapshot, delta=resolve(preset="demo").memory.delta)
    assert tables[1]["value [95 %]"].iloc[0].startswith(format_number(numbers["h_r2_knn"].value))


def test_a_node_of_the_second_map_is_read_from_its_snapshot(seeded):
    db, run_id = seeded
    first = int(list_snapshots(db, run_id)["id"].iloc[0])
    app = open_page("memory", run=run_id, two="true", b_snap=str(first), point="4", map="b_")
    assert not app.exception
    fields = next(frame.value for frame in app.dataframe if "field" in frame.value)
    told = dict(zip(fields["field"], fields["value"], strict=True))
    assert told["snapshot at env step"] == f"{get_snapshot(db, first).env_step:,}"


def test_an_embedder_that_was_never_fitted_is_offered_and_the_own_one_shown(seeded):
    app = open_page("memory", run=seeded[1], two="true", b_embedder="random")
    assert not app.exception
    assert "PCA of random projection" in said(app)
    assert app.button(key="compute_projectionatlas-b").label == "Compute PCA of random projection"


def test_how_far_a_region_of_the_map_can_be_trusted_is_told_when_asked(seeded):
    db, run_id = seeded
    app = open_page("memory", run=run_id, ranges="t:0:4", agreement="true")
    assert not app.exception
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    rows = np.flatnonzero(snapshot.t <= 4)
    found = measure_neighbor_agreement(snapshot.embedding, compute_pca(snapshot.embedding).coordinates, rows)
    assert f"**{format_percent(found.selected)}** in the selection ({len(rows)} nodes measured)" in said(app)


def test_unknown_memory_id_is_one_sentence(seeded):
    app = open_page("memory", run=seeded[1], point="99999")
    assert not app.exception
    assert len(app.error) == 1
    assert "99999" in app.error[0].value


def test_replay_offers_training_episodes_and_playbacks(seeded):
    app = open_page("replay", run=seeded[1])
    assert not app.exception
    assert "Training episode" in said(app)
    app.segmented_control(key="replay?source").set_value("evaluation").run()
    assert not app.exception
    assert "Evaluation at step" in said(app)


def test_link_to_an_episode_opens_it(seeded):
    app = open_page("replay", run=seeded[1], episode="3")
    assert "Training episode 3" in said(app)


def test_unreadable_database_is_one_sentence(monkeypatch, use_database, tmp_path):
    use_database(tmp_path / "fine.db")
    monkeypatch.setenv("EMTC_DB", "sqlite:////proc/nowhere/x.db")
    app = start_app().run()
    assert not app.exception
    assert len(app.error) == 1
    assert "EMTC_DB" in said(app)


def test_the_app_says_that_its_database_file_was_moved(seeded):
    db, run_id = seeded
    app = open_page("run", run=run_id)
    assert not app.error
    away = db.path.rename(db.path.with_suffix(".away"))
    app.run()
    assert ["moved" in error.value for error in app.error] == [True]
    away.rename(db.path)
    assert not app.run().error


def test_launch_form_refuses_a_wrong_value_before_anything_starts(empty):
    app = open_page("launch")
    box = next(box for box in app.text_input if box.key == "set-gate.tau_end")
    box.set_value("9").run()
    assert not app.exception
    assert any("tau\\_end must be" in error.value for error in app.error)
    assert app.button(key="start").disabled


def test_launch_form_explains_each_setting_with_its_key(empty):
    app = open_page("launch")
    box = next(box for box in app.text_input if box.key == "set-gate.tau_start")
    assert "--set gate.tau_start=" in box.help


def test_launch_form_refuses_seeds_that_are_no_seeds(empty):
    app = open_page("launch")
    app.text_input(key="seeds").set_value("one").run()
    assert any("Must be written as 1, 1,2,5 or 1" in error.value for error in app.error)


def test_launch_form_says_what_a_run_will_cost(empty):
    app = open_page("launch")
    labels = [metric.label for metric in app.metric]
    assert "Expected duration" in labels
    assert "Expected disk use" in labels


def test_another_projection_does_not_measure_the_embedding_again(seeded, monkeypatch):
    from app.ui import memory_data

    measured: list[int] = []
    really = memory_data.measure_collapse
    monkeypatch.setattr(
        memory_data, "measure_collapse", lambda *given, **named: measured.append(1) or really(*given, **named)
    )
    for method in ("umap", "pca"):
        app = open_page("memory", run=seeded[1], method=method, collapse="true")
        assert not app.exception
        assert not app.error
        assert any("by chance" in str(part.value) for part in app.markdown)
    assert len(measured) == 1


def test_a_second_map_begins_with_another_snapshot(seeded):
    db, run_id = seeded
    ids = [int(each) for each in list_snapshots(db, run_id)["id"]]
    app = open_page("memory", run=run_id, two="true")
    assert not app.exception
    shown = [app.select_slider(key=key).value for key in ("memory?snap", "memory?b_snap")]
    assert shown == [ids[-1], ids[0]]


def test_the_nearest_nodes_of_a_node_are_listed_with_what_they_are_worth(seeded):
    db, run_id = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    app = open_page("memory", run=run_id, point="7", near="true")
    assert not app.exception
    listed = next(frame.value for frame in app.dataframe if "distance" in frame.value)
    assert listed.columns.tolist() == ["memory", "distance", "H [return]", "ξ", "Δ_mem [return]", "episode", "t"]
    scaled = (snapshot.embedding - snapshot.embedding.mean(0)) / snapshot.embedding.std(0)
    away = np.linalg.norm(scaled - scaled[snapshot.slot.tolist().index(7)], axis=1)
    assert listed["memory"].tolist() == snapshot.slot[np.argsort(away)[1:11]].tolist()
    assert set(listed["ξ"]) <= {"desirable", "not yet"}


def test_another_run_stands_beside_on_live_and_in_its_link(seeded):
    db, run_id = seeded
    other = seed_run(db, name="The other")
    app = open_page("live", run=run_id, ref=f"{other},nonsense")
    assert not app.exception
    assert "for reference\\: The other" in explained(app)
    assert "for reference" not in explained(open_page("live", run=run_id, ref="nonsense"))


def test_a_node_of_an_episode_that_was_thinned_away_is_shown_and_no_fault(seeded):
    db, run_id = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    with db.transaction() as connection:
        connection.execute(update(EpisodeRow).where(EpisodeRow.run_id == run_id).values(trajectory=EMPTY_TRAJECTORY))
    slot = int(snapshot.slot[3])
    app = open_page("memory", run=run_id, point=str(slot))
    assert not app.exception
    assert not app.error, "nothing is wrong with it"
    assert any("was deleted by thinning" in each.value for each in app.info)
    assert {metric.label: metric.value for metric in app.metric}["H"] == format_number(float(snapshot.h[3]))
    app = open_page("replay", run=run_id, episode="2")
    assert not app.error
