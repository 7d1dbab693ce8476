"""Our episodic memory against those of EMU and EMC: the same weights of the encoder, the same stream of episodes.

Fixtures: tests/reference/make_published_fixtures.py. EMU's adds returns up in float32, EMC's and ours in
float64, hence the tolerances. The node that a state enters, xi and all counters are equal.

EMC's tolerance depends on the size of a coordinate, ours does not. It also stores the padding behind an episode, which
the fixture does not have.

Where `emu_code` imitates and does not copy, the stream of the fixture stands clear of it (see `make_stream`):

* Theirs searches raw embeddings and tests the node found in the scaling of this moment and where it stands by now; ours
  searches and tests nodes in the scaling and at the places that the last target update froze.
* Before its first tree theirs tests in the raw scale; before a write it refreshes the scaling every 200 steps. The
  fixture's is refreshed before every write.
* A node evicted since the tree was built is a miss here; theirs tests whatever stands in its slot by now.
"""

import numpy as np
import pytest

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder
from emtc_core.gate.incentive import success_ratio
from emtc_core.memory.memory import EpisodicMemory
from tests.reference import published
from tests.reference.published_inputs import T_LIM, Arrays, S

FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
FIXTURES = {
    "emu_memory": {"init_desirability": False},
    "emu_memory_counts": {"init_desirability": True, "reset_counts_on_shift": True},
}
EMU_CODE = {
    "delta": 0.02,
    "capacity": 29,
    "delta_metric": "linf",
    "index": "stale_target_update",
    "norm_interval": "200_steps",
    "terminal_xi": "zero",
    "backprop_desirability": True,
}


def make_memory(fixture: Arrays, **options: object) -> EpisodicMemory:
    embed = EmbedConfig(type="dcae", time_norm="write_T_lim+1")
    embedder = Embedder(embed, state_dim=S, episode_limit=T_LIM, device="cpu", seed=0)
    theirs = published.unpack(fixture, "before")
    names = {"fc1": "trunk.0", "fc2": "trunk.2", "fc3": "out"}
    embedder.encoder.load_state_dict(
        {f"{new}.{kind}": theirs[f"encoder.{old}.{kind}"] for old, new in names.items() for kind in published.KINDS}
    )
    config = MemoryConfig.model_validate(EMU_CODE | options)
    return EpisodicMemory(config, state_dim=S, gamma=0.99, embedder=embedder)


EMC = {
    "capacity": 40,
    "delta": 1e-5,
    "delta_space": "raw",
    "delta_metric": "linf",
    "index": "stale_target_update",
    "shift_on_success": False,
}


def make_emc_memory() -> EpisodicMemory:
    embedder = Embedder(EmbedConfig(type="random"), state_dim=S, episode_limit=T_LIM, device="cpu", seed=0)
    config = MemoryConfig.model_validate(EMC)
    return EpisodicMemory(config, state_dim=S, gamma=0.99, embedder=embedder)


def do(memory: EpisodicMemory, step: str, fixture: Arrays) -> np.ndarray:
    """Do one step of the stream; return the slots that it wrote or found."""
    what, _, which = step.partition(" ")
    if what == "tree":
        memory.on_target_update()
    elif what == "settle":
        memory.reproject()
        memory.on_target_update()
    else:
        k = int(which)
        n = fixture["length"][k]
        state = fixture["state"][k, : n + 1]
        if what == "read":
            return memory.find(state, np.arange(n + 1))
        reward, won = fixture["reward"][k, :n].astype(np.float32), bool(fixture["won"][k])
        return memory.write(state=state, reward=reward, won=won, episode=k, episode_return=0.0)
    return np.zeros(0, np.int64)


def check_stream(fixture: Arrays, **options: object) -> EpisodicMemory:
    """Drive our memory through the stream; after every step it must hold what the published one held."""
    memory = make_memory(fixture, **options)
    read = 0
    for at, step in enumerate(map(str, fixture["steps"])):
        slots = do(memory, step, fixture)
        if step.startswith("read"):
            check_read(memory, slots, fixture, slice(read, read + len(slots)))
            read += len(slots)
        elif step.startswith("write"):
            np.testing.assert_array_equal(slots, fixture["slots"][at, : len(slots)], err_msg=f"slots of {step}")
        check_nodes(memory, fixture, at)
    assert read == len(fixture["read/h"])
    return memory


def check_nodes(memory: EpisodicMemory, fixture: Arrays, at: int) -> None:
    nodes, n = memory.columns(), int(fixture["size"][at])
    assert memory.size == n
    for name in ("xi", "n_call", "n_xi", "t"):
        wanted = fixture[f"node/{name}"][at, :n]
        np.testing.assert_array_equal(getattr(nodes, name), wanted, err_msg=f"{name} after {fixture['steps'][at]}")
    np.testing.assert_allclose(nodes.h, fixture["node/h"][at, :n], err_msg="H", **FLOAT32)
    np.testing.assert_allclose(nodes.embedding, fixture["node/x"][at, :n], err_msg="x", **FLOAT32)


def check_read(memory: EpisodicMemory, slots: np.ndarray, fixture: Arrays, rows: slice) -> None:
    wanted = {name: fixture[f"read/{name}"][rows] for name in ("slot", "h", "n_call", "n_xi", "xi", "rho")}
    found = memory.recall(slots)
    np.testing.assert_array_equal(slots, wanted["slot"])
    np.testing.assert_allclose(np.nan_to_num(found.h), wanted["h"], **FLOAT32)
    for name in ("n_call", "n_xi", "xi"):
        np.testing.assert_array_equal(getattr(found, name), wanted[name])
    rho = success_ratio(found.n_xi.astype(float), found.n_call.astype(float), eps=1e-3)
    np.testing.assert_allclose(rho, wanted["rho"], rtol=1e-12)


def check_emc_stream(fixture: Arrays) -> EpisodicMemory:
    """The same for EMC: it has no success flag, so its nodes have a position and a return only."""
    memory = make_emc_memory()
    read = 0
    for at, step in enumerate(map(str, fixture["steps"])):
        slots = do(memory, step, fixture)
        if step.startswith("read"):
            rows = slice(read, read + len(slots))
            np.testing.assert_array_equal(slots, fixture["read/slot"][rows])
            np.testing.assert_allclose(np.nan_to_num(memory.recall(slots).h), fixture["read/h"][rows], rtol=1e-12)
            read += len(slots)
        elif step.startswith("write"):
            np.testing.assert_array_equal(slots, fixture["slots"][at, : len(slots)], err_msg=f"slots of {step}")
        nodes, n = memory.columns(), int(fixture["size"][at])
        assert memory.size == n
        np.testing.assert_allclose(nodes.h, fixture["node/h"][at, :n], rtol=1e-12, err_msg=f"H after {step}")
        np.testing.assert_allclose(nodes.embedding, fixture["node/x"][at, :n], err_msg="x", **FLOAT32)
    assert read == len(fixture["read/h"])
    return memory


def test_the_memory_of_emc_equals_the_published_one_after_every_step():
    assert check_emc_stream(published.read("emc_memory")).list_faults() == []


@pytest.mark.parametrize("name", FIXTURES)
def test_the_memory_of_emu_equals_the_published_one_after_every_step(name):
    assert check_stream(published.read(name), **FIXTURES[name]).list_faults() == []
