"""Locations of StarCraft II's parts (Python interpreter, game, maps), and the trainer's connection to a game worker.

This module checks which parts are missing; `smac.install` installs them. A worker is a process with a socket. It
processes one request at a time and sends one reply to each.
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
REPLY_TIMEOUT_S = 300.0
"""Timeout of one reply. Starting a game on a busy machine takes a minute, a step takes milliseconds."""
CLOSE_TIMEOUT_S = 10.0
"""Time for a worker to end by itself after `close`."""
_CHECK_TIMEOUT_S = 60.0
_CACHE_S = 5.0
"""Time for which the check of an interpreter is cached, because pages check every map."""

Arrays = Mapping[str, NDArray[Any]]

_check_results: dict[Path, tuple[float, dict[str, Any] | str]] = {}
"""Interpreter -> time of its check [s] and the result of `_run_check`."""


class LostWorkerError(EnvUnavailableError):
    """The worker has ended, sent no reply in time or sent an invalid one. Its game has ended; a new one can start."""


def home() -> Path:
    """Get the folder of the separate Python environment and of downloaded files."""
    return user_data_path("emtc-lab") / "smac"


def default_python() -> Path:
    """Get the interpreter of the environment that `smac.install` makes."""
    return home() / "env" / "bin" / "python"


def find_python() -> Path:
    """Get the interpreter that runs the game worker: the one in EMTC_SMAC_PYTHON, or `default_python`."""
    path = os.environ.get(PYTHON_VARIABLE)
    return Path(path).expanduser() if path else default_python()


def game_folder() -> Path:
    """Get the folder of StarCraft II; pysc2 uses the same one."""
    return Path(os.environ.get(GAME_VARIABLE) or Path.home() / "StarCraftII").expanduser()


def find_maps() -> dict[str, Path]:
    """Find the game's map files: name -> path."""
    return {path.stem: path for path in sorted((game_folder() / "Maps").rglob("*.SC2Map"))}


def isolated_environ() -> dict[str, str]:
    """Copy the environment variables without those that let another interpreter import this project's packages."""
    removed = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {**{name: value for name, value in os.environ.items() if name not in removed}, "PYTHONNOUSERSITE": "1"}


def find_unavailable_reason(package: str, map_file: str) -> str:
    """Check the interpreter, the package, the game and the maps, in this order.

    Args:
        package: "smac" or "smacv2".
        map_file: Name of the required map file; "" requires any map.

    Returns:
        A sentence about the first missing part; "" if nothing is missing.
    """
    if sys.platform == "win32":
        return "its game worker needs Linux or macOS."
    python = find_python()
    if not python.is_file():
        if PYTHON_VARIABLE in os.environ:
            return f"{PYTHON_VARIABLE} is {python}, which does not exist."
        return f"its separate Python environment {home() / 'env'} does not exist."
    if missing := find_package_obstacle(python, package) or find_game_obstacle():
        return missing
    maps = find_maps()
    if maps and (not map_file or map_file in maps):
        return ""
    missing_maps = f"{map_file}.SC2Map is" if map_file and maps else "SMAC's maps are"
    return f"{missing_maps} not in {game_folder() / 'Maps'}."


def find_game_obstacle() -> str:
    """Return a sentence if StarCraft II is not in its folder; "" if it is."""
    folder = game_folder()
    if (folder / "Versions").is_dir():
        return ""
    return f"StarCraft II is not in {folder} ({GAME_VARIABLE})."


def find_package_obstacle(python: Path, package: str) -> str:
    """Return a sentence if an interpreter lacks a package that `package` needs; "" if it has all."""
    time_and_result = _check_results.get(python)
    if time_and_result is None or time.monotonic() - time_and_result[0] > _CACHE_S:
        time_and_result = _check_results[python] = (time.monotonic(), _run_check(python))
    installed = time_and_result[1]
    if isinstance(installed, str):
        return installed
    if not installed[package]:
        return f"the package {package} is not in the environment of {python}."
    if package not in installed["starcraft"]:
        return f"{package} in the environment of {python} is the hyperparameter optimizer with the same name."
    missing = next((name for name in ("pysc2", "numpy") if not installed[name]), None)
    return f"the package {missing} is not in the environment of {python}." if missing else ""


def _run_check(python: Path) -> dict[str, Any] | str:
    """Run `worker.check` in an interpreter. Returns its result, or a sentence why it failed."""
    command = [str(python), str(WORKER), worker.CHECK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_CHECK_TIMEOUT_S, env=isolated_environ()
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return f"the interpreter {python} cannot run the check ({type(error).__name__})."


@dataclass(frozen=True)
class GameSpec:
    """The environment that a worker makes: a package, a map and the constructor arguments."""

    package: str
    map: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class GameStep:
    """A worker's reply to a step. Source: SMAC's `StarCraft2Env.step`."""

    reward: float  # [reward]
    over: bool
    won: bool
    truncated: bool
    """Whether the time limit ended the battle."""
    arrays: Arrays  # [unit varies] obs [N, O], state [S], avail [N, A]; see `GameLink.receive_arrays`


class GameLink:
    """The connection to one worker, whose process starts at once.

    Requests and replies are separate calls. So several workers can process their requests at the same time.
    """

    def __init__(self, python: Path, play: GameSpec) -> None:
        self._play = play
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._channel, worker_channel = socket.socketpair()
        self._channel.settimeout(REPLY_TIMEOUT_S)
        with worker_channel:
            try:
                # In a new session, the worker and its game can be killed as one group. Its output goes to the log.
                self._process = subprocess.Popen(
                    [str(python), str(WORKER)],
                    stdin=worker_channel.fileno(),
                    stdout=2,
                    env=isolated_environ(),
                    start_new_session=True,
                )
            except OSError as error:
                self._channel.close()
                raise EnvUnavailableError(
                    f"The game worker's interpreter {python} cannot be started: {error}."
                ) from error

    def receive_hello(self) -> None:
        """Wait until the worker has started and check its protocol version.

        Raises:
            LostWorkerError: If the worker ended before.
            EnvUnavailableError: If it uses another protocol version.
        """
        hello, _ = self._receive()
        if hello.get("protocol") != PROTOCOL:
            self.kill()
            raise EnvUnavailableError(
                f"The game worker uses protocol version {hello.get('protocol')} and this process uses version "
                f"{PROTOCOL}: EMTC Lab was changed while it was running. Start or resume the run again."
            )

    def request_make(self, seed: int) -> None:
        """Request the environment. Its game starts at the first reset."""
        self._send({"do": "make", "package": self._play.package, "seed": seed, "arguments": self._play.arguments})

    def request_reset(self) -> None:
        """Request a new battle."""
        self._send({"do": "reset"})

    def request_step(self, actions: Sequence[int]) -> None:
        """Request a step with one action per agent."""
        self._send({"do": "step", "actions": actions})

    def receive_sizes(self) -> dict[str, int]:
        """Receive the reply to `request_make`: the sizes of the environment.

        Raises:
            LostWorkerError: If the worker has ended, or its reply is not valid.
        """
        header, _ = self._receive_reply("be made")
        names = ("n_agents", "n_actions", "obs_shape", "state_shape", "episode_limit", "agent_block")
        try:
            sizes = {name: int(header[name]) for name in names}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._invalid_message(f"its sizes are {header}") from error
        n, obs, state, n_actions = (sizes[name] for name in ("n_agents", "obs_shape", "state_shape", "n_actions"))
        if min(n, obs, state, n_actions) < 1 or n * (4 * obs + n_actions) + 4 * state > LONGEST_PAYLOAD:
            raise self._invalid_message(f"its sizes are {sizes}")
        self._shapes = {"obs": (n, obs), "state": (state,), "avail": (n, n_actions)}
        return sizes

    def receive_arrays(self) -> Arrays:
        """Receive the reply to `request_reset`.

        Source: SMAC's `StarCraft2Env`.

        Returns:
            obs [N, O] float32 [observation features], state [S] float32 [state features], avail [N, A] uint8, 0 or 1.
        """
        return self._unpack(*self._receive_reply("start a battle"))

    def receive_step(self) -> GameStep | None:
        """Receive the reply to `request_step`; None if the game lost its connection and was restarted.

        Raises:
            LostWorkerError: If the worker has ended, or its reply is not valid.
        """
        header, payload = self._receive_reply("continue")
        if header.get("lost"):
            return None
        arrays = self._unpack(header, payload)
        try:
            reward = float(header["reward"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._invalid_message(f"its step is {header}") from error
        over, won, truncated = (header.get(name) is True for name in ("over", "won", "cut"))
        return GameStep(reward, over, over and won, over and truncated, arrays)

    def close(self) -> None:
        """Request that the worker quits its game and ends. Does not wait."""
        with suppress(OSError):
            send(self._channel, {"do": "close"})
        self._channel.close()

    def kill(self, grace_s: float = 0.0) -> int | None:
        """Wait `grace_s` for the worker to end, then kill it and its game. Returns the worker's exit code."""
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
            raise self._lost_worker() from error

    def _receive_reply(self, purpose: str) -> tuple[dict[str, Any], bytes]:
        """Receive a reply. `purpose` completes the message "the map could not …" of an error that it reports."""
        header, payload = self._receive()
        if "error" in header:
            reason = str(header["error"])[:600].rstrip(".")
            raise EnvUnavailableError(
                f"{self._play.package} {self._play.map} could not {purpose}: {reason}. The log contains the details."
            )
        return header, payload

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            return receive(self._channel)
        except TimeoutError as error:
            self.kill()
            raise LostWorkerError(
                f"The game worker sent no reply for {REPLY_TIMEOUT_S:.0f} seconds and was killed."
            ) from error
        except (EOFError, OSError) as error:
            raise self._lost_worker() from error
        except MessageError as error:
            raise self._invalid_message(str(error)) from error

    def _unpack(self, header: dict[str, Any], payload: bytes) -> Arrays:
        try:
            return unpack(header, payload, self._shapes)
        except MessageError as error:
            raise self._invalid_message(str(error)) from error

    def _lost_worker(self) -> LostWorkerError:
        code = self.kill(grace_s=1.0)
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return LostWorkerError(f"The game worker ended {how}.")

    def _invalid_message(self, reason: str) -> LostWorkerError:
        self.kill()
        return LostWorkerError(f"The game worker sent an invalid message: {reason[:300]}.")
