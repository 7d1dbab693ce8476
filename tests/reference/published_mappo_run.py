"""Run the published MAPPO; part of make_published_fixtures.py.

Their runner's order: the policy acts for all steps of all environments, the buffer computes the returns, the trainer
makes its passes. Inputs contain the agent's id behind the observation, as ours do; who acts, in which order episodes
follow one another in an environment, and which agents are dead is made up.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.reference.published_inputs import T_LIM, A, Arrays, Episode, N, O, S, make_episode, store_batches
from tests.reference.published_run import flatten, list_weights, round_weights

LENGTHS = (7, 7, 5, 4, 5)
ENVS = ((0, 1), (2, 3, 4))
"""The episodes of each environment; together 14 steps each, the last episode of the first is cut and bootstrapped."""
STEPS = 14
UPDATES, EPOCHS = 3, 3
SETTINGS = {
    "algorithm_name": "mappo",
    "use_recurrent_policy": False,
    "use_value_active_masks": False,  # as in their scripts for SMAC
    "episode_length": STEPS,
    "n_rollout_threads": len(ENVS),
    "hidden_size": 8,
    "ppo_epoch": EPOCHS,
    "lr": 5e-3,
    "critic_lr": 5e-3,
}


def make_rollout(rng: np.random.Generator) -> list[Episode]:
    """Make episodes in which the second agent dies after two steps; the actions are not those of the policy yet."""
    episodes = [make_episode(rng, n, terminated=i != ENVS[0][-1]) for i, n in enumerate(LENGTHS)]
    for e in episodes:
        e.avail[2:, 1] = np.arange(A) == 0
    return episodes


def import_theirs(checkout: Path) -> Any:
    """Import their modules without the package's `__init__`, which imports every environment."""
    package = ModuleType("onpolicy")
    package.__path__ = [str(checkout / "onpolicy")]
    sys.modules["onpolicy"] = package
    from onpolicy.algorithms.r_mappo.algorithm.rMAPPOPolicy import R_MAPPOPolicy
    from onpolicy.algorithms.r_mappo.r_mappo import R_MAPPO
    from onpolicy.config import get_config
    from onpolicy.utils.shared_buffer import SharedReplayBuffer

    args = get_config().parse_args([])
    vars(args).update(SETTINGS)
    return SimpleNamespace(args=args, Policy=R_MAPPOPolicy, Trainer=R_MAPPO, Buffer=SharedReplayBuffer)


def make_parts(theirs: Any) -> tuple[Any, Any]:
    """Make a trainer and a buffer in float64, with rounded weights."""
    Discrete = type("Discrete", (), {"n": A})
    spaces = [O + N], [S + O + N], Discrete()
    torch.manual_seed(5)
    policy = theirs.Policy(theirs.args, *spaces)
    trainer = theirs.Trainer(theirs.args, policy)
    norm = trainer.value_normalizer
    for part in (trainer, policy.actor, policy.critic, norm):
        part.tpdv = {"dtype": torch.float64, "device": torch.device("cpu")}
    for name in ("running_mean", "running_mean_sq", "debiasing_term"):
        setattr(norm, name, getattr(norm, name).detach().double())
    for network in (policy.actor, policy.critic):
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape)
        round_weights(network)
    buffer = theirs.Buffer(theirs.args, N, *spaces)
    for name, values in vars(buffer).items():
        if isinstance(values, np.ndarray):
            setattr(buffer, name, values.astype(np.float64))
    return trainer, buffer


def lay_out(episodes: list[Episode]) -> dict[str, np.ndarray]:
    """Put episodes one behind the other: [steps + 1, environments, agents, ...]."""
    rows: dict[str, list[np.ndarray]] = {"obs": [], "share": [], "avail": [], "mask": [], "reward": []}
    ids = np.eye(N)
    for env in ENVS:
        chosen = [episodes[i] for i in env]
        ends = [len(e.state) - (e is not chosen[-1]) for e in chosen]  # the last state of the last episode is kept
        obs, state, avail = (
            np.concatenate([getattr(e, name)[:n] for e, n in zip(chosen, ends, strict=True)])
            for name in ("obs", "state", "avail")
        )
        own = np.concatenate([obs, np.broadcast_to(ids, (len(obs), N, N))], -1)
        rows["obs"].append(own)
        rows["share"].append(np.concatenate([np.repeat(state[:, None], N, 1), own], -1))
        rows["avail"].append(avail)
        # 0 at the state after the last transition of an episode
        over = np.concatenate([np.arange(1, len(e.reward) + 1) == len(e.reward) + (not e.terminated) for e in chosen])
        rows["mask"].append(np.repeat(1.0 - np.concatenate([[False], over])[:, None], N, 1))
        reward = np.concatenate([e.reward for e in chosen])
        rows["reward"].append(np.repeat(reward[:, None], N, 1))
    return {name: np.stack(values, 1).astype(np.float64) for name, values in rows.items()}


def play(trainer: Any, buffer: Any, rows: dict[str, np.ndarray], *, deterministic: bool) -> np.ndarray:
    """Let their policy act and fill the buffer; return the actions [steps, environments, agents]."""
    column = {name: values[..., None] for name, values in rows.items() if name in ("mask", "reward")}
    alive = rows["avail"][..., 1:].any(-1, keepdims=True)
    buffer.step = 0
    buffer.obs[0], buffer.share_obs[0] = rows["obs"][0], rows["share"][0]
    buffer.available_actions[0], buffer.active_masks[0] = rows["avail"][0], alive[0]
    buffer.masks[0] = 1.0
    split = lambda x: x.detach().numpy().reshape(len(ENVS), N, *x.shape[1:])  # noqa: E731
    for t in range(STEPS):
        read = (buffer.share_obs, buffer.obs, buffer.rnn_states, buffer.rnn_states_critic, buffer.masks)
        inputs = [np.concatenate(x[t]) for x in (*read, buffer.available_actions)]
        value, action, log_prob, hidden, hidden_critic = trainer.policy.get_actions(
            *inputs, deterministic=deterministic
        )
        buffer.insert(
            rows["share"][t + 1],
            rows["obs"][t + 1],
            split(hidden),
            split(hidden_critic),
            split(action),
            split(log_prob),
            split(value),
            column["reward"][t],
            column["mask"][t + 1],
            active_masks=alive[t + 1],
            available_actions=rows["avail"][t + 1],
        )
    return buffer.actions[..., 0].astype(int)


def cut(actions: np.ndarray, episodes: list[Episode]) -> list[np.ndarray]:
    """Cut the actions of the environments into episodes."""
    found = {}
    for b, env in enumerate(ENVS):
        ends = np.cumsum([len(episodes[i].reward) for i in env])
        found |= dict(zip(env, np.split(actions[:, b], ends[:-1]), strict=True))
    return [found[i] for i in range(len(episodes))]


def run_mappo(checkout: Path) -> Arrays:
    """Collect and train three times; the actions that their policy took become part of the inputs."""
    from tests.reference.make_published_fixtures import Watch, in_double

    rng = np.random.default_rng(7)
    theirs = import_theirs(checkout)
    rollouts, reports = [], []
    with in_double():
        trainer, buffer = make_parts(theirs)
        networks = {"actor": trainer.policy.actor, "critic": trainer.policy.critic}
        weights = {"names": list_weights(networks), "before": flatten(networks).astype(np.float16)}
        watch = Watch(theirs.Trainer.ppo_update.__code__, ("imp_weights",))
        for _ in range(UPDATES):
            episodes = make_rollout(rng)
            rows = lay_out(episodes)
            with torch.no_grad():
                taken = cut(play(trainer, buffer, rows, deterministic=False), episodes)
                inputs = (buffer.share_obs[-1], buffer.rnn_states_critic[-1], buffer.masks[-1])
                following = trainer.policy.get_values(*map(np.concatenate, inputs))
            buffer.compute_returns(following.numpy().reshape(len(ENVS), N, 1), trainer.value_normalizer)
            sys.setprofile(watch)
            report = trainer.train(buffer)
            sys.setprofile(None)
            rollouts.append([e._replace(action=action) for e, action in zip(episodes, taken, strict=True)])
            reports.append({name: float(value) for name, value in report.items()})
            reports[-1]["return"] = float(buffer.returns[:-1].mean())
        out = store_batches(rollouts) | weights | {"after": flatten(networks)}
        norm = trainer.value_normalizer
        out["norm"] = np.array([float(x) for x in (norm.running_mean, norm.running_mean_sq, norm.debiasing_term)])
        with torch.no_grad():
            greedy = cut(play(trainer, buffer, rows, deterministic=True), rollouts[-1])
    out["greedy"] = np.stack([np.pad(a, ((0, T_LIM - len(a)), (0, 0))) for a in greedy]).astype(np.int8)
    out["ratio"] = np.stack([seen["imp_weights"] for seen in watch.seen])[..., 0]
    return out | {f"report/{name}": np.array([r[name] for r in reports]) for name in reports[0]}
