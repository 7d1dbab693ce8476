"""Settings of environments, collection, the value learner, evaluation, telemetry and checkpoints.

C8 and C15 in the descriptions are numbers of ambiguities of the paper. The Method page lists them.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from emtc_core.config.base import LARGEST, ConfigSection, PluginName, SettingError
from emtc_core.config.plugin_settings import PluginValues, complete_settings
from emtc_core.errors import Fault

RandomStart = Literal["none", "surround", "reflect", "surround_reflect"]

Steps = Annotated[int, Field(ge=1, le=LARGEST)]


class SkirmishConfig(ConfigSection):
    """The embedded simulator."""

    spawn_jitter: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Maximum random shift of each unit along each axis if units start at the map's positions [cells]. 0, as in SMAC: units
    start at the same positions in every episode, and only the random weapon delay differs."""
    random_start: RandomStart = "none"
    """Where units start. none: at the map's positions; surround: allies in the middle, enemies in one to four groups
    on the diagonals around them; reflect: allies at random positions in the western half, enemies mirrored;
    surround_reflect: surround or reflect with equal probability, as in SMACv2."""
    enemy_order: Literal["sorted", "official"] = "sorted"
    """Enemy slots: sorted by type and position (EMU's fork), or in creation order (official SMAC)."""
    reward_sparse: bool = False
    """Reward only +1 on a win and -1 on a loss instead of shaped damage."""


class GrfConfig(ConfigSection):
    """Google Research Football."""

    reward: Literal["paper", "emu"] = "paper"
    """paper: +1 goal, -1 conceded, 0 otherwise; emu: +100 goal, -1 at any other end."""
    trimmed: bool = True
    """Use the counter-attack scenarios with fewer players that the CDS authors published."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Number of processes for the engines. 0: up to four per available core, at most one per environment."""


class PettingZooConfig(ConfigSection):
    """Any PettingZoo parallel environment."""

    team_reward: Literal["mean", "sum"] = "mean"
    """How the team reward is computed from the agents' rewards."""
    episode_limit: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """An episode is truncated after this many steps."""


class EnvConfig(ConfigSection):
    """Environment and its settings."""

    name: str = "skirmish"
    """Environment; `emtc envs` lists them."""
    map: Annotated[str, Field(min_length=1, max_length=300)] = "3m"
    """Map or scenario; for pettingzoo, module:factory."""
    skirmish: SkirmishConfig = SkirmishConfig()
    """The embedded simulator."""
    grf: GrfConfig = GrfConfig()
    """Google Research Football."""
    pettingzoo: PettingZooConfig = PettingZooConfig()
    """Any PettingZoo parallel environment."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of an environment plug-in, under its name."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("env.", values, "name")


class TrainConfig(ConfigSection):
    """Collection and gradient updates. Defaults are those of PyMARL."""

    t_max: Steps = 2_050_000
    """Training length [env steps]."""
    n_envs: Annotated[int, Field(ge=1, le=1024)] = 8
    """Number of environments that run in parallel. Their episodes are written to the memory one by one in a fixed order. PyMARL uses 1."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Discount."""
    reward_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor on the environment's reward, applied before rewards are stored; 100 on football. C8."""
    updates_per_episode: Annotated[int, Field(ge=1, le=100)] = 1
    """Gradient updates per collected episode. C15."""
    batch: Annotated[int, Field(ge=1, le=4096)] = 32
    """Episodes per update."""
    replay: Annotated[int, Field(ge=1, le=LARGEST)] = 5000
    """Capacity of the replay buffer, in episodes."""
    burn_in: Annotated[int, Field(ge=1, le=LARGEST)] = 32
    """Episodes collected before the first update."""
    lr: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Learning rate."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop (alpha 0.99, eps 1e-5; PyMARL) or adam (eps 1e-5; DMIX)."""
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    """Maximum global gradient norm."""
    target_interval: Annotated[int, Field(ge=1, le=LARGEST)] = 200
    """The target networks are copied when the number of episodes, multiplied by updates_per_episode, has grown by this."""
    double_q: bool = True
    """Select the next action with the online network, and compute its value with the target network."""
    bootstrap_on_timeout: bool = False
    """Bootstrap after an episode that the time limit ended. PyMARL and similar libraries treat it as terminal."""
    eps_start: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability of a random action at env step 0."""
    eps_end: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Probability of a random action after the decay."""
    eps_steps: Steps = 50_000
    """Length of the exploration decay [env steps]."""
    eps_schedule: PluginName = "linear"
    """Exploration over env steps. linear: from eps_start to eps_end over eps_steps; or the name of a plug-in."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the agent network [units]."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner. auto uses CUDA if it is available."""
    act_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that computes the agents' actions. cpu: the weights are copied to the host once per round. auto: cpu for up
    to 512 agents in all environments together (n_envs times agents), otherwise the device of the learner."""
    replay_device: Literal["auto", "cuda", "cpu"] = "auto"
    """Device of the replay buffer. auto: the GPU if the buffer needs at most half of its free memory, else host memory, from which batches are copied in the background."""
    gpu_share: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    """Fraction of the GPU's memory that a run may plan with. auto: 1 divided by the number of runs that its sweep or worker
    trains at the same time (--jobs), otherwise 1. A run that resumes on another machine uses auto. No effect on a CPU."""
    threads: Annotated[int, Field(ge=0, le=16)] = 0
    """CPU threads of a run; the results do not depend on it. 0: two if a core is idle at the start, and one in a sweep."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """Precision of float32 matrix products and of cuDNN's GRU on a GPU. highest: float32; actor and learner differ only
    by rounding. high: TF32 with 10 bits of mantissa; their action
    values differ by about 1e-3 of the value. No effect on a CPU."""
    deterministic: bool = False
    """On a GPU, use only deterministic algorithms, so that a repeated or resumed run on the same GPU model gives the same
    bits. Updates are slower. No effect on a CPU, where results are always deterministic."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of a schedule plug-in, under its name."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("train.", values, "eps_schedule")

    @model_validator(mode="after")
    def _check_devices(self) -> "TrainConfig":
        for key in ("replay_device", "act_device"):
            if getattr(self, key) == "cuda" and self.device == "cpu":
                rule = "must be auto or cpu if train.device = cpu"
                raise SettingError(Fault(f"train.{key}", "cuda", rule, related=("train.device",)))
        return self


class EvalConfig(ConfigSection):
    """Greedy evaluation."""

    interval: Steps = 10_000
    """Env steps between evaluations; the first one is after the first episodes [env steps]."""
    episodes: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Greedy episodes per evaluation. On skirmish with fixed starts, where greedy episodes are nearly equal, each evaluation plays as many more from starts shifted by up to 0.05 cells: the robust evaluation."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of seeds that the protocol requires for a reported value. Tables show the number of seeds that exist."""
    report: Literal["mean_std", "median"] = "mean_std"
    """How tables show a final value over seeds: mean ± standard deviation, or median and quartiles."""
    keep_playbacks: Annotated[int, Field(ge=0, le=1000)] = 2
    """Greedy episodes per evaluation that are stored for the replay page."""


class RecordConfig(ConfigSection):
    """What is recorded in the database, and how often."""

    gate_interval: Steps = 10_000
    """Env steps between gate statistics over the whole memory, at most 1/200 of the run [env steps]."""
    metrics_interval: Steps = 1000
    """Env steps between metric rows [env steps]."""
    snapshots: Annotated[int, Field(ge=0, le=1000)] = 20
    """Number of memory snapshots in a run, evenly spaced, and one at the last step."""
    snapshot_states: Annotated[int, Field(ge=0, le=LARGEST)] = 20_000
    """States stored in a snapshot, sampled with stratification by return and time [nodes]."""
    metrics: Annotated[str, Field(max_length=300)] = ""
    """Names of metric plug-ins, separated by commas. Each computes a number for every training episode, plotted as user/<name>."""
    callbacks: Annotated[str, Field(max_length=300)] = ""
    """Names of callback plug-ins, separated by commas. The numbers that they return are plotted under user/."""
    plugin: PluginValues = Field(default_factory=PluginValues)
    """Settings of metric and callback plug-ins, under their names."""

    @model_validator(mode="before")
    @classmethod
    def _complete_plugin(cls, values: Any) -> Any:
        return complete_settings("record.", values, "metrics", "callbacks")


class CheckpointConfig(ConfigSection):
    """When checkpoints are saved, and how many are kept."""

    interval: Steps = 20_000
    """Env steps between checkpoints, and at least 60 s; one more after the first 1000 steps, and one at each stop
    [env steps]."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of checkpoints that are kept. The learner of the best evaluation is kept in addition."""
