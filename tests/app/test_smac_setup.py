"""`emtc setup smac`: what it asks, brings, checks, leaves alone, and goes on with."""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from app.cli.main import run
from emtc_core.envs.smac import game_link, setup
from emtc_core.envs.smac.maps import ARENA, SMAC_MAPS
from emtc_core.errors import EnvUnavailableError
from tests.require import require

MAPS = sorted({*SMAC_MAPS, ARENA})


def pack(entries: dict[str, bytes], folder: Path, name: str = setup.MAPS_FILE) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        for entry, content in entries.items():
            opened.writestr(entry, content)
    place = folder / name
    place.write_bytes(buffer.getvalue())
    return place


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, a game that is not there yet, and an archive of maps that counts as the published one."""
    monkeypatch.setattr(game_link, "home", lambda: tmp_path / "home")
    monkeypatch.delenv(game_link.PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("SC2PATH", str(tmp_path / "StarCraftII"))
    brought = tmp_path / "brought"
    brought.mkdir()
    archive = pack({f"{name}.SC2Map": name.encode() for name in MAPS}, brought)
    monkeypatch.setattr(setup, "MAPS_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    game_link._check_results.clear()
    return tmp_path / "home"


def install_game(home: Path) -> Path:
    (home.parent / "StarCraftII" / "Versions").mkdir(parents=True)
    return home.parent / "StarCraftII" / "Maps" / "SMAC_Maps"


class TestMaps:
    def test_all_are_put_where_the_game_looks(self, home):
        folder = install_game(home)
        assert setup.install_maps(home.parent / "brought") == []
        assert sorted(path.stem for path in folder.iterdir()) == MAPS
        assert (folder / "3m.SC2Map").read_bytes() == b"3m"
        assert setup.has_maps()

    def test_without_the_game_they_are_kept_and_unpacked_later_without_bringing_them_again(self, home):
        assert "are kept in" in setup.install_maps(home.parent / "brought")[0]
        assert setup.has_maps()
        assert not (home.parent / "StarCraftII").exists()
        folder = install_game(home)
        assert not setup.has_maps()
        setup.install_maps(home.parent / "no such folder")
        assert len(list(folder.iterdir())) == len(MAPS)

    def test_a_map_that_is_there_is_left_as_it_is(self, home):
        folder = install_game(home)
        folder.mkdir(parents=True)
        (folder / "3m.SC2Map").write_bytes(b"my own")
        (folder / "8m.SC2Map").write_bytes(b"8m")
        assert setup.install_maps(home.parent / "brought") == [
            "Existing files that differ from the published maps were not changed: 3m.SC2Map."
        ]
        assert (folder / "3m.SC2Map").read_bytes() == b"my own"

    def test_after_an_interruption_the_rest_is_brought(self, home):
        folder = install_game(home)
        setup.install_maps(home.parent / "brought")
        (folder / "corridor.SC2Map").unlink()
        (folder / "MMM.SC2Map.part").write_bytes(b"hal")
        (home / "downloads" / setup.MAPS_FILE).write_bytes(b"cut off")
        assert not setup.has_maps()
        setup.install_maps(home.parent / "brought")
        assert (folder / "corridor.SC2Map").read_bytes() == b"corridor"
        assert setup.has_maps()

    def test_another_file_than_the_published_one_is_refused(self, home):
        folder = install_game(home)
        pack({"3m.SC2Map": b"other"}, home.parent / "brought")
        with pytest.raises(EnvUnavailableError, match="SHA-256"):
            setup.install_maps(home.parent / "brought")
        assert not folder.exists()

    @pytest.mark.parametrize(
        "name",
        ["../3m.SC2Map", "/3m.SC2Map", "..\\3m.SC2Map", "a/b.SC2Map", "SMAC_Maps/../a.SC2Map", "run.sh", "C:a.SC2Map"],
    )
    def test_nothing_leaves_the_folder(self, tmp_path, name):
        archive = pack({"8m.SC2Map": b"8m", name: b"evil"}, tmp_path)
        with pytest.raises(EnvUnavailableError, match=str(archive)):
            setup.unpack_maps(archive, tmp_path / "a" / "Maps")
        assert [path.name for path in tmp_path.rglob("*")] == [setup.MAPS_FILE]

    def test_a_bomb_a_torn_and_an_altered_archive_are_refused(self, tmp_path):
        bomb = pack({"3m.SC2Map": bytes(8 << 20)}, tmp_path, "bomb.zip")
        whole = pack({"3m.SC2Map": os.urandom(5000)}, tmp_path, "whole.zip").read_bytes()
        torn, altered = tmp_path / "torn.zip", tmp_path / "altered.zip"
        torn.write_bytes(whole[:3000])
        altered.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
        for archive in (bomb, torn, altered, tmp_path / "none.zip"):
            with pytest.raises(EnvUnavailableError, match=str(archive)):
                setup.unpack_maps(archive, tmp_path / "Maps")
        assert not (tmp_path / "Maps").exists()


class TestDownload:
    @pytest.fixture
    def server(self, home, monkeypatch):
        folder = str(home.parent / "brought")
        handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=folder))
        threading.Thread(target=served.serve_forever, daemon=True).start()
        monkeypatch.setattr(setup, "MAPS_URL", f"http://127.0.0.1:{served.server_port}/{setup.MAPS_FILE}")
        yield served
        served.shutdown()
        served.server_close()

    def test_the_archive_comes_from_its_address(self, home, server):
        install_game(home)
        assert setup.install_maps(None) == []
        assert setup.has_maps()

    def test_one_that_is_not_there_says_how_to_go_on(self, home, server):
        (home.parent / "brought" / setup.MAPS_FILE).unlink()
        with pytest.raises(EnvUnavailableError, match=setup.MAPS_URL) as caught:
            setup.install_maps(None)
        assert "emtc setup smac --from FOLDER" in str(caught.value)

    def test_the_published_address_and_sum_belong_to_one_commit(self):
        assert setup.SMACV2_COMMIT in setup.MAPS_URL
        assert any(setup.SMACV2_COMMIT in source for source in setup.SOURCES)


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


class TestTheCommand:
    def test_nobody_to_ask_is_a_sentence_and_nothing_is_done(self, home, capsys, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        assert run(["setup", "smac"]) == 2
        said = capsys.readouterr().err
        for word in ("environment: make", "packages: install SMAC @", "maps: download https://", "Confirm with --yes"):
            assert word in said
        assert not home.exists()

    def test_no_is_respected(self, home, capsys, monkeypatch):
        stdin = io.StringIO("n\n")
        stdin.isatty = lambda: True
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(["setup", "smac"]) == 1
        assert "Interrupted." in capsys.readouterr().err
        assert not home.exists()

    def test_a_folder_that_is_not_there_is_refused(self, home, capsys):
        assert run(["setup", "smac", "--from", str(home / "none")]) == 2
        assert "--from must be a folder" in capsys.readouterr().err

    @pytest.mark.ci
    def test_it_brings_everything_once_and_names_what_only_the_user_can(self, home, capfd):
        brought = home.parent / "brought"
        write_wheels(brought)
        command = ["setup", "smac", "--yes", "--json", "--from", str(brought)]
        assert run(command) == 1
        said = capfd.readouterr()
        game = home.parent / "StarCraftII"
        assert json.loads(said.out) == {
            "done": ["environment", "packages", "maps"],
            "missing": dict.fromkeys(["smac", "smacv2"], f"StarCraft II is not in {game} (SC2PATH)."),
        }
        assert "you must accept its license: read github.com/Blizzard" in said.err
        assert run(command) == 1
        assert json.loads(capfd.readouterr().out)["done"] == []
        install_game(home)
        assert run(command) == 0
        assert json.loads(capfd.readouterr().out) == {"done": ["maps"], "missing": {"smac": "", "smacv2": ""}}
        assert run(["setup", "smac"]) == 0
        assert "SMAC can be used: emtc train --env smac" in capfd.readouterr().err

    @pytest.mark.slow
    def test_an_interruption_is_made_good_by_the_next_try(self, home, capfd):
        brought = home.parent / "brought"
        write_wheels(brought)
        python = home / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("half a file")
        python.chmod(0o755)
        (brought / "protobuf-3.20-py3-none-any.whl").rename(brought / "kept")
        command = ["setup", "smac", "--yes", "--json", "--from", str(brought)]
        assert run(command) == 1
        assert "The packages cannot be installed: -m pip ended with exit code 1" in capfd.readouterr().err
        (brought / "kept").rename(brought / "protobuf-3.20-py3-none-any.whl")
        assert run(command) == 1
        assert json.loads(capfd.readouterr().out)["done"] == ["packages", "maps"]

    @pytest.mark.slow
    def test_packages_that_say_something_else_are_not_called_done(self, home, capfd):
        brought = home.parent / "brought"
        write_wheels(brought, agents=4)
        assert run(["setup", "smac", "--yes", "--from", str(brought)]) == 1
        assert "smac has other sizes for 3m: {'n_agents': 4" in capfd.readouterr().err
        assert [task.name for task in setup.list_tasks(sys.executable, brought)] == ["packages", "maps"]

    def test_an_interpreter_of_ones_own_is_left_alone(self, home, capfd, monkeypatch):
        monkeypatch.setenv(game_link.PYTHON_VARIABLE, sys.executable)
        assert run(["setup", "smac", "--yes", "--json", "--from", str(home.parent / "brought")]) == 1
        said = capfd.readouterr()
        assert json.loads(said.out)["done"] == ["maps"]
        assert not (home / "env").exists()

    def test_two_at_once_are_one_too_many(self, home, capfd):
        from app.cli.setup import _setup_lock

        with _setup_lock():
            assert run(["setup", "smac", "--yes", "--from", str(home.parent / "brought")]) == 2
        assert "Another emtc setup smac is running." in capfd.readouterr().err

    def test_a_folder_that_cannot_be_written_is_a_sentence(self, home, capfd):
        home.write_text("a file in the way")
        assert run(["setup", "smac", "--yes", "--from", str(home.parent / "brought")]) == 2
        assert "cannot be written" in capfd.readouterr().err

    def test_a_python_that_is_none_is_a_sentence(self, home, capfd):
        assert run(["setup", "smac", "--yes", "--python", "/no/python", "--from", str(home.parent / "brought")]) == 1
        assert "The environment cannot be made: /no/python cannot be started" in capfd.readouterr().err


@pytest.mark.slow
def test_the_index_has_what_the_packages_need_and_it_is_older_than_streamlits(home):
    """With the packages' own requirements from the index; they themselves are in public repositories only."""
    env = home / "env"
    setup.make_environment(sys.executable, env)
    pip = [str(env / "bin" / "python"), "-m", "pip"]
    done = subprocess.run(
        [*pip, "install", "--no-input", *setup.REQUIREMENTS],
        env=game_link.isolated_environ(),
        capture_output=True,
        check=False,
    )
    require("smac", done.returncode == 0, f"the index does not answer: {done.stderr.decode()[-200:]}")
    program = "import google.protobuf as p, pysc2.run_configs, s2clientprotocol.sc2api_pb2; print(p.__version__)"
    found = subprocess.run([str(env / "bin" / "python"), "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("3.20.")
