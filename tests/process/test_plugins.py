"""The recipes of plugins.md: built as a package outside the checkout, installed by pip, trained and exported."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.require import require

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "app" / "guide" / "plugins.md").read_text()
MODULES = dict(re.findall(r"```python\n# (my_lab/\w+\.py)\n(.*?)```", GUIDE, re.DOTALL))
PROJECT = re.findall(r"```toml\n(\[project\].*?)```", GUIDE, re.DOTALL)[0]
LISTED = re.findall(r"```python\n(from emtc_lab import GateLaw, register\n.*?)```", GUIDE, re.DOTALL)[0]
CHECK = """
from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import make_env
from emtc_lab import check_env

print(check_env(make_env(EnvConfig(name="corridor_walk", map="default"), n_envs=2)))
"""
HERE = os.pathsep.join([str(ROOT), str(ROOT / "app" / "face")])  # as an installed EMTC Lab is found
QUICK = ("train.burn_in=4", "train.batch=4", "embed.interval=100", "embed.min_episodes=2", "eval.episodes=4")
WALK = ("env.plugin.corridor_walk.length=3",)
ALL = (
    *(
        "gate.type=cauchy",
        "gate.plugin.cauchy.strictness=3",
        "plugin.softmix.sharpness=2",
        "embed.type=hashed",
        "train.eps_schedule=halving",
    ),
    *("record.metrics=distinct_actions", "record.callbacks=diary"),
)


TYPED = """
import json, os, sys
from tests.process.trainers import emtc

answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    arguments, env, cwd = json.loads(line)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    done = emtc(*arguments)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), file=answers, flush=True)
"""


class Shell:
    """A process where some packages are installed and others are not; commands run in it one after another."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TYPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(env)
        )

    def emtc(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, dict(env), str(cwd)]) + "\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(arguments, *json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


SHELLS: dict[tuple[str | None, ...], Shell] = {}


@pytest.fixture(scope="module", autouse=True)
def _close_shells() -> Iterator[None]:
    yield
    while SHELLS:
        SHELLS.popitem()[1].close()


def emtc(*arguments: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where the same is installed: imports are paid once."""
    installed = (env["PYTHONPATH"], env.get("EMTC_PLUGINS"))
    if installed not in SHELLS:
        SHELLS[installed] = Shell(env)
    return SHELLS[installed].emtc(arguments, env, cwd)


def emtc_process(*arguments: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(env), cwd=cwd, timeout=250)


def settings(*given: str) -> list[str]:
    return [word for each in given for word in ("--set", each)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where nothing from outside is installed."""
    home = tmp_path_factory.mktemp("home")
    return {**os.environ, "PYTHONPATH": HERE, "OMP_NUM_THREADS": "1", "EMTC_DB": f"sqlite:///{home / 'lab.db'}"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, bare: dict[str, str]) -> dict[str, str]:
    """Where the package of the guide is installed by pip."""
    source, target = tmp_path_factory.mktemp("my-lab"), tmp_path_factory.mktemp("site")
    (source / "my_lab").mkdir()
    (source / "my_lab" / "__init__.py").touch()
    (source / "pyproject.toml").write_text(PROJECT)
    for place, text in MODULES.items():
        (source / place).write_text(f"# {place}\n{text}")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {**bare, "PYTHONPATH": os.pathsep.join([str(target), HERE])}


@pytest.fixture(scope="module")
def trained(lab: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run, trained by a process of its own, of which everything is from outside."""
    require("pettingzoo", find_spec("pettingzoo") is not None, "it is not installed")
    told = emtc(
        *("train", "--env", "corridor_walk", "--algo", "emtc-softmix", "--steps", "400", "--detach", "--json"),
        *settings(*QUICK, *WALK, *ALL), env=lab, cwd=tmp_path_factory.mktemp("typed"),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return wait_for(json.loads(told.stdout)["run_id"], lab)


def wait_for(run_id: str, env: Mapping[str, str]) -> dict[str, Any]:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if ask(env, f"select status from runs where id = '{run_id}'")[0][0] in ("finished", "failed", "stopped"):
            return json.loads(emtc("show", run_id, "--json", env=env, cwd=ROOT).stdout)
        time.sleep(0.2)
    raise AssertionError(f"run {run_id} did not end")


def ask(env: Mapping[str, str], query: str) -> list[Any]:
    with sqlite3.connect(env["EMTC_DB"].removeprefix("sqlite:///")) as database:
        return database.execute(query).fetchall()


def check_rows(run_id: str, env: Mapping[str, str]) -> str:
    """What breaks the invariants of a run's rows, as a process with this environment sees it."""
    code = (
        "import os; from storage.engine import open_database; from storage.maintenance.check import check_run; "
        f"print(check_run(open_database(os.environ['EMTC_DB'], create=False), {run_id!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(env)
    ).stdout


def test_every_kind_has_a_recipe() -> None:
    from emtc_core.plugins import KINDS

    registered = re.findall(r'^register\("(\w+)"', "\n".join(MODULES.values()), re.MULTILINE)
    assert sorted([*registered, "backbone"]) == sorted(KINDS)  # tests/core/test_plugins.py makes a backbone
    assert set(re.findall(r'= "my_lab\.(\w+)"', PROJECT)) == {Path(name).stem for name in MODULES}


def test_the_environment_of_the_guide_keeps_the_contract(lab: dict[str, str], tmp_path: Path) -> None:
    require("pettingzoo", find_spec("pettingzoo") is not None, "it is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=True, env=lab, cwd=tmp_path
    )
    assert done.stdout == "[]\n"


def test_a_run_with_a_plugin_of_each_kind_is_complete(trained: dict[str, Any], lab: dict[str, str]) -> None:
    assert trained["status"] == "finished", trained["error"]
    config = trained["config"]
    assert config["env"]["plugin"] == {"corridor_walk": {"length": 3}}
    assert config["gate"]["plugin"] == {"cauchy": {"strictness": 3.0}}
    assert config["plugin"] == {"softmix": {"sharpness": 2.0}}
    names = {name for (name,) in ask(lab, "select distinct name from metrics where name like '%/%'")}
    assert {
        "env/distance",
        "user/distinct_actions",
        "user/best_return",
        "user/eval.longest",
        "user/fitted_nodes",
    } <= names
    assert check_rows(trained["id"], lab) == "[]\n"
    assert trained["versions"]["modules"]["my_lab"]  # a digest of the package's files
    assert "patched" not in trained["versions"]
    rows = ask(lab, "select h, h_next, delta_mem, beta, tau from transitions where delta_mem > 0.01")
    assert len(rows) > 20
    for h, h_next, delta, beta, tau in rows:
        assert beta == pytest.approx(1 / (1 + ((3 if h_next < h else 1) * delta / tau) ** 2), abs=1e-4)


def test_its_settings_are_part_of_the_variant_and_its_environment_arguments_are_not(
    trained: dict[str, Any], lab: dict[str, str], tmp_path: Path
) -> None:
    done = emtc("export", "--table", "win-rates", "--format", "markdown", "--out", "w.md", env=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "w.md").read_text()
    assert "gate.type = cauchy" in table
    assert "gate.plugin.cauchy.strictness = 3" in table
    options = ("--format", "marl-eval", "--out", "e.json")
    done = emtc("export", "--table", "evaluations", *options, env=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (algorithm,) = json.loads((tmp_path / "e.json").read_text())["corridor_walk"]["default"]
    assert algorithm.startswith("emtc-softmix (")
    assert "env." not in algorithm


@pytest.mark.parametrize(
    ("figure", "chosen"),
    [("metrics", "metrics=env/distance,user/best_return"), ("learning-curves", "quantity=user/eval.longest")],
)
def test_metrics_of_plugins_are_drawn(
    trained: dict[str, Any], lab: dict[str, str], tmp_path: Path, figure: str, chosen: str
) -> None:
    options = ["--set", chosen, "--format", "csv", "--out", "d.csv"]
    done = emtc("export", trained["id"], "--figure", figure, *options, env=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "d.csv").read_text().splitlines()) > 2


def test_a_sweep_plans_runs_over_an_environments_arguments(lab: dict[str, str], tmp_path: Path) -> None:
    quick = "\n".join(f'"{key}" = {value}' for key, value in (each.split("=") for each in QUICK))
    (tmp_path / "s.toml").write_text(
        f'name = "lengths"\nenv = "corridor_walk"\nalgo = "vdn"\nsteps = 60\nseeds = 1\n[set]\n{quick}\n'
        '[grid]\n"env.plugin.corridor_walk.length" = [2, 4]\n'
    )
    done = emtc("sweep", "s.toml", "--dry-run", "--json", env=lab, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [run["what"] for run in json.loads(done.stdout)["runs"]] == ["length = 2", "length = 4"]
    (tmp_path / "s.toml").write_text((tmp_path / "s.toml").read_text().replace("[2, 4]", "[1]"))
    done = emtc("sweep", "s.toml", env=lab, cwd=tmp_path)
    assert done.returncode == 2
    assert "env.plugin.corridor_walk.length must be >= 2 (got 1)." in done.stderr


def test_a_plugin_that_is_not_installed_is_named_before_any_work(
    trained: dict[str, Any], bare: dict[str, str], tmp_path: Path
) -> None:
    new = {**bare, "EMTC_DB": f"sqlite:///{tmp_path / 'none.db'}"}
    for given, word in (
        (settings("gate.type=cauchy"), "(got 'cauchy')"),
        (["--env", "corridor_walk"], "corridor_walk"),
        (["--algo", "emtc-softmix"], "emtc-softmix"),
    ):
        done = emtc("train", *given, env=new, cwd=tmp_path)
        assert done.returncode == 2
        assert word in done.stderr
        assert "EMTC_PLUGINS" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_missing_plugins_is_shown_and_its_resume_names_them(
    trained: dict[str, Any], bare: dict[str, str], tmp_path: Path
) -> None:
    assert "EMTC" in emtc("runs", env=bare, cwd=tmp_path).stdout.upper()
    for how in (["--start-again"], ["--start-again", "--detach"], []):
        again = emtc("resume", trained["id"], *how, env=bare, cwd=tmp_path)
        assert again.returncode == 2
        assert "finished" in again.stderr or "EMTC_PLUGINS" in again.stderr
    assert ask(bare, "select count(*) from runs") == [(1,)]
    done = emtc(
        "export",
        "--figure",
        "learning-curves",
        trained["id"],
        "--format",
        "svg",
        "--out",
        "c.svg",
        env=bare,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert check_rows(trained["id"], bare) == "[]\n"  # a colleague without the gate may take the run in


def test_a_failing_plugin_ends_its_run_with_its_own_traceback(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "lab_gates.py").write_text(LISTED.replace("return (1 -", "return (1 / 0 -"))
    own = {**bare, "EMTC_PLUGINS": "lab_gates", "EMTC_DB": f"sqlite:///{tmp_path / 'f.db'}"}
    quick = ["--map", "3m", "--steps", "300", *settings("gate.type=linear_gate")]
    done = emtc("train", *quick, "--json", env=own, cwd=tmp_path)
    assert done.returncode == 1
    told = json.loads(done.stdout.splitlines()[-1])
    assert "ZeroDivisionError: division by zero" in told["error"]
    assert ask(own, "select status, error from runs")[0] == ("failed", "ZeroDivisionError: division by zero")
    (log,) = tmp_path.rglob("log.txt")
    assert "lab_gates.py" in log.read_text()
    (tmp_path / "lab_gates.py").write_text("import nothing_of_that_name\n")
    done = emtc_process("train", *quick, env=own, cwd=tmp_path)
    assert done.returncode == 2
    assert "lab_gates cannot be imported: ModuleNotFoundError" in done.stderr
