"""Settings of the environments."""

from typing import Annotated, Literal

from pydantic import Field

from emtc_core.config.base import Before, Section

RandomStart = Literal["none", "surround", "reflect", "surround_reflect"]


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
    """Which game, and its own settings."""

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
