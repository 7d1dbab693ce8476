"""Settings of the temporal-consistency gate and of the episodic incentive."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emtc_core.config.base import LARGEST, WITH_A_MEMORY, Before, Section

Tau = Annotated[float, Field(gt=0, le=1000)]


class GateConfig(Section):
    """Temporal-consistency gate (Eq. 7, 8, 12)."""

    enabled: bool = True
    """Weigh the incentive by beta; off means beta = 1 (No-TCGM)."""
    mode: Literal["stored", "recompute"] = "stored"
    """stored: beta is computed once, when the episode is written (Algorithm 3); recompute: at each update. C5."""
    successor: Literal["nn", "link"] = "nn"
    """H(s') from the node of the actual next state, or from the node's idx_next. C1."""
    lookup: Annotated[Literal["nearest", "written"], Before("written", algos=WITH_A_MEMORY)] = "nearest"
    """Where H of a state is read: at the node nearest to it (Algorithm 3 searches), or at the node that Algorithm 2 assigned while it walked the episode. C2."""
    timing: Literal["after_write", "before_write"] = "after_write"
    """Judge an episode by the memory that already holds it (Algorithm 3), or by what was known before it. C19."""
    on_miss: Literal["block", "pass", "nearest"] = "block"
    """No node within delta: beta = 0, beta = 1, or use the nearest node at any distance. C2."""
    on_empty: Annotated[Literal["pass", "block"], Before("block", algos=WITH_A_MEMORY)] = "pass"
    """No node to search at all (a first episode, an index not yet built): beta = 1, since a memory that knows nothing has nothing to doubt, or beta = 0. C2."""
    terminal_value: Literal["zero", "lookup"] = "zero"
    """H(s') of a terminating transition. C3."""
    schedule: Literal["linear", "adaptive"] = "linear"
    """linear: tau cools from tau_start to tau_end (Eq. 12); adaptive: tau is the tau_quantile of delta_mem over the last tau_window transitions, kept between tau_end and tau_start. Beyond the paper; C7."""
    tau_unit: Literal["return", "spread"] = "return"
    """Unit of tau_start and tau_end: the return itself (paper), or the standard deviation of the discounted returns of the last tau_window transitions, for rewards of another scale. C7, C8."""
    tau_start: Tau = 1.2
    """Gate temperature at env step 0 [return]. Eq. 12."""
    tau_end: Tau = 0.6
    """Gate temperature from the end of the decay on [return]. Eq. 12."""
    tau_decay_steps: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    """Length of the linear decay; unset means half of train.t_max. C7 [env steps]."""
    tau_quantile: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Quantile of delta_mem that the adaptive schedule follows."""
    tau_window: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """Newest transitions that the adaptive schedule and the spread are measured on [transitions]."""
    delta_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor on delta_mem before the gate; 0.01 reads it "in goals" on football. C8."""

    @model_validator(mode="after")
    def _cools(self) -> "GateConfig":
        if self.tau_end > self.tau_start:
            raise ValueError(f"gate.tau_end must not exceed gate.tau_start, got {self.tau_end:g} > {self.tau_start:g}")
        return self

    @model_validator(mode="after")
    def _written_exists(self) -> "GateConfig":
        if self.lookup == "written" and self.timing == "before_write":
            raise ValueError(
                "gate.lookup = written needs gate.timing = after_write: before it, nothing is written. "
                "Set gate.lookup=nearest"
            )
        return self


class IncentiveConfig(Section):
    """Episodic incentive r_p (Eq. 2)."""

    enabled: bool = True
    """Add the incentive to the TD target; off leaves the plain backbone."""
    type: Literal["ratio", "flag"] = "ratio"
    """rho = N_xi / N_call (ratio) or the node's success flag (EMU's optimality type 2)."""
    clamp: Literal["none", "positive"] = "none"
    """none: r_p may be negative (Eq. 2, Proposition 2); positive: max(H - Q, 0) (EMU's code). C9."""
    ratio_eps: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Added to N_call in rho: 0 (paper) or 0.001 (EMU's code). A6."""
    on_miss: Literal["zero", "nearest"] = "zero"
    """No node within delta: r_p = 0, or use the nearest node. C2."""
    mask_terminal: bool = True
    """r_p = 0 on terminating transitions. C13."""
