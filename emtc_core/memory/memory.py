"""EpisodicMemory: nodes, space and index as one thing; re-projection; state for a checkpoint.

Stage before: rollout, embedder; after: gate, incentive, replay buffer. Two terms: a *write* is Algorithm 2
on one episode; a *re-projection* recomputes every node's embedding after the embedder was refitted.

When the scaling is refreshed (`norm_interval = "rebuild"`, A15): with every rebuild of the index, always
before a write or in a re-projection, never inside an episode. The index is rebuilt

  * at the first write, from that episode's own embeddings, for lack of anything else;
  * at each re-projection, from all nodes;
  * before a write, from all nodes, once the nodes appended since the last refresh number at least a quarter
    of those it was measured on (amortised O(1) per node; the random projection never re-projects).

`norm_interval = "200_steps"` adds one before a write whenever 200 env steps were written since the last.
Each refresh moves all nodes at once, so two nodes are always compared in one space.

`index = "stale_target_update"` keeps positions, scaling and identity of the nodes as they were when
`on_target_update` was last called, and all lookups, Algorithm 2's too, see nothing else (A13). The slots
that `write` returns can then be invisible to a lookup; so readers go through `resolve`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, make_generator
from emtc_core.config.memory import MemoryConfig
from emtc_core.devices import send
from emtc_core.embedder.networks import Embedder, State, Times
from emtc_core.errors import NonFiniteLossError
from emtc_core.memory.device_states import DeviceStates
from emtc_core.memory.nodes import (
    NodeColumns,
    NodeTable,
    Recall,
    Slots,
    copy_columns,
    delta_along_links,
    recall,
    touch_all,
    values_along_links,
)
from emtc_core.memory.scaling import (
    TOLERANCE,
    Embeddings,
    Scaling,
    choose_probes,
    identity_scaling,
    largest_rounding,
    measure_scaling,
)
from emtc_core.memory.space import Space
from emtc_core.memory.state import fill_table, list_table_faults, table_state
from emtc_core.memory.write import Columns, Path, make_rules, write_backwards

GROWTH = 0.25  # share of new nodes at which the scaling is measured again
EMU_NORM_STEPS = 200


@dataclass(frozen=True)
class NodeSample:
    """Nodes for the embedder's refit."""

    state: State  # [M, S], on a GPU if the memory keeps its states there
    t: NDArray[np.int32]  # [M]
    h: NDArray[np.float64]  # [M] return units


@dataclass(frozen=True)
class MemoryStats:
    """What happened since the last `take_stats`, and evictions since the run began."""

    written: int  # states stored, merged ones included
    merged: int
    queried: int  # states looked up by `find`
    hits: int
    evicted_total: int


class EpisodicMemory:
    """Best known returns by state, in at most `capacity` nodes (Algorithm 2)."""

    def __init__(
        self,
        config: MemoryConfig,
        *,
        state_dim: int,
        gamma: float,
        embedder: Embedder,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config = config
        self.generation = 0
        self.embedder = embedder
        self._gamma = gamma
        self._seed = seed
        self._rules = make_rules(config, gamma)
        self._table = NodeTable(capacity=config.capacity, state_dim=state_dim, dim=embedder.dim)
        self._space = Space(config, dim=embedder.dim, device=str(device))
        self._device_states = DeviceStates(embedder.device) if embedder.reads_states_on_gpu else None
        self._measured = 0  # nodes the scaling was measured on
        self._appended = 0  # nodes appended since
        self._steps = 0  # env steps written since
        self._samples = 0
        self._evicted = 0
        self._counts = dict.fromkeys(("written", "merged", "queried", "hits"), 0)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self._table.size

    @property
    def capacity(self) -> int:
        """Most nodes kept."""
        return self._table.capacity

    @property
    def is_blind(self) -> bool:
        """Whether a lookup has no node to search: an empty memory, or a stale index not yet built."""
        return self._space.count_visible(self._table) == 0

    @property
    def desirable_fraction(self) -> float:
        """Share of nodes with xi = 1; 0 in an empty memory."""
        return float(self._table.nodes["xi"][: self.size].mean()) if self.size else 0.0

    def write(
        self, *, state: NDArray[np.float32], reward: NDArray[np.float32], won: bool, episode: int, episode_return: float
    ) -> Slots:
        """Store one episode, walking it backwards (Algorithm 2).

        Args:
            state: [T+1, S] states, the terminal one last.
            reward: [T] extrinsic rewards in the learner's unit.
            won: The environment's success flag.
            episode: Number that the nodes remember.
            episode_return: Undiscounted return in the environment's unit, for `success = "return_threshold"`.

        Returns:
            [T+1] slot of each state; -1 for a terminal state that is not stored, and for a state whose node
            was evicted again within this very write.
        """
        steps = len(reward)
        check_shape("state", state, (steps + 1, self._table.state.shape[1]))
        self._refresh_if_due(state, steps)
        is_success = self.config.is_success(won=won, episode_return=episode_return)
        path = self._make_path(state, reward, is_success=bool(is_success))
        slots = self._walk(path, episode)
        missing = np.full(steps + 1 - len(slots), -1)
        return np.concatenate([slots, missing])

    def _make_path(self, state: NDArray[np.float32], reward: NDArray[np.float32], *, is_success: bool) -> Path:
        own, sought = self._space.scaling, self._space.scaling_of_lookups
        x = self._embed(state, np.arange(len(state)), for_write=True, fine=own.is_fine)
        q = (
            x
            if sought.is_fine == own.is_fine
            else self._embed(state, np.arange(len(state)), for_write=True, fine=sought.is_fine)
        )
        rows = len(state) if self.config.store_terminal else len(reward)
        xi = np.full(rows, is_success)
        if self.config.store_terminal and self.config.terminal_xi == "zero":
            xi[-1] = False
        return Path(
            state=np.ascontiguousarray(state[:rows], np.float32),
            x=x[:rows],
            z=own.apply(x[:rows]),
            q=sought.apply(q[:rows]),
            reward=np.append(reward.astype(np.float64), 0.0)[:rows],
            xi=xi,
        )

    def _walk(self, path: Path, episode: int) -> Slots:
        table, rows = self._table, len(path.reward)
        table.reserve(rows)
        self._space.follow(table)
        columns = Columns(table.nodes, table.state, table.x, table.z, table.order, table.ends)
        slots, size, next_uid, merged = write_backwards(
            columns, self._space.visible(), path, self._rules, table.size, table.next_uid, episode
        )
        self._evicted += (rows - merged) - (size - table.size)
        self._appended += rows - merged
        table.size, table.next_uid = size, next_uid
        self._counts["written"] += rows
        self._counts["merged"] += merged
        self._space.note_written(slots)
        if self._device_states:
            stored = slots[slots >= 0]
            self._device_states.note_written(stored[table.nodes["episode"][stored] == episode])
        return slots

    def _refresh_if_due(self, state: NDArray[np.float32], steps: int) -> None:
        is_due = self._appended >= GROWTH * self._measured
        if self.config.norm_interval == "200_steps":
            is_due |= self._steps >= EMU_NORM_STEPS
        if is_due:
            self._refresh(state)
        self._steps += steps

    def _refresh(self, first: NDArray[np.float32] | None = None) -> None:
        """Measure the scaling on all nodes, move them all, rebuild the index.

        Args:
            first: [M, S] states of an episode, which stand in for the nodes of an empty memory.
        """
        table, size = self._table, self.size
        state, t = table.state[:size], table.nodes["t"][:size]
        x = table.x[:size]
        if first is not None and not size:
            state, t = first, np.arange(len(first))
            x = self._embed(state, t, for_write=True)
        scaling = self._measure(x)
        if not scaling.is_fine and self._is_coarse(state, t, scaling):
            x = self._embed(state, t, for_write=not size, fine=True)
            table.set_embeddings(x[:size])
            scaling = self._measure(x)
        self._space.rescale(table, scaling)
        self._measured, self._appended, self._steps = len(x), 0, 0

    def _measure(self, x: Embeddings) -> Scaling:
        if self.config.delta_space == "raw":
            return identity_scaling(x.shape[1], is_fine=x.dtype == np.float64)
        return measure_scaling(x)

    def _is_coarse(self, state: NDArray[np.float32], t: NDArray[np.integer[Any]], scaling: Scaling) -> bool:
        """Whether float32 rounding could decide who merges; `memory.scaling` says what was measured."""
        rows = choose_probes(len(state))
        x, fine = self._embed(state[rows], t[rows]), self._embed(state[rows], t[rows], fine=True)
        return largest_rounding(x, fine, scaling) > TOLERANCE * self.config.delta

    def reproject(self) -> None:
        """Recompute every embedding from its stored (state, t), then scaling and index, all at once (B11)."""
        if not self.size:
            return
        table = self._table
        if self._device_states:
            state, t = self._device_states.update(table)
        else:
            state, t = table.state[: self.size], table.nodes["t"][: self.size]
        table.set_embeddings(self._embed(state, t))
        self._refresh()
        self.generation += 1

    def on_target_update(self) -> None:
        """Let a stale index catch up with the nodes; a live one needs nothing."""
        if self.config.index == "stale_target_update":
            self._space.freeze(self._table)
            self.generation += 1

    def _embed(self, state: State, t: Times, *, for_write: bool = False, fine: bool = False) -> NDArray[Any]:
        if fine:
            x = self.embedder.embed_fine(state, t, for_write=for_write)
        else:
            x = self.embedder.embed(state, t, for_write=for_write).cpu().numpy()
        if not np.isfinite(x).all():
            raise NonFiniteLossError(
                "Embeddings must be finite, got NaN or infinity. Lower embed.lr.",
                reason="embeddings",
                subject="embed.lr",
            )
        return x

    def find(self, state: State, t: NDArray[np.integer[Any]], *, nearest: bool = False) -> Slots:
        """Look up states by nearest neighbour.

        Args:
            state: [Q, S] states, an array or a tensor on the embedder's device.
            t: [Q] their time steps.
            nearest: Where nothing is within delta, take the nearest node at any distance.

        Returns:
            [Q] slots, -1 where nothing was found.
        """
        scaling = self._space.scaling_of_lookups
        z = scaling.apply(self._embed(state, t, fine=scaling.is_fine))
        slots = self._space.find(self._table, z)
        self._counts["queried"] += len(slots)
        self._counts["hits"] += int((slots >= 0).sum())
        missed = slots < 0
        if nearest and missed.any():
            slots[missed] = self._space.find_nearest(self._table, z[missed])
        return slots

    def holds(
        self, slots: Slots, uids: Slots, t: NDArray[np.integer[Any]], episode: NDArray[np.integer[Any]]
    ) -> NDArray[np.bool_]:
        """Which slots hold that very state: step t of that episode, arrays of one shape.

        Such a node is at distance 0 in whatever way the memory was embedded since, so nobody needs to search.
        A frozen index knows nodes as they were, so there the answer is always no.
        """
        node = self._table.nodes[np.maximum(slots, 0)]
        same = (slots >= 0) & (node["uid"] == uids) & (node["t"] == t) & (node["episode"] == episode)
        return same & (self.config.index == "live")

    def resolve(self, slots: Slots, state: NDArray[np.float32], *, nearest: bool = False) -> Slots:
        """Turn the slots that `write` gave an episode into those that a reader sees.

        The same slots for a live index; a lookup for a stale one. `nearest` fills what is missing.
        """
        steps = np.arange(len(state))
        if self.config.index == "stale_target_update":
            return self.find(state, steps, nearest=nearest)
        missed = slots < 0
        if not nearest or not missed.any():
            return slots
        resolved = slots.copy()
        resolved[missed] = self.find(state[missed], steps[missed], nearest=True)
        return resolved

    def recall(self, slots: Slots, uids: Slots | None = None) -> Recall:
        """Read nodes by slot, any shape; refreshes recency if `lru_touch_on_read`, changes nothing else.

        A slot of -1, or one whose node no longer has the uid given, is a miss.
        """
        recalled = recall(self._table, slots, uids)
        if self.config.lru_touch_on_read and self.config.evict == "lru":
            touch_all(self._table.order, self._table.ends, np.where(recalled.hit, slots, -1).ravel())
        return recalled

    def peek(self, slots: Slots) -> NDArray[np.float64]:
        """Read H by slot, any shape, NaN at -1, without refreshing recency: for statistics."""
        return recall(self._table, slots).h

    def uids(self, slots: Slots) -> Slots:
        """Identity of the nodes in some slots, any shape; -1 for slot -1."""
        return np.where(slots >= 0, self._table.nodes["uid"][np.maximum(slots, 0)], -1)

    def successors(self, slots: Slots) -> Slots:
        """Follow idx_next, any shape; -1 where there is no successor or its node is gone (A18)."""
        return self._table.follow(slots)

    def sample(self, n: int) -> NodeSample:
        """Draw min(n, size) nodes without replacement."""
        rng = make_generator(self._seed, "memory", self._samples)
        self._samples += 1
        rows = rng.choice(self.size, min(n, self.size), replace=False, shuffle=True)
        node = self._table.nodes[rows]
        state: State
        if self._device_states:
            state = self._device_states.update(self._table)[0].index_select(0, send(rows, self.embedder.device))
        else:
            state = self._table.state[rows]
        return NodeSample(state, np.ascontiguousarray(node["t"]), np.ascontiguousarray(node["h"]))

    def delta_mem(self) -> NDArray[np.float64]:
        """Consistency error of every node along its link, in slot order; NaN where it has no successor."""
        return delta_along_links(self._table, self._gamma)

    def along_links(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Reward, H and H(next) of every node, in slot order; H(next) is NaN where it has no successor."""
        return values_along_links(self._table)

    def columns(self) -> NodeColumns:
        """Copy every node, without its state."""
        return copy_columns(self._table)

    def states(self, slots: Slots) -> NDArray[np.float32]:
        """Copy the states [K, S] that stand in some occupied slots [K]."""
        return self._table.state[slots]

    def take_stats(self) -> MemoryStats:
        """Read the counters and start them anew."""
        stats = MemoryStats(**self._counts, evicted_total=self._evicted)
        self._counts = dict.fromkeys(self._counts, 0)
        return stats

    def get_state(self) -> dict[str, Any]:
        """Copy everything that decides future results: tensors, primitives and dictionaries of them."""
        return {
            "table": table_state(self._table),
            "space": self._space.get_state(),
            "generation": self.generation,
            "measured": self._measured,
            "appended": self._appended,
            "steps": self._steps,
            "samples": self._samples,
            "evicted": self._evicted,
            "counts": dict(self._counts),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state` as if never stopped.

        Raises:
            CheckpointError: If the nodes do not fit this memory.
        """
        fill_table(self._table, state["table"])
        if self._device_states:
            self._device_states.forget()
        self._space.set_state(state["space"], self._table)
        self.generation = state["generation"]
        self._measured, self._appended, self._steps = state["measured"], state["appended"], state["steps"]
        self._samples, self._evicted = state["samples"], state["evicted"]
        self._counts = dict(state["counts"])

    def check_valid(self) -> list[str]:
        """List what is wrong with the memory, in words; empty when nothing is."""
        return [*list_table_faults(self._table), *self._space.list_faults(self._table)]
