"""Which nodes one configuration of the gate reads of a memory, and what it then says of an episode (Algorithm 3).

The memory need not be written under that configuration: nothing that a gate says decides what is written, so several
gates can judge by one memory. Stage before: memory (write); after: gate.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.run import RunConfig
from emtc_core.gate.gate import GateVerdict, evaluate_gate
from emtc_core.gate.gate import Memory as Readable
from emtc_core.memory.memory import EpisodicMemory
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
