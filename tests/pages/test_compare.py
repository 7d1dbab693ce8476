"""The Compare page: which runs it compares, and what each option changes in its curves, tables and commands."""

import json
import shlex
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import delete, event, insert, select, update
from streamlit.testing.v1 import AppTest

from app.analysis.aggregates import MIN_IQM_SEEDS
from app.analysis.intervals import CENTER_NAMES
from app.cli.main import run
from app.ui.compare import run_groups
from app.ui.compared import read_compared_tables
from storage.models import Evaluation, MetricRow, Run
from tests.pages.conftest import read_address
from tests.pages.several import seed_runs
from tests.pages.test_pages import open_page, said


@pytest.fixture
def several(use_database, tmp_path):
    """emtc-qplex and qmix on 3m and corridor, two seeds each, and an ablation on 3m."""
    db = use_database(tmp_path / "several.db")
    ids = seed_runs(db)
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",), overrides=("gate.enabled=false",), prefix="a")
    return db, ids


@pytest.fixture
def shifted(several):
    """The runs of `several`: those on 3m won .25 of their robust episodes; of those on corridor one was not shifted."""
    db, ids = several
    with db.transaction() as connection:
        on_3m = select(Run.id).where(Run.map == "3m")
        connection.execute(update(Evaluation).where(Evaluation.run_id.in_(on_3m)).values(robust_win_rate=0.25))
        connection.execute(update(Evaluation).where(Evaluation.run_id == ids[2]).values(robust_win_rate=0.25))
    return db, ids


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


@pytest.fixture
def unequal(use_database, tmp_path):
    """EMTC(QPLEX) of 40,000 steps and QMIX of 20,000 on 3m, two seeds each."""
    db = use_database(tmp_path / "unequal.db")
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",))
    seed_runs(db, algos=("qmix",), maps=("3m",), evaluations=3, prefix="s")
    return db


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


def read_results(app: AppTest, run_id: str) -> list[Any]:
    """Read the row of a run in the tab Runs: kind of episodes, final win rate and its time average."""
    frame = next(each.value for each in app.dataframe if "episodes" in each.value.columns)
    return frame.set_index("id").loc[run_id, ["episodes", "final win rate", "μ̄_w"]].tolist()


def list_commands(app: AppTest) -> list[str]:
    return [code.value for code in app.code if "--figure " in code.value]


@pytest.mark.parametrize(
    ("database", "query", "words"),
    [
        ("empty", {}, "There is no run yet"),
        ("failed", {}, "No run was evaluated yet"),
        ("several", {"states": "stopped"}, "No run matches"),
        ("several", {"q": "emtc corridor gate.enabled=false"}, "No run matches"),
    ],
)
def test_a_page_without_curves_says_why(request, database, query, words):
    request.getfixturevalue(database)
    app = open_page("compare", **query)
    assert not app.exception
    assert words in said(app)


def test_runs_that_differ_only_in_their_seed_are_one_variant(several):
    app = open_page("compare")
    assert not app.exception
    rows = table(app, "variant")
    assert rows[0] == ["variant", "3m", "corridor"]
    assert [row[0] for row in rows[1:]] == ["EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM", "QMIX"]
    assert rows[1][1] == "85.0 ± 7.1 (2 seeds)"
    assert rows[2][2] == "–"


@pytest.mark.parametrize("seeds", [MIN_IQM_SEEDS - 1, MIN_IQM_SEEDS])
def test_an_interquartile_mean_needs_five_seeds_of_a_variant(use_database, tmp_path, seeds):
    seed_runs(use_database(tmp_path / "seeds.db"), algos=("qmix",), maps=("3m",), seeds=seeds)
    app = open_page("compare")
    assert not app.exception
    centers = app.segmented_control(key="compare?center").options
    assert (CENTER_NAMES["iqm"] in centers) == (seeds == MIN_IQM_SEEDS)


def test_unfinished_runs_are_listed_under_the_table_and_count_when_asked_for(several):
    db, ids = several
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == ids[0]).values(status="stopped", target_steps=40_300))
    app = open_page("compare")
    assert "run r0000 (EMTC(QPLEX) on 3m; seed 1): stopped at 40,101 of 40,300 env steps" in said(app).replace("\\", "")
    assert table(app, "variant")[1][1] == "80.0 (1 seed)"
    app.toggle(key="compare?unfinished").set_value(True).run()
    assert table(app, "variant")[1][1] == "85.0 ± 7.1† (2 seeds)"
    assert all("--include-unfinished" in command for command in list_commands(app))


def test_variants_are_tested_against_the_selected_reference(several):
    app = open_page("compare", part="Statistics")
    assert not app.exception
    rows = table(app, "task | variant | against")
    assert rows[1][:3] == ["3m", "EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM"]
    assert rows[1][-1] == "identical runs"
    reference = app.selectbox(key="compare?reference")
    assert reference.options == ["EMTC(QPLEX)", "EMTC(QPLEX), No-TCGM", "QMIX"]
    reference.select("qmix").run()
    assert not app.exception
    assert {row[1] for row in table(app, "task | variant | against")[1:]} == {"QMIX"}


def test_the_final_win_rate_is_the_mean_of_the_last_tenth_or_the_last_evaluation(swinging):
    app = open_page("compare")
    assert table(app, "variant")[1][1] == "66.7 (1 seed)"  # at 28,000, 29,000 and 30,000 steps
    app.segmented_control(key="compare?final").set_value("last").run()
    assert not app.exception
    assert table(app, "variant")[1][1] == "100.0 (1 seed)"


def test_each_task_has_its_own_win_rate_and_the_page_says_why(shifted):
    app = open_page("compare")
    assert not app.exception
    rows = table(app, "variant")
    assert rows[0] == ["variant", "3m (robust)", "corridor (greedy)"]
    assert rows[1][1:] == ["25.0 ± 0.0 (2 seeds)", "85.0 ± 7.1 (2 seeds)"]
    assert read_results(app, "r0000") == ["robust", 25.0, 0.25]
    assert read_results(app, "r0003") == ["greedy", pytest.approx(80.0), pytest.approx(0.4)]
    text = said(app).replace("\\", "")
    assert "on 3m, because greedy episodes from fixed starts are nearly identical" in text
    assert "on corridor, because runs r0003, r0006, r0007 have evaluations without a robust win rate." in text


def test_the_selected_win_rate_applies_to_tables_and_commands(shifted):
    app = open_page("compare", maps="3m", more_figures="true", more_figure="ablation")
    assert not app.exception
    assert table(app, "variant")[1][1] == "25.0 ± 0.0 (2 seeds)"
    assert "0.250 ± 0.000" in table(app, "variant | 3m · ")[1][1]
    assert len(list_commands(app)) == 2
    assert not any("--rate" in command for command in list_commands(app))
    app.segmented_control(key="compare?rate").set_value("greedy").run()
    assert not app.exception
    assert read_address(app)["rate"] == "greedy"
    assert table(app, "variant")[1][1] == "85.0 ± 7.1 (2 seeds)"
    assert "0.105 ± 0.009" in table(app, "variant | 3m · ")[1][1]
    assert len(list_commands(app)) == 2
    assert all("--rate greedy" in command for command in list_commands(app))


def test_runs_without_the_selected_win_rate_are_left_out(shifted):
    app = open_page("compare", rate="robust")
    assert not app.exception
    assert table(app, "variant")[1][1:] == ["25.0 ± 0.0 (2 seeds)", "25.0 (1 seed)"]
    assert read_results(app, "r0000") == ["robust", 25.0, 0.25]
    assert all(map(pd.isna, read_results(app, "r0003")))
    assert "no robust win rate: no evaluation from shifted starts" in said(app).replace("\\", "")
    app.segmented_control(key="compare?rate").set_value("training").run()
    assert not app.exception
    assert "no training win rate was logged" in said(app).replace("\\", "")


@pytest.mark.parametrize(
    ("query", "title", "cell"),
    [
        ({}, "robust win rate over training", "25.0 ± 0.0 (2 seeds)"),
        ({"y": "win_rate"}, "Learning curves", "85.0 ± 7.1 (2 seeds)"),
        ({"y": "robust_win_rate", "rate": "greedy"}, "robust win rate over training", "25.0 ± 0.0 (2 seeds)"),
        ({"y": "chosen_mu_w", "rate": "greedy"}, "μ̄_w over training", "85.0 ± 7.1 (2 seeds)"),
    ],
)
def test_curves_and_tables_have_the_win_rate_that_the_quantity_names_or_else_the_selected_one(
    shifted, query, title, cell
):
    app = open_page("compare", maps="3m", **query)
    assert not app.exception
    assert app.subheader[0].value == title
    assert table(app, "variant")[1][1] == cell


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


def test_options_are_read_from_the_url_and_written_into_it(several):
    app = open_page("compare", runs="r0000,r0001", y="mu_w", center="median", band="iqr", at="0.01M")
    assert not app.exception
    assert app.selectbox(key="compare?y").value == "mu_w"
    assert app.segmented_control(key="compare?center").value == "median"
    assert app.selectbox(key="compare?band").value == "iqr"
    assert app.text_input(key="compare?at").value == "0.01M"
    assert all("--center median --band iqr" in command for command in list_commands(app))
    app.selectbox(key="compare?y").set_value("train/loss").run()
    app.selectbox(key="compare?band").set_value("std").run()  # the default
    assert not app.exception
    assert app.subheader[0].value == "train/loss over training"
    assert read_address(app) == {"runs": "r0000,r0001", "y": "train/loss", "center": "median", "at": "0.01M"}


def test_a_link_selects_runs_and_counts_those_that_are_lost(several):
    app = open_page("compare", runs="r0000,r0001,zzzz")
    assert next(warning.value for warning in app.warning).startswith("1 of the runs in this link")
    assert list_ids(app) == ["r0000", "r0001"]
    app.button(key="compare_all_runs").click().run()
    assert not app.exception
    assert "runs" not in app.query_params
    assert len(list_ids(app)) == 10


def test_chosen_rows_become_the_whole_comparison(several):
    app = open_page("compare", part="Runs")
    app.session_state["compared_runs"] = {"selection": {"rows": [0, 1], "columns": [], "cells": []}}
    app.run()
    app.button(key="compare_chosen").click().run()
    assert not app.exception
    assert len(list_ids(app)) == 2


def test_invalid_values_in_the_url_are_harmless(several):
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
        budget="<b>",
        part="Published results",
        smooth="-5",
    )
    assert not app.exception
    assert "Must be between 0 and" in said(app), "the number of env steps"
    assert any("At env steps must be numbers" in error.value for error in app.error)


def test_a_hidden_run_is_left_out_of_its_line_but_not_of_the_tables(several):
    app = open_page("compare", maps="3m", hide=["emtc-qplex", "r0004"])
    assert not app.exception
    groups = {group["title"]: group for group in list_groups(app)}
    assert {title: group["shown"] for title, group in groups.items()} == {
        "EMTC(QPLEX)": "false", "EMTC(QPLEX), No-TCGM": "true", "QMIX": "mixed",
    }  # fmt: skip
    qmix = groups["QMIX"]
    assert [(run["id"], run["shown"]) for run in qmix["runs"]] == [("r0004", "false"), ("r0005", "true")]
    assert qmix["line"] == "QMIX (n = 1)"
    assert ["(2 seeds)" in row[1] for row in table(app, "variant")[1:]] == [True] * 3
    (command,) = list_commands(app)
    assert 'hide=["emtc-qplex", "r0004"]' in shlex.split(command)


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
    assert read_address(app)["list"] == "false"
    assert not any('"groups"' in part.proto.json for part in app.get("bidi_component"))


def test_published_results_are_compared_with_greedy_episodes_of_published_tasks(shifted):
    db, _ = shifted
    assert "Published results" not in [tab.label for tab in open_page("compare").tabs], "skirmish is a simulator"
    with db.transaction() as connection:
        connection.execute(update(Run).values(env="smac"))
    app = open_page("compare", maps="corridor", runs="r0002", part="Published results")
    assert not app.exception
    assert table(app, "variant")[1][1] == "25.0 (1 seed)"
    assert table(app, "variant | corridor · ours")[1][1] == "90.0 (1 seed)"
    assert table(app, "task")[1][3] == "0", "it reached .9 greedily and never robustly"
    assert any("skirmish is a simulator" in warning.value for warning in app.warning)


def test_a_page_reads_each_curve_table_once(several):
    from app.analysis.curves import read_curves
    from app.ui import data

    ids = tuple(several[1])
    said_sql: list[str] = []
    event.listen(data.database().reader, "before_cursor_execute", lambda *call: said_sql.append(call[2]))
    for _ in range(2):
        read_curves(read_compared_tables(ids), "train/loss")
    for name in (Run.__tablename__, "evaluations", "metrics"):
        assert sum(f"FROM {name}" in " ".join(statement.split()) for statement in said_sql) == 1


def test_runs_of_different_lengths_are_compared_at_the_selected_budget(unequal):
    app = open_page("compare")
    assert not app.exception
    assert [row[0] for row in table(app, "variant")[1:]] == ["EMTC(QPLEX)"], "the most common length"
    assert table(app, "variant | 3m · ")[0][-1] == "3m · 40,101"
    assert "run s0000 (QMIX on 3m; seed 1): has 20,101 env steps; most runs of its map have 40,101" in said(
        app
    ).replace("\\", "")
    app.selectbox(key="compare?budget").set_value("20101").run()
    assert [row[1] for row in table(app, "variant")[1:]] == ["42.5 ± 3.5 (2 seeds)", "**85.0 ± 7.1 (2 seeds)**"]
    assert not app.warning
    app.selectbox(key="compare?budget").set_value("own").run()
    assert not app.exception
    assert table(app, "variant")[1][1] == "85.0 ± 7.1 (2 seeds; 40,101 to 40,102 steps)"
    assert any("RUNS OF DIFFERENT LENGTHS" in warning.value for warning in app.warning)
    assert [row[0] for row in table(open_page("compare", budget="40101"), "variant")[1:]] == ["EMTC(QPLEX)"]


def test_statistics_of_variants_without_a_common_map_say_what_they_need(use_database, tmp_path):
    db = use_database(tmp_path / "apart.db")
    seed_runs(db, algos=("emtc-qplex",), maps=("3m",))
    seed_runs(db, algos=("qmix",), maps=("corridor",), prefix="s")
    app = open_page("compare", part="Statistics")
    assert not app.exception
    assert not app.error
    text = "\n".join(info.value for info in app.info).replace("\\", "")
    assert "Performance profiles need a map on which every variant has finished runs" in text
    assert "EMTC(QPLEX) on 3m; QMIX on corridor" in text


@pytest.mark.parametrize("quantity", ["return", "chosen_mu_w"])
def test_the_shown_command_draws_the_same_curves(several, tmp_path, quantity):
    app = open_page("compare", y=quantity, smooth="20k", log="x,y", rate="greedy")
    assert not app.exception
    text = said(app)
    assert "over the 20,000 env steps up to each point" in text
    assert "x and y axes are logarithmic" in text
    (command,) = list_commands(app)
    assert f"--set quantity={quantity} --set smooth=20000 --set log=xy" in command
    assert ("--rate greedy" in command) == (quantity == "chosen_mu_w"), "returns are of all episodes"
    out = tmp_path / "curves.csv"
    assert run([*shlex.split(command)[1:-1], str(out)]) == 0
    assert "EMTC(QPLEX)" in out.read_text()


def test_runs_of_different_code_are_reported_and_a_patched_run_is_a_separate_variant(several):
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
    (differences,) = [each.value for each in app.dataframe if "setting" in each.value]
    assert {"code.source", "gate.enabled", "seed"} <= set(differences["setting"])


def test_curves_can_have_another_x_axis(several):
    db, ids = several
    with db.transaction() as connection:
        reports = [
            {"run_id": run_id, "env_step": step, "name": "rollout/length", "value": 50.0}
            for run_id in ids[:2]
            for step in (20_000, 40_000)
        ]
        connection.execute(insert(MetricRow), reports)
    app = open_page("compare", runs=",".join(ids[:2]), x="100-20000")
    assert read_address(app)["x"] == "100-20000"
    app.selectbox(key="compare?axis").set_value("episodes").run()
    assert not app.exception
    assert "x" not in app.query_params, "the window was one of env steps"
    assert "Training episodes are those that have ended" in said(app)
    assert any("--x-axis episodes" in command for command in list_commands(app))
    app.selectbox(key="compare?axis").set_value("hours").run()
    assert not app.exception
    assert not app.error
    assert "has no wall time, because its speed was not recorded" in said(app)
    assert table(app, "variant")[1][0] == "EMTC(QPLEX)", "the tables do not need the axis"
