"""The episodic part of a run: memory, embedder and gate behind one small interface.

`EpisodicPart` serves EMTC, EMU and EMC; plain backbones have its base, which remembers nothing. The
stage before is an episode, the stage after the replay buffer. The gate searches once per episode, when it
is written (`gate.lookup`); the incentive reads the slots that Algorithm 2 assigned, so between two
re-projections an update searches nothing.
"""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.config.run import RunConfig
from emtc_core.devices import Elapsed, Stopwatch, send
from emtc_core.embedder.outside import make_embedder
from emtc_core.embedder.overlap import Fits
from emtc_core.envs.base import EnvInfo
from emtc_core.gate.gate import GateVerdict, gate_transitions, weigh_successors
from emtc_core.gate.laws import GateContext, make_gate_law
from emtc_core.learner.targets import IncentiveInputs, incentive_inputs
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import QUANTILES, GateStatsRecord, SnapshotRecord
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.rollout.episode import Episode
from emtc_core.training.judge import Absorbed, Judge

Slots = NDArray[np.int64]
Floats = NDArray[np.float64]

_LOG = logging.getLogger(__name__)


class EpisodicSystem:
    """What the trainer asks of memory, embedder and gate together; this one, of a plain backbone, remembers nothing."""

    def absorb(self, episode: Episode, *, number: int, tau: float) -> Absorbed:
        """Remember and judge an episode."""
        return Absorbed()

    def recall(self, batch: Batch, buffer: ReplayBuffer, *, tau: float) -> tuple[Batch, IncentiveInputs | None]:
        """Return the batch as it will be learned from, and what the memory says of it."""
        return batch, None

    def judge(self, batch: Batch, *, tau: float) -> dict[str, float]:
        """Metrics of the gates of a batch."""
        return {}

    def refit(self, buffer: ReplayBuffer) -> dict[str, float]:
        """Train the embedder; return its metrics."""
        return {}

    def on_target_update(self) -> None:
        """The learner has copied its target networks."""

    def gate_stats(self, env_step: int, *, tau: float) -> GateStatsRecord | None:
        """Statistics of the gate over the whole memory."""
        return None

    def snapshot(self, env_step: int, *, tau: float, states: int) -> SnapshotRecord | None:
        """Copy of the memory, with at most this many states."""
        return None

    def metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""


class EpisodicPart(EpisodicSystem):
    """Memory, embedder and gate of one run."""

    def __init__(self, config: RunConfig, info: EnvInfo, *, device: torch.device) -> None:
        self._config, self._device = config, device
        self._gamma = config.train.gamma
        self._embedder = make_embedder(
            config.embed,
            state_dim=info.state_dim,
            episode_limit=info.episode_limit,
            device=device,
            seed=derive_seed(config.seed, "embedder"),
        )
        self._fits = Fits(self._embedder)
        self.memory = EpisodicMemory(
            config.memory,
            state_dim=info.state_dim,
            gamma=self._gamma,
            embedder=self._embedder,
            device=str(device),
            seed=derive_seed(config.seed, "memory"),
        )
        self._episodes = 0  # written so far
        self._has_warned = False
        self._writes: list[Elapsed] = []  # of each episode since the last report
        self._verdicts: list[GateVerdict] = []  # of each episode since the last report
        self._recalled = self._found = 0  # successors since the last report

    def absorb(self, episode: Episode, *, number: int, tau: float) -> Absorbed:
        """Write the episode (Algorithm 2) and judge its transitions (Algorithm 3), in the order of `gate.timing`."""
        judge = Judge(self._config, self.memory)
        if judge.is_early:
            verdict = judge.judge(episode, None, tau=tau)
            slots = self.write(episode, number)
        else:
            slots = self.write(episode, number)
            verdict = judge.judge(episode, slots, tau=tau)
        self._verdicts.append(verdict)
        seen = self._see(slots, episode.state)
        return Absorbed(slots, seen, self.memory.uids(seen), self.memory.generation, verdict)

    def write(self, episode: Episode, number: int) -> Slots:
        """Write the episode alone (Algorithm 2); return the slot of each state [T+1]."""
        watch = Stopwatch(self._device)
        slots = self.memory.write(
            state=episode.state,
            reward=episode.reward,
            won=episode.won,
            episode=number,
            episode_return=episode.episode_return,
        )
        self._writes.append(watch.stop())
        self._episodes += 1
        return slots

    def _see(self, slots: Slots, state: NDArray[np.float32]) -> Slots:
        """Turn the slots that Algorithm 2 assigned into those that the incentive will read."""
        return self.memory.resolve(slots, state, nearest=self._config.incentive.on_miss == "nearest")

    def recall(self, batch: Batch, buffer: ReplayBuffer, *, tau: float) -> tuple[Batch, IncentiveInputs | None]:
        """Gather the freshest H and rho of every successor; search only for episodes embedded anew.

        What is recalled is gathered on the host and sent along, so nothing here waits for a device, but for the
        embeddings of episodes that must be searched again and for `gate.mode = "recompute"`.
        """
        batch = self._resolve(batch, buffer)
        following = self.memory.recall(batch.slots[:, 1:], batch.uids[:, 1:])
        self._recalled += int(batch.length.sum())
        self._found += int(following.hit.sum())  # padding never hits
        h_next, rho_next = weigh_successors(following, batch.ends, self._config.incentive)
        inputs = incentive_inputs(h_next, rho_next, following.hit, device=batch.reward.device)
        if self._config.uses_gate and self._config.gate.mode == "recompute":
            beta = self._evaluate(batch, tau=tau)[1]
            batch = replace(batch, beta=send(beta.astype(np.float32), batch.beta.device))
        return batch, inputs

    def judge(self, batch: Batch, *, tau: float) -> dict[str, float]:
        """Describe the errors and gates of a batch that `recall` returned, and what the gates would be now (C6)."""
        if not self._config.uses_gate:
            return {}
        real = np.arange(batch.slots.shape[1] - 1) < batch.length[:, None]
        error, fresh = (values[real] for values in self._evaluate(batch, tau=tau))
        used = batch.beta.cpu().numpy()[real]
        values = {"gate/beta_drift": float(np.abs(fresh - used).mean())}
        values |= _describe("gate/beta_batch", used) | _describe("gate/delta_mem_batch", error[np.isfinite(error)])
        return values

    def _evaluate(self, batch: Batch, *, tau: float) -> tuple[Floats, Floats]:
        """Compute delta_mem and beta [B, T] of a batch from the memory of this moment."""
        gate = self._config.gate
        slots_BT = self._slots_of_gate(batch)
        here = slots_BT[:, :-1]
        following = self.memory.successors(here) if gate.successor == "link" else slots_BT[:, 1:]
        h, h_next = self.memory.peek(here), self.memory.peek(following)
        if gate.terminal_value == "zero":
            h_next = np.where(batch.ends, 0.0, h_next)
        reward = batch.reward.cpu().numpy()
        is_empty = self.memory.is_blind
        return gate_transitions(reward, h, h_next, config=gate, gamma=self._gamma, tau=tau, is_empty=is_empty)

    def _slots_of_gate(self, batch: Batch) -> Slots:
        """Find the nodes [B, T+1] that the gate reads now: by a search of every state, or only where none is known."""
        gate = self._config.gate
        slots_BT = np.where(self.memory.uids(batch.slots) == batch.uids, batch.slots, -1)
        sought = np.arange(slots_BT.shape[1]) <= batch.length[:, None]
        if gate.lookup == "written":
            sought &= (slots_BT < 0) & (gate.on_miss == "nearest")
        rows, steps = np.nonzero(sought)
        if len(rows):
            state = _pick(batch.state, rows, steps)
            slots_BT[rows, steps] = self.memory.find(state, steps, nearest=gate.on_miss == "nearest")
        return slots_BT

    def _resolve(self, batch: Batch, buffer: ReplayBuffer) -> Batch:
        """Find the slots of sampled episodes again if the memory was re-embedded since they were stored."""
        slots_BT, uids_BT = batch.slots, batch.uids
        stale = np.flatnonzero(batch.generation != self.memory.generation)
        if not len(stale):
            return batch
        steps_T = np.arange(slots_BT.shape[1])
        real = steps_T <= batch.length[stale, None]
        own = real & self.memory.holds(slots_BT[stale], uids_BT[stale], steps_T, batch.number[stale, None])
        found = np.where(own, slots_BT[stale], -1)
        rows, steps = np.nonzero(real & ~own)
        state = _pick(batch.state, stale[rows], steps)
        found[rows, steps] = self.memory.find(state, steps, nearest=self._config.incentive.on_miss == "nearest")
        uids = self.memory.uids(found)
        buffer.set_slots(batch.indices[stale], found, uids, self.memory.generation)
        slots_BT, uids_BT = slots_BT.copy(), uids_BT.copy()
        slots_BT[stale], uids_BT[stale] = found, uids
        return replace(batch, slots=slots_BT, uids=uids_BT)

    def refit(self, buffer: ReplayBuffer) -> dict[str, float]:
        """Train the embedder on a sample of the memory, then embed every node anew (Algorithm 1)."""
        if not self._may_refit:
            return {}
        self._warn_of_collapse()
        values = self._fits.refit(self.memory.sample(self._config.embed.samples))
        if values is None:
            return {}
        watch = Stopwatch(self._device)
        self.memory.reproject()
        values["memory/reproject_ms"] = watch.stop().read_ms()
        self._rewrite(buffer)
        return {name: value for name, value in values.items() if np.isfinite(value)}

    @property
    def _may_refit(self) -> bool:
        """Enough nodes, or enough episodes that left few: where all merges, waiting for nodes is a deadlock (B15)."""
        embed = self._config.embed
        enough_episodes = self._episodes >= embed.min_episodes > 0
        return self._embedder.is_trainable and (self.memory.size >= embed.min_entries or enough_episodes)

    def _warn_of_collapse(self) -> None:
        """Warn once when episodes, not nodes, made a refit due: the embedding hardly tells states apart."""
        embed = self._config.embed
        if self.memory.size < embed.min_entries and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "After %d episodes the memory holds %d nodes, fewer than embed.min_entries = %d, as states merge "
                "within memory.delta = %g. The embedder is trained on what there is.",
                *(self._episodes, self.memory.size, embed.min_entries, self._config.memory.delta),
            )

    def _rewrite(self, buffer: ReplayBuffer) -> None:
        """Write replayed episodes into the memory once more (`memory.replay_refresh`, A19)."""
        how, held = self._config.memory.replay_refresh, len(buffer)
        if how == "none" or not held:
            return
        rng = make_generator(self._config.seed, "refresh", self.memory.generation)
        for place in range(held) if how == "full" else [int(rng.integers(held))]:
            old = buffer.read(place)
            slots = self.memory.write(
                state=old.state, reward=old.reward, won=old.won, episode=old.number, episode_return=old.episode_return
            )
            seen = self._see(slots, old.state)
            buffer.set_slots(np.array([place]), seen[None], self.memory.uids(seen)[None], self.memory.generation)

    def on_target_update(self) -> None:
        """Notify the index, which `memory.index = stale_target_update` rebuilds only now (A13)."""
        self.memory.on_target_update()

    def gate_stats(self, env_step: int, *, tau: float) -> GateStatsRecord | None:
        """Summarise delta_mem and beta over the whole memory, along the stored links."""
        error = self.memory.delta_mem()
        linked = np.isfinite(error)
        if not linked.any():
            return None
        beta = self._weigh_links(error, tau)[linked]
        error = error[linked]
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
        """Copy the memory's columns, with the states of a sample stratified by return and time."""
        if not self.memory.size:
            return None
        columns = self.memory.columns()
        error = self.memory.delta_mem()
        rng = make_generator(self._config.seed, "snapshot", env_step)
        rows = _stratified(columns.h, columns.t, states, rng)
        beta = self._weigh_links(error, tau)
        copied = ("slot", "embedding", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode")
        return SnapshotRecord(
            env_step=env_step,
            h=columns.h.astype(np.float32),
            delta_mem=error.astype(np.float32),
            beta=beta.astype(np.float32),
            state_rows=rows,
            state=self.memory.states(columns.slot[rows]).astype(np.float16),
            **{name: getattr(columns, name) for name in copied},
        )

    def _weigh_links(self, error: Floats, tau: float) -> Floats:
        """Compute beta [M] along the stored links from delta_mem [M]; NaN where there is none."""
        linked, beta = np.isfinite(error), np.full_like(error, np.nan)
        context = GateContext(*self.memory.along_links(), self._gamma).only(linked)
        beta[linked] = make_gate_law(self._config.gate).coefficient(error[linked], tau, context)
        return beta

    def metrics(self) -> dict[str, float]:
        """Report what the memory did since the last report."""
        stats = self.memory.take_stats()
        writes, self._writes = self._writes, []
        timing = {"memory/write_ms": sum(each.read_ms() for each in writes) / len(writes)} if writes else {}
        hit_rate = {"memory/hit_rate": self._found / self._recalled} if self._recalled else {}
        self._recalled = self._found = 0
        return (
            timing
            | hit_rate
            | self._describe_verdicts()
            | {
                "memory/size": self.memory.size,
                "memory/merge_rate": stats.merged / max(1, stats.written),
                "memory/desirable_fraction": self.memory.desirable_fraction,
                "memory/evicted": stats.evicted_total,
            }
        )

    def _describe_verdicts(self) -> dict[str, float]:
        """Describe the transitions collected since the last report, as they were judged."""
        verdicts, self._verdicts = self._verdicts, []
        if not self._config.uses_gate or not verdicts:
            return {}
        error = np.concatenate([verdict.delta_mem for verdict in verdicts])
        beta = np.concatenate([verdict.beta for verdict in verdicts])
        return _describe("gate/delta_mem_new", error[np.isfinite(error)]) | _describe("gate/beta_new", beta)

    def get_state(self) -> dict[str, Any]:
        """Collect memory and embedder for a checkpoint."""
        return {
            "memory": self.memory.get_state(),
            "embedder": self._embedder.get_state(),
            "episodes": self._episodes,
            "overlapped": self._fits.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore memory and embedder from a checkpoint."""
        self._embedder.set_state(state["embedder"])
        self.memory.set_state(state["memory"])
        self._episodes = state.get("episodes", 0)  # absent in older checkpoints
        self._fits.set_state(state.get("overlapped"))  # likewise


def make_episodic_system(config: RunConfig, info: EnvInfo, *, device: torch.device) -> EpisodicSystem:
    """Make the episodic part that the algorithm asks for."""
    return EpisodicPart(config, info, device=device) if config.uses_memory else EpisodicSystem()


def _pick(state: torch.Tensor, rows: Slots, steps: Slots) -> torch.Tensor:
    """Take single states [K, S] out of a batch [B, T+1, S], on its own device."""
    return state[send(rows, state.device), send(steps, state.device)]


def _describe(name: str, values: NDArray[np.floating]) -> dict[str, float]:
    """Summarise what a batch holds: mean, deciles at the ends, median."""
    if not len(values):
        return {}
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return {name: float(values.mean()), f"{name}_p10": low, f"{name}_p50": middle, f"{name}_p90": high}


def _stratified(h: Floats, t: NDArray[np.int32], n: int, rng: np.random.Generator) -> Slots:
    """Choose at most n rows, spread evenly over the ranks of (return decile, time)."""
    if len(h) <= n:
        return np.arange(len(h))
    decile = np.searchsorted(np.quantile(h, np.linspace(0, 1, 11)[1:-1]), h)
    order = np.lexsort((rng.random(len(h)), t, decile))
    return np.sort(order[np.linspace(0, len(h) - 1, n).astype(np.int64)])
