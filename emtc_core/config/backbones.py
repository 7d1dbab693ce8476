"""Settings of single backbones and methods: QMIX, QPLEX, CDS, EMC, MAPPO. DMIX has only those of QMIX."""

from typing import Annotated, Literal

from pydantic import Field

from emtc_core.config.base import LARGEST, ConfigSection

Width = Annotated[int, Field(ge=1, le=4096)]
Weight = Annotated[float, Field(ge=0, le=1000)]


class QmixConfig(ConfigSection):
    """QMIX mixing network (also inside DMIX)."""

    mixing_embed: Width = 32
    """Width of the mixing layer [units]."""
    hypernet_embed: Width = 64
    """Hidden width of the hypernetworks [units]."""


class QplexConfig(ConfigSection):
    """QPLEX duplex dueling mixer."""

    mixer: Literal["dmaq_qatten", "dmaq"] = "dmaq_qatten"
    """dmaq_qatten: attention transformation (SMAC); dmaq: state-only transformation (matrix games)."""
    num_kernel: Annotated[int, Field(ge=1, le=64)] = 4
    """K: kernels of the importance weights lambda."""
    adv_hypernet_layers: Annotated[int, Field(ge=1, le=3)] = 1
    """Layers of each kernel network."""
    attend_reg: Weight = 1e-3
    """Weight of the mean squared attention logits."""
    weighted_head: bool = False
    """Weigh the heads by a network of the state (MMM2 and 3s5z_vs_3s6z)."""
    nonlinear: bool = False
    """Append Q_i to the attention keys (MMM2). The mixer is then not strictly monotonic."""


class CdsConfig(ConfigSection):
    """CDS: diversity by private heads and an intrinsic reward."""

    mixer: Literal["qplex", "qmix"] = "qplex"
    """qplex: as in the SMAC code of CDS, used by EMU and EMTC; qmix: recommended by the CDS authors for football."""
    b1: Weight = 2.0
    """Factor on log q in log q - log p, and on the logits of an agent's policy. The mean policy P has no factor."""
    b2: Weight = 1.0
    """Weight of the policy divergence."""
    beta: Weight = 0.0
    """Weight of the intrinsic reward in the target; not the gate."""
    anneal: Weight = 0.0
    """Rate of the linear anneal after 1M env steps; 0 keeps the weight."""
    l1: Weight = 0.1
    """Weight of the L1 term on the private heads."""
    policy_mixture: Literal["heads", "agents", "histories"] = "agents"
    """P is the mean over heads (as intended by the authors), agents (SMAC code) or histories (GRF code)."""
    replay: Literal["uniform", "episode_per"] = "uniform"
    """Episode sampling: uniform, or prioritized by TD error (GRF code). On a GPU the priorities take effect one update later."""
    per_alpha: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Priority exponent of episode_per."""
    predictor_schedule: Literal["every_step", "periodic"] = "every_step"
    """Train the predictors at each update (SMAC), or every 16 episodes for 25 epochs (GRF)."""
    predictor_lr: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Adam learning rate of the predictors."""


class CuriosityConfig(ConfigSection):
    """EMC's curiosity reward."""

    scale: Weight = 0.0
    """Weight of the intrinsic reward at step 0; 0 builds no curiosity networks."""
    decay_rate: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor per decay cycle."""
    decay_cycle: Annotated[int, Field(ge=1, le=LARGEST)] = 100_000
    """Length of a decay cycle [env steps]."""
    decay_stop: Weight = 0.0
    """Floor of the scale."""
    emulate_floor_bug: bool = False
    """Raise a scale below the floor to the floor, as EMU's code does. C17."""

    @property
    def is_on(self) -> bool:
        """Whether the curiosity reward is ever greater than 0."""
        return self.scale > 0 or (self.emulate_floor_bug and self.decay_stop > 0)


class EpisodicControlConfig(ConfigSection):
    """EMC's conventional episodic control."""

    enabled: bool = False
    """Add the conventional episodic loss."""
    weight: Annotated[Weight, Field(alias="lambda")] = 0.1
    """Weight of the episodic loss; the paper's lambda of conventional episodic control. C16."""


class MappoConfig(ConfigSection):
    """MAPPO."""

    impl: Literal["on_policy"] = "on_policy"
    """Published implementation that is followed: the official on-policy code."""
    rollout_steps: Annotated[int, Field(ge=1, le=LARGEST)] = 3200
    """Transitions per update, summed over all environments [env steps]."""
    epochs: Annotated[int, Field(ge=1, le=100)] = 5
    """Passes over a rollout."""
    minibatches: Annotated[int, Field(ge=1, le=1000)] = 1
    """Minibatches per pass."""
    clip: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Clip range of the probability ratio and of the value."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """GAE lambda."""
    entropy: Weight = 0.01
    """Weight of the entropy bonus."""
    head_gain: Annotated[float, Field(gt=0)] = 0.01
    """Orthogonal gain of the policy head."""
    stacked_frames: Annotated[int, Field(ge=1, le=64)] = 1
    """Observations stacked as input."""
