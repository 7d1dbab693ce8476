"""`python -m emtc_core.envs.smac.install`: what it installs, prints, refuses and keeps."""

import hashlib
import http.server
import io
import subprocess
import sys
import threading
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest

from emtc_core.envs.smac import game_link, install
from emtc_core.envs.smac.maps import ARENA, SMAC_MAPS
from tests.require import require

MAPS = sorted({*SMAC_MAPS, ARENA})
ARCHIVE = "SMAC_Maps.zip"


def pack(entries: dict[str, bytes], folder: Path, name: str = ARCHIVE) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        for entry, content in entries.items():
            opened.writestr(entry, content)
    path = folder / name
    path.write_bytes(buffer.getvalue())
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A user's folder, a game that is not installed yet, and a server with an archive that counts as the published."""
    monkeypatch.setattr(game_link, "home", lambda: tmp_path / "home")
    monkeypatch.delenv(game_link.PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("SC2PATH", str(tmp_path / "StarCraftII"))
    served = tmp_path / "served"
    served.mkdir()
    archive = pack({"README.md": b"no map"} | {f"SMAC_Maps/{name}.SC2Map": name.encode() for name in MAPS}, served)
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(install, "MAPS_URL", f"http://127.0.0.1:{server.server_port}/{ARCHIVE}")
    monkeypatch.setattr(install, "MAPS_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    game_link._check_results.clear()
    yield tmp_path / "home"
    server.shutdown()
    server.server_close()


def install_game(home: Path) -> Path:
    (home.parent / "StarCraftII" / "Versions").mkdir(parents=True)
    return home.parent / "StarCraftII" / "Maps" / "SMAC_Maps"


CLASS = """
class {name}:
    def __init__(self, **_):
        self.env = None
    def get_env_info(self):
        return {info}
"""
RANDOM = "class SeedSequence:\n    def __init__(self, seed): pass\n    def spawn(self, n): return range(n)\n"


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    how = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": how, f"{info}/RECORD": ""}
    pack({path: text.encode() for path, text in entries.items()}, folder, f"{name}-{version}-py3-none-any.whl")


def write_wheels(folder: Path, *, agents: int = 3) -> None:
    """Put small packages of the needed names into a folder, of which two know what the real ones say of their maps."""
    small = {"n_agents": agents, "n_actions": 9, "obs_shape": 30, "state_shape": 48, "episode_limit": 60}
    big = {"n_agents": 5, "n_actions": 11, "obs_shape": 82, "state_shape": 120, "episode_limit": 200}
    smac = CLASS.format(name="StarCraft2Env", info={**small, "agent_features": [""] * 4})
    wrapper = CLASS.format(name="StarCraftCapabilityEnvWrapper", info={**big, "agent_features": [""] * 7})
    inner = "smacv2/env/starcraft2"
    wheel(folder, "SMAC", "1.0", {"smac/env/__init__.py": smac, "smac/env/starcraft2/__init__.py": ""})
    wheel(folder, "SMACv2", "1.0", {f"{inner}/distributions.py": "", f"{inner}/wrapper.py": wrapper})
    wheel(folder, "numpy", "2.0", {"numpy/__init__.py": "from numpy import random\n", "numpy/random.py": RANDOM})
    for name, version in (("pysc2", "4.0"), ("protobuf", "3.20"), ("s2clientprotocol", "4.10")):
        wheel(folder, name, version, {f"{name}/__init__.py": ""})


@pytest.mark.ci
def test_it_installs_the_packages_then_the_maps_and_prints_each_step(home, capfd, monkeypatch):
    write_wheels(home.parent)
    monkeypatch.setattr(install, "SOURCES", ("SMAC", "SMACv2"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(home.parent))
    assert install.main() == 1
    said = capfd.readouterr().err
    assert f"-m venv {home / 'env'}" in said
    assert "-m pip install --no-input SMAC SMACv2 protobuf<3.21" in said
    assert "you must accept its license: read github.com/Blizzard" in said
    assert "StarCraft II is not in" in said
    folder = install_game(home)
    folder.mkdir(parents=True)
    (folder / "3m.SC2Map").write_bytes(b"my own")
    assert install.main() == 0
    assert "SMAC can be used: emtc train --env smac" in capfd.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.SC2Map" for name in MAPS]
    assert ((folder / "3m.SC2Map").read_bytes(), (folder / "8m.SC2Map").read_bytes()) == (b"my own", b"8m")


@pytest.mark.slow
def test_a_failure_of_pip_is_a_sentence_after_its_own_message(home, capfd, monkeypatch):
    monkeypatch.setattr(install, "SOURCES", ("SMAC", "SMACv2"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert install.main() == 1
    assert capfd.readouterr().err.endswith("The command ended with exit code 1. The reason is above.\n")


def test_another_archive_than_the_published_one_is_refused_and_an_own_interpreter_is_left_alone(
    home, capfd, monkeypatch
):
    monkeypatch.setenv(game_link.PYTHON_VARIABLE, sys.executable)
    folder = install_game(home)
    pack({"3m.SC2Map": b"other"}, home.parent / "served")
    assert install.main() == 1
    assert "the SHA-256 of the archive must be" in capfd.readouterr().err
    assert not folder.exists()
    (home.parent / "served" / ARCHIVE).unlink()
    assert install.main() == 1
    assert "The maps cannot be installed: HTTP Error 404" in capfd.readouterr().err
    assert not home.exists()


@pytest.mark.slow
def test_the_index_has_what_the_packages_need_and_it_is_older_than_streamlits(home):
    """With the packages' own requirements from the index; they themselves are in public repositories only."""
    env = home / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    pip = [str(env / "bin" / "python"), "-m", "pip"]
    done = subprocess.run(
        [*pip, "install", "--no-input", *install.REQUIREMENTS],
        env=game_link.isolated_environ(),
        capture_output=True,
        check=False,
    )
    require("smac", done.returncode == 0, f"the index does not answer: {done.stderr.decode()[-200:]}")
    program = "import google.protobuf as p, pysc2.run_configs, s2clientprotocol.sc2api_pb2; print(p.__version__)"
    found = subprocess.run([str(env / "bin" / "python"), "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("3.20.")
