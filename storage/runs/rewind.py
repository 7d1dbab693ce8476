"""Going back: what was recorded after a step is superseded, in one transaction, and a run stays whole at its end."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, func, insert, select, update

from emtc_core.errors import RunStateError
from storage.engine import Database
from storage.models import (
    SUMMARY_STEPS,
    AskedEvaluation,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    Resume,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.runs.ownership import check_token
from storage.runs.rows import locked_row
from storage.runs.run_summary import summarize_bucket, update_run_summary


def why_not_rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> str | None:
    """Why a run cannot go back to a step, or None if it can: 0 and the end of each of its episodes."""
    if not 0 <= env_step <= reached:
        return f"Run {run_id} has {reached} env steps; it cannot go back to {env_step}."
    if last_episode_end(connection, run_id, env_step) != env_step:
        return f"Run {run_id} can go back to the end of an episode only; {env_step} is inside one."
    return None


def why_thinned(connection: Connection, run_id: str, *, reached: int) -> str | None:
    """Why a run that lost its first transition cannot go on, or None if it did not."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    if reached == 0 or connection.execute(first).first() is not None:
        return None
    return f"The transitions of run {run_id} were thinned away; what followed would have no beginning."


def last_episode_end(connection: Connection, run_id: str, env_step: int) -> int:
    """Find the last step, at most `env_step`, that ends an episode; 0 when there is none."""
    if env_step <= 0:
        return 0
    ends = select(func.max(EpisodeRow.first_env_step + EpisodeRow.length - 1)).where(
        EpisodeRow.run_id == run_id, EpisodeRow.first_env_step + EpisodeRow.length - 1 <= env_step
    )
    return connection.execute(ends).scalar_one() or 0


def rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> int:
    """Remove what was recorded after a step.

    Returns:
        How many training episodes went.

    Raises:
        RunStateError: If the run cannot go back there.
    """
    if reason := why_not_rewind(connection, run_id, env_step, reached=reached):
        raise RunStateError(reason)
    later = (EpisodeRow.run_id == run_id, EpisodeRow.first_env_step > env_step)
    episodes = connection.execute(delete(EpisodeRow).where(*later)).rowcount
    for table in (Transition, EvalEpisode, GateStats, MetricRow, Evaluation, AskedEvaluation, SnapshotRow):
        connection.execute(delete(table).where(table.run_id == run_id, table.env_step > env_step))
    first_bucket = env_step // SUMMARY_STEPS  # the first that holds a removed step
    connection.execute(
        delete(TransitionSummary).where(TransitionSummary.run_id == run_id, TransitionSummary.bucket >= first_bucket)
    )
    summarize_bucket(connection, run_id, first_bucket)
    last = select(Evaluation.win_rate, Evaluation.return_mean).where(Evaluation.run_id == run_id)
    kept = connection.execute(last.order_by(Evaluation.env_step.desc()).limit(1)).one_or_none()
    win_rate, return_mean = kept or (None, None)
    connection.execute(
        update(Run).where(Run.id == run_id).values(env_steps=env_step, win_rate=win_rate, return_mean=return_mean)
    )
    update_run_summary(connection, run_id)
    return episodes


def rewind_run(
    db: Database,
    run_id: str,
    env_step: int,
    *,
    token: str | None = None,
    checkpoint: str | None = None,
    passed_over: Sequence[str] = (),
) -> None:
    """Supersede everything recorded after `env_step`, in one transaction, and note that it happened.

    Args:
        db: An open database.
        run_id: The run.
        env_step: Where the trainer stands now: 0 or the last step of an episode.
        token: By which the caller owns the run.
        checkpoint: The file that was restored.
        passed_over: Why newer files were not.

    Raises:
        RunStateError: If the run has not come that far, an episode straddles the step, or somebody else has the run.
    """
    with db.transaction() as connection:
        row = locked_row(connection, run_id)
        check_token(row, token)
        episodes = rewind(connection, run_id, env_step, reached=row.env_steps)
        values = {
            "run_id": run_id,
            "env_step": env_step,
            "reached_env_step": row.env_steps,
            "resumed_at": datetime.now(UTC),
            "episodes": episodes,
            "checkpoint": checkpoint,
            "passed_over": " ".join(passed_over) or None,
        }
        connection.execute(insert(Resume), values)


def why_not_resume_at(db: Database, run_id: str, env_step: int) -> str | None:
    """Why the recorded rows do not fit a checkpoint at a step, or None if they do."""
    with db.read() as connection:
        reached = connection.execute(select(Run.env_steps).where(Run.id == run_id)).scalar_one()
        thinned = why_thinned(connection, run_id, reached=reached)
        return thinned or why_not_rewind(connection, run_id, env_step, reached=reached)
