"""`emtc evaluate`: evaluate a stored policy in greedy episodes, without its trainer."""

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from app.analysis.format import format_percent
from app.analysis.intervals import compute_score_interval
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, Where, choose_run
from app.cli.output import print_json, print_message
from emtc_core.kernel_cache import check_kernel_cache
from storage.engine import check_not_read_only, open_database

if TYPE_CHECKING:  # imports torch
    from app.jobs.policies import CheckpointChoice, PolicyEvaluationResult

MAX_EPISODES = 1_000_000
_EPISODES = "Number of greedy episodes; marl-eval's absolute metric needs ten times those of an evaluation"
CheckpointName = Annotated[
    str,
    typer.Option("--checkpoint", help="last, best (of the best evaluation, by win rate, then return) or an env step"),
]


def evaluate(
    run: RunPrefix = None,
    where: Where = None,
    episodes: Annotated[int, typer.Option(min=1, max=MAX_EPISODES, help=_EPISODES)] = 100,
    checkpoint: CheckpointName = "last",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes; default: the seed of the run")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="env.KEY=VALUE", help="Setting of the environment that differs from training; repeatable"),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Play greedy episodes with a stored policy. The result is stored with the run and is not part of its curves."""
    choice = read_checkpoint(checkpoint)
    check_not_read_only("evaluate a policy")
    check_kernel_cache()
    database = open_database(db, create=False)
    run_id = choose_run(database, run, where).id
    from app.jobs.policies import evaluate_policy

    evaluation = evaluate_policy(
        database,
        run_id,
        checkpoint=choice,
        episodes=episodes,
        seed=seed,
        overrides=set or (),
        on_chosen=lambda policy: print_message(f"Playing {episodes:,} greedy episodes with {policy.description}."),
    )
    summary = _summarize(evaluation)
    if json:
        print_json(summary)
        return
    interval = f"[{format_percent(summary['low'], 1)}, {format_percent(summary['high'], 1)}]"
    print_message(
        f"Run {evaluation.run_id}: won {summary['wins']:,} of {summary['episodes']:,}, "
        f"{format_percent(summary['win_rate'], 1)} {interval}; mean return {summary['return_mean']:.4g} "
        f"(standard deviation {summary['return_std']:.3g}), {summary['length_mean']:.1f} steps; "
        f"{summary['distinct']:,} of the episodes differ."
    )


def _summarize(evaluation: "PolicyEvaluationResult") -> dict[str, Any]:
    """Return the result as plain values. `low` and `high` are the ends of Wilson's interval of the win rate.

    Equal episodes are not independent samples, so the interval is that of the number of distinct episodes.
    """
    record = evaluation.record
    low, high = compute_score_interval(np.array(record.win_rate), record.distinct or len(record.won))
    return {
        "id": evaluation.id,
        "run_id": evaluation.run_id,
        "env_step": evaluation.checkpoint.env_step,
        "checkpoint": evaluation.checkpoint.description,
        "episodes": len(record.won),
        "wins": record.wins,
        "win_rate": record.win_rate,
        "low": float(low),
        "high": float(high),
        "return_mean": record.return_mean,
        "return_std": float(np.std(record.returns, dtype=np.float64)),
        "length_mean": float(record.lengths.mean()),
        "distinct": record.distinct,
        "seed": evaluation.seed,
        "settings": evaluation.settings,
        "device": evaluation.device,
    }


def read_checkpoint(text: str) -> "CheckpointChoice":
    """Parse the value of `--checkpoint`.

    Raises:
        BadParameter: If it is neither last, best nor an env step.
    """
    if text in ("last", "best"):
        return text
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"--checkpoint must be last, best or an env step, got {text[:80]!r}.")
    return int(text)
