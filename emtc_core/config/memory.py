"""Settings of the episodic memory (Algorithm 2) and its search index."""

from typing import Annotated, Literal

from pydantic import Field

from emtc_core.config.base import Section


class MemoryConfig(Section):
    """Episodic memory. Letters A1–A20 name the ambiguities of the paper."""

    capacity: Annotated[int, Field(ge=2, le=50_000_000)] = 1_000_000
    """Most nodes kept; the least recently used goes first [nodes]."""
    delta: Annotated[float, Field(gt=0, le=10)] = 1.8e-5
    """Radius for "same memory", in the space that delta_space names. Per task; A11."""
    delta_space: Literal["normalized", "raw"] = "normalized"
    """normalized: embeddings scaled per dimension by the memory's mean and std (EMU); raw: as embedded (paper). A10."""
    delta_metric: Literal["l2", "linf"] = "l2"
    """Distance of the delta test: l2 (paper) or per-coordinate linf (EMU's code). A10."""
    index: Literal["live", "stale_target_update"] = "live"
    """live: every node is visible at once; stale_target_update: only nodes known at the last target update (EMU's code). A13."""
    norm_interval: Literal["rebuild", "200_steps"] = "rebuild"
    """When normalisation statistics are refreshed: with the index (recommended) or every 200 env steps (EMU). A15."""
    store_terminal: bool = True
    """Store the terminal state with H = 0. A2."""
    terminal_xi: Literal["trajectory", "zero"] = "trajectory"
    """Success flag of the terminal state's node: the trajectory's, or always 0 (EMU's code). A2."""
    success: Literal["flag", "return_threshold"] = "flag"
    """What makes a trajectory successful: the environment's flag, or a return threshold. A3."""
    success_threshold: float = 20.0
    """Return at or above which an episode counts as success when success is return_threshold [env return]."""
    backprop_desirability: bool = False
    """Earlier states of a trajectory that meets a desirable node count as desirable too (EMU's code). A4."""
    init_desirability: bool = True
    """A new node of a successful trajectory starts with N_xi = 1; "emu_table" takes EMU's value for the task. A5."""
    reset_counts_on_shift: bool = False
    """Reset N_call and N_xi to 1 when a node moves to a successful state. A7."""
    shift_keep_max: bool = False
    """Keep max(H, R) when a node moves, instead of overwriting H by R (paper). A8."""
    link_update: Literal["always", "on_improve"] = "always"
    """When a node's link is rewritten: at each hit (paper) or only when H rises. A9."""
    evict: Literal["lru", "fifo"] = "lru"
    """Which node leaves a full memory: least recently used, or oldest. A17."""
    lru_touch_on_read: bool = True
    """Reads by the learner refresh recency. A17."""
    replay_refresh: Literal["none", "one_episode", "full"] = "none"
    """Rewrite replayed episodes into memory after each refit: none (paper), one (EMU's code as it runs), all. A19."""

    def is_success(self, *, won: bool, episode_return: float) -> bool:
        """Whether an episode counts as a success; `episode_return` is undiscounted, in the environment's unit."""
        return won if self.success == "flag" else episode_return >= self.success_threshold
