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
    "delta": 1e-5,
    "delta_space": "raw",
    "delta_metric": "linf",
    "index": "stale_target_update",
    "shift_on_success": False,
}


def make_emc_memory(**options: object) -> EpisodicMemory:
    embedder = Embedder(EmbedConfig(type="random"), state_dim=S, episode_limit=T_LIM, device="cpu", seed=0)
    config = MemoryConfig.model_validate(EMC | options)
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


def check_emc_stream(fixture: Arrays, **options: object) -> EpisodicMemory:
    """The same for EMC: it knows no success, so its nodes have a place, a return and nothing else."""
    memory = make_emc_memory(capacity=40, **options)
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


def test_the_memory_of_emc_holds_what_the_published_one_holds_after_every_step():
    assert check_emc_stream(published.read("emc_memory")).list_faults() == []


@pytest.mark.parametrize(
    "option",
    [
        {"shift_on_success": True},
        {"index": "live"},
        {"delta": 1e-3},
        {"lru_touch_on_read": False},
        {"evict": "fifo"},
        {"store_terminal": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_every_other_option_of_the_memory_of_emc_is_noticed(option):
    with pytest.raises((AssertionError, ValueError)):
        check_emc_stream(published.read("emc_memory"), **option)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_memory_holds_what_the_published_one_holds_after_every_step(name):
    assert check_stream(published.read(name), **FIXTURES[name]).list_faults() == []


def test_the_stream_meets_every_rule_of_the_write():
    """Nodes are not found without a tree, merge, move to a success, pass it on in a lost episode, and are evicted."""
    fixture = published.read("emu_memory")
    steps = list(map(str, fixture["steps"]))
    size, slots = fixture["size"], fixture["slots"]
    assert size[steps.index("write 2")] == size[steps.index("write 1")] + 8, "seen before, but no tree"
    assert size[steps.index("write 3")] == size[steps.index("write 2")], "all merged"
    first, moved = (fixture["node/xi"][steps.index(step), 1:8] for step in ("write 0", "write 3"))
    assert not first.any()
    assert moved.all()
    assert not fixture["won"][6], "lost, yet it counts as a success where it meets one"
    before, after = (fixture["node/n_xi"][steps.index(step), 1:8] for step in ("write 5", "write 6"))
    assert (after > before).any()
    assert size[-1] == size[-3] == 29
    assert sorted(slots[-2:][slots[-2:] >= 0]) == [*range(8), *range(14, 19)], "thirteen were evicted, none just read"
    assert {-1, 8, 22} <= set(fixture["read/slot"].astype(int))


@pytest.mark.parametrize(
    "option",
    [
        {"backprop_desirability": False},
        {"terminal_xi": "trajectory"},
        {"init_desirability": True},
        {"reset_counts_on_shift": True},
        {"shift_keep_max": True},
        {"shift_on_success": False},
        {"index": "live"},
        {"lru_touch_on_read": False},
        {"evict": "fifo"},
        {"store_terminal": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_every_other_option_of_the_memory_is_noticed(option):
    with pytest.raises((AssertionError, ValueError)):
        check_stream(published.read("emu_memory"), **FIXTURES["emu_memory"] | option)


@pytest.mark.parametrize("name", ["h", "xi", "n_call", "n_xi", "t", "x"])
def test_one_changed_published_value_of_a_node_is_noticed(name):
    fixture = published.read("emu_memory")
    value = fixture[f"node/{name}"]
    value[8].flat[5] += np.asarray(1e-3 if value.dtype.kind == "f" else 1, value.dtype)
    with pytest.raises(AssertionError):
        check_stream(fixture, **FIXTURES["emu_memory"])


def test_one_changed_weight_of_the_encoder_is_noticed():
    fixture = published.read("emu_memory")
    fixture["before"][-1] += np.float16(0.01)
    with pytest.raises(AssertionError):
        check_stream(fixture, **FIXTURES["emu_memory"])
