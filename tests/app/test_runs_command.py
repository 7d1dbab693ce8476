"""`emtc runs | tag | note | archive | hide`: what they print, and one sentence for what they cannot use."""

import shlex
import shutil

import orjson
import pytest

from app.cli import runs as command
from app.cli.main import run
from storage.engine import Database, open_database
from storage.queries.run_search import run_page
from storage.queries.runs import list_runs
from storage.runs.changes import create_run, start_run
from storage.runs.rows import find_run
from tests.pages.several import seed_runs
from tests.storage.records import CONFIG, ME


@pytest.fixture(scope="module")
def seeded(tmp_path_factory, sqlite_template):
    """emtc-qplex and qmix on 3m and corridor, two seeds each, and an ablation on 3m."""
    path = shutil.copy(sqlite_template, tmp_path_factory.mktemp("runs") / "emtc.db")
    database = open_database(f"sqlite:///{path}")
    seed_runs(database)
    seed_runs(database, algos=("emtc-qplex",), maps=("3m",), overrides=("gate.enabled=false",), prefix="a")
    database.dispose()
    return path


@pytest.fixture
def db(tmp_path, monkeypatch, seeded):
    """A copy of these runs, which is the database of the commands."""
    database = open_database(f"sqlite:///{shutil.copy(seeded, tmp_path / 'emtc.db')}")
    monkeypatch.setenv("EMTC_DB", database.url)
    yield database
    database.dispose()


def ask(capfdbinary, *arguments: str) -> list[dict]:
    assert run(["runs", "--json", *arguments]) == 0
    return orjson.loads(capfdbinary.readouterr().out)


def ids(rows: list[dict]) -> list[str]:
    return sorted(row["id"] for row in rows)


def test_without_options_every_run_is_listed(db: Database, capfdbinary):
    rows = ask(capfdbinary)
    assert [row["id"] for row in rows] == list_runs(db)["id"].tolist()
    assert {"name", "status", "env_steps", "win_rate", "tags", "mu_w", "gate", "preset"} <= rows[0].keys()


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


@pytest.mark.parametrize("json", [["--json"], []], ids=["json", "table"])
def test_a_page_says_what_it_leaves_out(db: Database, capfdbinary, monkeypatch, json):
    monkeypatch.setattr(command, "PAGE_ROWS", 4)  # of a table; JSON has no limit by default
    limit = ["--limit", "4"] if json else []
    whole = [row["id"] for row in ask(capfdbinary, "--sort", "id")]
    assert whole == sorted(whole)
    for page, hint in ((1, b"Page 1 of 3: 4 of 10 matching runs. Next: --page 2"), (3, b"Page 3 of 3: 2 of 10 ")):
        assert run(["runs", "--sort", "id", *json, *limit, "--page", str(page)]) == 0
        out, err = capfdbinary.readouterr()
        assert [run_id for run_id in whole if run_id.encode() in out] == whole[4 * page - 4 : 4 * page]
        assert hint in err
    assert run(["runs", *json, *limit, "--page", "9"]) == 0
    assert b"There is no page 9: 10 runs match, on 3 pages." in capfdbinary.readouterr().err


CORRIDOR, NOWHERE = "--where map=corridor", "--where map=nowhere"
BAD_INPUT = [
    ("runs --where gate.enabled", "gate.enabled"),
    ("runs --where gate.enable=false", "gate.enable"),
    ("runs --where win_rate>high", "win_rate"),
    ("runs --where name<b", "name"),
    ("runs --search nonsense=1", "nonsense"),
    ("runs --sort colour", "colour"),
    ("runs --status dead", "dead"),
    ("runs --limit 0", "--limit"),
    ("runs --limit 99999999999999999999", "--limit"),
    ("runs --page -1", "--page"),
    ("tag r0000", "tag is missing"),
    ("tag r0000 a,b", "a,b"),
    (f"tag r0000 --add {'x' * 65}", "64"),
    ("tag r0000 zzzz --add late", "zzzz"),
    ("note zzzz text", "zzzz"),
    (f"note r0000 {'x' * 20_001}", "20,000"),
    ("note text", "Use: emtc note RUN"),
    ("note r0000 r0001 text", "Use: emtc note RUN"),
    ("ask evaluate", "Use: emtc ask RUN"),
    ("ask r0000 r0001 evaluate", "Use: emtc ask RUN"),
    ("ask r0000 dance", "must be one of evaluate, play"),
    ("ask r0000 evaluate", "can play episodes on request"),
    ("resume r0000 r0001", "--detach"),
    ("archive r0000 r", "More than one run starts with"),
    ("hide ''", "must not be empty"),
    ("diff r0000 r0000", "2 runs"),
    (f"diff {CORRIDOR}", "2 runs, but map=corridor selects 4 runs: "),
    *((f"{words} {NOWHERE}", "No run matches map=nowhere") for words in ("stop", "pause", "resume", "delete", "hide")),
    *((words, "Name at least one run") for words in ("stop", "pause", "delete", "archive", "tag --add x")),
    *((f"{words} --where no.setting=1", "no.setting") for words in ("resume", "tag --add x")),
    *(
        (f"{words} {CORRIDOR}", "1 run, but map=corridor selects 4 runs: ")
        for words in ("show", "note text", "ask evaluate", "evaluate", "project", "export --replay 1 --out x.svg",
                      "export --policy x.pt")
    ),
    ("show", "Name a run"),
    (f"show {NOWHERE}", "No run matches map=nowhere"),
    ("show r0000 --where algo=emtc-qplex --where gate.enabled=false", "No run matches"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "fragment"), BAD_INPUT, ids=[words[:60] for words, _ in BAD_INPUT])
def test_bad_input_is_one_sentence_and_changes_nothing(db: Database, capfdbinary, words: str, fragment: str):
    before = list_runs(db).astype(str).to_dict()
    assert run(shlex.split(words)) == 2
    out, err = capfdbinary.readouterr()
    assert (out, len(err.decode().strip().splitlines()), fragment in err.decode()) == (b"", 1, True), err
    assert list_runs(db).astype(str).to_dict() == before


@pytest.mark.parametrize("command", ["archive", "delete"])
def test_an_active_run_prevents_a_change_of_the_others(db: Database, capfdbinary, command):
    active = create_run(db, CONFIG, target_steps=10, versions={})
    start_run(db, active, **ME)
    assert run([command, "r0000", active]) == 2
    assert active.encode() in capfdbinary.readouterr().err
    assert find_run(db, "r0000").archived_at is None


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


def test_conditions_select_the_run_of_a_command_that_takes_one(db: Database, capfdbinary):
    assert run(["show", *ONE_RUN, "--json"]) == 0
    assert orjson.loads(capfdbinary.readouterr().out)["id"] == "a0001"
    assert run(["note", "collapsed", *ONE_RUN]) == 0
    assert find_run(db, "a0001").notes == "collapsed"
    assert run(["diff", *ONE_RUN[:4], "--json"]) == 0
    assert sorted(orjson.loads(capfdbinary.readouterr().out)["runs"]) == ["a0000", "a0001"]


def test_several_runs_are_deleted_by_a_condition_only_with_yes(db: Database, capfdbinary):
    assert run(["delete", "--where", "map=corridor"]) == 0
    assert b"Nothing was deleted. To delete 4 runs, add: --yes" in capfdbinary.readouterr().err
    assert run_page(db).total == 10
    assert run(["delete", "--where", "map=corridor", "--yes"]) == 0
    assert run(["delete", "a0000", "a0001"]) == 0
    capfdbinary.readouterr()
    assert {(row["map"], row["id"][0]) for row in ask(capfdbinary)} == {("3m", "r")}


def test_several_queued_runs_are_stopped_although_one_has_ended(db: Database, capfdbinary):
    queued = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(2)]
    assert run(["stop", queued[0], "r0000", queued[1]]) == 2
    assert capfdbinary.readouterr().err.count(b"\n") == 3
    assert [find_run(db, run_id).status for run_id in queued] == ["stopped", "stopped"]


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
