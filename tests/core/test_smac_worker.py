"""The messages between trainer and game worker, and how each ends when the other goes."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.envs.smac import worker
from emtc_core.envs.smac.game_link import GameLink, GameSpec, LostWorkerError
from emtc_core.envs.smac.worker import MAGIC, PROTOCOL, MessageError, receive, send, unpack
from emtc_core.errors import EnvUnavailableError
from tests.core.smac_machine import Machine, wait_until_gone

VIEWS = [["obs", "<f4", [2, 4]], ["state", "<f4", [5]], ["avail", "|u1", [2, 3]]]
SIZES = {"n_agents": 2, "n_actions": 3, "obs_shape": 4, "state_shape": 5, "episode_limit": 6, "agent_block": 0}
PREFIX = struct.Struct(">4sII")


def message(header: dict, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return PREFIX.pack(MAGIC, len(text), len(payload)) + text + payload


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    one.settimeout(10)
    other.settimeout(10)
    with one, other:
        yield one, other


class TestMessages:
    @given(st.binary(max_size=40), st.integers(0, 5), st.integers(1, 30))
    def test_a_received_message_equals_the_sent_one(self, text, rows, columns):
        one, other = socket.socketpair()
        with one, other:
            array = np.arange(rows * columns, dtype="<f4").reshape(rows, columns)
            send(one, {"said": text.hex()}, {"obs": array, "avail": np.ones(3, "|u1")})
            header, payload = receive(other)
            arrays = unpack(header, payload, {"obs": (rows, columns), "avail": (3,)})
        assert header["said"] == text.hex()
        np.testing.assert_array_equal(arrays["obs"], array)

    def test_a_message_larger_than_the_socket_buffer_is_received(self, pair):
        one, other = pair
        array = np.random.default_rng(0).random((500, 1000), np.float32)
        thread = threading.Thread(target=send, args=(one, {}, {"obs": array}))
        thread.start()
        np.testing.assert_array_equal(unpack(*receive(other), {"obs": (500, 1000)})["obs"], array)
        thread.join()

    @pytest.mark.parametrize(
        ("sent", "word"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "begin"),
            (PREFIX.pack(MAGIC, 0xFFFFFFFF, 0), "begin"),
            (PREFIX.pack(MAGIC, 2, 0xFFFFFFFF) + b"{}", "begin"),
            (PREFIX.pack(MAGIC, 3, 0) + b"{1}", "JSON"),
            (PREFIX.pack(MAGIC, 3, 0) + b"\xff\xfe{", "JSON"),
            (PREFIX.pack(MAGIC, 2, 0) + b"[]", "object"),
            (PREFIX.pack(MAGIC, 200_000, 0) + b"[" * 200_000, "JSON"),
        ],
    )
    def test_other_bytes_than_a_message_are_refused(self, pair, sent, word):
        one, other = pair
        one.sendall(sent)
        with pytest.raises(MessageError, match=word):
            receive(other)

    @pytest.mark.parametrize(
        ("arrays", "length"),
        [
            *(([["obs", "<f4", [2, 3]]], length) for length in (0, 23, 25)),
            (None, 24),
            (7, 24),
            ([], 0),
            ([["obs", "<f4", [2, 3]], ["more", "<f4", [1]]], 28),
            ([["obs", "<f4", [3, 2]]], 24),
            ([["obs", "|O8", [2, 3]]], 48),
            ([["obs", "<f8", [2, 3]]], 48),
            ([["obs", ["<f4"], [2, 3]]], 24),
            ([["obs", "<f4"]], 24),
            ([["obs", "<f4", 6]], 24),
            ([["obs", "<f4", [2, 3]], ["obs", "<f4", [2, 3]]], 48),
        ],
    )
    def test_arrays_that_were_not_asked_for_are_refused(self, arrays, length):
        header = {} if arrays is None else {"arrays": arrays}
        with pytest.raises(MessageError):
            unpack(header, bytes(length), {"obs": (2, 3)})


class TestInvalidWorkers:
    """The trainer's end, with a program in the worker's place that says something else."""

    def link(self, folder: Path, *answers: bytes) -> GameLink:
        """Start a program that gives one answer after each request, and the first at once."""
        program = folder / "stranger.py"
        program.write_text(
            "import os, socket\n"
            "channel = socket.socket(fileno=os.dup(0))\n"
            f"for answer in {list(answers)!r}:\n"
            "    channel.sendall(answer)\n"
            "    channel.recv(1 << 20)\n"
        )
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
        python.chmod(0o755)
        return GameLink(python, GameSpec("smac", "3m"))

    def test_another_version_is_refused_with_the_next_step(self, tmp_path):
        link = self.link(tmp_path, message({"protocol": PROTOCOL + 1}))
        with pytest.raises(EnvUnavailableError, match=str(PROTOCOL + 1)):
            link.receive_hello()
        assert link.kill() is not None

    @pytest.mark.parametrize(
        "replies",
        [
            [b"Python 2.7 is here\n"],
            [message({"protocol": PROTOCOL}), message({**SIZES, "n_agents": "many"})],
            [message({"protocol": PROTOCOL}), message({**SIZES, "state_shape": -1})],
            [message({"protocol": PROTOCOL}), message({**SIZES, "obs_shape": 1 << 40})],
            [message({"protocol": PROTOCOL}), message(SIZES), message({"arrays": VIEWS}, bytes(58))],
            [message({"protocol": PROTOCOL}), message(SIZES), message({"arrays": [], "reward": 1.0})],
        ],
        ids=["hello", "size", "negative size", "huge size", "step without a reward", "step without its arrays"],
    )
    def test_an_invalid_reply_is_a_lost_worker(self, tmp_path, replies):
        def play(link: GameLink) -> None:
            link.receive_hello()
            link.request_make(0)
            link.receive_sizes()
            link.request_step([0, 0])
            link.receive_step()

        with pytest.raises(LostWorkerError, match="invalid message"):
            play(self.link(tmp_path, *replies))


class TestEndOfTheTrainer:
    @pytest.mark.parametrize("does", ["child", pytest.param("hang", marks=pytest.mark.slow)])
    def test_worker_and_game_end_after_a_killed_trainer(self, ready: Machine, does):
        program = (
            "import sys, numpy as np, threading\n"
            "from emtc_core.config.train import EnvConfig\n"
            "from emtc_core.envs.registry import make_env\n"
            "env = make_env(EnvConfig(name='smac', map='3m'), n_envs=2)\n"
            "seen = env.reset(0)\n"
            "print(*[game._process.pid for game in env._games], flush=True)\n"
            "env.step(seen.avail.argmax(axis=-1))\n"
            "sys.stdin.read()\n"
        )
        environ = {**os.environ, "SMAC_DOUBLE_DOES": does}
        trainer = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        assert trainer.stdout is not None
        workers = [int(word) for word in trainer.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.5)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        assert all(wait_until_gone(pid, 40) for pid in workers)
        assert len(ready.events("child")) == (2 if does == "child" else 0)
        assert all(wait_until_gone(int(event[-1])) for event in ready.events("child"))


def test_the_worker_imports_nothing_but_the_standard_library_and_numpy():
    program = (
        "import sys, runpy\n"
        f"runpy.run_path({worker.__file__!r}, run_name='worker')\n"
        "foreign = {'emtc_core', 'numpy', 'pydantic', 'platformdirs'} & {name.split('.')[0] for name in sys.modules}\n"
        "assert not foreign, foreign\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
