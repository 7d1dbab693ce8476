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


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    one.settimeout(10)
    other.settimeout(10)
    with one, other:
        yield one, other


class TestMessages:
    @given(st.binary(max_size=40), st.integers(0, 5), st.integers(1, 30))
    def test_a_message_comes_out_as_it_went_in(self, text, rows, columns):
        one, other = socket.socketpair()
        with one, other:
            array = np.arange(rows * columns, dtype="<f4").reshape(rows, columns)
            send(one, {"said": text.hex()}, {"obs": array, "avail": np.ones(3, "|u1")})
            header, payload = receive(other)
            arrays = unpack(header, payload, {"obs": (rows, columns), "avail": (3,)})
        assert header["said"] == text.hex()
        np.testing.assert_array_equal(arrays["obs"], array)

    def test_a_large_one_comes_in_pieces(self, pair):
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
    def test_what_is_none_is_refused_before_it_is_read(self, pair, sent, word):
        one, other = pair
        one.sendall(sent)
        with pytest.raises(MessageError, match=word):
            receive(other)

    @pytest.mark.parametrize("sent", [b"", b"EM", PREFIX.pack(MAGIC, 100, 0) + b"{"])
    def test_one_that_stops_in_the_middle_is_an_end(self, pair, sent):
        one, other = pair
        one.sendall(sent)
        one.close()
        with pytest.raises(EOFError):
            receive(other)

    @pytest.mark.parametrize(
        "arrays",
        [
            None,
            7,
            [],
            [["obs", "<f4", [2, 3]], ["more", "<f4", [1]]],
            [["obs", "<f4", [3, 2]]],
            [["obs", "|O8", [2, 3]]],
            [["obs", "<f8", [2, 3]]],
            [["obs", ["<f4"], [2, 3]]],
            [["obs", "<f4"]],
            [["obs", "<f4", 6]],
            [["obs", "<f4", [2, 3]], ["obs", "<f4", [2, 3]]],
        ],
    )
    @pytest.mark.parametrize("length", [0, 23, 24, 48])
    def test_arrays_that_were_not_asked_for_are_refused(self, arrays, length):
        header = {} if arrays is None else {"arrays": arrays}
        with pytest.raises(MessageError):
            unpack(header, bytes(length), {"obs": (2, 3)})

    def test_a_payload_of_another_length_is_refused(self):
        for length in (0, 23, 25):
            with pytest.raises(MessageError):
                unpack({"arrays": [["obs", "<f4", [2, 3]]]}, bytes(length), {"obs": (2, 3)})


class TestStrangersForAWorker:
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

    @staticmethod
    def message(header: dict, payload: bytes = b"") -> bytes:
        text = json.dumps(header).encode()
        return PREFIX.pack(MAGIC, len(text), len(payload)) + text + payload

    def test_another_version_is_refused_with_the_next_step(self, tmp_path):
        link = self.link(tmp_path, self.message({"protocol": PROTOCOL + 1}))
        with pytest.raises(EnvUnavailableError, match=str(PROTOCOL + 1)):
            link.receive_hello()
        assert link.kill() is not None

    def test_one_that_speaks_no_protocol_is_ended(self, tmp_path):
        link = self.link(tmp_path, b"Python 2.7 is here\n")
        with pytest.raises(LostWorkerError, match="invalid message"):
            link.receive_hello()

    @pytest.mark.parametrize(
        "sizes",
        [
            {},
            {**SIZES, "n_agents": "many"},
            {**SIZES, "obs_shape": None},
            {**SIZES, "state_shape": -1},
            {**SIZES, "n_agents": 1e300},
            {**SIZES, "obs_shape": 1 << 40},
        ],
    )
    def test_sizes_must_be_numbers(self, tmp_path, sizes):
        link = self.link(tmp_path, self.message({"protocol": PROTOCOL}), self.message(sizes))
        link.receive_hello()
        link.request_make(0)
        with pytest.raises(LostWorkerError, match="invalid message"):
            link.receive_sizes()

    @pytest.mark.parametrize(
        ("header", "payload"),
        [
            ({}, b""),
            ({"arrays": []}, b""),
            ({"arrays": VIEWS}, bytes(58)),
            ({"arrays": VIEWS, "reward": "x"}, bytes(58)),
        ],
    )
    def test_a_step_must_have_its_arrays_and_its_reward(self, tmp_path, header, payload):
        hello, sizes = self.message({"protocol": PROTOCOL}), self.message(SIZES)
        link = self.link(tmp_path, hello, sizes, self.message(header, payload))
        link.receive_hello()
        link.request_make(0)
        link.receive_sizes()
        link.request_step([0, 0])
        with pytest.raises(LostWorkerError, match="invalid message"):
            link.receive_step()


class TestTheWorkersEnd:
    def start(self, machine: Machine) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        with theirs:
            process = subprocess.Popen([machine.python, worker.__file__], stdin=theirs, start_new_session=True)
        assert receive(ours)[0] == {"protocol": PROTOCOL, "python": sys.version.split()[0]}
        return process, ours

    def test_what_nobody_can_is_answered_and_the_worker_lives_on(self, ready: Machine):
        process, channel = self.start(ready)
        for request in (
            {"do": "_get_arrays"},
            {"do": "close_all"},
            {},
            {"do": "step", "actions": [1]},
            {"do": "reset", "x": 1},
        ):
            send(channel, request)
            assert "error" in receive(channel)[0]
        send(channel, {"do": "make", "package": "smac", "seed": 1, "arguments": {"map_name": "3m"}})
        assert receive(channel)[0]["n_agents"] == 3
        send(channel, {"do": "close"})
        assert process.wait(20) == 0

    def test_garbage_ends_it(self, machine: Machine):
        process, channel = self.start(machine)
        channel.sendall(b"garbage that is long enough")
        assert process.wait(20) != 0

    def test_the_trainers_end_is_its_own(self, machine: Machine):
        process, channel = self.start(machine)
        channel.close()
        assert process.wait(20) == 0

    @pytest.mark.parametrize("does", ["child", pytest.param("hang", marks=pytest.mark.slow)])
    def test_a_trainer_that_is_killed_takes_worker_and_game_along(self, ready: Machine, does):
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
