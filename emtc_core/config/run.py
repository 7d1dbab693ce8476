"""RunConfig: the whole tree of one run. `resolve.py` builds it; every part takes its own section."""

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from emtc_core.config.backbones import (
    CdsConfig,
    CuriosityConfig,
    DmixConfig,
    EpisodicControlConfig,
    MappoConfig,
    QmixConfig,
    QplexConfig,
)
from emtc_core.config.base import Section, quote
from emtc_core.config.memory import EmbedConfig, GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.config.train import CheckpointConfig, EnvConfig, EvalConfig, RecordConfig, TrainConfig

Backbone = Literal["qplex", "cds", "qmix", "vdn", "dmix", "mappo"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)
ON_POLICY: tuple[Backbone, ...] = ("mappo",)  # they have no TD target that an incentive could enter
METHODS = ("emtc", "emu")
PresetName = Literal["paper", "emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code", "demo"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


def list_algos() -> list[str]:
    """List every name that `--algo` takes, the paper's first."""
    composed = [f"{m}-{b}" for b in BACKBONES if b not in ON_POLICY for m in METHODS]
    return [*composed, *BACKBONES, "emc"]


def split_algo(algo: str) -> tuple[Literal["emtc", "emu", "emc", "none"], Backbone]:
    """Split "emtc-qplex" into method and backbone; "emc" is QPLEX with its own method.

    Raises:
        ValueError: If the name is not one of `list_algos()`.
    """
    if algo not in list_algos():
        raise ValueError(f"algo must be one of {', '.join(list_algos())}, got {quote(algo)}")
    if algo == "emc":
        return "emc", "qplex"
    method, _, backbone = algo.rpartition("-")
    return (method or "none"), backbone  # type: ignore[return-value]  # both halves were just checked


class RunConfig(Section):
    """Everything that decides a run, resolved: no value is left to be looked up later."""

    algo: str = "emtc-qplex"
    """Method and backbone: emtc-qplex, emu-cds, qmix, …"""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of every random number of the run."""
    preset: PresetName = "paper"
    """paper: Algorithms 2 and 3 as printed; emu_index, prewrite, literal_raw, wide: other readings of memory and gate; emu_code, cds_code: habits of those repositories; demo: a three-minute run."""
    env: EnvConfig = EnvConfig()
    """Game and map."""
    train: TrainConfig = TrainConfig()
    """Collection and updates."""
    memory: MemoryConfig = MemoryConfig()
    """Episodic memory."""
    embed: EmbedConfig = EmbedConfig()
    """Semantic embedder."""
    gate: GateConfig = GateConfig()
    """Temporal-consistency gate."""
    incentive: IncentiveConfig = IncentiveConfig()
    """Episodic incentive."""
    eval: EvalConfig = EvalConfig()
    """Greedy evaluation."""
    record: RecordConfig = RecordConfig()
    """Telemetry."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    qplex: QplexConfig = QplexConfig()
    """QPLEX mixer."""
    qmix: QmixConfig = QmixConfig()
    """QMIX mixer."""
    cds: CdsConfig = CdsConfig()
    """CDS."""
    curiosity: CuriosityConfig = CuriosityConfig()
    """EMC's curiosity."""
    ec: EpisodicControlConfig = EpisodicControlConfig()
    """EMC's episodic control."""
    dmix: DmixConfig = DmixConfig()
    """DMIX."""
    mappo: MappoConfig = MappoConfig()
    """MAPPO."""

    @model_validator(mode="after")
    def _known_algo(self) -> "RunConfig":
        split_algo(self.algo)
        return self

    @property
    def backbone(self) -> Backbone:
        """The value system or policy learner underneath."""
        return split_algo(self.algo)[1]

    @property
    def uses_memory(self) -> bool:
        """Whether an episodic memory is written at all."""
        return split_algo(self.algo)[0] != "none"

    @property
    def uses_incentive(self) -> bool:
        """Whether r_p is added to the TD target."""
        return self.uses_memory and self.incentive.enabled

    @property
    def uses_gate(self) -> bool:
        """Whether transitions carry a beta."""
        return self.uses_incentive and self.gate.enabled
