"""`emtc train` as a user's script sees it, read back with plain SQL and an independent replay of the method."""

import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from storage.blobs import unpack
from tests.process.trainers import EMTC, FAST, breaches, emtc, environment, read, train_command

GATE_COLUMNS = "reward, h, h_next, delta_mem, beta, tau"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    path = tmp_path_factory.mktemp("train") / "x.db"
    sets = (*FAST, "gate.lookup=written", "memory.delta=1.8e-2")  # H stands in the slots that were recorded
    done = emtc(*train_command(f"sqlite:///{path}", steps=3000, sets=sets)[len(EMTC) :])
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout.splitlines()[-1])


def test_the_last_line_of_stdout_describes_the_run_whose_rows_follow_the_contract(recorded) -> None:
    path, result = recorded
    assert result["status"] == "finished"
    assert result["env_steps"] >= 3000
    assert 0 <= result["win_rate"] <= 1
    assert result["wall_seconds"] > 0
    assert breaches(path) == []
    assert read(path, "select count(*) from transitions") == [(result["env_steps"],)]


def test_tau_follows_its_schedule(recorded) -> None:
    path, _ = recorded
    rows = read(
        path,
        """select t.tau, e.first_env_step + e.length - 1 from transitions t
           join episodes e on e.run_id = t.run_id and e.episode = t.episode""",
    )
    for tau, last in rows:
        assert math.isclose(tau, max(0.6, 1.2 - 0.6 * last / 1500), abs_tol=1e-9)


def test_replaying_algorithm_2_from_the_recorded_trajectories_gives_what_was_recorded(recorded) -> None:
    """Reads only trajectories and slots, keeps its own memory in dictionaries, and walks as the paper says."""
    path, _ = recorded
    gamma = 0.99
    nodes: dict[int, dict] = {}
    merges = 0
    snapshots = {
        env_step: unpack_snapshot(row)
        for env_step, *row in read(
            path, 'select env_step, slot, "H", xi, n_call, n_xi, t, idx_next, episode from snapshots'
        )
    }
    compared = 0
    episodes = read(path, "select episode, first_env_step, length, won, trajectory from episodes order by episode")
    for episode, first, length, won, blob in episodes:
        trajectory = unpack(blob)
        slots, rewards = trajectory["slots"], trajectory["reward"].astype(np.float64)
        value, following = 0.0, -1
        for t in range(length, -1, -1):
            value = (rewards[t] if t < length else 0.0) + gamma * value
            slot = int(slots[t])
            if slot in nodes:
                merges += 1
                node = nodes[slot]
                node["n_call"] += 1
                node["n_xi"] += int(won)
                if won and not node["xi"]:
                    node.update(xi=True, h=value, t=t, episode=episode)
                elif node["h"] < value:
                    node["h"] = value
                node["next"] = following
            else:
                nodes[slot] = {"h": value, "xi": bool(won), "n_call": 1, "n_xi": int(won)}
                nodes[slot] |= {"t": t, "episode": episode, "next": following}
            following = slot
        rows = read(path, f"select {GATE_COLUMNS} from transitions where episode = ? order by t", episode)
        for t, (reward, h, h_next, delta_mem, beta, tau) in enumerate(rows):
            here = nodes[int(slots[t])]["h"]
            ahead = 0.0 if t == length - 1 else nodes[int(slots[t + 1])]["h"]
            error = abs(reward + gamma * ahead - here)
            assert h == pytest.approx(here, rel=1e-5, abs=1e-5)
            assert h_next == pytest.approx(ahead, rel=1e-5, abs=1e-5)
            assert delta_mem == pytest.approx(error, abs=2e-5)
            assert beta == pytest.approx(math.exp(-(error**2) / (2 * tau**2)), abs=1e-4)
        end = first + length - 1
        if end in snapshots:
            compared += 1
            assert_same_memory(nodes, snapshots[end])
    assert merges > 100
    assert compared == len(snapshots) > 5


def unpack_snapshot(row: tuple) -> list[np.ndarray]:
    return [next(iter(unpack(blob).values())) for blob in row]


def assert_same_memory(nodes: dict[int, dict], columns: list[np.ndarray]) -> None:
    slot, h, xi, n_call, n_xi, t, idx_next, episode = columns
    assert sorted(nodes) == sorted(slot.tolist())
    for i, s in enumerate(slot.tolist()):
        node = nodes[s]
        assert h[i] == pytest.approx(node["h"], rel=1e-5, abs=1e-5)
        assert (bool(xi[i]), int(n_call[i]), int(n_xi[i])) == (node["xi"], node["n_call"], node["n_xi"])
        assert (int(t[i]), int(episode[i]), int(idx_next[i])) == (node["t"], node["episode"], node["next"])


def test_show_and_runs_answer_in_json(recorded) -> None:
    path, result = recorded
    url = f"sqlite:///{path}"
    shown = json.loads(emtc("show", result["run_id"][:4], "--db", url, "--json").stdout)
    assert shown["id"] == result["run_id"]
    assert shown["config"]["train"]["t_max"] == 3000
    assert "numbered 1 to" in shown["steps_note"]
    listed = json.loads(emtc("runs", "--db", url, "--json").stdout)
    assert [row["id"] for row in listed] == [result["run_id"]]


@pytest.mark.slow
def test_a_redirected_run_says_how_far_it_is_on_stderr_and_keeps_stdout_clean(tmp_path: Path) -> None:
    command = train_command(f"sqlite:///{tmp_path / 'x.db'}", steps=400)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    lines = [line for line in done.stderr.splitlines() if "of 400 env steps" in line]
    assert lines
    assert "test win rate" in lines[-1]
    assert "steps/s, about" in lines[-1]
    assert json.loads(done.stdout)["status"] == "finished"
