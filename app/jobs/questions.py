"""Ask a living run what its present policy does, and say in one line what came of it."""

import time

from app.analysis.format import aware, count, number
from emtc_core.control import QuestionKind
from emtc_core.errors import UnheardError
from storage.engine import Database
from storage.runs.control import POLL_S, Answer, Asked, find_question, send_command, wait_until_heard
from storage.runs.rows import find_run


def ask_and_wait(
    db: Database,
    run_id: str,
    kind: QuestionKind,
    *,
    episode: int | None = None,
    answer_within_s: float,
) -> Asked:
    """Ask, and wait for the answer.

    Raises:
        RunStateError: If no trainer is there, or the episode is none.
        UnheardError: If nobody heard, or the answer did not come in time.
    """
    command_id = send_command(db, run_id, kind, episode=episode)
    wait_until_heard(db, run_id, command_id, kind)
    until = time.monotonic() + answer_within_s
    while True:
        run = find_run(db, run_id)
        asked = find_question(db, run, command_id)
        if asked is None or asked.stage == "unanswered":
            raise UnheardError(f"Run {run.id} ended before it answered. See: emtc show {run.id}")
        if asked.stage == "answered":
            return asked
        if time.monotonic() >= until:
            raise UnheardError(
                f"Run {run.id} has heard, and no answer came within {answer_within_s:.0f} s. It will stand on Live."
            )
        time.sleep(POLL_S)


def describe(asked: Asked) -> str:
    """When something was asked and what became of it."""
    when = f"asked {aware(asked.requested_at):%H:%M:%S} UTC"
    if asked.answer is not None:
        return f"{when}: {describe_answer(asked, asked.answer)}"
    became = {
        "waiting": "waiting for the run …",
        "playing": f"the run plays {'one episode' if asked.kind == 'play' else 'its evaluation'} …",
    }
    return f"{when}, {became.get(asked.stage, 'not answered: the trainer ended, or went back to an earlier step')}"


def describe_answer(asked: Asked, answer: Answer) -> str:
    """What the greedy policy did."""
    at = f"at env step {count(answer.env_step)}"
    if asked.kind == "evaluate":
        return f"win rate {answer.wins}/{answer.episodes} {at}"
    outcome = f"{'won' if answer.wins else 'not won'}, return {number(answer.return_mean)} {at}"
    if answer.again_of is not None:
        return f"episode {count(answer.again_of)} again: {outcome}"
    if asked.episode is not None:
        return f"{outcome}, from a start of its own: that of episode {count(asked.episode)} cannot be repeated here"
    return f"one episode: {outcome}"
