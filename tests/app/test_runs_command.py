"""`emtc runs | tag | note | archive | hide`: what they print, and one sentence for what they cannot use."""

import shutil

import orjson
import pytest

from app.cli import runs as command
from app.cli.main import run
from storage.engine import Database, open_database
from storage.queries.run_search import run_page
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.rows import find_run
from tests.pages.several import seed_runs
from tests.storage.records import CONFIG, ME

KEYS = {
    *("id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "created_at", "started_at"),
    *("ended_at", "heartbeat_at", "device", "win_rate", "return_mean", "tags", "notes", "error", "sweep_id"),
    *("parent_id", "stall"),
}
"""What a script may read since the first version."""


@pytest.fixture
def db(tmp_path, monkeypatch, sqlite_template):
    """emtc-qplex and qmix on 3m and corridor, two seeds each, and an ablation on 3m."""
    monkeypatch.setenv("EMTC_DB", f"sqlite:///{tmp_path / 'emtc.db'}")
    database = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'emtc.db')}")
    seed_runs(database)
    seed_runs(database, algos=("emtc-qplex",), maps=("3m",), overrides=("gate.enabled=false",), prefix="a")
    yield database
    database.dispose()


def ask(capfdbinary, *arguments: str) -> list[dict]:
    assert run(["runs", "--json", *arguments]) == 0
    return orjson.loads(capfdbinary.readouterr().out)


def ids(rows: list[dict]) -> list[str]:
    return sorted(row["id"] for row in rows)


def test_without_options_every_run_is_listed_with_the_keys_of_before(db: Database, capfdbinary):
    rows = ask(capfdbinary)
    assert [row["id"] for row in rows] == list_runs(db)["id"].tolist()
    assert all(row.keys() >= KEYS for row in rows)
    assert {"mu_w", "gate", "hidden_at", "archived_at", "preset"} <= rows[0].keys()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--where", "gate.enabled=false", "--where", "algo=EMTC(QPLEX)"), ["a0000", "a0001"]),
        (("--tag", "paper", "--search", "corridor"), ["r0006", "r0007"]),
        (("--status", "finished", "--where", "seed=2", "--where", "map=3m"), ["a0001", "r0001", "r0005"]),
        (("--status", "lost"), []),
        (("--where", "win_rate>0.85", "--where", "map=corridor"), ["r0002", "r0006"]),
        (("--archived",), []),
    ],
)
def test_options_narrow_the_list(db: Database, capfdbinary, arguments, expected):
    assert ids(ask(capfdbinary, *arguments)) == expected


def test_pages_and_order_say_what_they_leave_out(db: Database, capfdbinary):
    whole = [row["id"] for row in ask(capfdbinary, "--sort", "id")]
    assert whole == sorted(whole)
    assert run(["runs", "--json", "--sort", "id", "--limit", "4", "--page", "3"]) == 0
    out, err = capfdbinary.readouterr()
    assert [row["id"] for row in orjson.loads(out)] == whole[8:]
    assert b"Page 3 of 3: 2 of 10 matching runs." in err
    assert run(["runs", "--limit", "4", "--page", "9"]) == 0
    assert b"There is no page 9: 10 runs match, on 3 pages." in capfdbinary.readouterr().err


def test_the_table_stops_at_a_page_and_says_so(db: Database, capfdbinary, monkeypatch):
    monkeypatch.setattr(command, "PAGE_ROWS", 4)
    assert run(["runs"]) == 0
    out, err = capfdbinary.readouterr()
    assert out.count(b"skirmish") == 4
    assert b"Page 1 of 3: 4 of 10 matching runs. Next: --page 2" in err
    assert all(column.encode() in out for column in command.TABLE_COLUMNS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "--where", "gate.enabled"),
        ("runs", "--where", "gate.enable=false"),
        ("runs", "--where", "win_rate>high"),
        ("runs", "--where", "name<b"),
        ("runs", "--search", "nonsense=1"),
        ("runs", "--sort", "colour"),
        ("runs", "--status", "dead"),
        ("runs", "--limit", "0"),
        ("runs", "--limit", "99999999999999999999"),
        ("runs", "--page", "-1"),
        ("tag", "r0000"),
        ("tag", "r0000", "a,b"),
        ("tag", "r0000", "--add", "x" * 65),
        ("tag", "r0000", "zzzz", "--add", "late"),
        ("note", "zzzz", "text"),
        ("note", "r0000", "x" * 20_001),
        ("archive", "r0000", "r"),
        ("hide", ""),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(db: Database, capfdbinary, arguments):
    before = list_runs(db).astype(str).to_dict()
    assert run(list(arguments)) == 2
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert len(err.decode().strip().splitlines()) == 1
    assert list_runs(db).astype(str).to_dict() == before


def test_tags_are_added_in_both_spellings_and_taken_away(db: Database, capfdbinary):
    assert run(["tag", "r0000", "r0001", "mine"]) == 0
    assert b"2 of 2 runs" in capfdbinary.readouterr().err
    assert ids(ask(capfdbinary, "--tag", "mine")) == ["r0000", "r0001"]
    assert run(["tag", "r0000", "--add", "better one", "--remove", "mine"]) == 0
    assert find_run(db, "r0000").tags == ["better one"]


def test_a_note_is_written_found_and_taken_away(db: Database, capfdbinary):
    assert run(["note", "r0003", "collapsed after 2M"]) == 0
    assert run(["note", "r0003", "seed of the appendix", "--append"]) == 0
    assert find_run(db, "r0003").notes == "collapsed after 2M\nseed of the appendix"
    capfdbinary.readouterr()
    assert ids(ask(capfdbinary, "--search", '"collapsed after" appendix')) == ["r0003"]
    assert run(["note", "r0003", ""]) == 0
    assert find_run(db, "r0003").notes == ""


def test_what_is_archived_is_listed_apart_until_it_is_brought_back(db: Database, capfdbinary):
    assert run(["archive", "r0000", "r0001"]) == 0
    capfdbinary.readouterr()
    assert ids(ask(capfdbinary, "--archived")) == ["r0000", "r0001"]
    assert len(ask(capfdbinary)) == 8
    assert run(["archive", "r0000", "r0001", "--undo"]) == 0
    assert run_page(db).total == 10
    assert run(["hide", "r0000"]) == 0
    assert find_run(db, "r0000").hidden_at is not None
    assert run_page(db).total == 10
    assert run(["hide", "r0000", "--undo"]) == 0
    assert find_run(db, "r0000").hidden_at is None


def test_a_run_at_work_is_not_archived(db: Database, capfdbinary):
    at_work = create_run(db, CONFIG, target_steps=10, versions={})
    start_run(db, at_work, **ME)
    assert run(["archive", at_work]) == 2
    assert b"can be archived. See" in capfdbinary.readouterr().err
    finish_run(db, at_work, "finished")
    assert run(["archive", at_work]) == 0


def test_a_run_that_nobody_trains_cannot_be_asked(db: Database, capfdbinary):
    for arguments in (["evaluate"], ["play", "--episode", "1"]):
        assert run(["ask", "r0000", *arguments]) == 2
        out, err = capfdbinary.readouterr()
        assert (out, b"can play episodes on request" in err, err.count(b"\n")) == (b"", True, 1)


@pytest.mark.parametrize("command", [["note", "text"], ["ask", "evaluate"]])
def test_the_last_word_follows_at_most_one_run(db: Database, capfdbinary, command):
    name, last = command
    for runs, reason in (([], b"The run is missing"), (["r0000", "r0001"], b"Too many arguments")):
        assert run([name, *runs, last]) == 2
        err = capfdbinary.readouterr().err
        assert reason in err
        assert f"Use: emtc {name} RUN".encode() in err


def test_a_question_is_evaluate_or_play(db: Database, capfdbinary):
    assert run(["ask", "r0000", "dance"]) == 2
    assert b"dance" in capfdbinary.readouterr().err


def test_conditions_select_runs_for_every_command_that_takes_several(db: Database, capfdbinary):
    gate_is_off = ["--where", "gate.enabled=false", "--where", "algo=emtc-qplex"]
    assert run(["tag", *gate_is_off, "no-gate"]) == 0
    capfdbinary.readouterr()
    assert ids(ask(capfdbinary, "--tag", "no-gate")) == ["a0000", "a0001"]
    assert run(["tag", *gate_is_off, "--remove", "no-gate"]) == 0
    assert run(["archive", "a0001", "r0001", *gate_is_off]) == 0, "conditions narrow the named runs"
    capfdbinary.readouterr()
    assert ids(ask(capfdbinary, "--archived")) == ["a0001"]
    assert run(["archive", "--undo", "--where", "seed=2"]) == 0, "archived runs are found to be restored"
    capfdbinary.readouterr()
    assert ask(capfdbinary, "--archived") == []


ONE_RUN = ["--where", "algo=emtc-qplex", "--where", "gate.enabled=false", "--where", "seed=2"]
COMMANDS_OF_ONE_RUN = ["show", "note text", "ask evaluate", "evaluate", "project", "export --replay 1 --out x.svg"]


@pytest.mark.parametrize("command", [*COMMANDS_OF_ONE_RUN, "export --policy x.pt"])
def test_a_command_of_one_run_refuses_conditions_that_select_several_or_none(db: Database, capfdbinary, command):
    for conditions, fragment in (
        (["--where", "map=corridor"], "This command takes 1 run, but map=corridor selects 4 runs: "),
        (["--where", "map=nowhere"], "No run matches map=nowhere"),
        ([], "run"),
    ):
        assert run([*command.split(), *conditions]) == 2
        out, err = capfdbinary.readouterr()
        assert (out, err.count(b"\n"), fragment in err.decode()) == (b"", 1, True), err


def test_conditions_select_the_run_of_a_command_that_takes_one(db: Database, capfdbinary):
    assert run(["show", *ONE_RUN, "--json"]) == 0
    assert orjson.loads(capfdbinary.readouterr().out)["id"] == "a0001"
    assert run(["note", "collapsed", *ONE_RUN]) == 0
    assert find_run(db, "a0001").notes == "collapsed"
    assert run(["show", "r0000", *ONE_RUN]) == 2, "conditions narrow the named run"
    capfdbinary.readouterr()
    for words in COMMANDS_OF_ONE_RUN[2:]:
        assert run([*words.split(), *ONE_RUN]) == 2
        assert b"a0001" in capfdbinary.readouterr().err
    assert run(["diff", *ONE_RUN[:4], "--json"]) == 0
    assert sorted(orjson.loads(capfdbinary.readouterr().out)["runs"]) == ["a0000", "a0001"]
    assert run(["diff", "--where", "map=corridor"]) == 2
    assert b"This command takes 2 runs, but map=corridor selects 4 runs" in capfdbinary.readouterr().err


@pytest.mark.parametrize("command", ["stop", "pause", "resume", "delete", "archive", "hide", "tag"])
def test_a_command_for_runs_needs_runs_or_a_condition_that_one_of_them_meets(db: Database, capfdbinary, command):
    before = list_runs(db).astype(str).to_dict()
    for arguments in ([], ["--where", "map=nowhere"], ["--where", "no.setting=1"]):
        assert run([command, *arguments, *(["--add", "x"] if command == "tag" else [])]) == 2
        out, err = capfdbinary.readouterr()
        assert (out, err.count(b"\n")) == (b"", 1)
    assert list_runs(db).astype(str).to_dict() == before


def test_several_runs_are_deleted_by_a_condition_only_with_yes(db: Database, capfdbinary):
    assert run(["delete", "--where", "map=corridor"]) == 0
    assert b"Nothing was deleted. To delete 4 runs, add: --yes" in capfdbinary.readouterr().err
    assert run_page(db).total == 10
    assert run(["delete", "--where", "map=corridor", "--yes"]) == 0
    assert run(["delete", "a0000", "a0001"]) == 0
    capfdbinary.readouterr()
    assert {(row["map"], row["id"][0]) for row in ask(capfdbinary)} == {("3m", "r")}


def test_a_run_that_is_active_prevents_the_deletion_of_the_others(db: Database, capfdbinary):
    active = create_run(db, CONFIG, target_steps=10, versions={})
    start_run(db, active, **ME)
    assert run(["delete", "r0000", active]) == 2
    assert find_run(db, "r0000")


def test_several_queued_runs_are_stopped_although_one_has_ended(db: Database, capfdbinary):
    queued = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(2)]
    assert run(["stop", queued[0], "r0000", queued[1]]) == 2
    assert capfdbinary.readouterr().err.count(b"\n") == 3
    assert [find_run(db, run_id).status for run_id in queued] == ["stopped", "stopped"]


def test_several_runs_are_trained_only_in_the_background(db: Database, capfdbinary):
    assert run(["resume", "r0000", "r0001"]) == 2
    assert b"--detach" in capfdbinary.readouterr().err


def test_a_path_is_accepted_where_a_url_is(db: Database, capfdbinary, monkeypatch):
    path, expected = str(db.path), ids(ask(capfdbinary))
    monkeypatch.delenv("EMTC_DB")
    assert ids(ask(capfdbinary, "--db", path)) == expected
    monkeypatch.setenv("EMTC_DB", path)
    assert ids(ask(capfdbinary)) == expected
    assert run(["db", "stats", "--db", path]) == 0
    assert run(["sql", "SELECT 1 AS one", "--json"]) == 0


def test_the_differences_of_two_runs_are_their_settings_versions_and_results(db: Database, capfdbinary):
    assert run(["diff", "r0000", "a0001", "--json"]) == 0
    found = orjson.loads(capfdbinary.readouterr().out)
    assert found["runs"] == ["r0000", "a0001"]
    assert found["settings"] == {"gate.enabled": [True, False], "seed": [1, 2]}
    assert set(found) == {"runs", "settings", "versions", "results", "identical_evaluations"}
    assert run(["diff", "r0000", "r0004"]) == 0
    assert b"algo" in capfdbinary.readouterr().out
    assert run(["diff", "r0000", "r0000"]) == 2
