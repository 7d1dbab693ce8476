"""Use the policy of a stored run: choose a checkpoint, play greedy episodes, export TorchScript.

No trainer is needed. This module loads torch, so callers import it only when they use it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from app.analysis.format import format_percent
from app.jobs.resume import examine_checkpoints
from emtc_core.config.resolve import Value, apply_overrides, config_from_stored, flatten, parse_overrides
from emtc_core.config.run import RunConfig
from emtc_core.config.train import EnvConfig
from emtc_core.devices import choose_device
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import check_available, check_importable, get_env_info, make_env
from emtc_core.errors import CheckpointError, ConfigError, EnvUnavailableError, Fault, describe_error
from emtc_core.learner.policy import Policy, ScriptedPolicy, write_script
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.collector import Collector
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import load_part
from emtc_core.training.evaluation import make_record, play_greedily
from storage.address import DEFAULT_DATABASE
from storage.api import open_database
from storage.engine import Database
from storage.files import run_folder
from storage.private_files import open_output
from storage.queries.curves import evaluations
from storage.runs.changes import add_policy_evaluation
from storage.runs.rows import RunRow, check_not_imported, find_run

CheckpointChoice = int | Literal["last", "best"]
"""Which checkpoint: the newest, the one of the best evaluation, or the one at this env step."""
_RANDOM_STREAM: Final = "policy"
"""Name of the random numbers of these episodes. It makes them independent of the training's episodes."""
_N_CHECK_EPISODES: Final = 4
_MAX_DIFFERENT_FRACTION: Final = 0.01
"""Maximum fraction of the actions in which an exported policy may differ from the stored one.

The stored policy acts with a compiled function, the exported script with PyTorch. They round differently, so the order
of two nearly equal action values may differ.
"""


@dataclass(frozen=True)
class ChosenCheckpoint:
    """The checkpoint whose policy is used, with its description for messages."""

    name: str
    env_step: int
    description: str


@dataclass(frozen=True)
class PolicyEvaluationResult:
    """Result of an evaluation of a stored policy."""

    id: int
    run_id: str
    checkpoint: ChosenCheckpoint
    record: EvaluationRecord
    seed: int
    settings: dict[str, Value]
    """Environment settings that differ from the training."""
    device: str


def choose_checkpoint(db: Database, row: RunRow, choice: CheckpointChoice) -> ChosenCheckpoint:
    """Choose one of the usable checkpoints of a run.

    Raises:
        CheckpointError: If the run has no usable checkpoint, or none at this env step.
    """
    check_not_imported(row, "be played")
    status = examine_checkpoints(db, row)
    # At an env step with both kinds, the later entry of the dict is used: the checkpoint for a resume.
    checkpoints = (*reversed(status.best), *reversed(status.checkpoints))
    usable = {checkpoint.env_step: checkpoint.name for checkpoint in checkpoints if checkpoint.fault is None}
    if status.refusal or not usable:
        # A run that has started without a host was imported from a bundle (file with exported runs).
        bundle_note = " A bundle contains no checkpoints." if row.host is None and row.started_at else ""
        raise CheckpointError(f"Run {row.id} has no policy here. {status.reason}{bundle_note}")
    if choice == "last":
        step = max(usable)
        reason = f"the newest of {len(usable)}"
    elif choice == "best":
        step, reason = _find_best(db, row, list(usable))
    elif choice in usable:
        step = choice
        reason = "as requested"
    else:
        steps = ", ".join(f"{step}" for step in sorted(usable))
        raise CheckpointError(f"Run {row.id} has no checkpoint at env step {choice}. Available: {steps}.")
    return ChosenCheckpoint(usable[step], step, f"the checkpoint at env step {step:,}, {reason}")


def read_config(row: RunRow) -> RunConfig:
    """Read the configuration of a run whose policy is played on this machine.

    Raises:
        ConfigError: If the algorithm, a setting or the environment does not exist in this version, or is not installed.
    """
    check_not_imported(row, "be played")
    try:
        config = config_from_stored(row.config)
        check_available(config.env)
        check_importable(config.env)
    except (ConfigError, EnvUnavailableError) as exc:
        raise ConfigError(
            "cannot be played here", key=f"run {row.id} ({row.algo} on {row.map})", hint=describe_error(exc)[0]
        ) from exc
    return config


def load_policy(
    run: str,
    db: str | Path | Database | None = None,
    *,
    checkpoint: CheckpointChoice = "last",
    device: Literal["auto", "cpu", "cuda"] = "cpu",
) -> Policy:
    """Load the policy of a run, without its trainer.

    Args:
        run: Id of the run, or the beginning of an id.
        db: File or URL of the database, or an open database. None: EMTC_DB, or runs/emtc.db if that is not set.
        checkpoint: "last", "best" or an env step; see `choose_checkpoint`.
        device: Device of the network.

    Returns:
        The greedy policy. Call `reset()` once per episode, then `act(obs, avail)` once per step.

    Raises:
        EmtcError: If the run, its checkpoint or its environment is not available.
    """
    database = db if isinstance(db, Database) else open_database(db or os.environ.get("EMTC_DB") or DEFAULT_DATABASE)
    try:
        policy, _, _ = _load(database, find_run(database, run), checkpoint, choose_device(device))
        return policy
    finally:
        if database is not db:
            database.dispose()


def evaluate_policy(
    db: Database,
    run: str,
    *,
    checkpoint: CheckpointChoice = "last",
    episodes: int,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    on_chosen: Callable[[ChosenCheckpoint], None] = lambda chosen: None,
) -> PolicyEvaluationResult:
    """Play greedy episodes with a stored policy and record the result in the table of policy evaluations.

    Args:
        db: An open, writable database.
        run: Id of the run, or the beginning of an id.
        checkpoint: Which checkpoint to use.
        episodes: Number of episodes.
        seed: Seed of the episodes; they differ from all evaluation episodes of the training. None: the seed of the run.
        overrides: Environment settings that differ from the training, such as "env.skirmish.spawn_jitter=0.5".
        on_chosen: Called with the checkpoint before the first episode.

    Raises:
        EmtcError: If the evaluation is not possible. Nothing is recorded then.
    """
    row = find_run(db, run)
    configure_threads()  # `load_policy` does not call it, because the user's script sets the number of threads
    policy, config, chosen = _load(db, row, checkpoint, choose_device("auto"))
    changed_config = _override_env(config, overrides)
    env = make_env(changed_config.env, n_envs=min(episodes, config.train.n_envs))
    seed = row.seed if seed is None else seed
    try:
        sizes = _describe_sizes(env.info)
        trained_sizes = _describe_sizes(policy.info)
        if sizes != trained_sizes:
            raise ConfigError(
                f"The policy of run {row.id} is for {trained_sizes}; the selected environment has {sizes}"
            )
        on_chosen(chosen)
        collector = Collector(env, reward_scale=1.0, seed=seed, stream=_RANDOM_STREAM)
        record = make_record(play_greedily(collector, policy.learner, (), episodes), chosen.env_step)
    finally:
        env.close()
    trained = flatten(config)
    settings = {key: value for key, value in flatten(changed_config).items() if trained.get(key) != value}
    evaluation_id = add_policy_evaluation(db, row.id, record, seed=seed, settings=settings)
    return PolicyEvaluationResult(evaluation_id, row.id, chosen, record, seed, settings, str(choose_device("auto")))


def export_policy(db: Database, run: str, out: Path, *, checkpoint: CheckpointChoice = "last") -> ChosenCheckpoint:
    """Write a policy as TorchScript. The written file is loaded and must choose the same actions in real episodes.

    Raises:
        EmtcError: If the export is not possible. No file is left then.
    """
    row = find_run(db, run)
    policy, config, chosen = _load(db, row, checkpoint, torch.device("cpu"))
    info = policy.info
    description = {
        "run": row.id,
        "algo": row.algo,
        "env": row.env,
        "map": row.map,
        "seed": row.seed,
        "env_step": chosen.env_step,
        "n_agents": info.n_agents,
        "n_actions": info.n_actions,
        "obs_dim": info.obs_dim,
        "action_names": list(info.action_names),
    }
    with open_output(out) as file:
        write_script(policy, config, file, description=description)
        file.flush()
        with Path(file.name).open("rb") as script:
            _check_same_actions(policy, ScriptedPolicy(script), config)
    return chosen


def _find_best(db: Database, row: RunRow, steps: Sequence[int]) -> tuple[int, str]:
    """Return the env step of the checkpoint that is nearest to the best evaluation, and the reason for the choice.

    Evaluations are ordered by win rate, then return, then env step. The best evaluation has a checkpoint, unless the
    disk was full.
    """
    frame = evaluations(db, row.id)
    if not len(frame):
        return max(steps), "the newest, because the run has no evaluation"
    best = frame.sort_values(["win_rate", "return_mean", "env_step"]).iloc[-1]
    best_step, win_rate = int(best["env_step"]), float(best["win_rate"])
    step = min(steps, key=lambda step: (abs(step - best_step), -step))  # the later one of two equally near steps
    if step == best_step:
        return step, f"that of the best evaluation ({format_percent(win_rate)} won)"
    return (
        step,
        f"of {len(steps)} the nearest to the best evaluation, at {best_step:,} ({format_percent(win_rate)} won)",
    )


def _load(
    db: Database, row: RunRow, choice: CheckpointChoice, device: torch.device
) -> tuple[Policy, RunConfig, ChosenCheckpoint]:
    config = read_config(row)
    chosen = choose_checkpoint(db, row, choice)
    _, weights = load_part(run_folder(db, row.id) / chosen.name, "learner", run_id=row.id)
    policy = Policy(config, _get_env_info(config.env), weights, env_step=chosen.env_step, device=device)
    return policy, config, chosen


def _describe_sizes(info: EnvInfo) -> str:
    return f"{info.n_agents} agents, {info.n_actions} actions, {info.obs_dim} observed numbers"


def _get_env_info(config: EnvConfig) -> EnvInfo:
    """Get the sizes of an environment. Some environments must be created to find their sizes."""
    info = get_env_info(config)
    if info is not None:
        return info
    env = make_env(config, n_envs=1)
    try:
        return env.info
    finally:
        env.close()


def _override_env(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Apply overrides of environment settings.

    Raises:
        ConfigError: If another setting is overridden, or a value is invalid.
        EnvUnavailableError: If the environment is not available on this machine.
    """
    keys = [key for key in parse_overrides(overrides) if not key.startswith("env.")]
    if keys:
        rule = "must be an environment setting (env.…), because only these can differ from the training"
        raise ConfigError(*(Fault(key, rule=rule) for key in keys))
    changed = apply_overrides(config, overrides)
    check_available(changed.env)
    check_importable(changed.env)
    return changed


def _check_same_actions(policy: Policy, script: ScriptedPolicy, config: RunConfig) -> None:
    """Play episodes with the policy and compare its actions with those of the script.

    Raises:
        CheckpointError: If more than `_MAX_DIFFERENT_FRACTION` of the actions differ.
    """
    compared = _ComparedPolicy(policy, script)
    env = make_env(config.env, n_envs=_N_CHECK_EPISODES)
    try:
        collector = Collector(env, reward_scale=1.0, seed=config.seed, stream=_RANDOM_STREAM)
        collector.collect(compared, epsilon=0.0, round=(0,))
    finally:
        env.close()
    if compared.n_different > _MAX_DIFFERENT_FRACTION * compared.n_actions:
        raise CheckpointError("The exported policy does not act as the stored one; it was deleted.")


class _ComparedPolicy:
    """Acts with the stored policy, and counts how often the exported script would choose another action."""

    def __init__(self, policy: Policy, script: ScriptedPolicy) -> None:
        self._learner = policy.learner
        self._script = script
        self.n_actions = 0
        self.n_different = 0

    def start_episodes(self, n_envs: int) -> None:
        self._learner.start_episodes(n_envs)
        self._script.start_episodes(n_envs)

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        action = self._learner.act(obs, avail, epsilon=epsilon, rng=rng)
        self.n_actions += action.size
        self.n_different += int((action != self._script.act(obs, avail)).sum())
        return action
