"""The Sweeps page: faults before a start, progress, missing runs, studies, links."""

import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
from sqlalchemy import delete, update

from app.jobs import gpu
from app.jobs.estimate import TYPICAL_SPEED_SOURCE
from app.jobs.launch import EXAMPLE_BUNDLE
from app.jobs.sweeps.control import _join_speed_sources, create_sweep, find_imported, find_open_runs, remake_plan
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import make_plan
from app.ui.sweeps import detail, study
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN, copy_runs
from storage.engine import open_database
from storage.models import Evaluation, Run
from storage.runs.changes import start_run
from storage.runs.sweeps import list_sweeps, sweep_runs, write_worker_heartbeat
from tests.app.sweep_cases import ABLATION, AUGMENTATION, DELTA, LAMBDA, TAU, seed_sweep
from tests.pages.conftest import copy_database
from tests.pages.test_pages import explained, open_page, said

SMALL = 'name = "Small"\nsteps = 300\nseeds = 1\n[grid]\nmemory.delta = [0.02, 0.002]\n'


@pytest.fixture
def started(monkeypatch):
    """Record the commands that would be started in the background, without starting them."""
    calls: list[list[str]] = []

    def record(arguments, log, *, db):
        calls.append(arguments)
        return psutil.Process()

    monkeypatch.setattr("app.jobs.sweeps.control.spawn", record)
    return calls


def write(app, text: str):
    return app.text_area(key="sweep_text-ablation-demo").set_value(text).run()


def test_an_empty_database_shows_templates_with_their_cost(empty):
    app = open_page("sweeps")
    assert not app.exception
    assert not app.error
    assert "There is no sweep yet" in said(app)
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics["Runs"] == "8"
    assert metrics["Expected duration"].startswith("≈")


def test_the_gpu_and_the_command_that_starts_mps_are_named_only_where_there_is_a_gpu(empty, tmp_path, monkeypatch):
    monkeypatch.setenv(gpu.MPS_VARIABLE, "")
    monkeypatch.setattr(gpu, "MPS_DEFAULT", str(tmp_path))
    assert "MPS" not in said(open_page("sweeps"))
    monkeypatch.setattr(gpu, "_DEVICE_FILES", ("/dev/null",))
    monkeypatch.setattr(gpu, "_query_torch", lambda *key: gpu.Gpu("NVIDIA Some GPU", 7 * 10**9, 8 * 10**9))
    text = said(open_page("sweeps"))
    assert "NVIDIA Some GPU, 7 GB free. NVIDIA MPS does not run" in text
    assert gpu.MPS_COMMAND in text


def test_every_template_can_be_opened_by_a_link(empty):
    app = open_page("sweeps", template="lambda-heatmap-demo")
    assert app.selectbox(key="sweeps?template").value == "lambda-heatmap-demo"
    assert {metric.label: metric.value for metric in app.metric}["Runs"] == "9"
    app.selectbox(key="sweeps?template").set_value("tau-study-demo").run()
    assert app.query_params["template"] == "tau-study-demo"
    assert not app.exception


def test_faults_are_shown_before_anything_is_created(empty):
    app = write(open_page("sweeps"), SMALL.replace("memory.delta", "memory.dleta").replace("0.002", "-1"))
    assert [error.value for error in app.error] == ['memory\\.dleta is not a setting\\. Did you mean "memory\\.delta"?']
    assert app.button(key="sweep_invalid").disabled
    assert list_sweeps(empty) == []


def test_the_start_button_queues_the_runs_and_starts_them_in_the_background(empty, started):
    app = write(open_page("sweeps"), SMALL)
    app.button(key="sweep_start").click().run()
    (sweep,) = list_sweeps(empty)
    assert sweep.counts == {"queued": 2}
    assert [call[:3] for call in started] == [["app.cli.main", "sweep", sweep.id]]
    assert app.query_params["sweep"] == sweep.id
    assert not app.exception
    assert "has been evaluated yet" in said(app)


def has_launch_button(app) -> bool:
    return any(button.key == "sweep_missing" for button in app.button)


@pytest.mark.parametrize("how", ["stopped", "deleted"])
def test_missing_runs_are_named_and_exactly_those_are_launched(empty, started, how):
    sweep_id = seed_sweep(empty, LAMBDA, unfinished=(2, 5))
    with empty.transaction() as connection:
        unfinished = Run.status == "queued"
        connection.execute(
            delete(Run).where(unfinished) if how == "deleted" else update(Run).where(unfinished).values(status=how)
        )
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert "**2 of 12 runs are missing.**" in said(app)
    assert "lambda\\_rcon = 0\\.05, lambda\\_cl = 0\\.15, seed 1" in explained(app)
    app.button(key="sweep_missing").click().run()
    assert [call[2] for call in started] == [sweep_id]
    assert [run.status for run in sweep_runs(empty, sweep_id)].count("queued") == 2
    assert len(sweep_runs(empty, sweep_id)) == 12


def test_queued_runs_without_a_worker_can_be_launched(empty, started):
    sweep_id = seed_sweep(empty, LAMBDA, unfinished=(2, 5))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert "missing" not in said(app)
    assert "**2 of 12 runs are queued**" in said(app)
    app.button(key="sweep_missing").click().run()
    assert [call[2] for call in started] == [sweep_id]
    assert sum(run.status == "queued" for run in sweep_runs(empty, sweep_id)) == 2


def test_runs_that_a_worker_claims_are_not_launched_here(empty, started):
    plan = make_plan(parse_sweep(LAMBDA))
    create_sweep(empty, plan, jobs=1)
    write_worker_heartbeat(empty)
    app = open_page("sweeps", sweep=plan.id)
    assert not app.exception
    assert "12 of 12 runs are queued" in said(app)
    assert not has_launch_button(app)
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.seed == 2).values(status="failed"))
    app.run()
    assert "**6 of 12 runs are missing.**" in said(app)
    app.button(key="sweep_missing").click().run()
    assert started == [], "a worker takes them"
    (sweep,) = list_sweeps(empty)
    assert sweep.counts == {"queued": 12}


def test_queued_runs_are_not_launched_while_a_worker_trains_another_run_of_the_sweep(empty):
    """Two workers on other machines train two runs of a sweep."""
    sweep_id = seed_sweep(empty, TAU, unfinished=(0, 1, 2, 3))
    first, second, *_ = sweep_runs(empty, sweep_id)
    for run in (first, second):
        start_run(empty, run.id, device="cpu")
    write_worker_heartbeat(empty)
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert "2 of 4 runs are queued" in said(app)
    assert "missing" not in said(app)
    assert not has_launch_button(app)


def test_a_lost_run_can_be_launched_unless_a_worker_will_train_it(empty):
    sweep_id = seed_sweep(empty, TAU, unfinished=(0,))
    run = sweep_runs(empty, sweep_id)[0]
    start_run(empty, run.id, device="cpu")
    with empty.transaction() as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(Run).where(Run.id == run.id).values(heartbeat_at=past))
    app = open_page("sweeps", sweep=sweep_id)
    assert "**1 of 4 runs are missing.**" in said(app)
    assert has_launch_button(app)
    write_worker_heartbeat(empty, sweep_id)
    app.run()
    assert "1 of 4 runs are queued" in said(app)
    assert not has_launch_button(app)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory, sqlite_template):
    """Part B of the shipped study, imported without its memories and transitions."""
    path = tmp_path_factory.mktemp("shipped") / "study.db"
    shutil.copy(sqlite_template, path)
    with ZipFile(EXAMPLE_BUNDLE) as bundle:
        inside = Path(bundle.extract("study.db", path.parent / "bundle"))
    source, target = open_database(f"sqlite:///{inside}"), open_database(f"sqlite:///{path}")
    ids = [run.id for sweep in list_sweeps(source) if "B:" in sweep.name for run in sweep_runs(source, sweep.id)]
    with source.read() as reading, target.transaction() as writing:
        copy_runs(reading, writing, ids, THIN)
    source.dispose()
    target.dispose()
    return path


def test_imported_runs_of_the_shipped_study_are_not_missing(shipped, use_database, tmp_path):
    db = use_database(copy_database(shipped, tmp_path / "study.db"))
    (sweep,) = list_sweeps(db)
    app = open_page("sweeps", sweep=sweep.id)
    assert not app.exception
    assert not app.error
    assert "**16 of 24 runs are missing.**" in said(app)
    assert "EMTC, seed 2; No\\-TCGM, seed 2" in explained(app)
    runs = sweep_runs(db, sweep.id)
    found = find_open_runs(sweep, runs, find_imported(sweep, runs))
    assert found.queued == ()
    assert {name.rpartition(", ")[2] for name in found.missing} == {"seed 2", "seed 3"}
    create_sweep(db, remake_plan(sweep), jobs=1)
    assert sum(run.status == "queued" for run in sweep_runs(db, sweep.id)) == 16


def test_a_bundle_with_some_of_the_planned_runs_misses_none(empty):
    bundle = cache_bundle(EXAMPLE_BUNDLE)
    app = open_page("sweeps", sweep="101980e0", **{"from": bundle.key})
    assert not app.exception
    assert "This bundle contains 8 of the 24 planned runs." in said(app)
    assert "missing" not in said(app)


def test_imported_runs_match_the_plan_when_a_preset_has_changed_since(shipped, use_database, tmp_path):
    db = use_database(copy_database(shipped, tmp_path / "study.db"))
    with db.transaction() as connection:
        connection.exec_driver_sql("UPDATE runs SET config = json_set(config, '$.train.updates_per_episode', 7)")
    app = open_page("sweeps")
    assert not app.exception
    assert "**16 of 24 runs are missing.**" in said(app)


def test_imported_runs_are_not_missing_if_this_version_cannot_make_the_plan(shipped, use_database, tmp_path):
    db = use_database(copy_database(shipped, tmp_path / "study.db"))
    with db.transaction() as connection:
        connection.exec_driver_sql("UPDATE sweeps SET plan = json_set(plan, '$.file.set.\"no.such.setting\"', 1)")
    app = open_page("sweeps")
    assert not app.exception
    assert not app.error
    assert app.warning
    assert "missing" not in said(app)
    assert not has_launch_button(app)


def test_a_working_sweep_can_be_stopped(empty, started):
    sweep_id = seed_sweep(empty, TAU, unfinished=(3,))
    write_worker_heartbeat(empty, sweep_id)
    app = open_page("sweeps", sweep=sweep_id)
    assert "missing" not in said(app)
    app.button(key="sweep_stop").click().run()
    assert not app.exception
    assert "Removed 1 run from the queue" in said(app)
    assert list_sweeps(empty)[0].counts == {"finished": 3, "stopped": 1}


def test_each_run_is_shown_with_its_progress_and_its_machine(empty):
    sweep_id = seed_sweep(empty, TAU, unfinished=(3,))
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.host.is_not(None)).values(env_steps=500))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    (table,) = [each.value for each in app.dataframe if "Machine" in each.value]
    assert list(table["Machine"]) == [socket.gethostname()] * 3 + ["–"]
    assert list(table["Progress"]) == [50] * 3 + [0]


@pytest.mark.parametrize("text", [LAMBDA, TAU, DELTA, ABLATION, AUGMENTATION], ids=lambda text: text.split('"')[3])
def test_every_study_shows_the_numbers_of_the_paper(empty, text):
    app = open_page("sweeps", sweep=seed_sweep(empty, text))
    assert not app.exception
    assert not app.error
    assert "**The paper**" in said(app)
    assert "Compare ranks, not values" in said(app)


def test_a_study_uses_the_selected_win_rate_and_writes_it_to_the_url(empty):
    sweep_id = seed_sweep(empty, AUGMENTATION)
    with empty.transaction() as connection:
        connection.execute(update(Evaluation).values(robust_win_rate=0.25))
    app = open_page("sweeps", sweep=sweep_id, result="true")
    app.segmented_control(key="sweeps?rate").set_value("greedy").run()
    assert app.query_params["rate"] in ("greedy", ["greedy"])
    robust = said(open_page("sweeps", sweep=sweep_id, result="true"))
    greedy = said(open_page("sweeps", sweep=sweep_id, result="true", rate="greedy"))
    assert "Final robust win rate" in robust.replace("\\", "")
    for text in (said(app), greedy):
        assert "Final win rate" in text
        assert "Final robust" not in text


def test_the_url_selects_sweep_and_figure_and_invalid_values_are_ignored(empty):
    first, second = seed_sweep(empty, ABLATION), seed_sweep(empty, DELTA)
    app = open_page("sweeps", sweep=first, study="learning-curves")
    assert app.selectbox(key="sweeps?sweep").value == first
    assert app.selectbox(key="sweeps?study").value == "learning-curves"
    app = open_page("sweeps", sweep="<script>", study="../..", template="nonsense", jobs="-5")
    assert not app.exception
    assert app.query_params["sweep"] == second


def test_a_figure_that_does_not_apply_names_the_setting_that_differs(empty):
    app = open_page("sweeps", sweep=seed_sweep(empty, ABLATION), study="lambda-heatmap")
    assert not app.exception
    assert "differs" in "".join(error.value for error in app.error)


def test_names_that_users_typed_are_shown_as_text(empty):
    app = open_page("sweeps", sweep=seed_sweep(empty, LAMBDA))
    (name,) = app.selectbox(key="sweeps?sweep").options
    assert name.startswith("Weights *of* <b>losses</b> · "), "a select box shows plain text"
    assert "<b>" not in said(app).replace("\\<", "")


@pytest.mark.parametrize("number", ["1e999", "nan", "-1", "0", "257", "3.5", "9" * 400, "x"])
def test_an_invalid_number_in_the_url_is_reported_and_disables_the_start(empty, number):
    app = open_page("sweeps", jobs=number)
    assert not app.exception
    assert "Must be" in said(app)
    assert app.button(key="sweep_invalid").disabled
    app.text_input(key="sweeps?jobs").set_value("3").run()
    assert not app.button(key="sweep_start").disabled
    assert app.query_params["jobs"] == "3"


@pytest.mark.parametrize(
    ("bases", "said"),
    [
        ([TYPICAL_SPEED_SOURCE, TYPICAL_SPEED_SOURCE], TYPICAL_SPEED_SOURCE),
        (
            ["the speed of 1 run", TYPICAL_SPEED_SOURCE],
            "measured here for 1 of 2 kinds of run, and a typical speed for the others",
        ),
        (["the speed of 1 run", "the median speed of 4 runs"], "measured here for 2 of 2 kinds of run"),
    ],
)
def test_the_sources_of_several_speeds_are_combined(bases, said):
    assert _join_speed_sources(bases) == said


def test_tables_and_figures_of_a_sweep_read_one_state_of_the_database(empty, monkeypatch):
    """Rows that trainers write while the page is drawn do not change the page."""
    sweep_id = seed_sweep(empty, DELTA)
    drawn = []

    def read_runs(db, asked):
        rows = sweep_runs(db, asked)
        drawn.append({row.win_rate for row in rows})
        with empty.transaction() as connection:
            connection.execute(update(Run).values(win_rate=Run.win_rate / 2))
        return rows

    for module in (detail, study):
        monkeypatch.setattr(module, "sweep_runs", read_runs)
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert len(drawn) > 1
    assert all(each == drawn[0] for each in drawn)
    app.run()
    assert drawn[-1] != drawn[0], "the next run of the page reads the new state"


def test_a_sweep_has_a_result_with_intervals_verdicts_and_its_file(empty):
    sweep_id = seed_sweep(empty, LAMBDA)
    app = open_page("sweeps", sweep=sweep_id, result="true")
    assert not app.exception
    assert not app.error
    tables = [str(part.value) for part in app.markdown if str(part.value).startswith("| ")]
    tables = [text.replace("\\", "").replace("\u00a0", " ") for text in tables]
    (rates,) = [text for text in tables if text.startswith("| variant | 3m |")]
    assert rates.count("2 seeds") == 6
    assert "[" in rates, "95 % intervals"
    (tests,) = [text for text in tables if text.startswith("| task | against | n ")]
    assert len(tests.splitlines()) == 2 + 5
    assert "too few seeds" in tests
    app.selectbox(key="sweeps?reference").select_index(2).run()
    assert "reference" in app.query_params
    assert not app.exception
    assert "Open in Compare" in said(app)
    (text,) = [code.value for code in app.code if "[grid]" in code.value]
    assert parse_sweep(text) == parse_sweep(LAMBDA)


def test_tied_variants_are_all_named_as_the_best(empty):
    sweep_id = seed_sweep(empty, ABLATION)
    with empty.transaction() as connection:
        connection.execute(update(Evaluation).values(wins=16, win_rate=1.0, robust_win_rate=None))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert not app.error
    text = said(app).replace("\\", "")
    assert "4 best runs, final win rate 100 % greedy:" in text
    (sentence,) = [line for line in text.splitlines() if line.startswith("**Best on 3m: ")]
    assert "a tie of 4 of 4 variants at the highest final win rate, 100.0 % (1 seed each): “EMTC(QPLEX)”, " in sentence


def test_the_best_variant_has_the_highest_mean_of_its_seeds(empty):
    sweep_id = seed_sweep(empty, TAU)
    best = sweep_runs(empty, sweep_id)[0]
    same_variant = [run.id for run in sweep_runs(empty, sweep_id) if run.config["gate"] == best.config["gate"]]
    with empty.transaction() as connection:
        connection.execute(update(Evaluation).values(wins=4, win_rate=0.25, robust_win_rate=None))
        connection.execute(update(Evaluation).where(Evaluation.run_id.in_(same_variant)).values(win_rate=0.75))
    text = said(open_page("sweeps", sweep=sweep_id)).replace("\\", "")
    assert "has the highest final win rate, 75.0 % (mean of 2 seeds)." in text


def test_identical_runs_of_a_sweep_have_the_reason_instead_of_a_verdict(empty):
    sweep_id = seed_sweep(empty, ABLATION)
    with empty.transaction() as connection:
        connection.execute(update(Evaluation).values(wins=0, win_rate=0.0, return_mean=0.5, return_std=0.0))
    app = open_page("sweeps", sweep=sweep_id, result="true")
    assert not app.exception
    (tests,) = [str(part.value) for part in app.markdown if str(part.value).startswith("| task | against | n ")]
    assert "identical runs \\(no win yet, so the memory pays no incentive\\)" in tests
    assert "too few seeds" not in tests


def test_the_runs_of_a_sweep_are_listed_by_what_varies_and_by_seed(empty):
    app = open_page("sweeps", sweep=seed_sweep(empty, TAU))
    (table,) = [each.value for each in app.dataframe if "Machine" in each.value]
    assert list(table["Seed"]) == [1, 1, 2, 2]
    assert all("called=fixed&" in link for link in table["Run"][::2])


def test_an_ordinary_sweep_shows_the_win_rate_by_setting(empty):
    app = open_page("sweeps", sweep=seed_sweep(empty, LAMBDA), study="setting-effect")
    assert not app.exception
    assert not app.error
    box = app.selectbox(key="sweeps?setting")
    assert box.options == ["embed.lambda_cl", "embed.lambda_rcon"]
    box.set_value("embed.lambda_rcon").run()
    assert "#### Win rate by embed.lambda_rcon" in said(app).replace("\\", "")
    assert "The runs also differ in embed.lambda_cl, so the line has no interval." in said(app).replace("\\", "")
