"""Chance: copy b depends on (seed, b) alone, in any process, batch, or machine with or without a cache."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emtc_core.envs.skirmish.kernels import make_words, uniform_block
from tests.reference.skirmish_watch import make, play

ROOT = Path(__file__).parents[2]
PLAY = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from emtc_core.envs.skirmish import kernels
from tests.reference.skirmish_watch import make, play
seen = play(make("2s3z", 3), 11, fight=0.8)
print(hashlib.sha256(b"".join(frame.state.tobytes() + frame.reward.tobytes() for frame in seen)).hexdigest())
print(kernels.__file__)
"""


def digest(map: str = "2s3z") -> str:
    seen = play(make(map, 3), 11, fight=0.8)
    return hashlib.sha256(b"".join(frame.state.tobytes() + frame.reward.tobytes() for frame in seen)).hexdigest()


def play_elsewhere(root: Path, **environment: str) -> list[str]:
    """Play in a fresh process that imports the package from `root`."""
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(root)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, **environment, "PYTHONPATH": str(root)},
    )
    return done.stdout.split()


def test_the_same_seed_plays_the_same_battle_in_another_process():
    assert play_elsewhere(ROOT, OMP_NUM_THREADS="2", NUMBA_NUM_THREADS="2")[0] == digest()


def test_a_kernel_runs_where_no_cache_can_be_written(tmp_path):
    module = tmp_path / "tiny.py"
    module.write_text(
        "from emtc_core.envs.skirmish.kernels import kernel\n@kernel\ndef add(x):\n    return x + 1\nprint(add(1))\n"
    )
    (tmp_path / "__pycache__").write_text("a file in the way")
    done = subprocess.run(
        [sys.executable, str(module)], capture_output=True, text=True, check=True, env=blocked(tmp_path)
    )
    assert done.stdout.split() == ["2"]


@pytest.mark.slow
def test_it_plays_where_no_cache_can_be_written(tmp_path):
    copy = tmp_path / "copy"
    for part in ("emtc_core", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "process", "browser")
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    for folder in copy.rglob("skirmish"):
        (folder / "__pycache__").write_text("a file in the way")
    found, origin = play_elsewhere(copy, **blocked(copy))
    assert Path(origin).is_relative_to(copy)
    assert found == digest()


def blocked(root: Path) -> dict[str, str]:
    """An environment in which no folder for compiled kernels can be made."""
    file = root / "file"
    file.write_text("a file where a folder should be")
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(file),
        "XDG_CACHE_HOME": str(file / "cache"),
        "NUMBA_CACHE_DIR": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_threads_of_a_big_batch_change_nothing():
    env, single = make("corridor", 36), make("corridor", 36)
    single._battle.close()
    threaded, alone = play(env, 2, fight=0.9), play(single, 2, fight=0.9)
    env.close()
    assert len(threaded) == len(alone)
    np.testing.assert_array_equal(threaded[-1].state, alone[-1].state)


def test_resetting_with_a_seed_repeats_and_without_goes_on():
    env = make("8m", 2, spawn_jitter=0.05)
    first, second, again = env.reset(3), env.reset(), env.reset(3)
    np.testing.assert_array_equal(first.state, again.state)
    assert (first.state != second.state).any()
    assert (first.state[0] != first.state[1]).any()


@pytest.mark.parametrize("low_high", [(-1.0, 2.0), (0.0, 1.0)])
def test_draws_are_uniform_and_independent_between_copies(low_high):
    block = uniform_block(make_words(0, 200), 200, *low_high)
    low, high = low_high
    assert low <= block.min()
    assert block.max() < high
    assert block.mean() == pytest.approx((low + high) / 2, abs=0.01 * (high - low))
    assert abs(np.corrcoef(block[:-1].ravel(), block[1:].ravel())[0, 1]) < 0.02
    assert len(np.unique(make_words(0, 500))) == 500
    assert not np.isin(make_words(0, 50), make_words(1, 50)).any()
