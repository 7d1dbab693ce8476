"""Several runs on one GPU: the share of its memory, the largest number of runs, and NVIDIA MPS. The GPU is a stub."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from app.jobs import doctor, gpu
from app.jobs.sweeps import control
from app.jobs.sweeps.file import parse_sweep
from app.jobs.sweeps.plan import make_plan
from app.jobs.sweeps.worker import LeaveRequest, WorkerLoop
from app.jobs.training import _mark_started
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.memory_estimate import count_gpu_bytes
from storage.engine import open_database
from storage.models import Run
from storage.runs.claims import claim_to_train
from storage.runs.rows import find_run
from storage.runs.sweeps import sweep_runs
from tests.process.trainers import emtc

GB = 10**9
EIGHT_RUNS = 'name = "s"\nmap = "3m"\nsteps = 1000\nseeds = 8\n'


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU of 80 GB, of which 70 GB are free."""
    monkeypatch.setattr(gpu, "_DEVICE_FILES", ("/dev/null",))
    monkeypatch.setattr(gpu, "_query_torch", lambda *key: gpu.Gpu("NVIDIA Some GPU", 70 * GB, 80 * GB))
    monkeypatch.delenv(gpu.MPS_VARIABLE, raising=False)


@pytest.fixture
def mps_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which CUDA looks for MPS."""
    folder = tmp_path / "mps"
    folder.mkdir()
    monkeypatch.setenv(gpu.MPS_VARIABLE, str(folder))
    return folder


@pytest.mark.usefixtures("one_gpu")
def test_more_runs_than_fit_into_the_gpu_are_refused_in_one_sentence(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "s.toml").write_text(EIGHT_RUNS)
    needed = max(count_gpu_bytes(run.config, get_env_info(run.config.env)) for run in read_plan().runs)
    monkeypatch.setattr(gpu, "_query_torch", lambda *key: gpu.Gpu("NVIDIA Some GPU", int(5.5 * needed), 80 * GB))
    options = ["sweep", str(tmp_path / "s.toml"), "--db", f"sqlite:///{tmp_path / 'x.db'}"]
    done = emtc(*options, "--jobs", "8")
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert done.stderr.startswith("--jobs must be at most 5: each of 8 runs at the same time needs up to")
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]
    assert emtc(*options, "--dry-run", "--jobs", "5").returncode == 0
    assert emtc(*options, "--dry-run", "--jobs", "8", "--set", "train.device=cpu").returncode == 0


@pytest.mark.usefixtures("one_gpu")
def test_the_default_number_of_runs_fits_into_the_gpu(monkeypatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 64)
    plan = read_plan()
    assert control.default_jobs() == 64
    assert control.default_jobs(plan) == 64, "more fit into 70 GB"
    monkeypatch.setattr(gpu, "_query_torch", lambda *key: gpu.Gpu("NVIDIA Some GPU", GB, 80 * GB))
    assert control.default_jobs(plan) == 1
    assert control.default_jobs(read_plan("[set]\ntrain.device = 'cpu'")) == 64


@pytest.mark.usefixtures("one_gpu", "mps_folder")
def test_a_variable_that_leads_to_no_mps_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = emtc("train", "--steps", "300", "--db", f"sqlite:///{tmp_path / 'x.db'}")
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"{gpu.MPS_VARIABLE} must be the directory of a running NVIDIA MPS")
    assert gpu.MPS_COMMAND in done.stderr
    assert not (tmp_path / "x.db").exists()


def listen(folder: Path) -> Callable[[], None]:
    server = socket.socket(socket.AF_UNIX)
    server.bind("control")  # relative, because the path of a socket has at most 107 characters
    server.listen()
    return server.close


def read_pipe(folder: Path) -> Callable[[], None]:
    os.mkfifo(folder / "control")
    reader = os.open(folder / "control", os.O_RDONLY | os.O_NONBLOCK)
    return lambda: os.close(reader)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("start_daemon", [listen, read_pipe])
def test_mps_runs_while_its_daemon_uses_its_file(mps_folder: Path, monkeypatch, start_daemon) -> None:
    monkeypatch.chdir(mps_folder)
    monkeypatch.setenv(gpu.MPS_VARIABLE, ".")
    stop_daemon = start_daemon(mps_folder)
    gpu.check_mps()
    (check,) = doctor._list_mps_checks({"name": "NVIDIA Some GPU", "results": []})
    assert (check.name, check.usable, check.advice) == ("mps", True, "")
    stop_daemon()  # its file remains, as after a kill
    with pytest.raises(ConfigError, match=gpu.MPS_VARIABLE):
        gpu.check_mps()
    (check,) = doctor._list_mps_checks({"name": "NVIDIA Some GPU", "results": []})
    assert (check.usable, check.needed, check.advice) == (False, False, gpu.MPS_COMMAND)


def test_eight_runs_of_a_sweep_get_an_eighth_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    plan, started = read_plan(), list[list[str]]()
    control.create_sweep(db, plan, jobs=8)

    def spawn(arguments: list[str], log: Path, *, db: object) -> subprocess.Popen[bytes]:
        started.append(arguments)
        if len(started) == 8:
            leave.is_requested = True
        return subprocess.Popen(["true"])

    monkeypatch.setattr("app.jobs.launch.spawn", spawn)
    leave = LeaveRequest()
    loop = WorkerLoop(db, jobs=12, n_runs=8, leave=leave, announce=lambda message: None, sweep_id=plan.id)
    loop.run_sweep(plan.id)
    assert [arguments[arguments.index("--gpu-share") + 1] for arguments in started] == ["0.125"] * 8
    db.dispose()


def test_a_share_is_chosen_at_each_start_and_not_stored(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    for share, chosen in (("'auto'", 1 / 8), (0.5, 0.5)):
        plan = read_plan(f"[set]\ntrain.gpu_share = {share}")
        control.create_sweep(db, plan, jobs=8, seeds={1})
        (run,) = sweep_runs(db, plan.id)
        claim_to_train(db, run.id, "token")
        config, _ = _mark_started(db, run.id, "token", 1 / 8)
        assert config.train.gpu_share == chosen
        assert find_run(db, run.id).config["train"]["gpu_share"] == (0.5 if chosen == 0.5 else "auto")
        with db.transaction() as connection:
            connection.execute(update(Run).values(host="far-away", status="queued"))
        config, _ = _mark_started(db, run.id, "token", 1.0)
        assert config.train.gpu_share == 1, "this machine starts one run"
    db.dispose()


def read_plan(settings: str = ""):
    return make_plan(parse_sweep(EIGHT_RUNS + settings))
