"""Where StarCraft II's parts lie (its own interpreter, the game, the maps), and the trainer's end of a game worker.

What is missing of the parts is told here; bringing them is `emtc setup smac`. A worker is a process and a socket: one
request and one answer at a time.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from platformdirs import user_data_path

from emtc_core.envs.smac import worker
from emtc_core.envs.smac.worker import LONGEST_PAYLOAD, PROTOCOL, MessageError, receive, send, unpack
from emtc_core.errors import EnvUnavailableError

PYTHON_VARIABLE: Final = "EMTC_SMAC_PYTHON"
GAME_VARIABLE: Final = "SC2PATH"
WORKER: Final = Path(worker.__file__)
_KEPT_S, _PATIENCE_S = 5.0, 60.0


def home() -> Path:
    """Folder of the isolated environment and of what was downloaded for it."""
    return user_data_path("emtc-lab") / "smac"


def own_python() -> Path:
    """Interpreter of the environment that `emtc setup smac` makes."""
    return home() / "env" / "bin" / "python"


def find_python() -> Path:
    """Interpreter that runs the game worker."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named).expanduser() if named else own_python()


def game_folder() -> Path:
    """Folder of StarCraft II, where pysc2 looks for it, too."""
    return Path(os.environ.get(GAME_VARIABLE) or Path.home() / "StarCraftII").expanduser()


def find_maps() -> dict[str, Path]:
    """Find the map files of the game by their names."""
    return {path.stem: path for path in sorted((game_folder() / "Maps").rglob("*.SC2Map"))}


def isolated_environ() -> dict[str, str]:
    """Copy the process's environment without what would bring this project's packages into another interpreter."""
    ours = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {**{name: value for name, value in os.environ.items() if name not in ours}, "PYTHONNOUSERSITE": "1"}


def find_obstacle(package: str, map_file: str) -> str:
    """Look for the interpreter, the package, the game and the maps, in this order."""
    if sys.platform == "win32":
        return "its game worker needs Linux or macOS."
    return _why_not_python(package) or why_no_game() or _why_no_maps(map_file)


def why_no_game() -> str:
    """Sentence that the game is not where it is looked for; empty where it is."""
    folder = game_folder()
    if (folder / "Versions").is_dir():
        return ""
    return f"StarCraft II is not in {folder} ({GAME_VARIABLE})."


def _why_no_maps(map_file: str) -> str:
    maps = find_maps()
    if maps and (not map_file or map_file in maps):
        return ""
    missing = f"{map_file}.SC2Map is" if map_file and maps else "SMAC's maps are"
    return f"{missing} not in {game_folder() / 'Maps'}."


def _why_not_python(package: str) -> str:
    python = find_python()
    if not python.is_file():
        if PYTHON_VARIABLE in os.environ:
            return f"{PYTHON_VARIABLE} names {python}, which is not there."
        return f"it needs StarCraft II, whose isolated environment is not in {home() / 'env'}."
    return why_not_packages(python, package)


def why_not_packages(python: Path, package: str) -> str:
    """What an interpreter lacks to play `package`; empty where it lacks nothing."""
    found = _ask(python)
    if isinstance(found, str):
        return found
    if not found[package]:
        return f"the package {package} is not in the environment of {python}."
    if package not in found["starcraft"]:
        return f"{package} in the environment of {python} is the hyperparameter optimiser of that name."
    missing = next((name for name in ("pysc2", "numpy") if not found[name]), None)
    return f"the package {missing} is not in the environment of {python}." if missing else ""


def _ask(python: Path) -> dict[str, Any] | str:
    """Ask an interpreter what it has; the answer is kept for some seconds, as pages ask for every map."""
    known = _ANSWERS.get(python)
    if known is None or time.monotonic() - known[0] > _KEPT_S:
        known = _ANSWERS[python] = (time.monotonic(), _run_check(python))
    return known[1]


_ANSWERS: dict[Path, tuple[float, dict[str, Any] | str]] = {}


def _run_check(python: Path) -> dict[str, Any] | str:
    command = [str(python), str(WORKER), worker.CHECK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_PATIENCE_S, env=isolated_environ()
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return f"the interpreter {python} does not answer ({type(error).__name__})."


PATIENCE_S = 300.0
"""For one answer: a launch of the game on a busy machine takes a minute, a step milliseconds."""
GRACE_S = 10.0
Arrays = Mapping[str, NDArray[Any]]


class LostWorkerError(EnvUnavailableError):
    """The worker died, went silent or spoke nonsense; its game is gone, another may be started."""


@dataclass(frozen=True)
class Play:
    """What is played: a package of the isolated environment and the arguments of its environment."""

    package: str
    map: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Step:
    """What one battle shows after a step."""

    reward: float
    over: bool
    won: bool
    cut: bool
    """Whether the time limit ended it."""
    arrays: Arrays


class GameLink:
    """One worker, started at once; requests are sent first and their answers taken later, so that games overlap."""

    def __init__(self, python: Path, play: Play) -> None:
        self._play = play
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(PATIENCE_S)
        with theirs:
            try:
                self._process = _spawn(python, theirs)
            except EnvUnavailableError:
                self._channel.close()
                raise

    def greet(self) -> None:
        """Wait for the worker's first word.

        Raises:
            LostWorkerError: If it ended before.
            EnvUnavailableError: If it speaks another version of the protocol.
        """
        hello, _ = self._receive()
        if hello.get("protocol") != PROTOCOL:
            self.kill()
            raise EnvUnavailableError(
                f"The game worker speaks version {hello.get('protocol')} of its protocol and this process version "
                f"{PROTOCOL}: EMTC Lab was changed while it ran. Start or resume the run anew.",
                reason="other_protocol",
                subject=hello.get("protocol"),
            )

    def ask_to_make(self, seed: int) -> None:
        """Ask for the environment, whose game starts with its first reset."""
        self._send({"do": "make", "package": self._play.package, "seed": seed, "arguments": self._play.arguments})

    def ask_to_reset(self) -> None:
        """Ask for a new battle."""
        self._send({"do": "reset"})

    def ask_to_step(self, actions: Sequence[int]) -> None:
        """Ask for a step."""
        self._send({"do": "step", "actions": actions})

    def take_sizes(self) -> dict[str, int]:
        """Take the answer to `ask_to_make`."""
        header, _ = self._take("be made")
        names = ("n_agents", "n_actions", "obs_shape", "state_shape", "episode_limit", "agent_block")
        try:
            sizes = {name: int(header[name]) for name in names}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._nonsense(f"its sizes are {header}") from error
        n, obs, state, n_actions = (sizes[name] for name in ("n_agents", "obs_shape", "state_shape", "n_actions"))
        if min(n, obs, state, n_actions) < 1 or n * (4 * obs + n_actions) + 4 * state > LONGEST_PAYLOAD:
            raise self._nonsense(f"its sizes are {sizes}")
        self._shapes = {"obs": (n, obs), "state": (state,), "avail": (n, n_actions)}
        return sizes

    def take_views(self) -> Arrays:
        """Take the answer to `ask_to_reset`."""
        return self._unpack(*self._take("start a battle"))

    def take_step(self) -> Step | None:
        """Take the answer to `ask_to_step`; None where the game's connection broke and it was started anew."""
        header, payload = self._take("go on")
        if header.get("lost"):
            return None
        arrays = self._unpack(header, payload)
        try:
            reward = float(header["reward"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._nonsense(f"its step is {header}") from error
        over, won, cut = (header.get(name) is True for name in ("over", "won", "cut"))
        return Step(reward, over, over and won, over and cut, arrays)

    def _unpack(self, header: dict[str, Any], payload: bytes) -> Arrays:
        try:
            return unpack(header, payload, self._shapes)
        except MessageError as error:
            raise self._nonsense(str(error)) from error

    def close(self) -> None:
        """Ask the worker to quit its game and to end; do not wait."""
        with suppress(OSError):
            send(self._channel, {"do": "close"})
        self._channel.close()

    def kill(self, grace_s: float = 0.0) -> int | None:
        """End the worker and whatever game it left; return its exit code."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            send(self._channel, request)
        except OSError as error:
            raise self._lost() from error

    def _take(self, what: str) -> tuple[dict[str, Any], bytes]:
        header, payload = self._receive()
        if "error" in header:
            said = str(header["error"])[:600].rstrip(".")
            raise EnvUnavailableError(
                f"{self._play.package} {self._play.map} could not {what}: {said}. What led to it is in the log.",
                reason="worker_failed",
                subject=what,
            )
        return header, payload

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            return receive(self._channel)
        except TimeoutError as error:
            self.kill()
            raise LostWorkerError(
                f"The game worker was silent for {PATIENCE_S:.0f} seconds and was ended.",
                reason="timeout",
                subject=PATIENCE_S,
            ) from error
        except (EOFError, OSError) as error:
            raise self._lost() from error
        except MessageError as error:
            raise self._nonsense(str(error)) from error

    def _lost(self) -> LostWorkerError:
        code = self.kill(grace_s=1.0)
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return LostWorkerError(f"The game worker ended {how}.", reason="ended", subject=how)

    def _nonsense(self, why: str) -> LostWorkerError:
        self.kill()
        return LostWorkerError(
            f"The game worker sent what is no message of its protocol: {why[:300]}.",
            reason="protocol",
            subject=why[:300],
        )


def _spawn(python: Path, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a worker in a group of its own, so that the game it starts can be ended with it; it speaks into the log."""
    command = [str(python), str(WORKER)]
    try:
        return subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=2, env=isolated_environ(), start_new_session=True
        )
    except OSError as error:
        raise EnvUnavailableError(
            f"The game worker's interpreter {python} cannot be started: {error}.",
            reason="not_startable",
            subject=python,
        ) from error
