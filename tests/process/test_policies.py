"""`emtc evaluate`, `emtc export --policy` and `load_policy`: what a run has learned, used without its trainer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import update

from app.jobs.policies import load_policy
from emtc_core.config.resolve import config_from_stored
from emtc_core.envs.registry import make_env
from storage import api
from storage.engine import Database, open_database
from storage.models import Run
from storage.runs.rows import find_run
from tests.process.test_fuzz import emtc
from tests.process.trainers import FAST, read, train

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("policies") / "x.db"
    sets = (*FAST, "eval.interval=200", "checkpoint.interval=200", "checkpoint.keep=9", "embed.interval=100000")
    return path, train(f"sqlite:///{path}", steps=700, sets=sets)["run_id"]


@pytest.fixture
def mine(trained: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    """A copy that may be changed, with its checkpoints."""
    path, run_id = trained
    shutil.copy(path, tmp_path / "x.db")
    shutil.copytree(path.with_suffix(".files"), tmp_path / "x.files")
    return tmp_path / "x.db", run_id


def steps_of(path: Path, run_id: str) -> list[int]:
    return sorted(int(each.stem[-12:]) for each in (path.with_suffix(".files") / run_id).glob("checkpoint-*.pt"))


def evaluate(path: Path, *arguments: str) -> tuple[int, str, str]:
    return emtc("evaluate", *arguments, "--db", f"sqlite:///{path}")


def test_evaluations_of_a_policy_are_in_a_separate_table(mine: tuple[Path, str]) -> None:
    path, run_id = mine
    curves = read(path, "select * from evaluations"), read(path, "select win_rate, mu_w from runs")
    code, out, err = evaluate(path, run_id, "--episodes", "11", "--json")
    told = json.loads(out)
    steps = steps_of(path, run_id)
    assert (code, told["env_step"], told["episodes"], told["seed"]) == (0, steps[-1], 11, 1)
    assert f"the newest of {len(steps)}" in err
    again = json.loads(evaluate(path, run_id, "--episodes", "11", "--json")[1])
    assert {**again, "id": 1} == {**told, "id": 1}, "the same episodes"
    other = json.loads(evaluate(path, run_id, "--episodes", "11", "--seed", "9", "--json")[1])
    assert other["return_mean"] != told["return_mean"] or other["length_mean"] != told["length_mean"]
    columns = "run_id, env_step, episodes, wins, seed, settings"
    assert read(path, f"select {columns} from policy_evaluations where id = 1") == [
        (run_id, steps[-1], 11, told["wins"], 1, "{}")
    ]
    assert (read(path, "select * from evaluations"), read(path, "select win_rate, mu_w from runs")) == curves
    jitter = ("--set", "env.skirmish.spawn_jitter=0.5")
    assert json.loads(evaluate(path, run_id, "--episodes", "5", *jitter, "--json")[1])["episodes"] == 5
    with api.open_database(path) as db:
        table = db.run(run_id).policy_evaluations()
    assert table["seed"].tolist() == [1, 1, 9, 1]
    settings = read(path, "select settings from policy_evaluations where id = 4")[0][0]
    assert json.loads(settings) == {"env.skirmish.spawn_jitter": 0.5}


def test_best_is_the_policy_of_the_best_evaluation(mine: tuple[Path, str]) -> None:
    path, run_id = mine
    at, rate = read(path, "select env_step, win_rate from evaluations order by win_rate, return_mean, env_step")[-1]
    (kept,) = (path.with_suffix(".files") / run_id).glob("best-*.pt")
    assert int(kept.stem[-12:]) == at
    for file in (path.with_suffix(".files") / run_id).glob("checkpoint-*.pt"):
        file.unlink()
    told = json.loads(evaluate(path, run_id, "--checkpoint", "best", "--episodes", "4", "--json")[1])
    assert told["env_step"] == at
    assert f"that of the best evaluation ({100 * rate:.0f} % won)" in told["checkpoint"]
    assert json.loads(emtc("show", run_id, "--db", f"sqlite:///{path}", "--json")[1])["best"][0]["env_step"] == at


def test_an_earlier_checkpoint_and_the_one_nearest_to_the_best_evaluation(mine: tuple[Path, str]) -> None:
    path, run_id = mine
    folder, best_at = path.with_suffix(".files") / run_id, read(path, "select min(env_step) from evaluations")[0][0]
    for gone in (*folder.glob("best-*.pt"), *folder.glob(f"checkpoint-*{best_at}.pt")):
        gone.unlink()  # as after a full disk
    early, *_ = steps = steps_of(path, run_id)
    assert len(steps) > 1
    db = open_database(f"sqlite:///{path}")
    with db.transaction() as connection:
        connection.exec_driver_sql("update evaluations set win_rate = 0, wins = 0")
        connection.exec_driver_sql(
            "update evaluations set win_rate = 1 where env_step = (select min(env_step) from evaluations)"
        )
    told = json.loads(evaluate(path, run_id, "--checkpoint", str(early), "--episodes", "2", "--json")[1])
    assert told["env_step"] == early
    told = json.loads(evaluate(path, run_id, "--checkpoint", "best", "--episodes", "2", "--json")[1])
    assert told["env_step"] == min(steps, key=lambda each: abs(each - best_at))
    assert f"the nearest to the best evaluation, at {best_at:,} (100 % won)" in told["checkpoint"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint", "3"], "has no checkpoint at env step 3. Available: "),
        (["--checkpoint", "newest"], "--checkpoint must be last, best or an env step"),
        (["--set", "train.lr=1"], "train.lr must be an environment setting"),
        (["--set", "env.skirmish.spawn_jiter=1"], 'Did you mean "env.skirmish.spawn_jitter"?'),
        (
            ["--set", "env.map=8m"],
            "is for 3 agents, 9 actions, 30 observed numbers; the selected environment has 8 agents",
        ),
        (["--set", "env.map=nowhere"], "skirmish has no map 'nowhere'"),
        (["--episodes", "0"], "Input should be greater than or equal to 1"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence_and_no_row(trained, arguments: list[str], words: str) -> None:
    path, run_id = trained
    code, out, err = evaluate(path, run_id, *arguments)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert words in err
    assert read(path, "select count(*) from policy_evaluations") == [(0,)]


def spoil(db: Database, **changes: object) -> None:
    (run_id,) = (row[0] for row in read(Path(str(db.path)), "select id from runs"))
    config = find_run(db, run_id).config
    with db.transaction() as connection:
        connection.execute(update(Run).values(config={**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "emtc-nothing"}, "cannot be played here"),
        ({"env": {"name": "pettingzoo", "map": "her_game:make"}}, "No module named 'her_game'"),
        ({"train": {"hidden": 16}}, "The checkpoint's weights do not fit emtc-qplex on this game"),
    ],
)
def test_a_run_that_this_machine_does_not_know_is_one_sentence(mine, changes: dict, words: str) -> None:
    path, run_id = mine
    db = open_database(f"sqlite:///{path}")
    spoil(db, **changes)
    code, out, err = evaluate(path, run_id)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert words in err


def test_without_checkpoints_there_is_no_policy_and_a_bundle_brings_none(mine, tmp_path: Path) -> None:
    path, run_id = mine
    evaluate(path, run_id, "--episodes", "3")
    assert emtc("bundle", run_id, "--out", str(tmp_path / "b.emtc"), "--db", f"sqlite:///{path}")[0] == 0
    shutil.rmtree(path.with_suffix(".files"))
    code, _, err = evaluate(path, run_id)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert f"Run {run_id} has no policy here. There is no checkpoint in" in err
    code, _, err = emtc("open", str(tmp_path / "b.emtc"), "--import", "--db", f"sqlite:///{tmp_path / 'theirs.db'}")
    assert code == 0, err
    assert read(tmp_path / "theirs.db", "select episodes from policy_evaluations") == [(3,)]
    code, _, err = evaluate(tmp_path / "theirs.db", run_id)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "A bundle contains no checkpoints." in err
    emtc("delete", run_id, "--yes", "--db", f"sqlite:///{path}")
    assert read(path, "select count(*) from policy_evaluations") == [(0,)]


def test_a_script_plays_with_the_learned_policy(trained) -> None:
    path, run_id = trained
    policy = load_policy(run_id[:5], path)
    env = make_env(config_from_stored(open_row(path, run_id)).env, n_envs=2)
    seen, steps = env.reset(4), 0
    policy.reset()
    while not (seen.terminated | seen.truncated).all():
        action = policy.act(seen.obs, seen.avail)
        assert np.take_along_axis(seen.avail, action[..., None], -1).all(), "only what may be done"
        seen, steps = env.step(action), steps + 1
    assert steps > 5
    env.close()


def open_row(path: Path, run_id: str) -> dict:
    with api.open_database(path) as db:
        return db.run(run_id).config


def test_the_exported_file_needs_only_torch_and_selects_the_same_actions(trained, tmp_path: Path) -> None:
    path, run_id = trained
    out = tmp_path / "out.pt"
    code, _, err = emtc("export", run_id, "--policy", str(out), "--db", f"sqlite:///{path}")
    assert code == 0, err
    policy, script = load_policy(run_id, path), torch.jit.load(out)
    rng = np.random.default_rng(0)
    memory = script.start
    for _ in range(5):
        obs = rng.normal(size=(3, 30)).astype(np.float32)
        avail = np.ones((3, 9), bool)
        action, memory = script(torch.from_numpy(obs[None]), torch.from_numpy(avail[None]), memory)
        np.testing.assert_array_equal(action[0].numpy(), policy.act(obs, avail))
    code, _, err = emtc("export", run_id, "--policy", "/dev/null/o.pt", "--db", f"sqlite:///{path}")
    assert (code, "cannot be written" in err) == (2, True)


def test_an_exported_file_that_selects_other_actions_is_deleted(trained, tmp_path: Path, monkeypatch) -> None:
    path, run_id = trained
    out = tmp_path / "out.pt"
    monkeypatch.setattr("emtc_core.learner.policy._best", lambda values, avail: avail.int().argmax(-1))
    code, _, err = emtc("export", run_id, "--policy", str(out), "--db", f"sqlite:///{path}")
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "does not act as the stored one; it was deleted" in err
