"""RunConfig: all settings of one run. `resolve.py` builds it; each stage gets its section."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

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
from emtc_core.config.plugin_settings import MIXER, ORIGINS, check_installed, complete_arguments, list_named_plugins
from emtc_core.config.train import CheckpointConfig, EnvConfig, EvalConfig, RecordConfig, TrainConfig
from emtc_core.errors import Fault
from emtc_core.plugins import Kind, find_plugin, list_names, make_missing_fault

Backbone = Literal["qplex", "cds", "qmix", "vdn", "dmix", "mappo"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)
ON_POLICY: tuple[Backbone, ...] = ("mappo",)  # no TD target, so no incentive
METHODS = ("emtc", "emu")
PresetName = Literal["paper", "emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code", "demo"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


def list_mixers() -> list[str]:
    """List the mixers of plug-ins. A plug-in with a built-in name is not listed."""
    return [name for name in list_names("mixer") if name not in (*BACKBONES, *METHODS, "emc")]


def list_algos() -> list[str]:
    """List all names for `--algo`: the paper's first, mixers of plug-ins last."""
    composed = [f"{m}-{b}" for b in BACKBONES if b not in ON_POLICY for m in METHODS]
    plugins = [name for mixer in list_mixers() for name in (*(f"{m}-{mixer}" for m in METHODS), mixer)]
    return [*composed, *BACKBONES, "emc", *plugins]


def split_algo(algo: str) -> tuple[Literal["emtc", "emu", "emc", "none"], str]:
    """Split "emtc-qplex" into method and backbone. "emc" has the method emc and the backbone qplex.

    Raises:
        SettingError: If the name is not one of `list_algos()`.
    """
    if algo not in list_algos():
        hint = "For the mixer of a plug-in, install its package or list its module in EMTC_PLUGINS."
        raise SettingError(Fault("algo", algo, f"must be one of {', '.join(list_algos())}", hint))
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
    mixer: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Arguments of a mixer plug-in, by its name."""
    plugins: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    """Plug-ins of the run: kind → name → distribution and version. Recorded; a user cannot set it."""

    @model_validator(mode="before")
    @classmethod
    def _arguments(cls, values: Any) -> Any:
        """Validate the arguments of a mixer plug-in. If it is not installed, they are not changed."""
        given = values.get(MIXER) or {} if isinstance(values, Mapping) else None
        if not isinstance(given, Mapping):
            return values
        backbone = str(values.get("algo", "")).rpartition("-")[2]
        return {**values, MIXER: complete_arguments("mixer", backbone, given, ())}

    @model_validator(mode="after")
    def _check_algo(self) -> "RunConfig":
        for mixer, origin in self.plugins.get("mixer", {}).items():
            if mixer not in list_mixers():
                raise SettingError(make_missing_fault("mixer", mixer, key="algo", value=self.algo, origin=origin))
        split_algo(self.algo)
        return self

    @model_validator(mode="after")
    def _check_index_device(self) -> "RunConfig":
        if self.memory.index_device == "cuda" and self.train.device == "cpu":
            rule = "must be auto or cpu if train.device = cpu"
            raise SettingError(Fault("memory.index_device", "cuda", rule, related=("train.device",)))
        return self

    @model_validator(mode="after")
    def _check_plugins(self) -> "RunConfig":
        check_installed(self._get_plugin_settings(), self.plugins)
        for env, origin in self.plugins.get("env", {}).items():
            if env == self.env.name and find_plugin("env", env) is None:
                raise SettingError(make_missing_fault("env", env, key="env.name", origin=origin))
        return self

    @model_serializer(mode="wrap")
    def _drop_empty_plugin_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = handler(self)
        return {key: value for key, value in tree.items() if key not in (ORIGINS, MIXER) or value}

    def _get_plugin_settings(self) -> Mapping[str, str]:
        return {
            "gate.type": self.gate.type,
            "embed.type": self.embed.type,
            "train.eps_schedule": self.train.eps_schedule,
            "record.callbacks": self.record.callbacks,
            "record.metrics": self.record.metrics,
        }

    def list_plugins(self) -> list[tuple[Kind, str]]:
        """List kind and name of the plug-ins that this configuration uses."""
        env, backbone = self.env.name, self.backbone
        plugins: list[tuple[Kind, str]] = []
        if find_plugin("env", env):
            plugins.append(("env", env))
        if backbone not in BACKBONES:
            plugins.append(("mixer", backbone))
        return [*plugins, *((kind, name) for _, kind, name in list_named_plugins(self._get_plugin_settings()))]

    def with_origins(self) -> "RunConfig":
        """Return a copy with the origins of all plug-ins in `plugins`."""
        origins: dict[str, dict[str, str]] = {}
        for kind, name in self.list_plugins():
            if plugin := find_plugin(kind, name):
                origins.setdefault(kind, {})[name] = plugin.origin
        return self.model_copy(update={ORIGINS: origins}) if origins else self

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
