"""The gate of one episode: finds the nodes that it reads, and computes delta_mem and beta."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.run import RunConfig
from emtc_core.gate.gate import GateValues, evaluate_gate
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import EpisodeRecord
from emtc_core.rollout.episode import Episode

Slots = NDArray[np.int64]


def evaluate_episode_gate(
    episode: Episode, slots: Slots | None, config: RunConfig, memory: EpisodicMemory, *, tau: float
) -> GateValues:
    """Compute delta_mem and beta of an episode from the current memory (Algorithm 3).

    Args:
        episode: The episode.
        slots: [T+1], indices of the slots that the episode was just written to; None if it is not written yet.
        config: Settings of the run.
        memory: The memory in which nodes are looked up.
        tau: Current temperature [return].

    Returns:
        Values of the T transitions.
    """
    gate, state = config.gate, episode.state
    nearest = gate.on_miss == "nearest"
    if slots is not None and gate.lookup == "written":
        slots = memory.resolve(slots, state, nearest=nearest)
    elif slots is not None and config.embed.time_norm == "T_lim":
        slots = memory.find_last_written(nearest=nearest)
    else:
        slots = memory.find(state, np.arange(len(state)), nearest=nearest)
    return evaluate_gate(
        episode,
        slots,
        memory,
        gate,
        gamma=config.train.gamma,
        tau=tau,
        bootstrap_on_timeout=config.train.bootstrap_on_timeout,
        is_empty=memory.is_index_empty,
    )


@dataclass(frozen=True)
class WrittenEpisode:
    """Slots and gate values of one written episode; all None without a memory. Source: Algorithm 3."""

    slots: Slots | None = None  # [T+1] slot indices as assigned by Algorithm 2
    incentive_slots: Slots | None = None
    """[T+1] slot indices that the incentive reads; they differ from `slots` if the index is stale,
    or if `incentive.on_miss = nearest` replaces a miss."""
    uids: Slots | None = None  # [T+1] uids of the nodes in `incentive_slots`, dimensionless
    generation: int = 0  # number of re-projections before the write
    gate: GateValues | None = None

    def make_record(
        self, episode: Episode, number: int, first_env_step: int, *, tau: float, uses_gate: bool
    ) -> EpisodeRecord:
        """Make the record of the episode for the recorder.

        Args:
            episode: The episode.
            number: Number of the episode in its run.
            first_env_step: Env step of its first transition.
            tau: Temperature of its transitions [return].
            uses_gate: Whether delta_mem, beta and tau are recorded.
        """
        values = self.gate
        gate = values if uses_gate else None
        return EpisodeRecord(
            episode=number,
            first_env_step=first_env_step,
            episode_return=episode.episode_return,
            won=episode.won,
            epsilon=episode.epsilon,
            state=episode.state,
            action=episode.action,
            reward=episode.reward,
            slots=self.slots,
            h=values.h if values else None,
            h_next=values.h_next if values else None,
            delta_mem=gate.delta_mem if gate else None,
            beta=gate.beta if gate else None,
            tau=tau if gate else None,
        )
