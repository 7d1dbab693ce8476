"""Ask a running trainer to play or evaluate its present policy, and describe its answer in one line.

A question is a command that does not change the training. Its answer is the result of the played episodes.
"""

import time

from app.analysis.format import add_utc, format_count, format_number
from emtc_core.control import QuestionKind
from emtc_core.errors import CommandTimeoutError
from storage.engine import Database
from storage.runs.control import (
    POLL_S,
    EvaluationRequest,
    RequestedEvaluation,
    find_evaluation_request,
    send_command,
    wait_for_acknowledgement,
)
from storage.runs.rows import find_run


def ask_and_wait(
    db: Database,
    run_id: str,
    kind: QuestionKind,
    *,
    episode: int | None = None,
    answer_within_s: float,
) -> EvaluationRequest:
    """Send a question to a run and wait for the answer.

    Args:
        db: An open database.
        run_id: The run.
        kind: "play" one episode, or "evaluate".
        episode: Episode to play again; None plays a new one.
        answer_within_s: Longest time to wait for the answer after the trainer has read the question [s].

    Raises:
        RunStateError: If no trainer is running, or the run has no such episode.
        CommandTimeoutError: If the trainer did not read the question, or did not answer in time.
    """
    command_id = send_command(db, run_id, kind, episode=episode)
    wait_for_acknowledgement(db, run_id, command_id, kind)
    deadline = time.monotonic() + answer_within_s
    while True:
        run = find_run(db, run_id)
        question = find_evaluation_request(db, run, command_id)
        if question is None or question.stage == "unanswered":
            raise CommandTimeoutError(f"Run {run.id} ended before it answered. See: emtc show {run.id}")
        if question.stage == "answered":
            return question
        if time.monotonic() >= deadline:
            raise CommandTimeoutError(
                f"Run {run.id} has read the question but did not answer within {answer_within_s:.0f} s. "
                "The answer will appear on the page Live."
            )
        time.sleep(POLL_S)


def describe(request: EvaluationRequest) -> str:
    """Write when a question was asked (UTC), and its answer or its state."""
    when = f"asked {add_utc(request.requested_at):%H:%M:%S} UTC"
    if request.answer is not None:
        return f"{when}: {describe_answer(request, request.answer)}"
    states = {
        "waiting": "waiting for the run …",
        "playing": f"the run plays {'one episode' if request.kind == 'play' else 'its evaluation'} …",
    }
    return f"{when}, {states.get(request.stage, 'not answered: the trainer ended, or returned to an earlier step')}"


def describe_answer(request: EvaluationRequest, answer: RequestedEvaluation) -> str:
    """Write the result of the greedy policy: the win rate of an evaluation, or the outcome of one episode."""
    at = f"at env step {format_count(answer.env_step)}"
    if request.kind == "evaluate":
        return f"win rate {answer.wins}/{answer.episodes} {at}"
    outcome = f"{'won' if answer.wins else 'not won'}, return {format_number(answer.return_mean)} {at}"
    if answer.repeated_episode is not None:
        return f"episode {format_count(answer.repeated_episode)} again: {outcome}"
    if request.episode is not None:
        return f"{outcome}, from a different start: episode {format_count(request.episode)} cannot be repeated here"
    return f"one episode: {outcome}"
