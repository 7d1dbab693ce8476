"""What writing one episode into memory decided, and the record that tells it to the outside world."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.gate.gate import GateVerdict
from emtc_core.recorder import EpisodeRecord
from emtc_core.rollout.episode import Episode

Slots = NDArray[np.int64]


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
