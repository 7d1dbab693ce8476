"""The Compare page: what it says about no run, one run and several; and that its URL is the whole view."""

import json
import shlex
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import delete, event, insert, select, update
from streamlit.testing.v1 import AppTest

from app.cli.main import run
from app.ui.compare import run_groups
from app.ui.compared import read_compared_tables
from storage.models import Evaluation, MetricRow, Run
from tests.pages.several import seed_runs
from tests.pages.test_pages import explained, open_page, said


@pytest.fixture
def several(use_database, tmp_path):
    """emtc-qplex and qmix on 3m and corridor, two seeds each, and an ablation on 3m."""
    db = use_database(tmp_path / "several.db")
    ids = seed_runs(db)
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",), overrides=("gate.enabled=false",), prefix="a")
    return db, ids


def train_on_smac(db) -> None:
    """Give all runs the environment for which the page shows the published results."""
    with db.transaction() as connection:
        connection.execute(update(Run).values(env="smac"))


def table(app: AppTest, head: str) -> list[list[str]]:
    text = next(str(part.value) for part in app.markdown if str(part.value).startswith(f"| {head}"))
    rows = [line.strip("| ").split(" | ") for line in text.replace("\\", "").replace("\u00a0", " ").splitlines()]
    return [rows[0], *rows[2:]]


def list_groups(app: AppTest) -> list[dict[str, Any]]:
    """Read the groups of the list of runs."""
    payloads = [json.loads(part.proto.json) for part in app.get("bidi_component") if part.proto.json]
    return next(payload["groups"] for payload in payloads if "groups" in payload)


def list_ids(app: AppTest) -> list[str]:
    return [run["id"] for group in list_groups(app) for run in group["runs"]]


def test_an_empty_database_says_what_to_do(empty):
    app = open_page("compare")
    assert not app.exception
    assert "There is no run yet" in said(app)


def test_a_run_that_was_never_evaluated_is_told_and_not_drawn(failed):
    app = open_page("compare")
    assert not app.exception
    assert "No run was evaluated yet" in said(app)
    assert "filter" not in said(app)
    assert "1 more: hidden, or without an evaluation" in said(app)


def test_one_seeded_run_is_a_line_without_a_band(seeded):
    app = open_page("compare")
    assert not app.exception
    assert not app.error
    assert table(app, "variant")[1][1] == "50.0 (1 seed)"


def test_runs_are_grouped_by_everything_but_the_seed(several):
    app = open_page("compare")
    assert not app.exception
    assert "Evaluated runs that match: 10." in said(app)
    rows = table(app, "variant")
    assert rows[0] == ["variant", "3m", "corridor"]
    assert [row[0] for row in rows[1:]] == ["EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM", "QMIX"]
    assert rows[1][1] == "85.0 ± 7.1 (2 seeds)"
    assert rows[2][2] == "–"


def test_unfinished_runs_are_listed_under_the_table_and_count_when_asked_for(several):
    db, ids = several
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == ids[0]).values(status="stopped", target_steps=40_300))
    text = said(open_page("compare")).replace("\\", "")
    assert "Left out: 1 selected run." in text
    assert "run r0000 (EMTC(QPLEX) on 3m; seed 1): stopped at 40,101 of 40,300 env steps" in text
    assert table(open_page("compare"), "variant")[1][1] == "80.0 (1 seed)"
    app = open_page("compare", unfinished="true")
    assert table(app, "variant")[1][1] == "85.0 ± 7.1† (2 seeds)"
    assert "--include-unfinished" in "\n".join(code.value for code in app.code)


def test_statistics_say_who_is_better_and_when_seeds_are_too_few(several):
    app = open_page("compare", part="Statistics")
    assert not app.exception
    rows = table(app, "task | variant | against")
    assert rows[1][:3] == ["3m", "EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM"]
    assert rows[1][-1] == "identical runs"
    text = said(app).replace("\\", "")
    assert "Share of runs whose final win rate is above each value, over 3m" in text
    assert "Final win rate: mean of the evaluations in the last tenth of the budget (1 per run: the last)." in text


@pytest.fixture
def swinging(use_database, tmp_path):
    """One run with evaluations every 1,000 of 30,000 env steps: win rates 1, 0, 1, 0 …, and 1 at the very end."""
    db = use_database(tmp_path / "swinging.db")
    (run_id,) = seed_runs(db, algos=("emtc-qplex",), maps=("corridor",), seeds=1)
    points = [
        {"run_id": run_id, "env_step": step, "episodes": 10, "wins": 10 * won, "win_rate": float(won)}
        | {"return_mean": 0.0, "return_std": 0.0, "length_mean": 9.0}
        for step, won in ((1000 * k, k % 2 == 0) for k in range(1, 31))
    ]
    with db.transaction() as connection:
        connection.execute(delete(Evaluation))
        connection.execute(insert(Evaluation), points)
        connection.execute(update(Run).values(env_steps=30_000, target_steps=30_000))
    return db


def test_the_last_evaluation_alone_is_on_request_and_stands_in_the_link(swinging):
    app = open_page("compare")
    assert table(app, "variant")[1][1] == "66.7 (1 seed)"  # at 28,000, 29,000 and 30,000 steps
    app.segmented_control(key="compare?final").set_value("last").run()
    assert app.query_params["final"] in ("last", ["last"])
    again = open_page("compare", final="last")
    for page in (app, again):
        assert not page.exception
        assert table(page, "variant")[1][1] == "100.0 (1 seed)"
        text = explained(page).replace("\\", "")
        assert "Last win rate [%]: win rate of the last evaluation only." in text
    app.segmented_control(key="compare?final").set_value("last-tenth").run()
    assert "final" not in app.query_params


def test_tables_of_win_rates_are_of_the_episodes_that_were_asked_for_and_the_link_says_so(several):
    db, ids = several
    with db.transaction() as connection:
        connection.execute(update(Evaluation).where(Evaluation.run_id.in_(ids[:4])).values(robust_win_rate=0.25))
    app = open_page("compare")
    app.segmented_control(key="compare?rate").set_value("robust").run()
    assert app.query_params["rate"] in ("robust", ["robust"])
    again = open_page("compare", rate="robust")
    for page in (app, again):
        assert not page.exception
        assert table(page, "variant")[1] == ["EMTC(QPLEX)", "25.0 ± 0.0 (2 seeds)", "25.0 ± 0.0 (2 seeds)"]
        text = said(page).replace("\\", "")
        assert "Final robust win rate [%]" in text
        assert "from starts shifted by up to 0.05 cells" in text
        assert "no robust win rate: no evaluation from shifted starts" in text
        assert table(page, "task")[0][:2] == ["task", "variant"]
    trained = open_page("compare", rate="training")
    assert not trained.exception
    assert "no training win rate was logged" in said(trained).replace("\\", "")
    app.segmented_control(key="compare?rate").set_value("auto").run()
    assert "rate" not in app.query_params


@pytest.fixture
def shifted(several):
    """The runs of `several`: those on 3m won .25 of their robust episodes; of those on corridor one was not shifted."""
    db, ids = several
    with db.transaction() as connection:
        on_3m = select(Run.id).where(Run.map == "3m")
        connection.execute(update(Evaluation).where(Evaluation.run_id.in_(on_3m)).values(robust_win_rate=0.25))
        connection.execute(update(Evaluation).where(Evaluation.run_id == ids[2]).values(robust_win_rate=0.25))
    return db, ids


def test_runs_are_compared_by_the_robust_win_rate_and_greedy_is_one_click(shifted):
    app = open_page("compare", maps="3m")
    assert not app.exception
    assert table(app, "variant")[1][1] == "25.0 ± 0.0 (2 seeds)"
    text = said(app).replace("\\", "")
    assert "robust win rate over training" in text
    assert "Robust win rates (shifted starts), because greedy episodes from fixed starts are nearly identical" in text
    assert "0.250 ± 0.000" in table(app, "variant | 3m · ")[1][1]
    app.segmented_control(key="compare?rate").set_value("greedy").run()
    assert app.query_params["rate"] in ("greedy", ["greedy"])
    again = open_page("compare", maps="3m", rate="greedy")
    for page in (app, again):
        assert not page.exception
        assert table(page, "variant")[1][1] == "85.0 ± 7.1 (2 seeds)"
        assert "robust" not in said(page)
        assert any(
            "--figure learning-curves --center mean --band std --rate greedy" in each.value for each in page.code
        )


def test_a_task_with_a_run_without_robust_evaluations_is_greedy_and_the_page_says_why(shifted):
    app = open_page("compare")
    assert not app.exception
    rows = table(app, "variant")
    assert rows[0] == ["variant", "3m (robust)", "corridor (greedy)"]
    assert rows[1][1:] == ["25.0 ± 0.0 (2 seeds)", "85.0 ± 7.1 (2 seeds)"]
    text = said(app).replace("\\", "")
    assert (
        "Greedy win rates on corridor, because runs r0003, r0006, r0007 have evaluations without a robust win rate."
        in text
    )
    assert "Robust win rates (shifted starts) on 3m, because" in text


def test_falls_are_robust_as_the_win_rates_and_the_numbers_beside_the_paper_stay_greedy(shifted):
    db, _ = shifted
    train_on_smac(db)
    app = open_page("compare", maps="corridor", runs="r0002", part="Published results")
    assert not app.exception
    assert table(app, "variant")[1][1] == "25.0 (1 seed)"
    assert table(app, "variant | corridor · ours")[1][1] == "90.0 (1 seed)"
    assert table(app, "task")[1][3] == "0", "it reached .9 greedily and never robustly"
    assert "Ours: always greedy episodes" in explained(app).replace("\\", "")


def test_the_runs_one_by_one_say_of_which_episodes_their_numbers_are(shifted):
    def rows(app: AppTest) -> list[list]:
        frame = next(each.value for each in app.dataframe if "episodes" in each.value.columns)
        return frame.set_index("id").loc[["r0000", "r0003"], ["episodes", "final win rate", "μ̄_w"]].to_numpy().tolist()

    robust, greedy = rows(open_page("compare"))
    assert robust == ["robust", 25.0, 0.25]
    assert greedy == ["greedy", pytest.approx(80.0), pytest.approx(0.4)]
    robust, missing = rows(open_page("compare", rate="robust"))
    assert robust == ["robust", 25.0, 0.25]
    assert pd.isna(missing).all()


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ({}, "robust win rate over training"),
        ({"y": "chosen_mu_w"}, "robust μ̄_w over training"),
        ({"y": "win_rate"}, "Learning curves"),
        ({"y": "mu_w"}, "μ̄_w over training"),
        ({"y": "robust_win_rate", "rate": "greedy"}, "robust win rate over training"),
        ({"y": "robust_mu_w", "rate": "training"}, "robust μ̄_w over training"),
        ({"y": "chosen_mu_w", "rate": "greedy"}, "μ̄_w over training"),
    ],
)
def test_a_quantity_that_names_its_win_rate_keeps_it_whatever_is_chosen(shifted, query, title):
    app = open_page("compare", maps="3m", **query)
    assert not app.exception
    assert app.subheader[0].value == title


def test_more_figures_are_made_of_the_win_rate_that_is_chosen(shifted):
    for rate, option in (("auto", ""), ("greedy", " --rate greedy")):
        app = open_page("compare", maps="3m", rate=rate, more_figures="true", more_figure="ablation")
        assert not app.exception
        assert any(f"--figure ablation{option} --db" in each.value for each in app.code)


def test_falls_stand_below_the_win_rates_and_beside_every_run(swinging):
    app = open_page("compare")
    assert table(app, "task")[1] == ["corridor", "EMTC(QPLEX)", "1", "1", "14.0", "28.0", "50.0", "seed 1: 14 of 28"]
    rows = next(frame.value for frame in app.dataframe if "falls" in frame.value.columns)
    numbers = rows[["final win rate", "last win rate", "falls", "after"]].iloc[0].tolist()
    assert numbers == [pytest.approx(200 / 3), 100.0, 14, 28]


def test_the_caption_says_statistic_band_and_seeds(several):
    app = open_page("compare", center="median", band="ci")
    text = said(app).replace("\\", "")
    assert "the line is the median with 95 % interval (t of the median; covers" in text
    assert "over seeds (n = 2 seeds" in text
    assert "episodes are averaged per seed first" in text
    (centers,) = [choice for choice in app.segmented_control if choice.label == "Line over seeds"]
    assert centers.options == ["mean", "median"], "an interquartile mean of two seeds is their mean"


def test_the_user_chooses_the_reference_of_the_tests(several):
    app = open_page("compare", part="Statistics")
    (reference,) = [box for box in app.selectbox if box.label == "Reference variant"]
    assert reference.options == ["EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM", "QMIX"]
    reference.select("qmix").run()
    assert not app.exception
    assert {row[1] for row in table(app, "task | variant | against")[1:]} == {"QMIX"}
    linked = open_page("compare", part="Statistics", reference="qmix")
    assert {row[1] for row in table(linked, "task | variant | against")[1:]} == {"QMIX"}


def test_the_url_restores_the_view(several):
    app = open_page("compare", runs="r0000,r0001", y="mu_w", center="median", band="iqr", x="100-20000", at="0.01M")
    assert not app.exception
    assert list_ids(app) == ["r0000", "r0001"]
    assert app.selectbox(key="compare?y").value == "mu_w"
    assert app.segmented_control(key="compare?center").value == "median"
    assert app.selectbox(key="compare?band").value == "iqr"
    assert app.text_input(key="compare?at").value == "0.01M"
    assert [row[0] for row in table(app, "variant")[1:]] == ["EMTC(QPLEX)"]
    assert "--center median --band iqr" in "\n".join(code.value for code in app.code)


def test_what_is_chosen_is_written_into_the_url(several):
    app = open_page("compare", runs="r0002")
    app.selectbox(key="compare?band").set_value("minmax").run()
    app.selectbox(key="compare?y").set_value("train/loss").run()
    assert not app.exception
    given = {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}
    assert given["runs"] == "r0002"
    assert given["band"] == "minmax"
    assert given["y"] == "train/loss"
    assert "train/loss over training" in said(app)
    app.selectbox(key="compare?band").set_value("std").run()
    assert "band" not in app.query_params


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"maps": "corridor"}, 4),
        ({"algos": "qmix"}, 4),
        ({"tags": "paper"}, 4),
        ({"states": "finished"}, 10),
        ({"q": "emtc-qplex corridor"}, 2),
        ({"q": "gate.enabled=false emtc"}, 2),
        ({"q": "gate.enabled=false emtc corridor"}, 0),
    ],
)
def test_filters_choose_runs(several, query, count):
    text = said(open_page("compare", **query))
    assert f"Evaluated runs that match: {count}." in text
    assert ("No run matches" in text) == (count == 0)


def test_a_link_to_lost_runs_says_so(several):
    app = open_page("compare", runs="r0000,zzzz")
    assert next(warning.value for warning in app.warning).startswith("1 of the runs in this link")
    assert list_ids(app) == ["r0000"]


def test_selected_runs_are_the_whole_list_until_the_selection_is_removed(several):
    app = open_page("compare", runs="r0000,r0001")
    assert list_ids(app) == ["r0000", "r0001"]
    app.button(key="compare_all_runs").click().run()
    assert not app.exception
    assert "runs" not in app.query_params
    assert len(list_ids(app)) == 10


def test_strangers_in_the_url_are_harmless(several):
    app = open_page(
        "compare",
        runs="<b>,%",
        y="<script>",
        center="mode",
        band="42",
        final="best",
        x="nan-1",
        hide="**",
        at="minus one",
        maps="Mars",
    )
    assert not app.exception
    assert any("At env steps must be numbers" in error.value for error in app.error)


def test_hidden_methods_leave_the_figure_and_stay_in_the_tables(several):
    app = open_page("compare", runs="r0000", hide="emtc-qplex")
    assert not app.exception
    assert table(app, "variant")[1][0] == "EMTC(QPLEX)"
    assert [group["shown"] for group in list_groups(app)] == ["false"]


def test_a_hidden_run_is_left_out_of_its_line_which_the_caption_and_the_command_state(several):
    app = open_page("compare", maps="3m", algos="qmix", hide="r0004")
    assert not app.exception
    (group,) = list_groups(app)
    assert [(run["id"], run["shown"]) for run in group["runs"]] == [("r0004", "false"), ("r0005", "true")]
    assert (group["line"], group["shown"]) == ("QMIX (n = 1)", "mixed")
    assert "Hidden: 1 run." in said(app).replace("\\", "")
    assert "(2 seeds)" in table(app, "variant")[1][1]
    assert any("--set 'hide=[\"r0004\"]'" in code.value for code in app.code)


@pytest.mark.parametrize(
    ("hidden", "ids", "is_shown", "expected"),
    [
        ([], ["r0004", "r0005"], False, ["qmix"]),
        (["qmix"], ["r0004", "r0005"], True, []),
        (["qmix", "lost"], ["r0004"], True, ["lost", "r0005"]),
        (["r0005"], ["r0004"], False, ["qmix"]),
    ],
)
def test_a_variant_is_one_value_of_the_address_if_all_its_runs_are_hidden(several, hidden, ids, is_shown, expected):
    runs = read_compared_tables(["r0004", "r0005", "r0000"]).runs
    assert run_groups.change_hidden(hidden, runs, ids, is_shown=is_shown) == expected


def test_the_list_groups_runs_by_tag_and_can_be_closed(several):
    app = open_page("compare", group="tag")
    assert [group["title"] for group in list_groups(app)] == ["paper", "No tag"]
    app.toggle(key="compare?list").set_value(False).run()
    assert not app.exception
    assert app.query_params["list"] in ("false", ["false"])
    assert not any('"groups"' in part.proto.json for part in app.get("bidi_component"))


def test_only_differing_settings_are_shown(several):
    app = open_page("compare", maps="3m", algos="emtc-qplex")
    frame = next(frame.value for frame in app.dataframe if "setting" in frame.value.columns)
    assert frame["setting"].tolist() == ["gate.enabled", "seed"]
    assert frame["EMTC(QPLEX) on 3m"].tolist() == ["true", "1, 2"]


def test_published_results_are_absent_for_simulated_maps_and_an_old_link_to_them_works(several):
    app = open_page("compare", part="Published results")
    assert not app.exception
    assert "Published results" not in [tab.label for tab in app.tabs]
    assert table(app, "variant")[1][0] == "EMTC(QPLEX)"


def test_our_numbers_stand_beside_the_papers_with_a_warning(several):
    train_on_smac(several[0])
    app = open_page("compare")
    assert any("skirmish is a simulator" in warning.value for warning in app.warning)
    text = next(str(part.value) for part in app.markdown if "corridor · paper" in str(part.value)).replace(
        "\u00a0", " "
    )
    text = text.replace("\\", "")
    assert "97.4 ± 1.7" in text
    assert "37.6 ± 9.8" in text


def test_chosen_rows_become_the_whole_comparison(several):
    app = open_page("compare", part="Runs")
    app.session_state["compared_runs"] = {"selection": {"rows": [0, 1], "columns": [], "cells": []}}
    app.run()
    app.button(key="compare_chosen").click().run()
    assert not app.exception
    assert len(list_ids(app)) == 2


def test_a_refresh_reads_each_curve_table_once(several):
    from app.analysis.curves import read_curves
    from app.ui import data

    ids = tuple(several[1])
    said_sql: list[str] = []
    event.listen(data.database().reader, "before_cursor_execute", lambda *call: said_sql.append(call[2]))
    for _ in range(2):
        read_curves(read_compared_tables(ids), "train/loss")
    for name in (Run.__tablename__, "evaluations", "metrics"):
        assert sum(f"FROM {name}" in " ".join(statement.split()) for statement in said_sql) == 1


@pytest.fixture
def unequal(use_database, tmp_path):
    """EMTC(QPLEX) of 40,000 steps and QMIX of 20,000 on 3m, two seeds each."""
    db = use_database(tmp_path / "unequal.db")
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",))
    seed_runs(db, algos=("qmix",), maps=("3m",), evaluations=3, prefix="s")
    return db


def test_runs_of_the_most_common_length_are_compared_and_the_shorter_ones_at_a_chosen_budget(unequal):
    app = open_page("compare")
    assert not app.exception
    assert [row[0] for row in table(app, "variant")[1:]] == ["EMTC(QPLEX)"]
    assert table(app, "variant | 3m · ")[0][-1] == "3m · 40,101"
    assert "run s0000 (QMIX on 3m; seed 1): has 20,101 env steps; most runs of its map have 40,101" in said(
        app
    ).replace("\\", "")
    app.selectbox(key="compare?budget").set_value("20101").run()
    assert [row[1] for row in table(app, "variant")[1:]] == ["42.5 ± 3.5 (2 seeds)", "**85.0 ± 7.1 (2 seeds)**"]
    assert "Compared at 20,101 env steps, the requested budget" in said(app)


def test_each_run_at_its_own_end_is_a_choice_with_a_loud_mark_and_stands_in_the_link(unequal):
    app = open_page("compare")
    app.selectbox(key="compare?budget").set_value("own").run()
    assert app.query_params["budget"] in ("own", ["own"])
    again = open_page("compare", budget="own")
    for page in (app, again):
        assert not page.exception
        assert table(page, "variant")[1][1] == "85.0 ± 7.1 (2 seeds; 40,101 to 40,102 steps)"
        assert any("RUNS OF DIFFERENT LENGTHS" in warning.value for warning in page.warning)
    longest = open_page("compare", budget="40101")
    assert [row[0] for row in table(longest, "variant")[1:]] == ["EMTC(QPLEX)"]
    assert "has 20,101 of the 40,101 env steps" in said(longest).replace("\\", "")


def test_runs_of_one_length_are_not_asked_at_which(several):
    app = open_page("compare", budget="<b>")
    assert not app.exception
    assert "compare-budget" not in [each.key for each in app.selectbox]


def test_statistics_of_variants_that_share_no_map_say_what_they_need_and_fail_at_nothing(use_database, tmp_path):
    db = use_database(tmp_path / "apart.db")
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",))
    seed_runs(db, algos=("qmix",), maps=("corridor",), prefix="s")
    app = open_page("compare", part="Statistics")
    assert not app.exception
    assert not app.error
    told = "\n".join(info.value for info in app.info).replace("\\", "")
    assert "Performance profiles need a map on which every variant has finished runs" in told
    assert "EMTC(QPLEX) on 3m; QMIX on corridor" in told
    assert "--" not in told


def test_smoothing_and_axes_stand_in_the_address_and_on_the_command_line(several):
    app = open_page("compare", smooth="20k", log="x,y")
    assert not app.exception
    assert "over the 20,000 env steps up to each point" in said(app)
    assert "x and y axes are logarithmic" in said(app)
    assert any("--set smooth=20000 --set log=xy" in each.value for each in app.code)
    app.text_input(key="compare?smooth").set_value("-5").run()
    assert "Must be between 0 and" in said(app)
    app.text_input(key="compare?smooth").set_value("").run()
    assert "smooth" not in app.query_params
    assert "Smoothed" not in said(app)


def test_every_quantity_has_its_command_with_the_database(several, tmp_path):
    for quantity in ("return", "win_rate", "chosen_mu_w"):
        app = open_page("compare", y=quantity, smooth="20k")
        assert not app.exception
        (command,) = (each.value for each in app.code if "--figure learning-curves" in each.value)
        assert f"--set quantity={quantity} --set smooth=20000 --db " in command
        out = str(tmp_path / f"{quantity}.csv")
        assert run([*shlex.split(command)[1:-1], out]) == 0


def test_seeds_that_other_code_trained_are_doubted_and_a_patched_run_is_a_line_of_its_own(several):
    db, _ = several
    qmix = select(Run.id).where(Run.algo == "qmix", Run.map == "3m").order_by(Run.seed)
    plain = select(Run.id).where(Run.algo == "emtc-qplex", Run.map == "corridor").order_by(Run.seed)
    with db.transaction() as connection:
        first, second = connection.execute(qmix).scalars()
        patched, _ = connection.execute(plain).scalars()
        for run_id, versions in (
            (first, {"source": "aaaa"}),
            (second, {"source": "bbbb"}),
            (patched, {"patched": ["emtc_core.x.f by her_mixer"]}),
        ):
            connection.execute(update(Run).where(Run.id == run_id).values(versions=versions))
    app = open_page("compare")
    assert not app.exception
    assert [each.value.replace("\\", "") for each in app.warning if "same code" in each.value] == [
        "The seeds of QMIX on 3m were not trained by the same code: source aaaa and bbbb."
    ]
    assert "EMTC(QPLEX), patched by her_mixer" in [row[0] for row in table(app, "variant")]
    assert any("code.source" in each.value.to_string() for each in app.dataframe if "setting" in each.value)


def test_the_tables_have_the_win_rate_that_is_drawn(shifted):
    app = open_page("compare", maps="3m", y="win_rate")
    assert table(app, "variant")[1][1] == "85.0 ± 7.1 (2 seeds)"
    app = open_page("compare", maps="3m", y="robust_win_rate", rate="greedy")
    assert not app.exception
    assert table(app, "variant")[1][1] == "25.0 ± 0.0 (2 seeds)"


def test_statistics_show_greedy_and_robust_differences_next_to_each_other(shifted):
    db, _ = shifted
    with db.transaction() as connection:
        qmix = select(Run.id).where(Run.map == "3m", Run.algo == "qmix")
        connection.execute(update(Evaluation).where(Evaluation.run_id.in_(qmix)).values(robust_win_rate=0.75))
    app = open_page("compare", part="Statistics")
    assert not app.exception
    assert not app.error
    tables = [str(part.value).replace("\\", "") for part in app.markdown if str(part.value).startswith("| task")]
    (both,) = [text for text in tables if "robust · difference [%]" in text]
    rows = [line.strip("| ").split(" | ") for line in both.replace("\u00a0", " ").splitlines()]
    found = [dict(zip(rows[0], cells, strict=True)) for cells in rows[2:]]
    (row,) = [row for row in found if (row["task"], row["against"]) == ("3m", "QMIX")]
    assert row["robust · difference [%]"].startswith("−50.0")
    assert row["greedy · difference [%]"].startswith("+0.0")
    assert len([box for box in app.selectbox if box.label == "Reference variant"]) == 1


def test_the_curves_have_the_x_axis_of_the_address_and_so_does_the_command(several):
    db, ids = several
    with db.transaction() as connection:
        reports = [
            {"run_id": run_id, "env_step": step, "name": "rollout/length", "value": 50.0}
            for run_id in ids[:2]
            for step in (20_000, 40_000)
        ]
        connection.execute(insert(MetricRow), reports)
    app = open_page("compare", runs=",".join(ids[:2]), axis="episodes")
    assert not app.exception
    assert "Training episodes are those that have ended" in said(app)
    assert any("--x-axis episodes" in code.value for code in app.code)
    app = open_page("compare", runs=",".join(ids[:2]), axis="hours")
    assert not app.exception
    assert "has no wall time, because its speed was not recorded" in said(app)
    assert "EMTC" in said(app), "the tables are drawn"


def test_a_new_x_axis_removes_the_window_of_the_former_one(several):
    app = open_page("compare", runs=",".join(several[1][:2]), x="100-20000")
    app.selectbox(key="compare?axis").set_value("episodes").run()
    assert "x" not in app.query_params
