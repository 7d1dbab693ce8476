"""Progress of a foreground run whose output goes to a file: lines by a clock and a budget of the test's own."""

import pytest

from app.cli.progress import ProgressLines


class Scene:
    """A run of 10,000 steps; the test moves its clock."""

    def __init__(self) -> None:
        self.now, self.win_rate = 0.0, None
        self.lines: list[str] = []
        self.report = ProgressLines(
            10_000, read_rate=lambda: self.win_rate, write=self.lines.append, clock=lambda: self.now
        )

    def at(self, seconds: float, env_step: int) -> None:
        self.now = seconds
        self.report(env_step)


def test_a_twentieth_of_the_budget_is_worth_a_line():
    scene = Scene()
    for i in range(51):
        scene.at(0.1 * i, 100 * i)
    assert len(scene.lines) == 10
    assert scene.lines[0] == ("500 of 10,000 env steps (5 %), test win rate –, 1,000 steps/s, about 10 s left")


def test_half_a_minute_is_worth_a_line_and_the_speed_is_that_since_the_last():
    scene = Scene()
    scene.at(0, 10)
    scene.at(29, 40)
    assert scene.lines == []
    scene.win_rate = 0.875
    scene.at(30, 70)
    scene.at(59, 90)
    scene.at(70, 100)
    assert scene.lines == [
        "70 of 10,000 env steps (1 %), test win rate 87.5 %, 2 steps/s, about 1 h 22 min left",
        "100 of 10,000 env steps (1 %), test win rate 87.5 %, 0.75 steps/s, about 3 h 40 min left",
    ]


@pytest.mark.parametrize(
    ("env_step", "line"),
    [
        (9_500, "9,500 of 10,000 env steps (95 %), test win rate –, 50 steps/s, about 10 s left"),
        (10_100, "10,000 of 10,000 env steps (100 %), test win rate –, 110 steps/s, about 0 s left"),
    ],
    ids=["before the end", "beyond the end"],
)
def test_the_speed_of_a_resumed_run_counts_from_its_start(env_step, line):
    scene = Scene()
    scene.at(0, 9_000)
    scene.at(10, env_step)
    assert scene.lines == [line]


def test_a_closed_log_does_not_stop_the_run():
    refused: list[str] = []

    def refuse(line: str) -> None:
        refused.append(line)
        raise BrokenPipeError

    report = ProgressLines(100, read_rate=lambda: None, write=refuse)
    report(0)
    report(50)
    assert len(refused) == 1
