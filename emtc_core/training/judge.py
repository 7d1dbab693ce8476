"""What an episode means to one configuration: the nodes its gate reads, its verdict, and the record of both.

The memory need not be written under that configuration: nothing that a gate says decides what is written, so several
gates can judge by one memory. Stage before: memory (write); after: gate (Algorithm 3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.run import RunConfig
from emtc_core.gate.gate import GateVerdict, evaluate_gate
from emtc_core.gate.gate import Memory as Readable
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import EpisodeRecord
from emtc_core.rollout.episode import Episode

Slots = NDArray[np.int64]


class Judge:
    """The gate of a configuration over a memory."""

    def __init__(self, config: RunConfig, memory: EpisodicMemory, *, readable: Readable | None = None) -> None:
        """Look nodes up in `memory` and read their values there, or through `readable`."""
        self._config = config
        self._memory = memory
        self._readable = readable or memory

    @property
    def is_early(self) -> bool:
        """Whether an episode is judged before it is written (`gate.timing`)."""
        return self._config.gate.timing == "before_write"

    def judge(self, episode: Episode, slots: Slots | None, *, tau: float) -> GateVerdict:
        """Judge an episode by the memory as it is now.

        Args:
            episode: The episode.
            slots: [T+1] those that it was just written to; None where it is not written yet.
            tau: Temperature now [return units].
        """
        found = self._search(episode.state) if slots is None else self._look_up(slots, episode.state)
        return evaluate_gate(
            episode,
            found,
            self._readable,
            self._config.gate,
            gamma=self._config.train.gamma,
            tau=tau,
            bootstrap_on_timeout=self._config.train.bootstrap_on_timeout,
            is_empty=self._memory.is_blind,
        )

    def _look_up(self, slots: Slots, state: NDArray[np.float32]) -> Slots:
        """Find the nodes that the gate reads for an episode just written to `slots` (C2)."""
        gate = self._config.gate
        if gate.lookup == "nearest":
            return self._search(state)
        return self._memory.resolve(slots, state, nearest=gate.on_miss == "nearest")

    def _search(self, state: NDArray[np.float32]) -> Slots:
        return self._memory.find(state, np.arange(len(state)), nearest=self._config.gate.on_miss == "nearest")


@dataclass(frozen=True)
class Absorbed:
    """What writing one episode into memory decided; all None without a memory."""

    slots: Slots | None = None  # [T+1] as Algorithm 2 assigned them
    seen: Slots | None = None  # [T+1] as a reader sees them; differs only for a stale index or incentive.on_miss
    uids: Slots | None = None  # [T+1] of `seen`
    generation: int = 0
    verdict: GateVerdict | None = None

    def record(
        self, episode: Episode, number: int, first_env_step: int, *, tau: float, uses_gate: bool
    ) -> EpisodeRecord:
        """Record of the episode; what a gate said only where transitions carry one."""
        verdict = self.verdict
        gated = verdict if uses_gate else None
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
            h=verdict.h if verdict else None,
            h_next=verdict.h_next if verdict else None,
            delta_mem=gated.delta_mem if gated else None,
            beta=gated.beta if gated else None,
            tau=tau if gated else None,
        )
