"""Settings of the episodic memory (Algorithm 2), the semantic embedder (Algorithm 1), the gate and the incentive.

A1–A20, B1–B15 and C1–C19 in the descriptions are numbers of ambiguities of the paper. The Method page lists them.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from emtc_core.config.base import LARGEST, ConfigSection, PluginName, SettingError
from emtc_core.config.plugin_settings import PluginValues, complete_settings
from emtc_core.errors import Fault

Fraction = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1000)]

Tau = Annotated[float, Field(gt=0, le=1000)]


class MemoryConfig(ConfigSection):
    """Episodic memory: one node per state, with the highest return H that was reached from it (Algorithm 2)."""

    capacity: Annotated[int, Field(ge=2, le=50_000_000)] = 1_000_000
    """Maximum number of nodes; a full memory evicts the least recently used node [nodes]."""
    delta: Annotated[float, Field(gt=0, le=10)] = 1.8e-5
    """Merge radius: a state merges into the nearest node if it is within this distance. The presets set it per task. A11."""
    delta_space: Literal["normalized", "raw"] = "normalized"
    """Embeddings between which the distance is measured. normalized: minus their mean and divided by their standard deviation over all nodes, per dimension (EMU's code); raw: not scaled (paper). Of several nodes at the same distance, a lookup returns the one with the lowest slot. A10."""
    delta_metric: Literal["l2", "linf"] = "l2"
    """Distance that is compared with delta. l2: Euclidean (paper); linf: the largest difference of a coordinate (EMU's code). A10."""
    index: Literal["live", "stale_target_update"] = "live"
    """Nodes that a lookup searches. live: the current ones; stale_target_update: those that existed when the target networks were last updated (EMU's code). A13."""
    index_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the search for the nearest node at any distance (on_miss = nearest). cpu: SciPy's k-d tree; cuda: faiss-gpu from version 1.15 on if it is installed, else torch compares every node; auto: the device of the learner. All find the same nodes."""
    norm_interval: Literal["rebuild", "200_steps"] = "rebuild"
    """When mean and standard deviation for delta_space = normalized are recomputed. rebuild: when the index is rebuilt, that is at the first write, after each refit, and before a write if the nodes created since then, evicted ones included, are at least a quarter of the nodes at that time; 200_steps: also before a write after every 200 env steps (EMU's code). A15."""
    store_terminal: bool = True
    """Store the terminal state of an episode as a node with H = 0. A2."""
    terminal_xi: Literal["trajectory", "zero"] = "trajectory"
    """Success flag xi of the terminal state's node. trajectory: that of the episode; zero: always 0 (EMU's code). A2."""
    success: Literal["flag", "return_threshold"] = "flag"
    """When an episode is a success. flag: if the environment reports it; return_threshold: if its return is at least success_threshold. A3."""
    success_threshold: float = 20.0
    """Lowest return of a success, for success = return_threshold [env return]."""
    backprop_desirability: bool = False
    """If a state merges into a node with xi = 1, earlier states of the same episode get xi = 1 too (EMU's code). A4."""
    init_desirability: bool = True
    """On: a new node of a successful episode starts with N_xi = 1. Off: every new node starts with N_xi = 0. The text "emu_table" is replaced by the value of EMU's code for the task. A5."""
    shift_on_success: bool = True
    """When a node with xi = 0 gets the state of a successful episode, move the node there: its state, time step and position are replaced, and H is overwritten (Algorithm 2). Off: the node stays, and H only rises (EMC's code). A8."""
    reset_counts_on_shift: bool = False
    """Set N_call and N_xi to 1 when a node with xi = 0 gets the state of a successful episode. A7."""
    shift_keep_max: bool = False
    """When a node with xi = 0 gets the state of a successful episode, keep the larger of H and the new return; off: overwrite H (paper). A8."""
    link_update: Literal["always", "on_improve"] = "always"
    """When the link of a node to its successor (idx_next) is replaced. always: at each merge (paper); on_improve: only when H rises, and when the node is moved to a state of a successful episode, even if H falls. A9."""
    evict: Literal["lru", "fifo"] = "lru"
    """Node that a full memory evicts. lru: the least recently used; a node is used when it is created, when a state merges into it, and when it is read (lru_touch_on_read). fifo: the one that was created first; a merge does not make a node younger, even if it moves the node. A17."""
    lru_touch_on_read: bool = True
    """With evict = lru, a read also counts as a use of the node. Two steps read nodes: the gate's lookup of the states of each collected episode, also with gate.enabled = false, and the read of successor states at each update. So it affects which nodes are evicted, and with them the results. Statistics and snapshots are not reads. A17."""
    on_evicted: Literal["miss", "search"] = "miss"
    """What an update does if the node that a replayed state was stored in was evicted. miss: the state has no incentive until the next refit finds it another node, and with embed.type = random for good; search: find the nearest node within delta at each update. With memory.index = stale_target_update the search finds nothing, because it returns the evicted node again until the next target update. A search costs little time; the default is miss, so that results remain comparable with those of earlier runs. A17."""
    replay_refresh: Literal["none", "one_episode", "full"] = "none"
    """Episodes of the replay buffer that are written to the memory again after each refit. none (paper); one_episode: one at random (as EMU's code does); full: all. A19."""

    def is_success(self, *, won: bool, episode_return: float) -> bool:
        """Whether an episode is a success; `episode_return` is undiscounted, in the environment's unit."""
        return won if self.success == "flag" else episode_return >= self.success_threshold


class EmbedConfig(ConfigSection):
    """Temporally consistent semantic embedder (TCSE), its ablations and augmentation."""

    type: PluginName = "tcse"
    """tcse: autoencoder and InfoNCE (Eq. 4); dcae: autoencoder (EMU); random: fixed random linear projection; or the name of a plug-in. B13, B14."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the two hidden layers [units]."""
    dim: Annotated[int, Field(ge=1, le=16)] = 4
    """Embedding dimensions."""
    lr: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Adam learning rate. B7."""
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    """Maximum global gradient norm."""
    interval: Annotated[int, Field(ge=1, le=LARGEST)] = 1000
    """t_emb: env steps between two refits [env steps]. B9."""
    samples: Annotated[int, Field(ge=1, le=LARGEST)] = 102_400
    """N: maximum number of nodes sampled per refit, used in one pass [nodes]."""
    batch: Annotated[int, Field(ge=2, le=LARGEST)] = 1024
    """B: nodes per gradient step [nodes]."""
    min_entries: Annotated[int, Field(ge=2, le=LARGEST)] = 1024
    """Number of nodes from which refits start, unless min_episodes were written before [nodes]. B10."""
    min_episodes: Annotated[int, Field(ge=0, le=LARGEST)] = 32
    """After this many written episodes, refits start even with fewer than min_entries nodes. If states merge into a few nodes, only a refit can separate them. 0: only the number of nodes counts (EMU's code) [episodes]. B15."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the reconstruction losses of a batch are reduced to one number: mean (Algorithm 1) or sum (EMU's code). B6."""
    return_scale: Literal["none", "std"] = "std"
    """Unit of H in the return loss. none: the loss is (H - H^)² as in the paper; with returns of about 20 it is much larger than InfoNCE. std: H is divided by sigma_H, the running standard deviation of H over the nodes of the refits; the loss is ((H - H^) / sigma_H)². B15."""
    lambda_rcon: Weight = 0.1
    """Weight of the state reconstruction (Eq. 5)."""
    lambda_cl: Weight = 0.1
    """Weight of InfoNCE (Eq. 4)."""
    tau_cl: Annotated[float, Field(gt=0, le=100)] = 0.1
    """InfoNCE temperature (Eq. 6); not the gate's tau."""
    cl_views: Literal["raw_aug", "aug_aug"] = "raw_aug"
    """Positive pair of InfoNCE. raw_aug: the state and an augmented copy (Algorithm 1); aug_aug: two augmented copies (text of the paper). B4."""
    cl_symmetric: bool = False
    """Average InfoNCE over both directions. B5."""
    p_mask: Fraction = 0.2
    """Probability of masking a state coordinate."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.05
    """Standard deviation of the additive noise."""
    aug_shift: Annotated[int, Field(ge=0, le=1024)] = 0
    """Maximum random cyclic shift of the state coordinates; the paper's appendix argues against a shift. B3 [coordinates]."""
    noise_on_masked: bool = True
    """Add noise to masked coordinates too. B8."""
    reset_each_update: bool = False
    """Initialize the networks again at every refit, as in Algorithm 1. B2."""
    time_norm: Literal["T_lim", "write_T_lim+1"] = "T_lim"
    """Time input of the encoder, where T_lim is the episode limit. T_lim: t / T_lim; write_T_lim+1: t / (T_lim + 1) when a state is written, else t / T_lim (EMU's code). A14."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of an embedder plug-in, under its name."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("embed.", values, "type")


class GateConfig(ConfigSection):
    """Temporal-consistency gate (Eq. 7, 8, 12)."""

    enabled: bool = True
    """Multiply the incentive by beta. Off: the incentive is not multiplied (the paper's ablation No-TCGM), and no beta is recorded for transitions, links and snapshots."""
    type: PluginName = "gaussian"
    """beta as a function of delta_mem and tau. gaussian: exp(-delta_mem² / (2 tau²)) (Eq. 8); or the name of a plug-in, which may also read the transition."""
    mode: Literal["stored", "recompute"] = "stored"
    """stored: beta is computed once, when the episode is written (Algorithm 3); recompute: at each update. C5."""
    successor: Literal["nn", "link"] = "nn"
    """Node that gives H(s'). nn: the node of the actual next state; link: the successor idx_next of the node of s. C1."""
    lookup: Literal["nearest", "written"] = "nearest"
    """Node that gives H of a state. nearest: the nearest node, found by a search (Algorithm 3); written: the node that Algorithm 2 assigned to the state. C2."""
    timing: Literal["after_write", "before_write"] = "after_write"
    """Compute the gate of an episode after it is written to the memory (Algorithm 3), or before. C19."""
    on_miss: Literal["block", "pass", "nearest"] = "block"
    """If no node is within delta. block: beta = 0; pass: beta = 1; nearest: use the nearest node at any distance. With memory.index = stale_target_update this node may have been evicted since the index was built; then beta = 0. C2."""
    on_empty: Literal["pass", "block"] = "pass"
    """If the index has no nodes (first episode, or index not built yet). pass: beta = 1, because an empty memory has no inconsistency; block: beta = 0. C2."""
    terminal_value: Literal["zero", "lookup"] = "zero"
    """H(s') of a terminating transition: 0, or the value of the terminal state's node. C3."""
    schedule: Literal["linear", "adaptive"] = "linear"
    """linear: tau decays from tau_start to tau_end (Eq. 12); adaptive: tau is the 0.9 quantile of delta_mem over the last 10,000 transitions, limited to the range from tau_end to tau_start. Not in the paper; C7."""
    tau_unit: Literal["return", "spread"] = "return"
    """Unit of tau_start and tau_end. return: the learner's return unit (paper); spread: the standard deviation of the discounted returns of the last 10,000 transitions, for rewards of another scale. C7, C8."""
    tau_start: Tau = 1.2
    """Gate temperature at env step 0 [return]. Eq. 12."""
    tau_end: Tau = 0.6
    """Gate temperature from the end of the decay on [return]. Eq. 12."""
    tau_decay_steps: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    """Length of the linear decay; unset means half of train.t_max. C7 [env steps]."""
    delta_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor on delta_mem before the gate; on football, 0.01 gives delta_mem in goals. C8."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of a gate plug-in, under its name."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("gate.", values, "type")

    @model_validator(mode="after")
    def _check_tau(self) -> "GateConfig":
        if self.tau_end > self.tau_start:
            rule = f"must be <= gate.tau_start = {self.tau_start:g}"
            raise SettingError(Fault("gate.tau_end", self.tau_end, rule, related=("gate.tau_start",)))
        return self

    @model_validator(mode="after")
    def _check_lookup(self) -> "GateConfig":
        if self.lookup == "written" and self.timing == "before_write":
            rule = "must be nearest if gate.timing = before_write, because the episode has no nodes yet"
            hint = "Set gate.lookup=nearest or gate.timing=after_write."
            raise SettingError(Fault("gate.lookup", self.lookup, rule, hint, related=("gate.timing",)))
        return self


class IncentiveConfig(ConfigSection):
    """Episodic incentive r_p (Eq. 2)."""

    enabled: bool = True
    """Add the incentive to the TD target; off trains the backbone without it."""
    type: Literal["ratio", "flag"] = "ratio"
    """rho. ratio: N_xi / N_call; flag: the node's success flag (optimality_type = 2 in EMU's code)."""
    clamp: Literal["none", "positive"] = "none"
    """none: r_p may be negative (Eq. 2, Proposition 2); positive: max(H - Q, 0) (EMU's code). C9."""
    ratio_eps: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Added to N_call in rho: 0 (paper) or 0.001 (EMU's code). A6."""
    on_miss: Literal["zero", "nearest"] = "zero"
    """If no node is within delta. zero: r_p = 0; nearest: use the nearest node. With memory.index = stale_target_update this node may have been evicted since the index was built; then r_p = 0. C2."""
    mask_terminal: bool = True
    """r_p = 0 on terminating transitions. C13."""
