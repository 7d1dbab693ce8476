"""`emtc import`: runs of other programs are marked as imported; a run that cannot be read is named with its reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import func, select, update

from app.analysis.curves import read_curves, read_tables
from app.analysis.provenance import describe_runs
from app.analysis.results import select_finals, select_results
from app.analysis.settings import list_code_warnings
from app.cli.main import run
from app.jobs.imports.parsed_run import SourceOverrides
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
from tests.storage.records import make_evaluation

CSV = "algo,map,seed,step,win_rate\nvdn,3m,4,0,0\nvdn,3m,4,1000,0.5\nvdn,3m,5,0,0.25\nvdn,3m,5,1000,1\n"

BENCHMARL = {"eval_reward_episode_reward_mean": [(0, 1.0), (163, 7.5)]}
FRAMES = {"counters_total_frames": [(step, 60_000.0 * (step + 1)) for step in (0, 82, 163)]}


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_seeds(tmp_path_factory.mktemp("two") / "sacred")


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


def test_two_seeds_of_pymarl_become_one_line_that_says_imported(db, two_seeds, capsys) -> None:
    ids = take(db, two_seeds, "sacred", capsys)["runs"]
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


def test_a_run_is_imported_once_and_with_other_numbers_only_under_another_name(db, tmp_path, capsys) -> None:
    place = write(tmp_path / "r.csv", CSV)
    first = take(db, place, "csv", capsys)["runs"]
    for name in ([], ["--name", "authors"]):
        again = take(db, place, "csv", capsys, *name)
        assert (again["runs"], again["here"]) == ([], first)
    with db.read() as connection:
        assert connection.execute(select(func.count()).select_from(Evaluation)).scalar_one() == 4
    place.write_text(CSV.replace("1000,1\n", "1000,0.75\n").replace("0.5", "0.4"))
    assert run(["import", str(place), "--format", "csv", "--db", db.url]) == 2
    assert f"emtc delete {first[0]}" in capsys.readouterr().err
    assert len(take(db, place, "csv", capsys, "--name", "second try")["runs"]) == 2


def test_a_table_names_its_columns_and_its_runs_are_found_by_format_and_name(db, tmp_path, capsys) -> None:
    done = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys, "--name", "authors")
    rows = [find_run(db, each) for each in done["runs"]]
    assert [(row.env, row.seed, row.win_rate, row.mu_w) for row in rows] == [
        ("other", 4, 0.5, 0.25),
        ("other", 5, 1, 0.625),
    ]
    assert "--env" in done["remarks"][0]
    for condition in ("imported=csv", "imported=authors", "imported!=sacred", "imported!=", "preset=imported"):
        assert set(matching_ids(db, RunFilter(where=(condition,)))) == set(done["runs"]), condition
    assert matching_ids(db, RunFilter(where=("imported!=csv",))) == []


def test_a_run_with_returns_alone_counts_as_evaluated_and_is_not_described_by_its_transitions(
    db, tmp_path, capsys
) -> None:
    text = "env,algo,map,seed,step,return\nsmac,vdn,3m,1,10,2.5\nsmac,vdn,3m,1,20,3\n"
    (run_id,) = take(db, write(tmp_path / "r.csv", text), "csv", capsys)["runs"]
    row = find_run(db, run_id)
    assert (row.win_rate, row.mu_w, row.return_mean) == (None, None, 3.0)
    assert matching_ids(db, RunFilter(evaluated=True)) == [run_id]
    assert run(["show", run_id, "--json", "--db", db.url]) == 0
    assert "without gaps" not in json.loads(capsys.readouterr().out)["steps_note"]


def test_a_run_of_marl_eval_has_the_mean_of_its_episodes_and_a_number_without_a_seed(db, tmp_path, capsys) -> None:
    tree = marl_eval({"seed_7": steps({0: [1.0, 3.0], 600: [5.0, 7.0]}), "run_2": steps({0: [0.0], 600: [0.5]})})
    done = take(db, write(tmp_path / "mappo.json", json.dumps(tree)), "marl-eval", capsys)
    rows = [find_run(db, each) for each in done["runs"]]
    assert [row.seed for row in rows] == [7, -2]
    assert "seed unknown" in rows[1].name
    assert "does not contain all seeds" in done["remarks"][0]
    frame = evaluations(db, rows[0].id)
    assert frame["return_mean"].tolist() == [2.0, 6.0]
    assert frame["episodes"].tolist() == [2, 2]
    assert select_results(read_curves(read_tables(db, rows), "return")).by_variant[0].n == 2


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
    ("format", "text", "why"),
    [
        ("csv", CSV.replace("seed,step", "episode,step"), "no column seed"),
        ("csv", CSV.replace("win_rate", "seed"), "two columns seed"),
        ("csv", CSV.replace("win_rate", "accuracy"), "neither a win rate nor a return"),
        ("csv", CSV + "vdn,3m,5,2000,1,1,1\n", "not a CSV table"),
        ("csv", CSV.splitlines()[0], "no row"),
        ("csv", "Step,qmix_3m_seed1 - loss\n0,0.5\n", '"RUN - METRIC"'),
        ("csv", "Step,Group: qmix - win_rate\n0,0.5\n", "without grouping"),
        ("csv", "Step,mappo_seed1 - eval/reward/episode_reward_mean\n163,7\n", "counters/total_frames"),
        ("csv", None, "does not exist"),
        ("excel", CSV, "--format"),
        ("marl-eval", "[1]", "must contain a JSON object"),
        ("marl-eval", "[" * 100_000, "is not JSON"),
        ("marl-eval", '{"smax": {"3m": 1}}', "environment → task"),
        ("marl-eval", json.dumps(marl_eval({"seed_1": {"step_0": {"return": [1]}}})), "no step_count"),
        ("marl-eval", json.dumps(marl_eval({"seed_1": steps({0: [float("nan")]})})), "finite"),
        ("sacred", CSV, "must be a folder"),
    ],
)
def test_a_source_without_a_run_is_refused_in_one_sentence_and_makes_no_database(
    tmp_path, capsys, format: str, text: str | None, why: str
) -> None:
    source, database = tmp_path / "source", tmp_path / "new" / "emtc.db"
    if text is not None:
        source.write_text(text)
    assert run(["import", str(source), "--format", format, "--db", f"sqlite:///{database}"]) == 2
    message = capsys.readouterr().err
    assert why in message
    assert message.count("\n") == 1
    assert not database.parent.exists()


def test_a_folder_of_tensorboard_without_a_usable_curve_is_refused(db, tmp_path, capsys) -> None:
    folder = write_tensorboard(tmp_path / "logs" / "run" / "tb", BENCHMARL)
    (folder.parent / "mappo_balance.json").write_text("{}")
    message = refusal(db, tmp_path / "logs", "tensorboard", capsys)
    assert "iterations" in message
    assert "mappo_balance.json with --format marl-eval" in message
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no event file" in refusal(db, empty, "tensorboard", capsys)
    (empty / "events.out.tfevents.1").write_bytes(b"no event")
    assert "neither a win rate nor a return" in refusal(db, empty, "tensorboard", capsys)


def test_nothing_of_jsonpickle_is_ever_decoded(db, tmp_path, capsys) -> None:
    folder = tmp_path / "sacred" / "1"
    folder.mkdir(parents=True)
    trap = {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(tmp_path / "trapped")]}]}
    write(folder / "config.json", json.dumps({"name": "qmix", "seed": 1, "env": "sc2", "env_args": {"map_name": "3m"}}))
    write(folder / "info.json", json.dumps({"test_battle_won_mean": [trap], "test_battle_won_mean_T": [10]}))
    assert "finite number" in refusal(db, tmp_path / "sacred", "sacred", capsys)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("line", ["resume", "resume --start-again", "ask evaluate", "pause", "evaluate"])
def test_what_needs_a_trained_run_is_refused_in_a_sentence(db, tmp_path, capsys, line: str) -> None:
    (run_id, _) = take(db, write(tmp_path / "r.csv", CSV), "csv", capsys)["runs"]
    command, *rest = line.split()
    assert run([command, run_id, *rest, "--db", db.url]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert len(matching_ids(db, RunFilter())) == 2


def test_imported_runs_travel_in_bundles_and_are_recognized_there(db, two_seeds, tmp_path, capsys) -> None:
    ids = take(db, two_seeds, "sacred", capsys)["runs"]
    write_bundle(db, ids, tmp_path / "b.emtc", THIN, made_by="test")
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    assert sorted(import_bundle(other, tmp_path / "b.emtc", cache=tmp_path / "cache").new) == sorted(ids)
    assert evaluations(other, ids[0]).equals(evaluations(db, ids[0]))
    assert take(other, two_seeds, "sacred", capsys)["here"] == ids


def read_rows(db: Database, ids: list[str]) -> list[RunRow]:
    return [find_run(db, run_id) for run_id in ids]


SHORT = {1: [0, 200_050], 2: [0, 200_100], 3: [0, 90_000]}
LONG = {seed: list(range(0, end + 1, 10_000)) for seed, end in ((1, 80_000), (2, 70_000), (3, 60_000))}


@pytest.mark.parametrize(
    ("curves", "one_by_one", "ends", "expected"),
    [
        pytest.param(SHORT, False, [200_100, 200_100, 90_000], {"200,100": 2, "90,000": 1}, id="together"),
        pytest.param(SHORT, True, [200_050, 200_100, 90_000], {"200,100": 2, "90,000": 1}, id="one by one"),
        pytest.param(LONG, False, [80_000, 80_000, 60_000], {"80,000": 2, "60,000": 1}, id="within two intervals"),
    ],
)
def test_seeds_that_end_at_slightly_different_steps_are_one_variant(
    db, tmp_path, capsys, curves, one_by_one, ends, expected
) -> None:
    tables = ["".join(f"qmix,3m,{seed},{step},0.5\n" for step in steps) for seed, steps in curves.items()]
    ids = []
    for text in tables if one_by_one else ["".join(tables)]:
        place = write(tmp_path / "r.csv", f"algo,map,seed,step,win_rate\n{text}")
        ids += take(db, place, "csv", capsys)["runs"]
    rows = read_rows(db, ids)
    assert [row.target_steps for row in rows] == ends
    groups = select_results(read_curves(read_tables(db, rows)), for_final_numbers=True).by_variant
    names = {f"qmix, imported (csv), {steps} steps": n for steps, n in expected.items()}
    assert {group.variant.name: group.n for group in groups} == names


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


def write_pymarl(folder: Path, config: dict[str, Any], info: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "info.json").write_text(json.dumps(info))
    (folder / "run.json").write_text(json.dumps({"status": "RUNNING"}))


INFO = {"test_battle_won_mean": [0.0, 0.5], "test_battle_won_mean_T": [0, 50_000]}


def test_a_run_of_pymarl_is_whole_if_it_ended_within_two_test_intervals_of_its_budget(db, tmp_path, capsys) -> None:
    """PyMARL evaluates a little after each test interval, and ends without the end that sacred would write."""
    for seed, last in ((1, 40_047), (2, 30_047), (3, 20_047), (4, 90_047)):
        steps = list(range(47, last + 1, 10_000))
        info = {"test_battle_won_mean": [step / 100_000 for step in steps], "test_battle_won_mean_T": steps}
        write_pymarl(tmp_path / "sacred" / str(seed), {**PYMARL, "seed": seed}, info)
    done = take(db, tmp_path / "sacred", "sacred", capsys)
    rows = read_rows(db, done["runs"])
    assert [(row.seed, row.status, row.env_steps) for row in rows] == [
        (1, "finished", 50_000),
        (2, "finished", 50_000),
        (3, "stopped", 20_047),
        (4, "finished", 90_047),
    ]
    assert "sacred/3 (at 20,047 of 50,000 env steps)" in done["remarks"][0]
    (group,) = select_finals(read_curves(read_tables(db, rows))).by_variant
    assert (group.n, group.variant.name) == (3, "qmix, imported (sacred)")


def test_a_crashed_run_and_a_run_with_nan_are_named_and_the_others_are_imported(db, tmp_path, capsys) -> None:
    place = tmp_path / "sacred"
    write_pymarl(place / "1", {**PYMARL, "seed": 1}, INFO)
    write_pymarl(place / "2", {**PYMARL, "seed": 2}, {})
    write_pymarl(place / "3", {**PYMARL, "seed": 3}, INFO | {"test_battle_won_mean": [0.0, float("nan")]})
    write_pymarl(place / "4", {**PYMARL, "seed": 4}, INFO)
    (place / "4" / "info.json").write_text('{"test_battle_won_mean": [0.0')
    write_pymarl(place / "0", {**PYMARL, "seed": 1}, {"test_battle_won_mean": [0.1], "test_battle_won_mean_T": [70]})
    done = take(db, place, "sacred", capsys)
    assert [(row.seed, row.env_steps) for row in read_rows(db, done["runs"])] == [(1, 50_000)], "the longest of seed 1"
    assert len(done["skipped"]) == 4
    reasons = " ".join(done["skipped"])
    assert "sacred/2 has neither" in reasons
    assert "sacred/3, win_rate at step 50,000" in reasons
    assert "info.json is not JSON" in reasons
    assert "sacred/0 is a second run" in reasons


@pytest.mark.parametrize(
    ("env", "env_args", "task"),
    [
        ("gymma", {"key": "lbforaging:Foraging-8x8-2p-3f-v3"}, ("lbforaging", "Foraging-8x8-2p-3f-v3")),
        (
            "sc2wrapped",
            {"map_name": "10gen_terran", "capability_config": {"n_units": 5, "n_enemies": 6}},
            ("smacv2", "terran_5_vs_6"),
        ),
        ("academy_3_vs_1_with_keeper", {}, ("grf", "academy_3_vs_1_with_keeper")),
    ],
)
def test_the_task_of_pymarl_is_found_in_its_settings_which_are_kept(db, tmp_path, capsys, env, env_args, task) -> None:
    config = {**PYMARL, "seed": 3, "env": env, "env_args": {**env_args, "time_limit": 60}, "clip": float("inf")}
    write_pymarl(tmp_path / "sacred" / "1", config, INFO)
    (row,) = read_rows(db, take(db, tmp_path / "sacred", "sacred", capsys)["runs"])
    assert (row.env, row.map) == task
    assert (row.config["theirs"]["env_args.time_limit"], row.config["theirs"]["clip"]) == (60, "inf"), "valid JSON"


def test_runs_that_differ_in_a_setting_are_not_averaged(db, tmp_path, capsys) -> None:
    for number, lr in enumerate((0.001, 0.0005), start=1):
        config = {**PYMARL, "seed": 1, "lr": lr, "local_results_path": f"results/{number}"}
        config["env_args"] = {"map_name": "3m", "seed": number}  # the environment's seed is no difference
        write_pymarl(tmp_path / "sacred" / str(number), config, INFO)
    done = take(db, tmp_path / "sacred", "sacred", capsys)
    assert "differ in lr." in done["remarks"][0]
    all_runs = read_curves(read_tables(db, read_rows(db, done["runs"])))
    groups = select_results(all_runs, for_final_numbers=True).by_variant
    assert [group.variant.name for group in groups] == [
        "qmix, lr = 5e-4, imported (sacred)",
        "qmix, lr = 1e-3, imported (sacred)",
    ]


def test_iterations_of_benchmarl_become_env_steps(db, tmp_path, capsys) -> None:
    text = "\n\t".join(["algorithm_name: mappo", "environment_name: vmas", "seed: 3", "task_name: balance"])
    write_tensorboard(tmp_path / "logs" / "mappo_balance_mlp__1a2b", BENCHMARL | FRAMES, text)
    (row,) = read_rows(db, take(db, tmp_path / "logs", "tensorboard", capsys)["runs"])
    assert (row.env, row.map, row.algo, row.seed) == ("vmas", "balance", "mappo", 3)
    assert evaluations(db, row.id)["env_step"].tolist() == [60_000, 9_840_000]
    curves, metric = {"mappo_seed1": [(60_000, 0.5)]}, "eval/reward/episode_reward_mean"
    place = write_wandb(tmp_path / "w.csv", curves, metric, "counters/total_frames")
    (row,) = read_rows(db, take(db, place, "csv", capsys, "--map", "balance")["runs"])
    assert (row.algo, row.seed, row.env_steps) == ("mappo", 1, 60_000)


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


def test_the_csv_export_of_wandb_has_a_run_in_each_column_also_if_names_are_repeated(db, tmp_path, capsys) -> None:
    names = ("Qmix_3m_seed1", "Qmix_3m_seed2", "qmix", "qmix")
    header = [f"{name} - test_battle_won_mean{bound}" for name in names for bound in ("", "__MIN", "__MAX")]
    lines = ["0,0,9,9,0,9,9,0,9,9,,,", "1000,,,,0.5,9,9,0.75,9,9,1,9,9", "1002,0.25,9,9" + "," * 9]
    place = write(tmp_path / "w.csv", "\n".join([",".join(["Step", *header]), *lines]) + "\n")
    rows = read_rows(db, take(db, place, "csv", capsys, "--map", "3m")["runs"])
    assert [(row.algo, row.map, row.seed, row.win_rate) for row in rows] == [
        ("Qmix", "3m", 1, 0.25),
        ("Qmix", "3m", 2, 0.5),
        ("qmix", "3m", -3, 0.75),
        ("qmix", "3m", -4, 1.0),
    ]


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


def test_imports_of_five_programs_and_our_runs_are_one_chart(db, tmp_path, capsys) -> None:
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
        curves = {"test_return_mean": returns[0]}
        write_sacred(pymarl, {**PYMARL, "seed": seed}, curves, epymarl=seed == 3, end="os._exit")
        run_steps = steps({step: [value] for step, value in returns[1]})
        write(benchmarl / f"{seed}.json", json.dumps({"smac": {"3m": {"Mappo": {f"seed_{seed}": run_steps}}}}))
        write_mappo(mappo, seed, {"eval_average_episode_rewards": returns[2]})
        wandb[f"Ours_3m_seed{seed}"] = returns[3]
    table = write_wandb(tmp_path / "wandb.csv", wandb, "test_return_mean")
    assert json.loads((pymarl / "1" / "run.json").read_text())["status"] == "RUNNING"
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
