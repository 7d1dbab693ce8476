"""The game worker: holds one `StarCraft2Env` in an interpreter of its own and answers the trainer over a socket.

This file is run by its path in another environment, which has numpy and the game's packages and nothing of this
project; it must import nothing but them and the standard library. The trainer imports it, too, for the messages.

A message is a prefix (magic, length of the header, length of the payload), a header in JSON and a payload of raw
arrays, which the header names in order with their types and shapes. Every request has one answer.
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
"""Raised with every change of the messages: a trainer may outlive an upgrade of the file that it starts anew."""

MAGIC = b"EMTC"
LONGEST_HEADER = 1 << 20
LONGEST_PAYLOAD = 1 << 27
CHECK = "--check"
_PREFIX = struct.Struct(">4sII")
_GRACE_S = 5.0
_DTYPES = frozenset({"<f4", "|u1"})


class MessageError(Exception):
    """The bytes are not a message of this protocol."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def send(channel: socket.socket, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send one message."""
    chunks = {} if arrays is None else {name: array.tobytes() for name, array in arrays.items()}
    if arrays:
        header = {**header, "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()]}
    text, payload = json.dumps(header, separators=(",", ":")).encode(), b"".join(chunks.values())
    channel.sendall(_PREFIX.pack(MAGIC, len(text), len(payload)) + text + payload)


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for one message: its header and its payload.

    Raises:
        EOFError: If the other side has gone.
        MessageError: If what came is no message.
    """
    magic, header_bytes, payload_bytes = _PREFIX.unpack(_read(channel, _PREFIX.size))
    if magic != MAGIC or header_bytes > LONGEST_HEADER or payload_bytes > LONGEST_PAYLOAD:
        raise MessageError(
            f"a message cannot begin with {magic!r} and hold {header_bytes:,} + {payload_bytes:,} bytes",
            reason="prefix",
        )
    body = _read(channel, header_bytes + payload_bytes)
    try:
        header = json.loads(body[:header_bytes])
    except (ValueError, RecursionError) as error:
        raise MessageError(f"its header is not JSON ({error})", reason="json") from error
    if not isinstance(header, dict):
        raise MessageError(f"its header is {type(header).__name__}, not an object", reason="header")
    return header, body[header_bytes:]


def unpack(header: Mapping[str, Any], payload: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """View the arrays of a message, which must be exactly those of `shapes`.

    Raises:
        MessageError: If a name, a type, a shape or the length of the payload is another.
    """
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    offset = 0
    try:
        for name, dtype, shape in header["arrays"]:
            if dtype not in _DTYPES or tuple(shape) != shapes[name]:
                raise MessageError(f"its array {name} is {dtype} of {shape}, not of {shapes[name]}", reason="arrays")
            count = int(np.prod(shapes[name]))
            arrays[name] = np.frombuffer(payload, dtype, count, offset).reshape(shapes[name])
            offset += arrays[name].nbytes
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f"its arrays are not those that were asked for ({error!r})", reason="arrays") from error
    named = [name for name, *_ in header["arrays"]]
    if sorted(named) != sorted(shapes) or offset != len(payload):
        raise MessageError(f"its arrays are {named} in {len(payload):,} bytes, not {sorted(shapes)}", reason="arrays")
    return arrays


def _read(channel: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        got = channel.recv_into(view[done:])
        if not got:
            raise EOFError("the other side has gone")
        done += got
    return bytes(buffer)


class Worker:
    """One game and the answers to the trainer's requests."""

    def __init__(self) -> None:
        self._env: Any = None
        self._launched = False

    def make(self, package: str, seed: int, arguments: dict[str, Any]) -> tuple[dict[str, Any], None]:
        """Construct the environment, which starts no game yet, and tell its sizes."""
        self.close()
        random.seed(seed)
        self._env = _construct(package, seed, arguments)
        info = self._env.get_env_info()
        sizes = {name: int(info[name]) for name in ("n_agents", "n_actions", "obs_shape", "state_shape")}
        limit, block = int(info["episode_limit"]), len(info.get("agent_features", ()))
        return {**sizes, "episode_limit": limit, "agent_block": block}, None

    def reset(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Start a battle; the first one launches the game."""
        game = vars(self._env).get("env", self._env)  # SMACv2 wraps the game
        if self._launched and getattr(game, "_episode_count", 1) == 0:
            game._episode_count = 1  # or reset() would launch a second game
        self._env.reset()
        self._launched = True
        return {}, self._look()

    def step(self, actions: list[int]) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Give orders; without arrays the game's connection broke and it was started anew."""
        reward, over, info = self._env.step(actions)
        if over and "battle_won" not in info:
            return {"lost": True}, None
        result = {"won": bool(over and info.get("battle_won")), "cut": bool(over and info.get("episode_limit"))}
        return {"reward": float(reward), "over": bool(over), **result}, self._look()

    def close(self) -> None:
        """Quit the game."""
        if self._env is not None and self._launched:
            self._env.close()
        self._env, self._launched = None, False

    def _look(self) -> dict[str, np.ndarray]:
        import numpy as np

        return {
            "obs": np.asarray(self._env.get_obs(), "<f4"),
            "state": np.asarray(self._env.get_state(), "<f4"),
            "avail": np.asarray(self._env.get_avail_actions(), "|u1"),
        }


def _construct(package: str, seed: int, arguments: dict[str, Any]) -> Any:
    if package == "smac":
        return import_module("smac.env").StarCraft2Env(seed=seed, **arguments)
    import numpy as np

    distributions: Any = import_module("smacv2.env.starcraft2.distributions")
    streams = iter(np.random.SeedSequence(seed).spawn(64))
    # The package draws teams and places from generators without a seed; they take ours.
    distributions.default_rng = lambda: np.random.default_rng(next(streams))
    wrapper = import_module("smacv2.env.starcraft2.wrapper").StarCraftCapabilityEnvWrapper
    return wrapper(seed=seed, **arguments)


def serve(channel: socket.socket) -> None:
    """Answer requests until the trainer closes or goes."""
    worker = Worker()
    send(channel, {"protocol": PROTOCOL, "python": sys.version.split()[0]})
    try:
        while True:
            request, _ = receive(channel)
            if request.get("do") == "close":
                break
            send(channel, *_answer(worker, request))
    except (EOFError, ConnectionError):
        pass
    finally:
        worker.close()


def _answer(worker: Worker, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
    try:
        do = request.pop("do", None)
        if do not in ("make", "reset", "step"):
            raise MessageError(f"nobody can {do!r}", reason="request")
        return getattr(worker, do)(**request)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:600]}, None


def check() -> dict[str, Any]:
    """What this interpreter has, importing none of it: `smac` on the package index is another package."""
    found: dict[str, Any] = {name: find_spec(name) is not None for name in ("numpy", "pysc2", "smac", "smacv2")}
    return {**found, "starcraft": [name for name in ("smac", "smacv2") if _is_starcraft(name)]}


def _is_starcraft(package: str) -> bool:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return any((Path(folder) / "env" / "starcraft2").is_dir() for folder in folders or ())


def _end_with_parent(parent: int) -> None:
    """End this process, and the game in its group, some seconds after the trainer has gone, whatever it is doing."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(_GRACE_S)
    _end_group(signal.SIGKILL)
    os._exit(1)


def _end_group(how: signal.Signals) -> None:
    """End what this process started, if the group is its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, how)


def main() -> None:
    """Serve the socket that is this process's standard input."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != here]
    if CHECK in sys.argv:
        sys.stdout.write(json.dumps(check()) + "\n")
        return
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the game must not hold the trainer's socket
    try:
        serve(channel)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_group(signal.SIGTERM)  # a game that did not quit when it was asked to


if __name__ == "__main__":
    main()
