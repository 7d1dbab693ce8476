"""Drive EMU's published episodic memory; part of make_published_fixtures.py, which puts their code on the path."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.reference.published_inputs import T_LIM, Arrays, S, make_stream, store_stream
from tests.reference.published_run import flatten, list_weights, make_theirs, round_weights


class Ledger:
    """Notes which node each call of their memory touched, by the recency stamp that the call left behind."""

    def __init__(self, nodes: Any) -> None:
        self._nodes, self._peek, self._add = nodes, nodes.peek_modified_EC, nodes.add_modified_EC
        self.slots: list[int] = []
        self.reads: list[tuple[float, ...]] = []
        nodes.peek_modified_EC, nodes.add_modified_EC = self.peek, self.add

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

    def add(self, *args: Any) -> None:
        self._add(*args)
        self.slots.append(self._newest())

    def _newest(self) -> int:
        return int(np.argmax(self._nodes.lru[: self._nodes.curr_capacity]))


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


def fill_memory(args: SimpleNamespace, batches: list[Any]) -> tuple[Any, Ledger]:
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
    return memory, Ledger(memory.ec_buffer)


def stack_recalls(ledger: Ledger, seen: list[Arrays]) -> Arrays:
    """Lay the reads of each update out as [K, B, T]: H, N_call, N_xi, xi and rho; 0 at a miss, hit tells which."""
    real = np.stack([update["mask"][..., 0] for update in seen]) > 0  # theirs ask for real transitions alone, in order
    columns = np.zeros((6, *real.shape))
    columns[:, real] = np.array(ledger.reads).T
    slot, h, n_call, n_xi, xi, rho = columns
    counts = {"recalled/n_call": n_call, "recalled/n_xi": n_xi, "recalled/xi": xi, "recalled/hit": real & (slot >= 0)}
    return {k: v.astype(np.int16) for k, v in counts.items()} | {"recalled/h": h, "recalled/rho": rho}


def run_memory(args: SimpleNamespace) -> Arrays:
    """Drive their memory through the stream, in float32 as published."""
    memory = make_memory(args)
    nodes = memory.ec_buffer
    ledger = Ledger(nodes)
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
    columns = dict(zip(("slot", "h", "n_call", "n_xi", "xi", "rho"), np.array(ledger.reads).T, strict=True))
    return out | {f"read/{name}": column for name, column in columns.items()}
