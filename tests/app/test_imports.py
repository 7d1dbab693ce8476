"""`emtc import`: runs of other programs are marked as imported; a run that cannot be read is named with its reason."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import func, select, text, update

from app.analysis.curves import read_curves, read_tables
from app.analysis.identical_runs import describe_identical_runs
from app.analysis.provenance import describe_runs
from app.analysis.results import select_finals, select_results
from app.analysis.settings import list_code_warnings
from app.cli.main import run
from app.jobs.imports.parsed_run import SourceOverrides
from app.jobs.imports.read import list_remarks, read_foreign
from app.jobs.imports.run_names import parse_run_name
from storage.bundles.contents import THIN
from storage.bundles.import_bundle import import_bundle
from storage.bundles.write import write_bundle
from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.models import Evaluation, Run
from storage.queries.curves import evaluations
from storage.queries.run_search import RunFilter, matching_ids
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import RunRow, find_run
from tests.app.curve_cases import stored
from tests.app.foreign_files import (
    marl_eval,
    steps,
    write_mappo,
    write_sacred,
    write_tensorboard,
    write_two_seeds,
    write_wandb,
)
from tests.require import require
from tests.storage.records import make_evaluation

CSV = "algo,map,seed,step,win_rate\nvdn,3m,4,0,0\nvdn,3m,4,1000,0.5\nvdn,3m,5,0,0.25\nvdn,3m,5,1000,1\n"


@pytest.fixture
def db(tmp_path: Path, sqlite_template: Path) -> Database:
    return open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'emtc.db')}")


def take(db: Database, place: Path, format: str, capsys, *more: str) -> dict[str, Any]:
    assert run(["import", str(place), "--format", format, "--json", "--db", db.url, *more]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(db: Database, place: Path, format: str, capsys, *more: str) -> str:
    assert run(["import", str(place), "--format", format, "--db", db.url, *more]) == 2
    with db.read() as connection:
        assert connection.execute(select(func.count()).select_from(Run)).scalar_one() == 0
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def write(place: Path, text: str) -> Path:
    place.write_text(text)
    return place


def test_two_seeds_of_pymarl_become_one_line_that_says_imported(db, tmp_path, capsys) -> None:
    ids = take(db, write_two_seeds(tmp_path / "sacred"), "sacred", capsys)["runs"]
    rows = [find_run(db, each) for each in ids]
    assert [(row.env, row.map, row.algo, row.seed, row.win_rate) for row in rows] == [
        ("smac", "3m", "qmix", 1, 0.5),
        ("smac", "3m", "qmix", 2, 1.0),
    ]
    assert [row.device for row in rows] == ["imported", "imported"]
    assert all("imported" in row.tags and "imported" in row.name for row in rows)
    comparison = select_finals(read_curves(read_tables(db, rows)))
    (group,) = comparison.by_variant
    assert (group.variant.name, group.n) == ("qmix, imported (sacred)", 2)
    assert "Imported, trained by another program: qmix, imported (sacred)." in comparison.budget_note
    assert "imported (sacred)" in describe_runs(rows)[0]
    frame = evaluations(db, ids[0])
    assert frame["env_step"].tolist() == [60, 10_060, 20_050]
    assert frame["return_mean"].isna().tolist() == [False, True, False]
    assert frame[["wins", "episodes", "distinct"]].isna().all(axis=None), "what was not told is not made up"
    assert check_run(db, ids[0]) == []
    assert list_code_warnings({group.variant.name: [run.settings for run in group.runs]}) == ()


def test_epymarl_keeps_its_curves_elsewhere_and_names_the_environment_by_its_id(db, tmp_path, capsys) -> None:
    config = {
        "name": "qmix", "seed": 3, "env": "gymma", "t_max": 1000,
        "env_args": {"key": "lbforaging:Foraging-8x8-2p-3f-v3", "time_limit": 60},
    }  # fmt: skip
    curves = {"test_battle_won_mean": [(0, 0.5), (1000, 1)], "test_total_return_mean": [(0, 3), (1000, 20)]}
    write_sacred(tmp_path / "sacred", config, curves, epymarl=True)
    (run_id,) = take(db, tmp_path / "sacred", "sacred", capsys)["runs"]
    row = find_run(db, run_id)
    assert (row.env, row.map, row.win_rate, row.return_mean) == ("lbforaging", "Foraging-8x8-2p-3f-v3", 1.0, 20.0)
    assert evaluations(db, run_id)["env_step"].tolist() == [0, 1000]
    assert row.config["theirs"]["env_args.time_limit"] == 60


def test_a_folder_is_recognised_when_it_is_imported_again(db, tmp_path, capsys) -> None:
    place = write_two_seeds(tmp_path / "sacred")
    first = take(db, place, "sacred", capsys)["runs"]
    again = take(db, place, "sacred", capsys)
    assert (again["runs"], again["here"]) == ([], first)
    with db.read() as connection:
        assert connection.execute(select(func.count()).select_from(Evaluation)).scalar_one() == 6


def test_another_name_does_not_import_the_same_runs_twice(db, tmp_path, capsys) -> None:
    place = write(tmp_path / "r.csv", CSV)
    first = take(db, place, "csv", capsys)["runs"]
    again = take(db, place, "csv", capsys, "--name", "authors")
    assert (again["runs"], again["here"]) == ([], first)


def test_a_search_finds_imported_runs_by_their_format_and_by_their_name(db, tmp_path, capsys) -> None:
    ids = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys, "--name", "authors")["runs"]
    for condition in ("imported=csv", "imported=authors", "imported!=sacred", "imported!="):
        assert set(matching_ids(db, RunFilter(where=(condition,)))) == set(ids), condition
    assert matching_ids(db, RunFilter(where=("imported!=csv",))) == []


def test_an_imported_run_is_not_described_by_its_transitions(db, tmp_path, capsys) -> None:
    run_id = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys)["runs"][0]
    assert run(["show", run_id, "--json", "--db", db.url]) == 0
    assert "without gaps" not in json.loads(capsys.readouterr().out)["steps_note"]


def test_seeds_of_pymarls_environment_are_no_difference_of_the_runs(tmp_path) -> None:
    for seed in (1, 2):
        folder = tmp_path / "sacred" / str(seed)
        folder.mkdir(parents=True)
        config = {"name": "qmix", "seed": seed, "env": "sc2", "env_args": {"map_name": "3m", "seed": seed}}
        write(folder / "config.json", json.dumps(config))
        write(folder / "info.json", json.dumps({"test_battle_won_mean": [0.5], "test_battle_won_mean_T": [10]}))
    assert list(list_remarks(read_foreign(tmp_path / "sacred", "sacred", SourceOverrides()))) == []


def test_other_numbers_of_the_same_run_are_refused_unless_they_get_a_name(db, tmp_path, capsys) -> None:
    place = write(tmp_path / "r.csv", CSV)
    first = take(db, place, "csv", capsys)["runs"][0]
    place.write_text(CSV.replace("1000,1\n", "1000,0.75\n").replace("0.5", "0.4"))
    assert run(["import", str(place), "--format", "csv", "--db", db.url]) == 2
    assert f"emtc delete {first}" in capsys.readouterr().err
    assert len(take(db, place, "csv", capsys, "--name", "second try")["runs"]) == 2


def test_a_table_names_its_columns_and_an_untold_environment_is_called_other(db, tmp_path, capsys) -> None:
    done = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys)
    rows = [find_run(db, each) for each in done["runs"]]
    assert [(row.env, row.seed, row.win_rate, row.mu_w) for row in rows] == [
        ("other", 4, 0.5, 0.25),
        ("other", 5, 1, 0.625),
    ]
    assert "--env" in done["remarks"][0]
    assert matching_ids(db, RunFilter(where=("preset=imported", "imported=csv")))


def test_a_run_with_returns_alone_counts_as_evaluated(db, tmp_path, capsys) -> None:
    text = "env,algo,map,seed,step,return\nsmac,vdn,3m,1,10,2.5\nsmac,vdn,3m,1,20,3\n"
    (run_id,) = take(db, write(tmp_path / "r.csv", text), "csv", capsys)["runs"]
    row = find_run(db, run_id)
    assert (row.win_rate, row.mu_w, row.return_mean) == (None, None, 3.0)
    assert matching_ids(db, RunFilter(evaluated=True)) == [run_id]
    assert run(["show", run_id, "--json", "--db", db.url]) == 0


def test_benchmarl_tells_seeds_and_episodes(db, tmp_path, capsys) -> None:
    tree = marl_eval({"seed_7": steps({0: [1.0, 3.0], 600: [5.0, 7.0]})})
    place = write(tmp_path / "mappo.json", json.dumps(tree))
    (run_id,) = take(db, place, "marl-eval", capsys)["runs"]
    frame = evaluations(db, run_id)
    assert find_run(db, run_id).seed == 7
    assert frame["return_mean"].tolist() == [2.0, 6.0]
    assert frame["episodes"].tolist() == [2, 2]


def test_a_run_without_a_seed_is_numbered_and_never_pretends_to_have_one(db, tmp_path, capsys) -> None:
    tree = marl_eval({f"run_{n}": steps({0: [0.0], 600: [n / 4]}, "win_rate") for n in (1, 2)})
    done = take(db, write(tmp_path / "x.json", json.dumps(tree)), "marl-eval", capsys)
    rows = [find_run(db, each) for each in done["runs"]]
    assert [row.seed for row in rows] == [-1, -2]
    assert "seed unknown" in rows[0].name
    assert "does not contain all seeds" in done["remarks"][0]
    assert select_results(read_curves(read_tables(db, rows))).by_variant[0].n == 2


def test_our_own_marl_eval_json_comes_back(db, tmp_path, capsys) -> None:
    text = "env,algo,map,seed,step,win_rate,return\n" + "".join(
        f"smac,vdn,MMM2,1,{at},{at / 40},{at}\n" for at in (10, 20)
    )
    take(db, write(tmp_path / "r.csv", text), "csv", capsys)
    out = tmp_path / "out.json"
    assert run(["export", "--table", "evaluations", "--format", "marl-eval", "--out", str(out), "--db", db.url]) == 0
    assert "vdn (imported = csv)" in out.read_text()
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    (run_id,) = take(other, out, "marl-eval", capsys)["runs"]
    assert evaluations(other, run_id)["win_rate"].tolist() == [0.25, 0.5]
    assert find_run(other, run_id).map == "MMM2"


def test_tensorboard_events_are_read_by_its_own_reader(db, tmp_path, capsys) -> None:
    require("tensorboard", importlib.util.find_spec("tensorboard") is not None, "tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    for seed in (1, 2):
        with SummaryWriter(str(tmp_path / "tb" / f"qmix_seed{seed}_3m")) as writer:
            for step in (0, 1000):
                writer.add_scalar("test_battle_won_mean", seed * step / 4000, step)
    done = take(db, tmp_path / "tb", "tensorboard", capsys, "--algo", "qmix", "--map", "3m", "--env", "smac")
    rows = [find_run(db, each) for each in done["runs"]]
    assert [(row.seed, row.win_rate) for row in rows] == [(1, 0.25), (2, 0.5)]
    (tmp_path / "none").mkdir()
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    assert "no event file" in refusal(other, tmp_path / "none", "tensorboard", capsys)
    (tmp_path / "none" / "events.out.tfevents.1").write_bytes(b"nothing of the kind")
    assert "neither a win rate nor a return" in refusal(other, tmp_path / "none", "tensorboard", capsys)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CSV + "vdn,3m,5,1000,1\n", "two values of win_rate at step 1,000"),
        (CSV.replace("5,0,", "5,-10,"), ">= 0"),
        (CSV.replace("5,0,", "5,0.5,"), "whole number"),
        (CSV.replace("0.25", "nan"), "finite number"),
        (CSV.replace("0.25", "50"), "percent"),
        (CSV.replace("5,", ",").replace("0.,", "0.5,"), "has no seed"),
        (CSV + "vdn,3m\n", "neither a win rate nor a return"),
        (CSV.replace("vdn,3m,5", "v\x07n,3m,5"), "printable"),
    ],
)
def test_a_run_with_a_wrong_value_is_named_and_the_others_are_imported(db, tmp_path, capsys, text: str, why: str):
    done = take(db, write(tmp_path / "r.csv", text), "csv", capsys)
    assert 4 in [find_run(db, run_id).seed for run_id in done["runs"]]
    (reason,) = done["skipped"]
    assert why in reason
    assert f"Not imported: {reason}" in done["remarks"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CSV.replace("seed,step", "episode,step"), "no column seed"),
        (CSV.replace("win_rate", "seed"), "two columns seed"),
        (CSV.replace("win_rate", "accuracy"), "neither a win rate nor a return"),
        (CSV + "vdn,3m,5,2000,1,1,1\n", "not a CSV table"),
        ("", "not a CSV table"),
        (CSV.splitlines()[0], "no row"),
    ],
)
def test_a_table_without_a_run_is_refused_in_one_sentence(db, tmp_path, capsys, text: str, why: str) -> None:
    message = refusal(db, write(tmp_path / "r.csv", text), "csv", capsys)
    assert why in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "must contain a JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"smax": {"3m": 1}}', "environment → task"),
        (json.dumps(marl_eval({"seed_1": {"step_0": {"return": [1]}}})), "no step_count"),
        (json.dumps(marl_eval({"seed_1": steps({0: [float("nan")]})})), "finite"),
    ],
)
def test_json_that_is_not_marl_evals_is_refused(db, tmp_path, capsys, text: str, why: str) -> None:
    assert why in refusal(db, write(tmp_path / "r.json", text), "marl-eval", capsys)


def test_nothing_of_jsonpickle_is_ever_decoded(db, tmp_path, capsys) -> None:
    folder = tmp_path / "sacred" / "1"
    folder.mkdir(parents=True)
    trap = {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(tmp_path / "trapped")]}]}
    write(folder / "config.json", json.dumps({"name": "qmix", "seed": 1, "env": "sc2", "env_args": {"map_name": "3m"}}))
    write(folder / "info.json", json.dumps({"test_battle_won_mean": [trap], "test_battle_won_mean_T": [10]}))
    assert "finite number" in refusal(db, tmp_path / "sacred", "sacred", capsys)
    assert not (tmp_path / "trapped").exists()


def test_infinite_settings_become_text_so_that_the_settings_stay_valid_json(db, tmp_path, capsys) -> None:
    folder = tmp_path / "sacred" / "1"
    folder.mkdir(parents=True)
    task = {"name": "qmix", "seed": 1, "env": "sc2", "env_args": {"map_name": "3m"}}
    write(folder / "config.json", json.dumps(task | {"clip": float("inf"), "skew": float("nan")}))
    write(folder / "info.json", json.dumps({"test_battle_won_mean": [0.5], "test_battle_won_mean_T": [10]}))
    take(db, tmp_path / "sacred", "sacred", capsys)
    with db.read() as connection:
        assert connection.execute(text("SELECT min(json_valid(config)) FROM runs")).scalar_one() == 1
        assert "inf" in connection.execute(text("SELECT config FROM runs")).scalar_one()


def test_a_refused_source_leaves_no_database_behind(tmp_path, capsys) -> None:
    place = tmp_path / "new" / "emtc.db"
    assert run(["import", str(tmp_path / "nothing"), "--format", "csv", "--db", f"sqlite:///{place}"]) == 2
    assert run(["import", str(tmp_path), "--format", "excel", "--db", f"sqlite:///{place}"]) == 2
    assert not place.parent.exists()


@pytest.mark.parametrize("line", ["resume", "resume --start-again", "ask evaluate", "pause", "stop", "evaluate"])
def test_what_needs_a_trained_run_is_refused_in_a_sentence(db, tmp_path, capsys, line: str) -> None:
    (run_id, _) = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys)["runs"]
    command, *rest = line.split()
    assert run([command, run_id, *rest, "--db", db.url]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert len(matching_ids(db, RunFilter())) == 2


def test_imported_runs_travel_in_bundles(db, tmp_path, capsys) -> None:
    ids = take(db, write_two_seeds(tmp_path / "sacred"), "sacred", capsys)["runs"]
    write_bundle(db, ids, tmp_path / "b.emtc", THIN, made_by="test")
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    assert sorted(import_bundle(other, tmp_path / "b.emtc", cache=tmp_path / "cache").new) == sorted(ids)
    assert evaluations(other, ids[0]).equals(evaluations(db, ids[0]))
    assert take(other, tmp_path / "sacred", "sacred", capsys)["here"] == ids


def read_rows(db: Database, ids: list[str]) -> list[RunRow]:
    return [find_run(db, run_id) for run_id in ids]


def test_seeds_that_end_at_slightly_different_steps_are_one_variant(db, tmp_path, capsys) -> None:
    text = "algo,map,seed,step,win_rate\nqmix,3m,1,0,0\nqmix,3m,1,200050,1\nqmix,3m,2,0,0\nqmix,3m,2,200100,1\n"
    take(db, write(tmp_path / "r.csv", text), "csv", capsys)
    assert run(["export", "--table", "win-rates", "--out", str(tmp_path / "t.csv"), "--db", db.url]) == 0
    table = pd.read_csv(tmp_path / "t.csv")
    assert table["variant"].tolist() == ["qmix, imported (csv)"]
    assert table["3m [other] n"].tolist() == [2]
    assert run(["export", "--figure", "learning-curves", "--out", str(tmp_path / "c.csv"), "--db", db.url]) == 0
    curve = pd.read_csv(tmp_path / "c.csv")
    assert curve["n"].tolist() == [2, 2]
    assert curve["x"].tolist() == [0, 200_050]
    assert curve["value"].tolist() == pytest.approx([0, 1], abs=1e-3)


def test_seeds_that_were_imported_one_by_one_are_one_variant_too(db, tmp_path, capsys) -> None:
    ids = []
    for seed, last in ((1, 200_050), (2, 200_100), (3, 90_000)):
        text = f"algo,map,seed,step,win_rate\nqmix,3m,{seed},0,0\nqmix,3m,{seed},{last},1\n"
        ids += take(db, write(tmp_path / "r.csv", text), "csv", capsys)["runs"]
    all_runs = read_curves(read_tables(db, read_rows(db, ids)))
    groups = select_results(all_runs, for_final_numbers=True).by_variant
    assert {group.variant.name: group.n for group in groups} == {
        "qmix, imported (csv), 200,100 steps": 2,
        "qmix, imported (csv), 90,000 steps": 1,
    }


def test_lengths_within_two_evaluation_intervals_are_one_budget(db, tmp_path, capsys) -> None:
    ends = {1: 80_000, 2: 70_000, 3: 60_000}
    rows = [f"qmix,3m,{seed},{step},0.5" for seed, end in ends.items() for step in range(0, end + 1, 10_000)]
    place = write(tmp_path / "r.csv", "\n".join(["algo,map,seed,step,win_rate", *rows]) + "\n")
    steps = [(row.target_steps, row.env_steps) for row in read_rows(db, take(db, place, "csv", capsys)["runs"])]
    assert steps == [(80_000, 80_000), (80_000, 80_000), (60_000, 60_000)]


def test_a_budget_replaces_the_last_steps_and_names_the_runs_that_stopped_before(db, tmp_path, capsys) -> None:
    text = CSV + "vdn,3m,6,0,0\nvdn,3m,6,400,0.5\nvdn,3m,7,0,0\nvdn,3m,7,3000,0.5\n"
    done = take(db, write(tmp_path / "r.csv", text), "csv", capsys, "--budget", "1.005k")
    rows = read_rows(db, done["runs"])
    assert [(row.seed, row.status, row.target_steps) for row in rows] == [
        (4, "finished", 1005),
        (5, "finished", 1005),
        (6, "stopped", 1005),
    ]
    assert "seed 7" in done["skipped"][0]
    assert "--budget" in done["skipped"][0]


PYMARL: dict[str, Any] = {
    "name": "qmix",
    "env": "sc2",
    "env_args": {"map_name": "3m"},
    "t_max": 50_000,
    "test_interval": 10_000,
}


def evaluate_until(last: int) -> dict[str, list[tuple[int, float]]]:
    """The evaluations of PyMARL: a little after each test interval."""
    return {"test_battle_won_mean": [(step + 47, step / 100_000) for step in range(0, last, 10_000)]}


def test_a_run_of_pymarl_is_whole_if_it_ended_within_two_test_intervals_of_its_budget(db, tmp_path, capsys) -> None:
    for seed, last in ((1, 50_000), (2, 40_000), (3, 30_000)):  # last evaluations at 40,047, 30,047 and 20,047
        write_sacred(tmp_path / "sacred", {**PYMARL, "seed": seed}, evaluate_until(last), end="os._exit")
    assert json.loads((tmp_path / "sacred" / "1" / "run.json").read_text())["status"] == "RUNNING"
    done = take(db, tmp_path / "sacred", "sacred", capsys)
    rows = read_rows(db, done["runs"])
    assert [(row.seed, row.status, row.env_steps) for row in rows] == [
        (1, "finished", 50_000),
        (2, "finished", 50_000),
        (3, "stopped", 20_047),
    ]
    assert "sacred/3 (at 20,047 of 50,000 env steps)" in done["remarks"][0]
    (group,) = select_finals(read_curves(read_tables(db, rows))).by_variant
    assert (group.n, group.variant.name) == (2, "qmix, imported (sacred)")


def write_pymarl(folder: Path, config: dict[str, Any], info: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "info.json").write_text(json.dumps(info))


INFO = {"test_battle_won_mean": [0.0, 0.5], "test_battle_won_mean_T": [0, 50_000]}


def test_a_crashed_run_and_a_run_with_nan_are_named_and_the_others_are_imported(db, tmp_path, capsys) -> None:
    place = tmp_path / "sacred"
    write_pymarl(place / "1", {**PYMARL, "seed": 1}, INFO)
    write_pymarl(place / "2", {**PYMARL, "seed": 2}, {})
    write_pymarl(place / "3", {**PYMARL, "seed": 3}, INFO | {"test_battle_won_mean": [0.0, float("nan")]})
    write_pymarl(place / "4", {**PYMARL, "seed": 4}, INFO)
    (place / "4" / "info.json").write_text('{"test_battle_won_mean": [0.0')
    write_pymarl(place / "5", {**PYMARL, "seed": 1}, {"test_battle_won_mean": [0.1], "test_battle_won_mean_T": [70]})
    done = take(db, place, "sacred", capsys)
    assert [row.seed for row in read_rows(db, done["runs"])] == [1]
    assert len(done["skipped"]) == 4
    reasons = " ".join(done["skipped"])
    assert "sacred/2 has neither" in reasons
    assert "sacred/3, win_rate at step 50,000" in reasons
    assert "info.json is not JSON" in reasons
    assert "sacred/5 is a second run" in reasons


def test_five_against_five_and_ten_against_ten_of_smacv2_are_two_tasks(db, tmp_path, capsys) -> None:
    for n in (5, 10):
        env_args = {"map_name": "10gen_terran", "capability_config": {"n_units": n, "n_enemies": n}}
        write_pymarl(
            tmp_path / "sacred" / str(n), {**PYMARL, "seed": n, "env": "sc2wrapped", "env_args": env_args}, INFO
        )
    rows = read_rows(db, take(db, tmp_path / "sacred", "sacred", capsys)["runs"])
    assert [(row.env, row.map) for row in rows] == [("smacv2", "terran_5_vs_5"), ("smacv2", "terran_10_vs_10")]


def test_runs_that_differ_in_a_setting_are_not_averaged(db, tmp_path, capsys) -> None:
    for number, lr in enumerate((0.001, 0.0005), start=1):
        config = {**PYMARL, "seed": 1, "lr": lr, "local_results_path": f"results/{number}"}
        write_pymarl(tmp_path / "sacred" / str(number), config, INFO)
    done = take(db, tmp_path / "sacred", "sacred", capsys)
    assert "differ in lr." in done["remarks"][0]
    all_runs = read_curves(read_tables(db, read_rows(db, done["runs"])))
    groups = select_results(all_runs, for_final_numbers=True).by_variant
    assert [group.variant.name for group in groups] == [
        "qmix, lr = 5e-4, imported (sacred)",
        "qmix, lr = 1e-3, imported (sacred)",
    ]


BENCHMARL = {"eval_reward_episode_reward_mean": [(0, 1.0), (163, 7.5)]}
FRAMES = {"counters_total_frames": [(step, 60_000.0 * (step + 1)) for step in (0, 82, 163)]}


def test_iterations_of_benchmarl_become_env_steps(db, tmp_path, capsys) -> None:
    text = "\n\t".join(["algorithm_name: mappo", "environment_name: vmas", "seed: 3", "task_name: balance"])
    write_tensorboard(tmp_path / "logs" / "mappo_balance_mlp__1a2b", BENCHMARL | FRAMES, text)
    (row,) = read_rows(db, take(db, tmp_path / "logs", "tensorboard", capsys)["runs"])
    assert (row.env, row.map, row.algo, row.seed) == ("vmas", "balance", "mappo", 3)
    assert evaluations(db, row.id)["env_step"].tolist() == [60_000, 9_840_000]


def test_iterations_that_cannot_be_converted_are_refused(db, tmp_path, capsys) -> None:
    folder = write_tensorboard(tmp_path / "logs" / "run" / "tb", BENCHMARL)
    (folder.parent / "mappo_balance.json").write_text("{}")
    message = refusal(db, tmp_path / "logs", "tensorboard", capsys)
    assert "iterations" in message
    assert "mappo_balance.json with --format marl-eval" in message


@pytest.mark.parametrize("torch", [False, True], ids=["tensorboardX", "torch"])
def test_the_folders_of_add_scalars_are_one_run(db, tmp_path, capsys, torch: bool) -> None:
    tags = {"eval_win_rate": [(100, 0.25), (900, 0.75)], "eval_average_episode_rewards": [(100, 3.0), (900, 15.0)]}
    for number in (1, 2):
        write_mappo(tmp_path / "results", number, tags, torch=torch)
    rows = read_rows(db, take(db, tmp_path / "results", "tensorboard", capsys)["runs"])
    assert [(row.env, row.map, row.algo, row.seed) for row in rows] == [
        ("smac", "3m", "rmappo", -1),
        ("smac", "3m", "rmappo", -2),
    ]
    frame = evaluations(db, rows[0].id)
    assert frame["win_rate"].tolist() == [0.25, 0.75]
    assert frame["return_mean"].tolist() == [3, 15]


def test_the_csv_export_of_wandb_is_read(db, tmp_path, capsys) -> None:
    curves = {f"Qmix_3m_seed{seed}": [(0, 0.0), (1000 + seed, seed / 4)] for seed in (1, 2)}
    place = write_wandb(tmp_path / "w.csv", curves, "test_battle_won_mean")
    rows = read_rows(db, take(db, place, "csv", capsys, "--env", "smac")["runs"])
    assert [(row.algo, row.map, row.seed, row.win_rate, row.env_steps) for row in rows] == [
        ("Qmix", "3m", 1, 0.25, 1002),
        ("Qmix", "3m", 2, 0.5, 1002),
    ]


def test_runs_of_wandb_with_one_name_are_several_runs(db, tmp_path, capsys) -> None:
    text = "Step,qmix - win_rate,qmix - win_rate\n0,0,\n10,0.5,0.25\n"
    rows = read_rows(db, take(db, write(tmp_path / "w.csv", text), "csv", capsys, "--map", "3m")["runs"])
    assert [(row.algo, row.seed, row.win_rate) for row in rows] == [("qmix", -1, 0.5), ("qmix", -2, 0.25)]


def test_a_table_of_wandb_without_a_win_rate_is_refused_with_the_columns_to_keep(db, tmp_path, capsys) -> None:
    place = write_wandb(tmp_path / "w.csv", {"qmix_3m_seed1": [(0, 0.5)]}, "loss")
    message = refusal(db, place, "csv", capsys)
    assert "loss" in message
    assert '"RUN - METRIC"' in message


def test_a_table_of_wandb_with_iterations_of_benchmarl_is_refused(db, tmp_path, capsys) -> None:
    curves, metric = {"mappo_seed1": [(0, 0.5), (163, 7.0)]}, "eval/reward/episode_reward_mean"
    assert "counters/total_frames" in refusal(db, write_wandb(tmp_path / "w.csv", curves, metric), "csv", capsys)
    place = write_wandb(tmp_path / "f.csv", {"mappo_seed1": [(60_000, 0.5)]}, metric, "counters/total_frames")
    (row,) = read_rows(db, take(db, place, "csv", capsys, "--map", "balance")["runs"])
    assert (row.algo, row.seed, row.env_steps) == ("mappo", 1, 60_000)


@pytest.mark.parametrize(
    ("name", "algo", "map", "seed"),
    [
        ("qmix_3m_seed1", "qmix", "3m", 1),
        ("QPLEX-2c_vs_64zg-seed=12", "QPLEX", "2c_vs_64zg", 12),
        ("seed3 ours (τ<1) MMM2", "ours (τ<1)", "MMM2", 3),
        ("qmix_seed1_3m_2023-01-01 10:00:00.123", "qmix", "3m", 1),
        ("qmix__2021-01-01_10-00-00", "qmix", None, None),
        ("qmix_3s5z_vs_3s6z_seed1", "qmix", "3s5z_vs_3s6z", 1),
        ("3m/qmix/seed_1/logs", "qmix", "3m", 1),
        ("3m/qmix/run2", "qmix", "3m", None),
        ("mappo_check_seed2", "mappo_check", None, 2),
    ],
)
def test_algorithm_map_and_seed_are_found_in_the_name_of_a_run(name: str, algo: str, map: str, seed: int) -> None:
    assert parse_run_name(name, SourceOverrides()) == (algo, map, seed)


def test_names_of_other_programs_are_not_changed(db, tmp_path, capsys) -> None:
    algos = ("ours", "Ours", "Ours (τ<1)", "qmix")
    rows = [f"{algo},3m,1,{step},0.5" for algo in algos for step in (0, 1000)]
    take(db, write(tmp_path / "r.csv", "\n".join(["algo,map,seed,step,win_rate", *rows]) + "\n"), "csv", capsys)
    assert run(["export", "--figure", "learning-curves", "--out", str(tmp_path / "c.csv"), "--db", db.url]) == 0
    curves = pd.read_csv(tmp_path / "c.csv")
    assert set(curves["series"]) == {f"{algo}, imported (csv) (n = 1)" for algo in algos}


def test_imported_win_rates_that_are_all_zero_are_not_identical_runs(db, tmp_path, capsys) -> None:
    rows = [f"{algo},3m,1,{step},0" for algo in ("qmix", "vdn") for step in (0, 1000)]
    place = write(tmp_path / "r.csv", "\n".join(["algo,map,seed,step,win_rate", *rows]) + "\n")
    rows = read_rows(db, take(db, place, "csv", capsys)["runs"])
    assert describe_identical_runs(select_results(read_curves(read_tables(db, rows)))) == ""


def test_imports_of_four_programs_and_our_runs_are_one_chart(db, tmp_path, capsys) -> None:
    own = [
        create_run(db, stored(seed=seed, map="3m", steps=50_000), target_steps=50_000, versions={}) for seed in (1, 2)
    ]
    for run_id in own:
        recorder = DatabaseRecorder(db, run_id)
        for step in range(0, 50_001, 10_000):
            recorder.record_evaluation(make_evaluation(step, wins=step // 10_000))
        recorder.close()
        with db.transaction() as connection:
            connection.execute(update(Run).where(Run.id == run_id).values(status="finished"))
    pymarl, benchmarl, mappo = tmp_path / "pymarl", tmp_path / "benchmarl", tmp_path / "mappo"
    benchmarl.mkdir()
    wandb: dict[str, list[tuple[int, float]]] = {}
    for seed in (1, 2, 3):
        returns = [
            [(step + 7 * seed, slope * step / 5000 + seed) for step in range(0, 50_001, 10_000)]
            for slope in (0.6, 0.9, 1.2, 1.5)
        ]
        write_sacred(pymarl, {**PYMARL, "seed": seed}, {"test_return_mean": returns[0]}, end="os._exit")
        run_steps = steps({step: [value] for step, value in returns[1]})
        write(benchmarl / f"{seed}.json", json.dumps({"smac": {"3m": {"Mappo": {f"seed_{seed}": run_steps}}}}))
        write_mappo(mappo, seed, {"eval_average_episode_rewards": returns[2]})
        wandb[f"Ours_3m_seed{seed}"] = returns[3]
    table = write_wandb(tmp_path / "wandb.csv", wandb, "test_return_mean")
    for place, format in ((pymarl, "sacred"), (benchmarl, "marl-eval"), (mappo, "tensorboard"), (table, "csv")):
        assert len(take(db, place, format, capsys, "--env", "skirmish")["runs"]) == 3
    for suffix in ("csv", "png"):
        out = str(tmp_path / f"c.{suffix}")
        options = ("--figure", "learning-curves", "--set", "quantity=return")
        assert run(["export", *options, "--out", out, "--db", db.url]) == 0
    curves = pd.read_csv(tmp_path / "c.csv")
    assert curves["panel"].unique().tolist() == ["episode return, 3m"]
    assert curves.groupby("series")["n"].unique().map(list).to_dict() == {
        "EMTC(QPLEX) (n = 2)": [2],
        "Mappo, imported (marl-eval) (n = 3)": [3],
        "Ours, imported (csv) (n = 3)": [3],
        "qmix, imported (sacred) (n = 3)": [3],
        "rmappo, imported (tensorboard) (n = 3)": [3],
    }
    assert curves.groupby("series")["x"].max().tolist() == [50_000, *[50_007] * 4]
