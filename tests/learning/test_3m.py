"""EMTC(QPLEX) learns to win on 3m: five seeds of 200,000 steps, two at a time."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.process.trainers import EMTC, environment


def final_win_rate(folder: Path, seed: int) -> float:
    done = subprocess.run(
        [*EMTC, "train", "--map", "3m", "--steps", "200000", "--seed", str(seed), "--json",
         "--set", "train.threads=1", "--db", f"sqlite:///{folder / f'{seed}.db'}"],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])["win_rate"]


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_four_of_five_seeds_win_nine_of_ten_battles(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        rates = list(pool.map(lambda seed: final_win_rate(tmp_path, seed), range(1, 6)))
    assert sum(rate >= 0.9 for rate in rates) >= 4, rates
