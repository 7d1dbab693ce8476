"""The game worker: runs one `StarCraft2Env` in a separate Python environment and replies to the trainer over a socket.

This file is started by its path, in an environment with numpy and the game's packages but without this project.
Therefore it may import only these and the standard library. The trainer imports it too, for the message format.

A message is a prefix (magic, length of the header, length of the payload), a JSON header and a payload of raw arrays.
The header lists the arrays in order, with types and shapes. Every request has one reply.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

PROTOCOL = 1
"""Increase it with every change of the messages: this file may be upgraded while a trainer is running."""

MAGIC = b"EMTC"
LONGEST_HEADER = 1 << 20  # bytes
LONGEST_PAYLOAD = 1 << 27  # bytes
CHECK = "--check"
"""Argument that makes this file print `check()` and exit."""
_PREFIX = struct.Struct(">4sII")
_GRACE_S = 5.0
"""Time between the end of the trainer and the kill of the worker and its game."""
_DTYPES = frozenset({"<f4", "|u1"})


class MessageError(Exception):
    """The received bytes are not a valid message."""


def send(channel: socket.socket, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send one message.

    Source: the message format of this module.

    Args:
        channel: The socket.
        header: Contents of the header; they must be JSON values.
        arrays: Arrays of the payload, any shape, float32 or uint8 [unit varies].
    """
    chunks = {} if arrays is None else {name: array.tobytes() for name, array in arrays.items()}
    if arrays:
        header = {**header, "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()]}
    text, payload = json.dumps(header, separators=(",", ":")).encode(), b"".join(chunks.values())
    channel.sendall(_PREFIX.pack(MAGIC, len(text), len(payload)) + text + payload)


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for one message and return its header and its payload.

    Raises:
        EOFError: If the other process has closed the socket.
        MessageError: If the received bytes are not a valid message.
    """
    magic, header_bytes, payload_bytes = _PREFIX.unpack(_read(channel, _PREFIX.size))
    if magic != MAGIC or header_bytes > LONGEST_HEADER or payload_bytes > LONGEST_PAYLOAD:
        raise MessageError(
            f"a message cannot begin with {magic!r} and contain {header_bytes:,} + {payload_bytes:,} bytes"
        )
    body = _read(channel, header_bytes + payload_bytes)
    try:
        header = json.loads(body[:header_bytes])
    except (ValueError, RecursionError) as error:
        raise MessageError(f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise MessageError(f"its header is {type(header).__name__}, not an object")
    return header, body[header_bytes:]


def unpack(header: Mapping[str, Any], payload: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the arrays of a message as views of its payload.

    Source: the message format of this module.

    Args:
        header: Header of the message.
        payload: Payload of the message.
        shapes: The expected arrays, name -> shape.

    Returns:
        Name -> array of the expected shape, float32 or uint8 [unit varies].

    Raises:
        MessageError: If a name, a type, a shape or the length of the payload differs from the expected one.
    """
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    offset = 0
    try:
        for name, dtype, shape in header["arrays"]:
            if dtype not in _DTYPES or tuple(shape) != shapes[name]:
                raise MessageError(f"its array {name} is {dtype} of {shape}, not of {shapes[name]}")
            count = int(np.prod(shapes[name]))
            arrays[name] = np.frombuffer(payload, dtype, count, offset).reshape(shapes[name])
            offset += arrays[name].nbytes
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f"its arrays are not the requested ones ({error!r})") from error
    names = [name for name, *_ in header["arrays"]]
    if sorted(names) != sorted(shapes) or offset != len(payload):
        raise MessageError(f"its arrays are {names} in {len(payload):,} bytes, not {sorted(shapes)}")
    return arrays


def _read(channel: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, n_read = memoryview(buffer), 0
    while n_read < size:
        count = channel.recv_into(view[n_read:])
        if not count:
            raise EOFError("the other process has closed the socket")
        n_read += count
    return bytes(buffer)


class Worker:
    """One game. `make`, `reset` and `step` process the trainer's requests and return header and arrays of the reply."""

    def __init__(self) -> None:
        self._env: Any = None
        self._launched = False

    def make(self, package: str, seed: int, arguments: dict[str, Any]) -> tuple[dict[str, Any], None]:
        """Construct the environment and return its sizes. The game starts at the first reset.

        Args:
            package: "smac" or "smacv2".
            seed: Seed of the game.
            arguments: Keyword arguments of the package's environment class.
        """
        self.close()
        random.seed(seed)
        self._env = _make_env(package, seed, arguments)
        info = self._env.get_env_info()
        sizes = {name: int(info[name]) for name in ("n_agents", "n_actions", "obs_shape", "state_shape")}
        limit, block = int(info["episode_limit"]), len(info.get("agent_features", ()))
        return {**sizes, "episode_limit": limit, "agent_block": block}, None

    def reset(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Start a battle. The first call starts the game.

        Source: SMAC's `StarCraft2Env.reset`.

        Returns:
            An empty header, and obs [N, O] [observation features], state [S] [state features] and avail [N, A], 0 or 1.
        """
        game = vars(self._env).get("env", self._env)  # SMACv2 wraps the game
        if self._launched and getattr(game, "_episode_count", 1) == 0:
            game._episode_count = 1  # with 0, reset() would start a second game
        self._env.reset()
        self._launched = True
        return {}, self._get_arrays()

    def step(self, actions: list[int]) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Step with one action per agent.

        Source: SMAC's `StarCraft2Env.step`.

        Args:
            actions: One action index per agent.

        Returns:
            Header, and arrays of the shapes of `reset`. The header contains reward, over, won and cut (by the time
            limit). If the game lost its connection and was restarted, the header contains only "lost" and the arrays
            are None.
        """
        reward, over, info = self._env.step(actions)
        if over and "battle_won" not in info:
            return {"lost": True}, None
        result = {"won": bool(over and info.get("battle_won")), "cut": bool(over and info.get("episode_limit"))}
        return {"reward": float(reward), "over": bool(over), **result}, self._get_arrays()

    def close(self) -> None:
        """Quit the game."""
        if self._env is not None and self._launched:
            self._env.close()
        self._env, self._launched = None, False

    def _get_arrays(self) -> dict[str, np.ndarray]:
        import numpy as np

        return {
            "obs": np.asarray(self._env.get_obs(), "<f4"),
            "state": np.asarray(self._env.get_state(), "<f4"),
            "avail": np.asarray(self._env.get_avail_actions(), "|u1"),
        }


def _make_env(package: str, seed: int, arguments: dict[str, Any]) -> Any:
    if package == "smac":
        return import_module("smac.env").StarCraft2Env(seed=seed, **arguments)
    import numpy as np

    distributions: Any = import_module("smacv2.env.starcraft2.distributions")
    streams = iter(np.random.SeedSequence(seed).spawn(64))
    # The package samples teams and positions from generators without a seed. Replace them by seeded ones.
    distributions.default_rng = lambda: np.random.default_rng(next(streams))
    wrapper = import_module("smacv2.env.starcraft2.wrapper").StarCraftCapabilityEnvWrapper
    return wrapper(seed=seed, **arguments)


def serve(channel: socket.socket) -> None:
    """Reply to requests until the trainer sends "close" or closes the socket."""
    worker = Worker()
    send(channel, {"protocol": PROTOCOL, "python": sys.version.split()[0]})
    try:
        while True:
            request, _ = receive(channel)
            if request.get("do") == "close":
                break
            send(channel, *_process_request(worker, request))
    except (EOFError, ConnectionError):
        pass
    finally:
        worker.close()


def _process_request(worker: Worker, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
    """Process a request and return header and arrays of the reply. An exception becomes the reply "error"."""
    try:
        command = request.pop("do", None)
        if command not in ("make", "reset", "step"):
            raise MessageError(f"the command {command!r} does not exist")
        return getattr(worker, command)(**request)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:600]}, None


def check() -> dict[str, Any]:
    """List which packages this interpreter has, without importing them.

    "starcraft" lists those of `smac` and `smacv2` that contain StarCraft II: the `smac` of the package index does not.
    """
    installed: dict[str, Any] = {name: find_spec(name) is not None for name in ("numpy", "pysc2", "smac", "smacv2")}
    return {**installed, "starcraft": [name for name in ("smac", "smacv2") if _is_starcraft(name)]}


def _is_starcraft(package: str) -> bool:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return any((Path(folder) / "env" / "starcraft2").is_dir() for folder in folders or ())


def _kill_after_parent(parent: int) -> None:
    """Wait until the trainer has ended, then kill this process and its game after a grace time."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(_GRACE_S)
    _signal_group(signal.SIGKILL)
    os._exit(1)


def _signal_group(signal_number: signal.Signals) -> None:
    """Send a signal to this process and its child processes, if this process leads its process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal_number)


def main() -> None:
    """Run the worker. The socket is this process's standard input."""
    own_folder = str(Path(__file__).resolve().parent)  # its modules must not hide installed packages
    sys.path[:] = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != own_folder]
    if CHECK in sys.argv:
        sys.stdout.write(json.dumps(check()) + "\n")
        return
    threading.Thread(target=_kill_after_parent, args=(os.getppid(),), daemon=True).start()
    channel = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)  # so that the game does not inherit the trainer's socket
    try:
        serve(channel)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _signal_group(signal.SIGTERM)  # for a game that has not quit


if __name__ == "__main__":
    main()
