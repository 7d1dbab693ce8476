"""The episodic part of a run: memory, embedder and gate behind one interface.

`EpisodicPart` is used by EMTC, EMU and EMC. Other algorithms use its base class `EpisodicSystem`, which stores
nothing. The gate searches the memory once per episode, when the episode is written (`gate.lookup`). The incentive
reads the slots that Algorithm 2 assigned, so an update does no search between two re-projections, except with
`memory.on_evicted = "search"`. Stage before: rollout; after: replay buffer.
"""

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.config.run import RunConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.plugin import PluginEmbedder, make_embedder
from emtc_core.envs.base import EnvInfo
from emtc_core.gate.gate import gate_transitions, make_gate_law
from emtc_core.gate.incentive import compute_incentive_inputs
from emtc_core.gate_laws import GateContext
from emtc_core.learner.targets import IncentiveInputs, make_incentive_inputs
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import QUANTILES, GateStatsRecord, SnapshotRecord
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.rollout.episode import Episode
from emtc_core.stopwatch import Elapsed, Stopwatch, compute_mean_ms
from emtc_core.training.episode_gate import WrittenEpisode, evaluate_episode_gate

Slots = NDArray[np.int64]
Floats = NDArray[np.float64]

HOST = torch.device("cpu")

_LOG = logging.getLogger(__name__)


class EpisodicSystem:
    """Interface of the episodic part to the trainer. This class is for algorithms without a memory: it does nothing."""

    def write_and_gate(self, episode: Episode, *, number: int, tau: float) -> WrittenEpisode:
        """Write an episode to the memory and evaluate its gate (Algorithm 3).

        Args:
            episode: The episode.
            number: Number of the episode in its run.
            tau: Temperature [return].
        """
        return WrittenEpisode()

    def recall(self, batch: Batch, buffer: ReplayBuffer, *, tau: float) -> tuple[Batch, IncentiveInputs | None]:
        """Return the batch for the learner, and the memory values of its successor states.

        Args:
            batch: The sampled batch.
            buffer: The replay buffer, whose slots are updated after a re-projection.
            tau: Temperature [return], for `gate.mode = "recompute"`.
        """
        return batch, None

    def measure_gate(self, batch: Batch, *, tau: float) -> dict[str, float]:
        """Compute the gate metrics of a batch."""
        return {}

    def refit(self, buffer: ReplayBuffer) -> dict[str, float]:
        """Train the embedder; return its metrics."""
        return {}

    def on_target_update(self) -> None:
        """React to a copy of the learner's target networks."""

    def gate_stats(self, env_step: int, *, tau: float) -> GateStatsRecord | None:
        """Compute statistics of the gate over the whole memory."""
        return None

    def snapshot(self, env_step: int, *, tau: float, states: int) -> SnapshotRecord | None:
        """Copy the memory.

        Args:
            env_step: Env step of the snapshot.
            tau: Temperature [return].
            states: Maximum number of states in the copy.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`."""


class EpisodicPart(EpisodicSystem):
    """Memory, embedder and gate of one run."""

    def __init__(self, config: RunConfig, info: EnvInfo, *, device: torch.device) -> None:
        self._config = config
        self._gamma = config.train.gamma
        self._embedder = make_embedder(
            config.embed,
            state_dim=info.state_dim,
            episode_limit=info.episode_limit,
            device=device,
            seed=derive_seed(config.seed, "embedder"),
        )
        self.memory = EpisodicMemory(
            config.memory,
            state_dim=info.state_dim,
            gamma=self._gamma,
            embedder=self._embedder,
            device=str(device),
            seed=derive_seed(config.seed, "memory"),
        )
        self._n_episodes = 0  # written so far
        self._has_warned = False
        self._write_times: list[Elapsed] = []  # per episode since the last report
        self._delta_mem: list[Floats] = []  # [T] per episode since the last report
        self._beta: list[Floats] = []  # [T] per episode since the last report
        self._n_recalled = self._n_hits = 0  # successor states since the last report

    def write_and_gate(self, episode: Episode, *, number: int, tau: float) -> WrittenEpisode:
        """Write the episode (Algorithm 2) and evaluate its gate (Algorithm 3), in the order of `gate.timing`.

        Args:
            episode: The episode.
            number: Number of the episode in its run.
            tau: Current temperature [return].
        """
        if self._config.gate.timing == "before_write":
            gate_values = evaluate_episode_gate(episode, None, self._config, self.memory, tau=tau)
            slots = self._write(episode, number)
        else:
            slots = self._write(episode, number)
            gate_values = evaluate_episode_gate(episode, slots, self._config, self.memory, tau=tau)
        self._delta_mem.append(gate_values.delta_mem)
        self._beta.append(gate_values.beta)
        incentive_slots = self._resolve_for_incentive(slots, episode.state)
        uids = self.memory.uids(incentive_slots)
        return WrittenEpisode(slots, incentive_slots, uids, self.memory.generation, gate_values)

    def _write(self, episode: Episode, number: int) -> Slots:
        """Write the episode (Algorithm 2); return the slot index [T+1] of each state, -1 if it is not stored."""
        watch = Stopwatch(HOST)
        slots = self.memory.write(
            state=episode.state,
            reward=episode.reward,
            won=episode.won,
            episode=number,
            episode_return=episode.episode_return,
        )
        self._write_times.append(watch.stop())
        self._n_episodes += 1
        return slots

    def _resolve_for_incentive(self, slots: Slots, state: NDArray[np.float32]) -> Slots:
        return self.memory.resolve(slots, state, nearest=self._config.incentive.on_miss == "nearest")

    def recall(self, batch: Batch, buffer: ReplayBuffer, *, tau: float) -> tuple[Batch, IncentiveInputs | None]:
        """Read the current H and rho of every successor state.

        States are searched again if a re-projection changed the slots, and with `memory.on_evicted = "search"` if their
        node was evicted.

        Values are gathered and states are searched on the host, so this method does not wait for the device.

        Args:
            batch: The sampled batch.
            buffer: Gets the new slots of episodes that were searched again.
            tau: Current temperature [return].
        """
        batch = self._refresh_slots(batch, buffer)
        if self._config.memory.on_evicted == "search":
            batch = self._replace_evicted(batch, buffer)
        successors = self.memory.recall(batch.slots[:, 1:], batch.uids[:, 1:])
        self._n_recalled += int(batch.length.sum())
        self._n_hits += int(successors.hit.sum())  # padding is never a hit
        h_next, rho_next = compute_incentive_inputs(successors, batch.ends, self._config.incentive)
        inputs = make_incentive_inputs(h_next, rho_next, successors.hit)
        if self._config.uses_gate and self._config.gate.mode == "recompute":
            beta = self._evaluate_gate(batch, tau=tau)[1]
            batch = replace(batch, beta=torch.from_numpy(beta.astype(np.float32)))
        return batch, inputs

    def measure_gate(self, batch: Batch, *, tau: float) -> dict[str, float]:
        """Summarise delta_mem and beta of a batch of `recall`, and compare beta with its current value (C6).

        The mean of beta is not included: the learner reports it for each update.
        """
        if not self._config.uses_gate:
            return {}
        real = np.arange(batch.slots.shape[1] - 1) < batch.length[:, None]
        error, current_beta = (values[real] for values in self._evaluate_gate(batch, tau=tau))
        beta = batch.beta.numpy()[real]
        values = {"gate/beta_drift": float(np.abs(current_beta - beta).mean())}
        values |= _compute_quantiles("gate/beta_batch", beta)
        return values | _summarize("gate/delta_mem_batch", error[np.isfinite(error)])

    def _evaluate_gate(self, batch: Batch, *, tau: float) -> tuple[Floats, Floats]:
        """Compute delta_mem and beta [B, T] of a batch from the current memory."""
        gate = self._config.gate
        slots_BT = self._find_gate_slots(batch)
        here = slots_BT[:, :-1]
        successors = self.memory.successors(here) if gate.successor == "link" else slots_BT[:, 1:]
        h, h_next = self.memory.peek(here), self.memory.peek(successors)
        if gate.terminal_value == "zero":
            h_next = np.where(batch.ends, 0.0, h_next)
        reward = batch.reward.numpy()
        is_empty = self.memory.is_index_empty
        return gate_transitions(reward, h, h_next, config=gate, gamma=self._gamma, tau=tau, is_empty=is_empty)

    def _find_gate_slots(self, batch: Batch) -> Slots:
        """Find the nodes [B, T+1] that the gate reads: search all states, or only states without a stored slot."""
        gate = self._config.gate
        slots_BT = np.where(self.memory.uids(batch.slots) == batch.uids, batch.slots, -1)
        to_search = np.arange(slots_BT.shape[1]) <= batch.length[:, None]
        if gate.lookup == "written":
            to_search &= (slots_BT < 0) & (gate.on_miss == "nearest")
        rows, steps = np.nonzero(to_search)
        if len(rows):
            state = batch.steps.read_states(rows, steps)
            slots_BT[rows, steps] = self.memory.find(state, steps, nearest=gate.on_miss == "nearest")
        return slots_BT

    def _refresh_slots(self, batch: Batch, buffer: ReplayBuffer) -> Batch:
        """Search the slots of sampled episodes again if the memory was re-projected since they were stored."""
        slots_BT, uids_BT = batch.slots, batch.uids
        stale = np.flatnonzero(batch.generation != self.memory.generation)
        if not len(stale):
            return batch
        slots, is_missing = self.memory.keep_unchanged(
            slots_BT[stale], uids_BT[stale], length=batch.length[stale], episode=batch.number[stale]
        )
        rows, steps = np.nonzero(is_missing)
        state = batch.steps.read_states(stale[rows], steps)
        slots[rows, steps] = self.memory.find(state, steps, nearest=self._config.incentive.on_miss == "nearest")
        uids = self.memory.uids(slots)
        buffer.set_slots(batch.indices[stale], slots, uids, self.memory.generation)
        slots_BT, uids_BT = slots_BT.copy(), uids_BT.copy()
        slots_BT[stale], uids_BT[stale] = slots, uids
        return replace(batch, slots=slots_BT, uids=uids_BT)

    def _replace_evicted(self, batch: Batch, buffer: ReplayBuffer) -> Batch:
        """Search the states whose node was evicted since its slot was stored, and store the nodes of the search.

        A state without a node within delta keeps its slot, so the next update that reads it searches again.
        """
        is_evicted = (batch.slots >= 0) & (self.memory.uids(batch.slots) != batch.uids)
        rows, steps = np.nonzero(is_evicted)
        if not len(rows):
            return batch
        state = batch.steps.read_states(rows, steps)
        new_slots = self.memory.find(state, steps, nearest=self._config.incentive.on_miss == "nearest")
        hit = new_slots >= 0
        rows, steps, new_slots = rows[hit], steps[hit], new_slots[hit]
        slots_BT, uids_BT = batch.slots.copy(), batch.uids.copy()
        slots_BT[rows, steps], uids_BT[rows, steps] = new_slots, self.memory.uids(new_slots)
        changed = np.unique(rows)
        buffer.set_slots(batch.indices[changed], slots_BT[changed], uids_BT[changed], self.memory.generation)
        return replace(batch, slots=slots_BT, uids=uids_BT)

    def refit(self, buffer: ReplayBuffer) -> dict[str, float]:
        """Train the embedder on a sample of the memory, then embed all nodes again (Algorithm 1)."""
        if not self._can_refit:
            return {}
        self._warn_if_collapsed()
        values = self._fit_embedder()
        watch = Stopwatch(HOST)  # a re-projection ends on the host
        self.memory.reproject()
        values["memory/reproject_ms"] = watch.stop().read_ms()
        self._rewrite_episodes(buffer)
        return {name: value for name, value in values.items() if np.isfinite(value)}

    def _fit_embedder(self) -> dict[str, float]:
        """Train the embedder and return its losses by metric name."""
        sample = self.memory.sample(self._config.embed.samples)
        if isinstance(self._embedder, PluginEmbedder):
            started = time.monotonic()
            return self._embedder.fit(sample) | {"embedder/fit_ms": (time.monotonic() - started) * 1e3}
        stats = fit(self._embedder, sample)
        values = {f"embedder/{name}": value for name, value in stats.means().items()}
        return values | {"embedder/fit_ms": stats.seconds * 1e3}

    @property
    def _can_refit(self) -> bool:
        """Whether there are enough nodes or enough episodes.

        If all states merge, the number of nodes stays small, and waiting for more nodes would never end (B15).
        """
        embed = self._config.embed
        enough_episodes = self._n_episodes >= embed.min_episodes > 0
        return self._embedder.is_trainable and (self.memory.size >= embed.min_entries or enough_episodes)

    def _warn_if_collapsed(self) -> None:
        """Warn once if many episodes left few nodes: the embedding hardly distinguishes states."""
        embed = self._config.embed
        if self.memory.size < embed.min_entries and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "After %d episodes the memory has %d nodes, fewer than embed.min_entries = %d, because states merge "
                "within memory.delta = %g. The embedder is trained on these nodes.",
                *(self._n_episodes, self.memory.size, embed.min_entries, self._config.memory.delta),
            )

    def _rewrite_episodes(self, buffer: ReplayBuffer) -> None:
        """Write replayed episodes to the memory again (`memory.replay_refresh`, A19)."""
        mode, n_episodes = self._config.memory.replay_refresh, len(buffer)
        if mode == "none" or not n_episodes:
            return
        rng = make_generator(self._config.seed, "refresh", self.memory.generation)
        for index in range(n_episodes) if mode == "full" else [int(rng.integers(n_episodes))]:
            old = buffer.read(index)
            written = self.memory.write(
                state=old.state, reward=old.reward, won=old.won, episode=old.number, episode_return=old.episode_return
            )
            slots = self._resolve_for_incentive(written, old.state)
            buffer.set_slots(np.array([index]), slots[None], self.memory.uids(slots)[None], self.memory.generation)

    def on_target_update(self) -> None:
        """Notify the memory. With `memory.index = stale_target_update` it rebuilds its index only now (A13)."""
        self.memory.on_target_update()

    def gate_stats(self, env_step: int, *, tau: float) -> GateStatsRecord | None:
        """Summarise delta_mem and beta over all nodes with a successor link; None if there are none.

        Without a gate the values of beta are NaN.
        """
        error = self.memory.delta_mem()
        has_link = np.isfinite(error)
        if not has_link.any():
            return None
        beta = self._compute_link_beta(error, tau)[has_link]
        error = error[has_link]
        return GateStatsRecord(
            env_step=env_step,
            delta_mem_mean=float(error.mean()),
            delta_mem_quantiles=tuple(np.quantile(error, QUANTILES).tolist()),
            beta_mean=float(beta.mean()),
            beta_quantiles=tuple(np.quantile(beta, QUANTILES).tolist()),
            tau=tau,
            memory_size=self.memory.size,
            desirable_fraction=self.memory.desirable_fraction,
        )

    def snapshot(self, env_step: int, *, tau: float, states: int) -> SnapshotRecord | None:
        """Copy the memory's columns, and the states of a sample stratified by return and time.

        Args:
            env_step: Env steps of the run so far; also selects the random sample.
            tau: Current temperature [return].
            states: Maximum number of states in the sample.

        Returns:
            The snapshot, or None if the memory is empty.
        """
        if not self.memory.size:
            return None
        columns = self.memory.columns()
        error = self.memory.delta_mem()
        rng = make_generator(self._config.seed, "snapshot", env_step)
        rows = _sample_stratified(columns.h, columns.t, states, rng)
        beta = self._compute_link_beta(error, tau)
        names = ("slot", "embedding", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode")
        return SnapshotRecord(
            env_step=env_step,
            h=columns.h.astype(np.float32),
            delta_mem=error.astype(np.float32),
            beta=beta.astype(np.float32),
            state_rows=rows,
            state=self.memory.states(columns.slot[rows]).astype(np.float16),
            **{name: getattr(columns, name) for name in names},
        )

    def _compute_link_beta(self, error: Floats, tau: float) -> Floats:
        """Compute beta [M] of every node's link from delta_mem [M]; NaN without a link, and without a gate."""
        has_link, beta = np.isfinite(error), np.full_like(error, np.nan)
        if not self._config.uses_gate:
            return beta
        context = GateContext(*self.memory.read_links(), self._gamma).select(has_link)
        beta[has_link] = make_gate_law(self._config.gate).weigh(error[has_link], tau, context)
        return beta

    def metrics(self) -> dict[str, float]:
        """Return the metrics of memory and gate since the last call."""
        stats = self.memory.take_stats()
        times, self._write_times = self._write_times, []
        delta_mem, self._delta_mem = self._delta_mem, []
        beta, self._beta = self._beta, []
        values: dict[str, float] = {}
        if times:
            values["memory/write_ms"] = compute_mean_ms(times)
        if self._n_recalled:
            values["memory/hit_rate"] = self._n_hits / self._n_recalled
        self._n_recalled = self._n_hits = 0
        if self._config.uses_gate and beta:
            error = np.concatenate(delta_mem)
            positive = error[error > 0]  # a miss is NaN and does not count
            values |= _summarize("gate/delta_mem_new", error[np.isfinite(error)])
            values["gate/delta_mem_positive_fraction"] = len(positive) / len(error)
            values |= _summarize("gate/delta_mem_positive", positive)
            values |= _summarize("gate/beta_new", np.concatenate(beta))
        return values | {
            "memory/size": self.memory.size,
            "memory/merge_rate": stats.merged / max(1, stats.written),
            "memory/desirable_fraction": self.memory.desirable_fraction,
            "memory/evicted": stats.evicted_total,
        }

    def get_state(self) -> dict[str, Any]:
        """Collect memory and embedder for a checkpoint."""
        return {
            "memory": self.memory.get_state(),
            "embedder": self._embedder.get_state(),
            "episodes": self._n_episodes,
            "since_report": {
                "delta_mem": [torch.from_numpy(values.copy()) for values in self._delta_mem],
                "beta": [torch.from_numpy(values.copy()) for values in self._beta],
                "recalled": self._n_recalled,
                "hits": self._n_hits,
            },
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore memory and embedder from a checkpoint."""
        self._embedder.set_state(state["embedder"])
        self.memory.set_state(state["memory"])
        self._n_episodes = state["episodes"]
        report = state["since_report"]
        self._delta_mem = [values.numpy() for values in report["delta_mem"]]
        self._beta = [values.numpy() for values in report["beta"]]
        self._n_recalled, self._n_hits = report["recalled"], report["hits"]


def make_episodic_system(config: RunConfig, info: EnvInfo, *, device: torch.device) -> EpisodicSystem:
    """Make the episodic part of an algorithm.

    Args:
        config: Settings of the run.
        info: Sizes of the environment.
        device: Device of the embedder.
    """
    return EpisodicPart(config, info, device=device) if config.uses_memory else EpisodicSystem()


def _summarize(name: str, values: NDArray[np.floating]) -> dict[str, float]:
    """Compute mean, 10 % quantile, median and 90 % quantile, as metrics; empty without values."""
    return {name: float(values.mean()), **_compute_quantiles(name, values)} if len(values) else {}


def _compute_quantiles(name: str, values: NDArray[np.floating]) -> dict[str, float]:
    """Compute 10 % quantile, median and 90 % quantile, as metrics."""
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return {f"{name}_p10": low, f"{name}_p50": median, f"{name}_p90": high}


def _sample_stratified(h: Floats, t: NDArray[np.int32], n: int, rng: np.random.Generator) -> Slots:
    """Select at most n rows, evenly spaced in the order of (return decile, time)."""
    if len(h) <= n:
        return np.arange(len(h))
    decile = np.searchsorted(np.quantile(h, np.linspace(0, 1, 11)[1:-1]), h)
    order = np.lexsort((rng.random(len(h)), t, decile))
    return np.sort(order[np.linspace(0, len(h) - 1, n).astype(np.int64)])
