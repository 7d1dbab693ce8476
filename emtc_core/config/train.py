"""Settings of environments, collection, the value learner, evaluation, telemetry and checkpoints."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from emtc_core.config.base import LARGEST, Before, Formerly, PluginName, Section, SettingError
from emtc_core.config.outside import read_arguments
from emtc_core.errors import Fault

RandomStart = Literal["none", "surround", "reflect", "surround_reflect"]

Steps = Annotated[int, Field(ge=1, le=LARGEST)]


class SkirmishConfig(Section):
    """The embedded simulator."""

    spawn_jitter: Annotated[float, Field(ge=0, le=0.5), Before(0.05, env="skirmish")] = 0.0
    """Largest shift of each unit along each axis at a start on the map's own places [cells]. 0, as in SMAC: units stand
    at the same places in every episode and only the random weapon delay
    differs. Runs stored before this setting existed had 0.05."""
    random_start: RandomStart = "none"
    """Where units start. none: at the map's own places; surround: allies in the middle, enemies in one to four groups
    on the diagonals around them; reflect: allies anywhere in the western half, enemies as their mirror image;
    surround_reflect: one or the other with equal chance, as in SMACv2."""
    enemy_order: Literal["sorted", "official"] = "sorted"
    """Enemy slots: sorted by type and position (EMU's fork), or in creation order (official SMAC)."""
    reward_sparse: bool = False
    """Reward only +1 on a win and -1 on a loss instead of shaped damage."""


class GrfConfig(Section):
    """Google Research Football."""

    reward: Literal["paper", "emu"] = "paper"
    """paper: +1 goal, -1 conceded, 0 otherwise; emu: +100 goal, -1 at any other end."""
    trimmed: bool = True
    """Counter-attack scenarios with the trimmed line-ups of the CDS authors."""
    control: Literal["engine", "attackers"] = "engine"
    """Who obeys agent i. engine: gfootball's own choice, as in every published result, which may be the
    keeper or change during an episode; attackers: always the player whose observation agent i receives."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that share the engines; 0: up to four per core that this process may use, at most one per copy."""


class PettingZooConfig(Section):
    """Any PettingZoo parallel environment."""

    team_reward: Literal["mean", "sum"] = "mean"
    """How the agents' rewards become the team's."""
    episode_limit: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """Steps after which an episode is truncated if the environment has not ended it before."""


class EnvConfig(Section):
    """Which game, and its own settings; those of one from outside stand under its name."""

    model_config = ConfigDict(extra="allow")

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

    @model_validator(mode="before")
    @classmethod
    def _arguments(cls, values: Any) -> Any:
        """Complete the arguments of an environment from outside; of one that is not here they stay as they were."""
        if not isinstance(values, Mapping):
            return values
        name = str(values.get("name", "skirmish"))
        if strangers := [key for key in values if key not in (*cls.model_fields, name)]:
            rule = f"is not a setting of the environment {name}"
            raise SettingError(*(Fault(f"env.{key}", rule=rule, related=("env.name",)) for key in strangers))
        if name in cls.model_fields:
            return dict(values)
        arguments = read_arguments("env", name, values.get(name))
        return {**values, name: arguments} if arguments else dict(values)

    @property
    def arguments(self) -> dict[str, Any]:
        """What an environment from outside is called with; empty for the others."""
        return dict((self.model_extra or {}).get(self.name) or {})


class TrainConfig(Section):
    """Collection and gradient updates (values of the PyMARL code base)."""

    t_max: Steps = 2_050_000
    """Training length [env steps]."""
    n_envs: Annotated[int, Field(ge=1, le=1024)] = 8
    """Environments stepped together; episodes enter the memory one by one in a fixed order. 1 is PyMARL's collection."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Discount."""
    reward_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor on the environment's reward before anything is stored; 100 on football. C8."""
    updates_per_episode: Annotated[int, Field(ge=1, le=100), Formerly("train.num_circle")] = 1
    """Gradient updates per collected episode. C15."""
    batch: Annotated[int, Field(ge=1, le=4096)] = 32
    """Episodes per update."""
    replay: Annotated[int, Field(ge=1, le=LARGEST)] = 5000
    """Episodes kept for replay."""
    burn_in: Annotated[int, Field(ge=1, le=LARGEST)] = 32
    """Episodes collected before the first update."""
    lr: Annotated[float, Field(gt=0, le=1)] = 5e-4
    """Learning rate."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop (alpha 0.99, eps 1e-5; PyMARL) or adam (eps 1e-5; DMIX)."""
    grad_clip: Annotated[float, Field(gt=0)] = 10.0
    """Largest global gradient norm."""
    target_interval: Annotated[int, Field(ge=1, le=LARGEST)] = 200
    """Target networks are copied when this many episodes (times updates_per_episode) have passed."""
    double_q: bool = True
    """Choose the next action with the online network, value it with the target network."""
    bootstrap_on_timeout: bool = False
    """Bootstrap past a time limit; PyMARL and every peer treat it as terminal."""
    eps_start: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Exploration at step 0."""
    eps_end: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Exploration from the end of the decay on."""
    eps_steps: Steps = 50_000
    """Length of the exploration decay [env steps]."""
    eps_schedule: PluginName = "linear"
    """Exploration over env steps. linear: from eps_start to eps_end over eps_steps; or a schedule from outside."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the agent network [units]."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner runs; auto takes CUDA when there is one."""
    replay_device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where replayed episodes live: auto takes the GPU if they fill at most half of what is free there, else host memory, from which batches travel in the background."""
    threads: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = 0
    """CPU threads among which an update shares its episodes; 0 is one, which is best where several runs train at once.
    auto: as many cores as are idle when the run begins, at most 4, one in a sweep; the number is stored with the run.
    Another number adds up in another order: its curve differs as another seed's may."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """How a GPU multiplies float32 numbers, in matrix products and in cuDNN's GRU. highest: in float32, so that actor and
    learner agree to rounding; high: in TF32, with 10 bits of mantissa, where they differ by about 1e-3 of a value.
    Without effect on a CPU."""
    deterministic: bool = False
    """On a GPU, use only algorithms that add up in the same order each time, so that a run that is repeated or resumed on
    the same GPU model gives the same bits; an update is slower. Without effect on a CPU, where this always holds."""
    mixed_precision: bool = False
    """bfloat16 autocast in the learner's forward pass, MAPPO's too, but for the recurrent layer, which stays in float32.
    An update is bound by the number of its kernels, so it is hardly faster. Without effect on a CPU."""

    @model_validator(mode="after")
    def _replays_where_it_trains(self) -> "TrainConfig":
        if self.replay_device == "cuda" and self.device == "cpu":
            rule = "must be auto or cpu if train.device = cpu"
            raise SettingError(Fault("train.replay_device", self.replay_device, rule, related=("train.device",)))
        return self


class EvalConfig(Section):
    """Greedy evaluation."""

    interval: Steps = 10_000
    """Env steps between evaluations; the first follows the first training round [env steps]."""
    episodes: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Greedy episodes per evaluation. D2."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 5
    """Seeds that a reported number should rest on; tables mark a number that rests on fewer."""
    report: Literal["mean_std", "median"] = "mean_std"
    """How a table quotes a final number over seeds: mean ± standard deviation, or median and quartiles. D1."""
    keep_playbacks: Annotated[int, Field(ge=0, le=1000)] = 2
    """Greedy episodes per evaluation stored for the replay page."""
    robust_jitter: Annotated[float, Field(ge=0, le=0.5), Before(0.0)] = 0.05
    """Largest shift of each unit along each axis at the starts of a second, robust evaluation [cells]. Skirmish with
    fixed starts only, where greedy episodes are near copies of each other; it plays eval.episodes once more at each
    evaluation. 0: none."""


class RecordConfig(Section):
    """What is written to the database, and how often."""

    gate_interval: Steps = 10_000
    """Env steps between gate statistics over the whole memory; shortened to 1/200 of a short run [env steps]."""
    metrics_interval: Steps = 1000
    """Env steps between metric rows [env steps]."""
    snapshots: Annotated[int, Field(ge=0, le=1000)] = 20
    """Snapshots of the memory over the run, evenly spaced; the last step always has one."""
    snapshot_states: Annotated[int, Field(ge=0, le=LARGEST)] = 20_000
    """States stored inside a snapshot, stratified by return and time [nodes]."""
    metrics: Annotated[str, Field(max_length=300)] = ""
    """Metrics from outside, names with commas between them: each a number of every training episode, drawn as user/<name>."""
    callbacks: Annotated[str, Field(max_length=300)] = ""
    """Callbacks from outside, names with commas between them; the numbers that they return are drawn under user/."""


class CheckpointConfig(Section):
    """When the trainer saves itself."""

    interval: Steps = 20_000
    """Env steps between checkpoints; one more after the first 1000 steps, and one at each stop [env steps]."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """Checkpoints kept; beside them stands the policy of the best evaluation, the learner alone."""
