"""RunConfig: the whole tree of one run. `resolve.py` builds it; every part takes its own section."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from emtc_core.config.backbones import (
    CdsConfig,
    CuriosityConfig,
    DmixConfig,
    EpisodicControlConfig,
    MappoConfig,
    QmixConfig,
    QplexConfig,
)
from emtc_core.config.base import Section, SettingError
from emtc_core.config.memory import EmbedConfig, GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.config.outside import MIXER, ORIGINS, check_named, complete_arguments, find_named
from emtc_core.config.train import CheckpointConfig, EnvConfig, EvalConfig, RecordConfig, TrainConfig
from emtc_core.errors import Fault
from emtc_core.plugins import Kind, find_plugin, list_names, missing_fault

Backbone = Literal["qplex", "cds", "qmix", "vdn", "dmix", "mappo"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)
ON_POLICY: tuple[Backbone, ...] = ("mappo",)  # they have no TD target that an incentive could enter
METHODS = ("emtc", "emu")
PresetName = Literal["paper", "emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code", "demo"]
PRESETS: tuple[PresetName, ...] = get_args(PresetName)


def list_mixers() -> list[str]:
    """List the mixing rules from outside; a name of this project's stays this project's."""
    return [name for name in list_names("mixer") if name not in (*BACKBONES, *METHODS, "emc")]


def list_algos() -> list[str]:
    """List every name that `--algo` takes, the paper's first, those of mixers from outside last."""
    composed = [f"{m}-{b}" for b in BACKBONES if b not in ON_POLICY for m in METHODS]
    outside = [name for mixer in list_mixers() for name in (*(f"{m}-{mixer}" for m in METHODS), mixer)]
    return [*composed, *BACKBONES, "emc", *outside]


def split_algo(algo: str) -> tuple[Literal["emtc", "emu", "emc", "none"], str]:
    """Split "emtc-qplex" into method and backbone; "emc" is QPLEX with its own method.

    Raises:
        SettingError: If the name is not one of `list_algos()`.
    """
    if algo not in list_algos():
        hint = "For the mixer of a plug-in, install its package or list its module in EMTC_PLUGINS."
        raise SettingError(Fault("algo", algo, f"must be one of {', '.join(list_algos())}", hint))
    if algo == "emc":
        return "emc", "qplex"
    method, _, backbone = algo.rpartition("-")
    return (method or "none"), backbone  # type: ignore[return-value]  # the method was just checked


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
    mixer: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Arguments of a mixer from outside, by its name."""
    plugins: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    """What was from outside when the run was made: kind → name → distribution and version. Recorded, never set."""

    @model_validator(mode="before")
    @classmethod
    def _arguments(cls, values: Any) -> Any:
        """Complete the arguments of a mixer from outside; of one that is not here they stay as they were."""
        given = values.get(MIXER) or {} if isinstance(values, Mapping) else None
        if not isinstance(given, Mapping):
            return values
        backbone = str(values.get("algo", "")).rpartition("-")[2]
        return {**values, MIXER: complete_arguments("mixer", backbone, given, ())}

    @model_validator(mode="after")
    def _known_algo(self) -> "RunConfig":
        for mixer, origin in self.plugins.get("mixer", {}).items():
            if mixer not in list_mixers():
                raise SettingError(missing_fault("mixer", mixer, key="algo", value=self.algo, origin=origin))
        split_algo(self.algo)
        return self

    @model_validator(mode="after")
    def _known_plugins(self) -> "RunConfig":
        check_named(self._names(), self.plugins)
        for env, origin in self.plugins.get("env", {}).items():
            if env == self.env.name and find_plugin("env", env) is None:
                raise SettingError(missing_fault("env", env, key="env.name", origin=origin))
        return self

    @model_serializer(mode="wrap")
    def _leave_out_nothing_from_outside(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = handler(self)
        return {key: value for key, value in tree.items() if key not in (ORIGINS, MIXER) or value}

    def _names(self) -> Mapping[str, str]:
        return {
            "gate.type": self.gate.type,
            "embed.type": self.embed.type,
            "train.eps_schedule": self.train.eps_schedule,
            "record.callbacks": self.record.callbacks,
            "record.metrics": self.record.metrics,
        }

    def list_outside(self) -> list[tuple[Kind, str]]:
        """List what this configuration takes from outside: kinds and names."""
        env, backbone = self.env.name, self.backbone
        found: list[tuple[Kind, str]] = []
        if find_plugin("env", env):
            found.append(("env", env))
        if backbone not in BACKBONES:
            found.append(("mixer", backbone))
        return [*found, *((kind, name) for _, kind, name in find_named(self._names()))]

    def with_origins(self) -> "RunConfig":
        """Record where everything from outside comes from."""
        origins: dict[str, dict[str, str]] = {}
        for kind, name in self.list_outside():
            if plugin := find_plugin(kind, name):
                origins.setdefault(kind, {})[name] = plugin.origin
        return self.model_copy(update={ORIGINS: origins}) if origins else self

    @property
    def backbone(self) -> str:
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
    def uses_intrinsic_reward(self) -> bool:
        """Whether curiosity or CDS's diversity learns beside the values, on the CPU by a thread of its own."""
        return self.curiosity.is_on or (self.backbone == "cds" and self.cds.beta > 0)

    @property
    def uses_gate(self) -> bool:
        """Whether transitions carry a beta."""
        return self.uses_incentive and self.gate.enabled
