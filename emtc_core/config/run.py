"""RunConfig: all settings of one run. `resolve.py` builds it; each stage gets its section."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from emtc_core.config.backbones import (
    CdsConfig,
    CuriosityConfig,
    EpisodicControlConfig,
    MappoConfig,
    QmixConfig,
    QplexConfig,
)
from emtc_core.config.base import ConfigSection, SettingError
from emtc_core.config.memory import EmbedConfig, GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS, PluginValues, check_installed, complete_settings
from emtc_core.config.train import CheckpointConfig, EnvConfig, EvalConfig, RecordConfig, TrainConfig
from emtc_core.errors import Fault
from emtc_core.plugins import HOW_TO_ADD, list_names

Backbone = Literal["qplex", "cds", "qmix", "vdn", "dmix", "mappo"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)
ON_POLICY: tuple[Backbone, ...] = ("mappo",)  # no TD target, so no incentive
METHODS = ("emtc", "emu")
PresetName = Literal["paper", "emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code", "demo"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


def list_algos() -> list[str]:
    """List all names for `--algo`: the paper's first, those of plug-ins last."""
    composed = [f"{m}-{b}" for b in BACKBONES if b not in ON_POLICY for m in METHODS]
    reserved = (*BACKBONES, "emc", *METHODS)
    names = [*list_names("mixer", reserved), *list_names("backbone", reserved)]
    added = [name for name in names if name not in reserved]
    plugins = [name for backbone in added for name in (*(f"{m}-{backbone}" for m in METHODS), backbone)]
    return [*composed, *BACKBONES, "emc", *plugins]


def split_algo(algo: str) -> tuple[Literal["emtc", "emu", "emc", "none"], str]:
    """Split "emtc-qplex" into method and backbone. "emc" has the method emc and the backbone qplex.

    Raises:
        SettingError: If the name is not one of `list_algos()`.
    """
    if algo not in list_algos():
        raise SettingError(Fault("algo", algo, f"must be one of {', '.join(list_algos())}", HOW_TO_ADD))
    if algo == "emc":
        return "emc", "qplex"
    method, _, backbone = algo.rpartition("-")
    return (method or "none"), backbone  # type: ignore[return-value]  # list_algos has no other methods


class RunConfig(ConfigSection):
    """All settings that determine the results of a run. Every value is resolved."""

    algo: str = "emtc-qplex"
    """Method and backbone: emtc-qplex, emu-cds, qmix, …"""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of every random number of the run."""
    preset: PresetName = "paper"
    """paper: Algorithms 2 and 3 as printed; emu_index, prewrite, literal_raw, wide: other readings of memory and gate; emu_code, cds_code: as in the code of these authors; demo: a three-minute run."""
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
    mappo: MappoConfig = MappoConfig()
    """MAPPO."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of a mixer or backbone plug-in, under its name."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("", values, "algo")

    @model_validator(mode="after")
    def _check_names(self) -> "RunConfig":
        split_algo(self.algo)
        for key in PLUGIN_SETTINGS:
            section, _, field = key.partition(".")
            check_installed(key, getattr(getattr(self, section), field))
        return self

    @model_validator(mode="after")
    def _check_index_device(self) -> "RunConfig":
        if self.memory.index_device == "cuda" and self.train.device == "cpu":
            rule = "must be auto or cpu if train.device = cpu"
            raise SettingError(Fault("memory.index_device", "cuda", rule, related=("train.device",)))
        return self

    @property
    def backbone(self) -> str:
        """Name of the backbone: the value system or policy learner."""
        return split_algo(self.algo)[1]

    @property
    def uses_memory(self) -> bool:
        """Whether the algorithm has an episodic memory."""
        return split_algo(self.algo)[0] != "none"

    @property
    def uses_incentive(self) -> bool:
        """Whether r_p is added to the TD target."""
        return self.uses_memory and self.incentive.enabled

    @property
    def uses_intrinsic_reward(self) -> bool:
        """Whether curiosity or CDS's diversity is trained in addition, on the CPU in a separate thread."""
        return self.curiosity.is_on or (self.backbone == "cds" and self.cds.beta > 0)

    @property
    def uses_gate(self) -> bool:
        """Whether transitions have a beta."""
        return self.uses_incentive and self.gate.enabled
