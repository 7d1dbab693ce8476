"""Real sweeps on a real Ray: a trainer, a task, a node and the driver are killed, and each run ends, once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from storage.engine import Database, open_database
from storage.files import run_folder
from storage.runs.rows import find_run
from tests.postgres import SERVER_VARIABLE, is_server_available, open_server, temporary_postgres_database
from tests.process.ray_cluster import QUIET, ROOT, Cluster, cluster, free_port, require_ray, trainers_under
from tests.process.test_sweep import TINY, breaches, read, statuses, write_sweep
from tests.process.test_worker import asking, gaps
from tests.process.trainers import EMTC, emtc, emtc_process, environment, wait_until
from tests.require import require

pytestmark = [pytest.mark.ci, pytest.mark.ray]


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    require_ray()
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # short, for its sockets
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


def sweep(file: str, url: str, *options: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    output = log.open("wb") if log else subprocess.DEVNULL
    command = [*EMTC, "sweep", file, "--engine", "ray", *options]
    return subprocess.Popen(command, stdout=output, stderr=output, env={**environment(), "EMTC_DB": url})


def refusal(tmp_path: Path, *options: str, command: Callable[..., Any] = emtc_process) -> str:
    """The one sentence of a refused command, which has made nothing."""
    file, url, path = write_sweep(tmp_path)
    done = command("sweep", file, "--db", url, *options)
    assert (done.returncode, done.stdout, path.exists()) == (2, "", False), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr.strip()


def has_checkpoint(db: Database, run_id: str) -> bool:
    return any(run_folder(db, run_id).rglob("checkpoint-*.pt"))


def test_a_killed_trainer_on_a_local_ray_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path, steps=1500)
    db = open_database(url)
    with sweep(file, url, "--jobs", "2", "--json", log=tmp_path / "log") as driver:
        wait_until(lambda: any(has_checkpoint(db, run) for run in trainers_under(driver.pid)), what="one")
        run_id, pid = next((run, pid) for run, pid in trainers_under(driver.pid).items() if has_checkpoint(db, run))
        assert psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] == "", "no GPU unless asked"
        os.kill(pid, signal.SIGKILL)
        assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    assert statuses(path) == ["finished"] * 2
    assert [(run, step >= 100) for run, step in read(path, "select run_id, env_step from resumes")] == [(run_id, True)]
    assert breaches(path) == []
    db.dispose()


def test_an_address_without_a_cluster_is_refused_in_a_sentence(tmp_path: Path) -> None:
    port = free_port()
    nobody = refusal(tmp_path, "--engine", "ray", "--address", f"127.0.0.1:{port}")
    assert nobody.startswith(f"No Ray cluster answers at 127.0.0.1:{port}: Connection refused.")
    assert "ray start --head" in nobody
    assert "must be HOST:PORT" in refusal(tmp_path, "--engine", "ray", "--address", "nonsense", command=emtc)
    assert "need --engine ray" in refusal(tmp_path, "--address", f"127.0.0.1:{port}", command=emtc)


@pytest.fixture(scope="module")
def two_nodes() -> Generator[Cluster]:
    require_ray()
    with cluster() as started:
        yield started


PRETEND = """
import json, sys
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
from ray._raylet import GcsClient
place = (CLUSTER_METADATA_KEY, KV_NAMESPACE_CLUSTER)
client = GcsClient(address=sys.argv[1])
known = client.internal_kv_get(*place)
client.internal_kv_put(place[0], (sys.argv[2].encode() or known), True, place[1])
print(known.decode())
"""


def pretend(nodes: Cluster, metadata: str) -> str:
    """Write what a cluster says of itself, and give what it said before."""
    command = [sys.executable, "-c", PRETEND, nodes.address, metadata]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_a_cluster_of_another_version_is_refused(two_nodes: Cluster, tmp_path: Path) -> None:
    known = pretend(two_nodes, "")
    pretend(two_nodes, json.dumps(json.loads(known) | {"ray_version": "2.9.3", "python_version": "3.10.1"}))
    sentence = refusal(tmp_path, "--engine", "ray", "--address", two_nodes.address)
    pretend(two_nodes, known)
    assert sentence.startswith(f"Could not connect to the Ray cluster at {two_nodes.address}: Version mismatch")
    assert "2.9.3" in sentence


@pytest.mark.slow
def test_a_cluster_without_what_a_run_asks_for_is_refused(two_nodes: Cluster, tmp_path: Path) -> None:
    wanted = ("--engine", "ray", "--address", two_nodes.address)
    sentence = refusal(tmp_path, *wanted, "--gpus-per-run", "1")
    assert sentence.startswith("A run needs 1 CPU and 1 GPU, and no node of the cluster has them.")
    assert "3 CPU and 0 GPU" in refusal(tmp_path, *wanted, "--cpus-per-run", "3")


GATES = """
from emtc_core.config.base import ConfigSection
from emtc_core.gate_laws import GateLaw
from emtc_core.plugins import register


class Reach(ConfigSection):
    reach: float = 2.0


def make_linear_gate(settings):
    return GateLaw(lambda delta, tau, context: (1 - delta / (settings.reach * tau)).clip(0, 1))


register("gate", "linear_gate", make_linear_gate, settings=Reach)
"""


@pytest.mark.slow
def test_a_module_that_the_driver_lists_reaches_the_trainers_of_a_cluster(two_nodes: Cluster, tmp_path: Path) -> None:
    """The cluster was started before, in another folder and without the variable."""
    (tmp_path / "lab_gates.py").write_text(GATES)
    file, url, path = write_sweep(tmp_path)
    Path(file).write_text(
        Path(file).read_text().replace("[set]", '[set]\ngate.type = "linear_gate"\ngate.plugin.linear_gate.reach = 3')
    )
    command = [*EMTC, "sweep", file, "--engine", "ray", "--address", two_nodes.address]
    known = {**environment(), "EMTC_DB": url, "EMTC_PLUGINS": "lab_gates", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert statuses(path) == ["finished"] * 2
    stored = [json.loads(config) for (config,) in read(path, "select config from runs")]
    assert [each["gate"]["plugin"]["linear_gate"] for each in stored] == [{"reach": 3.0}] * 2
    rows = read(path, "select delta_mem, beta, tau from transitions where delta_mem > 0.01")
    assert len(rows) > 5
    assert all(abs(beta - max(0.0, 1 - delta / (3 * tau))) < 1e-4 for delta, beta, tau in rows)


@pytest.mark.slow
def test_a_run_that_asks_for_a_gpu_gets_that_of_its_node_for_itself(tmp_path: Path) -> None:
    """Its worker is told where the driver keeps its files, too."""
    file, url, path = write_sweep(tmp_path)
    seen: dict[str, tuple[str, str]] = {}
    files = tmp_path / "files"
    files.mkdir()
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(nodes=1, gpus=1))
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("EMTC_FILES", str(files))  # on the driver only
        driver = stack.enter_context(sweep(file, url, "--address", nodes.address, "--gpus-per-run", "1"))

        def look() -> bool:
            trainers = nodes.trainers()
            assert len(trainers) <= 1, "two runs share a GPU that each asked for"
            for run_id, pid in trainers.items():
                with suppress(psutil.NoSuchProcess):
                    variables = psutil.Process(pid).environ()
                    seen[run_id] = (variables["CUDA_VISIBLE_DEVICES"], variables["EMTC_FILES"])
            return driver.poll() is not None

        wait_until(look, what="the end")
    assert statuses(path) == ["finished"] * 2
    assert list(seen.values()) == [("0", str(files))] * 2
    assert read(path, "select jobs from sweeps") == [(1,)], "as many at once as fit into the cluster"


@pytest.mark.slow
def test_a_sweep_ends_if_no_worker_of_the_cluster_can_work(tmp_path: Path) -> None:
    file, url, path = write_sweep(tmp_path)
    with cluster(nodes=1, variables={"EMTC_READ_ONLY": "1"}) as nodes:
        assert sweep(file, url, "--address", nodes.address, log=tmp_path / "log").wait(timeout=250) == 1
    said = (tmp_path / "log").read_text()
    assert "This process cannot train runs: EMTC_READ_ONLY=1" in said
    assert "ended with code 2" in said
    assert statuses(path) == ["queued"] * 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_detached_driver_leaves_with_checkpoints_and_a_dead_task_costs_no_run(
    two_nodes: Cluster, tmp_path: Path
) -> None:
    file, url, path = write_sweep(tmp_path, steps=2500)
    options = ("--address", two_nodes.address, "--jobs", "1")
    db = open_database(url)
    assert sweep(file, url, *options, "--detach", log=tmp_path / "log").wait(timeout=120) == 0
    first, _ = wait_for_trainer(two_nodes, db)
    (sweep_id,) = read(path, "select id from sweeps")[0]
    driver = find_driver(sweep_id)
    assert {"sweep", "ray", two_nodes.address} <= set(driver.cmdline())
    driver.terminate()
    wait_until(lambda: not driver.is_running(), what="the driver's end")
    ((stood_at, status),) = read(path, "select env_steps, status from runs where id = ?", first)
    assert (status, two_nodes.trainers(), stood_at >= 100) == ("queued", {}, True)
    with sweep(file, url, *options) as again:
        run_id, pid = wait_for_trainer(two_nodes, db)
        assert run_id == first
        task = psutil.Process(pid).parents()[1]
        assert "run_worker" in task.cmdline()[0]
        task.kill()  # Ray does not kill its worker, which continues
        wait_until(lambda: not task.is_running(), what="the task's end")
        assert again.wait(timeout=400) == 0
    assert statuses(path) == ["finished"] * 2
    resumes = read(path, "select run_id, env_step, reached_env_step from resumes")
    assert resumes == [(first, stood_at, stood_at)], "where it was when the driver had to leave, and nowhere else"
    assert breaches(path) == []
    began = {each: timestamps(path, each) for (each,) in read(path, "select id from runs")}
    other = next(run for run in began if run != first)
    assert began[other][0] >= began[first][1], "one at once"
    wait_until(lambda: not has_worker(url), what="the end of the worker of the dead task")
    db.dispose()


def find_driver(sweep_id: str) -> psutil.Process:
    """Find the process of a detached sweep."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if {"sweep", sweep_id} <= set(process.cmdline()):
                return process
    raise AssertionError("there is none")


def timestamps(path: Path, run_id: str) -> tuple[str, str]:
    return read(path, "select started_at, ended_at from runs where id = ?", run_id)[0]


def wait_for_trainer(nodes: Cluster, db: Database) -> tuple[str, int]:
    """The first trainer on the cluster that has a checkpoint: its run and its process."""

    def ready() -> list[tuple[str, int]]:
        return [(run, pid) for run, pid in nodes.trainers().items() if has_checkpoint(db, run)]

    wait_until(lambda: bool(ready()), what="a checkpoint")
    return ready()[0]


def check_sweep_survives(address: str, nodes: Cluster, url: str, folder: Path) -> None:
    file = folder / "tiny.toml"
    file.write_text(TINY.format(steps=2500, seeds=8))
    db = open_database(url)
    ask = asking(db)
    options = ("--address", address, "--jobs", "4")
    with sweep(str(file), url, *options, log=folder / "driver") as driver:
        lost = kill_node(nodes, db)
        resumed = f"select count(distinct run_id) from resumes where run_id in {quote(lost)}"
        wait_until(lambda: ask(resumed) == [(len(lost),)], timeout_s=300, what="the runs of the dead node")
        assert driver.poll() is None, (folder / "driver").read_text()
        driver.kill()
    again = sweep(str(file), url, *options, "--json", log=folder / "again")
    assert again.wait(timeout=400) == 0, (folder / "again").read_text()
    assert ask("select status, count(*), count(distinct launch_token) from runs group by status") == [
        ("finished", 16, 16)
    ]
    assert all(step >= 100 for (step,) in ask(f"select env_step from resumes where run_id in {quote(lost)}"))
    assert gaps(ask) == []
    wait_until(lambda: not has_worker(url), what="the end of the workers of the killed driver")
    db.dispose()


def has_worker(url: str) -> bool:
    """Whether an `emtc worker` of this database runs on this machine."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "worker" in process.cmdline() and process.environ().get("EMTC_DB") == url:
                return True
    return False


def kill_node(nodes: Cluster, db: Database) -> list[str]:
    """Kill the second node while its two trainers have checkpoints; its runs that have not finished before."""
    trainers: dict[str, int] = {}

    def is_ready() -> bool:
        trainers.clear()
        trainers.update(nodes.nodes[1].trainers())
        return len(trainers) == 2 and all(has_checkpoint(db, run) for run in trainers)

    wait_until(is_ready, what="checkpoints on the second node")
    nodes.nodes[1].kill()
    lost = [run for run in trainers if find_run(db, run).status == "running"]
    assert lost, "both have just finished"
    return lost


def quote(run_ids: list[str]) -> str:
    return f"({', '.join(repr(run) for run in run_ids)})"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_a_sweep_survives_a_dead_node_and_then_a_dead_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("postgres", is_server_available(), f"no PostgreSQL server is installed and {SERVER_VARIABLE} is unset")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # a server's run folders
    with open_server(fsync=False) as place, temporary_postgres_database(place) as url, cluster() as nodes:
        check_sweep_survives(nodes.address, nodes, url, tmp_path)
