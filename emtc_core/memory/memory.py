"""The episodic memory: writes, lookups, re-projection, and its state for a checkpoint.

Stage before: rollout, embedder; after: gate, incentive, replay buffer. Two terms: a *write* is Algorithm 2
on one episode; a *re-projection* recomputes every node's embedding after a refit of the embedder.

With `norm_interval = "rebuild"` (A15) the scaling is measured again at every rebuild of the index. That is before a
write or in a re-projection, never within an episode. The index is rebuilt

  * at the first write, from the embeddings of this episode, because there are no nodes yet;
  * at each re-projection, from all nodes;
  * before a write, from all nodes, if the number of nodes added since the last rebuild is at least a quarter of the
    nodes at that time (amortized O(1) per node). The random projection needs this, because it has no re-projection.

`norm_interval = "200_steps"` adds a rebuild before a write after every 200 written env steps.
A rebuild moves all nodes at once, so two nodes are always compared in the same scaling.

With `index = "stale_target_update"` all lookups, also those of Algorithm 2, use the positions, scaling and uids of the
nodes at the last call of `on_target_update` (A13). A lookup may then not find the slots that `write` returned, so
readers convert these slots with `resolve`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import check_shape, make_generator
from emtc_core.config.memory import MemoryConfig
from emtc_core.devices import fetch, send
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
    keep_unchanged,
    move_to_newest,
    recall,
    values_along_links,
)
from emtc_core.memory.positions import NodePositions
from emtc_core.memory.scaling import (
    TOLERANCE,
    Embeddings,
    Scaling,
    identity_scaling,
    max_rounding_error,
    measure_scaling,
    select_probes,
)
from emtc_core.memory.state import fill_table, list_table_faults, table_state
from emtc_core.memory.write import StatesToWrite, TableArrays, make_write_options, write_backwards

REBUILD_GROWTH = 0.25  # fraction of new nodes at which the index is rebuilt
EMU_NORM_STEPS = 200


@dataclass(frozen=True)
class NodeSample:
    """Nodes for a refit of the embedder (Algorithm 1, the sample of N entries)."""

    state: State  # [M, S] [state features], on a GPU if the memory keeps its states there
    t: NDArray[np.int32]  # [M] time step of the state [steps]
    h: NDArray[np.float64]  # [M] H [return]


@dataclass(frozen=True)
class WrittenPositions:
    """Positions of the states of the last written episode, for a lookup of the same states.

    Source: implementation detail.
    """

    q: NDArray[np.float64]  # [T+1, X] [normalized embedding], in `scaling`
    scaling: Scaling


@dataclass(frozen=True)
class MemoryStats:
    """Counts since the last `take_stats`, and evictions since the start of the run."""

    written: int  # states written, including merged states
    merged: int
    queried: int  # states looked up by `find`
    hits: int
    evicted_total: int


class EpisodicMemory:
    """Highest known return of states, in at most `capacity` nodes (Algorithm 2)."""

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
        self._write_options = make_write_options(config, gamma)
        self._table = NodeTable(capacity=config.capacity, state_dim=state_dim, dim=embedder.dim)
        self._positions = NodePositions(config, dim=embedder.dim, device=str(device))
        self._device_states = DeviceStates(embedder.device) if embedder.reads_states_on_gpu else None
        self._last_written: WrittenPositions | None = None
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
        """Maximum number of nodes."""
        return self._table.capacity

    @property
    def is_index_empty(self) -> bool:
        """Whether the index has no node: the memory is empty, or a stale index is not built yet."""
        return self._positions.count_searched_nodes(self._table) == 0

    @property
    def desirable_fraction(self) -> float:
        """Fraction of nodes with xi = 1; 0 in an empty memory."""
        return float(self._table.nodes["xi"][: self.size].mean()) if self.size else 0.0

    def write(
        self, *, state: NDArray[np.float32], reward: NDArray[np.float32], won: bool, episode: int, episode_return: float
    ) -> Slots:
        """Write one episode, from its last state to its first (Algorithm 2).

        Args:
            state: [T+1, S] [state features], the terminal state last.
            reward: [T] [reward], extrinsic, in the learner's unit.
            won: The environment's success flag.
            episode: Number of the episode, stored in its nodes.
            episode_return: Undiscounted return in the environment's unit, for `success = "return_threshold"`.

        Returns:
            [T+1], slot index of each state; -1 for a terminal state that is not stored, and for a state whose node was
            evicted during this write.
        """
        steps = len(reward)
        check_shape("state", state, (steps + 1, self._table.state.shape[1]))
        self._refresh_if_due(state, steps)
        is_success = self.config.is_success(won=won, episode_return=episode_return)
        states = self._make_states_to_write(state, reward, is_success=bool(is_success))
        slots = self._write_states(states, episode)
        missing = np.full(steps + 1 - len(slots), -1)
        return np.concatenate([slots, missing])

    def _make_states_to_write(
        self, state: NDArray[np.float32], reward: NDArray[np.float32], *, is_success: bool
    ) -> StatesToWrite:
        """Embed the states of an episode, for the nodes (x, z) and for the lookups of the index (q)."""
        live_scaling, lookup_scaling = self._positions.scaling, self._positions.scaling_of_lookups
        x = self._embed(state, np.arange(len(state)), for_write=True, float64=live_scaling.is_float64)
        q = x
        if lookup_scaling.is_float64 != live_scaling.is_float64:  # only with a stale index
            q = self._embed(state, np.arange(len(state)), for_write=True, float64=lookup_scaling.is_float64)
        self._last_written = WrittenPositions(lookup_scaling.apply(q), lookup_scaling)
        rows = len(state) if self.config.store_terminal else len(reward)
        xi = np.full(rows, is_success)
        if self.config.store_terminal and self.config.terminal_xi == "zero":
            xi[-1] = False
        return StatesToWrite(
            state=np.ascontiguousarray(state[:rows], np.float32),
            x=x[:rows],
            z=live_scaling.apply(x[:rows]),
            q=self._last_written.q[:rows],
            reward=np.append(reward.astype(np.float64), 0.0)[:rows],
            xi=xi,
        )

    def _write_states(self, states: StatesToWrite, episode: int) -> Slots:
        table, rows = self._table, len(states.reward)
        table.reserve(rows)
        self._positions.reserve(table)
        arrays = TableArrays(table.nodes, table.state, table.x, table.z, table.order, table.ends)
        slots, size, next_uid, merged = write_backwards(
            arrays, self._positions.lookup_index(), states, self._write_options, table.size, table.next_uid, episode
        )
        self._evicted += (rows - merged) - (size - table.size)
        self._appended += rows - merged
        table.size, table.next_uid = size, next_uid
        self._counts["written"] += rows
        self._counts["merged"] += merged
        self._positions.mark_written(slots)
        if self._device_states:
            stored = slots[slots >= 0]
            self._device_states.mark_written(stored[table.nodes["episode"][stored] == episode])
        return slots

    def _refresh_if_due(self, state: NDArray[np.float32], steps: int) -> None:
        is_due = self._appended >= REBUILD_GROWTH * self._measured
        if self.config.norm_interval == "200_steps":
            is_due |= self._steps >= EMU_NORM_STEPS
        if is_due:
            self._refresh(first=state)
        self._steps += steps

    def _refresh(
        self, *, first: NDArray[np.float32] | None = None, on_device: NDArray[np.float32] | None = None
    ) -> None:
        """Measure the scaling on all nodes, scale all nodes again, and rebuild the index.

        Args:
            first: [M, S] states of an episode, used instead of nodes if the memory is empty.
            on_device: [M, X] embeddings of all nodes, if a GPU has just computed them.
        """
        table, size = self._table, self.size
        state, t = table.state[:size], table.nodes["t"][:size]
        x = table.x[:size]
        if first is not None and not size:
            state, t = first, np.arange(len(first))
            x = self._embed(state, t, for_write=True)
        scaling = self._measure(x)
        if not scaling.is_float64 and self._needs_float64(state, t, scaling, on_device):
            x = self._embed(state, t, for_write=not size, float64=True)
            table.set_embeddings(x[:size])
            scaling = self._measure(x)
        self._positions.rescale(table, scaling)
        self._measured, self._appended, self._steps = len(x), 0, 0

    def _measure(self, x: Embeddings) -> Scaling:
        if self.config.delta_space == "raw":
            return identity_scaling(x.shape[1], is_float64=x.dtype == np.float64)
        return measure_scaling(x)

    def _needs_float64(
        self,
        state: NDArray[np.float32],
        t: NDArray[np.integer[Any]],
        scaling: Scaling,
        on_device: NDArray[np.float32] | None,
    ) -> bool:
        """Whether float32 rounding could change which states merge; see the module `scaling`."""
        rows = select_probes(len(state))
        x_float64 = self._embed(state[rows], t[rows], float64=True)
        error = max_rounding_error(self._embed(state[rows], t[rows]), x_float64, scaling)
        if on_device is not None:  # nodes are embedded on the GPU, and queries on the host
            error = max(error, max_rounding_error(on_device[rows], x_float64, scaling))
        return error > TOLERANCE * self.config.delta

    def reproject(self) -> None:
        """Recompute the embeddings of all nodes from their states and time steps, then scaling and index (B11)."""
        if not self.size:
            return
        table, on_device = self._table, None
        if self._device_states:
            state, t = self._device_states.update(table)
            x = on_device = _check_finite(fetch(self.embedder.embed(state, t)).wait().numpy())
        else:
            x = self._embed(table.state[: self.size], table.nodes["t"][: self.size])
        table.set_embeddings(x)
        self._refresh(on_device=on_device)
        self.generation += 1

    def on_target_update(self) -> None:
        """Rebuild a stale index from the current nodes. Does nothing with a live index."""
        if self.config.index == "stale_target_update":
            self._positions.rebuild_stale_index(self._table)
            self.generation += 1

    def _embed(self, state: State, t: Times, *, for_write: bool = False, float64: bool = False) -> NDArray[Any]:
        embed = self.embedder.embed_float64 if float64 else self.embedder.embed_to_host
        return _check_finite(embed(state, t, for_write=for_write))

    def find(self, state: State, t: NDArray[np.integer[Any]], *, nearest: bool = False) -> Slots:
        """Find the nearest node of each state (Algorithm 3, lookup of H).

        Args:
            state: [Q, S] [state features], an array or a tensor. A tensor on a GPU is copied to the host.
            t: [Q], time steps of the states [steps].
            nearest: If no node is within delta, return the nearest node at any distance.

        Returns:
            [Q], slot indices; -1 if no node was found.
        """
        scaling = self._positions.scaling_of_lookups
        q = scaling.apply(self._embed(state, t, float64=scaling.is_float64))
        return self._find_positions(q, nearest=nearest)

    def find_last_written(self, *, nearest: bool = False) -> Slots:
        """Find the nearest node of each state of the last written episode, without a second embedding.

        The result equals that of `find`, except with `time_norm = "write_T_lim+1"` (A14).

        Source: Algorithm 3, lookup of H.

        Args:
            nearest: If no node is within delta, return the nearest node at any distance.

        Returns:
            [T+1], slot indices; -1 if no node was found.
        """
        written = self._last_written
        assert written is not None
        assert written.scaling is self._positions.scaling_of_lookups  # the index was not rebuilt since the write
        return self._find_positions(written.q, nearest=nearest)

    def _find_positions(self, q: NDArray[np.float64], *, nearest: bool) -> Slots:
        slots = self._positions.find(self._table, q)
        self._counts["queried"] += len(slots)
        self._counts["hits"] += int((slots >= 0).sum())
        is_miss = slots < 0
        if nearest and is_miss.any():
            slots[is_miss] = self._positions.find_nearest(self._table, q[is_miss])
        return slots

    def keep_unchanged(
        self, slots: Slots, uids: Slots, *, length: NDArray[np.int64], episode: NDArray[np.int64]
    ) -> tuple[Slots, NDArray[np.bool_]]:
        """Keep the slots whose nodes still have the state for which the slot was stored.

        Such a node is at distance 0 from the state under any embedding, so no search is needed. A stale index has old
        positions, so it keeps no slot.

        Source: implementation detail; equal to a search by Algorithm 3.

        Args:
            slots: [K, T+1], slot indices of the states of K episodes; -1 for none.
            uids: [K, T+1], uids of the nodes when the slots were stored, dimensionless.
            length: [K], transitions of the episodes [steps]; later states are padding.
            episode: [K], episode numbers, dimensionless.

        Returns:
            Slot indices [K, T+1], -1 where the slot was not kept; and a boolean [K, T+1], True for the states without
            padding whose slot was not kept.
        """
        if self.config.index != "live":
            return np.full_like(slots, -1), np.arange(slots.shape[1]) <= length[:, None]
        return keep_unchanged(self._table.nodes, slots, uids, length, episode)

    def resolve(self, slots: Slots, state: NDArray[np.float32], *, nearest: bool = False) -> Slots:
        """Convert the slots that `write` returned to the slots that a reader uses.

        With a live index these are the same slots. With a stale index the states are looked up.

        Source: implementation detail; the lookup is that of Algorithm 3.

        Args:
            slots: [T+1], slot indices of an episode.
            state: [T+1, S] [state features].
            nearest: Replace -1 by the nearest node at any distance.

        Returns:
            [T+1], slot indices.
        """
        steps = np.arange(len(state))
        if self.config.index == "stale_target_update":
            return self.find(state, steps, nearest=nearest)
        is_miss = slots < 0
        if not nearest or not is_miss.any():
            return slots
        resolved = slots.copy()
        resolved[is_miss] = self.find(state[is_miss], steps[is_miss], nearest=True)
        return resolved

    def recall(self, slots: Slots, uids: Slots | None = None) -> Recall:
        """Read nodes by slot. With `lru_touch_on_read` the nodes become the most recently used.

        Source: H, N_call and N_xi of Algorithm 2.

        Args:
            slots: Slot indices, any shape; -1 is a miss.
            uids: Expected uids, same shape, dimensionless; a slot whose node has another uid is a miss. None: no check.
        """
        recalled = recall(self._table, slots, uids)
        if self.config.lru_touch_on_read and self.config.evict == "lru":
            move_to_newest(self._table.order, self._table.ends, np.where(recalled.hit, slots, -1).ravel())
        return recalled

    def peek(self, slots: Slots) -> NDArray[np.float64]:
        """Read H by slot, without a change of the eviction order: for statistics.

        Source: H of Algorithm 2.

        Args:
            slots: Slot indices, any shape.

        Returns:
            H [return], same shape; NaN at slot -1.
        """
        return recall(self._table, slots).h

    def uids(self, slots: Slots) -> Slots:
        """Read the uids of nodes.

        Source: implementation detail.

        Args:
            slots: Slot indices, any shape.

        Returns:
            Uids, same shape, dimensionless; -1 at slot -1.
        """
        return np.where(slots >= 0, self._table.nodes["uid"][np.maximum(slots, 0)], -1)

    def successors(self, slots: Slots) -> Slots:
        """Follow idx_next of Algorithm 2.

        Args:
            slots: Slot indices, any shape.

        Returns:
            Slot indices, same shape; -1 if there is no successor or its node was evicted (A18).
        """
        return self._table.follow(slots)

    def sample(self, n: int) -> NodeSample:
        """Sample min(n, size) nodes without replacement (Algorithm 1)."""
        rng = make_generator(self._seed, "memory", self._samples)
        self._samples += 1
        rows = rng.choice(self.size, min(n, self.size), replace=False, shuffle=True)
        state: State
        if self._device_states:
            state = self._device_states.update(self._table)[0].index_select(0, send(rows, self.embedder.device))
        else:
            state = self._table.state.take(rows, axis=0)
        return NodeSample(state, self._table.nodes["t"][rows], self._table.nodes["h"][rows])

    def delta_mem(self) -> NDArray[np.float64]:
        """Compute the consistency error between every node and its successor (Eq. 7).

        Returns:
            [M] [return], in slot order; NaN without a successor.
        """
        return delta_along_links(self._table, self._gamma)

    def read_links(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Read the three terms of the consistency error of every node (Eq. 7).

        Returns:
            Reward [M] [reward], H [M] [return] and H of the successor [M] [return], in slot order; the last is NaN
            without a successor.
        """
        return values_along_links(self._table)

    def columns(self) -> NodeColumns:
        """Copy all columns of the nodes except the states."""
        return copy_columns(self._table)

    def states(self, slots: Slots) -> NDArray[np.float32]:
        """Copy the states of nodes.

        Source: implementation detail.

        Args:
            slots: [K], slot indices.

        Returns:
            [K, S] [state features].
        """
        return self._table.state[slots]

    def take_stats(self) -> MemoryStats:
        """Return the counters and reset them."""
        stats = MemoryStats(**self._counts, evicted_total=self._evicted)
        self._counts = dict.fromkeys(self._counts, 0)
        return stats

    def get_state(self) -> dict[str, Any]:
        """Copy the complete state: tensors, plain values and dictionaries of them."""
        return {
            "table": table_state(self._table),
            "space": self._positions.get_state(),
            "generation": self.generation,
            "measured": self._measured,
            "appended": self._appended,
            "steps": self._steps,
            "samples": self._samples,
            "evicted": self._evicted,
            "counts": dict(self._counts),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`. Later results are identical.

        Raises:
            CheckpointError: If capacity or dimensions differ.
        """
        fill_table(self._table, state["table"])
        if self._device_states:
            self._device_states.invalidate()
        self._positions.set_state(state["space"], self._table)
        self.generation = state["generation"]
        self._measured, self._appended, self._steps = state["measured"], state["appended"], state["steps"]
        self._samples, self._evicted = state["samples"], state["evicted"]
        self._counts = dict(state["counts"])

    def list_faults(self) -> list[str]:
        """List the broken invariants of the memory as sentences; empty if there are none."""
        return [*list_table_faults(self._table), *self._positions.list_faults(self._table)]


def _check_finite(x: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(x).all():
        raise NonFiniteLossError("Embeddings must be finite, got NaN or infinity. Lower embed.lr.")
    return x
