"""`emtc app`: the server as a user starts it, from any folder, with a script called app.py of their own in it."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest

from app.cli import serve
from app.cli.main import run
from app.jobs.launch import ROOT
from tests.app_server import find_free_port, wait_until_reachable
from tests.process.test_server import open_socket
from tests.require import require_package

pytestmark = pytest.mark.ci

COMMAND = "import sys; from app.cli.main import main; main()"
_OPENS = f"""
import sys
sys.path.insert(0, {str(ROOT / "app")!r})  # as Streamlit does
from streamlit.testing.v1 import AppTest
app = AppTest.from_file({str(ROOT / "app" / "Home.py")!r}, default_timeout=120).run()
assert not app.exception, app.exception
print(app.title[0].value)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text("raise SystemExit('this is the app of somebody else')\n")
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port, log = find_free_port(), folder / "log.txt"
    command = [sys.executable, "-P", "-c", COMMAND, "app", "--port", str(port)]
    env = {name: value for name, value in os.environ.items() if name != "EMTC_DB"} | {
        "PYTHONPATH": str(ROOT),
        "EMTC_TOKEN": "off",
    }
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_reachable(f"http://localhost:{port}/_stcore/health", server, log)
        yield port, server
    finally:
        server.terminate()
        server.wait(timeout=120)


def test_the_app_starts_with_its_own_settings_and_is_this_process(served, folder):
    port, server = served
    assert open_socket(port, f"localhost:{port}", f"http://localhost:{port}") == 101
    assert open_socket(port, "evil.com", "http://evil.com") in (400, 403)
    assert server.poll() is None
    assert "somebody else" not in (folder / "log.txt").read_text()


def test_a_page_opens_in_a_folder_with_another_app(folder):
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "EMTC_WARM_UP": "0", "EMTC_DB": "sqlite:///x.db"}
    done = subprocess.run(
        [sys.executable, "-c", _OPENS], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([], "sqlite:///{here}/runs/emtc.db"),
        (["--db", "sqlite:///mine.db"], "sqlite:///{here}/mine.db"),
        (["--db", "sqlite:////elsewhere/x.db"], "sqlite:////elsewhere/x.db"),
        (["--db", "postgresql://u:secret@h/d"], "postgresql://u:secret@h/d"),
    ],
)
def test_the_app_shows_the_database_of_the_folder_of_the_command(folder, monkeypatch, given, shown):
    started = {}
    monkeypatch.setattr(serve.os, "execve", lambda program, command, env: started.update(command=command, env=env))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("EMTC_DB", raising=False)
    assert run(["app", "--port", "8600", *given]) == 0
    assert started["env"]["EMTC_DB"] == shown.format(here=folder)
    assert started["env"]["EMTC_ENV_FOLDER"] == str(folder)
    assert started["command"][-2:] == ["--server.port", "8600"]
    assert "secret" not in " ".join(started["command"])


def test_a_wheel_holds_the_entry_and_its_settings(tmp_path, monkeypatch):
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"app", "pages", ".streamlit/config.toml"} <= set(wheel["only-include"])
    assert wheel["sources"] == {".streamlit": "app/.streamlit", "app/face": ""}
    require_package("hatchling")
    build = import_module("hatchling.build")
    monkeypatch.chdir(ROOT)
    names = ZipFile(tmp_path / build.build_wheel(str(tmp_path))).namelist()
    assert {
        "emtc_lab.py",
        "app/Home.py",
        "app/.streamlit/config.toml",
        "app/figures/assets/page.css",
        "pages/home.py",
    } <= {*names}
