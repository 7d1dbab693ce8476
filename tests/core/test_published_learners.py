"""Our learners against what published ones computed from the same weights and batches, in float64.

Fixtures: tests/reference/make_published_fixtures.py. Where published code and ours differ on purpose:

* The attention regulariser is averaged over padding there and over real steps here, so fixtures with padding have it
  off, and those that have it on are not padded.
* There `episode` counts the episodes before the one just collected, here `episodes_total` counts that one too. The
  fixtures' updates are numbered as there, from 0, and the tests hand `on_episodes` the same numbers; so copies come
  after the same update, which in training is one collected episode earlier here.
* CDS's L1 term is averaged there, on SMAC, over every step that was unrolled, the last one and padding too. It is held
  against the published private values on its own, and widened to all steps where whole updates are compared.
* The incentive is not masked on terminating transitions there, `incentive.mask_terminal = false` here.
* EMC recalls H(s') where an episode ends, too; in the fixture it is 0 there. Its curiosity does not decay in it.
* DMIX and MAPPO draw random numbers: the fractions of DMIX and the actions of MAPPO's policy are part of the fixtures.
  To act greedily the published DMIX was given the fractions that ours uses. MAPPO's inputs end with the agent's id,
  all environments have the same number of steps, and each pass is one minibatch.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.gate.incentive import compute_incentive_inputs
from emtc_core.learner.backbones import dmix
from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.curiosity import Curiosity
from emtc_core.learner.learner import IncentiveInputs, ValueLearner, make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.networks import make_sequence_batch
from emtc_core.memory.nodes import Recall
from emtc_core.replay_buffer.buffer import Batch
from tests.reference import published
from tests.reference.published import INFO, T_ENV, T_ENV_STEP, Arrays, make_settings

# Both sides compute in float64; only the order of sums differs. Losses reach 1e4, hence the relative part.
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
NO_PADDED_TERM = {"attend_reg": 0.0}
EMU = make_settings(
    "emu-qplex",
    target_interval=100,
    qplex=NO_PADDED_TERM,
    incentive={"clamp": "positive", "ratio_eps": 1e-3, "mask_terminal": False},
    curiosity={"scale": 0.0},
    gate={"enabled": False},
)
CASES = {
    "qplex": make_settings("qplex"),
    "qplex_padded": make_settings("qplex", qplex=NO_PADDED_TERM),
    "qplex_weighted": make_settings("qplex", qplex={"weighted_head": True}),
    "qplex_nonlinear": make_settings("qplex", qplex={"weighted_head": True, "nonlinear": True}),
    "dmaq": make_settings(
        "qplex", qplex={"mixer": "dmaq", "weighted_head": True, "adv_hypernet_layers": 3, "num_kernel": 2}
    ),
    "qmix": make_settings("qmix"),
    "vdn": make_settings("vdn"),
    "emu": EMU,
}
CDS = make_settings("cds", cds={"b1": 0.5, "b2": 0.5, "beta": 0.1, "anneal": 5.0})
FOOTBALL_CDS = {
    mixer: make_settings(
        "cds",
        cds={"mixer": mixer, "b1": 0.5, "b2": 1.0, "beta": 0.05, "policy_mixture": "histories"}
        | {"predictor_schedule": "periodic", "predictor_lr": 3e-4},
    )
    for mixer in ("qplex", "qmix")
}
PREDICTORS_LEARN_AFTER = 1
CURIOUS = make_settings("qplex", qplex=NO_PADDED_TERM, curiosity={"scale": 0.5, "decay_cycle": 10**9})
EMC = make_settings(
    "emc",
    curiosity={"scale": 0.5, "decay_cycle": 10**9},
    ec={"enabled": True, "lambda": 0.1},
    incentive={"enabled": False},
    gate={"enabled": False},
)
DMIX = {
    name: make_settings("dmix", train={"optimizer": "adam", "double_q": double_q})
    for name, double_q in {"dmix": False, "dmix_double": True}.items()
}
MAPPO = make_settings("mappo", train={"lr": 5e-3}, mappo={"epochs": 3})


@pytest.fixture(autouse=True)
def _use_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    published.use_sizes(monkeypatch)


def check(name: str, actual: object, wanted: np.ndarray, **tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(actual), wanted, err_msg=name, **(CLOSE | tolerance))


def check_updates(
    fixture: Arrays,
    config: RunConfig,
    info: EnvInfo = INFO,
    after_update: Callable[[ValueLearner, Batch, int], None] = lambda *_: None,
) -> ValueLearner:
    """Make the fixture's updates; every loss, gradient norm, Q and weight must be the published one."""
    learner, batches = published.load_learner(fixture, config, info), published.read_batches(fixture)
    check_values(learner, batches[0], fixture["q_first"])
    for k, loss in enumerate(fixture["loss"]):
        batch = batches[k % len(batches)]
        if k + 1 == len(fixture["loss"]):
            check_values(learner, batch, fixture["q_last"])
        recalled = recall(fixture, k, config) if "recalled/h" in fixture else None
        check_q_tot(learner, batch, fixture["q_tot"][k])
        stats = learner.update(batch, recalled, env_step=T_ENV + k * T_ENV_STEP)
        check("loss", stats["train/loss"], loss)
        check("gradient norm", stats["train/grad_norm"], fixture["grad_norm"][k])
        if "target" in fixture:
            target = (fixture["target"][k] * batch.filled.numpy()).sum() / batch.length.sum()
            check("mean target", stats["train/target"], target)
        if "priority" in fixture:
            check("priority", stats.episode_error, fixture["priority"][k])
        learner.on_episodes(k)
        after_update(learner, batch, k)
    for which, network in {"after": learner.online, "copied": learner.target}.items():
        check_weights(which, network, published.translate(published.unpack(fixture, which)))
    return learner


def check_weights(name: str, network: torch.nn.Module, wanted: published.Weights) -> None:
    assert network.state_dict().keys() == wanted.keys()
    for key, value in wanted.items():
        check(f"{name} {key}", network.state_dict()[key], value.numpy())


def check_values(learner, batch, wanted: np.ndarray) -> None:
    """Compare Q_i [B, T+1, N, A] at all steps that are real."""
    seq = make_sequence_batch(batch, agent_id=learner._agent_id)
    with torch.no_grad():
        actual = seq.rows.unpack(learner.online.unroll(seq, torch.Generator()).q).transpose(0, 1).numpy()
    for b, n in enumerate(batch.length):
        check("Q_i", actual[b, : n + 1], wanted[b, : n + 1])


def check_q_tot(learner, batch, wanted: np.ndarray) -> None:
    seq = make_sequence_batch(batch, agent_id=learner._agent_id)
    with torch.no_grad():
        q_tot = learner.online.evaluate_taken(learner.online.unroll(seq, torch.Generator()), seq).q_tot
    real = batch.filled.numpy()
    check("Q_tot", q_tot.T.numpy()[real], wanted[real])


def recall(fixture: Arrays, k: int, config: RunConfig) -> IncentiveInputs:
    """Weigh what the published memory recalled at update k by our rules; EMC's has H alone."""
    if "recalled/rho" not in fixture:
        h, hit = fixture["recalled/h"][k], fixture["recalled/hit"][k] > 0
        return IncentiveInputs(torch.from_numpy(h), torch.zeros(h.shape), torch.from_numpy(hit))
    read = {name: fixture[f"recalled/{name}"][k] for name in ("h", "n_call", "n_xi", "xi", "hit")}
    found = Recall(read["h"], read["n_call"], read["n_xi"], read["xi"] > 0, read["hit"] > 0)
    terminated = published.read_batches(fixture)[k % len(fixture["length"])].ends
    h, rho = compute_incentive_inputs(found, terminated, config.incentive)
    return IncentiveInputs(torch.from_numpy(h), torch.from_numpy(rho), torch.from_numpy(found.hit))


@pytest.mark.parametrize("name", CASES)
def test_updates_equal_the_published_ones(name):
    check_updates(published.read(name), CASES[name])


@pytest.mark.parametrize("name", ["qplex", "cds", "emc", "dmix_double"])
def test_greedy_actions_equal_the_published_ones(name):
    fixture = published.read(name)
    config = (CASES | DMIX | {"cds": CDS, "emc": EMC})[name]
    learner = make_learner(config, INFO, device="cpu", seed=0)
    assert isinstance(learner, ValueLearner)
    learner.online.load_state_dict(published.translate(published.unpack(fixture, "after")))
    learner.start_episodes(len(fixture["greedy"]))
    rng = np.random.default_rng(0)
    for t in range(fixture["greedy"].shape[1]):
        obs, avail = fixture["obs"][0, :, t].astype(np.float32), fixture["avail"][0, :, t]
        np.testing.assert_array_equal(learner.act(obs, avail, epsilon=0.0, rng=rng), fixture["greedy"][:, t])


# ---- CDS ----


def widen_l1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Average the private values over all steps that were unrolled, as published."""

    def every_step(self: ValueBackbone, unrolled, seq):
        mean = self._l1 * self.agent.private_values(unrolled.hidden).abs().mean()
        return mean.expand(len(seq.action))

    monkeypatch.setattr(ValueBackbone, "_private_l1", every_step)


def test_updates_of_cds_equal_the_published_ones(monkeypatch):
    widen_l1(monkeypatch)
    check_updates(published.read("cds"), CDS)


def test_the_l1_term_is_the_published_one_without_the_last_step():
    fixture = published.read("cds")
    learner = published.load_learner(fixture, CDS)
    seq = make_sequence_batch(published.read_batches(fixture)[0], agent_id=False)
    with torch.no_grad():
        unrolled = learner.online.unroll(seq, torch.Generator())
        private = seq.rows.unpack(learner.online.agent.private_values(unrolled.hidden)).transpose(0, 1)
        ours = seq.rows.transitions.unpack(learner.online._private_l1(unrolled, seq)).T
    for b, n in enumerate(fixture["length"][0]):
        check("private values", private[b, : n + 1], fixture["private"][b, : n + 1])
        check("L1", ours[b, :n], 0.1 * np.abs(fixture["private"][b, :n]).mean((-1, -2)))


def learn_once(learner: ValueLearner, batch: Batch, k: int) -> None:
    """Train the predictors as after sixteen episodes: 25 passes over a batch that is one chunk."""
    if k != PREDICTORS_LEARN_AFTER:
        return
    (part,) = learner._intrinsic
    part.on_episodes(16)
    seq = make_sequence_batch(batch, agent_id=False)
    with torch.no_grad():
        unrolled = learner.online.unroll(seq, torch.Generator())
    part.train(seq, unrolled, env_step=0, generator=torch.Generator())


@pytest.mark.parametrize("mixer", ["qplex", "qmix"])
def test_updates_of_cds_on_football_equal_the_published_ones(mixer):
    """Their L1 term is masked as ours is, so nothing is widened; intrinsic rewards enter every target compared.

    P averages over histories there. The predictors train on a batch of the test's choice, targets are copied after
    update 3, so that the targets of the last two depend on them.
    """
    fixture = published.read(f"cds_football_{mixer}")
    check_updates(fixture, FOOTBALL_CDS[mixer], published.FOOTBALL, learn_once)


# ---- EMU's curiosity, which is EMC's ----


def test_updates_with_curiosity_equal_the_published_ones():
    fixture = published.read("emu_curiosity")
    check_curiosity(check_updates(fixture, CURIOUS), fixture)


def check_curiosity(learner: ValueLearner, fixture: Arrays) -> None:
    """Compare the weights of curiosity's four networks."""
    (part,) = learner._intrinsic
    assert isinstance(part, Curiosity)
    after, copied = (published.unpack(fixture, which) for which in ("after", "copied"))
    wanted = {"vdn": (part._online, after), "predictor": (part._predictor, after)}
    for which, (network, weights) in wanted.items():
        check_weights(which, network, published.translate_agent(weights, which))
    check_weights("target", part._target, published.translate_agent(copied, "vdn"))
    check_weights("soft copy", part._soft, published.translate_agent(copied, "predictor"))


# ---- EMC ----


def test_updates_of_emc_equal_the_published_ones():
    learner = check_updates(published.read("emc"), EMC)
    check_curiosity(learner, published.read("emc"))


# ---- DMIX ----


def check_dmix(monkeypatch: pytest.MonkeyPatch, name: str, fixture: Arrays) -> None:
    """Make the updates with the published fractions; the two networks use different numbers of them."""
    at = [0]

    def rand(shape: tuple[int, ...], **_: object) -> torch.Tensor:
        which = {3: "online", 4: "target"}[shape[-1]]
        fractions = torch.from_numpy(fixture[f"fractions/{which}"][at[0]].astype(np.float64))
        return fractions[: shape[0]]

    def check_next(learner: ValueLearner, batch: Batch, k: int) -> None:
        at[0] = min(k + 1, len(fixture["loss"]) - 1)

    monkeypatch.setattr(dmix, "rand", rand)
    check_updates(fixture, DMIX[name], after_update=check_next)


@pytest.mark.parametrize("name", DMIX)
def test_updates_of_dmix_equal_the_published_ones(name, monkeypatch):
    check_dmix(monkeypatch, name, published.read(name))


# ---- MAPPO ----


def check_mappo(monkeypatch: pytest.MonkeyPatch, fixture: Arrays) -> MappoLearner:
    """Train on the published rollouts; every report, weight and running moment must be the published one."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    learner = published.load_mappo_learner(fixture, MAPPO)
    names = {"train/value_loss": "value_loss", "train/policy_loss": "policy_loss", "train/entropy": "dist_entropy"}
    names |= {"train/grad_norm": "actor_grad_norm", "train/target": "return"}
    for k, length in enumerate(fixture["length"]):
        episodes = [published.read_episode(fixture, k, b) for b in range(len(length))]
        doubles = [replace(e, obs=e.obs.astype(float), state=e.state.astype(float)) for e in episodes]
        stats = learner.update_rollout(doubles)
        for ours, theirs in names.items():
            check(theirs, stats[ours], fixture[f"report/{theirs}"][k])
    after = published.unpack(fixture, "after")
    for which, network in {"actor": learner.actor, "critic": learner.critic}.items():
        check_weights(which, network, published.translate_mappo(after, which))
    check("moments", list(learner._value_norm.get_state().values()), fixture["norm"])
    return learner


def test_updates_of_mappo_equal_the_published_ones(monkeypatch):
    fixture = published.read("mappo")
    learner = check_mappo(monkeypatch, fixture)
    learner.actor.to(torch.float32)  # as it acts
    rng = np.random.default_rng(0)
    for b, n in enumerate(fixture["length"][-1]):
        learner.start_episodes(1)
        for t in range(n):
            obs, avail = fixture["obs"][-1, b, t].astype(np.float32), fixture["avail"][-1, b, t]
            action = learner.act(obs[None], avail[None], epsilon=0.0, rng=rng)
            np.testing.assert_array_equal(action[0], fixture["greedy"][b, t])
