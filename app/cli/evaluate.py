"""`emtc evaluate`: what a stored policy does in greedy episodes of its own, without its trainer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from app.analysis.format import format_percent
from app.analysis.intervals import compute_score_interval
from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, say
from emtc_core.config.resolve import parse_overrides
from emtc_core.envs.trust import allow
from storage.engine import check_not_read_only, open_database

if TYPE_CHECKING:  # it loads torch
    from app.jobs.policies import CheckpointChoice, PolicyEvaluation

MOST_EPISODES = 1_000_000
_EPISODES = "Greedy episodes to play; the absolute metric of marl-eval wants ten times those of an evaluation"
CheckpointName = Annotated[
    str,
    typer.Option(
        "--checkpoint", help="last; best: that of the best evaluation, by win rate, then return; or an env step"
    ),
]


def evaluate(
    run: RunPrefix,
    episodes: Annotated[int, typer.Option(min=1, max=MOST_EPISODES, help=_EPISODES)] = 100,
    checkpoint: CheckpointName = "last",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of these episodes; that of the run if missing")] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="env.KEY=VALUE", help="The game otherwise than in training; repeatable")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Play greedy episodes with a stored policy; what they come to is kept beside the run's curves, never on one."""
    wanted = read_checkpoint(checkpoint)
    check_not_read_only("evaluate a policy")
    database = open_database(db, create=False)
    _allow_typed(set or ())
    from app.jobs.policies import evaluate_policy

    found = evaluate_policy(
        database,
        run,
        checkpoint=wanted,
        episodes=episodes,
        seed=seed,
        overrides=set or (),
        on_chosen=lambda chosen: say(f"Playing {episodes:,} greedy episodes with {chosen.description}."),
    )
    summary = describe(found)
    if json:
        print_json(summary)
        return
    say(
        f"Run {found.run_id}: won {summary['wins']:,} of {summary['episodes']:,}, "
        f"{format_percent(summary['win_rate'], 1)} "
        f"[{format_percent(summary['low'], 1)}, {format_percent(summary['high'], 1)}]; "
        f"mean return {summary['return_mean']:.4g} "
        f"(standard deviation {summary['return_std']:.3g}), {summary['length_mean']:.1f} steps; "
        f"{summary['distinct']:,} of the episodes differ."
    )


def describe(found: "PolicyEvaluation") -> dict[str, Any]:
    """Lay out what a policy did; the interval is Wilson's, of as many episodes as differ."""
    record = found.record
    differ = record.distinct or len(record.won)
    low, high = compute_score_interval(np.array(record.win_rate), differ)
    return {
        "id": found.id,
        "run_id": found.run_id,
        "env_step": found.checkpoint.env_step,
        "checkpoint": found.checkpoint.description,
        "episodes": len(record.won),
        "wins": record.wins,
        "win_rate": record.win_rate,
        "low": float(low),
        "high": float(high),
        "return_mean": record.return_mean,
        "return_std": float(np.std(record.returns, dtype=np.float64)),
        "length_mean": float(record.lengths.mean()),
        "distinct": record.distinct,
        "seed": found.seed,
        "settings": found.settings,
        "device": found.device,
    }


def read_checkpoint(text: str) -> "CheckpointChoice":
    """Read what `--checkpoint` names.

    Raises:
        BadParameter: If it is neither last, best nor an env step.
    """
    if text == "last" or text == "best":
        return text
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"--checkpoint is last, best or an env step, got {text[:80]!r}.")
    return int(text)


def _allow_typed(overrides: Sequence[str]) -> None:
    """Allow the module of a map that the user has typed, as module:factory."""
    typed = parse_overrides(overrides).get("env.map")
    if isinstance(typed, str) and ":" in typed:
        allow(typed)
