"""Use what a run has learned: find a checkpoint, play greedy episodes with its policy, hand the policy to a script.

No trainer lives here, and none is needed. Imported late, because it loads torch.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from app.analysis.format import percent
from app.jobs.resume import look
from emtc_core.config.resolve import Value, change, config_from_stored, flatten, parse_overrides
from emtc_core.config.run import RunConfig
from emtc_core.config.train import EnvConfig
from emtc_core.devices import choose_device, configure_threads
from emtc_core.envs.base import EnvInfo, VectorEnv
from emtc_core.envs.registry import check_available, check_trusted, get_env_info, make_env
from emtc_core.errors import CheckpointError, ConfigError, EnvUnavailableError, Fault, describe_error
from emtc_core.learner.policy import Policy, ScriptedPolicy, write_script
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.collector import Collector
from emtc_core.training.checkpoint import load_part
from emtc_core.training.evaluation import make_record, play_greedily
from storage.address import DEFAULT_DATABASE
from storage.api import open_database
from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.files.trainer_files import is_ours
from storage.private_files import replaced
from storage.queries.curves import evaluations
from storage.runs.changes import add_policy_evaluation
from storage.runs.rows import RunRow, find_run, refuse_imported

Wanted = int | Literal["last", "best"]
"""Which checkpoint: the newest, that of the best evaluation, or the one at an env step."""
_STREAM: Final = "policy"
_CHECKED_EPISODES: Final = 4


@dataclass(frozen=True)
class Chosen:
    """The checkpoint whose policy is used, and the words for it."""

    name: str
    env_step: int
    said: str


@dataclass(frozen=True)
class Evaluated:
    """What a stored policy did."""

    id: int
    run_id: str
    chosen: Chosen
    record: EvaluationRecord
    seed: int
    settings: dict[str, Value]
    device: str


def choose_checkpoint(db: Database, row: RunRow, wanted: Wanted) -> Chosen:
    """Choose among a run's usable checkpoints.

    Raises:
        CheckpointError: If there is none, or none at that env step: then with those that there are.
    """
    refuse_imported(row, "be played")
    status = look(db, row)
    found = (*reversed(status.best), *reversed(status.checkpoints))
    usable = {each.env_step: each.name for each in found if each.fault is None}
    if status.refused or not usable:
        brought = " A bundle brings none." if row.host is None and row.started_at else ""
        raise CheckpointError(f"Run {row.id} has no policy here. {status.why_not}{brought}")
    if wanted == "last":
        step, why = max(usable), f"the newest of {len(usable)}"
    elif wanted == "best":
        step, why = _find_best(db, row, list(usable))
    elif wanted in usable:
        step, why = wanted, "as asked"
    else:
        known = ", ".join(f"{each}" for each in sorted(usable))
        raise CheckpointError(f"Run {row.id} has no checkpoint at env step {wanted}; there are: {known}.")
    return Chosen(usable[step], step, f"the checkpoint at env step {step:,}, {why}")


def _find_best(db: Database, row: RunRow, steps: Sequence[int]) -> tuple[int, str]:
    """Choose the env step of the best evaluation: by win rate, then by return, then the later one; or the nearest.

    A trainer keeps that policy; runs of earlier versions, and a disk that was full then, have only what is near it.
    """
    frame = evaluations(db, row.id)
    if not len(frame):
        return max(steps), "the newest, as there is no evaluation to choose by"
    best = frame.sort_values(["win_rate", "return_mean", "env_step"]).iloc[-1]
    at, rate = int(best["env_step"]), float(best["win_rate"])
    step = min(steps, key=lambda each: (abs(each - at), -each))
    if step == at:
        return step, f"that of the best evaluation ({percent(rate)} won)"
    return step, f"of {len(steps)} the nearest to the best evaluation, at {at:,} ({percent(rate)} won)"


def read_config(row: RunRow) -> RunConfig:
    """Read the configuration of a run that is to be played or trained here.

    Raises:
        ConfigError: If this version or machine does not know its algorithm, settings or game; in one sentence.
    """
    refuse_imported(row, "be played")
    try:
        config = config_from_stored(row.config)
        check_trusted(config.env)
        check_available(config.env)
    except (ConfigError, EnvUnavailableError) as exc:
        raise ConfigError(
            "cannot be played here", key=f"run {row.id} ({row.algo} on {row.map})", hint=describe_error(exc)[0]
        ) from exc
    return config


def load_policy(
    run: str,
    db: str | Path | Database | None = None,
    *,
    checkpoint: Wanted = "last",
    device: Literal["auto", "cpu", "cuda"] = "cpu",
) -> Policy:
    """Load what a run has learned: greedy actions for observations, without its trainer.

    Args:
        run: Id of the run, or the beginning of one.
        db: File or URL of its database, or an open one; as EMTC_DB says, else runs/emtc.db, when missing.
        checkpoint: "last", "best" or an env step; see `choose_checkpoint`.
        device: Where it computes.

    Returns:
        The policy: `reset()`, then `act(obs, avail)` once for each step.

    Raises:
        EmtcError: In one sentence, if the run, its checkpoint or its game is not here.
    """
    if isinstance(db, Database):
        return _load(db, find_run(db, run), checkpoint, choose_device(device))[0]
    opened = open_database(db or os.environ.get("EMTC_DB") or DEFAULT_DATABASE)
    try:
        return _load(opened, find_run(opened, run), checkpoint, choose_device(device))[0]
    finally:
        opened.dispose()


def _load(db: Database, row: RunRow, wanted: Wanted, device: torch.device) -> tuple[Policy, RunConfig, Chosen]:
    config = read_config(row)
    chosen = choose_checkpoint(db, row, wanted)
    policy = Policy(
        config, _sizes(config.env), _read_weights(db, row.id, chosen), env_step=chosen.env_step, device=device
    )
    return policy, config, chosen


def _read_weights(db: Database, run_id: str, chosen: Chosen) -> dict[str, object]:
    """Read the learner's part of a checkpoint in its folder, or from the URL that it was carried to."""
    path, files = run_folder(db, run_id) / chosen.name, run_place(db, run_id).files_of(run_id)
    if files is None or (path.is_file() and is_ours(files, path.parent)):
        return load_part(path, "learner", run_id=run_id)[1]
    with TemporaryDirectory() as folder:
        fetched = Path(folder) / chosen.name
        files.fetch(chosen.name, fetched)
        return load_part(fetched, "learner", run_id=run_id)[1]


def _sizes(env: EnvConfig) -> EnvInfo:
    known = get_env_info(env)
    if known is not None:
        return known
    started = make_env(env, n_envs=1)
    try:
        return started.info
    finally:
        started.close()


def evaluate_policy(
    db: Database,
    run: str,
    *,
    checkpoint: Wanted = "last",
    episodes: int,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    on_chosen: Callable[[Chosen], None] = lambda chosen: None,
) -> Evaluated:
    """Play greedy episodes with a stored policy, and write down what it did, in a table of its own.

    Args:
        db: An open database that can be written.
        run: Id of the run, or the beginning of one.
        checkpoint: Which of its checkpoints.
        episodes: How many.
        seed: Of the episodes, which no evaluation of the training plays; that of the run when missing.
        overrides: Settings of the game that differ from the training's, as "env.skirmish.spawn_jitter=0.5".
        on_chosen: Told which checkpoint was taken, before anything is played.

    Raises:
        EmtcError: In one sentence, if it cannot be done; then nothing is written.
    """
    row = find_run(db, run)
    configure_threads()  # a script that loads a policy keeps its own
    policy, config, chosen = _load(db, row, checkpoint, choose_device("auto"))
    changed = _change_game(config, overrides)
    env = make_env(changed.env, n_envs=min(episodes, config.train.n_envs))
    seed = row.seed if seed is None else seed
    try:
        _check_sizes(policy, env, row)
        on_chosen(chosen)
        collector = Collector(env, reward_scale=1.0, seed=seed, stream=_STREAM)
        record = make_record(play_greedily(collector, policy.learner, (), episodes), chosen.env_step)
    finally:
        env.close()
    was = flatten(config)
    settings = {key: value for key, value in flatten(changed).items() if was.get(key) != value}
    number = add_policy_evaluation(db, row.id, record, seed=seed, settings=settings)
    return Evaluated(number, row.id, chosen, record, seed, settings, str(choose_device("auto")))


def _change_game(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    if strange := [key for key in parse_overrides(overrides) if not key.startswith("env.")]:
        rule = "must be a setting of the game, env.…, because only these can differ from the training"
        raise ConfigError(*(Fault(key, rule=rule) for key in strange))
    changed = change(config, overrides)
    check_available(changed.env)
    check_trusted(changed.env)
    return changed


def _check_sizes(policy: Policy, env: VectorEnv, row: RunRow) -> None:
    here, there = (
        (f"{info.n_agents} agents, {info.n_actions} actions, {info.obs_dim} observed numbers")
        for info in (env.info, policy.info)
    )
    if here != there:
        raise ConfigError(f"The policy of run {row.id} is for {there}; the game that was set has {here}")


def export_policy(db: Database, run: str, out: Path, *, checkpoint: Wanted = "last") -> Chosen:
    """Write a policy as TorchScript, once it was read back and chose as the policy does in real episodes.

    Raises:
        EmtcError: In one sentence, if it cannot be done; then there is no file.
    """
    row = find_run(db, run)
    policy, config, chosen = _load(db, row, checkpoint, torch.device("cpu"))
    info = policy.info
    facts = {
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
    with replaced(out) as file:
        write_script(policy, config, file, facts=facts)
        file.flush()
        with Path(file.name).open("rb") as written:
            _check_same(policy, ScriptedPolicy(written), config)
    return chosen


def _check_same(policy: Policy, script: ScriptedPolicy, config: RunConfig) -> None:
    """Play real episodes with both."""
    env = make_env(config.env, n_envs=_CHECKED_EPISODES)
    try:
        collector = Collector(env, reward_scale=1.0, seed=config.seed, stream=_STREAM)
        collector.collect(_Both(policy, script), epsilon=0.0, round=(0,))
    finally:
        env.close()


class _Both:
    """Acts as a policy does, and refuses a script that would have done something else."""

    def __init__(self, policy: Policy, script: ScriptedPolicy) -> None:
        self._learner, self._script = policy.learner, script

    def begin(self, n_envs: int) -> None:
        self._learner.begin(n_envs)
        self._script.begin(n_envs)

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        action = self._learner.act(obs, avail, epsilon=epsilon, rng=rng)
        if not np.array_equal(action, self._script.act(obs, avail)):
            raise CheckpointError("The policy that was written does not act as the stored one; it was not kept.")
        return action
