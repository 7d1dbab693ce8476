"""The runs table: search, filters, order and pages against looking at every run, and what runs are labelled with."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert

from app.analysis.aggregates import compute_mu_w
from emtc_core.errors import ConfigError, RunNotFoundError, RunStateError
from storage.engine import Database
from storage.models import Evaluation, Run
from storage.queries.curves import evaluations
from storage.queries.gate_state import gate_state
from storage.queries.run_search import SORTS, RunFilter, list_filter_options, matching_ids, run_page
from storage.queries.search_terms import MAX_TERMS
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, finish_run, start_run
from storage.runs.claims import claim_to_train, make_token
from storage.runs.labels import check_tags, set_visibility, tag_runs
from storage.runs.rows import find_run
from tests.reference import run_table as reference
from tests.storage.records import CONFIG, ME, make_evaluation

MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)
TAGS = ["paper", "bad idea", "50%_off", 'quo"te', "β", "Paper 2"]
TERMS = [
    *("corridor", "EMTC(QPLEX)", "50%_off", '"bad idea"', "second", "r000", "é", "_", "%", "\\"),
    *(
        "gate.enabled=false",
        "gate.enabled!=false",
        "train.lr=0.0005",
        "train.lr<0.001",
        "train.lr=5e-4",
        "embed.type=DCAE",
    ),
    *("gate.tau_decay_steps=none", "memory.delta>=0.0013", "gate.lookup=written", "env.map=3m", "train.gamma=0.99"),
    *("seed=1", "seed!=1", "seed<=2", "win_rate>0.4", "win_rate=0.5", "return<3", "mu_w>=0.25", "env_steps=100"),
    *("status=lost", "status!=lost", "gate=active", "gate=none", "gate!=idle", "tag=Paper", "tag!=paper", "name=R"),
    *("algo=emtc(qplex)", "map=3M", "note=second", "sweep=s1", "env=skirmish"),
    *("tag=paper,β", "tag!=paper,β", "seed=1,3", "map=corridor,2s3z", "embed.type=dcae,none", "status!=lost,queued"),
]


def config_of(draw: Any, algo: str, map: str, seed: int) -> dict[str, Any]:
    return {
        "algo": algo,
        "seed": seed,
        "preset": draw(st.sampled_from(["paper", "demo"])),
        "env": {"name": "skirmish", "map": map},
        "train": {"lr": draw(st.sampled_from([0.0005, 0.001, 1e-5])), "gamma": 0.99},
        "gate": {"enabled": draw(st.booleans()), "tau_decay_steps": draw(st.sampled_from([None, 5000]))},
        "embed": {"type": draw(st.sampled_from(["tcse", "dcae"]))},
        "memory": {"delta": draw(st.sampled_from([0.0013, 0.018]))},
    }


@st.composite
def runs(draw: Any) -> list[dict[str, Any]]:
    number = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    made = []
    for place in range(draw(st.integers(0, 10))):
        algo = draw(st.sampled_from(["emtc-qplex", "qmix", "emu-cds"]))
        map = draw(st.sampled_from(["3m", "corridor"]))
        seed = draw(st.integers(0, 3))
        started = draw(st.one_of(st.none(), st.just(MADE_AT)))
        made.append(
            {
                "id": f"r{place:03d}",
                "name": draw(st.sampled_from(["R", "caf\u00e9", "100%", "a_b", "back\\slash", f"{algo} {map}"])),
                "env": "skirmish",
                "map": map,
                "algo": algo,
                "seed": seed,
                "status": draw(st.sampled_from(["queued", "running", "paused", "finished", "stopped", "failed"])),
                "env_steps": draw(st.sampled_from([0, 50, 100])),
                "target_steps": 100,
                "created_at": MADE_AT + timedelta(minutes=draw(st.integers(0, 3))),
                "started_at": started,
                "ended_at": started and draw(st.one_of(st.none(), st.just(MADE_AT + timedelta(seconds=90)))),
                "heartbeat_at": started and MADE_AT + timedelta(seconds=30),
                "host": "another machine",
                "sweep_id": draw(st.sampled_from([None, "s1"])),
                "win_rate": draw(number),
                "return_mean": draw(number),
                "mu_w": draw(number),
                "gate_removed": draw(st.sampled_from([None, 0.0, 0.5])),
                "tags": sorted(draw(st.sets(st.sampled_from(TAGS), max_size=3))),
                "notes": draw(st.sampled_from(["", "second", "Second try"])),
                "versions": {},
                "config": config_of(draw, algo, map, seed),
            }
        )
    return made


@st.composite
def filters(draw: Any) -> tuple[RunFilter, list[str]]:
    terms = draw(st.lists(st.sampled_from(TERMS), max_size=2))

    def some(values: list[str]) -> tuple[str, ...]:
        return tuple(draw(st.sets(st.sampled_from(values), max_size=2)))

    wanted = RunFilter(
        text=" ".join(terms),
        statuses=some(["lost", "queued", "finished"]),
        maps=some(["3m", "corridor"]),
        algos=some(["emtc-qplex", "qmix"]),
        presets=some(["demo"]),
        tags=some(TAGS[:4]),
        evaluated=draw(st.booleans()),
    )
    return wanted, [term.replace('"', "") for term in terms]


def fits(run: dict[str, Any], wanted: RunFilter, terms: list[str]) -> bool:
    return (
        all(reference.holds(run, term) for term in terms)
        and (not wanted.statuses or reference.status_of(run) in wanted.statuses)
        and (not wanted.maps or run["map"] in wanted.maps)
        and (not wanted.algos or run["algo"] in wanted.algos)
        and (not wanted.presets or run["config"]["preset"] in wanted.presets)
        and (not wanted.tags or bool(set(run["tags"]) & set(wanted.tags)))
        and (not wanted.evaluated or (run["win_rate"], run["return_mean"]) != (None, None))
    )


def write(db: Database, rows: list[dict[str, Any]]) -> None:
    with db.transaction() as connection:
        connection.execute(delete(Run))
        if rows:
            connection.execute(insert(Run), rows)


ANY_ORDER = st.sampled_from(["", *SORTS, *(f"-{name}" for name in SORTS)])
AGAIN = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@AGAIN
@given(rows=runs(), asked=filters(), sort=ANY_ORDER, size=st.integers(1, 4))
def test_pages_are_what_looking_at_every_run_gives(
    db: Database, rows: list[dict[str, Any]], asked: tuple[RunFilter, list[str]], sort: str, size: int
) -> None:
    write(db, rows)
    wanted, terms = asked
    expected = [run["id"] for run in reference.in_order([run for run in rows if fits(run, wanted, terms)], sort)]
    assert matching_ids(db, wanted, sort=sort) == expected
    assert run_page(db, wanted).total == len(expected)
    for start in range(0, max(1, len(expected)), size):
        page = run_page(db, wanted, sort=sort, limit=size, offset=start)
        assert page.total == len(expected)
        assert page.frame["id"].tolist() == expected[start : start + size]
        assert page.frame["status"].tolist() == [
            reference.status_of(next(run for run in rows if run["id"] == run_id)) for run_id in page.frame["id"]
        ]


@AGAIN
@given(rows=runs())
def test_choices_are_what_the_runs_hold(db: Database, rows: list[dict[str, Any]]) -> None:
    write(db, rows)
    choices = list_filter_options(db)
    assert choices.total == len(rows)
    for status, number in choices.statuses.items():
        assert number == sum(reference.status_of(run) == status for run in rows)
    assert choices.maps == sorted({run["map"] for run in rows})
    assert choices.algos == sorted({run["algo"] for run in rows})
    assert choices.presets == sorted({run["config"]["preset"] for run in rows})
    assert choices.tags == sorted({tag for run in rows for tag in run["tags"]})


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        ('name="one, two"', True),
        ("name=one", False),
        ("memory.capacity=1000000", True),
        ("memory.capacity=1000001", False),
        ("memory.capacity=1e6", True),
        ("memory.capacity=1000001.0", True),
        ("memory.capacity=none", False),
        ("memory.capacity=true", False),
        ("gate.tau_decay_steps=none", True),
        ("gate.tau_decay_steps=null", True),
        ("gate.tau_decay_steps=0", False),
        ("gate.tau_decay_steps=false", False),
    ],
)
def test_a_value_is_found_in_each_of_its_forms(db: Database, term: str, matches: bool) -> None:
    create_run(db, CONFIG | {"gate": {"tau_decay_steps": 500}}, target_steps=10, versions={}, name="three")
    config = CONFIG | {"memory": {"capacity": 1_000_000}, "gate": {"tau_decay_steps": None}}
    stored = create_run(db, config, target_steps=10, versions={}, name="one, two")
    assert matching_ids(db, RunFilter(text=term)) == ([stored] if matches else [])


@pytest.mark.parametrize(
    "options",
    [
        {"text": "gate.enable=1"},
        {"text": "winrate>1"},
        {"text": "win_rate>high"},
        {"text": "name<b"},
        {"text": "train.lr>nan"},
        {"text": "a " * (MAX_TERMS + 1)},
        {"text": "seed=" + "1,2," * MAX_TERMS},
        {"sort": "config; DROP TABLE runs"},
    ],
    ids=lambda options: next(iter(options.values()))[:20],
)
def test_an_invalid_search_is_refused(sqlite_db: Database, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        run_page(sqlite_db, RunFilter(text=options.get("text", "")), sort=options.get("sort", ""))


@pytest.mark.parametrize(
    "text", ["' OR 1=1 --", "name=' OR '1'='1", "gate.enabled=');DROP", '"', "=", "\\", "no\u2028such"]
)
def test_what_is_typed_is_never_sql(db: Database, run_id: str, text: str) -> None:
    assert run_page(db, RunFilter(text=text)).total == (text == '"')
    assert run_page(db).total == 1


def test_tags_are_added_and_taken_away_from_all_or_none(db: Database) -> None:
    first, second = (create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(2))
    tag_runs(db, [first], add=["old", "kept"])
    assert tag_runs(db, [first, second], add=["new"], remove=["old"]) == 2
    assert [find_run(db, run_id).tags for run_id in (first, second)] == [["kept", "new"], ["new"]]
    assert tag_runs(db, [first, second], add=["new"]) == 0
    with pytest.raises(RunNotFoundError):
        tag_runs(db, [first, "zzzz"], add=["late"])
    assert find_run(db, first).tags == ["kept", "new"]


@pytest.mark.parametrize("tag", ["", " ", "a,b", "x" * 65, "a\nb", "a\x1b[2J", " a"])
def test_what_is_no_tag_is_refused(sqlite_db: Database, tag: str) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1000, versions={})
    with pytest.raises(RunStateError, match="tag"):
        tag_runs(sqlite_db, [run_id], add=[tag])
    assert check_tags(["b", "a", "b"]) == ["a", "b"]


def test_shelves_take_runs_out_of_sight_and_bring_them_back(db: Database) -> None:
    ids = [create_run(db, CONFIG, target_steps=10, versions={}) for _ in range(3)]
    assert set_visibility(db, ids[:2], "archive") == 2
    assert set_visibility(db, ids[:1], "archive") == 0
    set_visibility(db, ids[2:], "hide")
    assert run_page(db).total == 1
    assert run_page(db, RunFilter(visibility="hidden")).total == 1
    assert set(matching_ids(db, RunFilter(visibility="archived"))) == set(ids[:2])
    assert run_page(db, RunFilter(visibility="all")).total == 3
    set_visibility(db, ids, "restore")
    set_visibility(db, ids, "show")
    assert run_page(db).total == 3
    assert run_page(db, RunFilter(visibility="hidden")).total == 0


def test_what_is_at_work_is_not_archived_and_what_is_resumed_is_listed_again(db: Database, run_id: str) -> None:
    start_run(db, run_id, **ME)
    with pytest.raises(RunStateError, match=run_id):
        set_visibility(db, [run_id], "archive")
    finish_run(db, run_id, "stopped")
    set_visibility(db, [run_id], "archive")
    claim_to_train(db, run_id, make_token())
    assert find_run(db, run_id).archived_at is None


RATES = st.integers(0, 1000).flatmap(lambda wins: st.integers(max(wins, 1), 1000).map(lambda episodes: wins / episodes))
"""Wins among episodes. PostgreSQL refuses what underflows, as half of 5e-324 does, which no episodes give."""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(curve=st.lists(st.tuples(st.integers(1, 5000), RATES), min_size=1, max_size=20))
def test_the_stored_mu_w_is_the_defined_one(db: Database, curve: list[tuple[int, float]]) -> None:
    run_id = create_run(db, CONFIG, target_steps=10, versions={})
    points = sorted(dict(curve).items())
    rest = {"episodes": 4, "wins": 1, "return_mean": 0.0, "return_std": 0.0, "length_mean": 1.0}
    rows = [{"run_id": run_id, "env_step": step, "win_rate": rate, **rest} for step, rate in points]
    with db.transaction() as connection:
        connection.execute(insert(Evaluation), rows)
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_evaluation(make_evaluation(6000))
    recorder.close()
    frame = evaluations(db, run_id)
    defined = compute_mu_w(frame["env_step"].to_numpy(float), frame["win_rate"].to_numpy(float))
    assert find_run(db, run_id).mu_w == pytest.approx(defined[-1], abs=1e-9)


@pytest.mark.parametrize("values", [{}, {"gate/beta_new": 0.5}, {"gate/beta_new": 0.5, "gate/incentive_removed": 0.2}])
def test_the_stored_gate_is_the_judged_one(db: Database, run_id: str, values: dict[str, float]) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_metrics(1, {"train/loss": 0.5, **values})
    recorder.close()
    judged = gate_state(db, run_id)
    assert run_page(db).frame["gate"].tolist() == [judged.state if judged else None]
