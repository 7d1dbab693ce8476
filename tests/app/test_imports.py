"""`emtc import`: curves of other programs, marked as theirs everywhere; refused in a sentence, or imported whole."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from app.analysis.comparable import cut_to_budget
from app.analysis.provenance import describe_runs
from app.analysis.series import join_seeds, read_seeds
from app.analysis.settings import list_code_warnings
from app.cli.main import run
from app.jobs.imports.curves import SourceOverrides
from app.jobs.imports.read import list_remarks, read_foreign
from storage.bundles.contents import THIN
from storage.bundles.write import import_bundle, write_bundle
from storage.engine import Database, open_database
from storage.maintenance.check_run import check_run
from storage.models import Evaluation, Run
from storage.queries.curves import evaluations
from storage.queries.run_search import RunFilter, matching_ids
from storage.runs.rows import find_run
from tests.app.foreign_files import marl_eval, steps, write_sacred, write_two_seeds
from tests.require import require

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
    comparison = cut_to_budget(join_seeds(read_seeds(db, rows), final=True))
    (group,) = comparison.groups
    assert (group.variant.name, group.n) == ("QMIX, imported (sacred)", 2)
    assert "Imported, trained by another program: QMIX, imported (sacred)." in comparison.budget_note
    assert "imported (sacred)" in describe_runs(rows)[0]
    frame = evaluations(db, ids[0])
    assert frame["env_step"].tolist() == [60, 10_060, 20_050]
    assert frame["return_mean"].isna().tolist() == [False, True, False]
    assert frame[["wins", "episodes", "distinct"]].isna().all(axis=None), "what was not told is not made up"
    assert check_run(db, ids[0]) == []
    assert list_code_warnings({group.variant.name: [seed.settings for seed in group.seeds]}) == ()


def test_epymarl_keeps_its_curves_elsewhere_and_our_own_export_is_known_there(db, tmp_path, capsys) -> None:
    config = {
        "name": "qmix", "seed": 3, "env": "gymma", "t_max": 1000,
        "env_args": {"key": "emtc_core.envs.epymarl_export:skirmish-3m-v0", "time_limit": 60},
    }  # fmt: skip
    curves = {"test_battle_won_mean": [(0, 0.5), (1000, 1)], "test_total_return_mean": [(0, 3), (1000, 20)]}
    write_sacred(tmp_path / "sacred", config, curves, epymarl=True)
    (run_id,) = take(db, tmp_path / "sacred", "sacred", capsys)["runs"]
    row = find_run(db, run_id)
    assert (row.env, row.map, row.win_rate, row.return_mean) == ("skirmish", "3m", 1.0, 20.0)
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
    assert join_seeds(read_seeds(db, rows)).groups[0].n == 2


def test_our_own_marl_eval_json_comes_back(db, tmp_path, capsys) -> None:
    text = "env,algo,map,seed,step,win_rate,return\n" + "".join(
        f"smac,vdn,3m,1,{at},{at / 40},{at}\n" for at in (10, 20)
    )
    take(db, write(tmp_path / "r.csv", text), "csv", capsys)
    out = tmp_path / "out.json"
    assert run(["export", "--table", "evaluations", "--format", "marl-eval", "--out", str(out), "--db", db.url]) == 0
    assert "vdn (imported = csv)" in out.read_text()
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    (run_id,) = take(other, out, "marl-eval", capsys)["runs"]
    assert evaluations(other, run_id)["win_rate"].tolist() == [0.25, 0.5]


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
        (CSV.replace("3m,5,1000,1\n", "3m,5,1000,1\nvdn,3m,5,1000,1\n"), "must increase"),
        (CSV.replace("4,0,", "4,-10,"), ">= 0"),
        (CSV.replace("4,0,", "4,0.5,"), "whole number"),
        (CSV.replace("0.5", "nan"), "finite number"),
        (CSV.replace("0.5", "50"), "percent"),
        (CSV.replace(",5,0,", ",,0,"), "has no seed"),
        (CSV.replace("seed,step", "episode,step"), "no column seed"),
        (CSV.replace("win_rate", "accuracy"), "neither a win rate nor a return"),
        (CSV + "vdn,3m\n", "as many cells"),
        (CSV.replace("vdn,3m,5,0", "v\x07n,3m,5,0"), "printable"),
        ("", "no column"),
        (CSV.splitlines()[0], "no row"),
    ],
)
def test_a_table_that_is_not_sound_is_refused_whole(db, tmp_path, capsys, text: str, why: str) -> None:
    told = refusal(db, write(tmp_path / "r.csv", text), "csv", capsys)
    assert why in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "must contain a JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"smax": {"3m": 1}}', "environment → task"),
        (json.dumps(marl_eval({"seed_1": {"step_0": {"return": [1]}}})), "no step_count"),
        (json.dumps(marl_eval({"seed_1": steps({0: [float("nan")]})})), "finite"),
        (json.dumps(marl_eval({"seed_1": steps({0: [1e308, 1e308]})})), "too large"),
        (json.dumps(marl_eval({"seed_1": steps({0: [1.0]}), "1": steps({0: [2.0]})})), "is in two sources"),
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


def test_a_pipe_among_event_files_is_refused_and_not_read(db, tmp_path, capsys) -> None:
    (tmp_path / "seed1").mkdir()
    (tmp_path / "seed1" / "events.out.tfevents.1").write_bytes(b"")
    os.mkfifo(tmp_path / "seed1" / "events.out.tfevents.2")
    assert "is not a file" in refusal(db, tmp_path, "tensorboard", capsys)


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
