"""Settings of collection, the value learner, evaluation, telemetry and checkpoints."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from emtc_core.config.base import LARGEST, Before, Formerly, Section

Steps = Annotated[int, Field(ge=1, le=LARGEST)]


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
    hidden: Annotated[int, Field(ge=1, le=4096)] = 64
    """Width of the agent network [units]."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner runs; auto takes CUDA when there is one."""
    replay_device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where replayed episodes live: auto takes the GPU if they fill at most half of what is free there, else host memory, from which batches travel in the background."""
    threads: Annotated[int, Field(ge=0, le=256)] = 0
    """CPU threads of the learner; 0 is one thread, the fastest for these small networks unless the machine is idle."""
    mixed_precision: bool = False
    """bfloat16 autocast in the learner's forward pass, MAPPO's too; without effect on a CPU."""

    @model_validator(mode="after")
    def _replays_where_it_trains(self) -> "TrainConfig":
        if self.replay_device == "cuda" and self.device == "cpu":
            raise ValueError("train.replay_device = cuda needs train.device = auto or cuda, got cpu")
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


class CheckpointConfig(Section):
    """When the trainer saves itself."""

    interval: Steps = 20_000
    """Env steps between checkpoints; one more after the first 1000 steps, and one at each stop [env steps]."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """Checkpoints kept."""
