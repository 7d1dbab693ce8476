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
from app.jobs.sweeps.control import estimate_cost
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import make_plan
from app.ui.sweeps import detail, study
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN, copy_runs
from storage.engine import open_database
from storage.models import Evaluation, Run
from storage.runs.changes import start_run
from storage.runs.rows import find_run
from storage.runs.sweeps import list_sweeps, sweep_runs, write_worker_heartbeat
from tests.app.sweep_cases import ABLATION, AUGMENTATION, DELTA, LAMBDA, TAU, seed_sweep
from tests.pages.conftest import copy_database, read_address
from tests.pages.seed import seed_run
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


def test_a_template_is_shown_with_its_cost(empty):
    app = open_page("sweeps", template="lambda-heatmap-demo")
    assert not app.exception
    assert not app.error
    assert "There is no sweep yet" in said(app)
    assert app.selectbox(key="sweeps?template").value == "lambda-heatmap-demo"
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics["Runs"] == "9"
    assert metrics["Expected duration"].startswith("≈")
    app.selectbox(key="sweeps?template").set_value("tau-study-demo").run()
    assert not app.exception
    assert read_address(app)["template"] == "tau-study-demo"


def test_the_gpu_and_the_command_that_starts_mps_are_named_only_where_there_is_a_gpu(empty, tmp_path, monkeypatch):
    monkeypatch.setenv(gpu.MPS_VARIABLE, "")
    monkeypatch.setattr(gpu, "MPS_DEFAULT", str(tmp_path))
    assert "MPS" not in said(open_page("sweeps"))
    monkeypatch.setattr(gpu, "_DEVICE_FILES", ("/dev/null",))
    monkeypatch.setattr(gpu, "_query_torch", lambda *key: gpu.Gpu("NVIDIA Some GPU", 7 * 10**9, 8 * 10**9))
    text = said(open_page("sweeps"))
    assert "NVIDIA Some GPU, 7 GB free. NVIDIA MPS does not run" in text
    assert gpu.MPS_COMMAND in text


def test_faults_are_shown_before_anything_is_created(empty):
    app = write(open_page("sweeps"), SMALL.replace("memory.delta", "memory.dleta").replace("0.002", "-1"))
    assert [error.value for error in app.error] == ['memory\\.dleta is not a setting\\. Did you mean "memory\\.delta"?']
    assert app.button(key="sweep_invalid").disabled
    assert list_sweeps(empty) == []


def test_the_start_button_queues_the_runs_and_starts_them_in_the_background(empty, started):
    shown = seed_sweep(empty, TAU)
    app = write(open_page("sweeps", sweep=shown), SMALL)
    app.button(key="sweep_start").click().run()
    (sweep,) = [sweep for sweep in list_sweeps(empty) if sweep.id != shown]
    assert sweep.counts == {"queued": 2}
    assert [call[:3] for call in started] == [["app.cli.main", "sweep", sweep.id]]
    assert read_address(app)["sweep"] == sweep.id
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
    assert "lambda\\_rcon = 0\\.05, lambda\\_cl = 0\\.15, seed 1" in explained(app)
    app.button(key="sweep_missing").click().run()
    assert [call[2] for call in started] == [sweep_id]
    statuses = [run.status for run in sweep_runs(empty, sweep_id)]
    assert (len(statuses), statuses.count("queued")) == (12, 2)


def test_queued_and_lost_runs_are_launched_here_unless_a_worker_will_train_them(empty, started):
    sweep_id = seed_sweep(empty, TAU, unfinished=(0, 1, 2))
    lost, running, _, _ = sweep_runs(empty, sweep_id)
    for run in (lost, running):
        start_run(empty, run.id, device="cpu")
    with empty.transaction() as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(Run).where(Run.id == lost.id).values(heartbeat_at=past))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert "**1 of 4 runs are missing.**" in said(app), "the lost run"
    assert "**1 of 4 runs are queued**" in said(app)
    app.button(key="sweep_missing").click().run()
    assert [call[2] for call in started] == [sweep_id]
    assert "2 of 4 runs are queued" in said(app), "the started worker will train both"
    assert not has_launch_button(app)
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.id == running.id).values(status="failed"))
    app.run()
    assert "**1 of 4 runs are missing.**" in said(app)
    app.button(key="sweep_missing").click().run()
    assert not app.exception
    assert len(started) == 1, "the worker takes it"
    assert find_run(empty, running.id).status == "queued"


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


@pytest.mark.parametrize(
    ("change", "n_missing"),
    [
        ("UPDATE runs SET name = 'imported'", 16),
        ("UPDATE runs SET config = json_set(config, '$.train.updates_per_episode', 7)", 16),
        ("UPDATE sweeps SET plan = json_set(plan, '$.file.set.\"no.such.setting\"', 1)", 0),
    ],
    ids=["of the same preset", "of an earlier preset", "of a plan that this version cannot make"],
)
def test_imported_runs_are_not_missing(shipped, use_database, tmp_path, started, change, n_missing):
    db = use_database(copy_database(shipped, tmp_path / "study.db"))
    with db.transaction() as connection:
        connection.exec_driver_sql(change)
    (sweep,) = list_sweeps(db)
    app = open_page("sweeps")
    assert not app.exception
    assert not app.error
    assert bool(app.warning) == (n_missing == 0)
    assert has_launch_button(app) == (n_missing > 0)
    if n_missing:
        app.button(key="sweep_missing").click().run()
    assert not app.exception
    assert sum(run.status == "queued" for run in sweep_runs(db, sweep.id)) == n_missing


def test_a_bundle_with_some_of_the_planned_runs_misses_none(empty):
    bundle = cache_bundle(EXAMPLE_BUNDLE)
    app = open_page("sweeps", sweep="101980e0", **{"from": bundle.key})
    assert not app.exception
    assert "This bundle contains 8 of the 24 planned runs." in said(app)
    assert "missing" not in said(app)


def test_a_working_sweep_can_be_stopped(empty, started):
    sweep_id = seed_sweep(empty, TAU, unfinished=(3,))
    write_worker_heartbeat(empty, sweep_id)
    app = open_page("sweeps", sweep=sweep_id)
    assert "missing" not in said(app)
    app.button(key="sweep_stop").click().run()
    assert not app.exception
    assert "Removed 1 run from the queue" in said(app)
    assert list_sweeps(empty)[0].counts == {"finished": 3, "stopped": 1}


def test_each_run_is_listed_by_what_varies_with_its_seed_progress_and_machine(empty):
    sweep_id = seed_sweep(empty, TAU, unfinished=(3,))
    with empty.transaction() as connection:
        connection.execute(update(Run).where(Run.host.is_not(None)).values(env_steps=500))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    (table,) = [each.value for each in app.dataframe if "Machine" in each.value]
    assert all("called=fixed&" in link for link in table["Run"][::2])
    assert list(table["Seed"]) == [1, 1, 2, 2]
    assert list(table["Progress"]) == [50] * 3 + [0]
    assert list(table["Machine"]) == [socket.gethostname()] * 3 + ["–"]


@pytest.mark.parametrize("text", [TAU, DELTA, AUGMENTATION], ids=lambda text: text.split('"')[3])
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
    assert "Final robust win rate" in said(app).replace("\\", "")
    app.segmented_control(key="sweeps?rate").set_value("greedy").run()
    assert not app.exception
    assert read_address(app)["rate"] == "greedy"
    assert "Final win rate" in said(app)
    assert "Final robust" not in said(app)


def test_the_url_selects_sweep_and_figure_and_invalid_values_are_ignored(empty):
    first, second = seed_sweep(empty, ABLATION), seed_sweep(empty, DELTA)
    app = open_page("sweeps", sweep=first, study="lambda-heatmap")
    assert not app.exception
    assert app.selectbox(key="sweeps?sweep").value == first
    assert app.selectbox(key="sweeps?study").value == "lambda-heatmap"
    assert "differs" in "".join(error.value for error in app.error), "the figure names a setting"
    app = open_page("sweeps", sweep="<script>", study="../..", template="nonsense")
    assert not app.exception
    assert read_address(app)["sweep"] == second


@pytest.mark.parametrize("number", ["0", "257", "x"])
def test_an_invalid_number_in_the_url_is_reported_and_disables_the_start(empty, number):
    app = open_page("sweeps", jobs=number)
    assert not app.exception
    assert "Must be" in said(app)
    assert app.button(key="sweep_invalid").disabled
    app.text_input(key="sweeps?jobs").set_value("3").run()
    assert not app.button(key="sweep_start").disabled
    assert app.query_params["jobs"] == "3"


def test_the_sources_of_the_assumed_speeds_are_combined(empty):
    text = 'name = "Two"\nsteps = 300\nseeds = 1\n[[variant]]\nname = "a"\n[[variant]]\nname = "b"\nalgo = "qplex"\n'
    plan = make_plan(parse_sweep(text))

    def read_source() -> str:
        return estimate_cost(empty, plan, jobs=1)[2]

    assert read_source() == TYPICAL_SPEED_SOURCE
    seed_run(empty)
    assert read_source() == "measured here for 1 of 2 kinds of run, and a typical speed for the others"
    seed_run(empty, gate="none")  # trained with qplex
    assert read_source().startswith("the speed of 1 run")
    seed_run(empty)
    assert read_source() == "measured here for 2 of 2 kinds of run"


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


def find_table(app, head: str) -> str:
    texts = [str(part.value).replace("\\", "").replace("\u00a0", " ") for part in app.markdown]
    (found,) = [text for text in texts if text.startswith(head)]
    return found


def test_a_sweep_has_a_result_with_intervals_verdicts_and_its_file(empty):
    sweep_id = seed_sweep(empty, LAMBDA)
    app = open_page("sweeps", sweep=sweep_id, result="true")
    assert not app.exception
    assert not app.error
    rates = find_table(app, "| variant | 3m |")
    assert rates.count("2 seeds") == 6
    assert "[" in rates, "95 % intervals"
    tests = find_table(app, "| task | against | n ")
    assert len(tests.splitlines()) == 2 + 5
    assert "too few seeds" in tests
    reference = app.selectbox(key="sweeps?reference")
    name = reference.options[2]
    assert f"| {name} |" in tests
    reference.select_index(2).run()
    assert not app.exception
    assert f"| {name} |" not in find_table(app, "| task | against | n ")
    assert "Open in Compare" in said(app)
    assert "<b>" not in said(app).replace("\\<", ""), "the name of the sweep is shown as text"
    (text,) = [code.value for code in app.code if "[grid]" in code.value]
    assert parse_sweep(text) == parse_sweep(LAMBDA)


@pytest.mark.parametrize(
    ("rates", "best", "sentence"),
    [
        (
            (1.0, 1.0),
            "4 best runs, final win rate 100 %",
            "a tie of 2 of 2 variants at the highest final win rate, 100.0 %",
        ),
        ((0.75, 0.25), "2 best runs, final win rate 75 %", "has the highest final win rate, 75.0 % (mean of 2 seeds)."),
    ],
    ids=["equal means", "different means"],
)
def test_the_best_variants_have_the_highest_mean_of_their_seeds(empty, rates, best, sentence):
    sweep_id = seed_sweep(empty, TAU)
    runs = sweep_runs(empty, sweep_id)
    with empty.transaction() as connection:
        for variant, rate in enumerate(rates):
            of_variant = Evaluation.run_id.in_([run.id for run in runs[variant::2]])
            values = {"wins": round(16 * rate), "win_rate": rate, "robust_win_rate": None}
            connection.execute(update(Evaluation).where(of_variant).values(**values))
    app = open_page("sweeps", sweep=sweep_id)
    assert not app.exception
    assert not app.error
    text = said(app).replace("\\", "")
    assert best in text
    assert sentence in text


def test_an_ordinary_sweep_shows_the_win_rate_by_setting(empty):
    app = open_page("sweeps", sweep=seed_sweep(empty, LAMBDA), study="setting-effect")
    assert not app.exception
    assert not app.error
    box = app.selectbox(key="sweeps?setting")
    assert box.options == ["embed.lambda_cl", "embed.lambda_rcon"]
    box.set_value("embed.lambda_rcon").run()
    assert "#### Win rate by embed.lambda_rcon" in said(app).replace("\\", "")
    assert "The runs also differ in embed.lambda_cl, so the line has no interval." in said(app).replace("\\", "")
