"""One worker process: waits for a byte, plays its engines, answers with a byte.

Started by `team.WorkerGroup` as `python -m emtc_core.envs.grf.worker MEMORY COMMANDS REPLIES TASK`, where
the first three are inherited file descriptors. It ends when the pipe of commands closes, and only then: an
interrupt from the keyboard reaches it as well, but whether to stop is the trainer's to decide.
"""

import os
import signal
import sys
from typing import Any

import orjson

from emtc_core.envs.grf.engine import Squad
from emtc_core.envs.grf.scenarios import Lineup, Player
from emtc_core.envs.grf.team import LocalGroup, make_board


def main(arguments: list[str]) -> None:
    """Serve until the parent is gone."""
    memory, commands, replies = (int(fd) for fd in arguments[:3])
    task = orjson.loads(arguments[3])
    squad = _squad(task["squad"])
    board = make_board(memory, task["n_envs"], squad)
    group = LocalGroup(squad, board, range(*task["share"]))
    while command := os.read(commands, 1):
        if command == b"r":
            group.reset()
        elif command == b"s":
            group.step()
        os.write(replies, b".")


def _squad(fields: dict[str, Any]) -> Squad:
    lineup = fields.pop("lineup")
    left, right = (tuple(Player(**player) for player in lineup[side]) for side in ("left", "right"))
    return Squad(Lineup(left, right, tuple(lineup["ball"])), **fields)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # the parent went while an answer was under way
        sys.exit(0)
