"""What published code computed, read for our own learner and memory: fixtures, names of weights, batches.

The arrays in tests/assets/published are the output of make_published_fixtures.py, whose docstring names the commits.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones import dmix
from emtc_core.learner.backbones.dmix import QuantileAgent
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.diversity import Diversity
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.mixers import qplex
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.rollout.episode import Episode
from tests.core.learner_cases import make_batch, to_double
from tests.reference.published_inputs import BLOCK, T_LIM, A, Arrays, N, O, S

ASSETS = Path(__file__).parents[1] / "assets" / "published"
INFO = EnvInfo("test", "published", N, A, O, S, T_LIM, (-1.0, 1.0), agent_block=BLOCK)
FOOTBALL = dataclasses.replace(INFO, agent_block=0)
"""There the attention mixer reads the agents' observations."""
TARGET_INTERVAL = 3
T_ENV, T_ENV_STEP = 900_000, 50_000
SIZES = {
    qplex: {"KERNEL_WIDTH": 5, "TRANSFORM_WIDTH": 7, "ATTENTION_WIDTH": 6, "BIAS_WIDTH": 6},
    dmix: {"N_FRACTIONS": 3, "N_TARGET_FRACTIONS": 4, "N_ACT_FRACTIONS": 6, "N_COS": 5},
}
"""Constants of our modules that the fixtures have smaller."""

Weights = dict[str, Tensor]


def read(name: str) -> Arrays:
    """Load one fixture; its arrays are this caller's own."""
    with np.load(ASSETS / f"{name}.npz") as file:
        return dict(file)


def use_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the constants of our modules to the fixtures' sizes."""
    for module, sizes in SIZES.items():
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)


def make_settings(algo: str, *, target_interval: int = TARGET_INTERVAL, **sections: Any) -> RunConfig:
    """Configure an algorithm with the fixtures' sizes and the published optimiser."""
    train = {"hidden": 8, "target_interval": target_interval, "bootstrap_on_timeout": True}
    values = {
        "train": train | sections.pop("train", {}),
        "qmix": {"mixing_embed": 6, "hypernet_embed": 7},
    }
    return RunConfig.model_validate({"algo": algo} | values | sections)


def read_batches(fixture: Arrays) -> list[Batch]:
    """Pass the stored episodes through a real replay buffer, in float64 behind it."""
    return [
        to_double(make_batch([read_episode(fixture, k, b) for b in range(n)], INFO, bootstrap_on_timeout=True))
        for k, n in enumerate(map(len, fixture["length"]))
    ]


def read_episode(fixture: Arrays, k: int, b: int) -> Episode:
    """Read one episode of batch k."""
    n = fixture["length"][k, b]
    obs, state, avail = (fixture[name][k, b, : n + 1] for name in ("obs", "state", "avail"))
    return Episode(
        obs=obs.astype(np.float32),
        state=state.astype(np.float32),
        avail=avail,
        action=fixture["action"][k, b, :n].astype(np.int64),
        reward=fixture["reward"][k, b, :n].astype(np.float32),
        terminated=bool(fixture["terminated"][k, b]),
        truncated=not fixture["terminated"][k, b],
        won=False,
        episode_return=0.0,
    )


def unpack(fixture: Arrays, which: str) -> Weights:
    """Split a flat vector of weights by the names and shapes that stand beside it."""
    flat, found, at = torch.from_numpy(fixture[which].astype(np.float64)), {}, 0
    for line in fixture["names"]:
        name, _, shape = str(line).partition(" ")
        sizes = [int(n) for n in shape.split("x")]
        if at < len(flat):
            found[name] = flat[at : at + int(np.prod(sizes))].view(sizes)
        at += int(np.prod(sizes))
    return found


def load_learner(fixture: Arrays, config: RunConfig, info: EnvInfo = INFO) -> ValueLearner:
    """Make our learner in float64 with the published weights before the first update, targets equal to them."""
    learner = make_learner(config, info, device="cpu", seed=0)
    assert isinstance(learner, ValueLearner)
    before = unpack(fixture, "before")
    for network in (learner.online, learner.target):
        network.double().load_state_dict(translate(before))
        if isinstance(network.agent, QuantileAgent):  # made in float32
            network.agent.frequency = torch.pi * torch.arange(len(network.agent.get_buffer("frequency"))).double()
    for part in learner._intrinsic:
        if isinstance(part, Diversity):
            for predictors in (part._online, part._target):
                predictors.double().load_state_dict(translate_predictors(before))
        if isinstance(part, Curiosity):
            for network in (part._online, part._target, part._soft):
                network.double().load_state_dict(translate_agent(before, "vdn"))
            part._predictor.double().load_state_dict(translate_agent(before, "predictor"))
    return learner


def load_mappo_learner(fixture: Arrays, config: RunConfig) -> MappoLearner:
    """Make our MAPPO in float64 with the published weights before the first update."""
    learner = make_learner(config, INFO, device="cpu", seed=0)
    assert isinstance(learner, MappoLearner)
    before = unpack(fixture, "before")
    for which, network in {"actor": learner.actor, "critic": learner.critic}.items():
        network.double().load_state_dict(translate_mappo(before, which))
    norm = learner._value_norm
    norm.set_state({name: value.double() for name, value in norm.get_state().items()})
    return learner


def translate_mappo(theirs: Weights, which: str) -> Weights:
    """Rename the weights of MAPPO's actor or critic: ours is one sequence of layers."""
    head = {"actor": "act.action_out.linear", "critic": "v_out"}[which]
    layers = {0: "base.feature_norm", 1: "base.mlp.fc1.0", 3: "base.mlp.fc1.2"}
    layers |= {4: "base.mlp.fc2.0.0", 6: "base.mlp.fc2.0.2", 7: head}
    return {f"{i}.{kind}": theirs[f"{which}.{name}.{kind}"] for i, name in layers.items() for kind in KINDS}


def translate(theirs: Weights) -> Weights:
    """Rename and regroup the weights of an agent and its mixer: from published names to those of our backbones."""
    ours = {f"agent.{name}": value for name, value in translate_agent(theirs, "agent").items()}
    if "agent.mlp.0.weight" in theirs:
        ours |= _grouped(theirs, "agent.mlp.{}", "agent.head")
    if "mixer.hyper_b_1.weight" in theirs:
        for old, new in {"hyper_w_1": "w1", "hyper_w_final": "w2", "V": "b2"}.items():
            ours |= _renamed(theirs, f"mixer.{old}.", f"mixer.hyper_{new}.")
        ours |= _renamed(theirs, "mixer.hyper_b_1.", "mixer.hyper_b1.")
    if "agent.phi.weight" in theirs:
        ours = {name.replace("mixer.", "mixer.mean_mixer."): value for name, value in ours.items()}
        ours |= _renamed(theirs, "agent.phi.", "agent.phi.")
    if "mixer.attention_weight.V.0.weight" in theirs:
        ours |= _attention(theirs)
    elif "mixer.si_weight.key_extractors.0.0.weight" in theirs:
        ours |= _renamed(theirs, "mixer.hyper_w_final.", "mixer.transform.weight.")
        ours |= _renamed(theirs, "mixer.V.", "mixer.transform.bias.")
    for old, new in {"key": "key", "agents": "agents", "action": "action"}.items():
        ours |= _kernels(theirs, f"mixer.si_weight.{old}_extractors.", f"mixer.importance.{new}")
    return ours


def translate_agent(theirs: Weights, which: str) -> Weights:
    """Rename the weights of a recurrent agent, without the name of the part."""
    ours = {f"{layer}.{kind}": theirs[f"{which}.{layer}.{kind}"] for layer in ("fc1", "fc2") for kind in KINDS}
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        name = f"{which}.rnn.{kind}"  # a cell, or a layer of one cell
        ours[f"rnn.{kind}_l0"] = theirs[name if name in theirs else f"{name}_l0"]
    return ours


def translate_predictors(theirs: Weights) -> Weights:
    """Rename the weights of CDS's two predictors."""
    ours = {}
    for kind in KINDS:
        for old, p, q in (("linear1", 0, "first"), ("linear2", 2, "second"), ("last_fc", 4, "last")):
            ours[f"p.{p}.{kind}"] = theirs[f"p.{old}.{kind}"]
            ours[f"q_{q}.{kind}"] = theirs[f"q.{old}.{kind}"]
    return ours


KINDS = ("weight", "bias")


def _renamed(theirs: Weights, old: str, new: str) -> Weights:
    return {new + name.removeprefix(old): value for name, value in theirs.items() if name.startswith(old)}


def _stacked(theirs: Weights, pattern: str) -> Tensor:
    return torch.stack([theirs[pattern.format(i)] for i in range(64) if pattern.format(i) in theirs])


def _grouped(theirs: Weights, pattern: str, new: str) -> Weights:
    """Turn G linear layers into one grouped layer, whose weights are [G, in, out]."""
    weight, bias = (_stacked(theirs, f"{pattern}.{kind}") for kind in KINDS)
    return {f"{new}.weight": weight.mT.contiguous(), f"{new}.bias": bias}


def _attention(theirs: Weights) -> Weights:
    old, new = "mixer.attention_weight.", "mixer.transform."
    hidden = _grouped(theirs, old + "selector_extractors.{}.0", new + "query_hidden")
    hidden[new + "query_hidden.bias"] = hidden[new + "query_hidden.bias"].unsqueeze(1)
    products = {
        new + "query": _stacked(theirs, old + "selector_extractors.{}.2.weight").mT.contiguous(),
        new + "key": _stacked(theirs, old + "key_extractors.{}.weight").mT.contiguous(),
    }
    bias = _renamed(theirs, old + "V.", new + "bias.")
    return hidden | products | bias | _renamed(theirs, old + "hyper_w_head.", new + "head_weight.")


def _kernels(theirs: Weights, old: str, new: str) -> Weights:
    """Regroup K networks of one to three layers; the first layers of all K are one matrix."""
    if f"{old}0.weight" in theirs:
        layers = [old + "{}"]
    else:
        layers = [old + "{}." + str(i) for i in (0, 2, 4) if f"{old}0.{i}.weight" in theirs]
    if not layers:
        return {}
    first = {f"{new}.first.{kind}": _stacked(theirs, f"{layers[0]}.{kind}").flatten(0, 1) for kind in KINDS}
    for i, layer in enumerate(layers[1:]):
        first |= _grouped(theirs, layer, f"{new}.rest.{i}")
    return first
