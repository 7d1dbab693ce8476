"""Going back: what was recorded after a step is superseded, in one transaction, and a run stays whole at its end."""

from sqlalchemy import Connection, delete, func, select, update

from emtc_core.errors import RunStateError
from storage.models import (
    SUMMARY_STEPS,
    AskedEvaluation,
    EpisodeRow,
    EvalEpisode,
    Evaluation,
    GateStats,
    MetricRow,
    Run,
    SnapshotRow,
    Transition,
    TransitionSummary,
)
from storage.standing import sum_up
from storage.summary import summarize_bucket


def why_not_rewind(connection: Connection, run_id: str, env_step: int, *, reached: int) -> str | None:
    """Say why a run cannot go back to a step, or None if it can: 0 and the end of each of its episodes."""
    if not 0 <= env_step <= reached:
        return f"Run {run_id} has {reached} env steps; it cannot go back to {env_step}."
    if last_episode_end(connection, run_id, env_step) != env_step:
        return f"Run {run_id} can go back to the end of an episode only; {env_step} is inside one."
    return None


def why_thinned(connection: Connection, run_id: str, *, reached: int) -> str | None:
    """Say why a run that lost its first transition cannot go on, or None if it did not."""
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
    sum_up(connection, run_id)
    return episodes
