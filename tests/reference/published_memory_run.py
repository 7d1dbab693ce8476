"""Drive the published episodic memories of EMU and EMC.

Part of make_published_fixtures.py, which puts their code on the path.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.reference.published_inputs import T_LIM, Arrays, S, make_stream, store_stream
from tests.reference.published_run import flatten, list_weights, make_theirs, round_weights

READ_COLUMNS = ("slot", "h", "n_call", "n_xi", "xi", "rho")


class Ledger:
    """Notes which node each call of a published memory touched, by the recency stamp that the call left behind."""

    def __init__(self, nodes: Any, peek: str, add: str) -> None:
        self._nodes, self._peek, self._add = nodes, getattr(nodes, peek), getattr(nodes, add)
        self.slots: list[int] = []
        self.reads: list[tuple[float, ...]] = []
        setattr(nodes, peek, self.peek)
        setattr(nodes, add, self.add)

    def peek(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def add(self, *args: Any) -> None:
        self._add(*args)
        self.slots.append(self._newest())

    def _newest(self) -> int:
        return int(np.argmax(self._nodes.lru[: self._nodes.curr_capacity]))


class EmuLedger(Ledger):
    """The nodes of EMU's memory: a read gives the slot, H, counts, success and ρ."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes, "peek_modified_EC", "add_modified_EC")

    def peek(self, key: Any, value: Any, xi: Any, modify: bool, state: Any, t: int) -> tuple[Any, ...]:
        found = self._peek(key, value, xi, modify, state, t)
        slot = -1 if found[0] is None else self._newest()
        if modify and slot >= 0:
            self.slots.append(slot)
        if not modify:
            n = self._nodes
            counts = (n.Ncall[slot], n.Nxi[slot], n.xi[slot], found[2]) if slot >= 0 else (0, 0, 0, 0.0)
            self.reads.append((slot, 0.0 if found[0] is None else float(found[0]), *map(float, counts)))
        return found


class EmcLedger(Ledger):
    """The nodes of EMC's memory: a read gives the slot and H."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes, "peek", "add")

    def peek(self, key: Any, value: Any, modify: bool) -> Any:
        found = self._peek(key, value, modify)
        slot = -1 if found is None else self._newest()
        if not modify:
            self.reads.append((slot, 0.0 if found is None else float(found)))
        elif slot >= 0:
            self.slots.append(slot)
        return found


def make_memory(args: SimpleNamespace) -> Any:
    from components.episodic_memory_buffer import Episodic_memory_buffer

    torch.manual_seed(9)
    memory = Episodic_memory_buffer(args, {"state": {"vshape": S}})
    round_weights(memory.VAE)
    return memory


def settle(memory: Any) -> None:
    """Embed every node anew, refresh the statistics and build the tree, as refit and target update do."""
    memory.is_update_required = True
    memory.update_embedding()
    memory.update_kdtree()
    memory.update_ec_buffer_stats()


def fill_memory(args: SimpleNamespace, batches: list[Any]) -> tuple[Any, EmuLedger]:
    """Remember the first two episodes of each batch, each twice with a tree in between, and each once as won."""
    args.emdqn_buffer_size, args.flag_init_desirability = 1000, True
    memory = make_memory(args)
    for again in range(2):
        for batch in batches:
            for i in range(2):
                episode = batch[i : i + 1]
                episode.data.transition_data["flag_win"][0, T_LIM - 1] = i + again == 1
                memory.update_ec_modified(episode)
        memory.update_kdtree()
        memory.update_ec_buffer_stats()
    settle(memory)
    return memory, EmuLedger(memory.ec_buffer)


def make_emc_memory(args: SimpleNamespace) -> tuple[Any, EmcLedger]:
    from components.episodic_memory_buffer import Episodic_memory_buffer

    memory = Episodic_memory_buffer(args, {"state": {"vshape": S}})
    return memory, EmcLedger(memory.ec_buffer)


def fill_emc_memory(args: SimpleNamespace, batches: list[Any]) -> tuple[Any, EmcLedger]:
    """Remember the first two episodes of each batch, then again with twice the reward."""
    memory, ledger = make_emc_memory(args)
    for again in range(2):
        for batch in batches:
            for i in range(2):
                episode = batch[i : i + 1]
                reward = episode["reward"].clone()
                episode["reward"].mul_(1 + again)
                memory.update_ec(episode)
                episode["reward"].copy_(reward)
        memory.update_kdtree()
    return memory, ledger


def stack_recalls(ledger: Ledger, seen: list[Arrays]) -> Arrays:
    """Lay the reads of each update out as [K, B, T] by column: 0 at a miss, which `hit` marks. EMC has H alone."""
    real = np.stack([update["mask"][..., 0] for update in seen]) > 0  # theirs ask for real transitions alone, in order
    columns = np.zeros((len(ledger.reads[0]), *real.shape))
    columns[:, real] = np.array(ledger.reads).T
    out = {f"recalled/{name}": column for name, column in zip(READ_COLUMNS, columns, strict=False)}
    out["recalled/hit"] = real & (out.pop("recalled/slot") >= 0)
    return {k: v if k in ("recalled/h", "recalled/rho") else v.astype(np.int16) for k, v in out.items()}


def run_memory(args: SimpleNamespace) -> Arrays:
    """Drive their memory through the stream, in float32 as published."""
    memory = make_memory(args)
    nodes = memory.ec_buffer
    ledger = EmuLedger(nodes)
    episodes, steps = make_stream()
    out = store_stream(episodes) | {"steps": np.array(steps)}
    out["names"] = list_weights({"encoder": memory.state_embed_net})
    out["before"] = flatten({"encoder": memory.state_embed_net}).astype(np.float16)
    out["size"] = np.zeros(len(steps), np.int16)
    table = {"h": "q_values_decay", "xi": "xi", "n_call": "Ncall", "n_xi": "Nxi", "t": "tg", "x": "states"}
    for ours, theirs in table.items():
        column = getattr(nodes, theirs)
        out[f"node/{ours}"] = np.zeros((len(steps), *column.shape), "f4" if ours in ("h", "x") else "i2")
    slots: list[list[int]] = []
    for at, step in enumerate(steps):
        what, _, which = step.partition(" ")
        if what == "write":
            memory.update_ec_buffer_stats()
            memory.update_ec_modified(make_theirs([episodes[int(which)]], reals=torch.float32, steps=T_LIM + 1))
        elif what == "tree":
            memory.update_kdtree()
        elif what == "settle":
            settle(memory)
        else:
            for t, state in enumerate(episodes[int(which)].state):
                key = memory.state_embed_net(torch.tensor([[[*state, t / T_LIM]]])).detach().numpy().ravel()
                memory.peek_modified(key, None, 0, modify=False, global_state=None, cur_time=0)
        n = out["size"][at] = nodes.curr_capacity
        for ours, theirs in table.items():
            out[f"node/{ours}"][at, :n] = getattr(nodes, theirs)[:n]
        slots.append(ledger.slots[::-1])
        ledger.slots = []
    out["slots"] = np.array([row + [-1] * (T_LIM + 1 - len(row)) for row in slots], np.int16)
    columns = zip(READ_COLUMNS, np.array(ledger.reads).T, strict=True)
    return out | {f"read/{name}": column for name, column in columns}


def run_emc_memory(args: SimpleNamespace) -> Arrays:
    """Drive EMC's memory through the same stream. It stores float32 embeddings and float64 returns."""
    memory, ledger = make_emc_memory(args)
    nodes = memory.ec_buffer
    episodes, steps = make_stream()
    out = store_stream(episodes) | {"steps": np.array(steps), "size": np.zeros(len(steps), np.int16)}
    out["won"] = np.arange(len(episodes)) >= 4  # EMC does not read it: ours may not depend on it
    out["node/h"] = np.zeros((len(steps), nodes.capacity))
    out["node/x"] = np.zeros((len(steps), *nodes.states.shape), "f4")
    slots = np.full((len(steps), T_LIM + 1), -1, np.int16)
    for at, step in enumerate(steps):
        what, _, which = step.partition(" ")
        if what == "write":
            episode = episodes[int(which)]
            # Without padding, which EMC stores as states with H = 0.
            memory.update_ec(make_theirs([episode], reals=torch.float64, steps=len(episode.state)))
        elif what == "read":
            for state in episodes[int(which)].state:
                memory.peek(np.dot(memory.random_projection, state), None, modify=False)
        else:
            memory.update_kdtree()
        n = out["size"][at] = nodes.curr_capacity
        out["node/h"][at, :n], out["node/x"][at, :n] = nodes.q_values_decay[:n], nodes.states[:n]
        slots[at, : len(ledger.slots)] = ledger.slots[::-1]
        ledger.slots = []
    columns = zip(READ_COLUMNS, np.array(ledger.reads).T, strict=False)
    return out | {"slots": slots} | {f"read/{name}": column for name, column in columns}
