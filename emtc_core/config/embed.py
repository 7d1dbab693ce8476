"""Settings of the semantic embedder (Algorithm 1)."""

from typing import Annotated, Literal

from pydantic import Field

from emtc_core.config.base import LARGEST, WITH_A_MEMORY, Before, Section

Fraction = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1000)]


class EmbedConfig(Section):
    """Temporally consistent semantic embedder (TCSE), its ablations and augmentation."""

    type: Literal["tcse", "dcae", "random"] = "tcse"
    """tcse: autoencoder + InfoNCE (Eq. 4); dcae: autoencoder alone (EMU); random: fixed linear projection. B13, B14."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the two hidden layers [units]."""
    dim: Annotated[int, Field(ge=1, le=16)] = 4
    """Embedding dimensions."""
    lr: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Adam learning rate. B7."""
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    """Largest global gradient norm."""
    interval: Annotated[int, Field(ge=1, le=LARGEST)] = 1000
    """t_emb: a refit fires when this many env steps have passed [env steps]. B9."""
    samples: Annotated[int, Field(ge=1, le=LARGEST)] = 102_400
    """N: most nodes drawn per refit, one pass [nodes]."""
    batch: Annotated[int, Field(ge=2, le=LARGEST)] = 1024
    """B: nodes per gradient step [nodes]."""
    min_entries: Annotated[int, Field(ge=2, le=LARGEST)] = 1024
    """No refit before the memory holds this many nodes, unless min_episodes were written [nodes]. B10."""
    min_episodes: Annotated[int, Field(ge=0, le=LARGEST), Before(0, algos=WITH_A_MEMORY)] = 32
    """Refit from this many written episodes on, however few nodes they left: where everything merges, only a refit can tell states apart. 0: nodes alone decide (EMU's code) [episodes]. B15."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reconstruction losses over the batch: mean (Algorithm 1) or sum (EMU's code). B6."""
    return_scale: Annotated[Literal["none", "std"], Before("none", algos=WITH_A_MEMORY)] = "std"
    """Unit of the return loss: none, (H - H^)² as printed, in which returns of size 20 drown InfoNCE; std, ((H - H^) / sigma_H)², sigma_H the running standard deviation of H over the refits' nodes, the head decoding H / sigma_H, nothing centred. B15."""
    lambda_rcon: Weight = 0.1
    """Weight of the state reconstruction (Eq. 5)."""
    lambda_cl: Weight = 0.1
    """Weight of InfoNCE (Eq. 4)."""
    tau_cl: Annotated[float, Field(gt=0, le=100)] = 0.1
    """InfoNCE temperature (Eq. 6); not the gate's tau."""
    cl_views: Literal["raw_aug", "aug_aug"] = "raw_aug"
    """Positive pair: raw and one augmented view (Algorithm 1), or two augmented views (section text). B4."""
    cl_symmetric: bool = False
    """Average InfoNCE over both directions. B5."""
    p_mask: Fraction = 0.2
    """Probability of masking a state coordinate."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.05
    """Standard deviation of the additive noise."""
    aug_shift: Annotated[int, Field(ge=0, le=1024)] = 0
    """Largest random cyclic shift of the state coordinates; the appendix argues against it. B3 [coordinates]."""
    noise_on_masked: bool = True
    """Masked coordinates get noise too. B8."""
    reset_each_update: bool = False
    """Re-initialise the networks at every refit, as Algorithm 1 is printed. B2."""
    time_norm: Literal["T_lim", "write_T_lim+1"] = "T_lim"
    """Time input t/T_lim everywhere, or t/(T_lim+1) when writing (EMU's code). A14."""
